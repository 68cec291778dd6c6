"""Serve commands and files of their options, read back as a layout and a job. Nothing in them is executed.

Files that a script writes by itself: the here-documents that it sends to a file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autoplan.errors import AutoplanError, Problem, SpecError, UnsupportedError
from autoplan.launch.bindings.deciding_names import fields_named, may_decide
from autoplan.launch.bindings.interface import interface
from autoplan.launch.configuration import Fields, LaunchFile, Values, Written
from autoplan.launch.engines.arguments.engine_settings import argument_list, listed_versions
from autoplan.launch.engines.arguments.given_arguments import GivenArguments, parse_words, parsed_keys
from autoplan.launch.engines.arguments.tensorrt_llm_arguments import KNOWN_KEYS
from autoplan.launch.engines.container_commands import container_script, is_manifest, served_containers
from autoplan.launch.engines.container_words import ServedContainer
from autoplan.launch.engines.engine_assembly import OF_OPTIONS, CommandValues, configured
from autoplan.launch.engines.ray_engines import is_ray_program, program_engines, python_script, starts_engine
from autoplan.launch.engines.serve_commands import (
    ENGINES,
    PROGRAM_OF,
    ServeCommand,
    listed_version,
    names_others,
    nearest_version,
    said_version,
    serve_commands,
    serves,
)
from autoplan.launch.engines.served_run import EngineConfiguration, EngineFile
from autoplan.launch.scripts.pieces import Word, text_of, unknown_of
from autoplan.launch.scripts.script import Script, script_text
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.schema.yaml.parser import parse_yaml

#: Names of files of data, and of their templates.
_YAML: Final = re.compile(r".*\.(?:ya?ml|json)(?:\.(?:template|tmpl|tpl|in|j2|example|sample|dist))?")
#: Engines of the catalogue that are earlier versions of another one.
_EARLIER: Final = {"vllm": ("vllm-v0",)}
#: An engine of the catalogue, and its version.
_Version = tuple[str, str]


def is_engine_file(file: LaunchFile, framework: str | None = None) -> bool:
    """Return whether a file is one of an engine, by what the user calls it or by its content."""
    if framework is not None:
        engine_name = framework.partition("@")[0]
        return PROGRAM_OF.get(engine_name, engine_name) in ENGINES
    if _is_yaml(file):
        return is_manifest(file.text) or options_engine(file.text, file.name) is not None
    if _is_python(file):
        return starts_engine(file.text) or is_ray_program(file.text)
    return serves(script_text(file))


def _is_python(file: LaunchFile) -> bool:
    return file.name.endswith(".py") and not file.script


def _is_yaml(file: LaunchFile) -> bool:
    return _YAML.fullmatch(file.name) is not None and not file.script


def read_engines(file: EngineFile, framework: str | None = None) -> EngineConfiguration:
    """Return what a script with serve commands says, or a file of their options.

    ``framework`` is the engine, with a version such as ``vllm@0.24``; by default what the file says. Raises
    SpecError with all problems of the file, and UnsupportedError for a version whose arguments are not
    listed.
    """
    launch = file.launch
    engine_name, _, version = (framework or "").partition("@")
    program = PROGRAM_OF.get(engine_name, engine_name)
    if framework is not None and program not in ENGINES:
        raise UnsupportedError(f"no engine is called {engine_name!r}: known are {', '.join(ENGINES)}")
    is_options = _is_yaml(launch) and not is_manifest(launch.text)
    commands, documents, script = _commands_of(launch, program, is_options=is_options)
    engine = commands[0].engine if commands else program
    _refuse(commands, engine, launch, script)
    stated_version = version or said_version(engine, launch.text)
    read = _CommandReader(file, engine, documents, is_options=is_options)
    versions, note = _versions(engine_name or engine, stated_version, certain=bool(version))
    (engine, name), given = _best(read, commands, versions, around=bool(note))
    notes = list(script.notes) if script else []
    notes += [note] if note else []
    notes += [f"the command in line {c.line} runs only under {c.doubt}" for c in commands if c.doubt]
    if stated_version is None:
        notes.append(_assumed(engine, name))
    hints = [Problem(hint, "script", launch.name) for hint in dict.fromkeys(script.hints if script else ())]
    values = [CommandValues(c, g) for c, g in zip(commands, given, strict=True)]
    return configured(launch, (engine, name), values, notes, hints)


def _commands_of(
    launch: LaunchFile, program: str, *, is_options: bool
) -> tuple[list[ServeCommand], Mapping[str, str], Script | None]:
    """Return the serve commands of a file of any kind, files that it holds by name, and its script."""
    if is_options:
        engine = program or options_engine(launch.text, launch.name) or ""
        return [ServeCommand(engine, (), 1)], {}, None
    if _is_yaml(launch):
        return _of_containers(served_containers(launch.text, launch.name, launch.variables), launch, program)
    if _is_python(launch) and is_ray_program(launch.text):
        return _of_containers(program_engines(launch.text, launch.variables), launch, program)
    if _is_python(launch):
        script = python_script(launch.text, launch.name, launch.variables)
        return serve_commands(script), {}, script
    script = read_script(launch.text, launch.name, launch.variables, launch.sibling)
    commands = [c for c in serve_commands(script) if not program or c.engine == program]
    return commands, written_files(launch.text, script, launch.variables), script


def _of_containers(
    containers: Sequence[ServedContainer], file: LaunchFile, program: str
) -> tuple[list[ServeCommand], dict[str, str], Script | None]:
    """Return the serve commands of the containers of a manifest, its files by name, and the first script."""
    commands: list[ServeCommand] = []
    documents: dict[str, str] = {}
    first: Script | None = None
    for container in containers:
        script = container_script(container, file.name, file.variables)
        first = first or script
        documents |= written_files(container.text, script, container.variables)
        documents |= dict(container.documents)
        held = container.devices if container.alone and not names_others(container.text) else None
        commands += [
            replace(command, replicas=container.replicas, role=container.role, held=held)
            for command in serve_commands(script)
            if not program or command.engine == program
        ]
    return commands, documents, first


def _best(
    read: _CommandReader, commands: Sequence[ServeCommand], versions: Sequence[_Version], *, around: bool
) -> tuple[_Version, list[GivenArguments]]:
    """Return the first version that has all arguments, else the one with the fewest problems.

    Where the version that is said is not listed, arguments of those ``around`` it are no problem.
    """
    tried: list[tuple[_Version, list[GivenArguments]]] = []
    for name in versions:
        tried.append((name, read.all(commands, name)))
        if not _problems(tried[-1]):
            return tried[-1]
    best = min(tried, key=_problems)
    listed = [version for version, _ in tried]
    if len(listed) == 1:
        # A version whose arguments are not listed may have those of the ones around it.
        names = (read.engine, *_EARLIER.get(read.engine, ()))
        listed += [(name, one) for name in names for one in listed_versions(name) if around]
    flags = {flag for version in listed for flag in argument_list(*version).arguments}
    for one in best[1]:
        _of_a_version_between(one, flags)
    return best


def _of_a_version_between(given: GivenArguments, flags: Collection[str]) -> None:
    """Leave out arguments of another listed version, where none has all of a command, that decide nothing."""
    for problem in list(given.problems):
        other = problem.path in flags and given.known.find(problem.path)[0] is None
        if other and not fields_named(problem.path):
            given.problems.remove(problem)
            given.notes.append(f"{problem.path} (line {problem.line}) is one of another version: not read")


def _problems(result: tuple[_Version, list[GivenArguments]]) -> int:
    return sum(len(one.problems) for one in result[1])


def _refuse(commands: Sequence[ServeCommand], engine: str, file: LaunchFile, script: Script | None) -> None:
    """Raise SpecError where there is no command, or where they are of several engines."""
    if not commands or not engine:
        more = f"; {'; '.join(script.notes)}" if script is not None and script.notes else ""
        programs = "vllm serve, sglang.launch_server, trtllm-serve"
        lines = enumerate(file.text.splitlines(), 1)
        at = next((number for number, line in lines if serves(line.partition("#")[0])), None)
        if at is not None and _is_yaml(file):
            more = ": what this line starts is in no container, service or recipe that is read"
        raise SpecError([Problem(f"there is no serve command ({programs}){more}", "$", file.name, at)])
    other = next((command for command in commands if command.engine != engine), None)
    if other is not None:
        sentence = (
            f"commands of {engine} (line {commands[0].line}) and {other.engine}: name one with --framework"
        )
        raise SpecError([Problem(sentence, "$", file.name, other.line)])


def _versions(engine: str, stated: str | None, *, certain: bool) -> tuple[tuple[_Version, ...], str]:
    """Return the versions to read it as: the one that is said, else all, the newest first; and what to note.

    A version of a file whose arguments are not listed is read as one that is near; one that is ``certain``,
    as a user names it, is refused.
    """
    engines = (engine, *_EARLIER.get(engine, ()))
    if stated is None:
        all_versions = ((name, version) for name in engines for version in reversed(listed_versions(name)))
        return tuple(all_versions), ""
    try:
        return (listed_version(engines, stated),), ""
    except UnsupportedError:
        named = [] if certain else [(name, nearest_version(name, stated)) for name in engines]
        near = [(name, version) for name, version in named if version is not None]
        if not near:
            raise
    note = f"the arguments of {engine} {stated} are not listed: read with those of {near[0][1]}"
    return (near[0],), note


def _assumed(engine: str, version: str) -> str:
    return (
        f"the file says no version of {engine}: read as {version}, the newest known one that has its"
        f" arguments; --framework {engine}@VERSION names another"
    )


class _CommandReader:
    """Reads the commands of one file as a version of an engine."""

    def __init__(
        self, file: EngineFile, engine: str, documents: Mapping[str, str], *, is_options: bool
    ) -> None:
        self.file, self.engine, self.documents, self.is_options = file, engine, documents, is_options

    def all(self, commands: Iterable[ServeCommand], version: _Version) -> list[GivenArguments]:
        """Return the arguments of each command."""
        return [self._one(command, version) for command in commands]

    def _one(self, command: ServeCommand, version: _Version) -> GivenArguments:
        launch, listed = self.file.launch, argument_list(*version)
        extra = tuple(Word(text, 0) for text in launch.arguments)
        arguments = parse_words((*command.words, *extra), listed, launch.name)
        if self.is_options:
            self._options(arguments, launch.text, launch.name)
            return arguments
        named = arguments.text("options")
        if named is not None:
            written = self.documents.get(named.value.rsplit("/", 1)[-1])
            text = self.file.sibling_text(named.value) if written is None else written
            if text is None:
                arguments.elsewhere |= OF_OPTIONS
                arguments.notes.append(
                    f"{named.words} (line {named.line}): the file is not beside this one, or not known,"
                    " what it says stays open"
                )
            else:
                self._options(arguments, text, named.value)
        return arguments

    def _options(self, arguments: GivenArguments, text: str, name: str) -> None:
        """Add what a file of options says; where it is another file, its lines are not those of this one."""
        same_file = name == self.file.launch.name
        if self.engine == "tensorrt-llm":
            entries, problems, notes = document_of(text, name)
            arguments.document |= (
                entries if same_file else {k: replace(v, line=None) for k, v in entries.items()}
            )
            arguments.problems += problems
            arguments.notes += notes
            return
        keys, line_of = keys_of(text, name)
        parsed_keys(keys, line_of if same_file else _no_line, arguments.known, arguments)


def _no_line(_: str) -> int | None:
    return None


#: ``cat > FILE << END`` in either order, and the lines up to END.
_DOCUMENT: Final = re.compile(
    r"^[ \t]*cat[ \t]*(?:"
    r"(?P<more>>>?)[ \t]*(?P<file>[^\s<>]+)[ \t]*<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)|"
    r"<<-?[ \t]*(?P<quote2>['\"]?)(?P<end2>\w+)(?P=quote2)[ \t]*(?P<more2>>>?)[ \t]*(?P<file2>[^\s<>]+)"
    r")[ \t]*\n(?P<text>.*?)^[ \t]*(?:(?P=end)|(?P=end2))[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_EXPANSION: Final = re.compile(r"\$\{\w+[^\w}]|\$\(|`")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def written_files(text: str, script: Script, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the files that a script writes, by name; those with unknown variables are left out.

    What a command appends (``>>``) comes behind, where the script runs that command for certain. Variables
    have the values that they have at the end of the script, or those given from outside.
    """
    environment = {**variables, **_known(script)}
    certain = {command.line for command in script.commands if not command.doubt}
    files: dict[str, str] = {}
    for document in _DOCUMENT.finditer(text):
        quoted = document["quote"] or document["quote2"]
        name = _filled(document["file"] or document["file2"], environment)
        content = document["text"] if quoted else _filled(document["text"], environment)
        if name is None or content is None:
            continue
        name = name.strip("\"'").rsplit("/", 1)[-1]
        if (document["more"] or document["more2"]) == ">":
            files[name] = content
        elif text.count("\n", 0, document.start()) + 1 in certain:
            files[name] = files.get(name, "") + content
    return files


