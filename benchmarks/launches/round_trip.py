"""Read, emit, read: what is read of a public file is emitted for its framework or engine, and read again.

A file leaves things open that an emitted one has to say: a model, a batch, devices. These are stood in for,
and what the file says is held against what is read of the emitted one: its layout, precision, optimizer,
adapters and choices of software; of an engine its layout, longest request and share of memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from autoplan.catalog import entry_names, load_entry, load_serving_job
from autoplan.catalog.entries import engine
from autoplan.catalog.job_files import job_of_text
from autoplan.errors import AutoplanError
from autoplan.launch.configuration import Configuration, LaunchFile
from autoplan.launch.engines.arguments.engine_settings import InexpressibleEngineError
from autoplan.launch.engines.engine_reading import read_engines
from autoplan.launch.engines.engine_targets import engine_target
from autoplan.launch.engines.serve_commands import serves
from autoplan.launch.engines.served_run import (
    EngineConfiguration,
    EngineFile,
    EngineGroupToServe,
    ServedRun,
)
from autoplan.launch.registry import TARGETS, find_target, usual_stack
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, parse_layout
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import DisaggregatedLayout

__all__ = ["Trip", "engine_trip", "lines_of_trips", "round_trip"]

_MODEL: Final = "llama3.1-8b"
_VOCABULARY: Final = 32_000
_SERVING: Final = "llama3-70b-8x-h100"
#: Most devices of a node of the hardware that stands in.
_NODE: Final = 8
_KEYS: Final = ("precision", "optimizer", "adapters", "software")
_KINDS: Final = ("alike", "differs", "not expressed", "not emitted")


@dataclass(frozen=True, slots=True)
class Trip:
    """What became of a file: read again alike, or what differs; or a part that cannot be emitted."""

    file: str
    framework: str
    kind: str
    message: str = ""


def round_trip(name: str, found: Configuration) -> Trip:
    """Return what becomes of a configuration that is emitted for its framework and read again."""
    target = find_target(found.framework) if found.framework in TARGETS else None
    if target is None or target.emit is None or target.read is None:
        return Trip(name, found.framework, "not emitted", "its framework is read alone")
    try:
        job, layout = _planned(found)
        emission = target.emit(PlannedRun(job, layout))
    except InexpressibleError as error:
        return Trip(name, found.framework, "not expressed", error.part)
    except AutoplanError as error:
        return Trip(name, found.framework, "not emitted", str(error).splitlines()[0][:160])
    files = {file.name: file.text for file in emission.files}
    main = emission.files[0]
    try:
        again = target.read(LaunchFile(main.name, main.text, devices=layout.devices, sibling=files.get))
    except AutoplanError as error:
        return Trip(name, found.framework, "differs", f"refused: {str(error)[:160]}")
    unlike = list(_unlike(found, job, layout, again))
    return Trip(name, found.framework, "differs" if unlike else "alike", "; ".join(unlike))


def engine_trip(name: str, found: EngineConfiguration) -> Trip:
    """Return what becomes of engines that are emitted as commands of their own and read again."""
    kind = found.engine.partition("@")[0]
    try:
        run = _served(found)
        emission = engine_target(kind).emit(run)
    except InexpressibleEngineError as error:
        return Trip(name, kind, "not expressed", error.part)
    except AutoplanError as error:
        return Trip(name, kind, "not emitted", str(error).splitlines()[0][:160])
    files = {file.name: file.text for file in emission.files}
    again = [
        read_engines(EngineFile(LaunchFile(file.name, file.text), files.get), found.engine)
        for file in emission.files
        if serves(file.text)
    ]
    wanted = [str(group.layout) for group in run.groups]
    read = [
        str(pool)
        for one in again
        for pool in (
            (one.layout.prefill, one.layout.decode)
            if isinstance(one.layout, DisaggregatedLayout)
            else (one.layout,)
        )
    ]
    unlike = [] if read == wanted else [f"the layouts are {wanted}, read again as {read}"]
    unlike += [
        f"{key} is {value}, read again as {one.search.get(key)}"
        for one in again
        for key, value in found.search.items()
        if one.search.get(key) != value
    ]
    return Trip(name, kind, "differs" if unlike else "alike", "; ".join(unlike))


def _served(found: EngineConfiguration) -> ServedRun:
    """Return the engines of a file as a run to emit, with a shipped job around them."""
    job = load_serving_job(_SERVING)
    named = str(found.job.get("model", job.model.name))
    entry = load_entry("model", named) if named in entry_names("model") else job.model
    if not isinstance(entry, ModelSpec):
        raise TypeError(f"{named} is no model")
    longest = dict(found.job.get("workload", {})).get("longest_request")
    workload = job.workload.model_copy(update={"longest_request": longest}) if longest else job.workload
    search = job.search.model_copy(update=dict(found.search))
    job = replace(job, model=entry, engine=engine(found.engine, Path()), workload=workload, search=search)
    layout = found.layout
    if isinstance(layout, DisaggregatedLayout):
        pools = (EngineGroupToServe(layout.prefill, "prefill"), EngineGroupToServe(layout.decode, "decode"))
        return ServedRun(job, pools, checkpoint=found.checkpoint)
    return ServedRun(job, (EngineGroupToServe(layout),), checkpoint=found.checkpoint)


def _planned(found: Configuration) -> tuple[Job, Layout]:
    """Return the job and the layout of a file, with what it leaves open stood in for."""
    said = dict(found.job)
    model = said.get("model", _MODEL)
    known = load_entry("model", model) if isinstance(model, str) else None
    layers = known.layers if isinstance(known, ModelSpec) else dict(model)["layers"]
    fields = {key: value for key, value in found.layout_fields.items() if value is not None}
    devices = said.get("devices") or _NODE * fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
    layout = found.layout or parse_layout(found.layout_string or "zero=0", layers=layers, devices=devices)
    workload = {
        "sequence_length": 2048,
        "global_batch_size": layout.dp * layout.microbatch * max(layout.pp, 1),
        **dict(said.get("workload", {})),
    }
    document = {
        "kind": "training",
        "precision": "bf16",
        "optimizer": "adamw",
        **said,
        "model": {"vocabulary": _VOCABULARY, **model} if isinstance(model, Mapping) else model,
        "devices": devices,
        "hardware": "dgx-h100",
        "stack": usual_stack(found.framework) or "megatron-core",
        "workload": workload,
    }
    text = yaml.safe_dump(document, sort_keys=False)
    return job_of_text(text, "job", name="job", base=Path(), reference="job"), layout


def _unlike(found: Configuration, job: Job, layout: Layout, again: Configuration) -> Iterator[str]:
    """Yield the fields that are read otherwise than they were emitted; open ones are no difference."""
    wanted = parse_layout(str(layout), layers=sum(layout.layers), devices=layout.devices)
    for key, value in again.layout_fields.items():
        own = found.layout_fields.get(key)
        if value is not None and own is not None and again.layout is None and value != own:
            yield f"{key} is {own}, read again as {value}"
    if again.layout is not None and again.layout != wanted:
        yield f"the layout is {wanted}, read again as {again.layout}"
    for key in _KEYS:
        said, read = found.job.get(key), again.job.get(key)
        if said is not None and read is not None and _plain(said) != _plain(read):
            yield f"{key} is {_plain(said)}, read again as {_plain(read)}"
    batch = again.job.get("workload", {}).get("global_batch_size")
    if batch is not None and batch != job.workload.global_batch_size:
        yield f"the batch is {job.workload.global_batch_size}, read again as {batch}"


def _plain(value: Any) -> Any:  # noqa: ANN401 - a value of a job
    """Return a value of a job; scales of a base in 4 bits are quantised unless it says otherwise."""
    if not isinstance(value, Mapping):
        return value
    four = value.get("base") in {"nf4", "fp4"}
    return {**({"double_quantization": True} if four else {}), **value}


def lines_of_trips(trips: Iterable[Trip]) -> Iterator[str]:
    """Yield the outcomes by framework, and every file that is not read again alike."""
    listed = list(trips)
    yield f"{'read, emitted, read':<22}" + "".join(f"{kind:>15}" for kind in _KINDS)
    for name in (*dict.fromkeys(trip.framework for trip in listed), ""):
        counts = Counter(trip.kind for trip in listed if name in {trip.framework, ""})
        yield f"{name or 'all':<22}" + "".join(f"{counts[kind]:>15}" for kind in _KINDS)
    for trip in listed:
        if trip.kind != "alike":
            yield f"{trip.kind:<14}{trip.file}: {trip.message}"
