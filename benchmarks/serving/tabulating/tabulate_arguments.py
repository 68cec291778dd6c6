"""Tabulate the arguments of inference engines by version, from their published wheels.

    pip download --no-deps --only-binary :all: -d wheels/vllm-0.33.0 vllm==0.33.0
    python -m benchmarks.serving.tabulating.tabulate_arguments vllm wheels/vllm-*/*.whl \
        --output specs/interfaces/vllm.json

Nothing is installed or executed: the wheels are read as archives, and their modules as syntax trees. vLLM:
calls of ``add_argument`` in ``engine/arg_utils.py`` with the fields of the classes that they take, the fields
of the front end and the options of ``serve``. SGLang: annotated fields of ``arg_groups/fields`` or calls of
``add_argument`` in ``server_args.py``. A default or a list of choices that only running the engine decides is
left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

#: Stands for a value that the syntax tree does not say.
UNKNOWN: Final = object()
_PATHS: Final = {
    "vllm": r"vllm/(engine/arg_utils|config(/.*)?|entrypoints/(.*/)?cli_args"
    r"|model_executor/layers/quantization/__init__)\.py",
    "sglang": r"sglang/srt/(server_args|arg_groups/fields/\w+|arg_groups/choices)\.py",
}
#: Constants that list the values of an argument whose type allows any text.
_VALUES: Final = {"--quantization": "QuantizationMethods"}
_TEXTS: Final = {"int": "int", "float": "float", "str": "str"}


@dataclass
class Modules:
    """The modules of one wheel: their trees, and the classes and constants in them by name."""

    trees: dict[str, ast.Module]
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)
            for name, value in (pair for node in tree.body for pair in _assigned(node)):
                self.constants.setdefault(name, value)

    def fields(self, name: str) -> dict[str, tuple[ast.expr, ast.expr | None]]:
        """Return annotation and default of each field of a class, with those of its bases."""
        own = self.classes.get(name)
        if own is None:
            return {}
        known: dict[str, tuple[ast.expr, ast.expr | None]] = {}
        for base in own.bases:
            known |= self.fields(base.id) if isinstance(base, ast.Name) else {}
        for node in own.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                known[node.target.id] = (node.annotation, node.value)
        return known


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from ((x.id, node.value) for x in node.targets if isinstance(x, ast.Name))
    elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
        yield node.target.id, node.value


def read_wheel(path: Path, engine: str) -> tuple[str, Modules]:
    """Return the version of a wheel and its modules that have arguments."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(_PATHS[engine], name)]
        trees = {name: ast.parse(archive.read(name)) for name in names}
    return path.name.split("-")[1], Modules(trees)


def value_of(node: ast.expr | None, modules: Modules, owner: str = "") -> Any:  # noqa: ANN401, PLR0911 - any value of a syntax tree
    """Return the value of an expression as far as the tree says it, else UNKNOWN."""
    if node is None:
        return UNKNOWN
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        pass
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return _default(node.value.id, node.attr, modules)
    if isinstance(node, ast.Name) and node.id in modules.constants:
        return value_of(modules.constants[node.id], modules)
    if isinstance(node, ast.Call):
        return _called(node, modules, owner)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [value_of(x, modules) for x in (node.left, node.right)]
        return UNKNOWN if UNKNOWN in parts else parts[0] + parts[1]
    return UNKNOWN


def _called(node: ast.Call, modules: Modules, owner: str) -> Any:  # noqa: ANN401, PLR0911 - any value of a syntax tree
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    keywords = {x.arg: x.value for x in node.keywords}
    if name == "get_field" and len(node.args) == 2 and isinstance(node.args[0], ast.Name):
        return _default(node.args[0].id, str(value_of(node.args[1], modules)), modules)
    if name == "_declared_default" and node.args:
        return _default("*", str(value_of(node.args[0], modules)), modules)
    if name in {"Field", "field"}:
        given = keywords.get("default") or (node.args[0] if node.args else None)
        factory = keywords.get("default_factory")
        if isinstance(factory, ast.Name) and factory.id in {"list", "dict", "set"}:
            return [] if factory.id != "dict" else {}
        if isinstance(factory, ast.Lambda):
            return value_of(factory.body, modules, owner)
        return value_of(given, modules, owner)
    if name in {"list", "sorted"} and len(node.args) == 1:
        inner = value_of(node.args[0], modules)
        return list(inner) if isinstance(inner, list | tuple) else UNKNOWN
    return UNKNOWN


def _default(owner: str, name: str, modules: Modules) -> Any:  # noqa: ANN401 - any value of a syntax tree
    owners = list(modules.classes) if owner == "*" else [owner]
    for candidate in owners:
        known = modules.fields(candidate)
        if name in known:
            return value_of(known[name][1], modules, candidate)
    return UNKNOWN


