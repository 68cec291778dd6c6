"""Values of a chart of Helm whose templates lie beside them, as the manifests that Helm makes of them.

Functions that charts of engines call are as Sprig 3.2 and Helm 3.15 have them.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

import yaml

from autoplan.errors import Problem, SpecError
from autoplan.launch.engines.chart_templates import Renderer, TemplateError, is_true, parse_template, shown
from autoplan.launch.engines.container_commands import is_manifest


def _printf(form: str, *values: Any) -> str:  # noqa: ANN401 - any value of a template
    left = list(values)

    def filled(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        value = left.pop(0)
        return f'"{shown(value)}"' if match[1] == "q" else shown(value)

    return re.sub(r"%(?:\.?\d*f|(s|d|v|q)|%)", filled, form)


def _dumped(value: object) -> str:
    return str(yaml.safe_dump(value, default_flow_style=False, width=10_000))


def _quoted(value: object) -> str:
    return json.dumps(shown(value), ensure_ascii=False)


def _indent(count: int, text: Any) -> str:  # noqa: ANN401 - any value of a template
    pad = " " * int(count)
    return "\n".join(f"{pad}{line}" for line in shown(text).split("\n"))


def _words(text: str) -> list[str]:
    return [word for word in re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-_\s]+", " ", text).split(" ") if word]


def _index(value: Any, *keys: Any) -> Any:  # noqa: ANN401 - any value of a template
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else value[int(key)]
    return value


def _set(value: dict[str, Any], key: str, item: Any) -> dict[str, Any]:  # noqa: ANN401 - any value of a template
    value[key] = item
    return value


def _required(message: str, value: Any) -> Any:  # noqa: ANN401 - any value of a template
    if value is None or value == "":
        raise ValueError(message)
    return value


def _fail(message: str) -> str:
    raise ValueError(message)


def _int(value: Any) -> int:  # noqa: ANN401 - any value of a template
    match = re.match(r"\s*-?\d+", shown(value))
    return int(match[0]) if match else 0


def _kind_is(kind: str, value: Any) -> bool:  # noqa: ANN401 - any value of a template
    kinds = {"map": Mapping, "slice": list, "string": str, "bool": bool}
    return isinstance(value, kinds[kind])


def _number(fold: Callable[[Any, Any], Any]) -> Callable[..., int]:
    return lambda *values: int(reduce(fold, map(_int, values)))


#: Functions by name.
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "default": lambda value, given=None: given if is_true(given) else value,
    "quote": lambda *values: " ".join(_quoted(value) for value in values if value is not None),
    "squote": lambda value: f"'{shown(value)}'",
    "toYaml": lambda value: _dumped(value).removesuffix("...\n").rstrip("\n"),
    "toJson": json.dumps,
    "fromYaml": yaml.safe_load,
    "indent": _indent,
    "nindent": lambda count, text: f"\n{_indent(count, text)}",
    "printf": _printf,
    "print": lambda *values: "".join(map(shown, values)),
    "trim": lambda text: shown(text).strip(),
    "trunc": lambda count, text: shown(text)[: int(count)],
    "trimSuffix": lambda end, text: shown(text).removesuffix(end),
    "trimPrefix": lambda start, text: shown(text).removeprefix(start),
    "trimAll": lambda signs, text: shown(text).strip(signs),
    "lower": lambda text: shown(text).lower(),
    "upper": lambda text: shown(text).upper(),
    "replace": lambda old, new, text: shown(text).replace(old, new),
    "contains": lambda part, text: part in shown(text),
    "hasPrefix": lambda start, text: shown(text).startswith(start),
    "hasSuffix": lambda end, text: shown(text).endswith(end),
    "kebabcase": lambda text: "-".join(_words(shown(text))).lower(),
    "snakecase": lambda text: "_".join(_words(shown(text))).lower(),
    "toString": shown,
    "int": _int,
    "int64": _int,
    "list": lambda *values: list(values),
    "append": lambda values, value: [*(values or ()), value],
    "prepend": lambda values, value: [value, *(values or ())],
    "concat": lambda *lists: [value for one in lists for value in one],
    "join": lambda between, values: between.join(map(shown, values)),
    "splitList": lambda between, text: shown(text).split(between),
    "first": lambda values: values[0] if values else None,
    "last": lambda values: values[-1] if values else None,
    "dict": lambda *pairs: dict(zip(map(shown, pairs[::2]), pairs[1::2], strict=True)),
    "set": _set,
    "get": lambda value, key: (value or {}).get(key, ""),
    "hasKey": lambda value, key: isinstance(value, Mapping) and key in value,
    "keys": list,
    "index": _index,
    "len": len,
    "eq": lambda first, *others: any(first == other for other in others),
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": lambda *values: next((value for value in values if not is_true(value)), values[-1]),
    "or": lambda *values: next((value for value in values if is_true(value)), values[-1]),
    "not": lambda value: not is_true(value),
    "empty": lambda value: not is_true(value),
    "coalesce": lambda *values: next((value for value in values if is_true(value)), None),
    "ternary": lambda yes, no, test: yes if test else no,
    "required": _required,
    "fail": _fail,
    "kindIs": _kind_is,
    "add": _number(operator.add),
    "sub": _number(operator.sub),
    "mul": _number(operator.mul),
    "div": _number(operator.floordiv),
    "tpl": lambda *_: "",
    # What a cluster or a random source would say decides no engine.
    "lookup": lambda *_: {},
    "randAlphaNum": lambda count: "x" * int(count),
    "b64enc": shown,
    "sha256sum": lambda _: "",
}


CHART: Final = "Chart.yaml"
VALUES: Final = "values.yaml"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def rendered_chart(text: str, name: str, files: Mapping[str, str]) -> str | None:
    """Return the manifests of a chart, filled in with values; None where none of them serves.

    Args:
        text: the values of one file.
        name: what messages call it.
        files: the files of its chart by path, such as ``Chart.yaml`` and ``templates/deployment.yaml``.

    Raises SpecError for values that are no YAML, and for a template that serves and is not read.
    """
    values = _merged(_mapping(files.get(VALUES, ""), VALUES), _mapping(text, name))
    chart = {key[:1].upper() + key[1:]: value for key, value in _mapping(files[CHART], CHART).items()}
    context = {
        "Values": values,
        "Chart": chart,
        "Release": {"Name": "release", "Namespace": "default", "Service": "Helm"},
        "Capabilities": {"APIVersions": {}, "KubeVersion": {}},
    }
    renderer = Renderer(FUNCTIONS)
    parsed: dict[str, Any] = {}
    problems: list[Problem] = []
    for path, template in files.items():
        if path.startswith("templates/"):
            try:
                parsed[path] = parse_template(template)
                renderer.define(parsed[path])
            except TemplateError as error:
                problems.append(Problem(error.sentence, "template", path, error.line))
    made: list[str] = []
    for path, actions in parsed.items():
        if path.endswith((".yaml", ".yml")):
            try:
                made.append(renderer.whole(actions, context))
            except TemplateError as error:
                problems.append(Problem(error.sentence, "template", path, error.line))
    serving = any(is_manifest(document) for document in made)
    if not serving and problems and any("serve" in text or "vllm" in text for text in files.values()):
        raise SpecError(problems)
    return "\n---\n".join(made) if serving else None


def _mapping(text: str, name: str) -> dict[str, Any]:
    try:
        found = yaml.load(text, _LOADER)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        sentence = f"it is no YAML: {str(error).splitlines()[0][:120]}"
        raise SpecError([Problem(sentence, "$", name, mark.line + 1 if mark else None)]) from error
    except RecursionError as error:
        raise SpecError([Problem("nested too deeply", "$", name)]) from error
    return found if isinstance(found, dict) else {}


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with those of another file over them; null removes a key, as Helm does."""
    merged = dict(one)
    for key, value in other.items():
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(before, value)
        elif value is None and key in merged:
            del merged[key]
        else:
            merged[key] = value
    return merged
