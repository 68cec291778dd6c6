"""Commands of containers in manifests: Kubernetes, Compose, Dynamo, and values of charts that serve.

Each container becomes a script whose words have their lines in the manifest, so that the reader of scripts
reads it, and so that problems name these lines. Nothing is executed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

from autoplan.errors import Problem, SpecError
from autoplan.launch.engines.container_words import (
    CHARTS,
    ROLES,
    ROLES_IN_ORDER,
    STARTS,
    TABLES,
    Around,
    ServedContainer,
    Token,
    counted,
    filled_words,
    inner_text,
    option_words,
    served,
    shell_arguments,
    start_words,
    tokens_of,
)
from autoplan.launch.engines.ray_engines import (
    inner_document,
    key_words,
    ray_engines,
    ray_environment,
)
from autoplan.launch.job_manifests import (
    Nodes,
    config_files,
    environment_of,
    items_of,
    line_of,
    mapping_of,
    scalar_of,
    yaml_roots,
)
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.shell_reader import read_script


def _at(values: Nodes, path: str) -> yaml.Node | None:
    """Return what stands at a dotted path."""
    *parents, key = path.split(".")
    for parent in parents:
        values = mapping_of(values.get(parent))
    return values.get(key)


def _of_tables(values: Nodes) -> Iterator[ServedContainer]:
    """Yield the engines of vLLM whose model, options and copies stand where a table of charts says."""
    for row in CHARTS["engines"]:
        if all(scalar_of(_at(values, path)) == text for path, text in row["where"].items()):
            for item in items_of(_at(values, row["each"])) if "each" in row else [None]:
                yield from _of_row(row, values, mapping_of(item))


def _of_row(row: Mapping[str, Any], values: Nodes, item: Nodes) -> Iterator[ServedContainer]:
    def at(name: str) -> yaml.Node | None:
        path = row.get(name, "")
        return _at(item, path[1:]) if path.startswith(".") else _at(values, path) if path else None

    model = at("model")
    if model is None:
        return
    sections = [
        _at(item, path[1:]) if path[0] == "." else _at(values, path) for path in row.get("options", ())
    ]
    stated = {key: node for section in sections for key, node in mapping_of(section).items()}
    words = stated.get("extraArgs") or at("words")
    tokens = [*start_words("vllm", model, prefix=row.get("prefix", "")), *key_words(at("keys"))]
    tokens += option_words("vllm", CHARTS["production_stack"], stated)
    tokens += tokens_of(words) if words is not None else []
    transfers = {name: ours for ours, name in TABLES["vllm"].data["roles"].items()}
    role = {**transfers, **{name: name for name in ROLES}}.get(scalar_of(at("role")) or "")
    yield served(tokens, Around(counted(at("copies")) or 1, counted(at("devices")), role), {})


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
    rf"|\bstart_command\s*:|\bllm_configs?\s*:|\b(?:prefill|decode)_config\s*:|\b(?:LLMConfig|AsyncEngineArgs)\s*\(|\bextraCmdArgs\s*:|\bsampleApplication\s*:"
    r"|\bresourceProfile\s*:|\b(?:LLMInferenceService|VLLMRuntime|ModelBooster)\s|\b(?:sglang|vllm|trtllm)_config\s*:"
)
_KIND: Final = re.compile(
    r"(?m)^\s*(?:kind|services|image|recipe_version|applications|sampleApplication|start_command|modelSpec|serverArgs|modelArtifacts"
    r"|(?:sglang|vllm|trtllm)_config)\s*:"
)
#: What stands between an entry point and its arguments, and an image that is named after the engine.
_COMMAND_KEY: Final = re.compile(r"(?m)^\s*(?:command|args)\s*:(?=\s|$)")
_OWN_IMAGE: Final = re.compile(r"(?m)^\s*(?:-\s+)?image\s*:\s*\S*\bvllm\b")
#: A command whose first word is the engine's own one, behind an entry point.
_SERVE: Final = re.compile(r"(?m)^\s*(?:command\s*:\s*)?(?:-\s*|\[\s*)?[\"']?serve[\"',\s]")
_TEMPLATE: Final = re.compile(r"\{\{-?\s*[\w.$#(]")
_DEEPEST: Final = 60
#: Pods of a group that is one engine (LeaderWorkerSet).
_LED: Final = frozenset({"leaderTemplate", "workerTemplate"})


def is_manifest(text: str) -> bool:
    """Return whether a YAML text is a manifest or values of a chart that start an engine."""
    # Words of a command stand in one line, or each in one of their own.
    words = re.sub(r"[\s,'\"\[\]]+(?:-\s+)?", " ", _COMMAND_KEY.sub(" ", text))
    serving = (_SERVING.search(text) or _SERVING.search(words)) is not None
    return _KIND.search(text) is not None and (serving or _has_arguments(text))


def _has_arguments(text: str) -> bool:
    """Return whether a text has arguments of vLLM's server without its name, or a section of them."""
    own = _OWN_IMAGE.search(text) is not None
    named = _MODEL in text and (_DEGREE in text or own)
    named = named or (own and _SERVE.search(text) is not None)
    return named or all(sign.search(text) for sign in _SECTION)


