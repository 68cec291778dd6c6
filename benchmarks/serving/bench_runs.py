"""Runs of trtllm-bench, which sends a number of requests at once and chooses the sizes of a step by itself.

Notation (this file only)::

    N  requests of a run       C  requests in flight      I, O  tokens of a prompt and of an answer  [1]
    S  requests of a step      T  tokens of a step        R     requests the cache holds              [1]
    n  devices of an engine    u  share of the cache                                                 [1]
    M  memory of a device      W  weights of all devices  b     cache of a token                     [byte]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from autoplan.costs.core.iteration import Iteration
from autoplan.costs.core.parameters import total_parameters
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules
from autoplan.schema.serving.engine_layout import KV_BITS, EngineLayout, WeightFormat
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["BenchFacts", "bench_facts", "bench_sizes", "bench_tokens_per_second", "captured_sizes"]

#: Bytes of a weight as the tool counts them: stored elements, of which nvfp4 packs two in one with a scale
#: for sixteen, times half a byte. It chooses nothing for other formats.
_WEIGHT_BYTES: Final[Mapping[WeightFormat, float]] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0,
    "nvfp4": 0.5 * (1 / 2 + 1 / 16),
}
#: Sizes of a step where it chooses none.
_DEFAULT: Final = (2048, 8192)
#: Most requests and tokens of a step that the tool chooses, and fewest.
_MOST_SEQS, _MOST_TOKENS = 4096, 32768
_LEAST_SEQS, _LEAST_TOKENS = 64, 2048
#: Waves of requests that are simulated of a longer run: those between are like one another.
_WAVES: Final = 3


@dataclass(frozen=True, slots=True)
class BenchFacts:
    """How a source ran the tool."""

    rows: str
    source: str
    #: Share of what is free that the cache takes.
    cache: float
    #: Whether models with experts have data-parallel attention on all devices.
    attention_groups: bool
    #: Captured batches of decodes; none: no graphs.
    graphs: tuple[int, ...]
    #: Requests by the tokens of a prompt and of an answer.
    requests: Mapping[str, int]


def bench_facts(row: str, known: list[dict[str, Any]]) -> BenchFacts | None:
    """Return how the source of a row, by its id and framework, ran trtllm-bench; None where it did not."""
    own = next((x for x in known if re.search(x["rows"], row)), None)
    return None if own is None else BenchFacts(**{**own, "graphs": tuple(own["graphs"])})


def bench_sizes(
    job: ServingJob, layout: EngineLayout, lengths: tuple[int, int], share: float
) -> tuple[int, int]:
    """Return the requests and tokens of a step of each pipeline stage that trtllm-bench chooses.

    R = u (n M - W) / (b (I + O)), at most 4,096, over the stages; T = R (1 + I / O), at most 32,768; both
    rounded up in steps, and a prompt always goes in.

    Source: NVIDIA/TensorRT-LLM tensorrt_llm/bench/build/tuning.py at 04cba882, calc_engine_setting and
    finetune_setting; bench/benchmark/utils/general.py at 0171265e, get_settings.
    """
    inputs, outputs = lengths
    each = _WEIGHT_BYTES.get(layout.weights)
    if each is None:
        return _DEFAULT[0], max(_DEFAULT[1], inputs + _DEFAULT[0])
    model = job.model
    ranks = layout.tp * layout.adp
    # Latent attention counts as heads of their own keys and values.
    keys, width = (
        (model.heads, model.hidden_size // model.heads) if model.mla else (model.kv_heads, model.head_dim)
    )
    memory = job.cluster.device.memory.capacity.value
    weights = total_parameters(model) * each
    token = 2 * model.layers * max(ranks, keys) * width * KV_BITS[layout.kv] / 8
    free = share * max(0.0, ranks * layout.pp * memory - weights)
    requests = min(free / (token * (inputs + outputs)), _MOST_SEQS) / layout.pp
    tokens = min(requests * (1 + inputs / outputs), _MOST_TOKENS)
    step = 32 if requests < 256 else 128 if requests < 1024 else 256
    seqs = max(_LEAST_SEQS, step * ceil(requests / step))
    step = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    return seqs, max(_LEAST_TOKENS, step * ceil(tokens / step), inputs + seqs)


def captured_sizes(iteration: EngineIteration, facts: BenchFacts, seqs: int) -> EngineIteration:
    """Return an iteration whose decodes are padded to the batches that the source captured."""
    if not facts.graphs:
        return iteration
    sizes = (*(x for x in facts.graphs if x < seqs), seqs)
    return replace(iteration, sizes=sizes, largest_graph=seqs)


def bench_tokens_per_second(
    facts: BenchFacts, rules: SchedulerRules, iteration: Iteration, lengths: tuple[int, int], parts: int
) -> float:
    """Return the tokens a second of a run [1/s]: N O over its time from the first to the last token.

    Of a long run its first waves of C requests and its last are simulated; those between take as long as
    the one before them.
    """
    inputs, outputs = lengths
    total = facts.requests.get(f"{inputs}/{outputs}", _usual(facts, inputs, outputs))
    own = max(1, ceil(total / parts))
    blocks = max(1, rules.pool.request_blocks(inputs + outputs - 1))
    wave = max(1, min(rules.max_num_seqs, rules.pool.own_blocks // blocks))
    left_out = max(0, own // wave - _WAVES)
    count = own - left_out * wave
    run = simulate(RequestLoad((inputs,) * count, (outputs,) * count, (0.0,) * count), rules, iteration)
    span = max(run.last)
    if left_out:
        ends = sorted(run.last)
        span += left_out * (ends[2 * wave - 1] - ends[wave - 1])
    return parts * own * outputs / span


def _usual(facts: BenchFacts, inputs: int, outputs: int) -> int:
    """Return the requests of the lengths that the source tells which are most alike in all."""
    known = {sum(map(int, key.split("/"))): count for key, count in facts.requests.items()}
    return known[min(known, key=lambda length: abs(length - inputs - outputs))]
