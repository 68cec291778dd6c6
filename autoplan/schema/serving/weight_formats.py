"""Formats that an engine keeps weights and keys and values in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

WeightFormat = Literal["bf16", "fp16", "fp8", "fp8-block", "int8", "int4-awq", "int4-gptq", "nvfp4", "mxfp4"]

KvFormat = Literal["auto", "bf16", "fp16", "fp8", "fp8_ds_mla"]

#: Bits of an element of keys and values; ``auto`` is the format of activations. ``fp8_ds_mla`` has its own
#: layout, of which an engine's file says the bytes.
KV_BITS: Final[dict[KvFormat, int]] = {"auto": 16, "bf16": 16, "fp16": 16, "fp8": 8, "fp8_ds_mla": 8}


@dataclass(frozen=True, slots=True)
class LinearFormat:
    """How a matrix is kept: bits of a weight, and of what each group of weights has besides.

    ``group`` is the weights that share a scale; 0: each output row has one.
    """

    bits: int
    group: int = 0
    scale_bits: int = 0
    zero_bits: int = 0


#: AWQ and GPTQ in groups of 128: a 16-bit scale, and for AWQ a 4-bit zero point (vLLM 0.33,
#: layers/quantization/awq.py, gptq_marlin.py); fp8 by blocks of 128 x 128 with fp32 scales (fp8.py); nvfp4 in
#: groups of 16 with fp8 scales (modelopt.py); mxfp4 in groups of 32 with 8-bit scales (OCP MX 1.0).
FORMATS: Final[dict[WeightFormat, LinearFormat]] = {
    "bf16": LinearFormat(16),
    "fp16": LinearFormat(16),
    "fp8": LinearFormat(8, scale_bits=32),
    "fp8-block": LinearFormat(8, group=128 * 128, scale_bits=32),
    "int8": LinearFormat(8, scale_bits=32),
    "int4-awq": LinearFormat(4, group=128, scale_bits=16, zero_bits=4),
    "int4-gptq": LinearFormat(4, group=128, scale_bits=16),
    "nvfp4": LinearFormat(4, group=16, scale_bits=8),
    "mxfp4": LinearFormat(4, group=32, scale_bits=8),
}

#: Formats that a checkpoint in a wider one is most often published in, too, the widest first.
_NARROWER: Final[tuple[WeightFormat, ...]] = ("fp8", "int4-awq")


def narrower_formats(*weights: WeightFormat) -> tuple[WeightFormat, ...]:
    """Return the formats to try instead of ``weights`` where these are too large, the widest first.

    >>> narrower_formats("bf16"), narrower_formats("bf16", "fp8"), narrower_formats("mxfp4")
    (('fp8', 'int4-awq'), ('int4-awq',), ())
    """
    bits = min(FORMATS[name].bits for name in weights)
    return tuple(name for name in _NARROWER if FORMATS[name].bits < bits)
