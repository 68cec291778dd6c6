"""The layout and the training that arguments of Megatron-LM describe, by field."""

from __future__ import annotations

from typing import Any, Final

from autoplan.launch.configuration import Fields, Written, stated
from autoplan.launch.frameworks.megatron.arguments import FLAGS, TABLE, Arguments, arities
from autoplan.launch.frameworks.megatron.megatron_lm import RESIDENT_LAYERS, chunks_in
from autoplan.schema.recompute import mode_of
from autoplan.schema.stage_layers import chunks_of

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


#: Attention kernels by ``--attention-backend``: TransformerEngine's flash is FlashAttention-2 where the third
#: is not installed, its fused one cuDNN's; local is Megatron-LM's products.
_ATTENTION: Final = {"unfused": "eager", "local": "eager", "flash": "flash2", "fused": "flash"}


def read_layout(arguments: Arguments, layers: int | None, *, experts: bool) -> Fields:
    """Return what the arguments or defaults give; ``layers`` are those of the model, None where unknown."""
    values = _tensor(arguments) | {"pp": _pipeline(arguments)} | _context(arguments)
    values["ep"] = arguments.number("ep") or arguments.number("deepspeed_ep") or Written(1, default=experts)
    if experts:
        values |= arguments.present("etp")
    values |= _stages(arguments, values["pp"], layers)
    sp = arguments.flag("sp")
    if sp is not None and values["tp"].value == 1:
        arguments.notes.append(f"{FLAGS['sp']} has no effect with a tensor-parallel size of 1")
        sp = Written(value=False, line=sp.line, words=sp.words)
    values["sp"] = sp or Written(value=False, default=True)
    if arguments.flag("order"):
        values["order"] = Written("tp-cp-pp-dp")
    values |= _batches(arguments)
    values |= _recompute(arguments, values, layers)
    values["zero"] = _zero(arguments)
    if arguments.has("zero_stage"):
        # What DeepSpeed's own file says besides is not a stage.
        arguments.opened -= {"zero"}
    values |= _offload(arguments, layers)
    return {**values, **_training(arguments)}


def _tensor(arguments: Arguments) -> Fields:
    """Return the tensor-parallel degree, which had a shorter name once."""
    former = None if arguments.has("tp") else arguments.number("earlier_tp")
    return {"tp": former} if former is not None else arguments.present("tp")


def _context(arguments: Arguments) -> Fields:
    """Return the degree that sequences are divided over: that of Megatron-LM, or Ulysses in DeepSpeed."""
    ulysses = None if arguments.has("cp") else arguments.number("deepspeed_cp")
    return {"cp": ulysses} if ulysses is not None else arguments.present("cp")


def _pipeline(arguments: Arguments) -> Written:
    """Return the pipeline stages; Megatron-DeepSpeed can be told to have none."""
    none = arguments.flag("no_pipeline")
    if none is not None:
        return none.of(1)
    return arguments.number("pp") or _default(1)


def _default(value: object) -> Written:
    return Written(value, default=True)


def _batches(arguments: Arguments) -> Fields:
    values = arguments.present("mbs", "global_batch_size")
    values |= {} if "mbs" in values else stated(mbs=arguments.number("earlier_mbs"))
    length = arguments.number("sequence_length") or arguments.number("encoder_sequence_length")
    most = arguments.number("max_positions")
    if length is not None and most is not None and most.value < length.value:
        sentence = f"sequences of {length.value} tokens (line {length.line}) are longer than {most.value}"
        arguments.refuse(sentence, "max_positions", most.line)
    return values | stated(sequence_length=length)


def _zero(arguments: Arguments) -> Written:
    """Return the ZeRO stage; sharding is chosen by Megatron's FSDP, by PyTorch's, or by the optimizer."""
    fsdp = arguments.flag("megatron_fsdp") or arguments.flag("custom_fsdp")
    if fsdp is not None:
        strategy, names = arguments.text("sharding"), TABLE["sharding"].names
        name = strategy.value if strategy else names[3]
        zero = TABLE["sharding"].ours(name)
        if zero is None:
            arguments.refuse(f"{name[:40]!r} is none of {', '.join(names.values())}", "sharding")
        flag = strategy or fsdp
        return flag.of(zero or 0)
    torch = arguments.flag("torch_fsdp2")
    if torch is not None:
        unsharded_parameters = arguments.flag("torch_fsdp2_gathered")
        return torch.of(2 if unsharded_parameters else 3)
    stage = arguments.number("zero_stage", least=0)
    if stage is not None and stage.value:
        if stage.value > 3:
            arguments.refuse(f"{stage.value} is no ZeRO stage", "zero_stage")
        return stage
    sharded = arguments.flag("distributed_optimizer")
    return sharded.of(1) if sharded else _default(0)


