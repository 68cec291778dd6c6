"""Calibration of a serving engine on one machine, from results of its benchmark client.

Notation (this file only)::

    z    shifts of the logarithms of scale and host time, in deviations of their priors      [1]
    r    logarithm of predicted over measured, in deviations of its noise                    [1]
    J    derivatives of r by z                C   (J' J + 1)^-1, the covariance that is left  [1]
    b, w deviations between machines and within one, of time per token                       [1]

The shifts are the most probable ones: they minimise |r|^2 + |z|^2, by Gauss-Newton steps. No queue has a
number that is fitted: both move the time of a step, and the client's run is simulated again.

Keys: vLLM at 009e6d4a, vllm/benchmarks/serve.py (--save-result; --save-detailed adds lengths and times of
each request); SGLang 0.5, sglang/bench_serving.py (--output-file: a line of JSON for each run); genai-perf
0.0.16 export_data/json_exporter.py (profile_export_genai_perf.json); aiperf 0.13.0
common/models/export_models.py and config/phases.py (profile_export_aiperf.json), whose inter-token latency is
the mean over the tokens of a request, as vLLM's time per output token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, inf, isfinite, isinf, log
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autoplan.catalog import read_file
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration, GroupIteration
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import CLIENT_SECONDS, RequestLoad, drawn_lengths
from autoplan.costs.serving.queueing.run_statistics import run_statistics
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules
from autoplan.errors import Problem, SpecError
from autoplan.schema.serving.engine_stack import StepFacts
from autoplan.schema.serving.request_lengths import RangeLength

_WANTED: Final = (
    "a result of `vllm bench serve --save-result`, of SGLang's bench_serving, or of genai-perf or aiperf"
    " (profile_export_*.json) is needed"
)
#: Metrics of an export that stand where others have mean_ttft_ms and so on.
_FIRST, _EACH, _TOKENS = "time_to_first_token", "inter_token_latency", "output_token_throughput"
_SECONDS: Final = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_LARGEST: Final = 2**28
#: Share of a rate that is answered where its bound on requests in flight does not bind.
_KEEPS_UP: Final = 0.9
_MOST_RUNS: Final = 1000
_MOST_TOKENS: Final = 10_000_000
#: Most requests whose lengths are drawn.
_MOST_DRAWN: Final = 10_000


@dataclass(frozen=True, slots=True)
class ClientResult:
    """One run of a client: its load, the lengths of its requests, and what it measured [s] or [1/s].

    ``clients`` is None where requests came at a rate; ``rate`` is infinite where all came at once.
    """

    origin: str
    clients: int | None
    rate: float
    requests: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    time_to_first_token: float | None
    time_per_output_token: float | None
    output_tokens_per_second: float | None

    @property
    def load(self) -> str:
        """The load in words."""
        if self.clients is not None:
            return f"{self.clients} clients"
        return f"{self.rate:g} requests/s"


def read_client_results(file: str | Path) -> list[ClientResult]:
    """Return the runs in ``file``: one JSON object, or one on each line.

    Raises SpecError with the line of what is no result, CatalogError where the file cannot be read.
    """
    text = read_file(Path(file), largest=_LARGEST)
    try:
        documents = [(1, json.loads(text))]
    except (ValueError, RecursionError):
        documents = [
            _line(line, number, str(file)) for number, line in enumerate(text.splitlines(), 1) if line.strip()
        ]
    if not 1 <= len(documents) <= _MOST_RUNS:
        raise SpecError([Problem(f"{len(documents)} runs: {_WANTED}", "$", str(file))])
    return [
        _result(document, f"{Path(file).name}:{number}", str(file), number) for number, document in documents
    ]


def _line(line: str, number: int, file: str) -> tuple[int, Any]:
    try:
        return number, json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SpecError([Problem(f"not JSON: {_WANTED}", "$", file, number)]) from error


def _result(document: object, origin: str, file: str, line: int) -> ClientResult:
    """Return the run of one document."""
    if not isinstance(document, dict):
        raise SpecError([Problem(f"not an object: {_WANTED}", "$", file, line)])
    if isinstance(document.get(_FIRST), dict):
        return _export(document, origin, file)
    requests = _number(document, "completed")
    first, each, tokens = (
        _number(document, name) for name in ("mean_ttft_ms", "mean_tpot_ms", "output_throughput")
    )
    if requests is None or requests < 1 or first is None or tokens is None:
        wanted = "completed, mean_ttft_ms and output_throughput"
        raise SpecError([Problem(f"{wanted} are needed as positive numbers: {_WANTED}", "$", file, line)])
    inputs, outputs = (_lengths(document, which, int(requests)) for which in ("input", "output"))
    if not inputs or not outputs:
        raise SpecError([Problem("total_input_tokens and total_output_tokens are needed", "$", file, line)])
    clients, rate = _number(document, "max_concurrency"), _number(document, "request_rate")
    answered = _number(document, "request_throughput")
    if rate is not None and answered is not None and answered >= _KEEPS_UP * rate:
        clients = None  # a bound on requests in flight that did not bind
    return ClientResult(
        origin=origin,
        clients=None if clients is None else int(clients),
        rate=inf if rate is None else rate,
        requests=int(requests),
        inputs=inputs,
        outputs=outputs,
        time_to_first_token=first / 1e3,
        time_per_output_token=each / 1e3 if each else None,
        output_tokens_per_second=tokens,
    )


def _export(document: dict[str, Any], origin: str, file: str) -> ClientResult:
    """Return the run of an export of GenAI-Perf or AIPerf."""
    if document.get("is_complete") is False or document.get("was_cancelled") is True:
        raise SpecError([Problem("the run ended before it was done: export a complete one", "$", file)])
    names = (_FIRST, _TOKENS, "request_count", "input_sequence_length", "output_sequence_length")
    means = {name: _mean(document, name) for name in names}
    missing = [name for name, mean in means.items() if mean is None]
    if missing:
        sentence = f"{', '.join(missing)}: a mean (avg) of more than 0, in a known unit, is needed"
        raise SpecError([Problem(sentence, "$", file)])
    present = {name: mean for name, mean in means.items() if mean is not None}
    clients, rate = _asked(document, file)
    return ClientResult(
        origin=origin,
        clients=clients,
        rate=rate,
        requests=max(1, int(present["request_count"])),
        inputs=(max(1, round(present["input_sequence_length"])),),
        outputs=(max(1, round(present["output_sequence_length"])),),
        time_to_first_token=present[_FIRST],
        time_per_output_token=_mean(document, _EACH),
        output_tokens_per_second=present[_TOKENS],
    )


def _mean(document: dict[str, Any], name: str) -> float | None:
    """Return the mean of a metric, a time in seconds; milliseconds where it has no unit."""
    metric = document.get(name)
    mean = _number(metric, "avg") if isinstance(metric, dict) else None
    if not isinstance(metric, dict) or mean is None or name not in {_FIRST, _EACH}:
        return mean
    factor = _SECONDS.get(str(metric.get("unit", "ms")))
    return None if factor is None else mean * factor


def _asked(document: dict[str, Any], file: str) -> tuple[int | None, float]:
    """Return the clients of a closed loop, or None and the rate of an open one, as the client was asked."""
    for part in _load_parts(document.get("input_config")):
        rate = _number(part, "request_rate") or _number(part, "rate")
        if rate is not None:
            return None, rate
        clients = _number(part, "concurrency")
        if clients is not None:
            return max(1, int(clients)), inf
    sentence = "the load is missing: input_config has no concurrency and no request rate"
    raise SpecError([Problem(sentence, "$.input_config", file)])


def _load_parts(config: object) -> list[dict[str, Any]]:
    """Return the parts of a configuration that may have a load: of AIPerf, of its phases, of GenAI-Perf."""
    if not isinstance(config, dict):
        return []
    phases = config.get("phases")
    listed = list(phases) if isinstance(phases, list) else [phases]
    profiled = [part for part in listed if isinstance(part, dict) and part.get("name") != "warmup"]
    analyzer = config.get("perf_analyzer")
    stimulus = analyzer.get("stimulus") if isinstance(analyzer, dict) else None
    parts = [config.get("loadgen"), config.get("profiling"), *profiled, stimulus]
    return [part for part in parts if isinstance(part, dict)]


def _number(document: dict[str, Any], key: str) -> float | None:
    """Return a positive number; None where there is none, or where it is inf."""
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value > 0 and isfinite(value) else None


def _lengths(document: dict[str, Any], which: str, requests: int) -> tuple[int, ...]:
    """Return the lengths of all requests where the file has them, else as they were drawn, else their mean.

    SGLang's bench_serving draws random prompts evenly from a share of a length to that length.
    """
    lengths = document.get(f"{which}_lens")
    if isinstance(lengths, list) and lengths and all(_is_length(n) for n in lengths):
        return tuple(lengths)
    summed = _number(document, f"total_{which}_tokens")
    mean = 0 if summed is None else round(summed / requests)
    if not 1 <= mean <= _MOST_TOKENS:
        return ()
    nominal, ratio = document.get(f"random_{which}_len"), document.get("random_range_ratio")
    drawn = document.get("dataset_name") in {"random", "random-ids"} and _is_length(nominal)
    if not drawn or not isinstance(ratio, int | float) or not 0 <= ratio < 1 or nominal is None:
        return (mean,)
    length = RangeLength(nominal=nominal, range_ratio=float(ratio))
    lengths = drawn_lengths(length, min(requests, _MOST_DRAWN), np.random.default_rng(len(which)))
    return tuple(lengths.tolist())


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_TOKENS


#: Deviations of priors of scale and host time, and of the noise of figures, of logarithms. Medians of 8
#: machines with four closed-loop runs or more differ by 12 % in time per token, and runs of one of them by
#: 12 % from its median, by 30 % in time to the first token (python -m benchmarks.serving.one_point). Hosts
#: differ as those of training do.
SCALE_PRIOR: Final = 0.12
HOST_PRIOR: Final = 0.30
_NOISE: Final = {"time_to_first_token": 0.30, "time_per_output_token": 0.12, "output_tokens_per_second": 0.12}
#: Deviations of the noise beyond which the loss is linear, and runs that the prior of the noise counts as.
_BEND: Final = 1.5
_PRIOR_RUNS: Final = 4
_STEP: Final = 0.1
_STEPS: Final = 5
_MOST_SHIFT: Final = 4.0
#: Most requests that are simulated.
_MOST_REQUESTS: Final = 2048

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EngineRun:
    """A measured run with the engine that ran it: its scheduler and the price of its iterations.

    ``groups`` share the load: engines, and groups of data-parallel attention.
    """

    measured: ClientResult
    rules: SchedulerRules
    iteration: EngineIteration
    groups: int
    #: Groups of data-parallel attention of an engine.
    attention_groups: int
    step: StepFacts


@dataclass(frozen=True, slots=True)
class EngineFit:
    """Factors of scale and host time, deviations that are left over those of the priors, and the interval.

    ``interval`` is the width of 90 % intervals over that of an engine that was not calibrated.
    """

    scale: float
    host: float
    scale_left: float
    host_left: float
    interval: float


def predicted_figures(run: EngineRun, scale: float = 1.0, host: float = 1.0) -> dict[str, float]:
    """Return the figures of a run, simulated with its client, with factors of scale and host time.

    Requests of unlike lengths are spread over the groups in turn.
    """
    shipped = run.iteration
    times = replace(shipped.host, step=shipped.host.step * host, per_request=shipped.host.per_request * host)
    iteration = replace(shipped, scale=shipped.scale * scale, host=times)
    of_group = iteration if run.attention_groups == 1 else GroupIteration(iteration, run.attention_groups)
    load = _load(run)
    statistics = run_statistics(simulate(load, run.rules, of_group))
    front = run.step.front_end.value * host + run.step.front_end_per_token.value * float(np.mean(load.inputs))
    each = statistics.time_per_output_token
    return {
        "time_to_first_token": statistics.time_to_first_token.mean + front,
        "time_per_output_token": each.mean if each is not None else 0.0,
        "output_tokens_per_second": statistics.output_tokens_per_second * run.groups,
    }


def _load(run: EngineRun) -> RequestLoad:
    """Return the requests that one group gets."""
    measured, groups = run.measured, run.groups
    clients = 0 if measured.clients is None else max(1, ceil(measured.clients / groups))
    count = min(_MOST_REQUESTS, max(2, ceil(measured.requests / groups)))
    inputs = tuple(measured.inputs[i * groups % len(measured.inputs)] for i in range(count))
    outputs = tuple(measured.outputs[i * groups % len(measured.outputs)] for i in range(count))
    arrivals = (0.0,) * count
    if not clients and not isinf(measured.rate):
        gaps = np.random.default_rng(0).exponential(groups / measured.rate, count)
        arrivals = tuple(np.cumsum(gaps).tolist())
    front = run.step.front_end.value
    return RequestLoad(inputs, outputs, arrivals, clients, CLIENT_SECONDS + front)


def fit_engine(runs: Sequence[EngineRun]) -> EngineFit:
    """Return the most probable factors of the machine on which ``runs`` were measured."""
    z, jacobian, residuals = np.zeros(2), np.zeros((1, 2)), np.zeros(1)
    for _ in range(_STEPS):
        residuals = _residuals(runs, z)
        moved = [(_residuals(runs, z + _STEP * d) - residuals) / _STEP for d in np.eye(2)]
        # Beyond the bend the loss is linear: such a residual counts less.
        weights = np.minimum(1.0, _BEND / np.maximum(np.abs(residuals), 1e-9))
        jacobian = np.sqrt(weights)[:, None] * np.stack(moved, axis=1)
        normal = jacobian.T @ jacobian + np.eye(2)
        gradient = jacobian.T @ (np.sqrt(weights) * residuals) + z
        z = np.clip(z - np.linalg.solve(normal, gradient), -_MOST_SHIFT, _MOST_SHIFT)
    left = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian + np.eye(2))))
    return EngineFit(
        scale=exp(SCALE_PRIOR * z[0]),
        host=exp(HOST_PRIOR * z[1]),
        scale_left=float(left[0]),
        host_left=float(left[1]),
        interval=_interval(float(left[0]), residuals),
    )


def _residuals(runs: Sequence[EngineRun], z: Array) -> Array:
    scale, host = exp(SCALE_PRIOR * z[0]), exp(HOST_PRIOR * z[1])
    residuals = []
    for run in runs:
        figures = predicted_figures(run, scale, host)
        for name, noise in _NOISE.items():
            measured = getattr(run.measured, name)
            # In a closed loop tokens a second follow from the times.
            repeated = name == "output_tokens_per_second" and run.measured.clients is not None
            if measured and figures[name] > 0 and not repeated:
                residuals.append(log(figures[name] / measured) / noise)
    return np.array(residuals or [0.0])


def _interval(left: float, residuals: Array) -> float:
    """Return the width of the interval: ((x w^2 + C b^2) / (w^2 + b^2))^1/2.

    x is the mean square of residuals, in which a prior counts as four: runs that contradict the fit widen it.

    >>> _interval(1.0, np.ones(1))
    1.0
    >>> 0.7 < _interval(0.0, np.ones(4)) < 0.75  # as wide as the runs of one machine are apart
    True
    """
    within, between = _NOISE["time_per_output_token"] ** 2, SCALE_PRIOR**2
    bent = np.minimum(np.abs(residuals), 2 * _BEND)
    contradiction = (_PRIOR_RUNS + float((bent**2).sum())) / (_PRIOR_RUNS + len(bent))
    return float(((contradiction * within + left**2 * between) / (within + between)) ** 0.5)
