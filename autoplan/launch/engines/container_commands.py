"""Commands of containers in manifests: Kubernetes, Compose, Dynamo, and values of charts that serve.

Each container becomes a script whose words have their lines in the manifest, so that the reader of scripts
reads it, and so that problems name these lines. Nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

from autoplan.errors import Problem, SpecError
from autoplan.launch.engines.chart_engines import chart_engines
from autoplan.launch.engines.container_words import (
    CHARTS,
    ROLES,
    STARTS,
    TABLES,
    Around,
    ServedContainer,
    Token,
    counted,
    filled_words,
    inner_text,
    served,
    tokens_of,
)
from autoplan.launch.job_manifests import config_files, environment_of, mapping_of, scalar_of
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.shell_reader import read_script

__all__ = ["ServedContainer", "container_script", "is_manifest", "served_containers"]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Images whose entry point is the engine's server, and the words for it.
_IMAGE: Final = r"vllm-(?:openai|rocm|gaudi|hpu|cpu|xpu|arc|ascend|tpu|neuron)"
_ENTRY: Final = ((re.compile(rf"(?:^|/){_IMAGE}[\w.-]*(?:[:@]|$)"), ("vllm", "serve")),)
_MODEL, _DEGREE = (TABLES["vllm"].keys[name] for name in ("model", "tp"))
#: The key of a section of vLLM's arguments, and one of its keys.
_SECTION: Final = (re.compile(r"(?m)^\s*vllm\s*:"), re.compile(rf"(?m)^\s+{_DEGREE.removeprefix('--')}\s*:"))
_SERVING: Final = re.compile(
    r"\bvllm\s+serve\b|vllm\.entrypoints|sglang\.launch_server|\bsglang\s+serve\b|\btrtllm-serve\b"
    rf"|\bdynamo\.(?:vllm|sglang|trtllm)\b|{_IMAGE}|\bmodelSpec\s*:|\bserverArgs\s*:|\bmodelCommand\s*:"
    rf"|\bstart_command\s*:|\bllm_configs\s*:|\bextraCmdArgs\s*:"
    r"|\bresourceProfile\s*:|\b(?:LLMInferenceService|VLLMRuntime|ModelBooster)\s|\b(?:sglang|vllm|trtllm)_config\s*:"
)
_KIND: Final = re.compile(
    r"(?m)^\s*(?:kind|services|image|applications|start_command|modelSpec|serverArgs|modelArtifacts"
    r"|(?:sglang|vllm|trtllm)_config)\s*:"
)
_TEMPLATE: Final = re.compile(r"\{\{-?\s*[\w.$#(]")
_DEEPEST: Final = 60
#: Pods of a group that is one engine (LeaderWorkerSet).
_LED: Final = frozenset({"leaderTemplate", "workerTemplate"})


def is_manifest(text: str) -> bool:
    """Return whether a YAML text is a manifest or values of a chart that start an engine."""
    # Words of a command stand in one line, or each in one of their own.
    words = re.sub(r"[\s,'\"\[\]]+(?:-\s+)?", " ", text)
    serving = (_SERVING.search(text) or _SERVING.search(words)) is not None
    return _KIND.search(text) is not None and (serving or _has_arguments(text))


def _has_arguments(text: str) -> bool:
    """Return whether a text has arguments of vLLM's server without its name, or a section of them."""
    return (_MODEL in text and _DEGREE in text) or all(sign.search(text) for sign in _SECTION)


def served_containers(text: str, name: str, outside: Mapping[str, str]) -> list[ServedContainer]:
    """Return the containers of a manifest that serve, in order; raises SpecError for what is no YAML.

    ``outside`` are variables that the user sets.
    """
    roots = _roots(text, name)
    documents = {key: value for root in roots for key, value in config_files(root)}
    around = Around(outside=outside)
    found = [c for root in roots for c in (*chart_engines(root), *_containers(root, around, 0))]
    served = [replace(c, documents={**documents, **c.documents}) for c in found if _serves(c)]
    # A worker beside one that only prefills decodes, whether its manifest says so or not.
    if any(c.role == "prefill" for c in served):
        served = [replace(c, role=c.role or "decode") for c in served]
    return served


def _serves(container: ServedContainer) -> bool:
    return _SERVING.search(" ".join(token.text for token in container.tokens)) is not None


def _roots(text: str, name: str) -> list[yaml.Node]:
    try:
        nodes = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        hint = ": it is a template of Helm, so give its values or what `helm template` prints"
        said = hint if _TEMPLATE.search(text) else f": {str(error).splitlines()[0][:120]}"
        problem = Problem(f"it is no YAML{said}", "$", name, mark.line + 1 if mark else None)
        raise SpecError([problem]) from error
    except RecursionError as error:
        raise SpecError([Problem("nested too deeply", "$", name)]) from error
    return [node for node in nodes if isinstance(node, yaml.MappingNode)]


