"""Templates of Helm: text with actions of Go's text/template, parsed and filled in with values.

Read are the actions and functions that charts of engines use; any other one raises ``TemplateError``, so that
a chart is read as Helm renders it or not at all. Nothing is executed. Sources: Go 1.22 text/template; Helm
3.15 docs/chart_template_guide; Sprig 3.2 (functions in ``helm_charts``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

__all__ = ["Action", "Renderer", "TemplateError", "is_true", "parse_template"]

_ACTION: Final = re.compile(
    r"\{\{(-?)\s*(/\*.*?\*/|(?:`[^`]*`|\"(?:\\.|[^\"\\])*\"|[^}\"`]|\}(?!\}))*?)\s*(-?)\}\}", re.DOTALL
)
_TOKEN: Final = re.compile(
    r"\s*(?:(\"(?:\\.|[^\"\\])*\"|`[^`]*`)|(-?\d+(?:\.\d+)?)(?![\w.])|(:=|=|,|\||\(|\))|(\.?[\w$]*(?:\.\w+)*\.?)|(.))"
)
_MOST_STEPS: Final = 20_000
_DEEPEST: Final = 60
_CONSTANTS: Final = {"true": True, "false": False, "nil": None}
_BLOCKS: Final = frozenset({"if", "range", "with", "define", "block"})


class TemplateError(Exception):
    """A part of a template that is not read, and its line."""

    def __init__(self, sentence: str, line: int) -> None:
        super().__init__(sentence)
        self.sentence, self.line = sentence, line


@dataclass(slots=True)
class Action:
    """A text, an output, or a block with its branches: each a condition and what is under it."""

    kind: str
    text: str
    line: int
    branches: list[tuple[str, list[Action]]] = field(default_factory=list)


def parse_template(text: str) -> list[Action]:
    """Return the actions of a template; raises TemplateError where blocks are not closed."""
    pieces = list(_pieces(text))
    actions, rest = _block(pieces, 0)
    if rest < len(pieces):
        raise TemplateError(f"{pieces[rest][0]} closes nothing", pieces[rest][1])
    return actions


def _pieces(text: str) -> Iterator[tuple[str, int, bool]]:
    """Yield texts and actions in order, with their lines; texts are trimmed as actions say."""
    at, trim = 0, False
    for match in _ACTION.finditer(text):
        before = text[at : match.start()]
        before = before.lstrip() if trim else before
        yield (before.rstrip() if match[1] else before), text.count("\n", 0, at) + 1, False
        yield match[2].strip(), text.count("\n", 0, match.start()) + 1, True
        at, trim = match.end(), bool(match[3])
    yield (text[at:].lstrip() if trim else text[at:]), text.count("\n", 0, at) + 1, False


def _block(pieces: Sequence[tuple[str, int, bool]], at: int, depth: int = 0) -> tuple[list[Action], int]:
    """Return the actions up to the end of a block, and the place of what ends it."""
    actions: list[Action] = []
    while at < len(pieces):
        text, line, is_action = pieces[at]
        word = text.split(maxsplit=1)[0] if text.split() else ""
        if not is_action or text.startswith("/*"):
            actions += [] if is_action or not text else [Action("text", text, line)]
            at += 1
        elif word in {"end", "else"}:
            return actions, at
        elif word in _BLOCKS:
            if depth > _DEEPEST:
                raise TemplateError("nested too deeply", line)
            opened, at = _branches(pieces, at, word, depth)
            actions.append(opened)
        else:
            actions.append(Action("output", text, line))
            at += 1
    return actions, at


def _branches(pieces: Sequence[tuple[str, int, bool]], at: int, word: str, depth: int) -> tuple[Action, int]:
    """Return a block with its branches, and the place behind its end."""
    text, line, _ = pieces[at]
    block = Action(word, text.partition(word)[2].strip(), line)
    condition = block.text
    while True:
        body, at = _block(pieces, at + 1, depth + 1)
        block.branches.append((condition, body))
        if at >= len(pieces):
            raise TemplateError(f"{{{{ {text[:40]} }}}} is not closed", line)
        ended = pieces[at][0]
        if ended.split()[0] == "end":
            return block, at + 1
        condition = re.sub(r"^else\s*(?:if\b)?", "", ended).strip()


def is_true(value: object) -> bool:
    """Return whether a value is not empty, as Go's templates decide it."""
    return bool(value)


