"""Choices of a job: low-rank adapters and the formats of the frozen base, numbers of devices, their price."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from autoplan.schema.base import Frozen

ZeroStage = Annotated[int, Field(ge=0, le=3)]
Batch = Annotated[int, Field(ge=1, le=10_000_000)]


def distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``values``; raises ValueError where one is given twice."""
    if len(set(values)) != len(values):
        raise ValueError(f"{list(values)} has a duplicate value")
    return values


class BatchRange(Frozen):
    """Global batches from one size to another: doubled from step to step, or by steps of a size."""

    first: Batch = Field(alias="from", description="smallest batch, in sequences")
    last: Batch = Field(alias="to", description="largest batch, in sequences")
    step: Batch | None = Field(default=None, description="difference of two batches; left out: each doubles")


Batches = (
    Batch
    | Annotated[tuple[Batch, ...], Field(min_length=1, max_length=64), AfterValidator(distinct)]
    | BatchRange
)


class PriceSpec(Frozen):
    """What a device costs an hour, and when it did."""

    per_device_hour: float = Field(ge=1e-6, le=1e6, description="price of one device for one hour")
    currency: str = Field(default="USD", pattern="^[A-Z]{3}$", description="its currency, such as USD")
    date: str = Field(
        pattern="^[0-9]{4}-[01][0-9]-[0-3][0-9]$", description="day of the price, such as 2026-11-01"
    )


def batches_of(batches: int | tuple[int, ...] | BatchRange) -> tuple[int, ...]:
    """Return the global batches to plan for, in the order asked for.

    Of a range that doubles, the last is the largest that is no larger than ``to``, and ``to`` itself.

    >>> batches_of(BatchRange.model_validate({"from": 256, "to": 1024}))
    (256, 512, 1024)
    >>> batches_of(BatchRange.model_validate({"from": 100, "to": 250, "step": 100}))
    (100, 200)
    """
    if isinstance(batches, int):
        return (batches,)
    if isinstance(batches, tuple):
        return batches
    if batches.step is not None:
        return tuple(range(batches.first, batches.last + 1, batches.step))
    doubled = [batches.first << i for i in range(24) if batches.first << i < batches.last]
    return (*doubled, batches.last) if batches.first <= batches.last else ()


#: Format of the frozen base: 4-bit NormalFloat, 4-bit float, or 8-bit integers (LLM.int8()).
Base = Literal["nf4", "fp4", "int8"]
TargetModule = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

ATTENTION_MODULES: Final[tuple[TargetModule, ...]] = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_MODULES: Final[tuple[TargetModule, ...]] = ("gate_proj", "up_proj", "down_proj")


class AdapterSpec(Frozen):
    """Low-rank adapters (LoRA): the model is frozen, and two low-rank matrices per target are trained."""

    rank: int = Field(ge=1, le=65_536, description="inner width of an adapter")
    targets: (
        Literal["attention", "all"]
        | Annotated[tuple[TargetModule, ...], Field(min_length=1), AfterValidator(distinct)]
    ) = Field(
        default="all",
        description="GEMMs with an adapter: those of attention, or also those of the MLP (all), or a list of"
        " them such as [q_proj, v_proj]",
    )
    experts: bool = Field(
        default=False,
        description="stacked experts have adapters, too, two matrices each (PEFT's target_parameters,"
        " axolotl's lora_target_parameters, gate_proj, up_proj and down_proj of Unsloth)",
    )
    base: Base | None = Field(
        default=None,
        description="format of the frozen GEMMs' weights (QLoRA): nf4 or fp4 in 4 bits, int8; embedding,"
        " output layer and norms stay as the stack keeps them; left out: the format of the run",
    )
    double_quantization: bool | None = Field(
        default=None,
        description="scales of a 4-bit base are in 8 bits themselves (bnb_4bit_use_double_quant); left out:"
        " they are",
    )
    dora: bool = Field(
        default=False, description="a trained magnitude for each output of a target (DoRA, use_dora)"
    )
    dropout: float = Field(
        default=0.0,
        ge=0,
        le=0.99,
        strict=False,
        description="dropout of the adapters' inputs (lora_dropout), whose results and masks are kept",
    )

    @property
    def modules(self) -> tuple[TargetModule, ...]:
        """The targets one by one."""
        if isinstance(self.targets, tuple):
            return self.targets
        return ATTENTION_MODULES if self.targets == "attention" else (*ATTENTION_MODULES, *MLP_MODULES)

    @property
    def doubly_quantized(self) -> bool:
        """Whether the scales of the base are quantised, too: of 4-bit ones, unless the job says otherwise."""
        return self.base in {"nf4", "fp4"} and self.double_quantization is not False

    @model_validator(mode="after")
    def _scales_of_a_base_in_four_bits(self) -> Self:
        if self.double_quantization is not None and self.base not in {"nf4", "fp4"}:
            raise ValueError("double_quantization needs base: nf4 or fp4")
        return self

    @model_validator(mode="after")
    def _plain_adapters_of_experts(self) -> Self:
        if self.experts and (self.dora or self.dropout):
            raise ValueError("adapters of experts have neither dora nor dropout")
        return self
