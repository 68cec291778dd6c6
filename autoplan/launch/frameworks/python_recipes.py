"""Recipes in Python, of Megatron Bridge and NeMo 2: what they set, read from their syntax and never run.

Read are arguments by name, attributes that are assigned, keys of dictionaries, and defaults of arguments,
with values that are constants or follow from some by arithmetic. What comes from elsewhere stays open.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from autoplan.catalog import entry_names
from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import assembled, with_devices
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.python_program import parsed_program
from autoplan.launch.frameworks.megatron.argument_keys import CORE_KEYS, Key, add_key, key_of
from autoplan.launch.frameworks.megatron.arguments import Arguments
from autoplan.launch.frameworks.megatron.read_layout import read_layout

_TABLE: Final = interface("megatron-bridge").data["recipes"]
#: Arguments of Megatron-LM by the names that recipes have for them.
_KEYS: Final[Mapping[str, Key]] = {
    **CORE_KEYS,
    **{name: key_of(ours) for name, ours in _TABLE["names"].items()},
}
_NODES, _DEVICES = frozenset(_TABLE["nodes"]), frozenset(_TABLE["devices"])
_WANTED: Final = frozenset({*_KEYS, *_NODES, *_DEVICES, *_TABLE["dtypes"]})
_PRECISIONS: Final[Mapping[str, str]] = _TABLE["precisions"]
_MODEL: Final = re.compile(
    r"^((?:llama|qwen|mixtral|mistral|gemma|deepseek|gpt_oss|nemotron)\w*?_?\d*\.?\d*[bB](?:_a\d+b)?)(?:_|$)"
)

_SIGN: Final = re.compile(r"(?m)^\s*(?:from|import)\s+(?:megatron\.bridge|nemo\b|nemo_run|nemo\.)")
#: Programs around the Hugging Face Trainer, which speak of parallelism otherwise.
_TRAINER: Final = re.compile(r"\b(?:TrainingArguments|(?:SFT|DPO|KTO|ORPO|GRPO)Config)\s*\(")
#: Parts of names that a program with degrees has.
_HINTS: Final = ("parallel_size", "parallelism", "tp_size")
_CHOICE: Final = "FUNCTION"
#: Where the rank of adapters is among what a program sets.
_RANK: Final = "LoRA.dim"
_BINARY: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
}
#: A value that is not known.
_UNKNOWN: Final = object()


@dataclass(slots=True)
class _Settings:
    """What one function sets by name, in order, and what it names of formats and models."""

    values: dict[str, list[Written]] = field(default_factory=dict)
    formats: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)


def is_python(file: LaunchFile) -> bool:
    """Return whether a file is a program in Python that builds a recipe."""
    signed = _SIGN.search(file.text) is not None
    named = signed or (file.name.endswith(".py") and _TRAINER.search(file.text) is None)
    return file.values is None and named and any(name in file.text for name in _HINTS)


def read_recipe(framework: str, file: LaunchFile) -> Configuration:
    """Return what a recipe sets; raises SpecError for what is no Python, and for several recipes."""
    tree = parsed_program(file)
    functions = {name: _settings(tree, body, file) for name, body in _functions(tree)}
    chosen = file.variables.get(_CHOICE)
    if chosen is not None and chosen not in functions:
        raise SpecError([Problem(f"it has no function {chosen[:60]!r}", _CHOICE, file.name)])
    kept = {chosen: functions[chosen], "": functions[""]} if chosen else functions
    joint = _joined({name: one for name, one in kept.items() if one.values}, file)
    return _configuration(framework, file, joint)


def _functions(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt] | ast.FunctionDef]]:
    """Yield the functions of a program by name; what is outside of them has no name."""
    yield "", [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node


def _settings(tree: ast.Module, body: list[ast.stmt] | ast.FunctionDef, file: LaunchFile) -> _Settings:
    """Return what a function sets; names have the values of its arguments, or of the program."""
    constants = _constants([node for node in tree.body if isinstance(node, ast.Assign)], {})
    constants |= {name: _parsed(text) for name, text in file.variables.items()}
    if isinstance(body, ast.FunctionDef):
        constants |= _defaults(body, constants) | {n: _parsed(t) for n, t in file.variables.items()}
    nodes = body.body if isinstance(body, ast.FunctionDef) else body
    constants = _constants(
        [n for n in ast.walk(ast.Module(nodes, [])) if isinstance(n, ast.Assign)], constants
    )
    found = _Settings()
    for node in (inner for statement in nodes for inner in ast.walk(statement)):
        _add_names(found, node)
        rank = _adapter_rank(node)
        if rank is not None:
            written = Written(_value(rank, constants), rank.lineno, ast.unparse(node)[:80])
            found.values.setdefault(_RANK, []).append(written)
        for name, value in _named_values(node):
            if name in _WANTED:
                text = f"{name}={ast.unparse(value)}"[:80]
                found.values.setdefault(name, []).append(
                    Written(_value(value, constants), value.lineno, text)
                )
    return found


def _adapter_rank(node: ast.AST) -> ast.expr | None:
    """Return the rank of ``LoRA(dim=...)`` or ``run.Config(LoRA, dim=...)``, which adapt every product."""
    if not isinstance(node, ast.Call):
        return None
    names = {n.id for n in (node.func, *node.args) if isinstance(n, ast.Name)}
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    return keywords.get("dim") if "LoRA" in names and "target_modules" not in keywords else None


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names with values of a call, an assignment to an attribute, or a dictionary."""
    if isinstance(node, ast.Call):
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg)
    elif isinstance(node, ast.Assign):
        yield from ((t.attr, node.value) for t in node.targets if isinstance(t, ast.Attribute))
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value.rpartition(".")[2], value


