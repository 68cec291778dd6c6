"""Preference and reinforcement learning of a fine-tune: what a step computes besides, and what it keeps.

Names are those of TRL. Facts are of the wheel of trl 1.16.0: trl/trainer/dpo_trainer.py, kto_trainer.py and
grpo_trainer.py, their configurations, and trl/experimental/orpo and cpo.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from autoplan.schema.base import Frozen

RLMethod = Literal["dpo", "kto", "orpo", "simpo", "grpo"]
RL_METHODS: Final[tuple[RLMethod, ...]] = get_args(RLMethod)

#: Methods whose samples are pairs of a chosen and a rejected sequence, which pass the model together.
PAIRED: Final = frozenset({"dpo", "orpo", "simpo"})
#: Methods that compare with a reference whatever their coefficients are.
_COMPARING: Final = frozenset({"dpo", "kto"})


class ForwardPasses(NamedTuple):
    """Forward passes of a microbatch without a gradient: of the reference, and of the policy [1]."""

    reference: int
    policy: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.reference + self.policy


class RLSpec(Frozen):
    """Preference or reinforcement learning: the method, its reference and its rollouts."""

    method: RLMethod = Field(
        description="dpo (also IPO), orpo and simpo learn from pairs of a chosen and a rejected sequence,"
        " which are the samples of a batch; kto from single ones, grpo from completions of the policy"
    )
    precompute_ref_log_probs: bool = Field(
        default=False,
        description="the reference's log-probabilities are computed before training (dpo, kto): no step has"
        " its forward, and no device its parameters",
    )
    beta: Annotated[float, Field(ge=0, le=1_000, strict=False)] | None = Field(
        default=None,
        description="weight of the divergence from the reference; grpo has no reference where it is 0, as by"
        " default",
    )
    vllm_mode: Literal["colocate", "server"] | None = Field(
        default=None,
        description="where vLLM computes the completions of grpo: on the devices that train, or elsewhere;"
        " left out: the trainer generates them itself",
    )
    vllm_gpu_memory_utilization: Annotated[float, Field(ge=0.01, le=0.99, strict=False)] = Field(
        default=0.3, description="share of each device's memory that a colocated vLLM takes"
    )
    vllm_enable_sleep_mode: bool = Field(
        default=False, description="a colocated vLLM leaves the device during the optimizer step"
    )

    @property
    def compares(self) -> bool:
        """Whether there is a reference at all."""
        return self.method in _COMPARING or (self.method == "grpo" and bool(self.beta))

    @property
    def passes(self) -> ForwardPasses:
        """Forward passes without a gradient in a microbatch.

        DPO has one of the reference. KTO estimates a divergence on mismatched completions, by a pass of the
        policy and one of the reference. With vLLM, GRPO computes the policy's own log-probabilities again
        (vllm_importance_sampling_correction).

        >>> [tuple(RLSpec(method=name).passes) for name in ("dpo", "kto", "orpo", "grpo")]
        [(1, 0), (2, 1), (0, 0), (0, 0)]
        """
        mismatched = int(self.method == "kto")
        compared = self.compares and not self.precompute_ref_log_probs
        again = int(self.vllm_mode is not None)
        return ForwardPasses((1 + mismatched) * compared, mismatched + again)

    @property
    def rollout_share(self) -> float:
        """Share of each device's memory that a colocated engine holds while the model is trained [1]."""
        resident = self.vllm_mode == "colocate" and not self.vllm_enable_sleep_mode
        return self.vllm_gpu_memory_utilization if resident else 0.0

    @model_validator(mode="after")
    def _keys_of_the_method(self) -> Self:
        fields = type(self).model_fields
        changed = [name for name, field in fields.items() if getattr(self, name) != field.default]
        rollouts = [name for name in changed if name.startswith("vllm")]
        if rollouts and self.method != "grpo":
            raise ValueError(f"{rollouts[0]} needs method: grpo")
        if self.vllm_mode != "colocate" and {*rollouts} - {"vllm_mode"}:
            raise ValueError(f"{rollouts[-1]} needs vllm_mode: colocate")
        if self.precompute_ref_log_probs and self.method not in _COMPARING:
            raise ValueError("precompute_ref_log_probs needs method: dpo or kto")
        return self


def _as_mapping(value: object) -> object:
    """Return a method that is written alone, `rl: dpo`, as the mapping that it is short for."""
    if isinstance(value, str):
        return {"method": value.casefold()}
    return value


PostTrainingSpec = Annotated[RLSpec, BeforeValidator(_as_mapping, json_schema_input_type=RLMethod | RLSpec)]


def sequences_of_sample(rl: RLSpec | None) -> int:
    """Return the sequences that a sample of a batch is [1]: two of a pair, else one.

    >>> sequences_of_sample(None), sequences_of_sample(RLSpec(method="dpo"))
    (1, 2)
    """
    return 2 if rl is not None and rl.method in PAIRED else 1
