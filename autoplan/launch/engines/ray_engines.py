"""Engines that programs of Python start, and applications of Ray Serve's LLMs in YAML. Nothing is run.

An application of Ray may name a builder of its own, whose arguments are configurations of its LLMs all the
same: ``llm_configs``, ``llm_config``, or ``prefill_config`` and ``decode_config``. Source: Ray 2.52
``python/ray/llm/_internal/serve``: ``core/configs/llm_config.py``, and ``builder.py`` of
``serving_patterns/prefill_decode``. Programs such as those of Modal start a list of words: followed are
constants of the module and of the function, ``str`` and f-strings of them, variables of the environment with
their defaults, and words that are added to the list. What else decides a word is unknown.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from autoplan.launch.engines.container_words import (
    CHARTS,
    ROLES,
    TABLES,
    Around,
    ServedContainer,
    Token,
    counted,
    served,
    start_words,
)
from autoplan.launch.job_manifests import Nodes, environment_of, items_of, line_of, mapping_of, scalar_of
from autoplan.launch.scripts.pieces import Unknown, Word
from autoplan.launch.scripts.script import Command, Script

#: Configurations of Ray's LLMs, and vLLM's own arguments in a program that Ray Serve deploys.
_CONFIG: Final = re.compile(r"\bLLMConfig\s*\(")
_IMPORT: Final = re.compile(r"(?m)^\s*(?:from\s+ray\.|import\s+ray\b)")
_DEPLOYED: Final = re.compile(r"(?m)^\s*from\s+ray\s+import\s+(?:\w+,\s*)*serve\b")
_ARGUMENTS: Final = re.compile(r"=\s*(?:Async)?EngineArgs\s*\(")
_CALLS: Final = frozenset({"LLMConfig", "AsyncEngineArgs", "EngineArgs"})
_UNKNOWN: Final = object()
#: What looks a variable of the environment up.
_LOOKING_UP: Final = frozenset({"os.environ.get", "os.getenv", "getenv", "environ.get"})
_DEEPEST: Final = 20
#: Arguments that each of a data-parallel engine's replicas has.
_OFF: Final = frozenset({"false", "null", "~", "none"})


def is_ray_program(text: str) -> bool:
    r"""Return whether a program in Python makes configurations of Ray's LLMs.

    >>> is_ray_program("from ray.serve.llm import LLMConfig\\nconfig = LLMConfig(engine_kwargs={})")
    True
    """
    deployed = _DEPLOYED.search(text) is not None and _ARGUMENTS.search(text) is not None
    return deployed or (_CONFIG.search(text) is not None and _IMPORT.search(text) is not None)


def ray_environment(roots: Sequence[yaml.Node]) -> dict[str, str] | None:
    """Return the variables that a RayService sets for workers and applications; None without one."""
    if not any(scalar_of(mapping_of(root).get("kind")) == "RayService" for root in roots):
        return None
    found: dict[str, str] = {}
    for spec in (mapping_of(mapping_of(root).get("spec")) for root in roots):
        workers = items_of(mapping_of(spec.get("rayClusterConfig")).get("workerGroupSpecs"))
        pods = [mapping_of(mapping_of(mapping_of(w).get("template")).get("spec")) for w in workers]
        for container in (c for pod in pods for c in items_of(pod.get("containers"))):
            found |= environment_of(mapping_of(container).get("env"))
        inner = inner_document(spec["serveConfigV2"])[0] if "serveConfigV2" in spec else {}
        for application in items_of(inner.get("applications")):
            environment = mapping_of(mapping_of(application).get("runtime_env"))
            found |= environment_of(environment.get("env_vars"))
    return found


def ray_engines(values: Nodes, environment: Mapping[str, str] | None) -> Iterator[ServedContainer]:
    """Yield the engines of a RayService, of a file of Ray Serve, or of a program in a ConfigMap."""
    text = mapping_of(values.get("spec")).get("serveConfigV2")
    root, above = (values, 0) if text is None else inner_document(text)
    for application in items_of(root.get("applications")):
        arguments = mapping_of(mapping_of(application).get("args"))
        listed = [("", node) for node in items_of(arguments.get("llm_configs"))]
        named = [(name, arguments[name]) for name in CHARTS["ray_configs"] if name in arguments]
        for name, config in (*listed, *named):
            role = name.removesuffix("_config")
            yield from _of_config(mapping_of(config), role if role in ROLES else None, above)
    if scalar_of(values.get("kind")) == "ConfigMap":
        for node in mapping_of(values.get("data")).values():
            program = scalar_of(node) or ""
            if is_ray_program(program):
                yield from program_engines(program, environment, line_of(node) - 1)


def _of_config(stated: Nodes, role: str | None, above: int) -> Iterator[ServedContainer]:
    """Yield the engine of one configuration; nothing of one without a model."""
    model = mapping_of(stated.get("model_loading_config"))
    source = next((model[key] for key in CHARTS["ray_models"] if scalar_of(model.get(key))), None)
    if source is None:
        return
    tokens = [*start_words("vllm", source), *key_words(stated.get("engine_kwargs"))]
    deployment = mapping_of(stated.get("deployment_config"))
    scaled = mapping_of(deployment.get("autoscaling_config"))
    copies = counted(deployment.get("num_replicas")) or counted(scaled.get("min_replicas")) or 1
    lowered = [replace(token, line=token.line + above) for token in tokens]
    yield served(lowered, Around(copies, None, role), {})


def inner_document(node: yaml.Node) -> tuple[Nodes, int]:
    """Return the mapping that a block of text holds, and the lines of the manifest above it."""
    try:
        inner = yaml.compose(scalar_of(node) or "", Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return {}, 0
    return mapping_of(inner), line_of(node) - 1


def key_words(node: yaml.Node | None) -> list[Token]:
    """Return a mapping of an engine's arguments as its words; a switch that is off is left out."""
    tokens: list[Token] = []
    for key, value in mapping_of(node).items():
        tokens += _words(key, _text(value), line_of(value))
    return tokens


