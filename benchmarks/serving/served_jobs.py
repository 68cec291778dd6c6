"""From a measured serving run to a job and the layout of its engines."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import yaml
from pydantic import ValidationError

from autoplan.catalog import entry_names, load_entry
from autoplan.catalog.entries import engine
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.errors import AutoplanError
from autoplan.schema.hardware import DeviceSpec, NodeSpec
from autoplan.schema.job import Cluster
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import EngineLayout, KvFormat, WeightFormat
from autoplan.schema.serving.engine_stack import Engine, StepFacts
from autoplan.schema.serving.request_lengths import FixedLength, ServingWorkload
from autoplan.schema.serving.serving_choices import FormatChoices, ServingSearchSpec
from autoplan.schema.serving.serving_spec import ServingJob
from benchmarks.serving.bench_runs import BenchFacts, bench_facts
from benchmarks.serving.served_runs import RunEngine, ServedRun, WorkerLayout
from benchmarks.skips import Skipped, skipped_by

__all__ = [
    "ServedJob",
    "bench_of",
    "engine_name",
    "engine_of",
    "facts_of_runs",
    "has_threaded_tokenizer",
    "is_odd",
    "is_plain",
    "served_job",
    "sorting_seconds",
    "template_seconds",
    "try_step",
    "worker_job",
]

Role = Literal["prefill", "decode"]

#: Engines by the framework that a row names: the first pattern that fits.
_ENGINES: Final = (
    (r"^vllm \(2023\)|^vllm v?0\.[2-5]\b", "vllm-v0@0.4"),
    (r"^vllm v?0\.[67]\b", "vllm-v0@0.7"),
    (r"^vllm v?0\.(8|9|10)\b|^vllm \(july 2025\)", "vllm@0.11"),
    (r"^vllm nightly", "vllm-v0@0.7"),
    (r"^sglang \(july 2025\)", "sglang@0.5.5"),
    (r"fastertransformer", "fastertransformer@5.0"),
    (r"^megatron-lm", "megatron-lm@2.0"),
    (r"^lmdeploy turbomind 0\.1", "lmdeploy@0.1"),
    (r"^lmdeploy", "lmdeploy@0.2"),
    (r"^tensorrt-llm v?0\.[56]\b", "tensorrt-llm@0.5"),
    (r"^tensorrt-llm v?0\.(9|1[0-2])\b|commit", "tensorrt-llm@0.9"),
    (r"^tensorrt-llm v?0\.1[3-6]\b", "tensorrt-llm@0.14"),
    (r"^tensorrt-llm v?0\.1[7-9]\b", "tensorrt-llm@0.17"),
    (r"^tensorrt-llm v?0\.2\d\b", "tensorrt-llm@0.20"),
    (r"^tensorrt-llm post-1\.0", "tensorrt-llm@1.1"),
    (r"^tensorrt-llm 1\.0", "tensorrt-llm@1.0"),
    # Versions of Dynamo, whose containers hold TensorRT-LLM 1.2.
    (r"^trtllm 0\.8", "tensorrt-llm@1.2"),
    (r"^trtllm gpt-oss-dev", "tensorrt-llm@1.1"),
)
_MODELS: Final = {
    "DeepSeek-R1/V3": "deepseek-v3",
    "Kimi-K2.6": "kimi-k2",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt-oss-20b": "gpt-oss-20b",
    "Llama-4-Maverick-17B-128E": "llama4-maverick",
    "Llama-4-Scout-17B-16E": "llama4-scout",
}
#: Models whose fp8 checkpoints have scales by blocks.
_BLOCKS: Final = re.compile(r"^(Qwen3|DeepSeek|MiniMax)")
_QUALIFIED: Final = re.compile(r"\b(v?\d+(?:\.\d+)+(?:\.?(?:post|rc)\d+)*)")


@dataclass(frozen=True)
class ServedJob:
    """A job with the one layout that a run had."""

    job: ServingJob
    layout: EngineLayout
    #: The id of the run.
    run: str = ""

    @cached_property
    def scope(self) -> EngineScope:
        """The scope of the engines that served the run."""
        return EngineScope(self.job, self.layout)


def engine_name(framework: str) -> str:
    """Return the engine of a framework as a row names it, without a version where it has none.

    Raises Skipped for an unknown one.

    >>> engine_name("vllm 0.12.0"), engine_name("trtllm 1.0.0rc3"), engine_name("TensorRT-LLM v0.6.1")
    ('vllm@0.12.0', 'tensorrt-llm@1.0', 'tensorrt-llm@0.5')
    >>> engine_name("SGLang (version not stated)")
    'sglang'
    """
    lower = framework.lower()
    for pattern, name in _ENGINES:
        if re.search(pattern, lower):
            return name
    version = _QUALIFIED.search(lower)
    for prefix, name in (
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("trtllm", "tensorrt-llm"),
        ("tensorrt", "tensorrt-llm"),
    ):
        if lower.startswith(prefix):
            return f"{name}@{_known(name, version[1])}" if version else name
    raise Skipped("the engine is not known", framework)


def _known(name: str, version: str) -> str:
    """Return the version, or the newest known one that is not newer."""
    numbers = _numbers(version)
    known: list[str] = list(load_entry("engine", name).versions)  # type: ignore[attr-defined]
    if any(version == x or version.startswith(f"{x}.") for x in known):
        return version if "rc" not in version else ".".join(map(str, numbers[:2]))
    older = [x for x in known if _numbers(x) <= numbers]
    return older[-1] if older else known[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))[:3]


@cache
def _engine(name: str) -> Engine:
    return engine(name, Path())


#: Times of a step that a fit tries, by engine.
_TRIED: dict[str, StepFacts] = {}


def try_step(name: str, step: StepFacts | None) -> None:
    """Let runs of an engine have other times of a step; None: those of its file."""
    if step is None:
        _TRIED.pop(name, None)
    else:
        _TRIED[name] = step


def engine_of(run: ServedRun) -> Engine:
    """Return the engine of a run as its file describes it. Raises Skipped for an unknown one.

    A version that is older than all that the file knows is assumed to run like the first of them.
    """
    name = _engine_name(run)
    engine = _engine(name)
    return replace(engine, version_assumed=True) if _is_older(run, name) else engine


def _is_older(run: ServedRun, name: str) -> bool:
    """Whether the release that a run tells comes before the version that it is priced as."""
    told, version = _QUALIFIED.search((run.layout.framework or "").lower()), name.partition("@")[2]
    return told is not None and _numbers(told[1])[:2] < _numbers(version)[:2]


def _engine_name(run: ServedRun) -> str:
    """Return the engine of a run; vLLM on AMD devices is a build of its own.

    A version that a row does not tell is that of its source's date where this is known, else the newest.
    """
    told = run.layout.framework or ""
    dated = (x for x in _facts()["engines"] if re.search(x["rows"], f"{run.id} {told}"))
    name = next((x["engine"] for x in dated), None) or engine_name(told)
    if not run.hardware.gpu.startswith("mi") or not name.startswith("vllm"):
        return name
    stack, _, version = name.partition("@")
    if stack == "vllm-v0":
        return f"vllm-rocm@{version}"
    return f"vllm-rocm@{_known('vllm-rocm', version)}" if version else "vllm-rocm"


@cache
def _node(gpu: str, devices: int) -> NodeSpec:
    names = [n for n in entry_names("node") if f"device: {gpu}\n" in _text(n)]
    nodes = sorted(
        (cast("NodeSpec", load_entry("node", n)) for n in names), key=lambda x: (x.devices, x.name)
    )
    fitting = next((x for x in nodes if x.devices >= devices), nodes[-1] if nodes else None)
    return fitting or cast("NodeSpec", load_entry("node", f"8x-{gpu}"))


def _with_fabric(node: NodeSpec, run: ServedRun) -> NodeSpec:
    """Return a node with the links that the source of a run tells of, if not those of its name."""
    other = next((x["node"] for x in _facts()["fabrics"] if re.search(x["rows"], run.id)), None)
    if other is None:
        return node
    return node.model_copy(update={"fabric": cast("NodeSpec", load_entry("node", other)).fabric})


def _text(name: str) -> str:
    spec = cast("NodeSpec", load_entry("node", name))
    return f"device: {spec.device}\n"


def served_job(run: ServedRun) -> ServedJob:
    """Return the job of a run. Raises Skipped with the reason for one that cannot be expressed."""
    layout = run.layout
    tp, pp, adp = layout.tp or 1, layout.pp or 1, layout.attention_dp or 1
    per_engine = tp * pp * adp
    replicas = layout.dp or 1
    if per_engine * replicas > run.hardware.gpus:
        # Groups of data-parallel attention over the same devices as tensor parallelism.
        adp, per_engine = 1, tp * pp
    ep = layout.ep or 1
    if ep > tp * adp and run.hardware.gpus >= ep * pp:
        adp = ep // tp
    if (tp * adp) % ep:
        ep = 1
    devices = tp * pp * adp * replicas
    if devices > run.hardware.gpus and run.hardware.gpus % (tp * pp * adp):
        raise Skipped("the layout does not fit its devices", f"{devices} of {run.hardware.gpus}")
    shape = EngineLayout(tp=tp, pp=pp, adp=adp, ep=ep, replicas=replicas)
    return _with_job(run, shape, run.hardware.gpus)


def worker_job(run: ServedRun, worker: WorkerLayout, role: Role) -> ServedJob:
    """Return the job of one pool of a disaggregated run, with the settings of its recipe where known."""
    settings = _recipes().get(run.id)
    if settings is not None:
        run = run.model_copy(update={"engine": settings[role]})
    adp, tp = worker.attention_dp, worker.tp
    group = tp * adp
    ep = worker.moe_ep or 1
    shape = EngineLayout(
        tp=tp, pp=worker.pp, adp=adp, ep=ep if group % ep == 0 else 1, replicas=worker.workers
    )
    return _with_job(run, shape, shape.devices)


def _with_job(run: ServedRun, shape: EngineLayout, devices: int) -> ServedJob:
    model, told = _model(run), run.engine
    node = _with_fabric(_node(_device(run), min(devices, 72)), run)
    device = cast("DeviceSpec", load_entry("device", node.device))
    weights = _weights(run)
    seqs, tokens = _scripted(run, shape.adp * shape.replicas)
    layout = replace(
        shape,
        weights=weights,
        kv=_kv(run, weights),
        seqs=(told and (told.max_num_seqs or told.max_batch_size or told.max_running_requests)) or seqs,
        tokens=(told and (told.max_num_batched_tokens or told.max_num_tokens or told.chunked_prefill_size))
        or tokens,
    )
    share = told and (
        told.gpu_memory_utilization or told.free_gpu_memory_fraction or told.mem_fraction_static
    )
    inputs, outputs = run.workload.input_len or 1, run.workload.output_len or 1
    try:
        job = ServingJob(
            name="run",
            model=model,
            cluster=Cluster(device=device, node=node, devices=max(devices, shape.devices)),
            engine=_served_engine(run),
            workload=ServingWorkload(
                input_tokens=FixedLength(fixed=inputs), output_tokens=FixedLength(fixed=outputs)
            ),
            precision=FormatChoices(unquantized=_unquantized(run, weights)),
            search=ServingSearchSpec(gpu_memory_utilization=share or None),
        )
    except (AutoplanError, ValidationError) as error:
        raise skipped_by("the run cannot be expressed", error) from error
    return ServedJob(job, layout, run.id)


@cache
def _recipes() -> dict[str, dict[Role, RunEngine]]:
    """Return the settings of both pools by the id of a run."""
    recipes: list[dict[str, Any]] = _data("served_recipes.yaml")["recipes"]
    return {
        row: {role: RunEngine.model_validate(recipe[role]) for role in get_args(Role)}
        for recipe in recipes
        for row in recipe["rows"]
    }


@dataclass(frozen=True, slots=True)
class _Setting:
    """Settings that the scripts of a source give its runs; ``told``: also those that tell settings."""

    rows: str
    told: bool
    source: str
    tokens_beyond_input: int = 0


@cache
def _facts() -> dict[str, Any]:
    return _data("served_facts.yaml")


def facts_of_runs(kind: str) -> list[dict[str, Any]]:
    """Return what is known of runs beside their rows, of one kind of ``served_facts.yaml``."""
    entries: list[dict[str, Any]] = _facts()[kind]
    return entries


def _data(name: str) -> dict[str, Any]:
    text = (Path(__file__).parent / "data" / name).read_text(encoding="utf-8")
    entries: dict[str, Any] = yaml.safe_load(text)
    return entries


@cache
def _all_settings() -> tuple[_Setting, ...]:
    return tuple(_Setting(**entry) for entry in _facts()["settings"])


def bench_of(run: ServedRun) -> BenchFacts | None:
    """Return how the source of a run ran trtllm-bench; None where it did not."""
    return bench_facts(f"{run.id} {run.layout.framework}", _facts()["benches"])


def _device(run: ServedRun) -> str:
    """Return the device of a run, as its source tells it where a row has another."""
    own = (x["device"] for x in _facts()["devices"] if re.search(x["rows"], run.id))
    return next(own, run.hardware.gpu)


def _settings(run: ServedRun) -> list[_Setting]:
    own = run.engine is not None or run.disaggregated is not None
    return [x for x in _all_settings() if (x.told or not own) and re.search(x.rows, run.id)]


def _scripted(run: ServedRun, parts: int) -> tuple[int, int]:
    """Return the requests and tokens of a step that the script of a source sets; 0 where none is known."""
    beyond_input = max((x.tokens_beyond_input for x in _settings(run)), default=0)
    if not beyond_input:
        return 0, 0
    seqs = -(-(run.workload.concurrency or run.workload.batch or 1) // parts)
    return seqs, seqs + (run.workload.input_len or 1) + beyond_input


def _served_engine(run: ServedRun) -> Engine:
    """Return the engine of a run, with what its row tells of its settings."""
    engine = engine_of(run)
    tried = _TRIED.get(str(engine))
    if tried is not None:
        engine = replace(engine, facts=engine.facts.model_copy(update={"step": tried}))
    told = {"asynchronous": _asynchronous(run), "chunked": _is_chunked(run) or None}
    told = {name: value for name, value in told.items() if value is not None}
    if not told:
        return engine
    scheduler = engine.facts.scheduler.model_copy(update=told)
    return replace(engine, facts=engine.facts.model_copy(update={"scheduler": scheduler}))


def _asynchronous(run: ServedRun) -> bool | None:
    """Return whether a run's launch script sets an asynchronous scheduler; None where it says nothing."""
    told = run.engine.async_scheduling if run.engine else None
    if told is None and any(re.search(x["rows"], run.id) for x in _facts()["asynchronous"]):
        return True
    return told


