"""Commands of containers in manifests: Kubernetes, Compose, Dynamo, and values of charts that serve.

Each container becomes a script whose words have their lines in the manifest, so that the reader of scripts
reads it, and so that problems name these lines. Nothing is executed.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.job_manifests import config_files, environment_of, line_of, mapping_of, scalar_of
from autoplan.launch.scripts.pieces import Unknown, Word
from autoplan.launch.scripts.script import SHELLS, Command, Script
from autoplan.launch.scripts.shell_reader import read_script

__all__ = ["ServedContainer", "container_script", "is_manifest", "served_containers"]

_CHARTS: Final = interface("serving-charts").data
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TABLES: Final = {name: interface(name) for name in ("vllm", "sglang", "tensorrt-llm")}
#: What starts each engine.
_STARTS: Final = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python3", "-m", "sglang.launch_server"),
    "tensorrt-llm": ("trtllm-serve", "serve"),
}
#: Modules of Dynamo's workers, and what starts the same engine alone.
_WORKERS: Final = {
    "dynamo.vllm": _STARTS["vllm"],
    "dynamo.sglang": _STARTS["sglang"],
    "dynamo.trtllm": _STARTS["tensorrt-llm"],
}
#: Arguments of TensorRT-LLM's server by what Dynamo's worker calls them.
_OF_TRTLLM: Final = {
    flag: _TABLES["tensorrt-llm"].keys[name] for name, flag in _TABLES["tensorrt-llm"].data["dynamo"].items()
}
#: Arguments that name the model of a worker of TensorRT-LLM.
_MODELS: Final = frozenset(_TABLES[name].keys["model"] for name in ("sglang", "tensorrt-llm"))
#: Images whose entry point is the engine's server, and the words for it.
_IMAGE: Final = r"vllm-(?:openai|rocm|gaudi|hpu|cpu|xpu|arc|ascend|tpu|neuron)"
_ENTRY: Final = ((re.compile(rf"(?:^|/){_IMAGE}[\w.-]*(?:[:@]|$)"), ("vllm", "serve")),)
_SERVING: Final = re.compile(
    r"\bvllm\s+serve\b|vllm\.entrypoints|sglang\.launch_server|\bsglang\s+serve\b|\btrtllm-serve\b"
    rf"|\bdynamo\.(?:vllm|sglang|trtllm)\b|{_IMAGE}|\bmodelSpec\s*:|\bserverArgs\s*:|\bmodelCommand\s*:"
    r"|\bresourceProfile\s*:|\b(?:LLMInferenceService|VLLMRuntime)\s|\b(?:sglang|vllm|trtllm)_config\s*:"
)
_KIND: Final = re.compile(
    r"(?m)^\s*(?:kind|services|image|modelSpec|serverArgs|modelArtifacts|(?:sglang|vllm|trtllm)_config)\s*:"
)
_TEMPLATE: Final = re.compile(r"\{\{-?\s*[\w.$#(]")
_VARIABLE: Final = re.compile(r"\$\((\w+)\)|\$\{(\w+)(?::?-([^}]*))?\}")
_DEEPEST: Final = 60
#: Pods of a group that is one engine (LeaderWorkerSet).
_LED: Final = frozenset({"leaderTemplate", "workerTemplate"})
_ROLES: Final = frozenset({"prefill", "decode"})


@dataclass(frozen=True, slots=True)
class _Token:
    """A word of a command with its line; that to ``split`` is read as a shell reads it.

    A word that a shell has read is ``unknown`` where its value is.
    """

    text: str
    line: int
    split: bool = False
    unknown: Unknown | None = None


@dataclass(frozen=True, slots=True)
class ServedContainer:
    """A container that serves: the words of its command, and what the manifest says around it.

    ``replicas`` is how many of it run, ``devices`` the devices that one is given, ``role`` that of a pool.
    ``documents`` are files that the manifest holds, by name.
    """

    tokens: tuple[_Token, ...]
    replicas: int = 1
    devices: int | None = None
    role: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What a shell would read of its command."""
        return _inner_text(self.tokens) or ""

    @property
    def line(self) -> int:
        """The line in which its command begins."""
        return self.tokens[0].line


