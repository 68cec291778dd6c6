"""Rules of serving as sentences: of engines and pools, and the job's limits on what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final, TypeAlias

from autoplan.costs.core.served_prediction import (
    ClassStatistics,
    Distribution,
    LatencyStatistics,
    PooledPrediction,
    ServedPrediction,
)
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout, WeightFormat
from autoplan.schema.serving.request_lengths import RequestClass
from autoplan.schema.serving.serving_choices import Percentiles, ServingLimits, TimeLimit, TimeLimits
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.schema.user_rules.expression import Known, decided
from autoplan.units import format_seconds, format_share


def broken_engine_rules(job: ServingJob, layout: EngineLayout) -> list[str]:
    """Return a sentence for each rule that ``layout`` breaks; none where it can run."""
    rules = (_of_the_model, _of_the_device, _of_the_cache, _of_the_job)
    return [sentence for rule in rules for sentence in rule(job, layout)]


def _of_the_device(job: ServingJob, layout: EngineLayout) -> Iterator[str]:
    """Yield that the kernels of a format do not run on an old architecture: bf16 in no engine.

    Source: vLLM 0.32, docs/features/quantization, supported hardware; fp8 as Marlin from compute capability
    7.5 on (llm_compressor/fp8.md); bf16 from 8.0 on (platforms/cuda.py, check_if_supports_dtype). Other
    engines have kernels of their own for quantised weights.
    """
    device = job.cluster.device
    lacked = _LACKED.get(device.architecture, ())
    if layout.weights in (lacked if job.engine.name == "vllm" else lacked[:1]):
        yield f"{device.title} has no kernels for weights in {layout.weights}: use fp16"


#: Formats of weights whose kernels do not run on an architecture; the first is not of the engine.
_LACKED: Final[dict[str, tuple[WeightFormat, ...]]] = {
    "volta": ("bf16", "fp8", "fp8-block", "int8", "int4-awq", "nvfp4", "mxfp4"),
    "turing": ("bf16", "nvfp4", "mxfp4"),
}


def _of_the_model(job: ServingJob, layout: EngineLayout) -> Iterator[str]:
    model, tp = job.model, layout.tp
    if model.heads % tp:
        yield f"tp={tp} must divide the {model.heads} query heads of {model.name}"
    elif model.mla is None and model.kv_heads % tp and tp % model.kv_heads:
        heads = f"{model.kv_heads} key-value heads of {model.name}"
        yield f"tp={tp} must divide the {heads}, or be a multiple of them"
    if model.linear_attention is not None:
        yield from _of_linear_attention(model, tp)
    if layout.pp > model.layers:
        yield f"pp={layout.pp} needs as many layers: {model.name} has {model.layers}"
    if model.moe is None:
        if layout.ep > 1 or layout.adp > 1:
            key = "ep" if layout.ep > 1 else "adp"
            yield f"{key} needs experts, which {model.name} has not: use replicas instead"
        if model.ffn_size % tp:
            yield f"tp={tp} must divide ffn_size {model.ffn_size} of {model.name}"
    elif model.moe.experts % layout.ep:
        yield f"ep={layout.ep} must divide the {model.moe.experts} experts of {model.name}"
    elif model.moe.expert_ffn_size % layout.expert_tensor:
        split = layout.expert_tensor
        columns = model.moe.expert_ffn_size
        yield f"the {columns} columns of an expert cannot be split over {split} devices: raise ep"


def _of_linear_attention(model: ModelSpec, tp: int) -> Iterator[str]:
    """Yield the rules of linear attention (vLLM 0.33.0, layers/mamba: groups of one are replicated)."""
    linear = model.linear_attention
    assert linear is not None  # noqa: S101 - the caller asks
    if linear.value_heads % tp:
        yield f"tp={tp} must divide the {linear.value_heads} value heads of linear attention of {model.name}"
    elif linear.key_heads % tp and (linear.kind == "gated-delta-net" or linear.key_heads > 1):
        yield f"tp={tp} must divide the {linear.key_heads} key heads of linear attention of {model.name}"


def _of_the_cache(job: ServingJob, layout: EngineLayout) -> Iterator[str]:
    model = job.model
    if layout.kv == "fp8_ds_mla" and model.mla is None:
        yield f"kv=fp8_ds_mla is a format of latent attention, which {model.name} has not: use fp8"
    if layout.dcp == 1:
        return
    if model.linear_attention is not None:
        yield f"dcp={layout.dcp} is not supported with the linear attention of {model.name}"
    if model.sliding_window is not None:
        yield f"dcp={layout.dcp} is not supported with the sliding windows of {model.name}"
    copies = layout.tp if model.mla is not None else layout.tp // model.kv_heads
    if layout.dcp > max(copies, 1):
        yield f"dcp={layout.dcp} divides only copies of the cache: tp={layout.tp} has {max(copies, 1)}"


def _of_the_job(job: ServingJob, layout: EngineLayout) -> Iterator[str]:
    devices = job.cluster.devices
    if layout.devices > devices:
        yield f"the layout takes {layout.devices} devices and the job has {devices}"
    if job.speculation is None and layout.spec:
        yield f"spec={layout.spec} needs the section `speculation` of the job"
    if (
        layout.spec
        and job.draft is not None
        and (job.draft.heads % layout.tp or job.draft.ffn_size % layout.tp)
    ):
        yield f"tp={layout.tp} must divide the heads and ffn_size of {job.draft.name}, which drafts"
    allowed = {
        "tp": layout.tp,
        "pp": layout.pp,
        "ep": layout.ep,
        "devices": layout.devices,
        "devices_per_node": job.cluster.node.devices,
        "heads": job.model.heads,
        "kv_heads": job.model.kv_heads,
    }
    for rule in job.rules:
        if not decided(rule.relation, Known(allowed, layout.pp)):
            yield f"{rule.because.rstrip('. ')} ({rule.rule})" if rule.because else rule.rule


def no_pools(job: ServingJob) -> str | None:
    """Return why no pools can serve ``job``; None where they can."""
    if job.engine.facts.handoff is None:
        return f"{job.engine.title} has no pools for prefill and decode that are known here"
    if job.model.linear_attention is not None:
        return f"sending the states of linear attention of {job.model.name} to another pool is not priced"
    if job.workload.output_tokens == 1 and not job.workload.classes:
        return "answers of one token end with their prefill: no pool would decode"
    return None


def broken_pool_rules(job: ServingJob, layout: DisaggregatedLayout) -> list[str]:
    """Return a sentence for each rule that the pools break; none where they can run."""
    engines = (broken_engine_rules(job, pool) for pool in (layout.prefill, layout.decode))
    broken = [sentence for sentences in engines for sentence in sentences]
    return list(dict.fromkeys([*broken, *_together(job, layout)]))


def _together(job: ServingJob, layout: DisaggregatedLayout) -> Iterator[str]:
    refused, most = no_pools(job), job.cluster.devices
    if refused is not None:
        yield refused
    if layout.devices > most >= max(layout.prefill.devices, layout.decode.devices):
        yield f"the pools take {layout.devices} devices and the job has {most}"
    if layout.prefill.kv != layout.decode.kv:
        yield (
            f"both pools need one format of keys and values, and have kv={layout.prefill.kv} and"
            f" kv={layout.decode.kv}"
        )
    if layout.prefill.spec:
        yield "engines that prefill draft nothing: spec=0 in the prefill pool"


#: Whether a request with these times to its first token, per output token and in all [s], and the number of
#: its class, holds every limit.
RequestTest: TypeAlias = Callable[[float, float, float, int], bool]
#: Times that a job may limit.
LIMITED_TIMES: Final = ("time_to_first_token", "time_per_output_token", "request_latency")
_PERCENTILES: Final = ("p50", "p90", "p99")
_MILLION: Final = 1e6
#: Rounding of a value that lies on its limit.
_ROUNDING: Final = 1e-9


def mean_limit(limit: TimeLimit | None) -> float:
    """Return a limit on the mean of a time [s]; infinite where there is none."""
    if isinstance(limit, Percentiles):
        return limit.mean if limit.mean is not None else inf
    return inf if limit is None else limit


def broken_mean_limits(limits: TimeLimits, times: Mapping[str, float], where: str = "") -> Iterator[str]:
    """Yield a sentence for each limit on a mean that ``times`` exceed; infinite: they grow without end."""
    for name, value in times.items():
        most = mean_limit(getattr(limits, name))
        if value > most * (1 + _ROUNDING):
            predicted_text = format_seconds(value) if value < inf else "without end"
            yield f"{name} is {predicted_text}{where}, over {format_seconds(most)}"


def simulated_limits(limits: TimeLimits) -> tuple[str, ...]:
    """Return the limits that only a simulation decides, by name: the closed form has means alone."""
    names = [
        f"{name}.{percentile}"
        for name in LIMITED_TIMES
        for percentile in _PERCENTILES
        if isinstance(getattr(limits, name), Percentiles) and getattr(getattr(limits, name), percentile)
    ]
    return (*names, *(["goodput"] if limits.goodput is not None else []))


def good_requests(limits: TimeLimits) -> RequestTest | None:
    """Return the test whether a request holds every limit on a time; None where there is none.

    A single request may take what the limit on the mean, or on the highest percentile, says.
    """
    bounds = [_longest(getattr(limits, name)) for name in LIMITED_TIMES]
    if all(bound is None for bound in bounds):
        return None

    def good(ttft: float, tpot: float, latency: float, _kind: int = 0) -> bool:
        times = zip((ttft, tpot, latency), bounds, strict=True)
        return all(bound is None or time <= bound for time, bound in times)

    return good


def _longest(limit: TimeLimit | None) -> float | None:
    if not isinstance(limit, Percentiles):
        return limit
    return limit.p99 or limit.p90 or limit.p50 or limit.mean


def broken_simulated_limits(limits: TimeLimits, run: LatencyStatistics | ClassStatistics) -> Iterator[str]:
    """Yield a sentence for each limit on a mean, a percentile or goodput that a simulated ``run`` breaks."""
    means = {name: getattr(run, name).mean for name in LIMITED_TIMES if getattr(run, name) is not None}
    yield from broken_mean_limits(limits, means, " in a simulation")
    for name in LIMITED_TIMES:
        limit, times = getattr(limits, name), getattr(run, name)
        if isinstance(limit, Percentiles) and isinstance(times, Distribution):
            for percentile in _PERCENTILES:
                most, simulated = getattr(limit, percentile), getattr(times, percentile)
                if most is not None and simulated > most:
                    took, allowed = format_seconds(simulated), format_seconds(most)
                    yield f"{name}.{percentile} is {took} in a simulation, over {allowed}"
    if limits.goodput is not None and run.goodput < limits.goodput:
        share, least = format_share(run.goodput), format_share(limits.goodput)
        yield f"goodput is {share} in a simulation, under {least}"


def least_rate_per_device(job: ServingJob) -> float:
    """Return the tokens a second and device that the limits on cost and energy ask for [1/s]; 0: none.

    A million tokens cost c / 3600 / rate x 1e6 for c an hour and device, and take P / rate x 1e6 joules.
    """
    rates = [0.0]
    if job.limits.cost is not None and job.price is not None:
        rates.append(job.price.per_device_hour / 3600 * _MILLION / job.limits.cost)
    power = job.cluster.device.power
    if job.limits.energy is not None and power is not None:
        rates.append(power.value * _MILLION / job.limits.energy)
    return max(rates)


def broken_rate_limits(job: ServingJob, tokens_per_second: float, devices: int) -> Iterator[str]:
    """Yield a sentence for each limit on throughput, cost, energy and devices that engines break."""
    limits = job.limits
    if limits.throughput is not None and tokens_per_second < limits.throughput * (1 - _ROUNDING):
        yield f"throughput is {tokens_per_second:,.0f} tokens a second, under {limits.throughput:,.0f}"
    least = least_rate_per_device(job)
    if least and tokens_per_second / devices < least * (1 - _ROUNDING):
        names = " and ".join(name for name in ("cost", "energy") if getattr(limits, name) is not None)
        each = tokens_per_second / devices
        yield f"{names}: {each:,.0f} tokens a second and device, under the {least:,.0f} that the limit needs"
    if limits.devices is not None and devices > limits.devices:
        yield f"the layout takes {devices} devices, over {limits.devices}"


#: Times that a maximum, which has no load, decides.
_WITHOUT_LOAD: Final = ("time_per_output_token",)


def _limited(job: ServingJob) -> Iterator[tuple[RequestClass, TimeLimits]]:
    for requests in job.workload.classes:
        if requests.limits is not None:
            yield requests, requests.limits


def broken_means(job: ServingJob, predicted: ServedPrediction | PooledPrediction) -> Iterator[str]:
    """Yield a sentence for each limit on a mean that engines break: those of the job, then of each class."""
    names = LIMITED_TIMES if predicted.load.kind != "maximum" else _WITHOUT_LOAD
    for means in (predicted, predicted.closed_form):
        if means is not None:
            yield from broken_mean_limits(job.limits, {name: getattr(means, name) for name in names})
    times = {served.name: served for served in predicted.classes}
    for requests, limits in _limited(job):
        served = times.get(requests.name)
        if served is not None:
            for sentence in broken_mean_limits(limits, {name: getattr(served, name) for name in names}):
                yield f"class {requests.name}: {sentence}"


def broken_simulated(job: ServingJob, run: LatencyStatistics) -> Iterator[str]:
    """Yield a sentence for each limit of job or class that a run breaks: means, percentiles and goodput."""
    yield from broken_simulated_limits(job.limits, run)
    by_name = {statistics.name: statistics for statistics in run.classes}
    for requests, limits in _limited(job):
        statistics = by_name.get(requests.name)
        if statistics is not None:
            for sentence in broken_simulated_limits(limits, statistics):
                yield f"class {requests.name}: {sentence}"


def broken_limits(job: ServingJob, predicted: ServedPrediction | PooledPrediction) -> Iterator[str]:
    """Yield a sentence for each limit that engines alone, or pools, break; none where they do not start."""
    if not predicted.starts:
        return
    means = list(dict.fromkeys(broken_means(job, predicted)))
    yield from means
    if predicted.simulation is not None:
        broken = {_limit_of(sentence) for sentence in means}
        simulated = broken_simulated(job, predicted.simulation.statistics)
        yield from (sentence for sentence in simulated if _limit_of(sentence) not in broken)
    yield from broken_rate_limits(job, predicted.output_tokens_per_second, predicted.devices)


def _limit_of(sentence: str) -> str:
    """Return the limit that a sentence is about, with its class."""
    return sentence.partition(" is ")[0]


def limits_times(job: ServingJob) -> bool:
    """Whether the job or one of its classes limits a time or goodput."""
    every = [job.limits, *(limits for _, limits in _limited(job))]
    return any(getattr(limits, name) is not None for limits in every for name in (*LIMITED_TIMES, "goodput"))


def all_simulated_limits(job: ServingJob) -> tuple[str, ...]:
    """Return the limits of the job and of its classes that only a simulation decides, by name."""
    of_classes = (
        f"{requests.name}.{name}" for requests, limits in _limited(job) for name in simulated_limits(limits)
    )
    return (*simulated_limits(job.limits), *of_classes)


def limits_of_request(limits: ServingLimits, requests: RequestClass) -> TimeLimits:
    """Return the limits on a time that a request of a class holds: its own, else those of the job."""
    class_limits = requests.limits
    if class_limits is None:
        return limits
    limited = {name: getattr(class_limits, name) or getattr(limits, name) for name in LIMITED_TIMES}
    return TimeLimits.model_construct(**limited)


def request_test(job: ServingJob) -> RequestTest | None:
    """Return the test whether a request of a class, by its number, holds every limit; None without limits."""
    classes = job.workload.classes
    if not classes:
        return good_requests(job.limits)
    tests = [good_requests(limits_of_request(job.limits, requests)) for requests in classes]
    if all(test is None for test in tests):
        return None

    def holds(ttft: float, tpot: float, latency: float, kind: int = 0) -> bool:
        test = tests[kind]
        return test is None or test(ttft, tpot, latency, 0)

    return holds
