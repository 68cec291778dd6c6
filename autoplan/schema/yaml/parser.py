"""Strict YAML: a text becomes plain values, each with its line, or a SpecError.

Restrictions: YAML 1.2 core scalars (``no`` is a text, ``1e-4`` a number), text keys, each
key once, one document, no tags or merge keys, and limits that no honest file reaches. The values
are built from the parser's events with an explicit stack, so that nothing recurses and every
limit is checked before anything grows.

Scalars of the YAML 1.2 core schema, without infinities and NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NoReturn

import yaml
from yaml import ScalarEvent

from autoplan.errors import Problem, SpecError
from autoplan.schema.yaml.document import Document, Lines, Path, Plain, format_path, refuse, shown

MAX_BYTES: Final = 2**20
MAX_DEPTH: Final = 50
MAX_ALIASES: Final = 100
MAX_NODES: Final = 100_000

# libyaml where PyYAML was built with it: ten times faster, and the same events.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_LINE_BREAK: Final = re.compile(r"\r\n|\r|\n")

_HINTS: Final = {
    "tab": "indent with spaces, not with tabs",
    "'\\t'": "indent with spaces, not with tabs",
    "mapping values are not allowed": (
        "a ':' where no key can stand; check the indentation, or quote the text"
    ),
    "cannot start any token": "a text that starts with this character must be quoted",
    "expected ',' or": "a bracket is not closed, or a comma is missing",
    "did not find expected key": "check the indentation",
    "could not find expected ':'": "a key without its ':', or a text that must be quoted",
    "unexpected end of stream": "a quote is not closed",
}


def parse_yaml(text: str, *, name: str) -> Document:
    """Read ``text`` as one strict YAML document; ``name`` is what messages call it.

    Mappings become dicts, lists tuples, scalars str, int, float, bool or None. Raises SpecError
    with every problem of the content, or with the one that stopped the reading.

    >>> parse_yaml("rates: [1e-4, no]", name="x.yaml").value
    {'rates': (0.0001, 'no')}
    """
    builder = _Builder(name)
    for event in _events(_checked(text, name), name):
        builder.feed(event)
    if builder.problems:
        raise SpecError(builder.problems)
    if builder.root is None or builder.root.value is None:
        refuse("the file is empty", name, 1)
    return Document(name, builder.root.value, builder.root.lines)


def _checked(text: str, name: str) -> str:
    """Return ``text`` without its byte order mark, or refuse its size or a character in it."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        refuse("the file is larger than 1 MiB", name, None)
    if match := FORBIDDEN.search(text):
        line = len(_LINE_BREAK.findall(text, 0, match.start())) + 1
        refuse(f"the character U+{ord(match[0]):04X} is not allowed in a file", name, line)
    return text