@dataclass(frozen=True, slots=True)
class _Around:
    """What the mappings around a container say."""

    replicas: int = 1
    devices: int | None = None
    role: str | None = None
    outside: Mapping[str, str] = field(default_factory=dict)
    #: Copies of the whole service that has several roles.
    services: int = 1


def is_manifest(text: str) -> bool:
    """Return whether a YAML text is a manifest or values of a chart that start an engine."""
    # Words of a command stand in one line, or each in one of their own.
    words = re.sub(r"[\s,'\"\[\]]+(?:-\s+)?", " ", text)
    return _KIND.search(text) is not None and (_SERVING.search(text) or _SERVING.search(words)) is not None


def served_containers(text: str, name: str, outside: Mapping[str, str]) -> list[ServedContainer]:
    """Return the containers of a manifest that serve, in order; raises SpecError for what is no YAML.

    ``outside`` are variables that the user sets.
    """
    roots = _roots(text, name)
    documents = {key: value for root in roots for key, value in config_files(root)}
    around = _Around(outside=outside)
    found = [c for root in roots for c in (*_charts(root), *_containers(root, around, 0))]
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


def _count(node: yaml.Node | None) -> int | None:
    text = scalar_of(node) or ""
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,5}", text) else None


def _containers(node: yaml.Node, around: _Around, depth: int) -> Iterator[ServedContainer]:
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
            several = key == _CHARTS["roles_of_service"]
            below = replace(around, replicas=1, services=around.replicas) if several else around
            yield from _containers(inner, below, depth + 1)


def _narrowed(values: Mapping[str, yaml.Node], around: _Around) -> _Around:
    """Return what is said around the values of a mapping, with what they say themselves."""
    spec = mapping_of(values.get("spec")) or mapping_of(values.get("deploy"))
    counts = [_count(place.get(key)) for place in (values, spec) for key in _CHARTS["copies"]]
    replicas = next((count for count in counts if count is not None), around.replicas)
    named = [scalar_of(values.get(key)) for key in _CHARTS["role_keys"]]
    named += [scalar_of(values.get("name"))] if "template" in values else []
    role = next((name for name in (*named, *_labelled_roles(values)) if name in _ROLES), around.role)
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
        count = next((n for key in _CHARTS["devices"] if (n := _count(named.get(key))) is not None), None)
        if count is not None:
            return count
    return None


def _container(values: Mapping[str, yaml.Node], around: _Around) -> ServedContainer | None:
    """Return the container that a mapping is; None where it starts nothing."""
    image = scalar_of(values.get("image")) or ""
    before = next((values[key] for key in _CHARTS["command"] if key in values and key != "command"), None)
    command, behind = values.get("command"), values.get(_CHARTS["arguments"][0])
    if before is None and command is None and behind is None:
        return None
    tokens = [token for node in (before, command, behind) if node is not None for token in _tokens(node)]
    if not tokens or not (image or before or command):
        return None
    variables = environment_of(values.get("env") or values.get("environment"))
    entry = next((words for pattern, words in _ENTRY if pattern.search(image)), ())
    if entry and _is_argument(tokens[0].text) and (before is None):
        tokens = [*(_Token(word, tokens[0].line) for word in entry), *tokens]
    around = replace(around, devices=_device_count(values) or around.devices)
    return _served(tokens, around, variables)


def _is_argument(text: str) -> bool:
    """Return whether a first word is one of an entry point: an argument, or the name of a model."""
    first = next(iter(text.split()), "")
    return first.startswith("-") or re.fullmatch(r"[\w.-]+/[\w.-]+", first) is not None


