"""The layout and the training that arguments of Megatron-LM describe, by field."""

from __future__ import annotations

from typing import Any, Final

from autoplan.launch.configuration import Written
from autoplan.launch.frameworks.megatron.arguments import FLAGS, TABLE, Arguments
from autoplan.launch.frameworks.megatron.emitted_arguments import RESIDENT_LAYERS
from autoplan.launch.frameworks.megatron.pipeline_layout import chunks_in
from autoplan.schema.stage_layers import chunks_of

__all__ = ["read_layout"]

_STAGES: Final = (
    "first_stage",
    "last_stage",
    "embedding_counted",
    "loss_counted",
    "layers_per_virtual_stage",
    "vpp",
)
#: Choices of software by the argument that makes them.
_SOFTWARE: Final[dict[str, tuple[str, Any]]] = {
    "bf16_gradients": ("gradients", "bf16"),
    "fp8_weights": ("fp8_weights", True),
    "fused_loss": ("loss", "fused"),
    "fused_permute": ("permute_fusion", True),
}


def read_layout(given: Arguments, layers: int | None, *, experts: bool) -> dict[str, Written]:
    """Return the values of all fields that the arguments or Megatron-LM's defaults give.

    ``layers`` are those of the model, None where they are not known.
    """
    values = _tensor(given) | {"pp": _pipeline(given)} | _context(given)
    values["ep"] = given.number("ep") or given.number("deepspeed_ep") or Written(1, default=experts)
    if experts:
        values |= given.present("etp")
    values |= _stages(given, values["pp"], layers)
    sp = given.flag("sp")
    if sp is not None and values["tp"].value == 1:
        given.notes.append(f"{FLAGS['sp']} has no effect with a tensor-parallel size of 1")
        sp = Written(value=False, line=sp.line, words=sp.words)
    values["sp"] = sp or Written(value=False, default=True)
    if given.flag("order"):
        values["order"] = Written("tp-cp-pp-dp")
    values |= _batches(given)
    values |= _recompute(given, values, layers)
    values["zero"] = _zero(given)
    if given.has("zero_stage"):
        # What DeepSpeed's own file says besides is not a stage.
        given.opened -= {"zero"}
    values |= _offload(given, layers)
    return {**values, **_training(given)}


def _tensor(given: Arguments) -> dict[str, Written]:
    """Return the tensor-parallel degree, which had a shorter name once."""
    former = None if given.has("tp") else given.number("earlier_tp")
    return {"tp": former} if former is not None else given.present("tp")


def _context(given: Arguments) -> dict[str, Written]:
    """Return the degree that sequences are divided over: that of Megatron-LM, or Ulysses in DeepSpeed."""
    ulysses = None if given.has("cp") else given.number("deepspeed_cp")
    return {"cp": ulysses} if ulysses is not None else given.present("cp")


def _pipeline(given: Arguments) -> Written:
    """Return the pipeline stages; Megatron-DeepSpeed can be told to have none."""
    none = given.flag("no_pipeline")
    if none is not None:
        return Written(1, none.line, none.words)
    return given.number("pp") or _default(1)


def _default(value: object) -> Written:
    return Written(value, default=True)


def _batches(given: Arguments) -> dict[str, Written]:
    values = given.present("mbs", "global_batch_size")
    former = None if "mbs" in values else given.number("earlier_mbs")
    values |= {"mbs": former} if former is not None else {}
    length = given.number("sequence_length") or given.number("encoder_sequence_length")
    most = given.number("max_positions")
    if length is not None and most is not None and most.value < length.value:
        sentence = f"sequences of {length.value} tokens (line {length.line}) are longer than {most.value}"
        given.refuse(sentence, "max_positions", most.line)
    return values if length is None else {**values, "sequence_length": length}


def _zero(given: Arguments) -> Written:
    """Return the ZeRO stage; sharding is chosen by Megatron's FSDP, by PyTorch's, or by the optimizer."""
    fsdp = given.flag("megatron_fsdp") or given.flag("custom_fsdp")
    if fsdp is not None:
        strategy, names = given.text("sharding"), TABLE["sharding"].names
        name = strategy.value if strategy else names[3]
        zero = TABLE["sharding"].ours(name)
        if zero is None:
            given.refuse(f"{name[:40]!r} is none of {', '.join(names.values())}", "sharding")
        flag = strategy or fsdp
        return Written(zero or 0, flag.line, flag.words)
    torch = given.flag("torch_fsdp2")
    if torch is not None:
        unsharded_parameters = given.flag("torch_fsdp2_gathered")
        return Written(2 if unsharded_parameters else 3, torch.line, torch.words)
    stage = given.number("zero_stage", least=0)
    if stage is not None and stage.value:
        if stage.value > 3:
            given.refuse(f"{stage.value} is no ZeRO stage", "zero_stage")
        return stage
    sharded = given.flag("distributed_optimizer")
    return Written(1, sharded.line, sharded.words) if sharded else _default(0)