def _containers(node: yaml.Node, around: Around, depth: int) -> Iterator[ServedContainer]:
    """Yield the containers at and below ``node``."""
    if depth > _DEEPEST:
        return
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _containers(item, around, depth + 1)
        return
    values = mapping_of(node)
    around = _narrowed(values, around)
    container = _container(values, around)
    if container is not None:
        yield container
        return
    leading = list(_containers(values["leaderTemplate"], around, depth + 1)) if values.keys() >= _LED else []
    yield from leading
    # Workers of a group start parts of the engine that its leader starts.
    aside = _LED if any(map(_serves, leading)) else {"leaderTemplate"} if leading else frozenset()
    for key, inner in values.items():
        if key not in {"status", "initContainers", "metadata", *aside}:
            several = key == CHARTS["roles_of_service"]
            below = replace(around, replicas=1, services=around.replicas) if several else around
            yield from _containers(inner, below, depth + 1)


def _narrowed(values: Mapping[str, yaml.Node], around: Around) -> Around:
    """Return what is said around the values of a mapping, with what they say themselves."""
    spec = mapping_of(values.get("spec")) or mapping_of(values.get("deploy"))
    counts = [counted(place.get(key)) for place in (values, spec) for key in CHARTS["copies"]]
    replicas = next((count for count in counts if count is not None), around.replicas)
    named = [scalar_of(values.get(key)) for key in CHARTS["role_keys"]]
    named += [scalar_of(values.get("name"))] if "template" in values else []
    role = next((name for name in (*named, *_labelled_roles(values)) if name in ROLES), around.role)
    return replace(around, replicas=replicas, devices=_device_count(values) or around.devices, role=role)


def _labelled_roles(values: Mapping[str, yaml.Node]) -> Iterator[str | None]:
    """Yield what labels and annotations of a pod say of a role, such as ``llm-d.ai/role: prefill``."""
    metadata = mapping_of(values.get("metadata"))
    for section in ("labels", "annotations"):
        for key, node in mapping_of(metadata.get(section)).items():
            if key.rpartition("/")[2] == "role":
                yield scalar_of(node)


def _device_count(values: Mapping[str, yaml.Node]) -> int | None:
    """Return the devices that the resources of a container, or of a component, name."""
    resources = mapping_of(values.get("resources"))
    for part in ("limits", "requests"):
        named = mapping_of(resources.get(part))
        count = next((n for key in CHARTS["devices"] if (n := counted(named.get(key))) is not None), None)
        if count is not None:
            return count
    return None


def _container(values: Mapping[str, yaml.Node], around: Around) -> ServedContainer | None:
    """Return the container that a mapping is; None where it starts nothing."""
    image = scalar_of(values.get("image")) or ""
    before = next((values[key] for key in CHARTS["command"] if key in values and key != "command"), None)
    command, behind = values.get("command"), values.get(CHARTS["arguments"][0])
    if before is None and command is None and behind is None:
        return None
    tokens = [token for node in (before, command, behind) if node is not None for token in tokens_of(node)]
    if not tokens or not (image or before or command):
        return None
    variables = environment_of(values.get("env") or values.get("environment"))
    entry: tuple[str, ...] = next((words for pattern, words in _ENTRY if pattern.search(image)), ())
    if not entry and command is None and _takes_engine_words(tokens):
        entry = STARTS["vllm"]
    if entry and _is_argument(tokens[0].text) and (before is None):
        tokens = [*(Token(word, tokens[0].line) for word in entry), *tokens]
    around = replace(around, devices=_device_count(values) or around.devices)
    return served(tokens, around, variables)


def _takes_engine_words(tokens: Sequence[Token]) -> bool:
    """Return whether arguments alone are those of vLLM's server: the model and its tensor degree."""
    names = {token.text.partition("=")[0] for token in tokens}
    return {TABLES["vllm"].keys["model"], TABLES["vllm"].keys["tp"]} <= names


def _is_argument(text: str) -> bool:
    """Return whether a first word is one of an entry point: an argument, or the name of a model."""
    first = next(iter(text.split()), "")
    return first.startswith("-") or re.fullmatch(r"[\w.-]+/[\w.-]+", first) is not None


def container_script(container: ServedContainer, name: str, variables: Mapping[str, str]) -> Script:
    """Return what a container does, started with its environment and ``variables`` from outside."""
    environment = {**container.variables, **variables}
    text = inner_text(container.tokens)
    if text is not None:
        return read_script(text, name, environment)
    command = Command(filled_words(container.tokens, environment), container.line)
    return Script(name, (command,), {}, {})