def _known(script: Script) -> dict[str, str]:
    texts = {name: value for name, value in script.variables.items() if isinstance(value, tuple)}
    return {name: text_of(value) for name, value in texts.items() if unknown_of(value) is None}


def _filled(text: str, environment: Mapping[str, str]) -> str | None:
    """Return a text with its variables filled in; None where one is not known, or more than a variable."""
    names = [a or b for a, b in _VARIABLE.findall(text)]
    if _EXPANSION.search(text) or any(name not in environment for name in names):
        return None
    return _VARIABLE.sub(lambda match: environment[match[1] or match[2]], text)


#: Keys that only TensorRT-LLM's file has.
_TENSORRT_LLM: Final = frozenset(interface("tensorrt-llm").data["signs"])
_TABLE: Final = interface("tensorrt-llm").data
_EARLIER_SIGNS: Final = frozenset(_TABLE["earlier_signs"])
_EARLIER_KNOWN: Final = frozenset(
    (*_TABLE["earlier_known"], *_TABLE["earlier_keys"], *_TABLE["earlier_sections"])
)
_SIMILAR: Final = 0.86
_FEWEST: Final = 2


def options_engine(text: str, name: str) -> str | None:
    """Return the engine whose options a YAML file has; None where it is not clear, or none."""
    try:
        keys = [str(key) for key in keys_of(text, name)[0]]
    except AutoplanError:
        return None
    if not _TENSORRT_LLM.isdisjoint(keys) or len(_EARLIER_SIGNS.intersection(keys)) >= _FEWEST:
        return "tensorrt-llm"
    known = {engine: _known_keys(engine, keys) for engine in ("vllm", "sglang")}
    best = max(known, key=lambda engine: known[engine])
    others = [count for engine, count in known.items() if engine != best]
    enough = known[best] >= min(_FEWEST, len(keys)) and known[best] * 2 > len(keys)
    return best if enough and known[best] > max(others) else None