def _tokens(node: yaml.Node) -> Iterator[_Token]:
    """Yield the words of a command: the items of a list, or a text that a shell splits."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            text = scalar_of(item)
            if text is not None:
                yield _Token(text, line_of(item))
    elif isinstance(node, yaml.ScalarNode):
        yield _Token(node.value, line_of(node), split=True)


def _served(tokens: Sequence[_Token], around: _Around, variables: Mapping[str, str]) -> ServedContainer:
    """Return the container of such words; those of a worker of Dynamo are those of its engine."""
    words, role, documents = _engine_words(tokens, {**variables, **around.outside})
    copies = around.replicas * around.services
    return ServedContainer(
        tuple(words), copies, around.devices, role or around.role, dict(variables), documents
    )


def _words(tokens: Sequence[_Token], variables: Mapping[str, str]) -> tuple[Word, ...]:
    """Return words with variables as Kubernetes and Compose fill them in: ``$(NAME)``, ``${NAME:-value}``."""
    return tuple(_word(token, variables) for token in tokens)


def _word(token: _Token, variables: Mapping[str, str]) -> Word:
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


def _inner_text(tokens: Sequence[_Token]) -> str | None:
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


def container_script(container: ServedContainer, name: str, variables: Mapping[str, str]) -> Script:
    """Return what a container does, started with its environment and ``variables`` from outside."""
    environment = {**container.variables, **variables}
    text = _inner_text(container.tokens)
    if text is not None:
        return read_script(text, name, environment)
    command = Command(_words(container.tokens, environment), container.line)
    return Script(name, (command,), {}, {})


def _engine_words(
    tokens: Sequence[_Token], variables: Mapping[str, str]
) -> tuple[list[_Token], str | None, dict[str, str]]:
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
    tokens: Sequence[_Token], module: str, variables: Mapping[str, str]
) -> tuple[list[_Token], str | None, dict[str, str]]:
    """Return the same of a worker that a shell starts, in a script that may set variables before."""
    script = read_script(_inner_text(tokens) or " ".join(t.text for t in tokens), "", variables)
    for command in script.commands:
        texts = [word.text for word in command.words]
        if module in texts:
            at = texts.index(module)
            words = [_Token(word.text, word.line, unknown=word.unknown) for word in command.words[at + 1 :]]
            return _worker_words(words, _Token(module, command.words[at].line))
    return list(tokens), None, {}


def _worker_words(
    behind: Sequence[_Token], module: _Token
) -> tuple[list[_Token], str | None, dict[str, str]]:
    words = [_Token(word, module.line) for word in _WORKERS[module.text]]
    role, documents, left = None, {}, list(behind)
    while left:
        token = left.pop(0)
        flag, equals, inline = token.text.partition("=")
        value = inline if equals else left[0].text if left else ""
        if flag in _CHARTS["roles"]:
            role = _CHARTS["roles"][flag]
        elif flag == _CHARTS["role"] and module.text != "dynamo.sglang":
            role = value if value in {"prefill", "decode"} else None
            left = left if equals else left[1:]
        elif flag == _CHARTS["override"]:
            documents = {"override.yaml": _as_yaml(value)}
            words += [
                _Token(_TABLES["tensorrt-llm"].keys["options"], token.line),
                _Token("override.yaml", token.line),
            ]
            left = left if equals else left[1:]
        elif flag in _CHARTS["dynamo_valued"]:
            left = left if equals or not left or left[0].text.startswith("-") else left[1:]
        elif module.text == "dynamo.trtllm" and flag in _MODELS:
            # The model is the first word of the engine's own server.
            words += [_Token(inline, token.line)] if equals else []
        elif flag not in _CHARTS["dynamo_plain"]:
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


def _charts(root: yaml.Node) -> Iterator[ServedContainer]:
    """Yield the engines that values of a chart start."""
    values = mapping_of(root)
    engine = mapping_of(values.get("servingEngineSpec"))
    models = engine.get("modelSpec")
    for item in models.value if isinstance(models, yaml.SequenceNode) else ():
        yield from _production_stack(mapping_of(item))
    model = mapping_of(values.get("model"))
    for program in ("vllm", "sglang"):
        section = mapping_of(values.get(program))
        if "serverArgs" in section and model:
            yield _gpu_recipe(program, model, section)
    yield from _llm_d(values)
    yield from _kubeai(values)
    yield from _kserve(values)
    yield from _vllm_runtime(values)
    yield from _srt_slurm(values)


def _production_stack(model: Mapping[str, yaml.Node]) -> Iterator[ServedContainer]:
    """Yield the engine of one model of vllm-project/production-stack."""
    url = model.get("modelURL")
    if url is None:
        return
    config = mapping_of(model.get("vllmConfig"))
    tokens = _start("vllm", url)
    tokens += _options("vllm", _CHARTS["production_stack"], config)
    tokens += _tokens(config["extraArgs"]) if "extraArgs" in config else []
    transfer = scalar_of(mapping_of(model.get("lmcacheConfig")).get("kvRole"))
    role = next((ours for ours, name in _TABLES["vllm"].data["roles"].items() if name == transfer), None)
    replicas = _count(model.get("replicaCount")) or 1
    yield _served(tokens, _Around(replicas, _count(model.get("requestGPU")), role), {})


def _vllm_runtime(values: Mapping[str, yaml.Node]) -> Iterator[ServedContainer]:
    """Yield the engine of a VLLMRuntime of production-stack's operator."""
    spec = mapping_of(values.get("spec"))
    model = mapping_of(spec.get("model"))
    if scalar_of(values.get("kind")) != "VLLMRuntime" or "modelURL" not in model:
        return
    stated = {**model, **mapping_of(spec.get("vllmConfig"))}
    tokens = [*_start("vllm", model["modelURL"]), *_options("vllm", _CHARTS["production_stack"], stated)]
    tokens += _tokens(stated["extraArgs"]) if "extraArgs" in stated else []
    replicas = _count(mapping_of(spec.get("deploymentConfig")).get("replicas")) or 1
    yield _served(tokens, _Around(replicas), {})


