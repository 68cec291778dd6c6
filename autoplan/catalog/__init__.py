"""The catalogues: finding entries, and turning a job's names into what they stand for."""

from autoplan.catalog.entries import CLASSES, check_entry, kernels_for, load_entry, stack
from autoplan.catalog.jobs import load_job, resolve_job
from autoplan.catalog.roots import FOLDERS, EntryKind, entry_names, entry_text

__all__ = [
    "CLASSES",
    "FOLDERS",
    "EntryKind",
    "check_entry",
    "entry_names",
    "entry_text",
    "kernels_for",
    "load_entry",
    "load_job",
    "resolve_job",
    "stack",
]
