"""Validation errors of pydantic as sentences about the file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import ErrorDetails

from autoplan.errors import Problem
from autoplan.schema.renamed_keys import RENAMED_KEYS, RENAMED_KNOBS
from autoplan.schema.yaml.annotations import Place, below, choices, descend, fields, unfold
from autoplan.schema.yaml.document import Document, Path, Plain, format_path, shown
from autoplan.schema.yaml.synonyms import key_sentence, right_key, value_meant, whole_number

#: Member of a union that is a class, with the checks around it, as pydantic names it.
_CLASS: Final = re.compile(r"(?:^|, )[A-Z]\w*\]*$")
#: Expected kind of value by error type.
_KINDS: Final = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "a mapping"),
    "model_attributes_type": "a mapping",
    "string_type": "text",
    "none_required": "left empty",
}
_CHOICES: Final = ("literal_error", "enum")
_OWN_WORDS: Final = ("value_error", "assertion_error")

#: Bound by error type: key of the limit in the context, and sentence.
_BOUNDS: Final = {
    "greater_than": ("gt", "must be more than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "multiple_of": ("multiple_of", "must be a multiple of {}"),
    "string_too_short": ("min_length", "must have at least {} characters"),
    "string_too_long": ("max_length", "must have at most {} characters"),
    "too_short": ("min_length", "must have at least {} entries"),
    "too_long": ("max_length", "must have at most {} entries"),
    "string_pattern_mismatch": ("pattern", "does not match the pattern {}"),
}


@dataclass(frozen=True, slots=True)
class _Failure:
    """One error of pydantic, placed in the file (``path``, ``value``) and in the models."""

    error: ErrorDetails
    path: Path
    value: Plain
    place: Place
    tags: tuple[int, ...]
    root: Place

    @property
    def kind(self) -> str:
        return self.error["type"]

    @property
    def context(self) -> Mapping[str, Any]:
        return self.error.get("ctx", {})

    def branches(self) -> list[tuple[Path, str | int]]:
        """Return each union on the way, as where it stands in ``loc``, and the member tried."""
        loc = self.error["loc"]
        return [(loc[:index], loc[index]) for index in self.tags]

    def depth(self, union: Path) -> int:
        """Return how many parts of the path lie below the ``union`` at that prefix of ``loc``."""
        above = sum(1 for index in self.tags if index < len(union))
        return len(self.path) - (len(union) - above)


def problems_of(errors: Iterable[ErrorDetails], document: Document, annotation: object) -> list[Problem]:
    """Return ``errors`` as problems of ``document``, one per path, by line."""
    root = unfold(annotation)
    failures = [c for error in errors if _is_true(c := _placed(error, document, root))]
    failures = _without_renamed(failures)
    by_path: dict[Path, list[_Failure]] = {}
    for failure in _without_other_branches(failures):
        by_path.setdefault(failure.path, []).append(failure)
    problems = [_problem(path, group, document) for path, group in by_path.items()]
    return sorted(problems, key=lambda problem: problem.line or 0)


def _without_renamed(failures: Sequence[_Failure]) -> list[_Failure]:
    """Return ``failures`` without missing keys that another key was meant to be."""
    unknown = [failure for failure in failures if failure.kind == "extra_forbidden"]
    meant = {right_key(str(failure.path[-1]), failure.root) for failure in unknown}
    return [c for c in failures if c.kind != "missing" or ".".join(map(str, c.path)) not in meant]


def _placed(error: ErrorDetails, document: Document, root: Place) -> _Failure:
    missing = error["type"] == "missing"
    place, path, tags = descend(root, document.value, error["loc"], missing=missing)
    if missing or error["type"] == "extra_forbidden":
        # These speak of a key: what is known of it stands in the mapping above.
        place, _, _ = descend(root, document.value, error["loc"][:-1])
    if "discriminator" in error.get("ctx", {}):
        path = (*path, *_discriminator(error))
    return _Failure(error, path, document.at(path), place, tags, root)


def _is_true(failure: _Failure) -> bool:
    """Return false where pydantic calls a list too short because it left the bad entries out."""
    if failure.kind != "too_short" or not isinstance(failure.value, tuple | dict):
        return True
    return len(failure.value) < int(failure.context["min_length"])


def _discriminator(error: ErrorDetails) -> Path:
    name = str(error.get("ctx", {})["discriminator"]).strip("'")
    return (name,) if name.isidentifier() else ()


def _without_other_branches(failures: Sequence[_Failure]) -> list[_Failure]:
    """Return ``failures`` without those of union members that the value was not meant to be."""
    unions: dict[Path, dict[str | int, list[_Failure]]] = {}
    for failure in failures:
        for union, tag in failure.branches():
            unions.setdefault(union, {}).setdefault(tag, []).append(failure)
    dropped: set[int] = set()
    for union in sorted(unions, key=len, reverse=True):
        tried = {
            tag: [failure for failure in group if id(failure) not in dropped]
            for tag, group in unions[union].items()
        }
        meant = _meant(tried, union)
        dropped.update(id(c) for tag, group in tried.items() if tag not in meant for c in group)
    return [failure for failure in failures if id(failure) not in dropped]


def _meant(branches: Mapping[str | int, Sequence[_Failure]], union: Path) -> set[str | int]:
    """Return the members of a union that the value comes near to, or all where it meets none."""
    near = {
        tag: group
        for tag, group in branches.items()
        if group and all(c.depth(union) > 0 or c.kind in _BOUNDS or _own_rule(tag, c) for c in group)
    }
    if not near:
        return set(branches)
    paths = {tag: {failure.path for failure in group} for tag, group in near.items()}
    if len({frozenset(members) for members in paths.values()}) == 1:
        return set(near)
    return {min(near, key=lambda tag: len(near[tag]))}


def _own_rule(tag: str | int, failure: _Failure) -> bool:
    """Return whether a mapping has the keys of a member of a union and breaks a rule of it."""
    of_a_class = isinstance(tag, str) and _CLASS.search(tag) is not None
    return of_a_class and failure.kind == "value_error" and isinstance(failure.value, dict)


def _problem(path: Path, group: Sequence[_Failure], document: Document) -> Problem:
    about_key = group[0].kind in ("extra_forbidden", "missing") or "[key]" in group[0].error["loc"]
    line = document.line(path, key=about_key)
    return Problem(_sentence(path, group), format_path(path), document.name, line)


def _sentence(path: Path, group: Sequence[_Failure]) -> str:
    """Return one sentence for all errors of one path."""
    wrong_kind = [c for c in group if c.kind in _KINDS or c.kind in _CHOICES]
    others = [c for c in group if c not in wrong_kind]
    sentences = list(dict.fromkeys(_other_sentence(path, failure) for failure in others))
    if not sentences:
        return _kind_sentence(wrong_kind)
    alternatives = f" (or write {_listed(_expected(wrong_kind))})" if wrong_kind else ""
    return "; or ".join(sentences) + alternatives


def _expected(group: Sequence[_Failure]) -> list[str]:
    """Return the allowed values: choices in quotes, then kinds."""
    options = [repr(choice) for choice in _options(group)]
    kinds = [_KINDS[failure.kind] for failure in group if failure.kind in _KINDS]
    return list(dict.fromkeys([*options, *kinds]))


def _options(group: Sequence[_Failure]) -> list[object]:
    chosen = [failure for failure in group if failure.kind in _CHOICES]
    return list(dict.fromkeys(choice for c in chosen for choice in choices(c.place)))


def _kind_sentence(group: Sequence[_Failure]) -> str:
    """Return the sentence for a value of a wrong kind."""
    value, expected, options = group[0].value, _expected(group), _options(group)
    hint = _meant_hint(value, options) or _switch_hint(value, expected) or _number_hint(value, expected)
    if not expected:
        return f"{shown(value)} is not allowed: it must be {group[0].context.get('expected')}"
    if len(expected) == len(options) > 1:
        return f"{shown(value)} is not one of {', '.join(str(option) for option in options)}{hint}"
    if isinstance(value, str) and {"a whole number", "a number"}.intersection(expected) and _is_number(value):
        return f"{shown(value)} is text, not {_listed(expected)}: write digits alone, without quotes"
    return f"{shown(value)} is not {_listed(expected)}{hint}"


def _listed(words: Sequence[str]) -> str:
    return " or ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


def _meant_hint(value: Plain, options: Sequence[object]) -> str:
    """Return what to write for a value that is called otherwise elsewhere, else the option nearest to it."""
    meant = value_meant(value, options)
    return _did_you_mean(value, options) if meant is None else f" - did you mean {shown(meant)}?"


def _number_hint(value: Plain, expected: Sequence[str]) -> str:
    """Return the whole number that is short for, such as 4k."""
    number = whole_number(value) if isinstance(value, str) and "a whole number" in expected else None
    return "" if number is None else f": write {number}"


def _did_you_mean(word: Plain, options: Sequence[object]) -> str:
    near = _nearest(word, [str(option) for option in options])
    return f" - did you mean {shown(near)}?" if near is not None else ""


def _nearest(word: Plain, options: Sequence[str]) -> str | None:
    """Return the option that ``word`` was meant to be: misspelt, cut short or its initials."""
    if not isinstance(word, str) or len(word) > 100:
        return None
    folded = {option.casefold(): option for option in options}
    word = word.casefold()
    near = difflib.get_close_matches(word, folded, n=1)
    if not near:
        near = [option for option in folded if _abbreviates(word, option)]
    return folded[near[0]] if len(near) == 1 else None


def _abbreviates(word: str, option: str) -> bool:
    initials = "".join(part[:1] for part in option.split("_"))
    return word == initials if len(word) < 4 else word in option


def _switch_hint(value: Plain, expected: Sequence[str]) -> str:
    """Return what to write where a switch was written as in YAML 1.1, which knew ``yes``."""
    if not isinstance(value, str) or "true or false" not in expected:
        return ""
    switch = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(value.casefold())
    return f": write {switch}" if switch else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _other_sentence(path: Path, failure: _Failure) -> str:
    """Return the sentence for an error other than a wrong kind of value."""
    if failure.kind in _BOUNDS:
        return _bound_sentence(failure)
    if failure.kind in _OWN_WORDS:
        return str(failure.context.get("error", failure.error["msg"]))
    writer = _WRITERS.get(failure.kind)
    return writer(path, failure) if writer else _in_pydantic_words(failure)


def _in_pydantic_words(failure: _Failure) -> str:
    message = failure.error["msg"].removeprefix("Input ")
    return f"{shown(failure.value)} {message[:1].lower()}{message[1:]}"


def _bound_sentence(failure: _Failure) -> str:
    name, words = _BOUNDS[failure.kind]
    limit, value = failure.context[name], failure.value
    if isinstance(value, str) and value.endswith("%") and isinstance(limit, int | float):
        limit = f"{100 * limit:g} %"
    words = words.replace("entries", "entry").replace("characters", "character") if limit == 1 else words
    return f"{shown(value)} {words.format(limit)}"


def _unknown_key(path: Path, failure: _Failure) -> str:
    keys = list(fields(failure.place))
    key = str(path[-1])
    for new in (RENAMED_KEYS.get(key), *RENAMED_KNOBS.get(key, ())):
        if new in keys:
            return f"{key}: is called {new} now"
    elsewhere = key_sentence(path, failure.value, failure.root)
    if elsewhere is not None:
        return elsewhere
    near = _nearest(str(path[-1]), keys)
    if near is not None:
        return f"unknown key {shown(path[-1])}: did you mean {shown(near)}?"
    if not keys:
        return f"unknown key {shown(path[-1])}"
    return f"unknown key {shown(path[-1])}: known keys are {', '.join(keys)}"


def _missing(path: Path, failure: _Failure) -> str:
    info = fields(failure.place).get(str(path[-1]))
    what = f": {info.description}" if info and info.description else ""
    return f"{shown(path[-1])} is missing{what}"


def _unknown_tag(_path: Path, failure: _Failure) -> str:
    listed = str(failure.context.get("expected_tags", ""))
    options = [tag.strip("'") for tag in listed.split(", ")]
    hint = _did_you_mean(failure.value, options)
    return f"{shown(failure.value)} is not one of {', '.join(options)}{hint}"


def _missing_tag(path: Path, failure: _Failure) -> str:
    if not path:
        return "it does not say what it is"
    options = choices(below(failure.place, path[-1]))
    return f"{shown(path[-1])} is missing: one of {', '.join(str(option) for option in options)}"


_WRITERS: Final[Mapping[str, Callable[[Path, _Failure], str]]] = {
    "extra_forbidden": _unknown_key,
    "missing": _missing,
    "union_tag_invalid": _unknown_tag,
    "union_tag_not_found": _missing_tag,
}
