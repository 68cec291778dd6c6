"""Random serving jobs, their fronts without simulations, and layouts that are drawn at random."""

from __future__ import annotations

import random
from dataclasses import replace
from math import isfinite

from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_layouts import engine_load, priced_engine, served, unit_parts
from autoplan.planning.serving_plans import serving_costs
from autoplan.search.serving.engine_allocation import AllocationSearch
from autoplan.search.serving.engines import tokens_menu
from autoplan.search.serving.serving_front_search import between_sizes
from autoplan.search.serving.serving_search import ServingSearch
from tests.support.serving_jobs import serving_job

__all__ = ["TIMES", "Front", "covered", "drawn_points", "front_of", "random_serving"]

TIMES = ("time_to_first_token", "time_per_output_token", "request_latency")
#: Two objectives of which a plan trades one for the other, or a single one.
OBJECTIVES = (
    ("throughput_per_device", "time_per_output_token"),
    ("throughput", "time_per_output_token"),
    ("throughput_per_device", "time_to_first_token", "time_per_output_token"),
    ("devices", "request_latency"),
    ("throughput",),
)
MACHINES = ("dgx-h100", "azure-nd96amsr-a100-v4", "8x-rtx3090", "l40s-8x")
MODELS = ("llama3.1-8b", "gemma2-9b", "gpt-oss-20b", "qwen3-14b")
STACKS = ("vllm@0.24", "vllm@0.11", "sglang", "tensorrt-llm")
#: Objectives are rounded to the solver's units, and fronts thinned by 1 %.
CLOSE = 0.0125


def random_serving(seed, **more):
    """Return a small job of a seed: an engine, lengths that vary, and a load."""
    draw = random.Random(seed)  # noqa: S311 - a test draws
    prompt, answer = draw.choice(((128, 128), (1024, 256), (3000, 400), (100, 300)))
    load = draw.choice(
        ({"concurrency": draw.choice((1, 9, 40, 200))}, {"request_rate": draw.choice((0.5, 3.0, 20.0))}, {})
    )
    lengths = {"input_tokens": _spread(prompt), "output_tokens": _spread(answer)}
    spec = {
        "model": draw.choice(MODELS),
        "hardware": draw.choice(MACHINES[:3]),
        "devices": draw.choice((1, 2, 3, 4)),
        "stack": draw.choice(STACKS),
        "workload": {**lengths, **load},
        "objectives": draw.choice(OBJECTIVES if load else OBJECTIVES[:2]),
    }
    return serving_job(**{**spec, **more})


def _spread(mean):
    return {"uniform": (mean // 2, mean * 3 // 2)}


class Front:
    """The points of a job's front, what lies between its sizes, and its search."""

    def __init__(self, job):
        self.job, self.search = job, ServingSearch(job, serving_costs(job))
        devices = min(job.cluster.devices, job.limits.devices or job.cluster.devices)
        self.gap = between_sizes(job, self.search.priced)
        problem = self.search.problem(self.search.candidates(), job.objectives, devices)
        allocations = AllocationSearch(problem, self.search.thinning)
        self.points = []
        while problem.options and (found := allocations.next()) is not None:
            self.points.append(_costs(job.objectives, found.values))
        assert not allocations.stopped


def front_of(job):
    """Return the front of a job."""
    return Front(job)


def _costs(objectives, values):
    """Return the solver's values as positive numbers, each to be small."""
    pairs = zip(objectives, values, strict=True)
    return tuple(value if name in TIMES or name == "devices" else -1e9 / value for name, value in pairs)


def covered(point, points, tolerance=0.0):
    """Return whether some of ``points`` is no worse in anything, but for thinning and a tolerance."""
    factor = (1 + CLOSE) * (1 + tolerance)
    return any(all(p <= q * factor for p, q in zip(other, point, strict=True)) for other in points)


def drawn_points(front, count, seed):
    """Yield points of layouts that are drawn at random, with any max_num_seqs up to the engine's default."""
    job, search, draw = front.job, front.search, random.Random(seed)  # noqa: S311 - a test draws
    units = search.units.units
    parts = {}
    for _ in range(count if units else 0):
        unit = draw.choice(units)
        engines = draw.randint(1, job.cluster.devices // unit.devices_per_engine)
        tokens = draw.choice(tokens_menu(job, unit))
        most = EngineScope(job, replace(unit, tokens=tokens)).step_sizes[0]
        seqs = min(most, round(2 ** draw.uniform(0, most.bit_length())))
        if unit not in parts:
            parts[unit] = unit_parts(EngineScope(job, unit), search.costs)
        layout = replace(unit, seqs=seqs, tokens=tokens)
        engine = priced_engine(layout, parts[unit])
        load = engine_load(job, engines)
        if engine.shortage is not None or (load.kind == "closed loop" and load.amount < 1):
            continue
        predicted = served(job, engine, load, engines)
        if load.kind == "maximum" or predicted.fits:
            yield replace(layout, replicas=engines), _point(job, predicted)


def _point(job, predicted):
    """Return the objectives of engines that are alike, as those of a front."""
    rate, values = predicted.output_tokens_per_second, []
    for name in job.objectives:
        if name in TIMES:
            time = getattr(predicted, name)
            values.append(time * 1e6 if isfinite(time) else 1e15)
        else:
            each = 1 if name == "throughput" else predicted.devices
            values.append(predicted.devices if name == "devices" else 1e8 * each / rate)
    return tuple(values)