def _is_chunked(run: ServedRun) -> bool:
    """Whether a run's launch script divides prompts over steps."""
    return any(re.search(x["rows"], run.id) for x in _facts()["chunked"])


def is_plain(run: ServedRun) -> bool:
    """Whether the launch commands of a run's pools are known, and speculate no tokens."""
    return any(re.search(x["rows"], run.id) for x in _facts()["plain_pools"])


def is_odd(run: ServedRun) -> bool:
    """Whether a run's machine is known to be unlike others of its name."""
    return any(re.search(x["rows"], run.id) for x in _facts()["odd_machines"])


def has_threaded_tokenizer(run: ServedRun) -> bool:
    """Whether the front end of a run reads several prompts at once."""
    return any(re.search(x["rows"], run.id) for x in _facts()["threaded_tokenizers"])


def template_seconds(run: ServedRun) -> float:
    """Return the time that the front end of a run takes to read the chat template for each request [s]."""
    return next((x["seconds"] for x in _facts()["templates"] if re.search(x["rows"], run.id)), 0.0)


def sorting_seconds(run_id: str) -> float:
    """Return the time to sort a logit of each request of a run [s]; 0 where its clients need no order."""
    return next((x["seconds"] for x in _facts()["sorted_logits"] if re.search(x["rows"], run_id)), 0.0)