def _gpu_recipe(
    program: str, model: Mapping[str, yaml.Node], section: Mapping[str, yaml.Node]
) -> ServedContainer:
    """Return the engine of a serving recipe of gpu-recipes."""
    tokens = _start(program, model["name"]) if "name" in model else []
    tokens += _options(program, _CHARTS["gpu_recipes"], model)
    for key, node in mapping_of(section["serverArgs"]).items():
        line, value = line_of(node), scalar_of(node) or ""
        if value.lower() != "false":
            tokens.append(_Token(f"--{key}", line))
            tokens += [] if value.lower() in {"true", ""} else [_Token(value, line)]
    return _served(tokens, _Around(_count(section.get("replicaCount")) or 1), {})


def _llm_d(values: Mapping[str, yaml.Node]) -> Iterator[ServedContainer]:
    """Yield the pools of a chart of llm-d, whose command adds model and degrees."""
    artifacts = mapping_of(values.get("modelArtifacts"))
    name = artifacts.get("name") or artifacts.get("uri")
    pools = [pool for pool in ("prefill", "decode") if "containers" in mapping_of(values.get(pool))]
    for pool in pools:
        section = mapping_of(values.get(pool))
        listed = section["containers"]
        for item in listed.value if isinstance(listed, yaml.SequenceNode) else ():
            container = mapping_of(item)
            if scalar_of(container.get("modelCommand")) == "vllmServe" and name is not None:
                tokens = _start("vllm", name, prefix="hf://")
                tokens += _options("vllm", _CHARTS["llm_d"], mapping_of(section.get("parallelism")))
                tokens += list(_tokens(container["args"])) if "args" in container else []
                role = pool if len(pools) > 1 else None
                yield _served(tokens, _Around(_count(section.get("replicas")) or 1, None, role), {})


def _kubeai(values: Mapping[str, yaml.Node]) -> Iterator[ServedContainer]:
    """Yield the engine of a Model of KubeAI, whose replicas are those of its load."""
    spec = mapping_of(values.get("spec"))
    if (
        scalar_of(values.get("kind")) != "Model"
        or scalar_of(spec.get("engine")) != "VLLM"
        or "url" not in spec
    ):
        return
    tokens = _start("vllm", spec["url"], prefix="hf://")
    tokens += list(_tokens(spec["args"])) if "args" in spec else []
    yield _served(tokens, _Around(_count(spec.get("replicas")) or 1), {})


