"""The training command of a script, the devices of its launcher, and what rival commands leave open."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.deciding_names import fields_named
from autoplan.launch.bindings.interface import interface
from autoplan.launch.configuration import Written
from autoplan.launch.scripts.pieces import Piece, Unknown, Word, fields_of, text_of, unknown_of
from autoplan.launch.scripts.script import Command, Script, gpus_in

_COUNT: Final = re.compile(r"0*[1-9]\d{0,5}")


def _counted(text: str, line: int | None, words: str) -> Written | None:
    """Return the number that a text is, of at least 1; None for anything else."""
    return Written(int(text), line, words) if _COUNT.fullmatch(text) else None


#: Fewest known arguments that make a command the one that is looked for.
_FEWEST: Final = 3
#: The option that names a file of further arguments.
_KEY_FILE: Final = interface("trainer").data["file"]
#: Commands that only show words.
SHOWING: Final = frozenset({"echo", "printf", "cat", "logger"})
_PROGRAM: Final = re.compile(r"(?:.*/)?[\w.-]+\.py")
_LAUNCHERS: Final = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "deepspeed",
    "accelerate",
)
#: Launchers that start one process where they are not told how many (``torch/distributed/run.py``).
_OF_TORCH: Final = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_PER_NODE: Final = frozenset({"--nproc_per_node", "--nproc-per-node", "--num_gpus"})
_MACHINES: Final = frozenset({"--config_file", "--config-file", "--num_machines", "--num-machines", "--cpu"})
_NODES: Final = frozenset({"--nnodes", "--num_nodes", "--nodes"})


def training_command(script: Script, recognises: Callable[[str], bool]) -> tuple[list[Word], Command | None]:
    """Return the words of the arguments that a training program gets, and its command.

    That is the command with the most arguments that ``recognises`` accepts. Where none has any, they are
    those of all variables in order, as in a file that another one reads; the command is None then.
    """
    called = [command for command in reversed(script.commands) if command.words]
    shown = [command for command in called if command.words[0].text not in SHOWING]
    best = max(shown, key=lambda command: _count(command.words, recognises), default=None)
    if best is not None and _count(best.words, recognises) >= _fewest(best):
        words = list(best.words)
        start = next((i for i, word in enumerate(words) if _PROGRAM.fullmatch(word.text)), None)
        if start is None:
            first = next(i for i, word in enumerate(words) if recognises(word.text.partition("=")[0]))
            start = next((i + 1 for i in reversed(range(first - 1)) if words[i].text == "-m"), first - 1)
        return words[start + 1 :], best
    return [word for words in _variables(script) if _count(words, recognises) for word in words], None


def _fewest(command: Command) -> int:
    """Return how many known arguments make a command the one that is looked for: one beside a file."""
    return 1 if any(word.text == _KEY_FILE for word in command.words) else _FEWEST


def _count(words: Iterable[Word], recognises: Callable[[str], bool]) -> int:
    return len({name for word in words if recognises(name := word.text.partition("=")[0])})


def _variables(script: Script) -> Iterable[list[Word]]:
    for value in script.variables.values():
        texts = value.values() if isinstance(value, dict) else [value]
        yield [word for text in texts for word in fields_of([_unquoted(piece) for piece in text])]


def _unquoted(piece: Piece) -> Piece:
    return Piece(piece.text, piece.line, unknown=piece.unknown)


def launched_devices(script: Script, command: Command | None) -> tuple[Written | None, str]:
    """Return the number of processes that are started, one for each device, and why it is not known."""
    if command is None:
        return None, ""
    before = launcher_words(command.words)
    if any(word.text.rsplit("/", 1)[-1] == "accelerate" for word in before):
        return _accelerated(before, script, command)
    said = _included(before) or _seen_by_deepspeed(before, script, command) or _ranks_of_mpi(before)
    if said is not None:
        return said, ""
    names = {word.text.rsplit("/", 1)[-1] for word in before}
    if names.intersection(_LAUNCHERS):
        each = _option(before, _PER_NODE) or _processes(names, script)
        return _product(each, _option(before, _NODES) or Word("1", 0))
    return _slurm_tasks(script, command)


def _included(before: Sequence[Word]) -> Written | None:
    """Return the devices that DeepSpeed's launcher includes: ``--include localhost:0,1@worker:2,3``."""
    word = _option(before, frozenset({"--include", "-i"}))
    hosts = word.text.split("@") if word is not None and word.unknown is None else []
    if word is None or not hosts or not all(re.fullmatch(r"[\w.-]+:\d+(?:,\d+)*", host) for host in hosts):
        return None
    count = sum(host.count(",") + 1 for host in hosts)
    return Written(count, word.line, f"--include {word.text}")