def _unquantized(run: ServedRun, weights: WeightFormat) -> tuple[Any, ...]:
    return ("attention",) if weights == "nvfp4" and run.model.name.startswith("DeepSeek") else ()


def _weights(run: ServedRun) -> WeightFormat:
    told, name = run.layout.weight_dtype, run.model.name
    if name.startswith("gpt-oss"):  # Its experts are published in mxfp4, whatever activations a row names.
        return "mxfp4"
    if told is None or told in {"fp16", "bf16"}:
        return "bf16"
    if told == "fp8":
        return "fp8-block" if _BLOCKS.match(name) else "fp8"
    if told == "fp4":
        return "nvfp4"
    if told == "awq":
        return "int4-awq"
    raise Skipped("the format of the weights is not known", told)


def _kv(run: ServedRun, weights: WeightFormat) -> KvFormat:
    """Return the format of the cache; TensorRT-LLM's checkpoints in fp8 and nvfp4 keep it in fp8."""
    told = (run.engine and run.engine.kv_cache_dtype) or run.layout.kv_dtype
    told = told or next((x["format"] for x in _facts()["caches"] if re.search(x["rows"], run.id)), None)
    if told is not None:
        return "fp8" if "fp8" in told else "auto"
    tensorrt = (run.layout.framework or "").lower().startswith(("tensorrt", "trtllm"))
    return "fp8" if tensorrt and weights in {"fp8", "fp8-block", "nvfp4"} else "auto"