def _text(node: yaml.Node) -> str:
    """Return a value as a word of a command: a scalar, or a mapping or a list in JSON."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return json.dumps(yaml.safe_load(yaml.serialize(node)), default=str)


def _words(key: str, text: str, line: int, unknown: Unknown | None = None) -> list[Token]:
    """Return one of an engine's arguments as words."""
    if key in CHARTS["engine_keys_aside"] or (text.lower() in _OFF and unknown is None):
        return []
    flag = Token(f"--{key.replace('_', '-')}", line)
    plain = text.lower() in {"true", ""} and unknown is None
    return [flag] if plain else [flag, Token(text, line, unknown=unknown)]


def program_engines(text: str, variables: Mapping[str, str] | None, above: int = 0) -> list[ServedContainer]:
    """Return the engines of the configurations that a program makes, ``above`` lines of a manifest below.

    ``variables`` are None where what sets them is not in the file: none has its default then. A value that is
    no constant is unknown; a configuration without one known model has none.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    program = _RayProgram(_assigned(tree), variables)
    roles = _roles(tree)
    found: list[ServedContainer] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) in _CALLS:
            named = next((name for name, value in program.names.items() if value is node), "")
            found += program.engine(node, roles.get(named), above)
    return found


@dataclass(frozen=True, slots=True)
class _RayProgram:
    """The names of a program that have one value throughout, and variables of its environment."""

    names: Mapping[str, Any]
    variables: Mapping[str, str] | None

    def engine(self, call: ast.Call, role: str | None, above: int) -> Iterator[ServedContainer]:
        """Yield the engine of one call."""
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        model = self.mapping(given.get("model_loading_config"))
        source = next((model[key] for key in CHARTS["ray_models"] if key in model), given.get("model"))
        line = call.lineno + above
        tokens = [Token(word, line) for word in ("vllm", "serve")]
        name = self.value(source) if source is not None else _UNKNOWN
        computed = Unknown("a value that the program computes", line)
        unknown = computed if name is _UNKNOWN else None
        tokens.append(Token("" if unknown else str(name), line, unknown=unknown))
        options = given.get("engine_kwargs")
        whole = self.mapping(options) if _last(call.func) == "LLMConfig" else given
        whole = {key: value for key, value in whole.items() if key != "model"}
        if options is not None and not whole and not isinstance(self.node(options), ast.Dict):
            tokens.append(Token(TABLES["vllm"].keys["tp"], line))
            tokens.append(Token("", line, unknown=computed))
        for key, value in whole.items():
            found, at = self.value(value), value.lineno + above
            doubt = Unknown("a value that the program computes", at) if found is _UNKNOWN else None
            text = json.dumps(found, default=str) if isinstance(found, dict | list) else str(found)
            tokens += _words(key, "" if doubt else text, at, doubt)
        yield served(tokens, Around(self.copies(given.get("deployment_config")), None, role), {})

    def copies(self, node: ast.expr | None) -> int:
        """Return the number of copies that a deployment has at least."""
        deployment = self.mapping(node)
        scaled = self.mapping(deployment.get("autoscaling_config"))
        for stated in (deployment.get("num_replicas"), scaled.get("min_replicas")):
            count = self.value(stated) if stated is not None else None
            if isinstance(count, int) and count > 0:
                return count
        return 1

    def mapping(self, node: ast.expr | None, depth: int = 0) -> dict[str, ast.expr]:
        """Return the values of a dictionary, or of ``dict(...)``, by key; nothing for anything else."""
        found = self.node(node)
        if isinstance(found, ast.Call) and _last(found.func) in {"dict", "ModelLoadingConfig"}:
            return {k.arg: k.value for k in found.keywords if k.arg is not None}
        if not isinstance(found, ast.Dict) or depth > _DEEPEST:
            return {}
        values: dict[str, ast.expr] = {}
        for key, value in zip(found.keys, found.values, strict=True):
            if key is None:
                values |= self.mapping(value, depth + 1)
            elif isinstance(key, ast.Constant):
                values[str(key.value)] = value
        return values

    def node(self, node: ast.expr | None) -> ast.expr | None:
        """Return the expression that a name stands for, or the expression itself."""
        for _ in range(_DEEPEST):
            if not isinstance(node, ast.Name):
                return node
            node = self.names.get(node.id)
        return None

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401 - any value of a program
        """Return a constant, or the default of a variable of the environment; ``_UNKNOWN`` for others."""
        found = self.node(node)
        if isinstance(found, ast.Call):
            return self.asked(found)
        try:
            return ast.literal_eval(found) if found is not None else _UNKNOWN
        except (ValueError, TypeError, RecursionError):
            return _UNKNOWN

    def asked(self, call: ast.Call) -> Any:  # noqa: ANN401 - any value of a program
        """Return what ``int``, ``float``, ``str`` or a look-up in the environment gives."""
        values = [self.value(argument) for argument in call.args]
        name = _last(call.func)
        if (
            name in {"int", "float", "str", "bool"}
            and len(values) == 1
            and isinstance(values[0], str | int | float)
        ):
            return values[0]
        environment = ast.unparse(call.func) in _LOOKING_UP
        if environment and self.variables is not None and values and values[0] is not _UNKNOWN:
            return self.variables.get(str(values[0]), values[1] if len(values) > 1 else _UNKNOWN)
        return _UNKNOWN


def _assigned(tree: ast.Module) -> dict[str, Any]:
    """Return the expressions of names that are assigned once."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            found[name] = None if name in found else node.value
        elif isinstance(node, ast.AugAssign | ast.For) and isinstance(node.target, ast.Name):
            found[node.target.id] = None
    return found


