"""Scripts that manifests of jobs hold: tasks of dstack, SkyPilot and Beaker, jobs of Kubernetes, Dockerfiles.

What a manifest runs becomes a script whose words have their lines in the manifest, with the environment that
the manifest sets; nothing is built or executed. What a container of a Dockerfile runs is the entry point of
its last stage and the words of CMD behind it; a shell reads those that are no list. Manifests that serve in
containers are read where engines are. Sources: dstack 0.19 reference of tasks and services; SkyPilot 0.14
task YAML; Kubernetes core/v1 Container and kubeflow.org/v1 PyTorchJob; Dockerfile reference of Docker 28.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from autoplan.errors import Problem, SpecError
from autoplan.launch.configuration import LaunchFile


def yaml_roots(text: str, name: str, hint: str | None = None) -> list[yaml.Node]:
    """Return the mappings of a YAML text; raises SpecError for what is none, with a ``hint`` or its place."""
    try:
        nodes = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = str(error).splitlines()[0][:120]
        problem_of_text = getattr(error, "problem", None) if hint is None else None
        said = hint or f": {problem_of_text or line}"
        problem = Problem(f"it is no YAML{said}", "$", name, mark.line + 1 if mark else None)
        raise SpecError([problem]) from error
    except RecursionError as error:
        raise SpecError([Problem("nested too deeply", "$", name)]) from error
    return [node for node in nodes if isinstance(node, yaml.MappingNode)]


def _beside(file: LaunchFile, files: Mapping[str, str]) -> Callable[[str], str | None]:
    """Return what reads a file that lies in a manifest, or beside it."""
    return lambda name: files.get(name.rpartition("/")[2]) or file.sibling(name)


@dataclass(slots=True)
class ScriptText:
    """A script under construction, each part of it in the line that it has in the manifest."""

    text: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    def add(self, line: int, part: str) -> None:
        """Add a part that begins in ``line``; what comes before it ends there."""
        missing = line - 1 - self.text.count("\n")
        self.text += "\n" * max(missing, 1 if self.text and not self.text.endswith("\n") else 0) + part

    def add_words(self, words: Sequence[tuple[int, str]]) -> None:
        """Add the words of one command, each in its line."""
        for at, (line, word) in enumerate(words):
            missing = line - 1 - self.text.count("\n")
            between = " \\\n" * missing if at else "\n" * missing
            self.text += (between or (" " if at else "")) + quoted(word)
        self.text += "\n"


def quoted(word: str) -> str:
    """Return a word as a shell reads it, with its variables."""
    if re.fullmatch(r"[\w@%+=:,./${}-]+", word):
        return word
    return '"' + re.sub(r'([\\"`])', r"\\\1", word) + '"'


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


#: The values of a mapping by key.
Nodes = Mapping[str, yaml.Node]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DSTACK: Final = (
    re.compile(r"(?m)^type\s*:\s*(?:task|service|dev-environment)\b"),
    re.compile(r"(?m)^commands\s*:"),
)
_SKYPILOT: Final = (re.compile(r"(?m)^run\s*:\s*[|>]"), re.compile(r"(?m)^(?:resources|num_nodes|setup)\s*:"))
_BEAKER: Final = (re.compile(r"(?m)^tasks\s*:"), re.compile(r"(?m)^\s*beaker\s*:"))
#: Kinds of Kubernetes whose containers train.
_KINDS: Final = re.compile(r"(?m)^\s*kind\s*:\s*[\"']?(?:\w*Job|Pod|JobSet|TrainingRuntime|ElasticJob)\b")
_CONTAINERS: Final = re.compile(r"(?m)^\s*(?:-\s+)?containers\s*:")
#: Words of a command that trains: a program in Python, behind a launcher or not.
_TRAINS: Final = re.compile(
    r"\btorchrun\b|\bdeepspeed\b|\baccelerate\s+launch\b|\.py\b|torch\.distributed|\btune\s+run\b"
    r"|\b(?:swift|megatron)\s+(?:sft|pt|rlhf)\b|\bllamafactory-cli\s+train\b|\baxolotl\s+train\b"
)
_SHELL: Final = re.compile(r"(?:.*/)?(?:ba|z|k|da)?sh")
_DEEPEST: Final = 60


def with_script(file: LaunchFile) -> LaunchFile:
    """Return the script that a manifest or Dockerfile runs, or the file; raises SpecError for no YAML."""
    if file.values is None and is_dockerfile(file.text):
        text, stated, files = script_of_dockerfile(file.text, file.name)
        variables = {**stated, **file.variables}
        return replace(file, text=text, variables=variables, script=True, sibling=_beside(file, files))
    if file.values is not None or not _is_manifest(file.text):
        return file
    roots = yaml_roots(file.text, file.name)
    script = ScriptText()
    devices: int | None = None
    for root in roots:
        devices = _added(root, file.text, script) or devices
    if not script.text.strip():
        return file
    variables = {**script.variables, **file.variables}
    # One device is what any program without a launcher runs on.
    own = devices if devices == 1 and file.devices is None else file.devices
    files = {name: text for root in roots for name, text in config_files(root)}
    read = replace(file, text=script.text, variables=variables, devices=own, script=True)
    return replace(read, sibling=_beside(file, files))


def _added(root: yaml.Node, text: str, script: ScriptText) -> int | None:
    """Add what a document of a manifest runs; return the devices of all nodes, where it says them."""
    if _fits(_DSTACK, text):
        return _dstack(mapping_of(root), script)
    if _fits(_SKYPILOT, text):
        return _skypilot(mapping_of(root), script)
    if _fits(_BEAKER, text):
        for task in items_of(mapping_of(root).get("tasks")):
            _container(mapping_of(task), script)
    elif not script.text:
        script.variables |= _nodes_of_job(mapping_of(root))
        _kubernetes(root, script, 0)
    return None


def config_files(root: yaml.Node) -> Iterator[tuple[str, str]]:
    """Yield the files of a ConfigMap by name."""
    values = mapping_of(root)
    if scalar_of(values.get("kind")) == "ConfigMap":
        for key, node in mapping_of(values.get("data")).items():
            if isinstance(node, yaml.ScalarNode):
                yield key, node.value


def _is_manifest(text: str) -> bool:
    jobs = _KINDS.search(text) is not None and _CONTAINERS.search(text) is not None
    return jobs or any(_fits(signs, text) for signs in (_DSTACK, _SKYPILOT, _BEAKER))


def _fits(signs: Sequence[re.Pattern[str]], text: str) -> bool:
    return all(sign.search(text) for sign in signs)


def _dstack(values: Mapping[str, yaml.Node], script: ScriptText) -> int | None:
    """Add the commands of a task or service of dstack; return the devices of all nodes."""
    script.variables |= environment_of(values.get("env"))
    gpus = mapping_of(values.get("resources")).get("gpu")
    each, nodes = _dstack_count(gpus), _integer(scalar_of(values.get("nodes"))) or 1
    if each is not None:
        counts = {"GPUS_PER_NODE": each, "GPUS_NUM": each * nodes, "NODES_NUM": nodes}
        script.variables |= {f"DSTACK_{name}": str(count) for name, count in counts.items()}
    for node in items_of(values.get("commands")):
        script.add(line_of(node), scalar_of(node) or "")
    return None if each is None else each * nodes


def _dstack_count(node: yaml.Node | None) -> int | None:
    """Return the number of devices of a node: ``H100:8``, ``24GB`` for one, or a mapping with ``count``."""
    text = scalar_of(node)
    if text is None:
        return _integer(scalar_of(mapping_of(node).get("count"))) if node is not None else None
    parts = [part for part in text.split(":") if re.fullmatch(r"\d+", part)]
    several = ".." in text.rpartition(":")[2]
    return None if several else int(parts[0]) if parts else 1


def _skypilot(values: Mapping[str, yaml.Node], script: ScriptText) -> int | None:
    """Add what a task of SkyPilot runs; return the devices of all nodes."""
    script.variables |= environment_of(values.get("envs"))
    accelerators = mapping_of(values.get("resources")).get("accelerators")
    text = scalar_of(accelerators) or next(
        (f"{name}:{scalar_of(node)}" for name, node in mapping_of(accelerators).items()), ""
    )
    each = _integer(text.rpartition(":")[2]) if ":" in text else 1 if text else None
    nodes = _integer(scalar_of(values.get("num_nodes"))) or 1
    if each is not None:
        script.variables |= {"SKYPILOT_NUM_GPUS_PER_NODE": str(each), "SKYPILOT_NUM_NODES": str(nodes)}
    node = values["run"]
    script.add(line_of(node), scalar_of(node) or "")
    return None if each is None else each * nodes


def _kubernetes(node: yaml.Node, script: ScriptText, depth: int) -> None:
    """Add the command of the first container at or below ``node`` that trains."""
    if depth > _DEEPEST or script.text:
        return
    for item in items_of(node):
        _kubernetes(item, script, depth + 1)
    values = mapping_of(node)
    for container in items_of(values.get("containers")):
        _container(mapping_of(container), script)
    for key, inner in values.items():
        if key not in {"status", "initContainers", "metadata", "containers"}:
            _kubernetes(inner, script, depth + 1)


def _nodes_of_job(values: Mapping[str, yaml.Node]) -> dict[str, str]:
    """Return the variable that the training operator sets for a PyTorchJob: the nodes of all replicas."""
    replicas = mapping_of(mapping_of(values.get("spec")).get("pytorchReplicaSpecs"))
    if scalar_of(values.get("kind")) != "PyTorchJob" or not replicas:
        return {}
    counts = [_integer(scalar_of(mapping_of(node).get("replicas")) or "1") for node in replicas.values()]
    return {"PET_NNODES": str(sum(n for n in counts if n))} if None not in counts else {}


def _container(values: Mapping[str, yaml.Node], script: ScriptText) -> None:
    """Add the command of a container where it trains."""
    nodes = [values[key] for key in ("command", "args", "arguments") if key in values]
    words = [
        (line_of(item), _filled(scalar_of(item) or "")) for node in nodes for item in items_of(node) or [node]
    ]
    if script.text or not _TRAINS.search(" ".join(word for _, word in words)):
        return
    script.variables |= environment_of(values.get("env") or values.get("envVars"))
    at = next((i for i, (_, word) in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), None)
    if at is not None and _SHELL.fullmatch(words[0][1]) and at + 1 < len(words):
        script.add(*words[at + 1])
    elif any(not items_of(node) for node in nodes):
        for line, word in words:
            script.add(line, word)
    else:
        script.add_words(words)


def _filled(text: str) -> str:
    """Return a word with the references of Kubernetes as those of a shell: ``$(NAME)`` is ``${NAME}``."""
    return re.sub(r"\$\((\w+)\)", r"${\1}", text)


def environment_of(node: yaml.Node | None) -> dict[str, str]:
    """Return an environment: a mapping, a list of names and values, or a list of ``NAME=VALUE``."""
    values = {key: text for key, inner in mapping_of(node).items() if (text := scalar_of(inner)) is not None}
    for item in items_of(node):
        pair, text = mapping_of(item), scalar_of(item) or ""
        name, value = scalar_of(pair.get("name")), scalar_of(pair.get("value"))
        if name is not None and value is not None:
            values[name] = value
        elif "=" in text:
            values.update([tuple(text.split("=", 1))])  # type: ignore[list-item]
    return {name: value for name, value in values.items() if name.isidentifier()}


def mapping_of(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Return the values of a mapping by key; nothing for any other node."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(getattr(key, "value", "")): value for key, value in node.value}


def items_of(node: yaml.Node | None) -> list[yaml.Node]:
    """Return the items of a sequence; nothing for any other node."""
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def scalar_of(node: yaml.Node | None) -> str | None:
    """Return the text of a scalar; None for any other node."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[1-9][0-9]{0,5}", text) else None


def line_of(node: yaml.Node) -> int:
    """Return the line in which the text of a scalar begins; that of a block is the one below its sign."""
    line: int = node.start_mark.line + 1
    return line + 1 if getattr(node, "style", None) in {"|", ">"} else line
