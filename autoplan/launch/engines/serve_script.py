"""Engines as a shell script: one command each, with its devices and its port.

Texts of plans and users are quoted; a variable stands in double quotes where an engine spans several nodes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

from autoplan.errors import UnsupportedError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.emitted_text import as_comment
from autoplan.launch.engines.arguments.engine_settings import (
    EngineSettings,
    InexpressibleEngineError,
    WrittenArguments,
)
from autoplan.launch.engines.served_run import EngineTarget, ServedRun, written_arguments
from autoplan.launch.target import Emission, EmittedFile

#: Port of the first engine; each further one takes the next.
_PORT: Final = 8000
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
_OPTIONS: Final = interface("tensorrt-llm").keys["options"]
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
    """Return the engines of ``run`` as one script, and their files of options.

    Raises InexpressibleEngineError for what the engine cannot express, and for engines on several nodes that
    are more than one.
    """
    engine = run.job.engine.name
    _one_node(run)
    lines: list[str] = []
    files: list[EmittedFile] = []
    first, port = 0, _PORT
    total = sum(group.layout.replicas for group in run.groups)
    for number, group in enumerate(run.groups):
        settings, written = written_arguments(run, group)
        options = _options_file(run, written, number)
        if options is not None:
            files.append(options)
            written.options.append((_OPTIONS, options.name))
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
    node = run.job.cluster.node.devices
    groups = [group.layout for group in run.groups]
    taken = sum(layout.devices for layout in groups)
    if taken <= node:
        return
    several = sum(layout.replicas for layout in groups) > 1
    if several:
        first = groups[0]
        fitting = max(1, node // first.devices_per_engine)
        raise InexpressibleEngineError(
            f"engines on {-(-taken // node)} nodes: a script starts those of one, `--for kubernetes` more",
            (replace(first, replicas=min(first.replicas, fitting)),),
        )


def _options_file(run: ServedRun, written: WrittenArguments, number: int) -> EmittedFile | None:
    if not written.document:
        return None
    name = (
        "extra_llm_api_options.yaml" if len(run.groups) == 1 else f"extra_llm_api_options_{number + 1}.yaml"
    )
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
    notes = []
    if settings.nodes > 1:
        notes.append(
            f"run it on each of the {settings.nodes} nodes with NODE_RANK, MASTER_ADDR and MASTER_PORT set"
        )
    if any(group.role for group in run.groups):
        notes.append("a router joins the pools for prefill and decode: it is not part of this file")
    if run.job.search.flashinfer_sampler:
        notes.append("FlashInfer has to be installed, and to sample: VLLM_USE_FLASHINFER_SAMPLER=1")
    return tuple(notes)


SCRIPT_TARGETS: Final = tuple(
    EngineTarget(name=name, title=title, engines=engines, emit=emit_script)
    for name, (title, engines) in _TARGETS.items()
)
