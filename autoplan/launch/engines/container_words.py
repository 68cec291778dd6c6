"""Words of the commands that containers and charts start engines with, each with its line in the manifest."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import yaml

from autoplan.launch.bindings.interface import interface
from autoplan.launch.job_manifests import Nodes, line_of, scalar_of
from autoplan.launch.scripts.pieces import Unknown, Word
from autoplan.launch.scripts.script import SHELLS
from autoplan.launch.scripts.shell_reader import read_script

CHARTS: Final = interface("serving-charts").data
TABLES: Final = {name: interface(name) for name in ("vllm", "sglang", "tensorrt-llm")}
#: What starts each engine.
STARTS: Final = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python3", "-m", "sglang.launch_server"),
    "tensorrt-llm": ("trtllm-serve", "serve"),
}
#: Modules of Dynamo's workers, and what starts the same engine alone.
_WORKERS: Final = {
    "dynamo.vllm": STARTS["vllm"],
    "dynamo.sglang": STARTS["sglang"],
    "dynamo.trtllm": STARTS["tensorrt-llm"],
}
#: Arguments of TensorRT-LLM's server by what Dynamo's worker calls them.
_OF_TRTLLM: Final = {
    flag: TABLES["tensorrt-llm"].keys[name] for name, flag in TABLES["tensorrt-llm"].data["dynamo"].items()
}
#: Arguments that name the model of a worker of TensorRT-LLM.
_MODELS: Final = frozenset(TABLES[name].keys["model"] for name in ("sglang", "tensorrt-llm"))
_VARIABLE: Final = re.compile(r"\$\((\w+)\)|\$\{(\w+)(?::?-([^}]*))?\}")
ROLES_IN_ORDER: Final = ("prefill", "decode")
ROLES: Final = frozenset(ROLES_IN_ORDER)


@dataclass(frozen=True, slots=True)
class Token:
    """A word of a command; a shell reads that to ``split``, and has read one that is ``unknown``."""

    text: str
    line: int
    split: bool = False
    unknown: Unknown | None = None


@dataclass(frozen=True, slots=True)
class ServedContainer:
    """A container that serves: the words of its command, and what the manifest says around it.

    ``replicas`` is how many of it run, ``devices`` the devices that one is given, ``role`` that of a pool,
    and ``alone`` says that no other pod is part of its engine.
    ``documents`` are files that the manifest holds, by name.
    """

    tokens: tuple[Token, ...]
    replicas: int = 1
    devices: int | None = None
    role: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)
    #: The text, and its line, that says how many copies run where a variable does that is not set.
    open_copies: tuple[str, int] | None = None
    alone: bool = False

    @property
    def text(self) -> str:
        """What a shell would read of its command."""
        return inner_text(self.tokens) or ""

    @property
    def line(self) -> int:
        """The line in which its command begins."""
        return self.tokens[0].line


@dataclass(frozen=True, slots=True)
class Around:
    """What the mappings around a container say."""

    replicas: int = 1
    devices: int | None = None
    role: str | None = None
    outside: Mapping[str, str] = field(default_factory=dict)
    #: Copies of the whole service that has several roles.
    services: int = 1
    open_copies: tuple[str, int] | None = None
    #: Whether pods have numbers, by which engines on several nodes are started.
    numbered: bool = False
    #: Whether a pod by itself is a whole engine, if its command names no other.
    alone: bool = False


#: The nodes of an engine, each of which is a pod.
_NODES: Final = re.compile(r"--nnodes[ =]+0*([1-9]\d{0,3})\b")


def counted(node: yaml.Node | None, outside: Mapping[str, str] | None = None) -> int | None:
    """Return the positive integer that a scalar is, or a variable from ``outside``; None for other nodes."""
    text = scalar_of(node) or ""
    if outside is not None and (match := _VARIABLE.fullmatch(text)) is not None:
        text = outside.get(match[1] or match[2]) or match[3] or text
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,5}", text) else None


def tokens_of(node: yaml.Node) -> Iterator[Token]:
    """Yield the words of a command: the items of a list, or a text that a shell splits."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            text = scalar_of(item)
            if text is not None:
                yield Token(text, line_of(item))
    elif isinstance(node, yaml.ScalarNode):
        yield Token(node.value, line_of(node), split=True)