def served_containers(text: str, name: str, outside: Mapping[str, str]) -> list[ServedContainer]:
    """Return the containers that serve; raises SpecError for no YAML. The user sets ``outside``."""
    hint = ": it is a template of Helm, so give its values or what `helm template` prints"
    roots = yaml_roots(text, name, hint if _TEMPLATE.search(text) else "")
    _join_runtimes(roots)
    documents = {key: value for root in roots for key, value in config_files(root)}
    around = Around(outside=outside)
    stated = ray_environment(roots)
    shared = None if stated is None else {**stated, **outside}
    found = [c for root in roots for c in (*chart_engines(root, shared), *_containers(root, around, 0))]
    served = [replace(c, documents={**documents, **c.documents}) for c in found if _serves(c)]
    for text_of_copies, line in (c.open_copies for c in served if c.open_copies is not None):
        sentence = f"how many copies run depends on {text_of_copies}: give --set NAME=VALUE"
        raise SpecError([Problem(sentence, "replicas", name, line)])
    # A worker beside one that only prefills decodes, whether its manifest says so or not.
    if any(c.role == "prefill" for c in served):
        served = [replace(c, role=c.role or "decode") for c in served]
    return served


def _join_runtimes(roots: Sequence[yaml.Node]) -> None:
    """Add what services of KServe say to the runtimes that they name: arguments, which follow, and replicas.

    Source: kserve 0.15, ``inferenceservice/utils/utils.go``, MergeRuntimeContainers.
    """
    kinds = [(scalar_of(mapping_of(root).get("kind")) or "", mapping_of(root)) for root in roots]
    named = {
        scalar_of(mapping_of(values.get("metadata")).get("name")): values["spec"]
        for kind, values in kinds
        if kind.endswith("ServingRuntime") and isinstance(values.get("spec"), yaml.MappingNode)
    }
    for kind, values in kinds:
        predictor = mapping_of(mapping_of(values.get("spec")).get("predictor"))
        model = mapping_of(predictor.get("model"))
        runtime = named.get(scalar_of(model.get("runtime"))) if kind == "InferenceService" else None
        if not isinstance(runtime, yaml.MappingNode):
            continue
        if (replicas := predictor.get("minReplicas")) is not None:
            runtime.value.append((_key(CHARTS["copies"][0]), replicas))
        for container in items_of(mapping_of(runtime).get("containers"))[:1]:
            items = [*items_of(mapping_of(container).get("args")), *items_of(model.get("args"))]
            if items:
                arguments = yaml.SequenceNode("tag:yaml.org,2002:seq", items)
                container.value.append((_key("args"), arguments))


def _key(text: str) -> yaml.Node:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text)


def _serves(container: ServedContainer) -> bool:
    return _SERVING.search(" ".join(token.text for token in container.tokens)) is not None


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


