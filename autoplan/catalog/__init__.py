"""Catalogue: look-up of entries, and resolution of the names in jobs, grids and stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoplan.lazy import lazy as _lazy

if TYPE_CHECKING:
    from autoplan.catalog.derived_nodes import COUNTS
    from autoplan.catalog.entries import (
        assumed_stack,
        detected,
        engine_entry,
        find_hardware,
        load_entry,
        serving_intervals,
        stack,
        written,
    )
    from autoplan.catalog.entry_checks import Found, catalog_problems, check_entry, find_entries
    from autoplan.catalog.grid_files import cell_job, load_grid
    from autoplan.catalog.job_edits import edited_text
    from autoplan.catalog.job_files import is_serving_job, load_job, resolve_job
    from autoplan.catalog.model_names import checkpoint_model, model_called
    from autoplan.catalog.relatives import (
        engine_kernels_for,
        engine_kernels_origin,
        kernels_for,
    )
    from autoplan.catalog.roots import (
        CLASSES,
        FILES,
        FOLDERS,
        EntryKind,
        entry_names,
        entry_text,
        file_named,
        is_path,
        open_file,
        read_file,
    )
    from autoplan.catalog.serving_jobs import (
        load_serving_job,
        resolve_serving_job,
        serving_hashes,
        serving_job_of_text,
    )
    from autoplan.catalog.stack_inheritance import ExtendedStack, read_stack

__all__ = [
    "CLASSES",
    "COUNTS",
    "FILES",
    "FOLDERS",
    "EntryKind",
    "ExtendedStack",
    "Found",
    "assumed_stack",
    "catalog_problems",
    "cell_job",
    "check_entry",
    "checkpoint_model",
    "detected",
    "edited_text",
    "engine_entry",
    "engine_kernels_for",
    "engine_kernels_origin",
    "entry_names",
    "entry_text",
    "file_named",
    "find_entries",
    "find_hardware",
    "is_path",
    "is_serving_job",
    "kernels_for",
    "load_entry",
    "load_grid",
    "load_job",
    "load_serving_job",
    "model_called",
    "open_file",
    "read_file",
    "read_stack",
    "resolve_job",
    "resolve_serving_job",
    "serving_hashes",
    "serving_intervals",
    "serving_job_of_text",
    "stack",
    "written",
]

_HOMES: Final = {
    "CLASSES": "autoplan.catalog.roots",
    "COUNTS": "autoplan.catalog.derived_nodes",
    "EntryKind": "autoplan.catalog.roots",
    "ExtendedStack": "autoplan.catalog.stack_inheritance",
    "FILES": "autoplan.catalog.roots",
    "FOLDERS": "autoplan.catalog.roots",
    "Found": "autoplan.catalog.entry_checks",
    "assumed_stack": "autoplan.catalog.entries",
    "catalog_problems": "autoplan.catalog.entry_checks",
    "cell_job": "autoplan.catalog.grid_files",
    "check_entry": "autoplan.catalog.entry_checks",
    "checkpoint_model": "autoplan.catalog.model_names",
    "detected": "autoplan.catalog.entries",
    "edited_text": "autoplan.catalog.job_edits",
    "engine_entry": "autoplan.catalog.entries",
    "engine_kernels_for": "autoplan.catalog.relatives",
    "engine_kernels_origin": "autoplan.catalog.relatives",
    "entry_names": "autoplan.catalog.roots",
    "entry_text": "autoplan.catalog.roots",
    "file_named": "autoplan.catalog.roots",
    "find_entries": "autoplan.catalog.entry_checks",
    "find_hardware": "autoplan.catalog.entries",
    "is_path": "autoplan.catalog.roots",
    "is_serving_job": "autoplan.catalog.job_files",
    "kernels_for": "autoplan.catalog.relatives",
    "load_entry": "autoplan.catalog.entries",
    "load_grid": "autoplan.catalog.grid_files",
    "load_job": "autoplan.catalog.job_files",
    "load_serving_job": "autoplan.catalog.serving_jobs",
    "model_called": "autoplan.catalog.model_names",
    "open_file": "autoplan.catalog.roots",
    "read_file": "autoplan.catalog.roots",
    "read_stack": "autoplan.catalog.stack_inheritance",
    "resolve_job": "autoplan.catalog.job_files",
    "resolve_serving_job": "autoplan.catalog.serving_jobs",
    "serving_hashes": "autoplan.catalog.serving_jobs",
    "serving_intervals": "autoplan.catalog.entries",
    "serving_job_of_text": "autoplan.catalog.serving_jobs",
    "stack": "autoplan.catalog.entries",
    "written": "autoplan.catalog.entries",
}

__getattr__ = _lazy(__name__, _HOMES)