def _recompute(given: Arguments, values: dict[str, Written], layers: int | None) -> dict[str, Written]:
    granularity = given.text("recompute")
    short = given.flag("recompute_attention")
    if short is not None:
        granularity = Written("selective", short.line, short.words)
    if granularity is None:
        return _earlier_recompute(given, values, layers)
    if granularity.value == "selective":
        return _selective(given, granularity)
    if granularity.value != "full":
        given.refuse(f"{granularity.value[:40]!r} is neither full nor selective", "recompute")
        return {}
    method, count = given.text("recompute_method"), given.number("recompute_num_layers", least=0)
    if count is None and method is not None and given.flag("deepspeed") is not None:
        # The default of Megatron-DeepSpeed.
        count = Written(1, method.line, method.words, default=True)
    if method is not None and count is not None and count.value == 0:
        return {"recompute": Written("none", count.line, count.words)}
    if method is not None and count is not None:
        return _full(given, values, method, count, layers)
    for name in ("recompute_method", "recompute_num_layers"):
        if not given.has(name):
            given.refuse(f"full recompute needs {FLAGS[name]}", "recompute")
    return {}


def _selective(given: Arguments, granularity: Written) -> dict[str, Written]:
    """Return selective recompute, which has no method."""
    method = given.text("recompute_method")
    if method is not None:
        sentence = f"selective recompute has no {FLAGS['recompute_method']} (line {method.line})"
        given.refuse(sentence, "recompute", granularity.line)
    listed = " ".join(given.every("recompute_modules"))
    mode = TABLE["recompute_modules"].ours(listed) if listed else "selective"
    if mode is None:
        given.leave_open(["recompute"], f"{FLAGS['recompute_modules']} {listed}", granularity.line)
        return {}
    return {"recompute": Written(mode, granularity.line, granularity.words)}


def _earlier_recompute(
    given: Arguments, values: dict[str, Written], layers: int | None
) -> dict[str, Written]:
    """Return full recompute by arguments of earlier versions and of Megatron-DeepSpeed; else none."""
    method = given.text("earlier_recompute_method")
    every = given.flag("deepspeed_recompute")
    if method is not None:
        count = given.number("earlier_recompute_num_layers")
        return _full(given, values, method, count or _default(1), layers)
    if every is not None:
        count = given.number("deepspeed_recompute_num_layers")
        return _full(given, values, Written("uniform", every.line, every.words), count or _default(1), layers)
    return {"recompute": _default("none")}


def _full(
    given: Arguments, values: dict[str, Written], method: Written, count: Written, layers: int | None
) -> dict[str, Written]:
    """Return full recompute by a method: of units of layers, or of the first layers of virtual stages."""
    if method.value == "uniform":
        fields = {"recompute": Written("full", method.line, method.words)}
        return fields if count.value == 1 else {**fields, "recompute_num_layers": count}
    if method.value != "block":
        given.refuse(f"{method.value[:40]!r} is neither uniform nor block", "recompute_method")
        return {}
    chunks = _chunks(values, layers)
    if chunks is None:
        given.notes.append(f"{FLAGS['recompute_method']} block: the layers of stages are not known")
        return {}
    entries = []
    for stage in chunks:
        recomputed = sum(min(count.value, n) for n in stage)
        entries.append("full" if recomputed == sum(stage) else f"full:{recomputed}")
    text = entries[0] if len(set(entries)) == 1 else "/".join(entries)
    return {"recompute": Written(text, count.line, f"{method.words} {count.words}")}


