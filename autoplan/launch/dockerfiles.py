"""The command of a Dockerfile, as a script with its lines; nothing is built or executed.

What a container runs is the entry point of the last stage and the words of CMD behind it; a shell reads those
that are no list. Source: Dockerfile reference of Docker 28 (ENTRYPOINT, CMD, ENV, ARG, here-documents).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.script_text import ScriptText

_INSTRUCTION: Final = re.compile(r"\s*([A-Za-z]+)\s+")
_COMMAND: Final = re.compile(r"(?m)^(?:CMD|ENTRYPOINT)\s")
_STAGE: Final = re.compile(r"(?m)^FROM\s+\S")
_DOCUMENT: Final = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
#: A file that an instruction writes: behind ``>``, or as the last word of a COPY.
_WRITTEN: Final = re.compile(r">\s*([\w./-]+)|^COPY\s.*\s([\w./-]+)\s*$")
_PAIR: Final = re.compile(r"(\w+)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s]*)")
#: Images of engines, whose entry point takes their arguments.
_ENGINE: Final = re.compile(r"(?:^|/)vllm-openai(?:[:@]|$)")
_SERVE: Final = '"vllm", "serve", '


@dataclass(slots=True)
class _BuildStage:
    """What the last stage says so far: its image, its commands with their lines, its variables and files."""

    image: tuple[int, str] = (0, "")
    entry: tuple[int, str] | None = None
    command: tuple[int, str] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def is_dockerfile(text: str) -> bool:
    """Return whether a text is a Dockerfile that says what its container runs."""
    return _STAGE.search(text) is not None and _COMMAND.search(text) is not None


def script_of_dockerfile(text: str, name: str = "") -> tuple[str, Mapping[str, str], Mapping[str, str]]:
    r"""Return what the container of a Dockerfile runs, its variables, and files that its lines hold by name.

    Raises SpecError for a list of words that is none.

    >>> script_of_dockerfile('FROM vllm/vllm-openai:v0.11.0\nENV A=1\nCMD ["--model", "m"]\n')[:2]
    ('# FROM vllm/vllm-openai:v0.11.0\n\nvllm serve --model m\n', {'A': '1'})
    """
    stage = _BuildStage()
    for line, keyword, rest, document in _instructions(text):
        if keyword == "FROM":
            stage = _BuildStage((line, rest))
        elif keyword == "ENTRYPOINT":
            # An entry point of its own takes back the command of the image.
            stage.entry, stage.command = (line, rest), None
        elif keyword == "CMD":
            stage.command = (line, rest)
        elif keyword in {"ENV", "ARG"}:
            stage.variables |= _variables(rest)
        elif document is not None and (match := _WRITTEN.search(f"{keyword} {rest}".strip())) is not None:
            stage.files[(match[1] or match[2]).rpartition("/")[2]] = document
    return _script(stage, name), stage.variables, stage.files


def _instructions(text: str) -> Iterator[tuple[int, str, str, str | None]]:
    """Yield each instruction: its line, its keyword, its text, and its here-document."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        first, match = at, _INSTRUCTION.match(lines[at])
        at += 1
        if match is None or lines[first].lstrip().startswith("#"):
            continue
        whole = [lines[first][match.end() :]]
        while at < len(lines) and whole[-1].rstrip().endswith("\\"):
            whole.append("\\" if lines[at].lstrip().startswith("#") else lines[at])
            at += 1
        document, begins = None, _DOCUMENT.search(whole[-1])
        if begins is not None:
            ends = next((n for n in range(at, len(lines)) if lines[n].strip() == begins[2]), len(lines))
            document = "\n".join(lines[at:ends])
            document = document if begins[1] else re.sub(r"\\([$`\\])", r"\1", document)
            at = ends + 1
        yield first + 1, match[1].upper(), "\n".join(whole).rstrip(), document


def _variables(text: str) -> dict[str, str]:
    """Return the variables of an ENV or ARG: ``NAME=VALUE`` pairs, or a name and its value."""
    pairs = {name: value.strip("\"'") for name, value in _PAIR.findall(text)}
    single = re.fullmatch(r"(\w+)\s+(\S.*)", text.strip())
    return pairs or ({single[1]: single[2]} if single else {})


def _script(stage: _BuildStage, name: str) -> str:
    """Return the script of a stage: its words, each in its line, below its image as a comment."""
    script = ScriptText()
    script.add(stage.image[0], f"# FROM {stage.image[1]}")
    entry, command = stage.entry, stage.command
    if entry is not None and not entry[1].startswith("["):
        script.add(*entry)  # A shell reads it, and nothing is behind it.
        return script.text + "\n"
    texts = [part for part in (entry, command) if part is not None]
    if entry is None and command is not None and _ENGINE.search(stage.image[1].split()[0]):
        listed = re.match(r"\[\s*(?=\"-)", command[1])
        texts = [(command[0], f"[{_SERVE}{command[1][listed.end() :]}") if listed else command]
    if entry is None and texts and not texts[0][1].startswith("["):
        script.add(*texts[0])
    elif texts:
        script.add_words([word for line, text in texts for word in _listed(line, text, name)])
    return script.text if script.text.endswith("\n") else script.text + "\n"


def _listed(line: int, text: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield the words of a list, each with its line; those of a text are of the shell that reads it."""
    joined = re.sub(r"\\\s*\n", "\n", text)
    if not joined.startswith("["):
        yield from ((line, word) for word in ("sh", "-c", text))
        return
    try:
        words = json.loads(joined)
    except ValueError as error:
        sentence = f"its list of words cannot be read: {str(error)[:80]}"
        raise SpecError([Problem(sentence, "CMD", name, line)]) from error
    place = 0
    for word in map(str, words):
        place = max(place, joined.find(json.dumps(word), place))
        yield line + joined.count("\n", 0, place), word