@dataclass(slots=True)
class Renderer:
    """Fills templates in: functions by name, and templates that ``define`` has named."""

    functions: Mapping[str, Callable[..., Any]]
    defined: dict[str, list[Action]] = field(default_factory=dict)
    steps: int = 0

    def define(self, actions: Sequence[Action]) -> None:
        """Keep the templates that a file names."""
        for action in actions:
            if action.kind == "define":
                self.defined[_unquoted(action.text)] = action.branches[0][1]

    def render(self, actions: Sequence[Action], scope: _Scope) -> str:
        """Return the text of actions with values filled in."""
        return "".join(self._action(action, scope) for action in actions)

    def whole(self, actions: Sequence[Action], values: Mapping[str, Any]) -> str:
        """Return the text of a file."""
        return self.render(actions, _Scope(values, {"$": values}))

    def include(self, name: str, values: Any, line: int) -> str:  # noqa: ANN401 - any value of a template
        """Return the text of a template that has a name."""
        if name not in self.defined:
            raise TemplateError(f"the template {name!r} is not defined here", line)
        return self.render(self.defined[name], _Scope(values, {"$": values}))

    def _action(self, action: Action, scope: _Scope) -> str:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise TemplateError("too many steps", action.line)
        if action.kind == "text":
            return action.text
        if action.kind == "define":
            return ""
        if action.kind == "output":
            return self._output(action, scope)
        return _loop(self, action, scope) if action.kind == "range" else _chosen(self, action, scope)

    def _output(self, action: Action, scope: _Scope) -> str:
        assigned = re.match(r"\$(\w+)\s*(:=|=)\s*(.*)", action.text, re.DOTALL)
        if assigned is not None:
            scope.assign(assigned[1], self.value(assigned[3], scope, action.line), new=assigned[2] == ":=")
            return ""
        if action.text.startswith("template "):
            words = f"include {action.text.removeprefix('template ')}"
            return str(self.value(words, scope, action.line))
        return shown(self.value(action.text, scope, action.line))

    def value(self, text: str, scope: _Scope, line: int) -> Any:  # noqa: ANN401 - any value of a template
        """Return the value of a pipeline."""
        tokens = _tokens(text, line)
        value, at = self._pipeline(tokens, 0, scope, line)
        if at < len(tokens):
            raise TemplateError(f"{text[:60]!r} is not read", line)
        return value

    def _pipeline(self, tokens: list[str], at: int, scope: _Scope, line: int) -> tuple[Any, int]:
        value, at = self._command(tokens, at, scope, line, ())
        while at < len(tokens) and tokens[at] == "|":
            value, at = self._command(tokens, at + 1, scope, line, (value,))
        return value, at

    def _command(
        self, tokens: list[str], at: int, scope: _Scope, line: int, behind: tuple[Any, ...]
    ) -> tuple[Any, int]:
        """Return the value of a function with its arguments, or of one operand."""
        name = tokens[at] if at < len(tokens) else ""
        if name in self.functions or name == "include":
            arguments, at = self._operands(tokens, at + 1, scope, line)
            return self._called(name, [*arguments, *behind], line), at
        if re.fullmatch(r"[a-zA-Z]\w*", name) and name not in _CONSTANTS:
            raise TemplateError(f"the function {name} is not read", line)
        value, at = self._operand(tokens, at, scope, line)
        return value, at

    def _operands(self, tokens: list[str], at: int, scope: _Scope, line: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while at < len(tokens) and tokens[at] not in {"|", ")"}:
            value, at = self._operand(tokens, at, scope, line)
            found.append(value)
        return found, at

    def _operand(self, tokens: list[str], at: int, scope: _Scope, line: int) -> tuple[Any, int]:
        if at >= len(tokens):
            raise TemplateError("a value is missing", line)
        first = tokens[at]
        if first == "(":
            value, at = self._pipeline(tokens, at + 1, scope, line)
            if at >= len(tokens) or tokens[at] != ")":
                raise TemplateError("a parenthesis is not closed", line)
            at += 1
            if at < len(tokens) and re.fullmatch(r"(?:\.\w+)+", tokens[at]):
                return _field(value, tokens[at]), at + 1
            return value, at
        return self._atom(first, scope, line), at + 1

    def _atom(self, token: str, scope: _Scope, line: int) -> Any:  # noqa: ANN401 - any value of a template
        if token[:1] in {'"', "`"}:
            return _unquoted(token)
        if re.fullmatch(r"-?\d+(?:\.\d+)?", token):
            return float(token) if "." in token else int(token)
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if token in self.functions:
            return self._called(token, [], line)
        if not re.fullmatch(r"(?:\$\w*)?(?:\.\w+)*\.?", token):
            raise TemplateError(f"{token!r} is not read", line)
        name, _, path = token.partition(".")
        return _field(scope.get(name, line) if name else scope.dot, path)

    def _called(self, name: str, arguments: list[Any], line: int) -> Any:  # noqa: ANN401 - any value
        if name == "include":
            return self.include(str(arguments[0]), arguments[1] if len(arguments) > 1 else None, line)
        if name == "tpl":
            return self.whole(parse_template(str(arguments[0])), arguments[1])
        try:
            return self.functions[name](*arguments)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError) as error:
            raise TemplateError(f"{name}: {error!s:.80}", line) from error


