"""Layouts of serving: engines with their degrees, formats and sizes of a step, and their text.

One engine takes tp x pp x adp devices. ``tp`` splits attention, ``adp`` groups of tp devices have attention,
cache and requests of their own and share the experts, ``ep`` of the tp x adp devices of a stage split the
experts as wholes and the others their matrices.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from autoplan.errors import LayoutError

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


_LIMIT: Final = 1_000_000
#: Keys of a layout string with their fields, in the order of the string.
_DEGREES: Final = {
    "tp": "tp",
    "pp": "pp",
    "replicas": "replicas",
    "x": "replicas",
    "ep": "ep",
    "adp": "adp",
    "dcp": "dcp",
    "seqs": "seqs",
    "tokens": "tokens",
    "spec": "spec",
}
_FORMATS: Final[dict[str, tuple[str, ...]]] = {"weights": get_args(WeightFormat), "kv": get_args(KvFormat)}
_KEYS: Final = (*(key for key in _DEGREES if key != "x"), *_FORMATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayout:
    """Engines that are alike; ``seqs`` and ``tokens`` of 0 are the engine's defaults."""

    tp: int = 1
    pp: int = 1
    replicas: int = 1
    ep: int = 1
    adp: int = 1
    dcp: int = 1
    weights: WeightFormat = "bf16"
    kv: KvFormat = "auto"
    seqs: int = 0
    tokens: int = 0
    spec: int = 0

    @property
    def devices_per_engine(self) -> int:
        """Devices of one engine."""
        return self.tp * self.pp * self.adp

    @property
    def devices(self) -> int:
        """Devices of all engines."""
        return self.devices_per_engine * self.replicas

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats of weights and cache, which engines of one plan have in common unless a job mixes them."""
        return self.weights, self.kv

    @property
    def expert_tensor(self) -> int:
        """Devices that share the matrices of one expert."""
        return self.tp * self.adp // self.ep

    def __str__(self) -> str:
        """Return the layout string; ``parse_serving_layout`` reads it back to the same layout."""
        dcp = f",dcp={self.dcp}" if self.dcp > 1 else ""
        sizes = "".join(
            f",{key}={value}" for key, value in (("seqs", self.seqs), ("tokens", self.tokens)) if value
        )
        return (
            f"tp={self.tp},pp={self.pp},replicas={self.replicas},ep={self.ep},adp={self.adp}{dcp},"
            f"weights={self.weights},kv={self.kv}{sizes},spec={self.spec}"
        )


@dataclass(frozen=True, slots=True)
class DisaggregatedLayout:
    """Engines that prefill and engines that decode."""

    prefill: EngineLayout
    decode: EngineLayout

    @property
    def devices(self) -> int:
        """Devices of both pools."""
        return self.prefill.devices + self.decode.devices

    def __str__(self) -> str:
        """Return the layout string."""
        pools = (("prefill", self.prefill), ("decode", self.decode))
        return "/".join(f"{name}=({str(pool).replace('replicas=', 'x=')})" for name, pool in pools)


def parse_serving_layout(
    text: str, defaults: EngineLayout | None = None
) -> EngineLayout | DisaggregatedLayout:
    """Return the layout of a layout string; omitted keys are those of ``defaults``.

    Raises LayoutError with all problems.

    >>> layout = parse_serving_layout("tp=4,replicas=2,weights=fp8")
    >>> layout.devices, str(layout)
    (8, 'tp=4,pp=1,replicas=2,ep=1,adp=1,weights=fp8,kv=auto,spec=0')
    >>> parse_serving_layout("prefill=(tp=2,x=3)/decode=(tp=4,x=1)").devices
    10
    """
    defaults = defaults or EngineLayout()
    pools = re.fullmatch(r"\s*prefill=\(([^()]*)\)/decode=\(([^()]*)\)\s*", text)
    problems: list[str] = []
    if pools is None:
        layout = _engine(text, defaults, problems)
        if problems:
            raise LayoutError(problems)
        return layout
    prefill, decode = (_engine(part, defaults, problems) for part in pools.groups())
    if problems:
        raise LayoutError(problems)
    return DisaggregatedLayout(prefill, decode)


def engines_of(text: str) -> tuple[EngineLayout, ...]:
    """Return the engines of a plan's ``layout_string``: of each group that differs, or of both pools.

    >>> [str(engine.tp) for engine in engines_of("tp=2,weights=fp8 + tp=1,replicas=2")]
    ['2', '1']
    """
    layouts = [parse_serving_layout(part) for part in text.split(" + ")]
    pools = ((x.prefill, x.decode) if isinstance(x, DisaggregatedLayout) else (x,) for x in layouts)
    return tuple(engine for engines in pools for engine in engines)


def _engine(text: str, defaults: EngineLayout, problems: list[str]) -> EngineLayout:
    values: dict[str, int | str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (x.strip() for x in part.partition("="))
        name = _DEGREES.get(key, key)
        if not equals or not value:
            problems.append(f"{part!r} is not of the form key=value")
        elif key not in _DEGREES and key not in _FORMATS:
            problems.append(_unknown_key(key))
        elif name in values:
            problems.append(f"{key!r} is given twice")
        else:
            values[name] = _value(key, value, problems)
    layout = replace(defaults, **values)  # type: ignore[arg-type]
    if not problems:
        problems += _contradictions(layout)
    return layout


def _unknown_key(key: str) -> str:
    near = difflib.get_close_matches(key, _KEYS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(_KEYS)}"
    return f"unknown layout key {key!r}: {hint}"


def _value(key: str, value: str, problems: list[str]) -> int | str:
    if key in _FORMATS:
        if value not in _FORMATS[key]:
            problems.append(f"{key}={value}: known formats are {', '.join(_FORMATS[key])}")
        return value
    least = 0 if key == "spec" else 1
    if re.fullmatch(r"[0-9]{1,9}", value) and least <= int(value) <= _LIMIT:
        return int(value)
    problems.append(f"{key}={value}: must be an integer from {least} to {_LIMIT}")
    return 1


def _contradictions(layout: EngineLayout) -> list[str]:
    group = layout.tp * layout.adp
    rules = {
        f"ep={layout.ep} does not divide the {group} devices of a stage (tp x adp)": group % layout.ep > 0,
        f"dcp={layout.dcp} does not divide tp={layout.tp}": layout.tp % layout.dcp > 0,
        f"tokens={layout.tokens} is less than seqs={layout.seqs}: each request needs a token": (
            0 < layout.tokens < layout.seqs
        ),
    }
    return [sentence for sentence, broken in rules.items() if broken]
