"""The lists of the shipped catalogue, with the facts that ``autoplan catalog list`` shows."""

from __future__ import annotations

from typing import get_args

from autoplan.answers.catalog.blocks import COLUMNS, catalog_document, derived_nodes
from autoplan.catalog import FOLDERS, EntryKind, entry_names
from autoplan.planning.communicating import parameter_counts
from docs.book.markdown import cell, table

__all__ = ["catalogue_page"]

_HEAD = """# Catalogue

Written by `make docs`: every entry that is shipped, as `autoplan catalog list` shows it.
`autoplan catalog show NAME` prints an entry with the source of every number; the folder of
AUTOPLAN_CATALOG is searched before these.
"""


def catalogue_page() -> str:
    """Return the page of all kinds of entries."""
    kinds: tuple[EntryKind, ...] = get_args(EntryKind)
    listing = catalog_document(kinds, parameter_counts(entry_names("model")))["catalog"]
    return "\n".join([_HEAD, *(_section(kind, listing[kind]) for kind in kinds)])


def _section(kind: EntryKind, entries: list[dict[str, object]]) -> str:
    facts = COLUMNS[kind]
    rows = [[f"`{entry['name']}`", *(cell(fact.text(entry)) for fact in facts)] for entry in entries]
    lines = table(["name", *(fact.head for fact in facts)], rows)
    folder = "/".join(FOLDERS[kind])
    words = f"## {kind.replace('_', ' ').capitalize()}\n\n{len(entries)} entries in `{folder}`.\n\n{lines}"
    return words if kind != "node" else f"{words}{_derived()}\n"


def _derived() -> str:
    counts = derived_nodes()["devices"]
    names = ", ".join(f"`{count}x-DEVICE`" for count in counts)
    return f"Where no file describes a node, {names} are derived for each device.\n"
