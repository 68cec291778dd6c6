"""Words of a serve command, or keys of its file, as arguments of an engine with their values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from autoplan.errors import Problem
from autoplan.launch.bindings.deciding_names import may_decide
from autoplan.launch.bindings.interface import Interface
from autoplan.launch.configuration import Fields, ReadFile, Written
from autoplan.launch.engines.arguments.engine_settings import ArgumentList, EngineArgument
from autoplan.launch.scripts.pieces import Unknown, Word

#: Sizes that vLLM's parser reads, such as 8k (8,000) and 8K (8,192).
_MULTIPLES: Final = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
#: Types of activations, which are those of weights that are not quantized.
_TYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_NUMBER: Final = re.compile(r"-?(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_LONGEST: Final = 60
#: Degrees that stay open where a machine decides them, and how the reason begins that does.
_DEGREES: Final = frozenset({"tp", "pp"})
_OUTPUT: Final = re.compile(r"the output of ")


@dataclass(frozen=True, slots=True)
class GivenArgument:
    """One argument with its value, as text, a boolean, or what a file has; and where it stands."""

    argument: EngineArgument
    value: Any
    line: int | None
    words: str
    unknown: Unknown | None = None


@dataclass(slots=True)
class GivenArguments(ReadFile):
    """The arguments of one command by their flag, and what else it has.

    ``opened`` are degrees that the output of a command decides, which is not known.
    """

    known: ArgumentList
    given: dict[str, GivenArgument] = field(default_factory=dict)
    positional: list[Word] = field(default_factory=list)
    #: Fields that a file which lies nowhere or an earlier argument decides, where no other argument does.
    elsewhere: set[str] = field(default_factory=set)
    #: What a file of options has that is no argument, by path, with lines.
    document: Fields = field(default_factory=dict)

    def refuse(self, sentence: str, path: str, line: int | None = None) -> None:
        """Add a problem."""
        self.problems.append(Problem(sentence, path, self.file, line))

    def find(self, name: str) -> GivenArgument | None:
        """Return the argument of a binding, in any spelling; None where its value is open."""
        flag = self.known.flags[name]
        argument = self.known.arguments.get(flag)
        argument_words = self.given.get(argument.flag) if argument else None
        if argument_words is None or argument_words.unknown is None:
            return argument_words
        cause = argument_words.unknown
        how = f": give --set {cause.name}=VALUE" if cause.name else ""
        if name in _DEGREES and not cause.name and _OUTPUT.match(cause.reason):
            self.opened.add(name)
            self.notes.append(f"{flag} depends on {cause.reason} (line {cause.line}): left open")
            return None
        self.refuse(
            f"its value depends on {cause.reason} (line {cause.line}){how}", flag, argument_words.line
        )
        return None

    def text(self, name: str) -> Written | None:
        """Return a value as text."""
        argument = self.find(name)
        if argument is None:
            return None
        value = argument.value[0] if isinstance(argument.value, list) and argument.value else argument.value
        return Written(str(value), argument.line, argument.words)

    def switch(self, name: str) -> Written | None:
        """Return whether a switch is on."""
        argument = self.find(name)
        if argument is None:
            return None
        value = argument.value
        if isinstance(value, str):
            value = value.lower() in {"true", "1", "yes"}
        return Written(bool(value), argument.line, argument.words)

    def count(self, name: str, least: int = 1) -> Written | None:
        """Return an integer of at least ``least``; sizes such as 8k are read."""
        return self._read(name, lambda text: _count(text, least), f"an integer of at least {least}")

    def share(self, name: str) -> Written | None:
        """Return a share of more than 0 and at most 1."""
        return self._read(name, _share, "a number of more than 0 and at most 1")

    def mapping(self, name: str) -> Written | None:
        """Return a JSON object."""
        return self._read(name, _mapping, "a JSON object")

    def _read(self, name: str, parse: Callable[[Any], Any], wanted: str) -> Written | None:
        argument = self.find(name)
        if argument is None or argument.value is None:
            return None
        value, flag = parse(argument.value), self.known.flags[name]
        if value is None:
            if not any(problem.path == flag for problem in self.problems):
                self.refuse(f"{_shown(argument.value)} is not {wanted}", flag, argument.line)
            return None
        return Written(value, argument.line, argument.words)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _count(value: Any, least: int) -> int | None:  # noqa: ANN401 - a value of a file
    match = _NUMBER.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    if match is None or len(match[1]) > 15:
        return None
    number = float(match[1]) * _MULTIPLES.get(match[2], 1) * (-1 if str(value).strip()[0] == "-" else 1)
    return int(number) if number == int(number) and number >= least else None


def _share(value: Any) -> float | None:  # noqa: ANN401 - a value of a file
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 < number <= 1 else None


def _mapping(value: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a value of a file
    if isinstance(value, Mapping):
        return dict(value)
    try:
        read = json.loads(str(value))
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def parse_words(words: Sequence[Word], listed: ArgumentList, file: str) -> GivenArguments:
    """Return the arguments of words; each unknown flag is a problem with the one that was probably meant."""
    made, at = GivenArguments(file, listed), 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.unknown is not None and not (word.text or word.unknown.name or word.one):
            made.refuse(f"arguments depend on {word.unknown.reason}", "script", word.line)
            continue
        if not _is_flag(word.text):
            made.positional.append(word)
            continue
        flag, equals, inline = word.text.partition("=")
        flag, _, key = flag.partition(".")
        argument, off = listed.find(flag)
        following = list(_values(words, at))
        if argument is None:
            at += _unknown_flag(made, flag, word.line, following)
            continue
        values = [Word(inline, word.line, word.unknown)] if equals else following[: _arity(argument)]
        at += 0 if equals else len(values)
        # A flag of one branch alone may not be there at all.
        doubt = None if equals else word.unknown
        shown = Word(flag if key == "" else f"{flag}.{key}", word.line, doubt)
        _keep(made, argument, values, off=off, key=key, word=shown)
    return made


def _is_flag(text: str) -> bool:
    return text.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", text) and text not in {"-", "--"}


def _values(words: Sequence[Word], at: int) -> Iterator[Word]:
    while at < len(words) and not _is_flag(words[at].text):
        yield words[at]
        at += 1


def _arity(argument: EngineArgument) -> int | None:
    """Return the most words of a value; None for any number."""
    if argument.switch:
        return 0
    return None if argument.kind == "list" else 1


def _unknown_flag(made: GivenArguments, flag: str, line: int | None, following: Sequence[Word]) -> int:
    """Note a flag that the list lacks; returns how many words are its value."""
    listed, near = made.known, made.known.nearest(flag)
    name = f"{listed.engine} {listed.version}"
    earlier = listed.table.data.get("earlier", {}).get(flag)
    if earlier is not None:
        made.elsewhere.add(earlier)
        made.notes.append(f"{flag} (line {line}) is one of earlier versions, and may decide {earlier}")
        return 0
    if near is not None:
        made.refuse(f"{name} has no such argument: did you mean {near}?", flag, line)
    elif listed.complete or may_decide(flag, following[0].text if following else "true"):
        made.refuse(f"{name} has no such argument", flag, line)
    else:
        made.notes.append(f"{flag} (line {line}) is not in the list of {name} and is not read")
    return min(1, len(following))


def _keep(
    made: GivenArguments, argument: EngineArgument, values: Sequence[Word], *, off: bool, key: str, word: Word
) -> None:
    unknown = next((x.unknown for x in (*values, word) if x.unknown is not None), None)
    texts = [x.text for x in values]
    shown = " ".join([word.text, *texts])
    if not texts and not argument.switch and not argument.optional:
        made.refuse("its value is missing", word.text, word.line)
        return
    value: Any = texts if argument.kind == "list" else texts[0] if texts else not off
    if key:
        before = made.given.get(argument.flag)
        parts = dict(before.value) if before is not None and isinstance(before.value, Mapping) else {}
        value = {**parts, key: _scalar(texts[0]) if texts else True}
    found = GivenArgument(argument, value, word.line or None, shown, unknown)
    if unknown is None:
        _check(made, found)
    made.given[argument.flag] = found


def _scalar(text: str) -> Any:  # noqa: ANN401 - a value of JSON
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check(made: GivenArguments, given: GivenArgument) -> None:
    """Refuse a value that is none of the choices, or not of the type."""
    argument, value = given.argument, given.value
    if argument.switch or value is None or isinstance(value, list | Mapping):
        return
    if argument.choices and str(value) not in {str(x) for x in argument.choices}:
        shown = ", ".join(map(str, argument.choices))
        made.refuse(f"{_shown(value)} is none of {shown}", argument.flag, given.line)
    elif argument.kind == "int" and _count(value, -(2**62)) is None and str(value).lower() != "auto":
        made.refuse(f"{_shown(value)} is not an integer", argument.flag, given.line)
    elif argument.kind == "float" and not _is_float(value):
        made.refuse(f"{_shown(value)} is not a number", argument.flag, given.line)


def _is_float(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def parsed_keys(
    values: Mapping[str, Any],
    line_of: Callable[[str], int | None],
    listed: ArgumentList,
    made: GivenArguments,
) -> None:
    """Add the keys of a file of options to arguments; those of the command line take precedence."""
    for key, value in values.items():
        name = str(key)
        argument, off = listed.find(f"--{name}")
        line = line_of(name)
        if argument is None:
            _unknown_flag(made, f"--{name}", line, ())
            continue
        if argument.flag in made.given:
            continue
        switched = (not value if off else value) if argument.switch and isinstance(value, bool) else value
        parsed = GivenArgument(argument, switched, line, f"{name}: {_shown(value)}")
        _check(made, parsed)
        made.given[argument.flag] = parsed


def refuse_undecided(arguments: GivenArguments) -> None:
    """Refuse the arguments that divide an engine in ways which are not read, unless they do nothing."""
    for flag in arguments.known.table.data.get("undecided", ()):
        one = arguments.given.get(flag)
        if one is not None and str(one.value).lower() not in {"1", "0", "false", "none", "auto"}:
            arguments.refuse("what it divides is not read", one.words, one.line)


def note_unpriced(arguments: GivenArguments) -> None:
    """Note the arguments that change times or memory and that nothing is priced for, unless they are off."""
    data = arguments.known.table.data
    said = []
    for flag, what in {**data.get("unpriced", {}), **data.get("unpriced_off", {})}.items():
        one = arguments.given.get(flag)
        off = one is not None and str(one.value).lower() in {"0", "0.0", "false", "none", "auto", ""}
        if one is not None and off is (flag in data.get("unpriced_off", {})):
            said.append(f"{one.words} ({what})")
    kind = arguments.find("weights") if "weights" in arguments.known.flags else None
    if kind is not None and str(kind.value) in {"float32", "float"}:
        said.append(f"{kind.words} (weights of 4 bytes)")
    if said:
        arguments.notes.append(f"not priced: {', '.join(said)}")


def named_format(arguments: GivenArguments, text: Written | None, names: Mapping[str, str]) -> Written | None:
    """Return a format by the engine's name for it; another name leaves the format open, which is said."""
    if text is None or text.value in {"None", "none"}:
        return None
    if text.value in names:
        return replace(text, value=names[text.value])
    arguments.notes.append(f"{text.words} (line {text.line}) says no format that is priced")
    return None


def common_values(arguments: GivenArguments) -> dict[str, Written | None]:
    """Return what arguments of vLLM and SGLang say alike: formats of weights and cache, no CUDA graphs."""
    table, kv = arguments.known.table, arguments.text("kv")
    eager = arguments.switch("enforce_eager")
    if kv is not None and kv.value != "auto":
        kv = named_format(arguments, kv, read_names(table))
    return {
        "weights": named_format(arguments, arguments.text("converted"), table.data["quantized"]),
        "dtype": plain_type(arguments.text("weights")),
        "kv": kv,
        "enforce_eager": eager if eager is not None and eager.value else None,
    }


def read_names(table: Interface) -> Mapping[str, str]:
    """Return the formats of a cache by all names that an engine has for them."""
    names = {theirs: ours for ours, theirs in table["kv"].names.items()}
    return {**names, **table.data["kv_read"]}


def plain_type(dtype: Written | None) -> Written | None:
    """Return the 16-bit format of a type of activations, which is that of weights that are not quantized."""
    if dtype is None or dtype.value not in _TYPES:
        return None
    return replace(dtype, value=_TYPES[dtype.value])
