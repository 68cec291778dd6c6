"""Tampering with a saved answer: the hash of the whole is made anew, so that all else has to notice."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from autoplan.answers.verify.ask import verify
from autoplan.errors import AutoplanError
from autoplan.report import front_document
from autoplan.results.verdict import Verdict
from autoplan.schema.resolved_job import HASH, document_hash

Document = dict[str, Any]
Path = tuple[str | int, ...]
Edit = Callable[[Document], object]

#: Parts of an answer in which every kind of leaf is accounted for.
PARTS = ("certificate", "rejected", "front")


def document_of(front: Any) -> Document:
    """Return an answer as it is read from its file."""
    return json.loads(json.dumps(front_document(front)))


def sealed(document: Document) -> Document:
    """Return a document with the hash of what it says now."""
    return {**document, HASH: document_hash(document)}


def tampered(document: Document, edit: Edit) -> Document:
    """Return an edited copy of a document, with the hash that it has now."""
    copied = copy.deepcopy(document)
    edit(copied)
    return sealed(copied)


def value_at(document: Any, path: Path) -> Any:
    """Return what stands at a path of a document."""
    for part in path:
        document = document[part]
    return document


def change(path: Path, value: Any) -> Edit:
    """Return an edit that sets what stands at a path, or changes it by a function."""

    def edit(document: Document) -> None:
        *parents, last = path
        here = value_at(document, tuple(parents))
        here[last] = value(here[last]) if callable(value) else value

    return edit


def both(*edits: Edit) -> Edit:
    """Return all edits as one."""

    def edit(document: Document) -> None:
        for one in edits:
            one(document)

    return edit


def leaves(document: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each number, text, boolean and empty list."""
    if isinstance(document, dict) and document:
        for key, value in document.items():
            yield from leaves(value, (*path, key))
    elif isinstance(document, list) and document:
        for i, value in enumerate(document):
            yield from leaves(value, (*path, i))
    elif path != (HASH,):
        yield path


def other_value(value: Any, rng: random.Random) -> Any:
    """Return another value, of the same type or of a wrong one."""
    if isinstance(value, bool):
        return rng.choice([not value, None, int(value) + 2])
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, value * 2 + 1, str(value)])
    if isinstance(value, float):
        return rng.choice([value * 1.02 + 1e-6, value * 0.98 - 1e-6, -value - 1.0, str(value)])
    if isinstance(value, str):
        return rng.choice([value + "x", value[:-1] + "~", "", 7])
    return (
        rng.choice([0.5, "x", [1]])
        if value is None
        else [*value, "x"]
        if isinstance(value, list)
        else {"x": 1}
    )


def edits_of_leaves(document: Document, count: int | None, seed: int) -> list[tuple[str, Path, Edit]]:
    """Return edits of ``count`` leaves drawn from each part of a document, or of all; with name and path."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    by_part: dict[str, list[Path]] = {}
    for path in leaves(document):
        by_part.setdefault(str(path[0]), []).append(path)
    paths: list[Path] = [path for part in by_part.values() for path in part]
    if count is not None:
        shares = [
            rng.sample(part, min(len(part), max(1, count // len(by_part)))) for part in by_part.values()
        ]
        paths = [path for share in shares for path in share]
    return [(".".join(map(str, path)), path, change(path, _by(rng.random()))) for path in paths]


def _by(draw: float) -> Callable[[Any], Any]:
    return lambda value: other_value(value, random.Random(draw))  # noqa: S311 - as above


def judged(document: Document, folder: Any, **settings: Any) -> Verdict | str:
    """Return the verdict on a document, or what its reader says against it."""
    file = folder / "answer.json"
    file.write_text(json.dumps(document))
    try:
        return verify(file, **settings)
    except AutoplanError as error:
        return str(error)


def is_noticed(outcome: Verdict | str, path: Path = ()) -> bool:
    """Return whether a tampering was refused or refuted, or is listed as not checked."""
    return account_of(outcome, path) != "neither"


def account_of(outcome: Verdict | str, path: Path) -> str:
    """Return ``checked`` where a tampering at ``path`` was noticed, ``listed`` where it is said not to be."""
    if isinstance(outcome, str) or outcome.outcome == "refuted":
        return "checked"
    own, fields = kind_of(path), [field for check in outcome.checks for field in check.fields]
    if outcome.outcome == "not all checked" or any(
        own == x or own.startswith((f"{x}.", f"{x}[")) for x in fields
    ):
        return "listed"
    return "neither"


def kind_of(path: Path) -> str:
    """Return the path of a leaf with one sign for every index: leaves that are alike have the same.

    >>> kind_of(("front", 3, "predicted", "stages", 0, "step"))
    'front[].predicted.stages[].step'
    """
    return "".join("[]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def kinds_of_leaves(document: Document, parts: Collection[str] = PARTS) -> dict[str, list[Path]]:
    """Return the paths of all leaves of ``parts`` by their kinds, those of each answer of several, too."""
    by_kind: dict[str, list[Path]] = {}
    for path in leaves(document):
        if path[0] in parts or (path[0] == "answers" and len(path) > 2 and path[2] in (*parts, "plans")):
            by_kind.setdefault(kind_of(path), []).append(path)
    return by_kind


def accounts(document: Document, kinds: Mapping[str, list[Path]], folder: Any, seed: int) -> dict[str, str]:
    """Return for each kind of leaf what becomes of a tampering with one of its leaves, drawn by ``seed``.

    A forger makes the hash of the whole anew.
    """
    rng = random.Random(seed)  # noqa: S311 - as above
    edited = {kind: rng.choice(paths) for kind, paths in kinds.items()}
    edits = {kind: change(path, _by(rng.random())) for kind, path in edited.items()}
    return {
        kind: account_of(judged(tampered(document, edits[kind]), folder), path)
        for kind, path in edited.items()
    }