def described(annotation: ast.expr, modules: Modules) -> dict[str, Any]:
    """Return what an annotation says of a value: its type, and its choices where it is a Literal."""
    names = {x.id for x in ast.walk(annotation) if isinstance(x, ast.Name)}
    strings = {x.value for x in ast.walk(annotation) if isinstance(x, ast.Constant)}
    expanded = [annotation]
    for name in sorted(names):
        if name in modules.constants and name not in modules.classes:
            expanded.append(modules.constants[name])
            names |= {x.id for x in ast.walk(modules.constants[name]) if isinstance(x, ast.Name)}
    choices = [value for node in expanded for value in _literals(node, modules)]
    if "bool" in names:
        return {"type": "bool"}
    if choices:
        return {"type": "str", "choices": choices}
    listed = names & {"list", "List", "tuple", "set"}
    if listed and "dict" not in names:
        return {"type": "list"}
    for name in ("int", "float", "dict", "Dict", "str"):
        if name in names or name in strings:
            return {"type": _TEXTS.get(name, "json")}
    return {"type": "json" if names & set(modules.classes) else "str"}


def _literals(node: ast.expr, modules: Modules) -> Iterator[Any]:
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Subscript)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "Literal"
        ):
            values = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
            for value in values:
                if isinstance(value, ast.Constant):
                    yield value.value
                elif isinstance(value, ast.Starred | ast.Subscript | ast.Name):
                    yield from _literals(
                        modules.constants.get(getattr(value, "id", ""), ast.Constant(None)), modules
                    )


def entry(flags: Iterable[str], about: Mapping[str, Any], default: object) -> dict[str, Any]:
    """Return one argument as the list has it; the first long flag is its name."""
    flags = list(dict.fromkeys(flags))
    long = [flag for flag in flags if flag.startswith("--")]
    made: dict[str, Any] = {
        "flag": (long or flags)[0],
        **{k: v for k, v in about.items() if v is not UNKNOWN},
    }
    aliases = [flag for flag in flags if flag != made["flag"]]
    if aliases:
        made["aliases"] = aliases
    if default is not UNKNOWN and default != ...:
        made["default"] = sorted(default) if isinstance(default, set) else default
    return made