def _roles(tree: ast.Module) -> dict[str, str]:
    """Return the roles of configurations by name: ``{"prefill_config": a, "decode_config": b}``."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        pairs: list[tuple[Any, ast.expr]] = []
        if isinstance(node, ast.Dict):
            pairs = [(getattr(k, "value", None), v) for k, v in zip(node.keys, node.values, strict=True)]
        elif isinstance(node, ast.Call):
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
        for key, value in pairs:
            role = str(key).removesuffix("_config")
            if role in ROLES and str(key).endswith("_config") and isinstance(value, ast.Name):
                found[value.id] = role
    return found


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


_SIGNS: Final = re.compile(
    r"[\"']vllm[\"']\s*,\s*[\"']serve[\"']|[\"'](?:vllm\.entrypoints\.\w[\w.]*|sglang\.launch_server)[\"']"
    r"|[\"']trtllm-serve[\"']"
)
_ENVIRONMENT: Final = frozenset({"get", "getenv"})


def starts_engine(text: str) -> bool:
    """Return whether a Python program has the words of a serve command as a list.

    >>> starts_engine('cmd = ["vllm", "serve", MODEL]'), starts_engine("import vllm")
    (True, False)
    """
    return _SIGNS.search(text) is not None


def python_script(text: str, name: str, variables: Mapping[str, str]) -> Script:
    """Return the commands that a Python program starts; none of a text that is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return Script(name, (), {}, {})
    reader = _Program(variables)
    reader.block(tree.body, doubt=False)
    commands = [Command(tuple(words), words[0].line) for words in reader.lists if _serves(words)]
    return Script(name, tuple(commands), {}, {})


def _serves(words: Sequence[Word]) -> bool:
    return _SIGNS.search(", ".join(f'"{word.text}"' for word in words)) is not None