def _narrowed(values: Nodes, around: Around) -> Around:
    """Return what is said around the values of a mapping, with what they say themselves."""
    spec = mapping_of(values.get("spec")) or mapping_of(values.get("deploy"))
    nodes = [place[key] for place in (values, spec) for key in CHARTS["copies"] if key in place]
    counts = [counted(node, around.outside) for node in nodes]
    replicas = next((count for count in counts if count is not None), around.replicas)
    open_copies = next((node for node in nodes if "${" in (scalar_of(node) or "")), None)
    if open_copies is not None and counts == [None] * len(counts):
        around = replace(around, open_copies=(scalar_of(open_copies) or "", line_of(open_copies)))
    named = [scalar_of(values.get(key)) for key in CHARTS["role_keys"]]
    named += [scalar_of(values.get("name"))] if "template" in values else []
    role = next((name for name in (*named, *_labelled_roles(values)) if name in ROLES), around.role)
    kind = scalar_of(values.get("kind"))
    if kind is not None and "spec" in values:
        around = replace(around, numbered=kind == "StatefulSet", alone=kind in {"Deployment", "Pod"})
    return replace(around, replicas=replicas, devices=_device_count(values) or around.devices, role=role)


def _labelled_roles(values: Nodes) -> Iterator[str | None]:
    """Yield what labels and annotations of a pod say of a role, such as ``llm-d.ai/role: prefill``."""
    metadata = mapping_of(values.get("metadata"))
    for section in ("labels", "annotations"):
        for key, node in mapping_of(metadata.get(section)).items():
            if key.rpartition("/")[2] == "role":
                yield scalar_of(node)


def _device_count(values: Nodes) -> int | None:
    """Return the devices that the resources of a container, or of a component, name."""
    resources = mapping_of(values.get("resources"))
    for part in ("limits", "requests"):
        named = mapping_of(resources.get(part))
        count = next((n for key in CHARTS["devices"] if (n := counted(named.get(key))) is not None), None)
        if count is not None:
            return count
    return None


def _container(values: Nodes, around: Around) -> ServedContainer | None:
    """Return the container that a mapping is; None where it starts nothing."""
    image = scalar_of(values.get("image")) or ""
    before = next((values[key] for key in CHARTS["command"] if key in values and key != "command"), None)
    command, behind = values.get("command"), values.get(CHARTS["arguments"][0])
    if (before is None and command is None and behind is None) or _is_recipe(values):
        return None
    tokens = [token for node in (before, command, behind) if node is not None for token in tokens_of(node)]
    if not tokens or not (image or before or command):
        return None
    variables = environment_of(values.get("env") or values.get("environment"))
    entry: tuple[str, ...] = next((words for pattern, words in _ENTRY if pattern.search(image)), ())
    named = re.search(r"\bvllm\b", image.rpartition("/")[2]) is not None
    if not entry and (command is None or named) and _takes_engine_words(tokens, named=named):
        entry = STARTS["vllm"]
    if named and command is not None and next(iter(tokens[0].text.split()), "") == "serve":
        # The entry point of such an image is the engine's program.
        tokens = [Token("vllm", tokens[0].line), *tokens]
    if entry and _is_argument(tokens[0].text) and (before is None):
        tokens = [*(Token(word, tokens[0].line) for word in entry), *tokens]
    around = replace(around, devices=_device_count(values) or around.devices)
    return served(tokens, around, variables)


def _takes_engine_words(tokens: Sequence[Token], *, named: bool) -> bool:
    """Return whether arguments are vLLM's: model and tensor degree, of a ``named`` image the model."""
    names = {token.text.partition("=")[0] for token in tokens}
    return {TABLES["vllm"].keys[name] for name in (("model",) if named else ("model", "tp"))} <= names


def _is_argument(text: str) -> bool:
    """Return whether a first word is one of an entry point: an argument, or the name of a model."""
    first = next(iter(text.split()), "")
    return first.startswith("-") or re.fullmatch(r"[\w.-]+/[\w.-]+", first) is not None


def container_script(container: ServedContainer, name: str, variables: Mapping[str, str]) -> Script:
    """Return what a container does, started with its environment and ``variables`` from outside."""
    environment = {**container.variables, **variables}
    text = inner_text(container.tokens)
    if text is not None:
        return read_script(text, name, {**shell_arguments(container.tokens), **environment})
    command = Command(filled_words(container.tokens, environment), container.line)
    return Script(name, (command,), {}, {})