def _events(text: str, name: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        refuse(_syntax_message(error), name, mark.line + 1 if mark else None)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The scanner in Python lets chr() fail on an escape such as "\UFFFFFFFF".
        refuse(f"not valid YAML: {error}".replace("\n", " "), name, None)


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return mark.line + 1 if mark else 1


def _syntax_message(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "it cannot be read"
    if "maximum nesting depth" in problem:  # libyaml's own, which newer versions keep below ours
        return f"nested deeper than {MAX_DEPTH} levels"
    context = f" {error.context}" if error.context else ""
    if context and error.context_mark:
        context += f" that starts on line {error.context_mark.line + 1}"
    hint = next((hint for word, hint in _HINTS.items() if word in problem), None)
    return f"not valid YAML: {problem}{context}" + (f" ({hint})" if hint else "")


@dataclass(frozen=True, slots=True)
class _Node:
    """A finished value: the lines below it, and how many nodes and levels it holds."""

    value: Plain
    lines: Lines | int
    nodes: int = 1
    levels: int = 0

    @property
    def line(self) -> int:
        return self.lines if isinstance(self.lines, int) else self.lines.begin


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end is not parsed yet; list items have indices as keys."""

    line: int
    mapping: bool
    anchor: str | None
    values: dict[str | int, Plain] = field(default_factory=dict)
    lines: dict[str | int, Lines | int] = field(default_factory=dict)
    key_lines: dict[str, int] = field(default_factory=dict)
    key: str | int | None = None  # of the value that comes next; None where a key comes next
    keep: bool = True  # false for the value of a duplicate key
    nodes: int = 1
    levels: int = 1

    def wants_key(self) -> bool:
        return self.mapping and self.key is None

    def put(self, node: _Node) -> None:
        """Take ``node`` as the next value."""
        self.nodes += node.nodes
        self.levels = max(self.levels, node.levels + 1)
        key = len(self.values) if self.key is None else self.key
        if self.keep:
            self.values[key] = node.value
            self.lines[key] = node.lines
        self.key, self.keep = None, True

    def append(self, value: Plain, line: int) -> None:
        """Take a scalar as the next item of a list."""
        index = len(self.values)
        self.values[index], self.lines[index] = value, line
        self.nodes += 1

    def closed(self) -> _Node:
        value: Any = self.values if self.mapping else tuple(self.values.values())
        lines = Lines(self.line, self.key_lines, self.lines)
        return _Node(value, lines, self.nodes, self.levels)


class _Builder:
    """Builds a document from events and collects the problems of its content."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: _Node | None = None
        self.problems: list[Problem] = []
        self._stack: list[_Open] = []
        self._anchors: dict[str | None, _Node] = {}
        self._aliases = 0
        self._nodes = 0
        self._documents = 0

    def feed(self, event: yaml.Event) -> None:
        """Take the next event; raises SpecError where a limit is passed."""
        if isinstance(event, yaml.ScalarEvent):
            if event.anchor is None and self._stack and not self._stack[-1].mapping:
                self._take_item(event, self._stack[-1])
            else:
                self._take_scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            closing = self._stack.pop()
            self._add(closing.closed(), closing.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._take_alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._stop("a second document starts: a file has one document", event)

    def _path(self) -> Path:
        """Return the path of the value that comes next."""
        parts = (len(o.values) if o.key is None and not o.mapping else o.key for o in self._stack)
        return tuple(part for part in parts if part is not None)

    def _stop(self, message: str, event: yaml.Event) -> NoReturn:
        refuse(message, self.name, _line(event), self._path())

    def _report(self, message: str, line: int, path: Path | None = None) -> None:
        path = self._path() if path is None else path
        self.problems.append(Problem(message, format_path(path), self.name, line))

    def _count(self, event: yaml.Event, *, nodes: int = 1, levels: int = 0) -> None:
        """Add to what has been read; aliases count as often as they are used."""
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            self._stop(f"the file has more than {MAX_NODES:,} values", event)
        if len(self._stack) + levels > MAX_DEPTH:
            self._stop(f"nested deeper than {MAX_DEPTH} levels", event)

    def _take_item(self, event: yaml.ScalarEvent, parent: _Open) -> None:
        """Take a scalar of a list, as nearly all of a large file are, without a node for it."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._count(event, nodes=0)
        line = _line(event)
        parent.append(self._value(event, line), line)

    def _value(self, event: yaml.ScalarEvent, line: int) -> Plain:
        """Return what a scalar means, its text where it is not allowed."""
        try:
            return scalar_value(event)
        except BadScalarError as error:
            self._report(str(error), line)
            return str(event.value)

    def _take_scalar(self, event: yaml.ScalarEvent) -> None:
        self._count(event)
        line = _line(event)
        wants_key = bool(self._stack) and self._stack[-1].wants_key()
        value = self._value(event, line)
        if wants_key and event.value == "<<" and event.implicit[0]:
            self._report("merge keys (<<) are not read: write the keys out", line)
            self._drop("<<")
        else:
            self._add(_Node(value, line), event.anchor)

    def _start(self, event: yaml.CollectionStartEvent) -> None:
        self._count(event, levels=1)
        mapping = isinstance(event, yaml.MappingStartEvent)
        line = _line(event)
        if event.tag not in (None, CORE_TAG + ("map" if mapping else "seq")):
            self._report(tag_message(event.tag), line)
        # An alias to it from inside must not find an older value of the same name.
        self._anchors.pop(event.anchor, None)
        self._stack.append(_Open(line, mapping, event.anchor))

    def _take_alias(self, event: yaml.AliasEvent) -> None:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            self._stop(f"more than {MAX_ALIASES} aliases (*name)", event)
        node = self._anchors.get(event.anchor)
        if node is None:
            name = shown(event.anchor)
            self._stop(f"the alias {name} has no complete anchor above it", event)
        self._count(event, nodes=node.nodes, levels=node.levels)
        self._add(node, None, _line(event))

    def _add(self, node: _Node, anchor: str | None, line: int | None = None) -> None:
        """Put a finished node where it belongs, as the root, a key or a value."""
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._stack:
            self.root = node
            return
        parent = self._stack[-1]
        if parent.wants_key():
            self._take_key(parent, node.value, line or node.line)
        else:
            parent.put(node)

    def _take_key(self, parent: _Open, key: Plain, line: int) -> None:
        if not isinstance(key, str):
            self._report(f"{shown(key)} is a key, but keys must be text: quote it", line)
            self._drop(shown(key))
        elif key in parent.key_lines:
            first = parent.key_lines[key]
            message = f"the key {shown(key)} is a duplicate of line {first}: remove one"
            self._report(message, line, (*self._path(), key))
            self._drop(key)
        else:
            parent.key_lines[key] = line
            parent.key = key

    def _drop(self, key: str) -> None:
        """Parse the value of ``key`` without storing it."""
        self._stack[-1].key, self._stack[-1].keep = key, False


MAX_DIGITS: Final = 30
LEAST_NUMBER: Final = 1e-30
MOST_NUMBER: Final = 1e30

_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGERS: Final = (
    (10, re.compile(r"[-+]?[0-9]+")),
    (8, re.compile(r"0o[0-7]+")),
    (16, re.compile(r"0x[0-9a-fA-F]+")),
)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

# Beside control characters: the line breaks of YAML 1.1 that no editor counts as one, and byte
# order marks inside the text.
FORBIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)

CORE_TAG: Final = "tag:yaml.org,2002:"
_SCALAR_TAGS: Final[dict[str, tuple[type, ...]]] = {
    f"{CORE_TAG}str": (str,),
    f"{CORE_TAG}int": (int,),
    f"{CORE_TAG}float": (float, int),
    f"{CORE_TAG}bool": (bool,),
    f"{CORE_TAG}null": (type(None),),
}


class BadScalarError(Exception):
    """A scalar that is not allowed; its text is the sentence to print."""


@lru_cache(maxsize=8192)
def resolve(text: str) -> str | int | float | bool | None:
    """Return what a plain scalar means; raises BadScalarError where no setting could take it.

    >>> [resolve(text) for text in ("010", "1e-4", ".5", "no", "12:30", "1_000", "~")]
    [10, 0.0001, 0.5, 'no', '12:30', '1_000', None]
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "0123456789+-.":
        return text
    # Most numbers of a large file are measured ones, with a point that no integer has.
    for base, pattern in _INTEGERS if "." not in text else ():
        if pattern.fullmatch(text):
            return _integer(text, base)
    if _FLOAT.fullmatch(text):
        return _float(text)
    if _NOT_FINITE.fullmatch(text):
        raise BadScalarError(f"{text} is not a finite number")
    return text


def _float(text: str) -> float:
    """Return a number that is 0 or of a size that arithmetic can go on with."""
    number = float(text)
    if abs(number) > MOST_NUMBER:
        raise BadScalarError(f"{shown(text)} is too large for a number: write at most {MOST_NUMBER:g}")
    if abs(number) < LEAST_NUMBER and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise BadScalarError(
            f"{shown(text)} is too small for a number: write at least {LEAST_NUMBER:g}, or 0"
        )
    return number


def _integer(text: str, base: int) -> int:
    if len(text) > MAX_DIGITS:
        raise BadScalarError(f"an integer has at most {MAX_DIGITS} digits")
    return int(text, base)


def scalar_value(event: ScalarEvent) -> str | int | float | bool | None:
    """Return the value of a scalar, plain, quoted or tagged; raises BadScalarError."""
    text: str = event.value
    # Only an escape in double quotes can bring such a character past the check of the text.
    if event.style == '"' and (match := FORBIDDEN.search(text)):
        raise BadScalarError(f"the character U+{ord(match[0]):04X} is not allowed in a text")
    if event.tag is None:
        return resolve(text) if event.implicit[0] else text
    types = _SCALAR_TAGS.get(event.tag)
    if types is None:
        raise BadScalarError(tag_message(event.tag))
    value = text if str in types else resolve(text)
    if type(value) not in types:
        raise BadScalarError(f"{shown(text)} is not what its tag says")
    return float(value) if float in types and isinstance(value, int) else value


def tag_message(tag: str) -> str:
    """Return what to say of a ``tag`` that is not one of the core schema."""
    written = tag.replace(CORE_TAG, "!!", 1)
    return f"the tag {shown(written)} is not allowed: write the value without it"