def _seen_by_deepspeed(before: Sequence[Word], script: Script, command: Command) -> Written | None:
    """Return the devices that DeepSpeed's launcher sees, on one node and where it is told of no others.

    Source: DeepSpeed 0.19.8, ``launcher/runner.py``, which includes those of CUDA_VISIBLE_DEVICES.
    """
    told = _option(before, _PER_NODE | _NODES | {"--hostfile", "-H", "--exclude", "-e"})
    if told is not None or not any(word.text.rsplit("/", 1)[-1] == "deepspeed" for word in before):
        return None
    count = visible_devices(script.variables, command)
    return None if count is None else Written(count, command.line, f"{count} of CUDA_VISIBLE_DEVICES")


def visible_devices(variables: Mapping[str, object], command: Command) -> int | None:
    """Return how many devices CUDA_VISIBLE_DEVICES shows a command; None where it is not said."""
    name = "CUDA_VISIBLE_DEVICES"
    visible = command.environment.get(name) or variables.get(name)
    text = text_of(visible) if isinstance(visible, tuple) and unknown_of(visible) is None else ""
    return text.count(",") + 1 if re.fullmatch(r"\d+(?:,\d+)*", text) else None


def _ranks_of_mpi(before: Sequence[Word]) -> Written | None:
    """Return the ranks that ``mpirun`` starts, one for each device, where it starts no other launcher."""
    programs = {word.text.rsplit("/", 1)[-1] for word in before}
    word = _option(before, frozenset({"-np", "-n", "--np"})) if programs & {"mpirun", "mpiexec"} else None
    if word is None or word.unknown is not None or programs & set(_LAUNCHERS):
        return None
    return _counted(word.text, word.line, f"{word.text} ranks of mpirun")


def launcher_words(words: Sequence[Word]) -> Sequence[Word]:
    """Return the words before the training program."""
    places = [i for i, word in enumerate(words) if _PROGRAM.fullmatch(word.text)]
    return words[: places[0]] if places else words


def _accelerated(before: Sequence[Word], script: Script, command: Command) -> tuple[Written | None, str]:
    """Return the processes of all machines that ``accelerate launch`` is told, where it is told.

    Without a file it starts one on each device that it sees (accelerate 1.15, ``commands/launch.py``).
    """
    total = _option(before, frozenset({"--num_processes", "--num-processes"}))
    seen = visible_devices(script.variables, command)
    if total is None and seen is not None and _option(before, _MACHINES) is None:
        return Written(seen, command.line, f"{seen} of CUDA_VISIBLE_DEVICES"), ""
    unknown = total.unknown if total is not None else None
    count = (
        _counted(total.text, total.line, f"--num_processes {total.text}") if total and not unknown else None
    )
    why = _why(unknown) if unknown else "the file of accelerate has the processes"
    return count, "" if count else why


def _option(words: Sequence[Word], names: frozenset[str]) -> Word | None:
    """Return the value of an option, the last one where there are several."""
    for at in range(len(words) - 1, -1, -1):
        name, equals, value = words[at].text.partition("=")
        if name in names:
            if equals:
                return Word(value, words[at].line, words[at].unknown)
            return words[at + 1] if at + 1 < len(words) else None
    return None


def variable_devices(script: Script, command: Command, outside: Mapping[str, str]) -> Written | None:
    """Return the processes of NPROC_PER_NODE and NNODES (ms-swift), or one device seen alone."""
    each = _variable("NPROC_PER_NODE", script, command, outside)
    nodes = _variable("NNODES", script, command, outside)
    if each is not None:
        count = nodes.value if nodes else 1
        return Written(each.value * count, each.line, " ".join(x.words for x in (nodes, each) if x))
    visible = command.environment.get("CUDA_VISIBLE_DEVICES") or script.variables.get("CUDA_VISIBLE_DEVICES")
    if isinstance(visible, tuple) and unknown_of(visible) is None and text_of(visible).isdigit():
        return Written(1, command.line, f"CUDA_VISIBLE_DEVICES={text_of(visible)}")
    return None