def _chunks(values: dict[str, Written], layers: int | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the layers of virtual stages; None where they are not known."""
    stages, vpp = values.get("stages"), values.get("vpp")
    if stages is None or vpp is None or layers is None:
        return None
    return chunks_of(stages.value, vpp.value)


def _offload(given: Arguments, layers: int | None) -> dict[str, Written]:
    states = given.flag("optimizer_offload")
    fraction = given.text("optimizer_offload_fraction")
    if states is not None and fraction is not None and fraction.value not in {"1", "1.0"}:
        given.notes.append(f"{fraction.words}: read as offload of all optimizer states")
    count = given.number("activation_offload", least=0)
    moved = count is not None and count.value > 0
    values: dict[str, Written] = {}
    if count is not None and moved and layers is not None:
        every = _offload_every(count.value, layers)
        values["offload_every"] = Written(every, count.line, count.words)
        if every == 1 and count.value != layers - RESIDENT_LAYERS:
            given.notes.append(f"{count.words}: read as offload of the activations of all layers")
    names = [
        name for name, offloaded in (("optimizer", states is not None), ("activations", moved)) if offloaded
    ]
    written = states or count
    if names and written is not None:
        values["offload"] = Written("+".join(names), written.line, written.words)
    return values


def _offload_every(count: int, layers: int) -> int:
    """Return of how many layers one is offloaded."""
    if count == layers - RESIDENT_LAYERS or layers % count:
        return 1 if count > layers // 2 else max(1, layers // count)
    return layers // count


def _training(given: Arguments) -> dict[str, Written]:
    values = {"precision": _precision(given), "optimizer": _optimizer(given)}
    software = {key: value for name, (key, value) in _SOFTWARE.items() if given.flag(name)}
    if software:
        values["software"] = Written(software)
    routing: dict[str, Any] = {}
    factor = given.text("capacity_factor")
    if factor is not None:
        try:
            routing["capacity_factor"] = float(factor.value)
        except ValueError:
            given.refuse(f"{factor.value[:40]!r} is no number", "capacity_factor")
    if given.flag("padded_experts") and routing:
        routing["padded"] = True
    if routing:
        values["routing"] = Written(routing)
    return values


def _precision(given: Arguments) -> Written:
    fp8, fp4 = given.text("fp8_format"), given.text("fp4_format")
    if fp4 is not None:
        return Written("nvfp4", fp4.line, fp4.words)
    if fp8 is not None:
        recipe = given.text("fp8_recipe")
        return Written("mxfp8" if recipe and recipe.value == "mxfp8" else "fp8", fp8.line, fp8.words)
    flags = [(name, written) for name in ("bf16", "fp16") if (written := given.flag(name)) is not None]
    if len(flags) > 1:
        given.refuse(f"{FLAGS['bf16']} and {FLAGS['fp16']} exclude each other", "fp16")
    for name, written in flags[:1]:
        if written is not None:
            return Written(name, written.line, written.words)
    return _default("fp32")


def _optimizer(given: Arguments) -> Written:
    written = given.text("optimizer")
    name = written.value if written else "adam"
    states = given.text("moments")
    ours = "muon" if name == "dist_muon" else TABLE["optimizer"].ours(name) or name
    moments = TABLE["moments"].ours(states.value) if states is not None else None
    if ours == "adamw" and states is not None and moments is not None:
        return Written(moments, states.line, states.words)
    if ours not in {"adamw", "sgd", "lion", "muon"}:
        given.notes.append(f"the optimizer {name[:40]!r} is not priced: left open")
        given.opened.add("optimizer")
    return Written(ours, written.line, written.words) if written else _default(ours)


def _stages(given: Arguments, pp: Written, layers: int | None) -> dict[str, Written]:
    """Return ``vpp`` and ``stages``; contradictions are added to the problems of ``given``."""
    if given.has("stages"):
        return _of_layout(given, pp)
    counted = [flag for flag in ("embedding_counted", "loss_counted") if given.flag(flag)] or _partitioned(
        given
    )
    total = None if layers is None else layers + len(counted)
    vpp = _virtual(given, pp, total)
    values = {"vpp": vpp}
    if layers is None or total is None:
        return values
    stages = (
        _ends(given, pp, layers)
        if given.has("first_stage") or given.has("last_stage")
        else _even(given, pp, total, counted)
    )
    if stages is None:
        return values
    _check_virtual(given, vpp, stages.value, counted)
    return {**values, "stages": stages}


def _partitioned(given: Arguments) -> list[str]:
    """Return what counts as layers where Megatron-DeepSpeed divides layers and embeddings evenly."""
    method = given.text("stage_partition")
    return ["embedding_counted", "loss_counted"] if method is not None and "embedding" in method.value else []


def _virtual(given: Arguments, pp: Written, total: int | None) -> Written:
    """Return the virtual stages of a stage."""
    written, per_virtual = given.number("vpp"), given.number("layers_per_virtual_stage")
    if written is not None:
        return written
    if per_virtual is None or total is None:
        return Written(1, default=True)
    share = total // pp.value
    if total % pp.value == 0 and share % per_virtual.value:
        shown = f"{share} layers of a stage ({_shown(pp, total)})"
        given.refuse(
            f"{per_virtual.value} does not divide the {shown}", "layers_per_virtual_stage", per_virtual.line
        )
        return Written(1, per_virtual.line, per_virtual.words)
    return Written(max(1, share // per_virtual.value), per_virtual.line, per_virtual.words)


def _shown(pp: Written, layers: int) -> str:
    where = f" in line {pp.line}" if pp.line else ""
    return f"{layers} layers over {pp.value} stages{where}"


def _even(given: Arguments, pp: Written, total: int, counted: list[str]) -> Written | None:
    """Return equal stages, in which embedding and loss may count as layers."""
    if total % pp.value:
        message = f"{total} layers cannot be divided evenly into {pp.value} stages"
        given.refuse(message, "pp", pp.line)
        return None
    stages = [total // pp.value] * pp.value
    stages[0] -= "embedding_counted" in counted
    stages[-1] -= "loss_counted" in counted
    flags = [given.given[FLAGS[name]] for name in (*counted, "stage_partition") if given.has(name)]
    return Written(
        tuple(stages), flags[0].line if flags else pp.line, " ".join(f.flag for f in flags), default=not flags
    )


def _ends(given: Arguments, pp: Written, layers: int) -> Written | None:
    """Return stages of which the first and the last have layers of their own."""
    first, last = given.number("first_stage"), given.number("last_stage")
    left = layers - sum(end.value for end in (first, last) if end)
    middle = pp.value - sum(end is not None for end in (first, last))
    written = first or last
    if written is None:
        return None
    if middle < 0 or (middle == 0) != (left == 0) or (middle and (left < middle or left % middle)):
        message = f"{max(left, 0)} layers are left for {max(middle, 0)} stages ({_shown(pp, layers)})"
        given.refuse(message, "first_stage" if first else "last_stage", written.line)
        return None
    stages = [left // middle] * middle if middle else []
    stages = [*([first.value] if first else []), *stages, *([last.value] if last else [])]
    return Written(tuple(stages), written.line, " ".join(end.words for end in (first, last) if end))


def _check_virtual(given: Arguments, vpp: Written, stages: tuple[int, ...], counted: list[str]) -> None:
    """Refuse stages whose layers do not divide into virtual stages."""
    sizes = list(stages)
    sizes[0] += "embedding_counted" in counted
    sizes[-1] += "loss_counted" in counted
    odd = next((n for n in sizes if n % vpp.value), None)
    if odd is not None:
        message = f"{vpp.value} virtual stages do not divide the {odd} layers of a stage"
        given.refuse(message, "vpp" if given.has("vpp") else "layers_per_virtual_stage", vpp.line)


def _of_layout(given: Arguments, pp: Written) -> dict[str, Written]:
    """Return the stages of a layout string."""
    written = given.text("stages")
    if written is None:
        return {}
    for name in _STAGES:
        if given.has(name):
            given.refuse(
                f"it excludes {FLAGS[name]} (line {given.given[FLAGS[name]].line})", "stages", written.line
            )
    try:
        parts = chunks_in(written.value)
    except ValueError as error:
        given.refuse(f"{written.value[:60]!r} is no layout: {error}", "stages", written.line)
        return {}
    if len(parts) % pp.value:
        message = f"its {len(parts)} stages are no multiple of the {_pp_words(pp)}"
        given.refuse(message, "stages", written.line)
        return {}
    vpp = len(parts) // pp.value
    counts = [part.count("t") for part in parts]
    chunks = tuple(tuple(counts[v * pp.value + rank] for v in range(vpp)) for rank in range(pp.value))
    stages = tuple(map(sum, chunks))
    if chunks != chunks_of(stages, vpp):
        given.notes.append(f"{FLAGS['stages']} {written.value}: its virtual stages are read as equal ones")
    if any("m" in part for part in parts):
        given.notes.append("layers of multi-token prediction are not read")
    return {
        "vpp": Written(vpp, written.line, written.words),
        "stages": Written(stages, written.line, written.words),
    }


def _pp_words(pp: Written) -> str:
    where = f" (line {pp.line})" if pp.line else ""
    return f"{FLAGS['pp'].removeprefix('--')} {pp.value}{where}"