def _kserve(values: Mapping[str, yaml.Node]) -> Iterator[ServedContainer]:
    """Yield the pools of an LLMInferenceService of KServe, whose template starts vLLM with the model."""
    spec = mapping_of(values.get("spec"))
    model = mapping_of(spec.get("model")).get("uri")
    if scalar_of(values.get("kind")) != "LLMInferenceService" or model is None:
        return
    pools = [("prefill", mapping_of(spec["prefill"]))] if "prefill" in spec else []
    for role, pool in (*pools, ("decode" if pools else None, spec)):
        listed = mapping_of(pool.get("template")).get("containers")
        containers = listed.value if isinstance(listed, yaml.SequenceNode) else ()
        if any({"command", "args"} & mapping_of(item).keys() for item in containers):
            continue
        tokens = _start("vllm", model, prefix="hf://")
        degrees = mapping_of(pool.get("parallelism"))
        tokens += _options("vllm", _CHARTS["kserve"], degrees)
        if (scalar_of(degrees.get("expert")) or "").lower() == "true":
            tokens.append(_Token(_CHARTS["kserve_experts"], line_of(degrees["expert"])))
        for item in containers:
            tokens += _further_arguments(mapping_of(item).get("env"))
        yield _served(tokens, _Around(_count(pool.get("replicas")) or 1, None, role), {})


def _further_arguments(environment: yaml.Node | None) -> Iterator[_Token]:
    """Yield the arguments that a variable of the environment adds to those of KServe's template."""
    for item in environment.value if isinstance(environment, yaml.SequenceNode) else ():
        pair = mapping_of(item)
        if scalar_of(pair.get("name")) == _CHARTS["kserve_arguments"] and "value" in pair:
            line = line_of(pair["value"])
            yield from (_Token(word, line) for word in shlex.split(scalar_of(pair["value"]) or ""))


def _srt_slurm(values: Mapping[str, yaml.Node]) -> Iterator[ServedContainer]:
    """Yield the pools of a recipe of srt-slurm, whose options are those of its backend."""
    backend, resources = mapping_of(values.get("backend")), mapping_of(values.get("resources"))
    for section, program in _CHARTS["srt_slurm_backends"].items():
        for name, node in mapping_of(backend.get(section)).items():
            if name in _CHARTS["srt_slurm"]:
                model = mapping_of(node).get("served-model-name") or mapping_of(values.get("model")).get(
                    "path"
                )
                tokens, documents = _srt_slurm_words(program, node, model)
                copies = _count(resources.get(_CHARTS["srt_slurm"][name])) or 1
                role = name if name in _ROLES else None
                yield replace(_served(tokens, _Around(copies, None, role), {}), documents=documents)


def _srt_slurm_words(
    program: str, node: yaml.Node, model: yaml.Node | None
) -> tuple[list[_Token], dict[str, str]]:
    """Return the words of one pool of srt-slurm, and the file of options that TensorRT-LLM has.

    A model without a folder or an organisation is a name of the cluster's own configuration: left open.
    """
    start = node if model is None or "/" not in (scalar_of(model) or "") else model
    tokens = _start(program, start, prefix="hf:")
    if start is node:
        tokens = tokens[: 2 if program != "sglang" else 3]
    if program == "tensorrt-llm":
        file = f"options_{line_of(node)}.yaml"
        tokens += [_Token(word, line_of(node)) for word in (_TABLES["tensorrt-llm"].keys["options"], file)]
        return tokens, {file: str(yaml.serialize(node, Dumper=yaml.SafeDumper))}
    for key, value in mapping_of(node).items():
        text = scalar_of(value) or ""
        if key not in _CHARTS["srt_slurm_aside"] and text.lower() != "false":
            tokens.append(_Token(f"--{key}", line_of(value)))
            tokens += [] if text.lower() in {"true", ""} else [_Token(text, line_of(value))]
    return tokens, {}


def _start(program: str, model: yaml.Node, prefix: str = "") -> list[_Token]:
    """Return the words that start a server of a model."""
    line, name = line_of(model), (scalar_of(model) or "").removeprefix(prefix)
    words = _STARTS[program]
    named = (_TABLES["sglang"].keys["model"], name) if program == "sglang" else (name,)
    return [_Token(word, line) for word in (*words, *named)]


def _options(program: str, names: Mapping[str, str], values: Mapping[str, yaml.Node]) -> list[_Token]:
    """Return values of a chart as arguments of an engine."""
    tokens: list[_Token] = []
    for key, binding in names.items():
        value = scalar_of(values.get(key))
        if value is not None and value not in {"", "null", "~"}:
            line = line_of(values[key])
            tokens += [_Token(_TABLES[program].keys[binding], line), _Token(value, line)]
    return tokens
