"""The model that arguments of Megatron-LM describe, in the fields of a model file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from autoplan.errors import Problem
from autoplan.launch.configuration import Fields
from autoplan.launch.frameworks.megatron.arguments import FLAGS, TABLE, Arguments

_FREQUENCY: Final = re.compile(r"[0-9\[\]()+*, ]{1,2000}")
_FACTOR: Final = re.compile(r"\[([01](?:,[01])*,?)\](?:\*([0-9]{1,5}))?|([0-9]{1,5})\*\[([01](?:,[01])*,?)\]")
_MOST_LAYERS: Final = 10_000


@dataclass(slots=True)
class ReadModel:
    """A description of a model as far as it is known; None as ``fields`` where its size is not."""

    fields: dict[str, Any] | None
    missing: tuple[str, ...] = ()
    defaults: list[str] = field(default_factory=list)
    lines: Fields = field(default_factory=dict)


def read_model(arguments: Arguments, file: str) -> ReadModel:
    """Return the model that the arguments describe; contradictions become problems of ``arguments``."""
    read = ReadModel({})
    layers = arguments.number("layers") or arguments.number("encoder_layers")
    sizes = {"layers": layers, **{key: arguments.number(key) for key in ("hidden_size", "heads")}}
    stated = {key: written for key, written in sizes.items() if written is not None}
    read.lines.update(stated)
    if len(stated) < len(sizes):
        read.missing = tuple(f"model.{key}" for key, written in sizes.items() if written is None)
        read.fields = None
        return read
    fields: dict[str, Any] = {
        "schema": 1,
        "kind": "model",
        "name": _name_of(file),
        "source": f"arguments of Megatron-LM in {PurePath(file).name}",
        **{key: written.value for key, written in stated.items()},
    }
    _attention(arguments, fields, read)
    _block(arguments, fields, read)
    _experts(arguments, fields, read)
    vocabulary = arguments.number("vocabulary")
    read.missing = ("model.vocabulary",) if vocabulary is None else ()
    if vocabulary is not None:
        fields["vocabulary"] = vocabulary.value
    _check(fields, arguments)
    read.fields = fields
    return read


def _name_of(file: str) -> str:
    """Return a name for the model of a file."""
    stem = re.sub(r"[^a-z0-9._-]+", "-", PurePath(file).stem.lower()).strip("-._")
    return f"model-of-{stem or 'file'}"[:100]


def _attention(arguments: Arguments, fields: dict[str, Any], read: ReadModel) -> None:
    heads = fields["heads"]
    if arguments.flag("latent_attention"):
        _latent_attention(arguments, fields, read)
        return
    channels = arguments.number("head_dim")
    if channels is not None and channels.value * heads != fields["hidden_size"]:
        fields["head_dim"] = channels.value
    elif channels is None and fields["hidden_size"] % heads:
        arguments.refuse(f"{heads} heads do not divide the hidden size of {fields['hidden_size']}", "heads")
    _query_groups(arguments, fields, read)
    if arguments.flag("qk_norm"):
        fields["qk_norm"] = True
    sinks = arguments.text("attention_sinks")
    if sinks is not None and sinks.value == "learnable":
        fields["attention_sinks"] = True
    if arguments.text("activation_clamp") is not None:
        fields["activation_clamp"] = True
    _window(arguments, fields)


def _query_groups(arguments: Arguments, fields: dict[str, Any], read: ReadModel) -> None:
    heads, groups = fields["heads"], arguments.number("kv_heads")
    shared = arguments.number("shared_kv_heads")
    if shared is not None:
        fields["kv_heads"] = shared.value
    elif arguments.flag("grouped_queries"):
        fields["kv_heads"] = groups.value if groups else 1
        if groups is None:
            read.defaults.append("model.kv_heads")
        if heads % fields["kv_heads"]:
            message = f"{fields['kv_heads']} query groups do not divide {heads} heads"
            arguments.refuse(message, "kv_heads")
    elif groups is not None and groups.value != heads:
        arguments.notes.append(f"{FLAGS['kv_heads']} without {FLAGS['grouped_queries']} has no effect")


def _latent_attention(arguments: Arguments, fields: dict[str, Any], read: ReadModel) -> None:
    mla: dict[str, Any] = {}
    if (rank := arguments.number("q_lora_rank")) is not None:
        mla["q_lora_rank"] = rank.value
    for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        written = arguments.number(key)
        mla[key] = written.value if written else TABLE[key].default
        if written is None:
            read.defaults.append(f"model.mla.{key}")
    fields["attention"], fields["mla"] = "mla", mla


def _window(arguments: Arguments, fields: dict[str, Any]) -> None:
    window = arguments.text("window")
    if window is None:
        return
    match = re.fullmatch(r"[\[(]?\s*([0-9]{1,9})\s*,\s*(0|-1)\s*[\])]?", window.value)
    if match is None:
        arguments.refuse(f"{window.value[:40]!r} is no window such as 4095,0", "window")
        return
    fields["sliding_window"] = {"window": int(match[1]) + 1}
    every = arguments.number("window_every")
    if every is not None:
        fields["sliding_window"]["every"] = every.value


def _block(arguments: Arguments, fields: dict[str, Any], read: ReadModel) -> None:
    """Add what MLP, norms, positions and biases are."""
    _activation(arguments, fields)
    width, norm, hidden = arguments.number("ffn_size"), arguments.text("norm"), fields["hidden_size"]
    gated = fields["activation"] == "swiglu"
    fields["ffn_size"] = width.value if width else int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    _positions(arguments, fields, read)
    fields["norm"] = "rmsnorm" if norm and norm.value.lower() == "rmsnorm" else "layernorm"
    linear = arguments.flag("no_bias") is None
    qkv = linear or arguments.flag("qkv_bias") is not None
    biases = {"qkv": qkv, "attention_output": linear, "mlp": linear}
    fields["bias"] = {**biases, "norm": fields["norm"] == "layernorm"}
    if arguments.flag("embedding_norm"):
        fields["embedding_norm"] = True
    fields["tied_embeddings"] = arguments.flag("untied_embeddings") is None
    missing = {
        "ffn_size": width is None,
        "norm": norm is None,
        "activation": fields["activation"] == "gelu",
        "bias": linear,
        "tied_embeddings": fields["tied_embeddings"],
    }
    read.defaults += [f"model.{name}" for name, usual in missing.items() if usual]


def _activation(arguments: Arguments, fields: dict[str, Any]) -> None:
    fields["activation"] = "gelu"
    for activation in ("swiglu", "relu2", "geglu"):
        if arguments.flag(activation):
            fields["activation"] = activation
    if fields["activation"] == "geglu":
        arguments.notes.append(f"{FLAGS['geglu']} is read as geglu, which costs the same")


def _positions(arguments: Arguments, fields: dict[str, Any], read: ReadModel) -> None:
    kind = arguments.text("positions")
    rotary = arguments.flag("rotary")
    if kind is not None and kind.value == "alibi":
        fields["positions"] = "alibi"
        return
    text = kind.value if kind else "rope" if rotary else "learned_absolute"
    if text in {"yarn", "mrope"}:
        text = "rope"
    position = TABLE["positions"].ours(text)
    if position is None:
        arguments.notes.append(f"positions of the kind {text!r} are read as none")
    fields["positions"] = position or "none"
    if kind is None and rotary is None:
        read.defaults.append("model.positions")
    longest = arguments.number("max_positions")
    if longest is not None:
        fields["max_positions"] = longest.value


def _experts(arguments: Arguments, fields: dict[str, Any], read: ReadModel) -> None:
    experts = arguments.number("experts")
    if experts is None or experts.value == 1:
        return
    top_k, width = arguments.number("top_k"), arguments.number("expert_ffn_size")
    shared = arguments.number("shared_expert_ffn_size")
    balanced = fields["bias"]["mlp"] or arguments.flag("router_bias") is not None
    fields["moe"] = {
        "experts": experts.value,
        "top_k": top_k.value if top_k else TABLE["top_k"].default,
        "expert_ffn_size": width.value if width else fields["ffn_size"],
        **({"shared_expert_ffn_size": shared.value} if shared is not None else {}),
        **({"shared_expert_gate": True} if arguments.flag("shared_expert_gate") else {}),
        "router_bias": balanced,
        **_expert_layers(arguments, fields["layers"]),
    }
    read.defaults += ["model.moe.top_k"] if top_k is None else []
    read.defaults += ["model.moe.expert_ffn_size"] if width is None else []


def _expert_layers(arguments: Arguments, layers: int) -> dict[str, int]:
    """Return which layers have experts."""
    written = arguments.text("expert_layers")
    if written is None:
        return {}
    text = written.value
    if text.isdigit() and len(text) < 6:
        return _every_layer(int(text), layers, arguments)
    pattern = _pattern(text)
    if pattern is None or len(pattern) != layers:
        values = "no such pattern" if pattern is None else f"a pattern of {len(pattern)} layers"
        arguments.refuse(f"{text[:60]!r} is {values}, and the model has {layers} layers", "expert_layers")
        return {}
    first = pattern.index(1) if 1 in pattern else layers
    if all(pattern[first:]) and first < layers:
        return {"first_dense_layers": first} if first else {}
    for every in range(2, layers + 1):
        if pattern == [int((i + 1) % every == 0) for i in range(layers)]:
            return {"every": every}
    arguments.refuse(f"{text[:60]!r} is neither dense layers first nor one in every N", "expert_layers")
    return {}


def _every_layer(every: int, layers: int, arguments: Arguments) -> dict[str, int]:
    """Return the fields of experts in one layer of ``every``: in Megatron-LM it is the first of each."""
    if every <= 1:
        return {}
    if layers % every:
        arguments.refuse(
            f"experts in one layer of {every} do not divide the {layers} layers", "expert_layers"
        )
    arguments.notes.append(
        f"{FLAGS['expert_layers']} {every} has experts in the first of each {every} layers: read as the last"
    )
    return {"every": every}


def _pattern(text: str) -> list[int] | None:
    """Return the list that a pattern such as ``([0]*3+[1]*58)`` is; nothing is evaluated.

    >>> _pattern("([0]*1+[1]*2)*2"), _pattern("[1,0]*2"), _pattern("__import__")
    ([0, 1, 1, 0, 1, 1], [1, 0, 1, 0], None)
    """
    compact = text.replace(" ", "")
    if not _FREQUENCY.fullmatch(compact):
        return None
    outer = re.fullmatch(r"\(([^()]*)\)(?:\*([0-9]{1,5}))?", compact)
    inner, times = (outer[1], int(outer[2] or 1)) if outer else (compact, 1)
    result: list[int] = []
    for term in inner.split("+"):
        match = _FACTOR.fullmatch(term)
        if match is None:
            return None
        items = [int(x) for x in (match[1] or match[4]).split(",") if x]
        count = int(match[2] or match[3] or 1)
        if count * len(items) * times > _MOST_LAYERS:
            return None
        result += items * count
    return result * times if len(result) * times <= _MOST_LAYERS else None


def _check(fields: dict[str, Any], arguments: Arguments) -> None:
    """Add what makes ``fields`` no model to the problems; a vocabulary may be missing."""
    from pydantic import ValidationError

    from autoplan.schema.model import ModelSpec

    try:
        ModelSpec.model_validate({"vocabulary": 1, **fields})
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            where = ".".join(str(part) for part in detail["loc"]) or "model"
            arguments.problems.append(Problem(f"no model: {detail['msg']}", where, arguments.file))
