"""Machines that are rented, by their providers' names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from autoplan.catalog.roots import shipped_text
from autoplan.schema.hardware import MachinesSpec, NodeSpec, RentedMachine
from autoplan.schema.yaml.loader import load_model

_FILE: Final = ("hardware", "machines.yaml")
#: Words that names of their machines begin with.
_PROVIDERS: Final = frozenset({"aws", "azure", "gcp", "lambda", "oci"})
#: Key of their file in the sources of a node.
_SOURCE: Final = "machines"


@cache
def rented_machines() -> Mapping[str, RentedMachine]:
    """Return the machines that providers rent, by names such as ``aws-g5-12xlarge``."""
    return _listed().machines


def provider_of(name: str) -> str | None:
    """Return who rents the machine ``name`` out; None for a node that anybody may have.

    >>> provider_of("aws-g5-12xlarge"), provider_of("dgx-h100")
    ('aws', None)
    """
    provider = name.partition("-")[0]
    return provider if provider in _PROVIDERS else None


def as_rented(derived: NodeSpec, name: str) -> NodeSpec:
    """Return ``derived``, which has the devices of the machine ``name``, as that machine."""
    memory = derived.host.memory.model_copy(
        update={
            "value": rented_machines()[name].host_memory,
            "kind": "guess",
            "source": _SOURCE,
            "note": None,
        }
    )
    fields = {
        "name": name,
        "title": f"{derived.title} ({name})",
        "host": derived.host.model_copy(update={"memory": memory}),
        "sources": {**derived.sources, _SOURCE: _listed().source},
        "derived_from": derived.derived_from or derived.name,
    }
    return derived.model_copy(update=fields)


@cache
def _listed() -> MachinesSpec:
    return load_model(shipped_text(*_FILE), MachinesSpec, name="/".join(_FILE))
