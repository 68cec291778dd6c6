"""The catalogues: finding entries, and turning a job's names into what they stand for."""

from autoplan.catalog.checks import Found, catalog_problems, check_entry, find_entries
from autoplan.catalog.entries import CLASSES, kernels_for, load_entry, stack
from autoplan.catalog.jobs import load_job, resolve_job
from autoplan.catalog.roots import FOLDERS, EntryKind, entry_names, entry_text

__all__ = [
    "CLASSES",
    "FOLDERS",
    "EntryKind",
    "Found",
    "catalog_problems",
    "check_entry",
    "entry_names",
    "entry_text",
    "find_entries",
    "kernels_for",
    "load_entry",
    "load_job",
    "resolve_job",
    "stack",
]
