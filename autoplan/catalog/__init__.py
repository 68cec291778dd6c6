"""Catalogue: look-up of entries, and resolution of the names in jobs, grids and stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoplan.lazy import lazy as _lazy

if TYPE_CHECKING:
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
    from autoplan.catalog.entry_checks import (
        Found,
        catalog_problems,
        cell_job,
        check_entry,
        find_entries,
        load_grid,
    )
    from autoplan.catalog.hardware_names import COUNTS
    from autoplan.catalog.job_files import edited_text, is_serving_job, load_job, resolve_job
    from autoplan.catalog.model_names import checkpoint_model, model_called
    from autoplan.catalog.relatives import engine_kernels_for, engine_kernels_origin, kernels_for
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

_HOMES: Final = {
    "autoplan.catalog.hardware_names": "COUNTS",
    "autoplan.catalog.entries": (
        "assumed_stack detected engine_entry find_hardware load_entry serving_intervals stack written"
    ),
    "autoplan.catalog.entry_checks": "Found catalog_problems cell_job check_entry find_entries load_grid",
    "autoplan.catalog.job_files": "edited_text is_serving_job load_job resolve_job",
    "autoplan.catalog.model_names": "checkpoint_model model_called",
    "autoplan.catalog.relatives": "engine_kernels_for engine_kernels_origin kernels_for",
    "autoplan.catalog.roots": (
        "CLASSES EntryKind FILES FOLDERS entry_names entry_text file_named is_path open_file read_file"
    ),
    "autoplan.catalog.serving_jobs": (
        "load_serving_job resolve_serving_job serving_hashes serving_job_of_text"
    ),
    "autoplan.catalog.stack_inheritance": "ExtendedStack read_stack",
}

__getattr__ = _lazy(__name__, _HOMES)
