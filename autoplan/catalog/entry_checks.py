"""Look-up of entries by name, validation of all, and grid files: their cells and the job of a cell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autoplan.catalog.entries import (
    device,
    engine,
    hardware,
    is_node,
    kernels_at,
    load_entry,
    model,
    node,
    stack,
    stack_at,
)
from autoplan.catalog.hardware_names import nodes_like
from autoplan.catalog.job_files import load_job, opened, opened_job, resolve_job
from autoplan.catalog.roots import FOLDERS, EntryKind, entry_names, file_named, is_path, names_like
from autoplan.catalog.serving_jobs import load_serving_job
from autoplan.errors import AutoplanError, CatalogError, Problem, SpecError
from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.grid_spec import (
    Base,
    Cell,
    Grid,
    GridSpec,
    JobKind,
    Settings,
    canonical,
    exclusions,
    grid_problems,
    products,
    swept_values,
    with_settings,
)
from autoplan.schema.hardware import ClusterSpec, NodeSpec
from autoplan.schema.job import Job, JobSpec
from autoplan.schema.serving.engine_stack import EngineSpec, engine_at
from autoplan.schema.serving.serving_spec import ServingSpec
from autoplan.schema.yaml.document import Document, Lines, Plain, format_path
from autoplan.schema.yaml.loader import validate
from autoplan.schema.yaml.parser import parse_yaml

if TYPE_CHECKING:
    from autoplan.schema.serving.serving_spec import ServingJob

#: Look-up of each key of a job, by its kind, that names an entry or a file.
_LOOK_UPS: Final[Mapping[JobKind, Mapping[str, Callable[[str, Path], object]]]] = {
    "training": {"model": model, "hardware": hardware, "stack": stack_at, "kernels": kernels_at},
    "serving": {"model": model, "hardware": hardware, "stack": engine},
}


def load_grid(reference: str | Path) -> Grid:
    """Return the grid that ``reference`` names: the path of a grid file, or the name of a shipped grid.

    Raises SpecError with all problems of the file and of its base job, CatalogError for an unreadable file.
    Values that are valid but contradict each other are errors of the cell, see ``cell_job``.
    """
    text, file, name, folder = opened("grid", reference)
    document = parse_yaml(text, name=file)
    problems = _form_problems(document)
    base, base_folder = _base(document, folder, problems)
    kind = base.kind if base is not None else "training"
    if isinstance(document.value, dict):
        problems += grid_problems(document, base)
        problems += _unknown_names(document, base, folder, base_folder)
    cells = () if problems else _cells(document, kind)
    if not problems and not cells:
        problems.append(
            Problem("no cell of the grid remains", "$.exclude", file, document.line(("exclude",)))
        )
    if problems or base is None or not isinstance(base.document.value, dict):
        raise SpecError(_in_order(problems, file))
    values = swept_values(document, kind)
    moved = _moved(values, folder, base_folder, kind)
    return Grid(name, tuple(values), cells, base.document.value, base_folder, moved, kind)


def cell_job(grid: Grid, cell: Cell) -> Job | ServingJob:
    """Return the job of one ``cell``; raises AutoplanError if its values contradict each other."""
    settings = {
        key: grid.moved.get(value, value) if key in _LOOK_UPS[grid.kind] and isinstance(value, str) else value
        for key, value in cell.settings.items()
    }
    document = Document(cell.label, with_settings(dict(grid.base), settings), 1)
    if grid.kind == "training":
        return resolve_job(validate(document, JobSpec), name=cell.label, base=grid.folder)
    from autoplan.catalog.serving_jobs import resolve_serving_job
    from autoplan.schema.serving.serving_spec import ServingSpec

    return resolve_serving_job(validate(document, ServingSpec), name=cell.label, base=grid.folder)


def _form_problems(document: Document) -> list[Problem]:
    """Return the problems of the structure of a grid file."""
    try:
        validate(document, GridSpec)
    except SpecError as error:
        return list(error.problems)
    return []


def _in_order(problems: list[Problem], file: str) -> list[Problem]:
    """Return the distinct problems: those of the grid file by line, then those of other files."""
    once = list(dict.fromkeys(problems))
    return sorted(once, key=lambda p: (p.file != file, p.file or "", p.line or 0))


def _base(document: Document, folder: Path, problems: list[Problem]) -> tuple[Base | None, Path]:
    """Return the base job and the folder of its paths; its problems are added to ``problems``."""
    base = document.at(("base",))
    if isinstance(base, dict):
        return Base(Document(document.name, base, _lines_of_base(document)), ("base",)), folder
    if not isinstance(base, str) or not base:
        return None, folder
    try:
        reference = file_named(base, folder) if is_path(base) else base
        text, file, _, below = opened_job(reference)
        return Base(parse_yaml(text, name=file), None), below
    except SpecError as error:
        problems += error.problems
    except AutoplanError as error:
        problems.append(_problem(document, ("base",), str(error)))
    return None, folder


def _lines_of_base(document: Document) -> Lines | int:
    """Return the lines of a base job inside a grid; missing keys are reported at its key."""
    inner = document.lines if isinstance(document.lines, int) else document.lines.below["base"]
    base_line = document.line(("base",), key=True)
    return base_line if isinstance(inner, int) else Lines(base_line, inner.keys, inner.below)


def _problem(document: Document, path: tuple[str | int, ...], message: str) -> Problem:
    return Problem(message, format_path(path), document.name, document.line(path))


def _unknown_names(
    document: Document, base: Base | None, folder: Path, base_folder: Path
) -> Iterator[Problem]:
    """Yield unknown names and missing files, of the grid and of keys that only the base job sets."""
    kind = base.kind if base is not None else "training"
    values = swept_values(document, kind)
    for key, find in _LOOK_UPS[kind].items():
        for index, value in enumerate(values.get(key, ())):
            yield from _look_up(find, value, folder, document, ("grid", key, index))
        if base is None or key in values:
            continue
        inner = base.document if base.path is None else document
        path = (*(base.path or ()), key)
        yield from _look_up(find, base.document.at((key,)), base_folder, inner, path)


def _look_up(
    find: Callable[[str, Path], object],
    value: Plain,
    folder: Path,
    document: Document,
    path: tuple[str | int, ...],
) -> Iterator[Problem]:
    """Yield the problems of the entry or file ``value``; other values are errors of the schema."""
    if not isinstance(value, str) or not value:
        return
    try:
        find(value, folder)
    except SpecError as error:
        yield from error.problems
    except AutoplanError as error:
        yield _problem(document, path, str(error))


def _cells(document: Document, kind: JobKind) -> tuple[Cell, ...]:
    """Return every combination of the grid's values that is not excluded, numbered from 1."""
    excluded = exclusions(document, kind)
    settings = (
        s for s in products(swept_values(document, kind)) if not any(_matches(s, entry) for entry in excluded)
    )
    return tuple(Cell(number, setting) for number, setting in enumerate(settings, start=1))


def _matches(settings: Settings, entry: Mapping[str, frozenset[str]]) -> bool:
    return all(canonical(settings[key]) in excluded for key, excluded in entry.items())


def _moved(
    values: Mapping[str, tuple[Plain, ...]], folder: Path, base_folder: Path, kind: JobKind
) -> dict[str, str]:
    """Return the paths of the grid, made relative to the folder of the base job."""
    if folder == base_folder:
        return {}
    named = [value for key in _LOOK_UPS[kind] for value in values.get(key, ()) if isinstance(value, str)]
    return {path: os.path.relpath(folder / path, base_folder) for path in named if is_path(path)}


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
