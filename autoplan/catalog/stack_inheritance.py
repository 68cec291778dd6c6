"""Stacks that extend others: merged content, and the file that each value comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

from autoplan.catalog.roots import entry_names, file_named, is_path, names_like, parent_text, read_file
from autoplan.errors import CatalogError, SpecError
from autoplan.schema.costmodel.stack import StackFile, StackSpec
from autoplan.schema.yaml.document import Document, refuse, shown
from autoplan.schema.yaml.document import Path as Keys
from autoplan.schema.yaml.inheritance import EXTENDS, Tree, labelled, leaves, merged
from autoplan.schema.yaml.loader import validate
from autoplan.schema.yaml.parser import parse_yaml

#: Most parents of a stack.
_MOST_PARENTS: Final = 8

_SOURCES: Final = "sources"
#: What a stack says for itself alone: a target's files are read as jobs with one stack.
_OWN: Final = "files_of"


@dataclass(frozen=True, slots=True)
class _Read:
    """A file merged with its parents, before validation.

    ``content`` is the merged content; ``origins`` has, in place of each value, the file that it comes from.
    ``files`` are the files with the names of their stacks: first the child, then its parent, and so on;
    ``documents`` are their merged contents.
    """

    content: Tree
    origins: Tree
    files: tuple[tuple[str, str], ...]
    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class ExtendedStack:
    """A stack merged with its parents; ``files`` as in ``_Read``."""

    spec: StackSpec
    content: Tree
    origins: Tree
    files: tuple[tuple[str, str], ...]

    @property
    def parents(self) -> tuple[str, ...]:
        """The names of its parents, the nearest first; the file of a parent with the same name."""
        return tuple(file if name == self.spec.name else name for file, name in self.files[1:])

    @property
    def inherited(self) -> dict[Keys, str]:
        """The parent that each inherited value comes from, by path."""
        parents = dict(zip((file for file, _ in self.files[1:]), self.parents, strict=True))
        files = ((path, file) for path, file in leaves(self.origins) if isinstance(file, str))
        return {path: parents[file] for path, file in files if file in parents}


def read_stack(text: str, file: str) -> ExtendedStack:
    """Return the stack of ``text``, the content of ``file``, merged with its parents.

    Raises SpecError with all problems of the file, or of a file that it extends.
    """
    read = _read(text, file, ())
    try:
        spec = _checked(read.documents[0])
    except SpecError:
        # Problems of a parent are reported for the parent, the farthest first.
        for document in reversed(read.documents):
            _checked(document)
        raise
    return ExtendedStack(spec, read.content, read.origins, read.files)


def _read(text: str, file: str, children: tuple[str, ...]) -> _Read:
    document = _parsed(text, file)
    value = document.value
    if not isinstance(value, dict):
        _checked(document)
    content: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    name = (file, str(content.get("name")))
    if EXTENDS not in content:
        return _Read(content, labelled(content, file, StackSpec), (name,), (document,))
    parent = _read(*_parent_text(document, children), (*children, file))
    del content[EXTENDS]
    complete, origins = _merged(parent, content, document)
    documents = (Document(file, complete, document.lines), *parent.documents)
    return _Read(complete, origins, (name, *parent.files), documents)


@lru_cache(maxsize=64)
def _parsed(text: str, file: str) -> Document:
    """Return the parsed ``text``; cached, since children share parents."""
    return parse_yaml(text, name=file)


def _merged(parent: _Read, child: Tree, document: Document) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ``child`` merged over ``parent``, and the file of each value."""
    origins = merged(_inherited(parent.origins), labelled(child, document.name, StackSpec), StackSpec)
    complete = merged(_inherited(parent.content), child, StackSpec)
    _refuse_other_sources(document, parent, complete, origins)
    idle = _idle_sources(child, parent, complete)
    for tree in (complete, origins) if idle else ():
        # Replaces the table, which the parent may share.
        tree[_SOURCES] = {key: text for key, text in tree[_SOURCES].items() if key not in idle}
    return complete, origins