def _known_keys(engine: str, keys: list[str]) -> int:
    """Return how many keys are arguments of an engine, in the listed version that has most of them."""
    lists = [argument_list(engine, version) for version in listed_versions(engine)]
    return max(
        sum("-" in key and options.find(f"--{key}")[0] is not None for key in keys) for options in lists
    )


def keys_of(text: str, name: str) -> tuple[Mapping[str, Any], Callable[[str], int | None]]:
    """Return the keys of a file, and what gives the line of each; raises SpecError where it has none."""
    document = parse_yaml(text, name=name)
    if not isinstance(document.value, dict):
        raise SpecError([Problem("a file of options has keys", "$", name)])
    return document.value, lambda key: document.line([key])


def document_of(text: str, name: str) -> tuple[Fields, list[Problem], list[str]]:
    """Return the values of TensorRT-LLM's file by path, the problems of its keys, and notes."""
    document = parse_yaml(text, name=name)
    if not isinstance(document.value, dict):
        return {}, [Problem("a file of options has keys", "$", name)], []
    problems, notes = [], []
    for key, value in document.value.items():
        near = difflib.get_close_matches(str(key), KNOWN_KEYS, 1, _SIMILAR)
        if key in _EARLIER_KNOWN:
            continue
        if key not in KNOWN_KEYS and not near and may_decide(str(key), value):
            sentence = f"{key} is not read and may decide a layout"
            problems.append(Problem(sentence, str(key), name, document.line([key])))
        elif key not in KNOWN_KEYS and near:
            sentence = f"unknown key: did you mean {near[0]}?"
            problems.append(Problem(sentence, str(key), name, document.line([key])))
        elif key not in KNOWN_KEYS:
            notes.append(f"{key} is not in the list of keys and is not read")
    entries = {
        ".".join(path): Written(value, document.line(list(path)), f"{path[-1]}: {value}")
        for path, value in _leaves(document.value, ())
    }
    return _present(entries), problems, notes


def _present(entries: Values) -> Fields:
    """Return values with the keys of earlier versions as the present ones, which come first."""
    present: Fields = {}
    for path, written in entries.items():
        section, _, inner = path.partition(".")
        own = inner if section in _TABLE["earlier_sections"] else path
        named = _TABLE["earlier_keys"].get(own, own)
        if named == path or named not in entries:
            present[named] = written
    return present


def _leaves(value: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, inner in value.items():
        path = (*above, str(key))
        if isinstance(inner, dict):
            yield from _leaves(inner, path)
        else:
            yield path, inner