def _recompute(arguments: Arguments, values: Fields, layers: int | None) -> Fields:
    granularity = arguments.text("recompute")
    short = arguments.flag("recompute_attention")
    if short is not None and (granularity is None or granularity.value in {"full", "selective"}):
        granularity = short.of("selective")
    if granularity is None:
        return _earlier_recompute(arguments, values, layers)
    if granularity.value == "selective":
        return _selective(arguments, granularity)
    if granularity.value != "full":
        arguments.refuse(f"{granularity.value[:40]!r} is neither full nor selective", "recompute")
        return {}
    method, count = arguments.text("recompute_method"), arguments.number("recompute_num_layers", least=0)
    if count is None and method is not None and arguments.flag("deepspeed") is not None:
        # The default of Megatron-DeepSpeed.
        count = Written(1, method.line, method.words, default=True)
    if method is not None and count is not None and count.value == 0:
        return {"recompute": count.of("none")}
    if method is not None and count is not None:
        return _full(arguments, values, method, count, layers)
    for name in ("recompute_method", "recompute_num_layers"):
        if not arguments.has(name):
            arguments.refuse(f"full recompute needs {FLAGS[name]}", "recompute")
    return {}


def _selective(arguments: Arguments, granularity: Written) -> Fields:
    """Return selective recompute, which has no method."""
    method = arguments.text("recompute_method")
    if method is not None:
        sentence = f"selective recompute has no {FLAGS['recompute_method']} (line {method.line})"
        arguments.refuse(sentence, "recompute", granularity.line)
    listed = " ".join(arguments.every("recompute_modules"))
    core = TABLE["recompute_modules"].ours(listed) if listed else "selective"
    mode = core or mode_of(listed.split())
    if mode is None:
        arguments.leave_open(["recompute"], f"{FLAGS['recompute_modules']} {listed}", granularity.line)
        return {}
    return {"recompute": granularity.of(mode)}


def _earlier_recompute(arguments: Arguments, values: Fields, layers: int | None) -> Fields:
    """Return full recompute by arguments of earlier versions and of Megatron-DeepSpeed; else none."""
    method, every = arguments.text("earlier_recompute_method"), arguments.flag("deepspeed_recompute")
    if method is None and every is None:
        return {"recompute": _default("none")}
    name = "earlier_recompute_num_layers" if method else "deepspeed_recompute_num_layers"
    if method is None and every is not None:
        method = every.of("uniform")
    count = arguments.number(name) or _default(1)
    return _full(arguments, values, method, count, layers) if method is not None else {}


def _full(
    arguments: Arguments, values: Fields, method: Written, count: Written, layers: int | None
) -> Fields:
    """Return full recompute by a method: of units of layers, or of the first layers of virtual stages."""
    if method.value == "uniform":
        fields = {"recompute": method.of("full")}
        return fields if count.value == 1 else {**fields, "recompute_num_layers": count}
    if method.value != "block":
        arguments.refuse(f"{method.value[:40]!r} is neither uniform nor block", "recompute_method")
        return {}
    chunks = _chunks(values, layers)
    if chunks is None:
        arguments.notes.append(f"{FLAGS['recompute_method']} block: the layers of stages are not known")
        return {}
    entries = []
    for stage in chunks:
        recomputed = sum(min(count.value, n) for n in stage)
        entries.append("full" if recomputed == sum(stage) else f"full:{recomputed}")
    text = entries[0] if len(set(entries)) == 1 else "/".join(entries)
    return {"recompute": Written(text, count.line, f"{method.words} {count.words}")}