def _inherited(tree: Tree) -> Tree:
    """Return what a child takes from its parent."""
    return {key: value for key, value in tree.items() if key != _OWN}


def _checked(document: Document) -> StackSpec:
    try:
        return validate(document, StackSpec)
    except SpecError as error:
        problems = error.problems
    try:
        # The errors of this class know the key `extends`, which merged stacks lack.
        validate(document, StackFile)
    except SpecError as error:
        problems = error.problems
    # A misspelt `extends` is reported instead of all missing keys.
    raise SpecError([x for x in problems if f"mean {EXTENDS!r}" in x.message] or problems)


def _parent_text(document: Document, children: tuple[str, ...]) -> tuple[str, str]:
    """Return text and file of the parent of ``document``; raises SpecError for an unknown one."""
    reference, chain = document.at((EXTENDS,)), (*children, document.name)
    if not isinstance(reference, str) or not reference:
        _refuse(document, f"{shown(reference)} is not the name of a stack")
    try:
        text, file = _parent_file(reference, document.name)
    except CatalogError as error:
        _refuse(document, str(error))
    if file in chain:
        circle = " extends ".join((*chain[chain.index(file) :], file))
        _refuse(document, f"cyclic inheritance: {circle}")
    if len(chain) > _MOST_PARENTS:
        _refuse(document, f"more than {_MOST_PARENTS} parents, from {chain[0]} on")
    return text, file


def _refuse(document: Document, message: str) -> NoReturn:
    listed = ", ".join(entry_names("stack"))
    line = document.line((EXTENDS,))
    refuse(f"{message} (the catalogue's stacks are {listed})", document.name, line, (EXTENDS,))


def _parent_file(reference: str, child: str) -> tuple[str, str]:
    """Return text and file of the parent that the file ``child`` names."""
    if is_path(reference):
        path = file_named(reference, Path(child).parent)
        return read_file(path), str(path)
    if parent := parent_text("stack", reference, child):
        return parent
    if reference == Path(child).stem:
        raise CatalogError(f"{reference} extends itself")
    near = names_like(reference, entry_names("stack"))
    hint = f": did you mean {' or '.join(near)}?" if near else ""
    raise CatalogError(f"no stack is called {reference!r}{hint}")


def _refuse_other_sources(document: Document, parent: _Read, complete: Tree, origins: Tree) -> None:
    """Raise SpecError if a source is redefined while an inherited number cites it."""
    before = _table(parent.content)
    other = {key for key, text in _table(document.value).items() if before.get(key, text) != text}
    for where, key in _citations(complete):
        if key in other and _at(origins, where) != document.name:
            cited = f"{'.'.join(map(str, where))}, inherited from {parent.files[0][1]}"
            message = f"{shown(key)} is already the source of {cited}: choose another key"
            refuse(message, document.name, document.line((_SOURCES, key), key=True), (_SOURCES, key))


def _idle_sources(child: Tree, parent: _Read, complete: Tree) -> set[str]:
    """Return the inherited sources whose numbers are all overridden; sources that no number cites remain."""
    cited = {key for _, key in _citations(parent.content)} - {key for _, key in _citations(complete)}
    return (cited & _table(complete).keys()) - _table(child).keys()


def _table(content: Any) -> Tree:  # noqa: ANN401 - whatever a file holds
    """Return the sources of ``content``; empty if they are not a mapping."""
    sources = content.get(_SOURCES)
    return sources if isinstance(sources, dict) else {}


def _citations(content: Tree, above: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """Yield each source that a number of ``content`` cites, with the number's path."""
    for key, value in content.items():
        if isinstance(value, dict) and (above or key != _SOURCES):
            yield from _citations(value, (*above, key))
        elif key == "source" and isinstance(value, str):
            yield above, value


def _at(tree: Any, path: Keys) -> object:  # noqa: ANN401 - a tree or what hangs on it
    """Return the leaf of ``tree`` at ``path`` or at a prefix of it."""
    for part in path:
        if not isinstance(tree, dict):
            break
        tree = tree.get(part)
    return tree