def _call_entry(call: ast.Call, modules: Modules, groups: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the argument of a call of ``add_argument``."""
    flags = [x.value for x in call.args if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    flags = [flag for flag in flags if flag.startswith("-")]
    if not flags:
        return None
    about: dict[str, Any] = {"type": "str"}
    default: Any = UNKNOWN
    keywords = {x.arg: x.value for x in call.keywords if x.arg}
    for spread in (x.value for x in call.keywords if x.arg is None):
        for part in spread.values if isinstance(spread, ast.Dict) else [spread]:
            if (
                isinstance(part, ast.Subscript)
                and isinstance(part.value, ast.Name)
                and part.value.id in groups
            ):
                owner, name = groups[part.value.id], str(value_of(part.slice, modules))
                known = modules.fields(owner)
                if name in known:
                    about, default = (
                        described(known[name][0], modules),
                        value_of(known[name][1], modules, owner),
                    )
        if isinstance(spread, ast.Dict):
            keywords |= {
                str(k.value): v
                for k, v in zip(spread.keys, spread.values, strict=True)
                if isinstance(k, ast.Constant)
            }
    return entry(flags, {**about, **_keywords(keywords, modules)}, _given(keywords, default, modules))


def _given(keywords: Mapping[str, ast.expr], default: object, modules: Modules) -> object:
    action = _action(keywords)
    if "default" in keywords:
        return value_of(keywords["default"], modules)
    return False if action in {"store_true", "DeprecatedStoreTrueAction"} else default


def _action(keywords: Mapping[str, ast.expr]) -> str:
    node = keywords.get("action")
    return (
        str(node.value) if isinstance(node, ast.Constant) else getattr(node, "id", getattr(node, "attr", ""))
    )


def _keywords(keywords: Mapping[str, ast.expr], modules: Modules) -> dict[str, Any]:
    """Return what the keywords of ``add_argument`` or of ``Arg`` say of an argument."""
    about: dict[str, Any] = {}
    action = _action(keywords)
    if action in {"store_true", "store_false", "DeprecatedStoreTrueAction", "DeprecatedAction", "version"}:
        about["type"] = "flag"
    elif action == "BooleanOptionalAction":
        about["type"] = "bool"
    if action.startswith("Deprecated"):
        about["deprecated"] = True
    kind = keywords.get("type")
    if isinstance(kind, ast.Name) and "type" not in about:
        integers = {"int", "human_readable_int", "human_readable_int_or_auto", "nullable_int"}
        about["type"] = (
            "int" if kind.id in integers else _TEXTS.get(kind.id, "json" if "json" in kind.id else "str")
        )
    elif isinstance(kind, ast.Attribute) and kind.attr == "loads":
        about["type"] = "json"
    if "nargs" in keywords:
        count = value_of(keywords["nargs"], modules)
        about |= {"type": "list"} if count in {"+", "*"} else {"optional": True} if count == "?" else {}
    choices = value_of(keywords.get("choices"), modules)
    if isinstance(choices, list | tuple):
        about["choices"] = list(choices)
    return about


def vllm_arguments(modules: Modules) -> Iterator[dict[str, Any]]:
    """Yield the arguments of ``vllm serve``."""
    for path, tree in modules.trees.items():
        if not path.endswith(("arg_utils.py", "cli_args.py")):
            continue
        groups = {
            name: value.args[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for name, value in _assigned(node)
            if isinstance(value, ast.Call)
            and getattr(value.func, "id", "") == "get_kwargs"
            and value.args
            and isinstance(value.args[0], ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                made = _call_entry(node, modules, groups)
                if made:
                    yield made
    for owner in ("BaseFrontendArgs", "FrontendArgs"):
        for name, (annotation, default) in modules.fields(owner).items():
            flag = "--" + name.replace("_", "-")
            yield entry([flag], described(annotation, modules), value_of(default, modules, owner))


def sglang_arguments(modules: Modules) -> Iterator[dict[str, Any]]:
    """Yield the arguments of ``sglang.launch_server``."""
    for path, tree in modules.trees.items():
        if path.endswith("server_args.py"):
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                    made = _call_entry(node, modules, {})
                    if made:
                        yield made
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for name, (annotation, default) in modules.fields(node.name).items():
                    made = _annotated(name, annotation, default, modules)
                    if made:
                        yield made


def _annotated(
    name: str, annotation: ast.expr, default: ast.expr | None, modules: Modules
) -> dict[str, Any] | None:
    """Return the argument of a field of the form ``A[type, help]`` or ``A[type, Arg(...)]``."""
    if not (isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "A"):
        return None
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    calls = [x for x in parts[1:] if isinstance(x, ast.Call) and getattr(x.func, "id", "") == "Arg"]
    if not calls and not any(isinstance(x, ast.Constant | ast.JoinedStr) for x in parts[1:]):
        return None
    keywords = {x.arg: x.value for call in calls for x in call.keywords if x.arg}
    if value_of(keywords.get("no_cli"), modules) is True:
        return None
    own = value_of(keywords.get("cli_name"), modules)
    flag = own if isinstance(own, str) else "--" + name.replace("_", "-")
    aliases = value_of(keywords.get("aliases"), modules)
    about = described(parts[0], modules)
    about["type"] = "flag" if about["type"] == "bool" else about["type"]
    flags = [flag, *(aliases if isinstance(aliases, list) else ())]
    return entry(flags, {**about, **_keywords(keywords, modules)}, value_of(default, modules))


def tabulated(engine: str, wheels: Iterable[Path]) -> dict[str, Any]:
    """Return the lists of several versions: each argument with the versions between which it is the same."""
    read = vllm_arguments if engine == "vllm" else sglang_arguments
    versions: dict[str, dict[str, dict[str, Any]]] = {}
    for version, modules in sorted((read_wheel(path, engine) for path in wheels), key=lambda x: _order(x[0])):
        listed: dict[str, dict[str, Any]] = {}
        for argument in read(modules):
            values = modules.constants.get(_VALUES.get(argument["flag"], ""))
            if values is not None and "choices" not in argument:
                argument["known"] = list(_literals(values, modules))
            listed.setdefault(argument["flag"], argument)
        versions[version] = listed
    names = list(versions)
    arguments: list[dict[str, Any]] = []
    for flag in sorted({flag for listed in versions.values() for flag in listed}):
        arguments.extend(_spans(flag, versions, names))
    return {"engine": engine, "versions": names, "arguments": arguments}


def _spans(
    flag: str, versions: Mapping[str, Mapping[str, Any]], names: list[str]
) -> Iterator[dict[str, Any]]:
    last: dict[str, Any] | None = None
    for name in names:
        current = versions[name].get(flag)
        if last is not None and current == {k: v for k, v in last.items() if k not in {"first", "last"}}:
            last["last"] = name
            continue
        if last is not None:
            yield last
        last = {**current, "first": name, "last": name} if current else None
    if last is not None:
        yield last


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", version)))


def written(table: Mapping[str, Any], source: str) -> str:
    """Return the table as JSON with one argument a line."""
    head = {"engine": table["engine"], "source": source, "versions": table["versions"]}
    lines = [f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()]
    rows = ",\n".join(
        f"  {json.dumps(row, separators=(',', ':'), default=str)}" for row in table["arguments"]
    )
    return "{\n" + "".join(lines) + f' "arguments": [\n{rows}\n ]\n}}\n'


def main() -> None:
    """Read the command line, and write the list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=sorted(_PATHS))
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    table = tabulated(given.engine, given.wheels)
    source = f"{given.engine} wheels of {', '.join(table['versions'])}, read as syntax trees"
    given.output.write_text(written(table, source), encoding="utf-8")


if __name__ == "__main__":
    main()