def chart_engines(root: yaml.Node, environment: Mapping[str, str] | None) -> Iterator[ServedContainer]:
    """Yield the engines that values of a chart start; ``environment`` is that of Ray's workers."""
    values = mapping_of(root)
    model = mapping_of(values.get("model"))
    for program in ("vllm", "sglang"):
        section = mapping_of(values.get(program))
        if "serverArgs" in section and model:
            yield _gpu_recipe(program, model, section)
    for engines in (_of_tables, _llm_d, _llm_d_sample, _kserve, _srt_slurm):
        yield from engines(values)
    yield from ray_engines(values, environment)
    for engines in (_options_in_config_map, _further_words, _spark_recipe):
        yield from engines(values)


def _spark_recipe(values: Nodes) -> Iterator[ServedContainer]:
    """Yield the engine of a recipe of spark-vllm-docker, whose defaults fill ``{name}`` in its command.

    Source: eugr/spark-vllm-docker ``run-recipe.py``, which calls ``str.format`` with the defaults.
    """
    command = values.get("command")
    if not _is_recipe(values) or command is None:
        return
    defaults = {key: scalar_of(node) or "" for key, node in mapping_of(values.get("defaults")).items()}
    text = re.sub(r"(?<!\{)\{(\w+)\}(?!\})", lambda m: defaults.get(m[1], m[0]), scalar_of(command) or "")
    text = text.replace("{{", "{").replace("}}", "}")
    yield served([Token(text, line_of(command), split=True)], Around(), environment_of(values.get("env")))


def _is_recipe(values: Nodes) -> bool:
    return {"recipe_version", "command"} <= values.keys()


def _further_words(values: Nodes) -> Iterator[ServedContainer]:
    """Yield the engine of a section ``vllm`` of OPEA's charts, with further arguments (GenAIInfra 1.4)."""
    section = mapping_of(values.get("vllm"))
    further, model = section.get(CHARTS["opea_arguments"]), section.get(CHARTS["opea_model"])
    if further is not None:
        start = [Token(word, line_of(further)) for word in STARTS["vllm"]]
        tokens = start if model is None else start_words("vllm", model)
        yield served([*tokens, *tokens_of(further)], Around(), {})


def _options_in_config_map(values: Nodes) -> Iterator[ServedContainer]:
    """Yield the engine whose arguments are a section ``vllm`` of a ConfigMap's file (KAITO 0.6)."""
    held = mapping_of(values.get("data")) if scalar_of(values.get("kind")) == "ConfigMap" else {}
    for node in held.values():
        inner, above = inner_document(node) if isinstance(node, yaml.ScalarNode) else ({}, 0)
        section = inner.get("vllm")
        if section is not None and TABLES["vllm"].keys["tp"].removeprefix("--") in mapping_of(section):
            start = [Token(word, line_of(section)) for word in STARTS["vllm"]]
            words = [replace(token, line=token.line + above) for token in (*start, *key_words(section))]
            yield served(words, Around(), {})


def _gpu_recipe(program: str, model: Nodes, section: Nodes) -> ServedContainer:
    """Return the engine of a serving recipe of gpu-recipes."""
    tokens = start_words(program, model["name"]) if "name" in model else []
    tokens += option_words(program, CHARTS["gpu_recipes"], model)
    for key, node in mapping_of(section["serverArgs"]).items():
        line, value = line_of(node), scalar_of(node) or ""
        if value.lower() != "false":
            tokens.append(Token(f"--{key}", line))
            tokens += [] if value.lower() in {"true", ""} else [Token(value, line)]
    return served(tokens, Around(counted(section.get("replicaCount")) or 1), {})


