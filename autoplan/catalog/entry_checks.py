"""Look-up of entries by name, and validation of all entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoplan.catalog.entries import device, is_node, load_entry, node, stack
from autoplan.catalog.grid_files import load_grid
from autoplan.catalog.hardware_names import nodes_like
from autoplan.catalog.job_files import load_job
from autoplan.catalog.roots import FOLDERS, EntryKind, entry_names, names_like
from autoplan.catalog.serving_jobs import load_serving_job
from autoplan.errors import CatalogError, SpecError
from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.grid_spec import GridSpec
from autoplan.schema.hardware import ClusterSpec, NodeSpec
from autoplan.schema.job import JobSpec
from autoplan.schema.serving.engine_stack import EngineSpec, engine_at
from autoplan.schema.serving.serving_spec import ServingSpec

Found = tuple[EntryKind, str]


def find_entries(name: str, kind: EntryKind | None = None) -> list[Found]:
    """Return the entries called ``name``, of ``kind`` or of any kind; of nodes also those without a file.

    Raises CatalogError with similar names for an unknown one.
    """
    kinds: Sequence[EntryKind] = [kind] if kind else list(FOLDERS)
    entries: list[Found] = [(entry_kind, name) for entry_kind in kinds if name in entry_names(entry_kind)]
    if not any(entry_kind == "node" for entry_kind, _ in entries) and "node" in kinds and is_node(name):
        entries.append(("node", node(name).name))
    if entries:
        return entries
    names = sorted({entry for entry_kind in kinds for entry in entry_names(entry_kind)})
    near = (nodes_like(name) if "node" in kinds else []) or names_like(name, names)
    hint = f"did you mean {' or '.join(near)}?" if near else "see `autoplan catalog list`"
    raise CatalogError(f"no {kind or 'entry'} is called {name!r}: {hint}")


def check_entry(kind: EntryKind, name: str) -> Iterable[str]:
    """Return the problems of one entry; empty if it is valid."""
    try:
        entry = load_entry(kind, name)
        _check_references(entry, name)
    except (CatalogError, SpecError) as error:
        return str(error).splitlines()
    return ()


def _check_references(entry: Frozen, name: str) -> None:
    if isinstance(entry, NodeSpec):
        device(entry.device)
        if entry.default_stack:
            stack(entry.default_stack)
    elif isinstance(entry, ClusterSpec):
        node(entry.node)
    elif isinstance(entry, KernelSpec):
        for served in (*entry.devices, *entry.lent_to):
            device(served)
        for measured in (*entry.collectives.fabrics, *entry.collectives.slower_fabrics):
            node(measured)
    else:
        _check_jobs(entry, name)


def _check_jobs(entry: Frozen, name: str) -> None:
    """Check the references of jobs and grids, and that each version of an engine is complete."""
    if isinstance(entry, JobSpec):
        load_job(name)
    elif isinstance(entry, ServingSpec):
        load_serving_job(name)
    elif isinstance(entry, GridSpec):
        load_grid(name)
    elif isinstance(entry, EngineKernelSpec):
        for served in entry.devices:
            device(served)
        for table in entry.gemm:
            load_entry("engine", table.engine)
    elif isinstance(entry, EngineSpec):
        for version in entry.versions:
            engine_at(entry, version)


def catalog_problems() -> tuple[list[str], int]:
    """Return the problems of all entries, and the number of entries."""
    entries = [(kind, name) for kind in FOLDERS for name in entry_names(kind)]
    problems = [f"{kind} {name}: {problem}" for kind, name in entries for problem in check_entry(kind, name)]
    return problems, len(entries)