def _variable(name: str, script: Script, command: Command, outside: Mapping[str, str]) -> Written | None:
    text = command.environment.get(name) or script.variables.get(name)
    if isinstance(text, tuple) and unknown_of(text) is None and re.fullmatch(r"0*[1-9]\d*", text_of(text)):
        line = text[0].line if text else command.line
        return Written(int(text_of(text)[:6]), line, f"{name}={text_of(text)}")
    value = outside.get(name, "")
    return _counted(value, None, f"{name}={value}")


def _processes(launchers: Collection[str], script: Script) -> Word | None:
    """Return the processes of a node that no option says: Slurm's devices, or one of PyTorch's launchers.

    Operators of Kubernetes set PET_NNODES and the number of processes, which is not known then.
    """
    gpus = script.directives.get("gpus-per-node") or script.directives.get("gres")
    if gpus is not None and gpus_in(gpus.value):
        return Word(gpus_in(gpus.value), gpus.line)
    return (
        Word("1", 0) if _OF_TORCH.intersection(launchers) and "PET_NNODES" not in script.variables else None
    )


def _product(per_node: Word | None, nodes: Word) -> tuple[Written | None, str]:
    if per_node is None:
        return None, "the launcher is not told the processes of a node"
    for word in (per_node, nodes):
        if word.unknown is not None:
            return None, _why(word.unknown)
        if not word.text.isdigit() or len(word.text) > 6 or int(word.text) < 1:
            return None, f"the launcher has {word.text!r} (line {word.line})"
    shown = f"{nodes.text} nodes x {per_node.text} processes"
    return Written(int(per_node.text) * int(nodes.text), per_node.line or nodes.line, shown), ""


def _why(unknown: Unknown) -> str:
    name = f": give --set {unknown.name}=VALUE or --devices N" if unknown.name else ": give --devices N"
    return f"the number of devices depends on {unknown.reason} (line {unknown.line}){name}"


def _slurm_tasks(script: Script, started: Command) -> tuple[Written | None, str]:
    """Return the tasks that Slurm starts, by its options in the script or those of the srun around a program.

    A script may start others with srun, such as one that copies files to each node.
    """
    options: dict[str, Word] = {
        name: Word(directive.value, directive.line) for name, directive in script.directives.items()
    }
    for command in _sruns(script, started):
        options |= _srun_options(command.words)
    tasks, nodes = options.get("ntasks"), options.get("nodes")
    per_node = options.get("ntasks-per-node") or options.get("gpus-per-node")
    if tasks is not None:
        return _product(tasks, Word("1", 0))
    if nodes is None or per_node is None:
        return _world_size(script.variables)
    gpus = gpus_in(per_node.text)
    return _product(Word(gpus or per_node.text, per_node.line, per_node.unknown), nodes)


def _sruns(script: Script, started: Command) -> Sequence[Command]:
    """Return the last srun up to a program, which starts it; all of them where none comes before it."""
    end = next((at for at, one in enumerate(script.commands) if one is started), len(script.commands))
    sruns = [at for at, one in enumerate(script.commands) if one.words[0].text.rsplit("/", 1)[-1] == "srun"]
    before = [at for at in sruns if at <= end]
    return [script.commands[at] for at in before[-1:] or sruns]


def _srun_options(words: Sequence[Word]) -> Mapping[str, Word]:
    names = {
        "ntasks": frozenset({"--ntasks", "-n"}),
        "nodes": frozenset({"--nodes", "-N"}),
        "ntasks-per-node": frozenset({"--ntasks-per-node"}),
        "gpus-per-node": frozenset({"--gpus-per-node"}),
    }
    end = next(
        (i for i, w in enumerate(words) if i and not w.text.startswith("-") and "python" in w.text),
        len(words),
    )
    return {name: w for name, flags in names.items() if (w := _option(words[:end], flags)) is not None}


def _world_size(variables: Mapping[str, object]) -> tuple[Written | None, str]:
    """Return the processes that the variable WORLD_SIZE of the script says."""
    value = variables.get("WORLD_SIZE")
    if isinstance(value, tuple) and len(value) == 1 and value[0].unknown is None and value[0].text.isdigit():
        return Written(int(value[0].text[:9]), value[0].line, f"WORLD_SIZE={value[0].text}"), ""
    return None, "no launcher says how many processes it starts: give --devices N"


