"""Look-ups of the names in a job, with all their problems collected, and the clusters that hardware gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from autoplan.catalog.entries import device, hardware
from autoplan.errors import AutoplanError, Problem, SpecError, UnsupportedError
from autoplan.schema.job import Cluster
from autoplan.schema.yaml.document import Document

R = TypeVar("R")


class Attempts:
    """Look-ups of a job that collect their problems.

    ``problems`` begin with those of the schema; ``wrong`` are the keys of these.
    """

    def __init__(
        self, document: Document | None, wrong: frozenset[str] = frozenset(), problems: Sequence[Problem] = ()
    ) -> None:
        self.document = document
        self.wrong = wrong
        self.problems = list(problems)

    def find(self, key: str, look_up: Callable[[], R], *, needs: Collection[str] = ()) -> R | None:
        """Return the result of ``look_up``, or None with its problem added at ``key``.

        A look-up that ``needs`` an invalid key is skipped.
        """
        if not self.wrong.isdisjoint(needs):
            return None
        try:
            return look_up()
        except SpecError as error:
            self.problems.extend(error.problems)
        except AutoplanError as error:
            document = self.document
            file = document.name if document else None
            line = document.line(key.split(".")) if document else None
            self.problems.append(Problem(str(error), f"$.{key}", file, line))
        return None

    def lines(self, key: str, entries: int) -> tuple[int, ...]:
        """Return the lines of the entries of the list at ``key``; empty without a file."""
        document = self.document
        return tuple(document.line([key, i]) for i in range(entries)) if document else ()

    def in_order(self) -> list[Problem]:
        """Return the problems by line; those of other files come last."""
        name = self.document.name if self.document else None
        return sorted(self.problems, key=lambda problem: (problem.file != name, problem.line or 0))


def clusters_of(reference: str, wanted: int | tuple[int, ...] | None, base: Path) -> tuple[Cluster, ...]:
    """Return one cluster for each number of devices ``wanted``; by default all devices of the hardware.

    Raises UnsupportedError for a number that fills no whole nodes.
    """
    node, available = hardware(reference, base)
    numbers = wanted if isinstance(wanted, tuple) else (wanted or available,)
    for devices in numbers:
        if devices > node.devices and devices % node.devices:
            raise UnsupportedError(
                f"{devices} devices are not a multiple of the {node.devices} devices of a node: "
                f"use {devices // node.devices * node.devices} or "
                f"{-(-devices // node.devices) * node.devices}"
            )
    kind = device(node.device)
    return tuple(Cluster(device=kind, node=node, devices=devices) for devices in numbers)