def _add_names(found: _Settings, node: ast.AST) -> None:
    """Add the formats and models that a name stands for."""
    name = (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else node.value
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        else ""
    )
    if name in _PRECISIONS:
        found.formats.add(_PRECISIONS[name])
    match = _MODEL.match(name)
    entry = _entry(match[1]) if match else None
    if entry is not None:
        found.models.add(entry)


def _entry(name: str) -> str | None:
    """Return the entry of the catalogue that a recipe's name of a model stands for.

    >>> _entry("llama31_70b"), _entry("qwen3_30b_a3b"), _entry("nemotron_22b")
    ('llama3.1-70b', 'qwen3-30b-a3b', None)
    """
    dotted = re.sub(r"^(llama3)(\d)_", r"\1.\2_", name.lower())
    dotted = re.sub(r"^(qwen2)5_", r"\1.5_", dotted).replace("_", "-")
    return dotted if dotted in entry_names("model") else None


def _defaults(function: ast.FunctionDef, constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the arguments of a function that has defaults for them."""
    plain = function.args.args
    pairs = [*zip(plain[len(plain) - len(function.args.defaults) :], function.args.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d]
    without = {argument.arg: _UNKNOWN for argument in (*plain, *function.args.kwonlyargs)}
    return {**without, **{argument.arg: _value(default, constants) for argument, default in pairs}}


def _constants(nodes: list[ast.Assign], constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``constants`` with the variables that assignments give a value; one given two is not known."""
    values, counts = dict(constants), dict[str, int]()
    for node in nodes:
        for target in node.targets:
            if isinstance(target, ast.Name):
                counts[target.id] = counts.get(target.id, 0) + 1
                values[target.id] = _value(node.value, values) if counts[target.id] == 1 else _UNKNOWN
    return values


def _value(node: ast.expr, constants: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any constant of a program
    """Return the value of an expression; ``_UNKNOWN`` where it is no constant."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id, _UNKNOWN)
    if isinstance(node, ast.List | ast.Tuple):
        items = [_value(item, constants) for item in node.elts]
        return _UNKNOWN if any(item is _UNKNOWN for item in items) else items
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, constants), _value(node.right, constants)
        whole = (
            isinstance(left, int)
            and isinstance(right, int)
            and not (isinstance(node.op, ast.FloorDiv) and not right)
        )
        return _BINARY[type(node.op)](left, right) if whole else _UNKNOWN
    return _UNKNOWN


def _parsed(text: str) -> Any:  # noqa: ANN401 - any constant
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _joined(functions: Mapping[str, _Settings], file: LaunchFile) -> _Settings:
    """Return the settings of all functions together; raises SpecError where several differ."""
    joint = _Settings()
    for one in functions.values():
        joint.formats |= one.formats
        joint.models |= one.models
    for name in dict.fromkeys(name for one in functions.values() for name in one.values):
        written_values = [written for one in functions.values() for written in one.values.get(name, ())]
        certain = [written for written in written_values if written.value is not _UNKNOWN]
        different = {repr(written.value) for written in certain}
        setting = [f for f, one in functions.items() if name in one.values and f]
        if len(different) > 1 and len(setting) > 1:
            shown = ", ".join(setting[:6])
            sentence = f"functions set different values: name one with --set {_CHOICE}=NAME, such as {shown}"
            raise SpecError([Problem(sentence, name, file.name, certain[1].line)])
        joint.values[name] = certain[-1:] if len(different) == 1 else written_values[:0]
    return joint


def _configuration(framework: str, file: LaunchFile, settings: _Settings) -> Configuration:
    arguments = Arguments(file.name)
    for name, written in ((name, values[0]) for name, values in settings.values.items() if values):
        if name in _KEYS:
            add_key(arguments, _KEYS[name], name, written)
    open_names = [name for name, values in settings.values.items() if not values]
    if not arguments.given:
        raise SpecError([Problem("it sets no degrees or batches by constants", "$", file.name)])
    layers = arguments.number("layers")
    values = read_layout(arguments, layers.value if layers else None, experts=True)
    values = {key: written for key, written in values.items() if not written.default and written.line}
    devices = _devices(settings)
    if devices is not None:
        values["devices"] = devices
    values |= _precision(settings) | _adapters(settings)
    arguments.stop_at_problems()
    values = dict(with_devices(file, known_alone(values, arguments.opened)))
    notes = [*arguments.notes, "what the recipe does not set by constants is left open"]
    notes += [f"{', '.join(open_names)}: set by what is not known, left open"] if open_names else []
    model = next(iter(settings.models)) if len(settings.models) == 1 else None
    return assembled(framework, file, values, model=model, opened=arguments.opened, warnings=notes)


def _adapters(settings: _Settings) -> Fields:
    ranks = settings.values.get(_RANK, [])
    if not ranks or not isinstance(ranks[0].value, int):
        return {}
    return {"adapters": replace(ranks[0], value={"rank": ranks[0].value, "targets": "all"})}


def _precision(settings: _Settings) -> Fields:
    """Return the precision that an argument or the name of a recipe of formats says, if it is one alone."""
    said = {ours for name, names in _TABLE["dtypes"].items() for ours in _said(settings, name, names)}
    formats = said or settings.formats
    return {"precision": Written(next(iter(formats)), None, "mixed precision")} if len(formats) == 1 else {}


def _said(settings: _Settings, name: str, names: Mapping[str, str]) -> list[str]:
    return [names[str(w.value)] for w in settings.values.get(name, ()) if str(w.value) in names]


def _devices(settings: _Settings) -> Written | None:
    """Return the devices of all nodes, where both are known, or there is one node."""
    each = next((v[0] for n in _TABLE["devices"] if (v := settings.values.get(n))), None)
    named = [name for name in _TABLE["nodes"] if name in settings.values]
    nodes = next((v[0] for n in named if (v := settings.values.get(n))), None)
    whole = each is not None and isinstance(each.value, int) and each.value > 0
    if not whole or each is None or (named and (nodes is None or not isinstance(nodes.value, int))):
        return None
    return each.of(each.value * (nodes.value if nodes else 1))
