"""Kinds of catalogue entries: their locations, their model classes, and their text.

A wheel has the catalogues inside the package, in ``_shipped``; a checkout has them next to it. The folder in
the environment variable ``AUTOPLAN_CATALOG``, with the same structure (``hardware/nodes/...``), is searched
first. Names contain no separators, so that they cannot refer to files outside of a catalogue.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, NamedTuple

from autoplan.errors import CatalogError
from autoplan.lazy import ImportedValues

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from autoplan.schema.base import Frozen

EntryKind = Literal[
    "device",
    "node",
    "cluster",
    "model",
    "job",
    "serving",
    "grid",
    "kernels",
    "stack",
    "engine",
    "engine-kernels",
    "intervals",
    "program",
]


class EntryHome(NamedTuple):
    """Where entries of a kind lie in a catalogue, and the model class of their files."""

    folder: tuple[str, str]
    module: str
    name: str


#: The kinds of entries: folder of a catalogue, module and name of the model class.
KINDS: Final[dict[EntryKind, EntryHome]] = {
    "device": EntryHome(("hardware", "devices"), "hardware", "DeviceSpec"),
    "node": EntryHome(("hardware", "nodes"), "hardware", "NodeSpec"),
    "cluster": EntryHome(("hardware", "clusters"), "hardware", "ClusterSpec"),
    "model": EntryHome(("specs", "models"), "model", "ModelSpec"),
    "job": EntryHome(("specs", "jobs"), "job", "JobSpec"),
    "serving": EntryHome(("specs", "serving"), "serving.serving_spec", "ServingSpec"),
    "grid": EntryHome(("specs", "grids"), "grid_spec", "GridSpec"),
    "kernels": EntryHome(("costmodels", "kernels"), "costmodel.kernel_spec", "KernelSpec"),
    "stack": EntryHome(("costmodels", "stacks"), "costmodel.stack", "StackSpec"),
    "engine": EntryHome(("costmodels", "engines"), "serving.engine_stack", "EngineSpec"),
    "engine-kernels": EntryHome(
        ("costmodels", "engine_kernels"), "costmodel.engine_kernels", "EngineKernelSpec"
    ),
    "intervals": EntryHome(("costmodels", "intervals"), "costmodel.interval_spec", "IntervalSpec"),
    "program": EntryHome(("specs", "programs"), "program", "ProgramSpec"),
}
#: Folder of each kind of entry in a catalogue.
FOLDERS: Final = {kind: home.folder for kind, home in KINDS.items()}

#: A job for training needs no model class of serving: each is imported when it is asked for.
_HOMES: Final = {kind: (f"autoplan.schema.{home.module}", home.name) for kind, home in KINDS.items()}

#: Model class of each kind of entry.
CLASSES: Final[Mapping[EntryKind, type[Frozen]]] = ImportedValues(_HOMES)

#: Model class of the file of each kind of entry.
FILES: Final[Mapping[EntryKind, type[Frozen]]] = ImportedValues(
    {**_HOMES, "stack": ("autoplan.schema.costmodel.stack", "StackFile")}
)

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
_SUFFIX: Final = ".yaml"
_LARGEST_FILE: Final = 4 * 2**20
#: What pipes held, by device and inode: a pipe can be read once, and a job is looked at for its kind first.
_PIPED: Final[dict[tuple[int, int], bytes]] = {}


#: Suffixes of files that a spec may name.
_SUFFIXES: Final = (".yaml", ".yml", ".json")


def is_path(text: str) -> bool:
    """Return whether ``text`` names a file rather than a catalogue entry."""
    return "/" in text or os.sep in text or names_file(text)


def names_file(text: str) -> bool:
    """Return whether ``text`` ends as the name of a file does: a model's name on the hub has a slash, too."""
    return text.lower().endswith(_SUFFIXES)


def file_named(reference: str, base: Path) -> Path:
    """Return the file that a spec names, relative to ``base``; raises CatalogError for other suffixes.

    Errors quote file contents, so a spec of another user must not name arbitrary files of the machine.
    """
    if not names_file(reference):
        raise CatalogError(
            f"{reference} is not a YAML or JSON file: its suffix is none of {', '.join(_SUFFIXES)}"
        )
    return base / reference


@cache
def _shipped(top: str) -> Traversable:
    """Return the shipped folder ``top``: inside the package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    if (package / "_shipped" / top).is_dir():
        return package / "_shipped" / top
    # Without this test, a wheel built without its data could read an unrelated folder.
    if (package.parent / "pyproject.toml").is_file() and (package.parent / top).is_dir():
        return package.parent / top
    from importlib.resources import files

    zipped = files("autoplan") / "_shipped" / top
    if zipped.is_dir():
        return zipped
    raise CatalogError(f"the {top} catalogue is missing from this installation of autoplan")


def shipped_text(top: str, *below: str) -> str:
    """Return the text of a file of the shipped folder ``top``, which may be that of a zipped package."""
    return _shipped(top).joinpath(*below).read_text(encoding="utf-8")


def _folders(kind: EntryKind) -> Iterator[Traversable]:
    top, below = FOLDERS[kind]
    users = os.environ.get("AUTOPLAN_CATALOG")
    if users and _is_folder(_own_root(users), top) and _is_folder(Path(users), top, below):
        yield Path(users) / top / below
    yield _shipped(top) / below


def _own_root(folder: str) -> Path:
    """Return the user's catalogue; raises CatalogError where it is no folder, or not one of a catalogue."""
    root = Path(folder)
    tops = list(dict.fromkeys(top for top, _ in FOLDERS.values()))
    if not _is_folder(root):
        raise CatalogError(f"AUTOPLAN_CATALOG: {folder} does not exist: name a folder, or unset the variable")
    if any(root.iterdir()) and not any((root / top).exists() for top in tops):
        raise CatalogError(
            f"AUTOPLAN_CATALOG: {folder} is no catalogue: it has none of the folders {', '.join(tops)}"
        )
    return root


