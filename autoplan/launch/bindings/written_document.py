"""JSON and YAML files as values by dotted path, with their lines, and edits of them by key."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.deciding_names import extends, fields_named, may_decide, misnamed, speaks_beside
from autoplan.launch.bindings.interface import Binding, Interface
from autoplan.launch.configuration import Fields, FileEdit, LaunchFile, ReadFile, Values, Written

#: Most values of a file: those of real ones are below a thousand.
_MOST: Final = 20_000
_SHOWN: Final = 40
_DEEPEST: Final = 50
#: How alike a name is to a known one that it is a misspelling of.
_MISSPELT: Final = 0.85
#: The same of programs that have names of their own besides.
_MISSPELT_AMONG_OTHERS: Final = 0.92
#: Texts of command lines that are truth values, as the parser of the Trainer reads them.
_TRUTHS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
#: Least values of the kinds of bindings that are integers.
_LEAST: Final = {"count": 1, "size": 0}
_FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NO_TABLE: Final = Interface("", {}, {}, {})


@dataclass(slots=True)
class WrittenDocument(ReadFile):
    """Values of a file by dotted path, such as ``zero_optimization.stage``.

    A mapping has its own path as well, with the value None. ``problems`` and ``notes`` are added to while it
    is read; so are ``opened`` fields, which a key that is not read may decide. A value ``auto`` is one that
    another program fills in: it counts as not given. Look-ups are by the names of the bindings of ``table``,
    or by path.
    """

    entries: Fields = field(default_factory=dict)
    table: Interface = _NO_TABLE

    def path(self, name: str) -> str:
        """Return the path of a binding, or another of its keys that is given; a path is its own."""
        path, others = self.table.keys.get(name, name), self.table.earlier.get(name, ())
        given = (key for key in (path, *others) if others and self._stands(key))
        return next(given, path)

    def _stands(self, key: str) -> bool:
        entry = self.entries.get(key)
        return entry is not None and entry.value is not None and entry.value != "auto"

    def refuse(self, sentence: str, name: str, line: int | None = None) -> None:
        """Add a problem of a binding with the line of its key."""
        self.refuse_key(sentence, self.path(name), line)

    def refuse_key(self, sentence: str, path: str, line: int | None = None) -> None:
        """Add a problem of a key as the file has it, which may be called as a binding is."""
        entry = self.entries.get(path)
        self.problems.append(Problem(sentence, path, self.file, line or (entry.line if entry else None)))

    def given(self, path: str) -> Written | None:
        """Return what stands at ``path``; None where nothing, null or ``auto`` does."""
        return self.entries[self.path(path)] if self._stands(self.path(path)) else None

    def automatic(self, path: str) -> bool:
        """Return whether the value at ``path`` is ``auto``."""
        entry = self.entries.get(self.path(path))
        return entry is not None and entry.value == "auto"

    def section(self, path: str) -> bool:
        """Return whether a mapping stands at ``path``."""
        entry = self.entries.get(self.path(path))
        return entry is not None and entry.words[-1:] == ":"

    def bound(self, *names: str) -> Fields:
        """Return the values of bindings that are given or have a default, in our words and by field."""
        values = {}
        for binding in map(self.table.__getitem__, names):
            written = self._bound(binding)
            if written is not None:
                values[binding.decides or binding.name] = written
        return values

    def choices(self, *names: str) -> dict[str, Any]:
        """Return the choices of software that switches make."""
        made = [written.value for name in names for written in self.bound(name).values()]
        return {key: value for choice in made for key, value in choice.items()}

    def _bound(self, binding: Binding) -> Written | None:
        written = self._typed(binding)
        if written is None:
            return None if binding.default is None else Written(binding.default, default=True)
        if binding.sets:
            decided = binding.sets.get(written.value)
            return None if decided is None else written.of(decided)
        if not binding.names:
            return written
        lowered = {str(name).lower(): ours for ours, name in reversed(list(binding.names.items()))}
        return written.of(lowered.get(written.value))

    def _typed(self, binding: Binding) -> Written | None:
        if binding.kind == "switch":
            return self.flag(binding.name)
        if binding.kind in _LEAST:
            return self.number(binding.name, _LEAST[binding.kind])
        choices = binding.sets or binding.names.values()
        return self.text(binding.name, tuple(str(name).lower() for name in choices))

    def number(self, path: str, least: int = 1) -> Written | None:
        """Return the integer at ``path``; what is none is refused."""
        written = self._known(path)
        if written is None:
            return None
        value = written.value
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}(?:_[0-9]{1,3}){0,3}", value.strip()):
            value = int(value)
        integral = isinstance(value, int) and not isinstance(value, bool)
        if not integral or not least <= value < 10**9:
            self.refuse(f"{_shown(written.value)} is not an integer of at least {least}", path)
            return None
        return written.of(value)

    def flag(self, path: str) -> Written | None:
        """Return the truth value at ``path``; what is none is refused."""
        written = self._known(path)
        if written is None:
            return None
        truth = _TRUTHS.get(str(written.value).lower()) if isinstance(written.value, bool | str) else None
        if truth is None:
            self.refuse(f"{_shown(written.value)} is neither true nor false", path)
            return None
        return written.of(truth)

    def on(self, name: str) -> Written | None:
        """Return the switch at ``name`` where it is on."""
        written = self.flag(name)
        return written if written is not None and written.value else None

    def text(self, path: str, choices_of_key: tuple[str, ...] = ()) -> Written | None:
        """Return the text at ``path``; any but the ``choices_of_key`` ones, in any case, is refused."""
        written = self._known(path)
        if written is None:
            return None
        if not isinstance(written.value, str) or (
            choices_of_key and written.value.lower() not in choices_of_key
        ):
            choices = f"none of {', '.join(choices_of_key)}" if choices_of_key else "no text"
            self.refuse(f"{_shown(written.value)} is {choices}", path)
            return None
        return written.of(written.value.lower() if choices_of_key else written.value)

    def _known(self, path: str) -> Written | None:
        """Return what is given at ``path``; a value that another file or program decides is refused."""
        written = self.given(path)
        if written is not None and isinstance(written.value, str) and "${" in written.value:
            do = f"give --arg {self.path(path)}=VALUE"
            self.refuse(f"{_shown(written.value)} depends on what the file does not say: {do}", path)
            return None
        return written

    def check_sections(self) -> None:
        """Refuse misspelt keys of the sections that the table lists, and all unknown ones of strict ones."""
        for name, listed in self.table.data["sections"].items():
            whole = listed if isinstance(listed, dict) else {"keys": listed}
            title = whole.get("of", self.table.data["title"])
            section, strict = "" if name == "top" else name, whole.get("strict", False)
            self.check_names(section, frozenset(whole["keys"]), title, strict=strict)

    def check_names(
        self,
        section: str,
        listed: frozenset[str],
        framework: str,
        *,
        strict: bool = False,
        others: frozenset[str] | None = None,
    ) -> None:
        """Refuse misspelt keys of ``section`` and list other unknown ones, which ``strict`` refuses.

        Those of evaluation, logs and files are never misspelt: they decide nothing.

        A program that has names of its own besides may call most things as it likes: only what is all but one
        of ``others``, which decide a layout, counts as misspelt there.
        """
        unknown, alike = [], _MISSPELT if others is None else _MISSPELT_AMONG_OTHERS
        named = listed if others is None else others
        for path, written in self.entries.items():
            parent, _, name = path.rpartition(".")
            if parent != section or name in listed:
                continue
            near = [
                n
                for n in difflib.get_close_matches(name, named, 1, alike)
                if not extends(name, n) and (strict or self._decides(section, n))
            ] or self._misnamed(name, written.value, listed)
            if strict or (near and not speaks_beside(name)):
                hint = f": did you mean {near[0]}?" if near else ""
                self.refuse_key(f"{_shown(name)} is no key of {framework}{hint}", path, written.line)
            else:
                unknown.append(name[:_SHOWN])
                self.leave_open(name, written)
        if unknown:
            self.notes.append(f"not keys of {framework}, not read: {', '.join(unknown)}")

    def _decides(self, section: str, name: str) -> bool:
        """Return whether a key is one that is read, or may decide a layout by its name."""
        path = f"{section}.{name}" if section else name
        return path in self.table.read or bool(fields_named(name))

    @staticmethod
    def _misnamed(name: str, value: object, listed: frozenset[str]) -> list[str]:
        """Return the known name that one which may decide a layout was probably meant to be."""
        return misnamed(name, listed, _MISSPELT) if may_decide(name, value) else []

    def leave_open(self, name: str, written: Written) -> None:
        """Leave the fields open that a key which is not read may decide, and say so."""
        fields = may_decide(name, written.value)
        if fields:
            self.opened |= set(fields)
            where = f" (line {written.line})" if written.line else ""
            self.notes.append(f"{written.words}{where} is not read and may decide {fields[0]}: left open")


class _Loader(yaml.SafeLoader):
    """A loader that says how many more items of lists it takes: aliases can make a small file endless."""

    left = _MOST


def read_yaml(file: LaunchFile, table: Interface = _NO_TABLE) -> WrittenDocument:
    """Return the values of a YAML or JSON file; a ``#`` comment in JSON is let through.

    Values that a program has are taken as they are, without lines. Raises SpecError for what is neither, for
    a key with two values, for an alias that has no end, and for what is no mapping.
    """
    document = WrittenDocument(file.name, table=table)
    if file.values is not None:
        _add(document, file.values, "")
        document.stop_at_problems()
        return document
    try:
        # JSON may be indented by tabs, which YAML refuses; neither has any in what is read here.
        loader = _Loader(file.text.replace("\t", "    "))
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            _stop(file, "it is no mapping of keys to values")
        _walk(document, loader, root, "")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        _stop(file, f"it is neither JSON nor YAML: {error.problem}", mark.line + 1 if mark else None)
    except RecursionError:
        _stop(file, "it is neither JSON nor YAML: nested too deeply")
    except yaml.YAMLError as error:
        _stop(file, f"it is neither JSON nor YAML: {str(error).splitlines()[0][:200]}")
    document.stop_at_problems()
    return document


def refuse_unparsable(file: LaunchFile) -> None:
    """Raise SpecError, with its line, for a text that is neither YAML nor JSON."""
    try:
        for _ in yaml.compose_all(file.text.replace("\t", "    "), Loader=_FAST):
            pass
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        _stop(file, f"it is neither JSON nor YAML: {error.problem}", mark.line + 1 if mark else None)
    except RecursionError:
        _stop(file, "it is neither JSON nor YAML: nested too deeply")
    except yaml.YAMLError as error:
        _stop(file, f"it is neither JSON nor YAML: {str(error).splitlines()[0][:200]}")


def _walk(
    document: WrittenDocument, loader: _Loader, node: yaml.MappingNode, prefix: str, *, merged: bool = False
) -> None:
    """Add the values of a mapping; of one that is merged (``<<``) those that its place does not have."""
    merges: list[yaml.Node] = []
    for key, value in node.value:
        name, line = str(getattr(key, "value", "?"))[:200], key.start_mark.line + 1
        path = f"{prefix}{name}"
        if name == "<<":
            merges += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif not isinstance(key, yaml.ScalarNode):
            document.refuse_key("structured keys are not read", path, line)
        elif path in document.entries and not _is_null(document.entries[path]):
            if not merged:
                _refuse_second(document, path, line, _value(loader, value))
        elif len(document.entries) > _MOST:
            raise yaml.YAMLError("it has too many values")
        elif isinstance(value, yaml.MappingNode):
            document.entries[path] = Written(None, line, f"{name}:")
            _walk(document, loader, value, f"{path}.")
        else:
            plain = _value(loader, value)
            document.entries[path] = Written(plain, line, f"{name}: {_shown(plain)}")
    for other in merges:
        if not isinstance(other, yaml.MappingNode):
            raise yaml.YAMLError("what is merged is no mapping")
        _walk(document, loader, other, prefix, merged=True)


def _is_null(written: Written) -> bool:
    """Return whether null stands there, which loaders replace by a later value of the same key."""
    return written.value is None and written.words[-1:] != ":"


def _refuse_second(document: WrittenDocument, path: str, line: int, value: object) -> None:
    """Refuse a key that has another value already; the same one is only said."""
    first, name = document.entries[path], path.rpartition(".")[2]
    if value is not None and first.value == value:
        document.notes.append(f"{_shown(name)} is given twice, alike, in lines {first.line} and {line}")
    elif _is_scalar(first, value) and not _decides_somewhere(document, name, value):
        document.notes.append(f"{_shown(name)} is given twice, in lines {first.line} and {line}")
    else:
        document.refuse_key(f"{_shown(name)} is given twice, in line {first.line} too", path, line)


def _decides_somewhere(document: WrittenDocument, name: str, value: object) -> bool:
    """Return whether a key of this name, in whatever section, is read or may decide a layout."""
    bound = {key.rpartition(".")[2] for key in document.table.read}
    return name in bound or "layers" in name or bool(may_decide(name, value))


def _is_scalar(first: Written, value: object) -> bool:
    """Return whether both values of a key are single ones, and neither is a section."""
    return first.value is not None and value is not None and not isinstance(value, list)


def _add(document: WrittenDocument, values: Mapping[Any, Any], prefix: str) -> None:
    """Add the values that a program has, by path."""
    for key, value in values.items():
        path = f"{prefix}{str(key)[:200]}"
        if len(document.entries) > _MOST or path.count(".") > _DEEPEST:
            document.refuse_key("there are too many values, or they are nested too deeply", "$")
            return
        nested = isinstance(value, Mapping)
        plain = None if nested else _plain_value(value)
        document.entries[path] = Written(plain, None, f"{key}: {'' if nested else _shown(plain)}".strip())
        if nested:
            _add(document, value, f"{path}.")


def _plain_value(value: object) -> Any:  # noqa: ANN401 - any value of a program
    """Return a value as a file would have it; what no file can have is its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain_value(item) if not isinstance(item, Mapping | list) else str(item) for item in value]
    return str(value)


