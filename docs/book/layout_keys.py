"""The reference of layout strings: every key, what it may be, and what it is where it is left out."""

from __future__ import annotations

import dataclasses
from typing import Final, get_args

from autoplan.schema.layout import _KEYS, OFFLOADS, ORDERS, RECOMPUTE, SCHEDULES, parse_layout
from autoplan.schema.serving.engine_layout import EngineLayout, KvFormat, WeightFormat
from docs.book.markdown import table

__all__ = ["layout_page"]

_HEAD: Final = """# Layout strings

Written by `make docs` from the code. A layout string names one layout: on the command line (`--layout`), in
JSON (`layout_string`), in Python and in files of runs. Keys are joined by commas, in any order.

## Training

`tp=2,pp=2,dp=2,mbs=1,recompute=full:4/none` is two stages: the first recomputes four of its layers in full.
"""

_SERVING: Final = """## Serving

`tp=4,replicas=2,weights=fp8` is two engines of four devices each. Pools of their own for prefill and decode
are written `prefill=(tp=2,x=3)/decode=(tp=4,x=1)`. An engine takes `tp * pp * adp` devices.
"""


def _either(values: tuple[str, ...]) -> str:
    return ", ".join(f"`{value}`" for value in values)


_COUNT: Final = "integer, 1 or more"
#: Of each key of a training layout: what it may be, and what it means.
_TRAINING: Final[dict[str, tuple[str, str]]] = {
    "tp": (_COUNT, "tensor-parallel degree"),
    "pp": (_COUNT, "stages of the pipeline"),
    "dp": (_COUNT, "data-parallel degree; left out: the devices that the other degrees leave"),
    "cp": (_COUNT, "context-parallel degree"),
    "ep": (_COUNT, "expert-parallel degree, over ranks of the context and data axes"),
    "etp": (_COUNT, "tensor-parallel degree of experts; left out: `tp`"),
    "mbs": (_COUNT, "sequences of a microbatch"),
    "zero": ("0 to 3", "ZeRO stage; left out: the least that the stack has"),
    "vpp": (_COUNT, "virtual stages of a device"),
    "recompute_num_layers": (_COUNT, "layers of a unit of full recompute, which stores one input"),
    "dp_shard": (_COUNT, "data-parallel ranks over which states are sharded (HSDP); left out: all"),
    "offload_every": (_COUNT, "the activations of one layer in so many are offloaded"),
    "sp": ("`on`, `off`", "sequence parallelism; left out: on where tp is more than 1"),
    "schedule": (_either(SCHEDULES), "left out: `interleaved` where vpp is more than 1"),
    "stages": ("`10/11/11`", "layers of each stage; left out: even"),
    "recompute": (
        f"{_either(RECOMPUTE)}; by stage `full:4+selective:2/full/none`",
        "recompute of all layers, or of each stage with numbers of layers",
    ),
    "offload": (_either(OFFLOADS), "what is in host memory"),
    "order": (_either(ORDERS), "axes by which ranks are numbered, the innermost first"),
}
#: Of each key of a serving layout: what it means.
_ENGINE: Final[dict[str, str]] = {
    "tp": "tensor-parallel degree of an engine",
    "pp": "stages of an engine",
    "replicas": "engines; `x` in pools",
    "ep": "expert-parallel degree, divides `tp * adp`",
    "adp": "groups with attention, cache and requests of their own (data-parallel attention)",
    "dcp": "ranks of a tensor-parallel group that share the tokens of a cache",
    "seqs": "most requests of a step; 0: the engine's default",
    "tokens": "most tokens of a step; 0: the engine's default",
    "spec": "tokens that a draft proposes; 0: no speculation",
    "weights": "format of the weights",
    "kv": "format of the cache",
}


def layout_page() -> str:
    """Return the page; a key that the program has and this module does not know is a KeyError."""
    return f"{_HEAD}\n{_training_table()}{_SERVING}\n{_serving_table()}"


def _training_table() -> str:
    text = str(parse_layout("", layers=1, devices=1))
    defaults = dict(part.split("=") for part in text.split(","))
    defaults |= {"order": ORDERS[0], "offload": OFFLOADS[0]}
    defaults |= {"recompute_num_layers": "1", "offload_every": "1"}
    rows = []
    for key in _KEYS:
        values, meaning = _TRAINING[key]
        default = defaults.get(key, "") if "left out" not in meaning else ""
        rows.append([f"`{key}`", values, f"`{default}`" if default else "", meaning])
    return table(["key", "value", "default", "meaning"], rows)


def _serving_table() -> str:
    defaults = EngineLayout()
    formats = {"weights": get_args(WeightFormat), "kv": get_args(KvFormat)}
    rows = []
    for field in dataclasses.fields(EngineLayout):
        counts = "integer, 0 or more" if getattr(defaults, field.name) == 0 else _COUNT
        values = _either(formats[field.name]) if field.name in formats else counts
        rows.append([f"`{field.name}`", values, f"`{getattr(defaults, field.name)}`", _ENGINE[field.name]])
    return table(["key", "value", "default", "meaning"], rows)
