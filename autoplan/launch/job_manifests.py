"""Scripts that manifests of jobs hold: tasks of dstack, SkyPilot and Beaker, and jobs of Kubernetes.

What a manifest runs becomes a script whose words have their lines in the manifest, with the environment that
the manifest sets; nothing is executed. Manifests that serve in containers are read where engines are.
Sources: dstack 0.19 reference of tasks and services; SkyPilot 0.14 task YAML; Kubernetes core/v1 Container
and kubeflow.org/v1 PyTorchJob.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

from autoplan.errors import Problem, SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.dockerfiles import is_dockerfile, script_of_dockerfile
from autoplan.launch.script_text import ScriptText

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
    """Return the script that a job's manifest or a Dockerfile runs, as a file; any other file as it is.

    Raises SpecError for a manifest that is no YAML.
    """
    if file.values is None and is_dockerfile(file.text):
        return _of_dockerfile(file)
    if file.values is not None or not _is_manifest(file.text):
        return file
    roots = _roots(file)
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

    def sibling_text(name: str) -> str | None:
        return files.get(name.rpartition("/")[2]) or file.sibling(name)

    return replace(
        file, text=script.text, variables=variables, devices=own, script=True, sibling=sibling_text
    )


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


def _of_dockerfile(file: LaunchFile) -> LaunchFile:
    """Return the script that the container of a Dockerfile runs, with the files that it writes."""
    text, variables, files = script_of_dockerfile(file.text, file.name)

    def sibling_text(name: str) -> str | None:
        return files.get(name.rpartition("/")[2]) or file.sibling(name)

    return replace(
        file, text=text, variables={**variables, **file.variables}, script=True, sibling=sibling_text
    )


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


def _roots(file: LaunchFile) -> list[yaml.Node]:
    try:
        nodes = list(yaml.compose_all(file.text, Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        sentence = f"it is no YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0][:120]}"
        raise SpecError([Problem(sentence, "$", file.name, mark.line + 1 if mark else None)]) from error
    except RecursionError as error:
        raise SpecError([Problem("nested too deeply", "$", file.name)]) from error
    return [node for node in nodes if isinstance(node, yaml.MappingNode)]


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
