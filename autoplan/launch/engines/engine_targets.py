"""What engines can be emitted for: a shell script, or containers in Kubernetes, Dynamo and llm-d's chart.

A script has one command an engine, with its devices and its port; texts of plans and users are quoted.
Dynamo: ``DynamoGraphDeployment`` v1beta1 as the templates of ai-dynamo 1.6.1 have it
(dynamo/profiler/templates/dgd). llm-d: values of the chart llm-d-modelservice 0.4.12, whose command adds
model, port and degrees (templates/_helpers.tpl). The image decides the engine's version, so that the user
names it.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

from autoplan.errors import UnsupportedError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.emitted_text import as_comment, label, manifest_text, resource_of
from autoplan.launch.engines.arguments.engine_settings import (
    EngineSettings,
    InexpressibleEngineError,
    WrittenArguments,
)
from autoplan.launch.engines.served_run import EngineGroupToServe, EngineTarget, ServedRun, written_arguments
from autoplan.launch.target import Emission, EmittedFile

#: What is said of pools.
_ROUTED: Final = "a router joins the pools for prefill and decode: it is not part of this file"

#: Port of the first engine; each further one takes the next.
_FIRST_PORT: Final = 8000
_VISIBLE: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
#: What serves in every version of vLLM; `vllm serve` came in 0.5.
_OLD_VLLM: Final = ("python3", "-m", "vllm.entrypoints.openai.api_server", interface("vllm").keys["model"])
#: Programs with the words before the checkpoint.
_PROGRAMS: Final = {
    "vllm": ("vllm", "serve"),
    "vllm-v0": _OLD_VLLM,
    "vllm-rocm": _OLD_VLLM,
    "sglang": ("python3", "-m", "sglang.launch_server", interface("sglang").keys["model"]),
    "tensorrt-llm": ("trtllm-serve",),
}
_OPTIONS_FLAG: Final = interface("tensorrt-llm").keys["options"]
#: Targets with their titles and the engines of the catalogue that they start.
_TARGETS: Final = {
    "vllm": ("vLLM", ("vllm", "vllm-v0", "vllm-rocm")),
    "sglang": ("SGLang", ("sglang",)),
    "tensorrt-llm": ("TensorRT-LLM", ("tensorrt-llm",)),
}
_SCRIPTS: Final = {
    "vllm": "vllm_serve.sh",
    "vllm-v0": "vllm_serve.sh",
    "vllm-rocm": "vllm_serve.sh",
    "sglang": "sglang_serve.sh",
    "tensorrt-llm": "trtllm_serve.sh",
}
#: Words that the shell fills in where an engine spans several nodes.
_VARIABLES: Final = frozenset({"$NODE_RANK", "$MASTER_ADDR", "$MASTER_ADDR:$MASTER_PORT"})


def program_words(engine: str, settings: EngineSettings) -> tuple[str, ...]:
    """Return the words that start an engine, with its checkpoint."""
    return (*_PROGRAMS[engine], settings.checkpoint)


def options_text(document: dict[str, Any], header: Sequence[str]) -> str:
    """Return a file of options as YAML below a comment."""
    text: str = yaml.safe_dump(document, sort_keys=False)
    return as_comment(tuple(header)) + text


def emit_script(run: ServedRun) -> Emission:
    """Return a script and files of options; raises InexpressibleEngineError for what cannot be started."""
    engine = run.job.engine.name
    _one_node(run)
    lines: list[str] = []
    files: list[EmittedFile] = []
    first, port = 0, _FIRST_PORT
    total = sum(group.layout.replicas for group in run.groups)
    for number, group in enumerate(run.groups):
        settings, written = written_arguments(run, group)
        options = _options_file(run, written, number)
        if options is not None:
            files.append(options)
            written.options.append((_OPTIONS_FLAG, options.name))
        for _ in range(group.layout.replicas):
            devices = range(first, first + group.layout.devices_per_engine)
            first, port = devices.stop, port + 1
            lines += _command(run, (settings, written, devices, port - 1), background=total > 1)
    if total > 1:
        lines.append("wait")
    text = (
        "#!/usr/bin/env bash\n" + as_comment(run.header) + "set -euo pipefail\n\n" + "\n".join(lines) + "\n"
    )
    script = EmittedFile(_SCRIPTS[engine], text)
    return Emission((script, *files), notes=_notes(run, settings))


def _one_node(run: ServedRun) -> None:
    node, groups = run.job.cluster.node.devices, [group.layout for group in run.groups]
    taken, first = sum(layout.devices for layout in groups), groups[0]
    if taken > node and sum(layout.replicas for layout in groups) > 1:
        fitting = max(1, node // first.devices_per_engine)
        part = f"engines on {-(-taken // node)} nodes: a script starts those of one, `--for kubernetes` more"
        raise InexpressibleEngineError(part, (replace(first, replicas=min(first.replicas, fitting)),))


def _options_file(run: ServedRun, written: WrittenArguments, number: int) -> EmittedFile | None:
    if not written.document:
        return None
    name = f"extra_llm_api_options{'' if len(run.groups) == 1 else f'_{number + 1}'}.yaml"
    return EmittedFile(name, options_text(written.document, run.header))


def _command(
    run: ServedRun, engine: tuple[EngineSettings, WrittenArguments, range, int], *, background: bool
) -> Iterator[str]:
    """Yield the lines of one command."""
    settings, written, devices, port = engine
    vendor = run.job.cluster.device.vendor
    if vendor not in _VISIBLE:
        raise UnsupportedError(f"how engines are given devices of {vendor} is not known")
    visible = ",".join(str(device) for device in devices)
    words = shlex.join(program_words(run.known.engine, settings))
    start = words if settings.nodes > 1 else f"{_VISIBLE[vendor]}={visible} {words}"
    options = [*written.options, ("--port", str(port))]
    lines = [start, *(f"    {_quoted(option)}" for option in options)]
    yield " \\\n".join(lines) + (" &" if background else "")


def _quoted(option: tuple[str, ...]) -> str:
    return " ".join(f'"{word}"' if word in _VARIABLES else shlex.quote(word) for word in option)


def _notes(run: ServedRun, settings: EngineSettings) -> tuple[str, ...]:
    several = f"run it on each of the {settings.nodes} nodes with NODE_RANK, MASTER_ADDR and MASTER_PORT set"
    sampler = "FlashInfer has to be installed, and to sample: VLLM_USE_FLASHINFER_SAMPLER=1"
    sampled = (sampler,) if run.job.search.flashinfer_sampler else ()
    return (*((several,) if settings.nodes > 1 else ()), *_pool_notes(run), *sampled)


SCRIPT_TARGETS: Final = tuple(
    EngineTarget(name=name, title=title, engines=engines, emit=emit_script)
    for name, (title, engines) in _TARGETS.items()
)


_PORT: Final = 8000
#: Where llm-d's proxy expects a decoding engine.
_DECODE_PORT: Final = 8200
_SHARED_MEMORY: Final = {"name": "shared-memory", "mountPath": "/dev/shm"}  # noqa: S108 - the container's
_FOLDER: Final = "/etc/engine"
_OPTIONS: Final = "options.yaml"
_WORKERS: Final = {"vllm": "dynamo.vllm", "sglang": "dynamo.sglang", "tensorrt-llm": "dynamo.trtllm"}
_VLLM, _SGLANG, _TRTLLM = (interface(name) for name in ("vllm", "sglang", "tensorrt-llm"))
#: Flags of dynamo.trtllm for those of trtllm-serve.
_DYNAMO: Final = {_TRTLLM.keys[name]: flag for name, flag in _TRTLLM.data["dynamo"].items()}
#: Flags that llm-d's chart adds by itself.
_OF_THE_CHART: Final = frozenset(_VLLM.keys[name] for name in ("tp", "data"))


def _engine_name(run: ServedRun, role: str = "") -> str:
    """Return a name as DNS has it: letters, digits and dashes."""
    name = label(run.job.model.name, "engine")
    return f"{name}-{role}" if role else name


def _groups(run: ServedRun) -> Iterator[tuple[str, EngineGroupToServe, EngineSettings, WrittenArguments]]:
    """Yield each group with its name; raises InexpressibleEngineError for engines beyond one node."""
    if not run.image:
        raise UnsupportedError("engines run in a container, whose image decides their version: give --image")
    for number, group in enumerate(run.groups):
        settings, written = written_arguments(run, group)
        if settings.nodes > 1:
            part = f"engines on {settings.nodes} nodes: one container has one node"
            raise InexpressibleEngineError(part)
        role = group.role or (str(number + 1) if len(run.groups) > 1 else "")
        yield _engine_name(run, role), group, settings, written


def _words(options: Sequence[tuple[str, ...]]) -> list[str]:
    return [word for option in options for word in option]


def emit_kubernetes_engines(run: ServedRun) -> Emission:
    """Return a Deployment for each group of engines, a ConfigMap for options, and one Service before them."""
    documents: list[dict[str, Any]] = []
    labels = {"app": _engine_name(run)}
    for name, group, settings, written in _groups(run):
        options = list(written.options)
        volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
        mounts: list[dict[str, Any]] = [dict(_SHARED_MEMORY)]
        if written.document:
            documents.append(_config_map(name, written))
            options.append((_TRTLLM.keys["options"], f"{_FOLDER}/{_OPTIONS}"))
            volumes.append({"name": "options", "configMap": {"name": f"{name}-options"}})
            mounts.append({"name": "options", "mountPath": _FOLDER})
        container = {
            "name": "engine",
            "image": run.image,
            "command": [*program_words(run.known.engine, settings)],
            "args": [*_words(options), "--host", "0.0.0.0", "--port", str(_PORT)],  # noqa: S104 - a container
            "ports": [{"containerPort": _PORT}],
            "readinessProbe": {"httpGet": {"path": "/health", "port": _PORT}, "periodSeconds": 10},
            "resources": {"limits": {resource_of(run.job.cluster.device): group.layout.devices_per_engine}},
            "volumeMounts": mounts,
        }
        documents.append(_deployment((name, group, labels), container, volumes))
    documents.append(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _engine_name(run)},
            "spec": {"selector": dict(labels), "ports": [{"port": _PORT, "targetPort": _PORT}]},
        }
    )
    return Emission((EmittedFile("engines.yaml", _joined(run, documents)),), notes=_pool_notes(run))


def _config_map(name: str, written: WrittenArguments) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-options"},
        "data": {_OPTIONS: options_text(written.document, ())},
    }


def _deployment(
    engines: tuple[str, EngineGroupToServe, Mapping[str, str]],
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
) -> dict[str, Any]:
    name, group, labels = engines
    selector = {**labels, "engines": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": group.layout.replicas,
            "selector": {"matchLabels": dict(selector)},
            "template": {
                "metadata": {"labels": dict(selector)},
                "spec": {"containers": [container], "volumes": volumes},
            },
        },
    }


def _joined(run: ServedRun, documents: Sequence[Mapping[str, Any]]) -> str:
    texts = [manifest_text(document, run.header if at == 0 else ()) for at, document in enumerate(documents)]
    return "---\n".join(texts)


def _pool_notes(run: ServedRun) -> tuple[str, ...]:
    return (_ROUTED,) if any(group.role for group in run.groups) else ()


def emit_dynamo(run: ServedRun) -> Emission:
    """Return a DynamoGraphDeployment: a front end, and a component for each group of engines."""
    engine = run.job.engine.name
    components: list[dict[str, Any]] = [_component("Frontend", run, 1, kind="frontend")]
    components[0]["podTemplate"]["spec"]["containers"][0] |= {
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": [],
    }
    for name, group, settings, written in _groups(run):
        options = list(_dynamo_options(engine, written, group))
        component = _component(name, run, group.layout.replicas, kind=group.role or "worker")
        container = component["podTemplate"]["spec"]["containers"][0]
        flag = interface(engine).keys["model"]
        container |= {
            "command": ["python3", "-m", _WORKERS[engine]],
            "args": [flag, settings.checkpoint, *_words(options)],
            "resources": {
                "limits": {resource_of(run.job.cluster.device): str(group.layout.devices_per_engine)}
            },
        }
        components.append(component)
    graph = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": _engine_name(run)},
        "spec": {"components": components},
    }
    notes = (
        f"the image decides the version of {run.job.engine.title}: take one with {run.job.engine.version}",
    )
    return Emission((EmittedFile("dynamo_graph.yaml", manifest_text(graph, run.header)),), notes=notes)


def _component(name: str, run: ServedRun, replicas: int, *, kind: str) -> dict[str, Any]:
    container = {"name": "main", "image": run.image}
    return {
        "name": name,
        "type": kind,
        "replicas": replicas,
        "podTemplate": {"spec": {"containers": [container]}},
    }


def _dynamo_options(
    engine: str, written: WrittenArguments, group: EngineGroupToServe
) -> Iterator[tuple[str, ...]]:
    """Yield the options of a worker of Dynamo; those of vLLM and SGLang are the engine's own."""
    for flag, *words in written.options:
        if engine == "tensorrt-llm":
            yield (_DYNAMO[flag], *words)
        elif flag != _SGLANG.keys["role"]:
            yield (flag, *words)
    if group.role is not None:
        yield (_SGLANG.keys["role"], group.role)
    if written.document:
        yield ("--override-engine-args", repr(written.document))