def _value(loader: _Loader, node: yaml.Node) -> Any:  # noqa: ANN401 - any value of a file
    """Return the value of a node; mappings in a list are not read."""
    if isinstance(node, yaml.SequenceNode):
        loader.left -= len(node.value)
        if loader.left < 0:
            raise yaml.YAMLError("it has too many values")
        return [_value(loader, item) for item in node.value]
    if not isinstance(node, yaml.ScalarNode):
        return None
    try:
        return loader.construct_object(node)
    except (ValueError, yaml.YAMLError):
        return str(node.value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _stop(file: LaunchFile, sentence: str, line: int | None = None) -> NoReturn:
    raise SpecError([Problem(sentence, "$", file.name, line)])


_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class KeyEdit:
    """A value that a key is to have; ``removed`` where it is to have none."""

    path: str
    value: Any
    removed: bool = False


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[KeyEdit]:
    """Yield the values in which the document ``after`` differs from ``before``, the nested ones by path.

    >>> old, new = {"zero": {"stage": 1, "offload": {"device": "cpu"}}}, {"zero": {"stage": 3}}
    >>> [(edit.path, edit.value, edit.removed) for edit in changed_keys(old, new)]
    [('zero.stage', 3, False), ('zero.offload', None, True)]
    """
    return _changed(before, after, "")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[KeyEdit]:
    for key, value in after.items():
        old = before.get(key, _ABSENT)
        if isinstance(value, Mapping) and value:
            yield from _changed(old if isinstance(old, Mapping) else {}, value, f"{prefix}{key}.")
        elif old != value:
            yield KeyEdit(f"{prefix}{key}", value)
    for key in before:
        if key not in after:
            yield KeyEdit(f"{prefix}{key}", None, removed=True)


def key_edits(entries: Values, wanted: Iterable[KeyEdit]) -> Iterator[FileEdit]:
    """Yield the edits of a file with ``entries`` that give its keys the ``wanted`` values."""
    for edit in wanted:
        written = entries.get(edit.path)
        name = written.words.partition(":")[0] if written else edit.path.rpartition(".")[2]
        if edit.removed:
            if written is not None:
                yield FileEdit(written.words, "", written.line, edit.path)
        elif written is None:
            yield FileEdit("", f"{name}: {_text(edit.value)}", None, edit.path)
        elif written.value != edit.value or isinstance(written.value, bool) != isinstance(edit.value, bool):
            yield FileEdit(written.words, f"{name}: {_text(edit.value)}", written.line, edit.path)


def layout_edits(
    table: Interface, entries: Values, document: Mapping[str, Any], usual: Mapping[str, str]
) -> tuple[FileEdit, ...]:
    """Return the edits that make a layout, but those that are ``usual`` or of the case of a name."""
    added = {f"{table.keys[name].rpartition('.')[2]}: {value}" for name, value in usual.items()}
    edits = key_edits(entries, changed_keys({}, document))
    return tuple(edit for edit in edits if not _idle(edit, entries.get(edit.path), added))


def _idle(edit: FileEdit, written: Written | None, added: set[str]) -> bool:
    if written is None:
        return edit.after in added
    return isinstance(written.value, str) and edit.after.lower().endswith(f'"{written.value.lower()}"')


def _text(value: object) -> str:
    """Return a value as JSON and YAML have it."""
    return json.dumps(value, ensure_ascii=True)


def edited_values(entries: Values, edits: Iterable[FileEdit]) -> dict[str, Any]:
    """Return the values of a file after ``edits``, nested by key, as a program would hold them."""
    values = {
        path: written.value for path, written in entries.items() if not _is_section(path, written, entries)
    }
    for edit in edits:
        if edit.path and not edit.after:
            values_left = {
                path: value for path, value in values.items() if not f"{path}.".startswith(f"{edit.path}.")
            }
            values = values_left
        elif edit.path:
            values[edit.path] = json.loads(edit.after.partition(": ")[2])
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = path.split(".")
        place = nested
        for parent in parents:
            inner = place.get(parent)
            place[parent] = inner if isinstance(inner, dict) else {}
            place = place[parent]
        place[name] = value
    return nested


def _is_section(path: str, written: Written, entries: Values) -> bool:
    """Return whether a path is one of a mapping with keys, which have paths of their own."""
    if written.value is not None or written.words[-1:] != ":":
        return False
    return any(other.startswith(f"{path}.") for other in entries)