@dataclass(slots=True)
class _Program:
    """Values of names so far, and the lists of words, of which some have a name."""

    variables: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    lists: list[list[Word]] = field(default_factory=list)
    named: dict[str, list[Word]] = field(default_factory=dict)

    def block(self, body: Sequence[ast.stmt], *, doubt: bool) -> None:
        """Follow statements in order; those under a condition that is not known are in ``doubt``."""
        for statement in body:
            self._statement(statement, doubt=doubt)

    def _statement(self, statement: ast.stmt, *, doubt: bool) -> None:
        if isinstance(statement, ast.If):
            test = self.value(statement.test)
            if test is _UNKNOWN:
                self.block(statement.body, doubt=True)
                self.block(statement.orelse, doubt=True)
            else:
                self.block(statement.body if test else statement.orelse, doubt=doubt)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            self._assign(statement, doubt=doubt)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            self._extend(statement.target.id, statement.value, doubt=doubt)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._call(statement.value, doubt=doubt)
        else:
            for inner in ("body", "orelse", "finalbody"):
                nested = getattr(statement, inner, None)
                if isinstance(nested, list):
                    loops = isinstance(statement, ast.For | ast.While)
                    self.block(nested, doubt=doubt or loops)

    def _assign(self, statement: ast.Assign | ast.AnnAssign, *, doubt: bool) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        value = statement.value
        for target in targets:
            if not isinstance(target, ast.Name) or value is None:
                continue
            if isinstance(value, ast.List | ast.Tuple):
                words = list(self.words(value))
                self.lists.append(words)
                self.named[target.id] = words
            self.values[target.id] = _UNKNOWN if doubt else self.value(value)

    def _call(self, call: ast.Call, *, doubt: bool) -> None:
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and call.args
            and function.attr in {"extend", "append"}
        ):
            added = call.args[0]
            if function.attr == "append":
                added = ast.copy_location(ast.List(elts=[added], ctx=ast.Load()), added)
            self._extend(function.value.id, added, doubt=doubt)
            return
        for argument in call.args:
            if isinstance(argument, ast.List | ast.Tuple):
                self.lists.append(list(self.words(argument)))

    def _extend(self, name: str, value: ast.expr, *, doubt: bool) -> None:
        words = self.named.get(name)
        if words is None:
            return
        known = isinstance(value, ast.List | ast.Tuple) and not doubt
        words += self.words(value) if known else [_word(_UNKNOWN, value.lineno)]

    def words(self, node: ast.expr) -> Iterator[Word]:
        """Yield the words of a list."""
        for item in node.elts if isinstance(node, ast.List | ast.Tuple) else ():
            inner = item.value if isinstance(item, ast.Starred) else None
            if isinstance(inner, ast.Name) and inner.id in self.named:
                yield from self.named[inner.id]
            else:
                yield _word(self.value(item), item.lineno)

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401 - any value of a program
        """Return the value of an expression; the mark of an unknown one where it is not known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.values.get(node.id, _UNKNOWN)
        if isinstance(node, ast.JoinedStr):
            parts = [self.value(part) for part in node.values]
            return _UNKNOWN if _UNKNOWN in parts else "".join(map(str, parts))
        return self._called(node) if isinstance(node, ast.Call) else self._chosen(node)

    def _chosen(self, node: ast.expr) -> Any:  # noqa: ANN401 - any value of a program
        """Return the value of a part of an f-string, of a choice, or of what is negated."""
        if isinstance(node, ast.FormattedValue):
            return self.value(node.value) if node.format_spec is None else _UNKNOWN
        if isinstance(node, ast.IfExp):
            test = self.value(node.test)
            return _UNKNOWN if test is _UNKNOWN else self.value(node.body if test else node.orelse)
        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        inner = self.value(node.operand) if isinstance(node, ast.UnaryOp) and negated else _UNKNOWN
        return _UNKNOWN if inner is _UNKNOWN else not inner

    def _called(self, call: ast.Call) -> Any:  # noqa: ANN401 - any value of a program
        """Return what ``str``, ``int`` or a look-up in the environment gives."""
        function = call.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        values = [self.value(argument) for argument in call.args]
        if name in {"str", "int"} and len(values) == 1 and values[0] is not _UNKNOWN:
            return str(values[0]) if name == "str" or not str(values[0]).isdigit() else int(values[0])
        asked = ast.unparse(function) in _LOOKING_UP
        if asked and values and name in _ENVIRONMENT:
            return self.variables.get(str(values[0]), values[1] if len(values) > 1 else _UNKNOWN)
        return _UNKNOWN


def _word(value: Any, line: int) -> Word:  # noqa: ANN401 - any value of a program
    if value is _UNKNOWN:
        return Word("", line, Unknown("a value that the program computes", line))
    return Word("" if value is None else str(value), line)
