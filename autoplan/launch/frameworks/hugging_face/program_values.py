"""Values of names in a program in Python: constants, and the defaults of its arguments. It is never run.

A program that is started without arguments has their defaults, as ``argparse``, functions that are started
and data classes that ``HfArgumentParser`` or ``tyro`` fill say them. A name with two values, and one of two
parsers that differ, is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["UNKNOWN", "ProgramValues", "program_values"]

#: The mark of a value that is not known.
UNKNOWN: Final = object()
_DEEPEST: Final = 12
_SWITCHES: Final = {"store_true": False, "store_false": True}
#: What programs usually call the arguments that they got, besides the names that a parser's result has.
_PARSED: Final = frozenset({"args", "script_args", "cli_args"})
#: Functions that call another one with the words of a command, and else with its defaults.
_STARTING: Final = frozenset({"fire.Fire", "Fire", "typer.run", "tyro.cli"})
#: Functions that fill the fields of a data class with the words of a command.
_FILLING: Final = frozenset({"HfArgumentParser", "TrlParser", "cli"})


@dataclass(frozen=True, slots=True)
class ProgramValues:
    """Expressions by the name that stands for them, and the defaults of arguments, by name."""

    names: Mapping[str, Any]
    arguments: Mapping[str, Any]
    parsed: frozenset[str] = _PARSED

    def of(self, node: ast.expr, depth: int = 0) -> Any:  # noqa: ANN401 - any value of a program
        """Return the value of an expression; ``UNKNOWN`` where it is none of a constant."""
        if depth > _DEEPEST:
            return UNKNOWN
        if isinstance(node, ast.Name):
            return self._named(self.names.get(node.id, UNKNOWN), depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, depth)
        if isinstance(node, ast.UnaryOp | ast.BoolOp | ast.IfExp):
            return self._chosen(node, depth)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError):
            return UNKNOWN

    def _named(self, found: Any, depth: int) -> Any:  # noqa: ANN401 - any value of a program
        return self.of(found, depth + 1) if isinstance(found, ast.expr) else found

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:  # noqa: ANN401 - any value of a program
        """Return a type of PyTorch by its name, or the default of an argument."""
        if ast.unparse(node).startswith("torch."):
            return node.attr
        return self._named(self.arguments[node.attr], depth) if self.is_argument(node) else UNKNOWN

    def is_argument(self, node: ast.expr) -> bool:
        """Return whether an expression is an argument that the program got, such as ``args.batch_size``."""
        parsed = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        return parsed and node.value.id in self.parsed and node.attr in self.arguments  # type: ignore[attr-defined]

    def _chosen(self, node: ast.expr, depth: int) -> Any:  # noqa: ANN401 - any value of a program
        """Return the value of a negation, of a choice, or of conditions that are joined."""
        if isinstance(node, ast.UnaryOp):
            inner = self.of(node.operand, depth + 1)
            if isinstance(node.op, ast.Not):
                return UNKNOWN if inner is UNKNOWN else not inner
            number = isinstance(inner, int | float) and isinstance(node.op, ast.USub)
            return -inner if number else UNKNOWN
        if isinstance(node, ast.IfExp):
            test = self.of(node.test, depth + 1)
            return UNKNOWN if test is UNKNOWN else self.of(node.body if test else node.orelse, depth + 1)
        return self._joined(node, depth) if isinstance(node, ast.BoolOp) else UNKNOWN

    def _joined(self, node: ast.BoolOp, depth: int) -> Any:  # noqa: ANN401 - any value of a program
        value: Any = UNKNOWN
        for part in node.values:
            value = self.of(part, depth + 1)
            if value is UNKNOWN or bool(value) is isinstance(node.op, ast.Or):
                break
        return value


def program_values(tree: ast.Module, variables: Mapping[str, str]) -> ProgramValues:
    """Return the values of a program's names and arguments; ``variables`` are set from outside."""
    outside = {name: ast.Constant(text) for name, text in variables.items()}
    names: dict[str, Any] = dict(_parameters(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    names[target.id] = UNKNOWN if target.id in names else node.value
        elif isinstance(node, ast.AugAssign | ast.For) and isinstance(node.target, ast.Name):
            names[node.target.id] = UNKNOWN
    return ProgramValues({**names, **outside}, {**_arguments(tree), **outside}, _PARSED | set(_results(tree)))


def _parameters(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the defaults of the functions that a program starts: ``main()``, ``fire.Fire(main)``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    started = [c.func for c in calls if not c.args and not c.keywords]
    started += [c.args[0] for c in calls if c.args and ast.unparse(c.func) in _STARTING]
    called = {node.id for node in started if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in called:
            own = node.args
            given = own.args[len(own.args) - len(own.defaults) :]
            yield from ((arg.arg, value) for arg, value in zip(given, own.defaults, strict=True))


def _results(tree: ast.Module) -> Iterator[str]:
    """Yield the names of what a parser of arguments returns: ``args = parser.parse_args()``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = _last(node.value.func)
            if called.startswith("parse_") or called in _FILLING:
                targets = [t for one in node.targets for t in getattr(one, "elts", [one])]
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _arguments(tree: ast.Module) -> dict[str, Any]:
    """Return the defaults of the arguments of all parsers and data classes, by name."""
    found: dict[str, Any] = {}
    parsed: dict[str, Any] = {}
    filled = any(_last(node.func) in _FILLING for node in ast.walk(tree) if isinstance(node, ast.Call))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) == "add_argument":
            for name, default in _argument(node):
                # The first argument of a name says its default.
                parsed.setdefault(name, default)
        elif isinstance(node, ast.ClassDef) and filled and any(map(_is_dataclass, node.decorator_list)):
            for name, default in _fields(node):
                found[name] = UNKNOWN if name in found and not _same(found[name], default) else default
        elif isinstance(node, ast.Assign | ast.AugAssign):
            # What a program changes itself is no default any more.
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {t.attr: UNKNOWN for t in targets if isinstance(t, ast.Attribute)}
    both = dict.fromkeys(found.keys() & parsed.keys(), UNKNOWN)
    return {**parsed, **found, **both}


def _argument(call: ast.Call) -> Iterator[tuple[str, Any]]:
    """Yield the name and the default of an argument of ``argparse``."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    flags = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
    named = given.get("dest")
    longest = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
    name = str(named.value) if isinstance(named, ast.Constant) else longest.lstrip("-").replace("-", "_")
    action = given.get("action")
    switched = _SWITCHES.get(str(action.value)) if isinstance(action, ast.Constant) else None
    if name:
        without = ast.Constant(switched) if switched is not None else UNKNOWN
        yield name, given.get("default", without)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a data class with their defaults."""
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        value: Any = UNKNOWN if line.value is None else line.value
        if isinstance(line.value, ast.Call):
            given = {keyword.arg: keyword.value for keyword in line.value.keywords}
            value = given.get("default", UNKNOWN) if _last(line.value.func) == "field" else UNKNOWN
        yield line.target.id, value


def _is_dataclass(node: ast.expr) -> bool:
    return _last(node) == "dataclass"


def _last(node: ast.expr) -> str:
    inner = node.func if isinstance(node, ast.Call) else node
    return inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - any value of a program
    both = isinstance(one, ast.expr) and isinstance(other, ast.expr)
    return ast.dump(one) == ast.dump(other) if both else one is other
