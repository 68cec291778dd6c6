"""Serve commands in a script, recognised by their programs; and the version that a file says.

``swift deploy`` of ms-swift has names of its own for arguments of vLLM: modelscope/ms-swift 3602360
``swift/llm/argument/base_args/vllm_args`` (``vllm_`` before the engine's names since 3.8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from autoplan.errors import UnsupportedError
from autoplan.launch.bindings.deciding_names import fields_named
from autoplan.launch.bindings.interface import interface
from autoplan.launch.engines.arguments.engine_settings import listed_versions
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import Script
from autoplan.launch.scripts.training_command import SHOWING, visible_devices

_DEPLOY: Final = interface("ms-swift").data["deploy"]
_MODEL: Final[str] = _DEPLOY["model"]
_BACKEND: Final[str] = _DEPLOY["backend"]
_OURS: Final[str] = _DEPLOY["before"]
#: Names of versions before 3.8, which are the engine's own.
_EARLIER: Final = frozenset(f"--{name}" for name in _DEPLOY["earlier"])


def swift_words(words: Sequence[Word]) -> tuple[Word, ...] | None:
    """Return the arguments of vLLM that ``swift deploy`` starts; None for another command or backend.

    >>> line = "swift deploy --model Qwen/Qwen3-8B --infer_backend vllm --vllm_tensor_parallel_size 2"
    >>> [word.text for word in swift_words([Word(text, 1) for text in line.split()])]
    ['Qwen/Qwen3-8B', '--tensor-parallel-size', '2']
    """
    at = next((i for i, w in enumerate(words[:-1]) if _program(w) and words[i + 1].text == "deploy"), None)
    if at is None:
        return None
    options = list(_options(words[at + 2 :]))
    backends = [value for flag, value in options if flag.text == _BACKEND]
    if not backends or backends[-1] is None or backends[-1].text != "vllm":
        return None
    models = [value for flag, value in options if flag.text == _MODEL and value is not None]
    kept = [word for flag, value in options for word in _renamed(flag, value)]
    return (*models[:1], *kept)


def _program(word: Word) -> bool:
    return word.text.rsplit("/", 1)[-1] == "swift"


def _options(words: Sequence[Word]) -> list[tuple[Word, Word | None]]:
    found: list[tuple[Word, Word | None]] = []
    for at, word in enumerate(words):
        if word.text.startswith("--"):
            name, equals, value = word.text.partition("=")
            behind = (
                words[at + 1] if at + 1 < len(words) and not words[at + 1].text.startswith("--") else None
            )
            found.append((replace(word, text=name), replace(word, text=value) if equals else behind))
    return found


def _renamed(flag: Word, value: Word | None) -> list[Word]:
    """Return an argument as vLLM calls it; nothing for those of ms-swift that decide no engine."""
    name = flag.text
    if name in {_MODEL, _BACKEND} or not (name.startswith(_OURS) or name in _EARLIER or fields_named(name)):
        return []
    text = "" if value is None else value.text.lower()
    if text == "false":
        return []
    renamed = replace(flag, text=f"--{name.removeprefix(_OURS).removeprefix('--').replace('_', '-')}")
    return [renamed] if value is None or text == "true" else [renamed, value]


ENGINES: Final = ("vllm", "sglang", "tensorrt-llm")
#: Engines of the catalogue by the program that starts them, where it is not named alike.
PROGRAM_OF: Final = {"vllm-v0": "vllm", "vllm-rocm": "vllm"}
#: Modules that serve, behind ``python -m``.
_MODULES: Final = {"vllm.entrypoints.openai.api_server": "vllm", "sglang.launch_server": "sglang"}
#: Modules that are a program of several commands, behind ``python -m``.
_PROGRAM_MODULES: Final = {"vllm.entrypoints.cli.main": "vllm"}
#: Programs whose first word is ``serve``.
_PROGRAMS: Final = {"vllm": "vllm", "sglang": "sglang"}
_TRTLLM: Final = "trtllm-serve"
#: Commands of trtllm-serve that serve no model.
_OTHERS: Final = frozenset({"disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve"})
#: Programs that start others, besides Python and those that serve.
_STARTERS: Final = frozenset(interface("names").data["starters"])
#: Image whose entry point takes the arguments of the engine.
_IMAGE: Final = re.compile(r"(?:[\w.:-]+/)*vllm-openai(?:[:@][\w.:-]+)?")
_SIGNS: Final = re.compile(
    r"\bvllm(?:\.entrypoints\.cli\.main)?\s+serve\b|vllm\.entrypoints\.openai\.api_server|sglang\.launch_server|\bsglang\s+serve\b"
    r"|\$\{?(?i:\w*vllm\w*)\}?[\"']?\s+serve\b|\btrtllm-serve\b|\bdocker\s+run\b[\s\S]*vllm-openai"
)
#: A command of ms-swift that serves with vLLM, and one that trains, whose script is read as a training.
_SWIFT: Final = re.compile(r"(?m)^(?!\s*#).*\bswift\s+deploy\b.*--infer_backend[ =]+vllm\b")
_SWIFT_TRAINS: Final = re.compile(r"\b(?:swift|megatron)\s+(?:sft|pt|rlhf)\b")
#: Words of a command whose engine is on several nodes, or is a part of one.
_SEVERAL: Final = re.compile(
    r"nnodes|node-rank|dist-init-addr|\bray\b|data-parallel-(?:address|hybrid|external|start-rank|size-local)"
    r"|multi-?node|llmapi-launch|mpirun"
)
#: How files say a version: packages, images, and the header of what is emitted.
_VERSIONS: Final = {
    engine: re.compile(pattern) for engine, pattern in interface("names").data["versions"].items()
}


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """One command that serves: its engine, the words of its arguments, and its line.

    ``replicas`` says how many of it a manifest starts, and ``role`` in which pool they are, where it says so;
    ``visible`` how many devices its own environment shows it, and ``held`` how many its container is given.
    """

    engine: str
    words: tuple[Word, ...]
    line: int
    doubt: str = ""
    replicas: int = 1
    role: str | None = None
    visible: int | None = None
    held: int | None = None


def names_others(text: str) -> bool:
    """Return whether the text of a command speaks of other nodes, so that its own devices may not be all."""
    return _SEVERAL.search(text) is not None


def serves(text: str) -> bool:
    """Return whether a text has a command that serves.

    >>> serves("vllm serve meta-llama/Llama-3.1-8B -tp 2"), serves("torchrun train.py")
    (True, False)
    """
    joined = text.replace("\\\n", " ")
    swift = _SWIFT.search(joined) is not None and _SWIFT_TRAINS.search(joined) is None
    return swift or _SIGNS.search(joined) is not None


def serve_commands(script: Script) -> list[ServeCommand]:
    """Return the commands that serve, in order; those of unknown programs where no other one does."""
    commands = list(_commands(script))
    started = [command for command, recognised in commands if recognised]
    return started or [command for command, _ in commands]


def _commands(script: Script) -> Iterator[tuple[ServeCommand, bool]]:
    """Yield the commands that serve, and whether what starts them is known."""
    for command in script.commands:
        if not command.words or command.words[0].text in SHOWING:
            continue
        place, swift = _place(command.words), swift_words(command.words)
        seen = visible_devices({}, command)
        first = command.words[0].text.rsplit("/", 1)[-1]
        engine, words = ("vllm", swift) if swift is not None else ("", ())
        if swift is None and place is not None:
            engine, words = place[0], tuple(command.words[place[1] :])
        if engine:
            recognised = swift is not None or first in _STARTERS or first.startswith("python")
            yield ServeCommand(engine, words, command.line, command.doubt, visible=seen), recognised


def _place(words: Sequence[Word]) -> tuple[str, int] | None:
    """Return the engine of a command and where its arguments begin."""
    texts = [word.text for word in words]
    for at, text in enumerate(texts):
        following = texts[at + 1] if at + 1 < len(texts) else ""
        program = _PROGRAM_MODULES.get(text, text.rsplit("/", 1)[-1])
        if text in _MODULES and at and texts[at - 1] == "-m":
            return _MODULES[text], at + 1
        if program in _PROGRAMS and following == "serve":
            return _PROGRAMS[program], at + 2
        if program == _TRTLLM and following not in _OTHERS:
            return "tensorrt-llm", at + 1 + (following == "serve")
        if _IMAGE.fullmatch(text) and at and _takes_arguments(following):
            return "vllm", at + 1
    return None


def _takes_arguments(following: str) -> bool:
    """Return whether what follows an image is arguments of its entry point, not another program."""
    return following.startswith("-") or re.fullmatch(r"[\w.-]+/[\w.-]+", following) is not None


def said_version(engine: str, text: str) -> str | None:
    """Return the version of an engine that a file says: by a package, an image or a header.

    >>> said_version("vllm", "docker run vllm/vllm-openai:v0.11.0 --model x")
    '0.11.0'
    """
    match = _VERSIONS[engine].search(text)
    return match[1] if match else None


def listed_version(engines: Sequence[str], version: str) -> tuple[str, str]:
    """Return the engine of ``engines`` and its listed version that ``version`` is a release of.

    Raises UnsupportedError for a version that none of them has.

    >>> listed_version(("vllm", "vllm-v0"), "0.7.2")
    ('vllm-v0', '0.7')
    """
    versions = [(engine, name) for engine in engines for name in listed_versions(engine)]
    version = version.removeprefix("v")
    same = [x for x in versions if version == x[1] or version.startswith((f"{x[1]}.", f"{x[1]}post"))]
    if not same:
        names = ", ".join(name for _, name in sorted(versions, key=lambda pair: _order(pair[1])))
        raise UnsupportedError(
            f"the arguments of {engines[0]} {version} are not listed: known versions are {names};"
            f" --framework {engines[0]}@VERSION reads it as one of these"
        )
    return max(same, key=lambda pair: len(pair[1]))


#: Most minor releases between a version and the one with whose arguments it is read.
_NEAR: Final = 3


def nearest_version(engine: str, version: str) -> str | None:
    """Return the listed version of ``engine`` nearest to ``version``, newer ones first; None for none near.

    Engines whose patch releases are listed, such as SGLang, change between minor ones.

    >>> nearest_version("vllm", "0.10.0"), nearest_version("vllm", "0.5.4")
    ('0.11', None)
    """
    ours = _order(version)

    def distance(name: str) -> tuple[list[int], bool]:
        other = _order(name)
        return [abs(a - b) for a, b in zip_longest(other, ours, fillvalue=0)], other < ours

    name = min(listed_versions(engine), key=distance)
    (major, minor, *_), _ = distance(name)
    far = major > 0 or minor > (_NEAR if name.count(".") == 1 else 0)
    return None if far else name


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))
