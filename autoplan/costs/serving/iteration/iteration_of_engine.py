"""Building the iteration of an engine from its scope and the kernels of its device.

Notation (this file only)::

    m  tokens of a step                                                              [1]
"""

from __future__ import annotations

from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.attention_prices import (
    decode_attention_seconds,
    prefill_attention_seconds,
    tiled_queries,
)
from autoplan.costs.serving.iteration.engine_iteration import (
    EngineIteration,
    HostTimes,
    Sheet,
    line_of,
    sheet_of,
)
from autoplan.costs.serving.iteration.kernel_prices import KernelPrices, send_seconds
from autoplan.costs.serving.iteration.measured_kernels import MeasuredKernels
from autoplan.costs.serving.iteration.token_prices import head_seconds, launch_seconds, token_seconds
from autoplan.errors import UnsupportedError
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.engine_facts import StepFacts
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

    >>> iteration = h100_iteration()
    >>> iteration.captured.at(1) * 3.35e12 > 2 * 7e9  # its weights, bytes
    True
    """
    step, layout = step_facts(scope.job), scope.layout
    captures = not scope.job.search.enforce_eager
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
            eager=launch_seconds(scope, _eager_kernel(scope, step)),
            # With stages the host waits for the tokens of a batch before it prepares the next one.
            hidden=scope.facts.scheduler.asynchronous and layout.pp == 1,
        ),
        scale=step.scale.value / prices.engine_share,
        mixed_graphs=step.graphs == "all" and captures,
        decode_graphs=step.graphs != "none" and captures,
        sizes=graph_sizes(scope.captured_batch) if step.pads else (),
        largest_graph=scope.captured_batch,
        stages=layout.pp,
        send=line_of(_TOKENS, _sends(scope, prices, m)),
        groups=layout.adp,
        tile=tiled_queries(scope),
    )


def _eager_kernel(scope: EngineScope, step: StepFacts) -> float:
    """Return the host time to launch one kernel outside of graphs [s], longer where nothing is compiled."""
    modules = scope.facts.eager_launch if scope.job.search.enforce_eager else None
    return max(step.eager_kernel.value, modules.value if modules else 0.0)


def step_facts(job: ServingJob) -> StepFacts:
    """Return what the host does in a step of the job's engine; raises UnsupportedError where no file says it.

    >>> step_facts(load_serving_job("llama3.1-8b-1x-h100")).host.value > 0
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

    >>> job, h100 = load_serving_job("llama3.1-8b-1x-h100"), "h100-sxm5-80gb"
    >>> kernel_prices(job, kernels_for(h100), engine_kernels_for(h100)).fuses_quantization
    ('fp8',)
    """
    step = step_facts(job)
    tables = None if measured is None else MeasuredKernels(*measured, step.kernels, step.triton_experts)
    return KernelPrices(job.cluster, tables, kernels, step.fuses_quantization)


def decode_sheet(scope: EngineScope, prices: KernelPrices, queries: int = 1) -> Sheet:
    """Return the time of attention of requests with so many new tokens each, by requests and contexts [s].

    >>> job, h100 = load_serving_job("llama3.1-8b-1x-h100"), "h100-sxm5-80gb"
    >>> prices = kernel_prices(job, kernels_for(h100), engine_kernels_for(h100))
    >>> scope = EngineScope(job, EngineLayout())
    >>> one, five = (decode_sheet(scope, prices, n).at(64, 4096) for n in (1, 5))
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