def _is_folder(root: Path, *below: str) -> bool:
    """Return whether there is such a folder; raises CatalogError for what cannot be one."""
    folder = root.joinpath(*below)
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            return True
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CatalogError(f"AUTOPLAN_CATALOG: cannot read {folder}: {reason}") from error
    raise CatalogError(f"AUTOPLAN_CATALOG: {folder} is not a folder")


def entry_names(kind: EntryKind) -> tuple[str, ...]:
    """Return the names of all entries of ``kind``, sorted."""
    names = {
        entry.name.removesuffix(_SUFFIX)
        for folder in _folders(kind)
        for entry in folder.iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    return tuple(sorted(names))


def entry_text(kind: EntryKind, name: str) -> tuple[str, str]:
    """Return the text of an entry, and its file.

    Raises CatalogError with similar names for an unknown name.
    """
    if _NAME.fullmatch(name):
        for folder in _folders(kind):
            file = folder / f"{name}{_SUFFIX}"
            if file.is_file():
                return _entry_file(file), str(file)
    raise CatalogError(_unknown(kind, name))


def parent_text(kind: EntryKind, name: str, child: str) -> tuple[str, str] | None:
    """Return text and file of the entry ``name`` that the file ``child`` extends, or None.

    The parent is in the catalogue of the child or in one that is searched after it, and is not the child:
    shipped entries do not depend on a user's catalogue, and a user's entry can extend the shipped entry of
    the same name.
    """
    folders = list(_folders(kind)) if _NAME.fullmatch(name) else []
    places = [index for index, folder in enumerate(folders) if str(Path(child).parent) == str(folder)]
    for folder in folders[places[0] if places else 0 :]:
        file = folder / f"{name}{_SUFFIX}"
        if file.is_file() and str(file) != child:
            return _entry_file(file), str(file)
    return None


def _entry_file(file: Traversable) -> str:
    """Return the text of an entry: of a wheel, which may be zipped, or of a user's file."""
    return read_file(file) if isinstance(file, Path) else _decode(file.read_bytes(), str(file))


def names_like(name: str, entries: Iterable[str]) -> list[str]:
    """Return up to three of ``entries`` that ``name`` may stand for: those it is part of, else similar ones.

    >>> names_like("a100", ["a10", "a100-pcie-40gb", "a100-sxm4-80gb"]), names_like("gtp2", ["gpt2", "phi2"])
    (['a100-pcie-40gb', 'a100-sxm4-80gb'], ['gpt2'])
    """
    names, word = list(entries), name.casefold()
    longer = [one for one in names if len(word) > 1 and word in one]
    longer.sort(key=lambda one: (not one.startswith(word), len(one), one))
    return longer[:3] or difflib.get_close_matches(word, names, 3)


def _unknown(kind: EntryKind, name: str) -> str:
    from autoplan.schema.yaml.synonyms import entries_meant

    names = entry_names(kind)
    pricing = [entry for entry in entries_meant(kind, name) if entry in names]
    if pricing:
        return f"no {kind} is called {name!r}: what it runs is priced by the stack {' or '.join(pricing)}"
    if kind == "stack" and name.partition("@")[0] in entry_names("engine"):
        return f"{name!r} is an engine, no training software: jobs that it serves have kind: serving"
    near = names_like(name, names)
    if near:
        return f"no {kind} is called {name!r}: did you mean {' or '.join(near)}?"
    first = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"no {kind} is called {name!r}: known are {first} (`autoplan catalog list {kind}`)"


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder; it is not where its name is too long for the system."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises there


def read_file(path: Path, *, largest: int = _LARGEST_FILE) -> str:
    """Return the text of a user's file of up to ``largest`` bytes; raises CatalogError if it is not read."""
    with open_file(path) as file:
        try:
            data = _content(file, largest + 1)
        except OSError as error:
            raise CatalogError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > largest:
        raise CatalogError(f"{path} is larger than {largest // 2**20} MiB")
    return _decode(data, str(path))


def _content(file: BinaryIO, largest: int) -> bytes:
    """Return up to ``largest`` bytes of ``file``; of a pipe that was read before, what it held then."""
    status, data = os.fstat(file.fileno()), file.read(largest)
    if not stat.S_ISFIFO(status.st_mode):
        return data
    pipe = status.st_dev, status.st_ino
    if data:
        _PIPED[pipe] = data
    return _PIPED.get(pipe, b"")


def open_file(path: Path) -> BinaryIO:
    """Return a user's file, opened to read its bytes; raises CatalogError if it cannot be opened."""
    try:
        return os.fdopen(_opened(path), "rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CatalogError(f"cannot read {path}: {reason}") from error


def _opened(path: Path) -> int:
    """Return a handle of ``path``; raises OSError or ValueError for one that might never end.

    A pipe is read only where the shell that started the program opened it, as with ``<(command)``: whoever
    opens a named one waits for its writer, who may never come.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISFIFO(mode) and path.is_relative_to("/dev"):
        os.set_blocking(handle, True)
    elif not stat.S_ISREG(mode):
        os.close(handle)
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise ValueError(f"it is {what}: name an ordinary file")
    return handle


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CatalogError(f"{name} is not UTF-8 text: {error.reason}") from error