def emit_llm_d(run: ServedRun) -> Emission:
    """Return values of llm-d's chart: one group of engines as ``decode``, or both pools."""
    values: dict[str, Any] = {"multinode": False, "routing": {"servicePort": _PORT}}
    pools = {group.role for group in run.groups}
    if None in pools and len(run.groups) > 1:
        raise InexpressibleEngineError(
            "engines that differ: the chart has one pool that decodes and one for prefill",
            (run.groups[0].layout,),
        )
    values["routing"]["proxy"] = {"enabled": "prefill" in pools}
    values |= {"prefill": {"create": False}}
    for _, group, settings, written in _groups(run):
        if layout_part := _not_of_the_chart(group):
            raise InexpressibleEngineError(layout_part)
        values["modelArtifacts"] = {
            "name": settings.checkpoint,
            "uri": f"hf://{settings.checkpoint}",
            "labels": {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": _engine_name(run)},
        }
        values[group.role or "decode"] = _chart_pool(run, group, written)
    resource = "nvidia" if run.job.cluster.device.vendor == "nvidia" else run.job.cluster.device.vendor
    values["accelerator"] = {"type": resource}
    resource_of(run.job.cluster.device)
    return Emission((EmittedFile("llm_d_values.yaml", manifest_text(values, run.header)),))


def _not_of_the_chart(group: EngineGroupToServe) -> str:
    layout = group.layout
    return f"pp={layout.pp}: the chart counts tp x dp devices" if layout.pp > 1 else ""


def _chart_pool(run: ServedRun, group: EngineGroupToServe, written: WrittenArguments) -> dict[str, Any]:
    layout = group.layout
    port = _PORT if group.role != "decode" else _DECODE_PORT
    options = [option for option in written.options if option[0] not in _OF_THE_CHART]
    container = {
        "name": "vllm",
        "image": run.image,
        "modelCommand": "vllmServe",
        "args": _words(options),
        "ports": [{"containerPort": port}],
        "mountModelVolume": True,
    }
    return {
        "create": True,
        "replicas": layout.replicas,
        "parallelism": {"tensor": layout.tp, "data": layout.adp, "dataLocal": layout.adp},
        "containers": [container],
    }


MANIFEST_TARGETS: Final = (
    EngineTarget(
        name="kubernetes",
        title="Kubernetes",
        engines=("vllm", "vllm-v0", "vllm-rocm", "sglang", "tensorrt-llm"),
        emit=emit_kubernetes_engines,
        version="apps/v1",
    ),
    EngineTarget(
        name="dynamo",
        title="Dynamo",
        engines=("vllm", "sglang", "tensorrt-llm"),
        emit=emit_dynamo,
        version="1.6.1",
    ),
    EngineTarget(
        name="llm-d",
        title="llm-d",
        engines=("vllm",),
        emit=emit_llm_d,
        version="chart llm-d-modelservice 0.4.12",
    ),
)


ENGINE_TARGETS: Final = {target.name: target for target in (*SCRIPT_TARGETS, *MANIFEST_TARGETS)}


def engine_target(name: str) -> EngineTarget:
    """Return the target called ``name``; raises UnsupportedError with the known names for any other."""
    if name not in ENGINE_TARGETS:
        near = difflib.get_close_matches(name, ENGINE_TARGETS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(ENGINE_TARGETS)}"
        raise UnsupportedError(f"no target of engines is called {name!r}: {hint}")
    return ENGINE_TARGETS[name]