_PROGRAM_FILE: Final = re.compile(r"(?:.*/)?[\w.-]+\.py")
#: A command with fewer of the arguments, and no batch, does something else, such as an evaluation.
_SHARE: Final = 0.7
_NUMBER: Final = re.compile(r"[1-9]\d*")
#: Fields whose values are whole numbers.
_SIZES: Final = frozenset({"mbs", "global_batch_size", "sequence_length", "tp", "pp", "cp", "ep"})


def without_differing(
    script: Script, command: Command | None, words: Sequence[Word], recognises: Callable[[str], bool]
) -> tuple[list[Word], list[str]]:
    """Return the arguments, unknown where commands differ, and notes; raises SpecError for sizes."""
    if command is None:
        return list(words), []
    own = _options(words, recognises)
    others = [
        options
        for other in script.commands
        if other is not command and _program(other.words) == _program(command.words)
        if len(options := _options(other.words, recognises)) >= max(_SHARE * len(own), 1) or _trains(options)
    ]
    different = {
        name for options in others for name in {*own, *options} if _text(options, name) != _text(own, name)
    }
    if not different:
        return list(words), []
    _check_sizes(script, [own, *others], different)
    unknown = Unknown("which of several commands is meant", command.line)
    changed = [word for at, word in enumerate(words) for word in _left(words, at, different, unknown)]
    added = [
        word
        for name in sorted(different - own.keys())
        for word in (Word(name, command.line), Word("", command.line, unknown))
    ]
    note = f"{len(others) + 1} commands start the program: what they differ in is left open"
    return changed + added, [note]


def _trains(options: Iterable[str]) -> bool:
    """Return whether options have a batch of training, which no evaluation has."""
    return any("mbs" in fields_named(name.lstrip("-")) for name in options)


def _program(words: Sequence[Word]) -> tuple[str, ...]:
    """Return what a command starts: a Python program, a module, or the words before its options."""
    if not words or words[0].text in SHOWING:
        return ()
    texts = [word.text for word in words]
    named = next((text for text in texts if _PROGRAM_FILE.fullmatch(text)), None)
    if named is None and "-m" in texts[:-1]:
        named = texts[len(texts) - texts[::-1].index("-m")]
    return (named,) if named else tuple(takewhile(lambda text: not text.startswith("-"), texts))


def _text(options: Mapping[str, Word], name: str) -> str | None:
    return options[name].text if name in options else None


def _check_sizes(script: Script, commands: Sequence[Mapping[str, Word]], names: Iterable[str]) -> None:
    """Raise SpecError where a size is a number in one command and none in another."""
    problems = []
    for name in sorted(names):
        values = [options[name] for options in commands if name in options and not options[name].unknown]
        numbers = [value for value in values if _NUMBER.fullmatch(value.text)]
        if not numbers or not _SIZES.intersection(fields_named(name.lstrip("-"))):
            continue
        problems += [
            Problem(
                f"it is {value.text[:60]!r}: a number, as in line {numbers[0].line}",
                name,
                script.file,
                value.line,
            )
            for value in values
            if value not in numbers
        ]
    if problems:
        raise SpecError(problems)


def _options(words: Sequence[Word], recognises: Callable[[str], bool]) -> Mapping[str, Word]:
    """Return the recognised arguments by name with their values."""
    return {
        name: _value(words, at)
        for at, word in enumerate(words)
        if recognises(name := word.text.partition("=")[0])
    }


def _value(words: Sequence[Word], at: int) -> Word:
    """Return the value of the option at a place, its words joined."""
    word = words[at]
    inside = word.text.partition("=")[2]
    behind = list(takewhile(lambda further: not further.text.startswith("--"), words[at + 1 :]))
    unknown = next((further.unknown for further in (word, *behind) if further.unknown), None)
    return Word(inside or " ".join(further.text for further in behind).strip(), word.line, unknown)


def _left(words: Sequence[Word], at: int, different: set[str], unknown: Unknown) -> list[Word]:
    """Return the words that stand for one: its value is not known where commands differ in it."""
    word = words[at]
    name = word.text.partition("=")[0]
    if name in different:
        return [Word(name, word.line), Word("", word.line, unknown)]
    before = next((b for b in reversed(words[:at]) if b.text.startswith("--")), None)
    valued = before is not None and not word.text.startswith("--") and "=" not in before.text
    return [] if valued and before is not None and before.text in different else [word]