def _chosen(renderer: Renderer, action: Action, scope: _Scope) -> str:
    """Return the text of the first branch whose condition is not empty."""
    for condition, body in action.branches:
        inner = scope.inner()
        if not condition:
            return renderer.render(body, inner)
        assigned = re.match(r"\$(\w+)\s*:=\s*(.*)", condition, re.DOTALL)
        value = renderer.value(assigned[2] if assigned else condition, inner, action.line)
        if assigned:
            inner.assign(assigned[1], value, new=True)
        if is_true(value):
            inner.dot = value if action.kind == "with" else inner.dot
            return renderer.render(body, inner)
    return ""


def _loop(renderer: Renderer, action: Action, scope: _Scope) -> str:
    condition, body = action.branches[0]
    named = re.match(r"(?:\$(\w+)\s*,\s*)?\$(\w+)\s*:=\s*(.*)", condition, re.DOTALL)
    over = renderer.value(named[3] if named else condition, scope, action.line)
    items = sorted(over.items()) if isinstance(over, Mapping) else list(enumerate(over or ()))
    texts = []
    for key, value in items:
        inner = scope.inner()
        inner.dot = value
        if named:
            inner.assign(named[2], value, new=True)
            if named[1]:
                inner.assign(named[1], key, new=True)
        texts.append(renderer.render(body, inner))
    if not items and len(action.branches) > 1:
        return renderer.render(action.branches[1][1], scope.inner())
    return "".join(texts)


@dataclass(slots=True)
class _Scope:
    """The value of the dot, and variables by name; an inner scope may assign those of an outer one."""

    dot: Any
    names: dict[str, Any]
    outer: _Scope | None = None

    def inner(self) -> _Scope:
        return replace(self, names={}, outer=self)

    def get(self, name: str, line: int) -> Any:  # noqa: ANN401 - any value of a template
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise TemplateError(f"{name} is not set", line)

    def assign(self, name: str, value: Any, *, new: bool) -> None:  # noqa: ANN401 - any value of a template
        scope: _Scope | None = self
        while not new and scope is not None and f"${name}" not in scope.names:
            scope = scope.outer
        (scope or self).names[f"${name}"] = value


def _field(value: Any, path: str) -> Any:  # noqa: ANN401 - any value of a template
    for key in (key for key in path.split(".") if key):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _tokens(text: str, line: int) -> list[str]:
    found: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match[5] or match.end() == at:
            raise TemplateError(f"{text[:60]!r} is not read", line)
        found.append(next(part for part in match.groups() if part))
        at = match.end()
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def _unquoted(token: str) -> str:
    token = token.strip()
    if token[:1] == "`":
        return token[1:-1]
    signs = {"n": "\n", "t": "\t"}
    return re.sub(r"\\(.)", lambda match: signs.get(match[1], match[1]), token[1:-1])


def shown(value: object) -> str:
    """Return a value as Go's templates show it.

    >>> shown(True), shown(0.9), shown(None)
    ('true', '0.9', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) else str(int(value))
    if isinstance(value, list):
        return f"[{' '.join(map(shown, value))}]"
    return str(value)
