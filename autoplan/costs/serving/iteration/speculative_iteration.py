"""The time of an iteration with drafts: the model verifies g drafts of each request, and new ones are made.

Notation (this file only)::

    B  decodes     g  drafts of a step     h  hidden size     m  tokens of a step    [1]
    w  hidden states that a drafting layer reads at once                             [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplan.costs.core.serving.iteration import Chunk
from autoplan.costs.serving.drafts import drafting_scope, joined_states
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration, HostTimes, Line, line_of
from autoplan.costs.serving.iteration.iteration_of_engine import (
    decode_sheet,
    engine_iteration,
    kernel_prices,
)
from autoplan.costs.serving.iteration.layer_matrices import Matrix
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.serving_spec import ServingJob


def drafts_wait_for_host(job: ServingJob) -> bool:
    """Return whether drafts are made from tokens on the host, so that it cannot run ahead of the device.

    >>> drafts_wait_for_host(load_serving_job("llama3.1-8b-1x-h100"))
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

        >>> from autoplan.costs.serving.iteration.engine_iteration import Line, Sheet
        >>> one, sheet = Line((1.0, 2.0), (1.0, 1.0)), Sheet((1.0, 2.0), (1.0, 2.0), ((0.0, 0.0), (0.0, 0.0)))
        >>> host = HostTimes(0.0, 0.0, 0.0, hidden=True)
        >>> step = EngineIteration(one, one, one, sheet, sheet, host, 1.0, True, True, (), 512, 1, one, 1)
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

        >>> from autoplan.costs.serving.iteration.engine_iteration import Line, Sheet
        >>> one, sheet = Line((1.0, 2.0), (1.0, 1.0)), Sheet((1.0, 2.0), (1.0, 2.0), ((0.0, 0.0), (0.0, 0.0)))
        >>> host = HostTimes(0.0, 0.0, 0.0, hidden=True)
        >>> step = EngineIteration(one, one, one, sheet, sheet, host, 1.0, True, True, (), 512, 1, one, 1)
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

        >>> from autoplan.costs.serving.iteration.engine_iteration import Line, Sheet
        >>> one, sheet = Line((1.0, 2.0), (1.0, 1.0)), Sheet((1.0, 2.0), (1.0, 2.0), ((0.0, 0.0), (0.0, 0.0)))
        >>> host = HostTimes(0.0, 0.0, 0.0, hidden=True)
        >>> step = EngineIteration(one, one, one, sheet, sheet, host, 1.0, True, True, (), 512, 1, one, 1)
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

    >>> eagle = SpeculationSpec(method="eagle", tokens=(3,), acceptance=0.7)
    >>> job, h100 = load_serving_job("llama3.1-8b-1x-h100"), "h100-sxm5-80gb"
    >>> costs = kernels_for(h100), engine_kernels_for(h100)
    >>> scope = EngineScope(replace(job, speculation=eagle), EngineLayout(spec=3))
    >>> plain = engine_iteration(scope, *costs)
    >>> both = speculative_iteration(scope, plain, *costs)
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
