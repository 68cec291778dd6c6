"""Building the iteration of an engine from its scope and the kernels of its device, without and with drafts.

With drafts the model verifies g of each request, and new ones are made.

Notation (this file only)::

    m  tokens of a step    B  decodes    g  drafts of a step    h  hidden size       [1]
    w  hidden states that a drafting layer reads at once                             [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.iteration import Chunk
from autoplan.costs.serving.drafts import drafting_scope, joined_states
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import (
    EngineIteration,
    HostTimes,
    Line,
    Sheet,
    line_of,
    sheet_of,
)
from autoplan.costs.serving.iteration.kernel_prices import KernelPrices, Matrix, send_seconds
from autoplan.costs.serving.iteration.layer_prices import (
    decode_attention_seconds,
    head_seconds,
    launch_seconds,
    prefill_attention_seconds,
    tiled_queries,
    token_seconds,
)
from autoplan.costs.serving.iteration.measured_kernels import MeasuredKernels
from autoplan.errors import UnsupportedError
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.engine_stack import StepFacts
from autoplan.schema.serving.serving_spec import ServingJob

_TOKENS: Final = tuple(sorted({1, 2, 4, *(round(2 ** (n / 2)) for n in range(6, 39))}))
_REQUESTS: Final = tuple(sorted({1, 2, 4, *(round(2 ** (n / 2)) for n in range(6, 27))}))
_CONTEXTS: Final = tuple(round(2 ** (n / 2)) for n in range(12, 41))
_PROMPTS: Final = (1, 2, 4, 8, 16, 64, 256)
_LENGTHS: Final = tuple(round(2 ** (n / 2)) for n in range(8, 41))


def engine_iteration(
    scope: EngineScope,
    kernels: KernelSpec,
    measured: tuple[EngineKernelSpec, DeviceSpec] | None,
) -> EngineIteration:
    """Return the prices of iterations of one engine.

    ``kernels`` are those of training on the device; ``measured`` has the engines' tables with the device on
    which they were measured, None if none exist. Raises UnsupportedError for an engine without facts of a
    step.

    >>> h100_iteration().captured.at(1) * 3.35e12 > 2 * 7e9  # its weights, bytes
    True
    """
    step, layout = step_facts(scope.job), scope.layout
    prices = kernel_prices(scope.job, kernels, measured)
    m = np.array(_TOKENS, dtype=np.float64)
    captured = token_seconds(scope, prices, m, graph=True)
    launched = np.maximum(captured, token_seconds(scope, prices, m, graph=False))
    lengths, prompts = np.array(_LENGTHS, dtype=np.float64), np.array(_PROMPTS, dtype=np.float64)
    return EngineIteration(
        captured=line_of(_TOKENS, captured),
        launched=line_of(_TOKENS, launched),
        head=line_of(_TOKENS, head_seconds(scope, prices, m)),
        decode=decode_sheet(scope, prices),
        prefill=sheet_of(
            _PROMPTS,
            _LENGTHS,
            prefill_attention_seconds(scope, prices, prompts[:, None], lengths[None, :]),
        ),
        host=HostTimes(
            step=step.host.value,
            per_request=step.host_per_request.value,
            eager=launch_seconds(scope, step.eager_kernel.value),
            # With stages the host waits for the tokens of a batch before it prepares the next one.
            hidden=scope.facts.scheduler.asynchronous and layout.pp == 1,
        ),
        scale=step.scale.value / prices.engine_share,
        mixed_graphs=step.graphs == "all",
        decode_graphs=step.graphs != "none",
        sizes=graph_sizes(scope.captured_batch) if step.pads else (),
        largest_graph=scope.captured_batch,
        stages=layout.pp,
        send=line_of(_TOKENS, _sends(scope, prices, m)),
        groups=layout.adp,
        tile=tiled_queries(scope),
    )


def step_facts(job: ServingJob) -> StepFacts:
    """Return what the host does in a step of the job's engine; raises UnsupportedError where no file says it.

    >>> step_facts(serving_job).host.value > 0
    True
    """
    step = job.engine.facts.step
    if step is None:
        raise UnsupportedError(f"the time of a step of {job.engine} is not known: its file has no `step`")
    return step


def kernel_prices(
    job: ServingJob, kernels: KernelSpec, measured: tuple[EngineKernelSpec, DeviceSpec] | None
) -> KernelPrices:
    """Return the prices of kernels of a job's engine on its devices.

    Raises UnsupportedError for an engine without facts of a step.

    >>> h100 = "h100-sxm5-80gb"
    >>> kernel_prices(serving_job, kernels_for(h100), engine_kernels_for(h100)).fuses_quantization
    ('fp8',)
    """
    step = step_facts(job)
    tables = None if measured is None else MeasuredKernels(*measured, step.kernels, step.triton_experts)
    return KernelPrices(job.cluster, tables, kernels, step.fuses_quantization)


def decode_sheet(scope: EngineScope, prices: KernelPrices, queries: int = 1) -> Sheet:
    """Return the time of attention of requests with so many new tokens each, by requests and contexts [s].

    >>> one, five = (decode_sheet(h100_scope(), h100_prices(), n).at(64, 4096) for n in (1, 5))
    >>> one <= five < 5 * one  # keys and values are read once
    True
    """
    requests, contexts = np.array(_REQUESTS, dtype=np.float64), np.array(_CONTEXTS, dtype=np.float64)
    seconds = decode_attention_seconds(scope, prices, requests[:, None], contexts[None, :], queries)
    return sheet_of(_REQUESTS, _CONTEXTS, seconds)


def graph_sizes(largest: int) -> tuple[int, ...]:
    """Return the captured batches of decodes: 1, 2, 4, by 8 to 256 and by 16 to the largest.

    >>> sizes = graph_sizes(512)
    >>> len(sizes), sizes[:5], sizes[-1]
    (51, (1, 2, 4, 8, 16), 512)

    Source: vLLM 0.33.0, config/vllm.py, cudagraph_capture_sizes; SGLang 0.5.23, srt/server_args.py, has
    nearly the same.
    """
    return tuple(n for n in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if n <= largest)


def _sends(scope: EngineScope, prices: KernelPrices, m: Array) -> Array:
    layout = scope.layout
    if layout.pp == 1:
        return np.zeros_like(m)
    size = 2.0 * np.ceil(m / layout.adp) * scope.model.hidden_size
    return np.asarray(send_seconds(prices, size, layout.pp, layout.tp * layout.adp))


def drafts_wait_for_host(job: ServingJob) -> bool:
    """Return whether drafts are made from tokens on the host, so that it cannot run ahead of the device.

    >>> drafts_wait_for_host(serving_job)
    False

    Source: vLLM 0.30.0, config/vllm.py: asynchronous scheduling with EAGLE, MTP and draft models alone.
    """
    return job.speculation is not None and job.speculation.method == "ngram"


@dataclass(frozen=True, slots=True)
class SpeculativeIteration:
    """An ``Iteration``: a pass of the model over B (g + 1) tokens, and g passes of the model that drafts."""

    verify: EngineIteration
    #: The pass over the tokens that were verified, and those over one token of each request; None: n-gram.
    first: EngineIteration | None
    later: EngineIteration | None
    #: The product before a drafting layer, by tokens.
    joined: Line | None
    drafts: int

    def seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration [s]; prompts pass the model that drafts, too.

        >>> step = second_steps()
        >>> SpeculativeIteration(step, step, step, None, 3).seconds(1, 100)  # 4 passes of layers and head
        8.0
        """
        if not decodes and not chunks:
            return 0.0
        device, eager = self.verify.device_and_launches(decodes, context_tokens, chunks)
        device += self.draft_seconds(decodes, context_tokens, chunks)
        return self.verify.with_host(device, eager, decodes, len(chunks))

    def draft_seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time in which the drafts of the next iteration are made [s].

        >>> step = second_steps()
        >>> SpeculativeIteration(step, None, None, None, 3).draft_seconds(1, 100)  # n-gram
        0.0
        """
        if self.first is None or self.later is None:
            return 0.0
        # The stage that drafts has the requests of one batch of the pipeline at a time.
        p = self.verify.stages
        batch_decodes, context = -(-decodes // p), context_tokens / p
        seconds = self.first.device_seconds(batch_decodes, context, chunks)
        new = sum(chunk.new_tokens for chunk in chunks) / p
        if batch_decodes:
            seconds += (self.drafts - 1) * self.later.device_seconds(batch_decodes, context)
        if self.joined is not None:
            later_drafts = (self.drafts - 1) * self.joined.at(batch_decodes) if batch_decodes else 0.0
            seconds += self.verify.scale * (
                self.joined.at(batch_decodes * (self.drafts + 1) + new) + later_drafts
            )
        return seconds

    def decode_run(self, decodes: int, context_tokens: float, steps: int) -> float:
        """Return the time of ``steps`` iterations of decodes alone [s]: Simpson's rule.

        >>> step = second_steps()
        >>> SpeculativeIteration(step, None, None, None, 3).decode_run(1, 100, 5)
        10.0
        """
        grown = decodes * (steps - 1)
        ends = self.seconds(decodes, context_tokens) + self.seconds(decodes, context_tokens + grown)
        return steps * (ends + 4 * self.seconds(decodes, context_tokens + grown / 2)) / 6


def speculative_iteration(
    scope: EngineScope,
    plain: EngineIteration,
    kernels: KernelSpec,
    measured: tuple[EngineKernelSpec, DeviceSpec] | None,
) -> SpeculativeIteration:
    """Return the prices of iterations of an engine that is ``plain`` without its drafts.

    >>> scope = EngineScope(replace(serving_job, speculation=eagle), EngineLayout(spec=3))
    >>> plain = engine_iteration(scope, *h100_kernels())
    >>> both = speculative_iteration(scope, plain, *h100_kernels())
    >>> 1.0 < both.seconds(1, 1024) / plain.seconds(1, 1024) < 1.6
    True
    """
    job, g = scope.job, scope.layout.spec
    prices = kernel_prices(job, kernels, measured)
    host = replace(plain.host, hidden=plain.host.hidden and not drafts_wait_for_host(job))
    sheet = decode_sheet(scope, prices, g + 1)
    verify = replace(plain, queries=g + 1, sampled=g + 1, decode=sheet, host=host)
    drafting = drafting_scope(scope)
    if drafting is None:
        return SpeculativeIteration(verify, None, None, None, g)
    idle_host = HostTimes(0.0, 0.0, 0.0, hidden=True)
    later = replace(engine_iteration(drafting, kernels, measured), host=idle_host)
    first = replace(later, queries=g + 1, decode=decode_sheet(drafting, prices, g + 1))
    states, joined = joined_states(job), None
    if states:
        matrix = Matrix(job.model.hidden_size, states * job.model.hidden_size, "bf16")
        nodes = later.captured.nodes
        joined = line_of(nodes, prices.product(np.array(nodes), matrix))
    return SpeculativeIteration(verify, first, later, joined, g)
