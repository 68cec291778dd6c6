"""Scope of an engine's formulas: a job, the layout of its engines, and what follows from both.

Notation (this file only)::

    S  requests of a step          T  tokens of a step                               [1]
    L  layers                      p  pipeline stages                                [1]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Final, TypeVar

from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import EngineLayout, WeightFormat
from autoplan.schema.serving.engine_stack import EngineFacts
from autoplan.schema.serving.serving_choices import UnquantizedPart
from autoplan.schema.serving.serving_spec import ServingJob

T = TypeVar("T")

#: Formats that only experts have, in a model with experts.
_EXPERTS_ONLY: Final[frozenset[WeightFormat]] = frozenset({"mxfp4"})


@dataclass(frozen=True)
class EngineScope:
    """The engines of one layout of a job. What follows from job and layout is derived once.

    ``base`` is the scope of the same engines with other sizes of steps, whose weights and caches these have.
    """

    job: ServingJob
    layout: EngineLayout
    base: EngineScope | None = field(default=None, repr=False, compare=False)
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def model(self) -> ModelSpec:
        """The model that is served."""
        return self.job.model

    @cached_property
    def facts(self) -> EngineFacts:
        """What the engine's file says of its version."""
        return self.job.engine.facts

    @cached_property
    def device(self) -> DeviceSpec:
        """One device of the cluster."""
        return self.job.cluster.device

    @cached_property
    def step_sizes(self) -> tuple[int, int]:
        """S and T, the most requests and tokens of a step [1]: the layout's, the job's or the defaults.

        Defaults follow the memory of the device; some devices count as smaller ones. Both are of one
        attention data-parallel rank; those of SGLang share the default tokens.

        >>> jobs = [load_serving_job(f"llama3.1-8b-1x-{x}") for x in ("h100", "rtx4090")]
        >>> [EngineScope(job, EngineLayout()).step_sizes for job in jobs]
        [(1024, 8192), (256, 2048)]
        >>> deepseek = load_serving_job("deepseek-v3-8x-h200")
        >>> [EngineScope(deepseek, EngineLayout(tp=8 // n, adp=n)).step_sizes[1] for n in (1, 8)]
        [8192, 1024]

        Source: vLLM 0.33.0, engine/arg_utils.py, get_batch_defaults; SGLang 0.5.23,
        arg_groups/memory_hook.py and server_args.py, _handle_data_parallelism.
        """
        memory, search = self.device.memory.usable.value, self.job.search
        tier = [
            x
            for x in self.facts.defaults
            if memory >= x.memory_from and not self.device.name.startswith(x.except_devices or ("\0",))
        ][-1]
        seqs = self.layout.seqs or _first(search.max_num_seqs) or tier.max_num_seqs
        ranks = self.layout.adp if self.facts.scheduler.shares_tokens else 1
        default = max(1, tier.max_num_batched_tokens // ranks)
        tokens = self.layout.tokens or _first(search.max_num_batched_tokens) or default
        return min(seqs, tokens), tokens

    @cached_property
    def captured_batch(self) -> int:
        """The largest batch of decodes of an attention data-parallel rank that is captured as a graph [1].

        Engines that say so choose it by the memory of a device and the devices of a stage.

        >>> sglang = replace(serving_job, engine=load_serving_job("deepseek-v3-8x-h200").engine)
        >>> [EngineScope(x, EngineLayout(tp=n)).captured_batch for x in (serving_job, sglang) for n in (1, 4)]
        [512, 512, 256, 512]

        Source: SGLang 0.5.23, srt/server_args.py, cuda_graph_max_bs by memory and tp; else the engine's file.
        """
        memory, step = self.device.memory.capacity.value, self.facts.step
        tiers = [x for x in self.facts.graph_tiers if memory >= x.memory_from]
        if not tiers:
            return 0 if step is None else step.largest_graph.value
        # SGLang's tp counts all devices of a stage.
        return tiers[-1].narrow if self.layout.tp * self.layout.adp < 4 else tiers[-1].wide

    @cached_property
    def stages(self) -> tuple[range, ...]:
        """The layers of each pipeline stage.

        >>> EngineScope(load_serving_job("llama3-70b-8x-h100"), EngineLayout(pp=2)).stages
        (range(0, 40), range(40, 80))
        """
        rule = self.facts.scheduler.splits_layers
        return tuple(range(*ends) for ends in stage_layers_of_engine(self.model.layers, self.layout.pp, rule))

    def format_of(self, part: UnquantizedPart) -> WeightFormat:
        """Return the weight format of a part of the model.

        >>> EngineScope(serving_job, EngineLayout(weights="fp8")).format_of("attention")
        'fp8'
        """
        weights = self.layout.weights
        not_experts = weights in _EXPERTS_ONLY and self.model.moe is not None and part != "experts"
        return "bf16" if not_experts or part in self.job.precision.unquantized else weights

    def resized(self, layout: EngineLayout) -> EngineScope:
        """Return the scope of ``layout``, which has other sizes of steps: weights and caches stay the same.

        >>> scope = h100_scope()
        >>> scope.resized(EngineLayout(seqs=64)).base is scope
        True
        """
        return replace(self, layout=layout, base=self.base or self)

    def once(self, derive: Callable[[EngineScope], T]) -> T:
        """Return what ``derive`` makes of this scope, computed at the first call.

        >>> scope, calls = h100_scope(), []
        >>> scope.once(calls.append), scope.once(calls.append), len(calls)
        (None, None, 1)
        """
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        value: T = self._derived[derive]
        return value


def _first(choice: str | int | tuple[int, ...]) -> int:
    """Return the first of the numbers that a job allows; 0 where any is allowed."""
    if isinstance(choice, str):
        return 0
    return choice if isinstance(choice, int) else choice[0]


@lru_cache(maxsize=1024)
def stage_layers_of_engine(layers: int, pp: int, rule: str) -> tuple[tuple[int, int], ...]:
    """Return the first layer of each stage and the one after its last [1].

    Each of p stages has L // p layers; the remaining layers go to the last stages before the last (middle),
    to the last, or to the first.

    >>> stage_layers_of_engine(61, 4, "middle"), stage_layers_of_engine(61, 4, "last")
    (((0, 15), (15, 30), (30, 46), (46, 61)), ((0, 15), (15, 30), (30, 45), (45, 61)))

    Source: vLLM 0.33.0, distributed/utils.py, get_pp_indices; SGLang 0.5.23, srt/distributed/utils.py.
    """
    counts = [layers // pp] * pp
    left = layers % pp
    at = {"first": range(left), "last": range(pp - left, pp), "middle": range(pp - 1 - left, pp - 1)}[rule]
    for stage in at:
        counts[stage] += 1
    ends = [sum(counts[: i + 1]) for i in range(pp)]
    return tuple((end - count, end) for count, end in zip(counts, ends, strict=True))