def _llm_d(values: Nodes) -> Iterator[ServedContainer]:
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
                tokens = start_words("vllm", name, prefix="hf://")
                tokens += option_words("vllm", CHARTS["llm_d"], mapping_of(section.get("parallelism")))
                tokens += list(tokens_of(container["args"])) if "args" in container else []
                role = pool if len(pools) > 1 else None
                yield served(tokens, Around(counted(section.get("replicas")) or 1, None, role), {})


def _llm_d_sample(values: Nodes) -> Iterator[ServedContainer]:
    """Yield the pools of the sample application of llm-d's first chart (llm-d-deployer 1.0)."""
    sample = mapping_of(values.get("sampleApplication"))
    model = mapping_of(sample.get("model")).get("modelArtifactURI")
    if model is None:
        return
    for pool in ROLES_IN_ORDER:
        section = mapping_of(sample.get(pool))
        copies = section.get("replicas")
        if scalar_of(copies) == "0":
            continue
        tokens = start_words("vllm", model, prefix="hf://")
        tokens += list(tokens_of(section["extraArgs"])) if "extraArgs" in section else []
        yield served(tokens, Around(counted(copies) or 1, None, pool), {})


def _kserve(values: Nodes) -> Iterator[ServedContainer]:
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
        tokens = start_words("vllm", model, prefix="hf://")
        degrees = mapping_of(pool.get("parallelism"))
        tokens += option_words("vllm", CHARTS["kserve"], degrees)
        if (scalar_of(degrees.get("expert")) or "").lower() == "true":
            tokens.append(Token(CHARTS["kserve_experts"], line_of(degrees["expert"])))
        for item in containers:
            tokens += _further_arguments(mapping_of(item).get("env"))
        yield served(tokens, Around(counted(pool.get("replicas")) or 1, None, role), {})


def _further_arguments(environment: yaml.Node | None) -> Iterator[Token]:
    """Yield the arguments that a variable of the environment adds to those of KServe's template."""
    for item in environment.value if isinstance(environment, yaml.SequenceNode) else ():
        pair = mapping_of(item)
        if scalar_of(pair.get("name")) == CHARTS["kserve_arguments"] and "value" in pair:
            line = line_of(pair["value"])
            yield from (Token(word, line) for word in shlex.split(scalar_of(pair["value"]) or ""))


def _srt_slurm(values: Nodes) -> Iterator[ServedContainer]:
    """Yield the pools of a recipe of srt-slurm, whose options are those of its backend."""
    backend, resources = mapping_of(values.get("backend")), mapping_of(values.get("resources"))
    for section, program in CHARTS["srt_slurm_backends"].items():
        for name, node in mapping_of(backend.get(section)).items():
            if name in CHARTS["srt_slurm"]:
                model = mapping_of(node).get("served-model-name") or mapping_of(values.get("model")).get(
                    "path"
                )
                tokens, documents = _srt_slurm_words(program, node, model)
                copies = counted(resources.get(CHARTS["srt_slurm"][name])) or 1
                role = name if name in ROLES else None
                yield replace(served(tokens, Around(copies, None, role), {}), documents=documents)


def _srt_slurm_words(
    program: str, node: yaml.Node, model: yaml.Node | None
) -> tuple[list[Token], dict[str, str]]:
    """Return the words of one pool of srt-slurm, and the file of options that TensorRT-LLM has.

    A model without a folder or an organisation is a name of the cluster's own configuration: left open.
    """
    start = node if model is None or "/" not in (scalar_of(model) or "") else model
    tokens = start_words(program, start, prefix="hf:")
    if start is node:
        tokens = tokens[: 2 if program != "sglang" else 3]
    if program == "tensorrt-llm":
        file = f"options_{line_of(node)}.yaml"
        tokens += [Token(word, line_of(node)) for word in (TABLES["tensorrt-llm"].keys["options"], file)]
        return tokens, {file: str(yaml.serialize(node, Dumper=yaml.SafeDumper))}
    for key, value in mapping_of(node).items():
        text = scalar_of(value) or ""
        if key not in CHARTS["srt_slurm_aside"] and text.lower() != "false":
            tokens.append(Token(f"--{key}", line_of(value)))
            tokens += [] if text.lower() in {"true", ""} else [Token(text, line_of(value))]
    return tokens, {}