def _model(run: ServedRun) -> ModelSpec:
    entry = _MODELS.get(run.model.name)
    if entry is not None:
        return cast("ModelSpec", load_entry("model", entry))
    try:
        return ModelSpec.model_validate(_sizes(run))
    except ValidationError as error:
        raise skipped_by("the model cannot be expressed", error) from error


def _sizes(run: ServedRun) -> dict[str, Any]:
    told, name = run.model, run.model.name
    plain = name.startswith(("GPT", "Falcon", "OPT", "MPT", "BLOOM"))
    if told.attention is not None and re.search(r"\bMLA\b", told.attention):
        raise Skipped("the architecture is not known", "sizes of the latent attention")
    sizes: dict[str, Any] = {
        "name": re.sub(r"[^a-z0-9._-]", "-", name.lower()).strip("-.") or "run",
        "source": run.source[:100] or "a row",
        "layers": told.layers,
        "hidden_size": told.hidden,
        "heads": told.heads,
        "kv_heads": told.kv_heads,
        "ffn_size": told.ffn,
        "vocabulary": told.vocab,
        "activation": "gelu" if plain else "swiglu",
        "norm": "layernorm" if plain else "rmsnorm",
        "qk_norm": name.startswith("Qwen3"),
    }
    if told.head_dim is not None:
        sizes["head_dim"] = told.head_dim
    if told.experts is not None and told.top_k is not None:
        sizes["moe"] = {"experts": told.experts, "top_k": told.top_k, "expert_ffn_size": told.ffn}
    return sizes