def _chunks(values: Fields, layers: int | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the layers of virtual stages; None where they are not known."""
    stages, vpp = values.get("stages"), values.get("vpp")
    if stages is None or vpp is None or layers is None:
        return None
    return chunks_of(stages.value, vpp.value)


def _offload(arguments: Arguments, layers: int | None) -> Fields:
    states, fraction = arguments.flag("optimizer_offload"), arguments.text("optimizer_offload_fraction")
    if states is not None and fraction is not None and fraction.value not in {"1", "1.0"}:
        arguments.notes.append(f"{fraction.words}: read as offload of all optimizer states")
    count = arguments.number("activation_offload", least=0)
    moved = count if count is not None and count.value > 0 else None
    values: Fields = {}
    if moved is not None and layers is not None:
        every = _offload_every(moved.value, layers)
        values["offload_every"] = moved.of(every)
        if every == 1 and moved.value != layers - RESIDENT_LAYERS:
            arguments.notes.append(f"{moved.words}: read as offload of the activations of all layers")
    parts = {"optimizer": states, "activations": moved}
    names = [name for name, offloaded in parts.items() if offloaded is not None]
    written = states or moved
    return values | ({"offload": written.of("+".join(names))} if written else {})


def _offload_every(count: int, layers: int) -> int:
    """Return of how many layers one is offloaded."""
    if count == layers - RESIDENT_LAYERS or layers % count:
        return 1 if count > layers // 2 else max(1, layers // count)
    return layers // count


def _training(arguments: Arguments) -> Fields:
    values = {"precision": _precision(arguments), "optimizer": _optimizer(arguments)}
    software = {key: value for name, (key, value) in _SOFTWARE.items() if arguments.flag(name)}
    dispatcher, gradients = arguments.text("dispatcher"), arguments.text("main_gradients")
    if dispatcher is not None and dispatcher.value == "flex":
        software["dispatcher"] = "flex"
    kernels = arguments.text("attention_kernels")
    if kernels is not None and kernels.value in _ATTENTION:
        software["attention"] = _ATTENTION[kernels.value]
    if gradients is not None and gradients.value == "bf16":
        # In place of fp32 ones, which --bf16 alone has (megatron/training/arguments.py, validate_args).
        software["gradients"] = "bf16"
    routing: dict[str, Any] = {}
    factor = arguments.text("capacity_factor")
    if factor is not None:
        try:
            routing["capacity_factor"] = float(factor.value)
        except ValueError:
            arguments.refuse(f"{factor.value[:40]!r} is no number", "capacity_factor")
    if arguments.flag("padded_experts") and routing:
        routing["padded"] = True
    chosen = {"software": software, "routing": routing}
    return values | {field: Written(choices) for field, choices in chosen.items() if choices}


def _precision(arguments: Arguments) -> Written:
    fp8, fp4 = arguments.text("fp8_format"), arguments.text("fp4_format")
    if fp4 is not None:
        return fp4.of("nvfp4")
    if fp8 is not None:
        recipe = arguments.text("fp8_recipe")
        return fp8.of("mxfp8" if recipe and recipe.value == "mxfp8" else "fp8")
    flags = {name: written for name in ("bf16", "fp16") if (written := arguments.flag(name)) is not None}
    if len(flags) > 1:
        arguments.refuse(f"{FLAGS['bf16']} and {FLAGS['fp16']} exclude each other", "fp16")
    for name, written in flags.items():
        return written.of(name)
    if any(flag not in arities() for flag in arguments.given):
        # A program with arguments of its own may have another default than single precision.
        arguments.opened.add("precision")
    return _default("fp32")


def _optimizer(arguments: Arguments) -> Written:
    written = arguments.text("optimizer")
    name = written.value if written else "adam"
    states = arguments.text("moments")
    spelt = TABLE.data["earlier_optimizers"].get(name, name)
    ours = TABLE["optimizer"].ours(spelt) or spelt
    moments = TABLE["moments"].ours(states.value) if states is not None else None
    if ours == "adamw" and states is not None and moments is not None:
        return states.of(moments)
    if ours not in {"adamw", "sgd", "lion", "muon"}:
        arguments.notes.append(f"the optimizer {name[:40]!r} is not priced: left open")
        arguments.opened.add("optimizer")
    return written.of(ours) if written else _default(ours)


def _stages(arguments: Arguments, pp: Written, layers: int | None) -> Fields:
    """Return ``vpp`` and ``stages``; contradictions are added to the problems of ``arguments``."""
    if arguments.has("stages"):
        return _of_layout(arguments, pp)
    counted = [
        flag for flag in ("embedding_counted", "loss_counted") if arguments.flag(flag)
    ] or _partitioned(arguments)
    total = None if layers is None else layers + len(counted)
    vpp = _virtual(arguments, pp, total)
    values = {"vpp": vpp}
    if layers is None or total is None:
        return values
    stages = (
        _ends(arguments, pp, layers)
        if arguments.has("first_stage") or arguments.has("last_stage")
        else _even(arguments, pp, total, counted)
    )
    if stages is None:
        return values
    _check_virtual(arguments, vpp, stages.value, counted)
    return {**values, "stages": stages}


def _partitioned(arguments: Arguments) -> list[str]:
    """Return what counts as layers where Megatron-DeepSpeed divides layers and embeddings evenly."""
    method = arguments.text("stage_partition")
    return ["embedding_counted", "loss_counted"] if method is not None and "embedding" in method.value else []


def _virtual(arguments: Arguments, pp: Written, total: int | None) -> Written:
    """Return the virtual stages of a stage."""
    written, per_virtual = arguments.number("vpp"), arguments.number("layers_per_virtual_stage")
    if written is not None:
        return written
    if per_virtual is None or total is None:
        return Written(1, default=True)
    share = total // pp.value
    if total % pp.value == 0 and share % per_virtual.value:
        shown = f"{share} layers of a stage ({_shown(pp, total)})"
        arguments.refuse(
            f"{per_virtual.value} does not divide the {shown}", "layers_per_virtual_stage", per_virtual.line
        )
        return per_virtual.of(1)
    return per_virtual.of(max(1, share // per_virtual.value))


def _shown(pp: Written, layers: int) -> str:
    where = f" in line {pp.line}" if pp.line else ""
    return f"{layers} layers over {pp.value} stages{where}"


def _even(arguments: Arguments, pp: Written, total: int, counted: list[str]) -> Written | None:
    """Return equal stages, in which embedding and loss may count as layers."""
    if total % pp.value:
        message = f"{total} layers cannot be divided evenly into {pp.value} stages"
        arguments.refuse(message, "pp", pp.line)
        return None
    stages = [total // pp.value] * pp.value
    stages[0] -= "embedding_counted" in counted
    stages[-1] -= "loss_counted" in counted
    flags = [arguments.given[FLAGS[name]] for name in (*counted, "stage_partition") if arguments.has(name)]
    return Written(
        tuple(stages), flags[0].line if flags else pp.line, " ".join(f.flag for f in flags), default=not flags
    )


def _ends(arguments: Arguments, pp: Written, layers: int) -> Written | None:
    """Return stages of which the first and the last have layers of their own."""
    first, last = arguments.number("first_stage"), arguments.number("last_stage")
    left = layers - sum(end.value for end in (first, last) if end)
    middle = pp.value - sum(end is not None for end in (first, last))
    written = first or last
    if written is None:
        return None
    if middle < 0 or (middle == 0) != (left == 0) or (middle and (left < middle or left % middle)):
        message = f"{max(left, 0)} layers are left for {max(middle, 0)} stages ({_shown(pp, layers)})"
        arguments.refuse(message, "first_stage" if first else "last_stage", written.line)
        return None
    stages = [left // middle] * middle if middle else []
    stages = [*([first.value] if first else []), *stages, *([last.value] if last else [])]
    return Written(tuple(stages), written.line, " ".join(end.words for end in (first, last) if end))


def _check_virtual(arguments: Arguments, vpp: Written, stages: tuple[int, ...], counted: list[str]) -> None:
    """Refuse stages whose layers do not divide into virtual stages."""
    sizes = list(stages)
    sizes[0] += "embedding_counted" in counted
    sizes[-1] += "loss_counted" in counted
    odd = next((n for n in sizes if n % vpp.value), None)
    if odd is not None:
        message = f"{vpp.value} virtual stages do not divide the {odd} layers of a stage"
        arguments.refuse(message, "vpp" if arguments.has("vpp") else "layers_per_virtual_stage", vpp.line)


def _of_layout(arguments: Arguments, pp: Written) -> Fields:
    """Return the stages of a layout string."""
    written = arguments.text("stages")
    if written is None:
        return {}
    for name in _STAGES:
        if arguments.has(name):
            arguments.refuse(
                f"it excludes {FLAGS[name]} (line {arguments.given[FLAGS[name]].line})",
                "stages",
                written.line,
            )
    try:
        parts = chunks_in(written.value)
    except ValueError as error:
        arguments.refuse(f"{written.value[:60]!r} is no layout: {error}", "stages", written.line)
        return {}
    if len(parts) % pp.value:
        message = f"its {len(parts)} stages are no multiple of the {_pp_words(pp)}"
        arguments.refuse(message, "stages", written.line)
        return {}
    vpp = len(parts) // pp.value
    counts = [part.count("t") for part in parts]
    chunks = tuple(tuple(counts[v * pp.value + rank] for v in range(vpp)) for rank in range(pp.value))
    stages = tuple(map(sum, chunks))
    if chunks != chunks_of(stages, vpp):
        arguments.notes.append(
            f"{FLAGS['stages']} {written.value}: its virtual stages are read as equal ones"
        )
    if any("m" in part for part in parts):
        arguments.notes.append("layers of multi-token prediction are not read")
    return {
        "vpp": written.of(vpp),
        "stages": written.of(stages),
    }


def _pp_words(pp: Written) -> str:
    where = f" (line {pp.line})" if pp.line else ""
    return f"{FLAGS['pp'].removeprefix('--')} {pp.value}{where}"