def served(tokens: Sequence[Token], around: Around, variables: Mapping[str, str]) -> ServedContainer:
    """Return the container of such words; those of a worker of Dynamo are those of its engine."""
    words, role, documents = _engine_words(tokens, {**variables, **around.outside})
    nodes = _NODES.search(" ".join(token.text for token in words)) if around.numbered else None
    copies = max(1, around.replicas // (int(nodes[1]) if nodes else 1)) * around.services
    return ServedContainer(
        tuple(words),
        copies,
        around.devices,
        role or around.role,
        dict(variables),
        documents,
        around.open_copies,
        around.alone,
    )


def filled_words(tokens: Sequence[Token], variables: Mapping[str, str]) -> tuple[Word, ...]:
    """Return words with variables as Kubernetes and Compose fill them in: ``$(NAME)``, ``${NAME:-value}``."""
    return tuple(_word(token, variables) for token in tokens)


def _word(token: Token, variables: Mapping[str, str]) -> Word:
    missing: list[str] = []

    def filled(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        if name not in variables and default is None:
            missing.append(name)
        return variables.get(name) or default or ""

    text = _VARIABLE.sub(filled, token.text)
    unknown = (
        Unknown(f"{missing[0]}, which the manifest does not set", token.line, missing[0]) if missing else None
    )
    return Word(text, token.line, token.unknown or unknown)


def inner_text(tokens: Sequence[Token]) -> str | None:
    """Return what a shell runs, in the lines of the manifest; None where no shell reads the words."""
    texts = [token.text for token in tokens]
    at = next((i for i, text in enumerate(texts) if re.fullmatch(r"-[a-z]*c", text)), None)
    behind = [token for token in tokens[at + 1 :] if token.text != "--"] if at is not None else []
    if behind and texts[0].rsplit("/", 1)[-1] in SHELLS:
        inner = behind[0]
        return "\n" * (inner.line - 1) + inner.text
    if not any(token.split for token in tokens):
        return None
    shown = " ".join(token.text if token.split else shlex.quote(token.text) for token in tokens)
    return "\n" * (tokens[0].line - 1) + shown


def shell_arguments(tokens: Sequence[Token]) -> dict[str, str]:
    """Return the arguments, by number, of a script that a shell runs: the words behind it and its name.

    >>> words = ("bash", "-c", 'vllm serve "$@"', "--", "m/x", "-tp=2")
    >>> shell_arguments([Token(word, 1) for word in words])
    {'1': 'm/x', '2': '-tp=2'}
    """
    texts = [token.text for token in tokens]
    at = next((i for i, text in enumerate(texts) if re.fullmatch(r"-[a-z]*c", text)), len(texts))
    shell = bool(texts) and texts[0].rsplit("/", 1)[-1] in SHELLS
    return {str(n): text for n, text in enumerate(texts[at + 3 :], 1)} if shell else {}


def _engine_words(
    tokens: Sequence[Token], variables: Mapping[str, str]
) -> tuple[list[Token], str | None, dict[str, str]]:
    """Return the words of the engine that a worker of Dynamo starts, its role, and files of options."""
    places = [i for i, token in enumerate(tokens) if token.text in _WORKERS]
    joined = " ".join(token.text for token in tokens)
    named = re.search(r"\bpython3?\s+-m\s+(dynamo\.(?:vllm|sglang|trtllm))\b", joined) if not places else None
    if named is not None:
        return _split_worker(tokens, named[1], variables)
    if not places:
        return list(tokens), None, {}
    at = places[0]
    return _worker_words(tokens[at + 1 :], tokens[at])


def _split_worker(
    tokens: Sequence[Token], module: str, variables: Mapping[str, str]
) -> tuple[list[Token], str | None, dict[str, str]]:
    """Return the same of a worker that a shell starts, in a script that may set variables before."""
    script = read_script(inner_text(tokens) or " ".join(t.text for t in tokens), "", variables)
    for command in script.commands:
        texts = [word.text for word in command.words]
        if module in texts:
            at = texts.index(module)
            words = [Token(word.text, word.line, unknown=word.unknown) for word in command.words[at + 1 :]]
            return _worker_words(words, Token(module, command.words[at].line))
    return list(tokens), None, {}


def _worker_words(behind: Sequence[Token], module: Token) -> tuple[list[Token], str | None, dict[str, str]]:
    words = [Token(word, module.line) for word in _WORKERS[module.text]]
    role, documents, left = None, {}, list(behind)
    while left:
        token = left.pop(0)
        flag, equals, inline = token.text.partition("=")
        value = inline if equals else left[0].text if left else ""
        if flag in CHARTS["roles"]:
            role = CHARTS["roles"][flag]
        elif flag == CHARTS["role"] and module.text != "dynamo.sglang":
            role = value if value in {"prefill", "decode"} else None
            left = left if equals else left[1:]
        elif flag == CHARTS["override"]:
            documents = {"override.yaml": _as_yaml(value)}
            words += [
                Token(TABLES["tensorrt-llm"].keys["options"], token.line),
                Token("override.yaml", token.line),
            ]
            left = left if equals else left[1:]
        elif flag in CHARTS["dynamo_valued"]:
            left = left if equals or not left or left[0].text.startswith("-") else left[1:]
        elif module.text == "dynamo.trtllm" and flag in _MODELS:
            # The model is the first word of the engine's own server.
            words += [Token(inline, token.line)] if equals else []
        elif flag not in CHARTS["dynamo_plain"]:
            words.append(replace(token, text=_renamed(module.text, token.text)))
    return words, role, documents


def _renamed(module: str, word: str) -> str:
    """Return an argument as the engine's own server calls it."""
    if module != "dynamo.trtllm":
        return word
    flag, equals, value = word.partition("=")
    return f"{_OF_TRTLLM.get(flag, flag)}{equals}{value}"


def _as_yaml(text: str) -> str:
    """Return a mapping in JSON or Python as YAML; what is neither stays as it is, and is refused there."""
    try:
        return str(yaml.safe_dump(ast.literal_eval(text)))
    except (ValueError, SyntaxError, RecursionError, yaml.YAMLError):
        return text


def start_words(program: str, model: yaml.Node, prefix: str = "") -> list[Token]:
    """Return the words that start a server of a model."""
    line, name = line_of(model), _published((scalar_of(model) or "").removeprefix(prefix))
    words = STARTS[program]
    named = (TABLES["sglang"].keys["model"], name) if program == "sglang" else (name,)
    return [Token(word, line) for word in (*words, *named)]


def _published(name: str) -> str:
    """Return the name of a model in an image or on a volume: ``oci://HOST/modelcar-NAME:TAG``, ``pvc://PVC/NAME``."""
    image = re.fullmatch(r"oci://\S+/modelcar-([\w.-]+?)(?::[\w.-]+)?", name)
    return image[1] if image else re.sub(r"^pvc://[^/]+/", "", name)


def option_words(program: str, names: Mapping[str, str], values: Nodes) -> list[Token]:
    """Return values of a chart as arguments of an engine."""
    tokens: list[Token] = []
    for key, binding in names.items():
        value = scalar_of(values.get(key))
        if value is not None and value not in {"", "null", "~"}:
            line = line_of(values[key])
            tokens += [Token(TABLES[program].keys[binding], line), Token(value, line)]
    return tokens
