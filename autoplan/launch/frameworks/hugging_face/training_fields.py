"""Fields that configurations around the Hugging Face Trainer share, as they are written and read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

from autoplan.catalog import checkpoint_model
from autoplan.launch.bindings.interface import interface, listed_data
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Fields, LaunchFile, Values, Written, stated
from autoplan.launch.frameworks.deepspeed import (
    BATCHES,
    OF_TRAINER,
    inner_document,
    named_deepspeed,
    sharding_of,
)
from autoplan.launch.frameworks.missing_parts import named, refuse_for_fsdp, refuse_for_replicas
from autoplan.launch.frameworks.missing_parts import refuse_beyond_data as refuse_other_axes
from autoplan.launch.known_models import other_architecture
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.target import InexpressibleError
from autoplan.schema.adapters import ATTENTION_MODULES, MLP_MODULES, AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.model import ModelSpec
from autoplan.schema.post_training import RLSpec

#: Beginnings of the names of stacks that price what builds on the Trainer.
STACKS: Final = ("hf-", "ddp", "deepspeed", "fsdp2", "hf-fsdp2")

#: The table of the Trainer, whose names what builds on it shares.
TRAINER: Final = interface("trainer")
#: Names of ``optim`` by our optimizers; the Trainer has no other ones of ours.
OPTIM: Final[Mapping[str, str]] = TRAINER.data["optim"]
_HALVES: Final = {"fp32": (), "bf16": ("bf16",), "fp16": ("fp16",)}
_STAGES: Final = "the Trainer has none"


def checked_kind(job: Job, layout: Layout) -> str:
    """Return what shards, DeepSpeed by the stack, else by ZeRO; raises InexpressibleError."""
    if job.stack.name.startswith("deepspeed"):
        _refuse_needless(layout)
        return "deepspeed"
    if layout.zero:
        refuse_for_fsdp(layout, _STAGES)
        return "fsdp"
    refuse_for_replicas(layout, _STAGES)
    return "replicas"


def _refuse_needless(layout: Layout) -> None:
    """Raise InexpressibleError for what DDP runs without DeepSpeed: replicas, and one device by itself."""
    alone = layout.dp == 1 and not layout.optimizer_offload
    if layout.zero == 0 or alone:
        part = "one device that offloads no states" if alone else "replicas without ZeRO (zero=0)"
        nearest = [] if alone else [replace(layout, zero=1)]
        raise InexpressibleError(f"DeepSpeed for {part}, which a stack of DDP runs", nearest)


def refuse_beyond_data(layout: Layout) -> None:
    """Raise InexpressibleError for tensor, context and hybrid parallelism, which have no key."""
    refuse_other_axes(layout, "a ParallelismConfig object")


def refuse_sharded_integers(kind: str) -> None:
    """Raise InexpressibleError for a frozen base in int8 that FSDP2 or DeepSpeed would shard."""
    if kind != "replicas":
        raise InexpressibleError(f"a frozen base in int8 that {kind} shards")


def formats(job: Job) -> dict[str, bool]:
    """Return the flags of mixed precision; raises InexpressibleError for 8-bit ones."""
    flags = named(job, "precision", _HALVES)
    return {name: name in flags for name in ("bf16", "fp16")}


def optim_name(job: Job) -> str:
    """Return the name of the optimizer; raises InexpressibleError for what the Trainer has not."""
    return named(job, "optimizer", OPTIM)


def optim_beside(job: Job) -> str | None:
    """Return the name of an optimizer that the Trainer makes beside a file of DeepSpeed, else None."""
    return OPTIM[job.optimizer] if job.optimizer in OF_TRAINER else None


def fsdp_values(layout: Layout) -> dict[str, Any]:
    """Return the values of ``fsdp_config`` by binding."""
    return {
        "fsdp_version": 2,
        "resharded": layout.zero == 3,
        "wrapped": "TRANSFORMER_BASED_WRAP",
        "checkpoint_format": "SHARDED_STATE_DICT",
    }


def software_of(document: WrittenDocument, *switches: str) -> Fields:
    """Return the attention of a file and the choices of software that switches make.

    The text of ``fsdp`` may offload parameters, too.
    """
    values = read_attention(document)
    for name in switches:
        values |= document.choices(name)
        fsdp = document.entries.get("fsdp") if name == "cpu_offload" else None
        if fsdp is not None and "offload" in str(fsdp.value).lower():
            values["offload_parameters"] = True
    return {"software": Written(values)} if values else {}


#: A value that another file decides, or a field that is not read.
OPEN: Final = Written(None)
#: Ways of the Trainer and of programs around it that shard, as their entries call them.
DEEPSPEED: Final = Written("DeepSpeed")
FSDP: Final = Written("FSDP2")
#: Kernels of attention by the names of transformers, its kernels' hub, LLaMA-Factory and ms-swift.
_ATTENTION: Final[Mapping[str, str]] = {
    "eager|disabled": "eager",
    "sdpa|auto": "sdpa",
    r"(?:kernels-community/|paged\|)?flash[-_]attn2?|flash_attention(?:_2)?|fa2|xformers": "flash2",
    # On Hopper and Blackwell of data centers alone, where PyTorch's is as fast.
    r".*flash[-_]attn[-_]?[34](?:@.*)?|flash_attention_[34]|fa[34]": "sdpa",
}
#: Strategies of the text that ``fsdp`` had before, and whether each is hybrid.
_STRATEGIES: Final[Mapping[str, tuple[int, bool]]] = TRAINER.data["strategies"]
#: Names of checkpoints whose weights are packed.
_PACKED: Final = re.compile(r"(?i)(?:^|[-_/])(?:awq|gptq|bnb|nf4|int[48]|[48]-?bits?|fp8|gguf)(?:[-_.]|$)")
#: Linear modules of latent attention: of queries without and with a latent, and the others
#: (huggingface/transformers 5.23, models/deepseek_v3, DeepseekV3Attention).
_QUERIES: Final = ("q_proj",)
_LATENT_QUERIES: Final = ("q_a_proj", "q_b_proj")
_LATENT_MODULES: Final = ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj")


def with_defaults(document: WrittenDocument, *names: str) -> None:
    """Give the keys that a document lacks the defaults of their bindings.

    A microbatch has none beside a batch under a name that is not read: its program divides that one.
    """
    for name in names:
        binding = document.table[name]
        if name == "mbs" and binding.key not in document.entries and "global_batch_size" in document.opened:
            continue
        document.entries.setdefault(binding.key, Written(binding.default, default=True))


@cache
def key_names(framework: str) -> frozenset[str]:
    """Return the keys of ``trainer``, ``axolotl``, ``llama-factory`` or a part, ``axolotl.plugins``."""
    return frozenset(listed_data("training-keys")[framework])


def stands(document: WrittenDocument, path: str) -> bool:
    """Return whether a value or a mapping stands at ``path``, not null."""
    path = document.path(path)
    return document.given(path) is not None or any(key.startswith(f"{path}.") for key in document.entries)


def add_leaves(document: WrittenDocument, prefix: str, node: Mapping[str, Any], line: int | None) -> None:
    """Add what stands below ``prefix`` in a mapping by its path."""
    for key, value in node.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            document.entries[path] = Written(None, line, f"{key}:")
            add_leaves(document, f"{path}.", value, line)
        else:
            document.entries[path] = Written(value, line, f"{key}: {str(value)[:40]!r}")


def precision_of(document: WrittenDocument) -> Fields:
    """Return the precision that ``bf16`` and ``fp16`` say; nothing where one of them is ``auto``."""
    values = [(name, flag) for name in ("bf16", "fp16") if (flag := document.flag(name)) and flag.value]
    if len(values) > 1:
        document.refuse(
            f"bf16 and fp16 are both true (lines {values[0][1].line} and {values[1][1].line})", "fp16"
        )
    if values:
        name, flag = values[0]
        return {"precision": flag.of(name)}
    if document.automatic("bf16") or document.automatic("fp16"):
        return {}
    return {"precision": Written("fp32", default=True)}


def optimizer_of(document: WrittenDocument) -> Written:
    """Return the optimizer; one that is not priced stays open, with a note."""
    written, names = document.text("optimizer"), TRAINER.data["optimizers"]
    if written is None:
        return Written("adamw", default=True)
    name = written.value.lower()
    if name not in names:
        document.notes.append(f"the optimizer {written.value[:40]!r} is not priced: left open")
    return written.of(names.get(name))


def batch_of(document: WrittenDocument, file: LaunchFile, values: Values) -> Fields:
    """Return microbatch and batch: the product of the microbatch, the steps and the data-parallel ranks."""
    each, count = document.number("mbs"), document.number("steps")
    fields = {"mbs": each} if each else {}
    devices = values["devices"].value if "devices" in values else file.devices
    degrees = [
        values[key].value for key in ("tp", "pp", "cp") if key in values and key not in document.opened
    ]
    if each is None or devices is None or len(degrees) < 3 or devices % math.prod(degrees):
        return fields
    total = each.value * (count.value if count else 1) * (devices // math.prod(degrees))
    words = " ".join(written.words for written in (each, count) if written)
    batch = Written(total, (count or each).line, words, default=count is None)
    return {**fields, "global_batch_size": batch}


def recompute_of(document: WrittenDocument, *paths: str) -> Fields:
    """Return whether layers are recomputed, by the first of ``paths`` that says so."""
    flag = next((flag for path in paths if (flag := document.flag(path)) is not None), None)
    return stated(recompute=flag and flag.of("full" if flag.value else "none"))


def deepspeed_values(document: WrittenDocument, file: LaunchFile | None = None) -> Fields:
    """Return what a mapping ``deepspeed`` says; where it is the name of a file, that decides the sharding."""
    other = document.text("deepspeed")
    inner = inner_document(document)
    if other is not None and not inner.entries and file is not None:
        inner = named_deepspeed(document, file, str(other.value)) or inner
    if other is not None and not inner.entries:
        document.notes.append(f"{other.words} (line {other.line}): read that file for the sharding")
        return {}
    ranks = _ranks(inner)
    return sharding_of(document, inner) | ranks


class Shipped(NamedTuple):
    """Configurations of DeepSpeed that a framework ships: their names, with stage and offload as groups."""

    names: re.Pattern[str]
    framework: str


def deepspeed_or_shipped(
    document: WrittenDocument, file: LaunchFile, shipped: Shipped | None = None
) -> Fields:
    """Return the sharding that ``deepspeed`` says; open where it names a file that lies nowhere.

    Of a file that a framework ships, it is the stage and the offload that its name says.
    """
    before = list(document.notes)
    values = deepspeed_values(document, file)
    other = document.text("deepspeed")
    match = shipped.names.fullmatch(other.value) if shipped and other and "zero" not in values else None
    if shipped is None or other is None or match is None:
        return {"zero": OPEN} | values
    document.notes[:] = before
    document.notes.append(
        f"{other.words} (line {other.line}): read as the file of that name that {shipped.framework} ships"
    )
    values = {"zero": other.of(int(match[1]))}
    if match[2] and match[1] == "3":
        # Of ZeRO-3 the shipped files move parameters, and states but in the one named by its parameters.
        values["software"] = other.of({"offload_parameters": True})
    if match[2] and not match[2].endswith("_params"):
        values["offload"] = other.of("optimizer")
    return values


def _ranks(inner: WrittenDocument) -> Fields:
    """Return the data-parallel degree that the batches of DeepSpeed's configuration say."""
    batch, mbs, steps = (inner.number(name) for name in BATCHES)
    if not (batch and mbs and steps):
        return {}
    if batch.value % (mbs.value * steps.value):
        product = f"{mbs.value} x {steps.value} = {mbs.value * steps.value}"
        inner.refuse(f"{product} does not divide {inner.path(BATCHES[0])} {batch.value}", BATCHES[0])
        return {}
    return {"dp": batch.of(batch.value // (mbs.value * steps.value))}


def model_of(document: WrittenDocument) -> str | None:
    """Return the entry of the catalogue that the name of a model on the hub stands for."""
    written = document.text("model")
    if written is None:
        return None
    entry = checkpoint_model(written.value.strip())
    kind = other_architecture(written.value) if entry is None else None
    if kind is not None:
        sentence = f"{written.value[:60]} is {kind}, and plans are of decoder-only transformers"
        document.refuse(sentence, "model")
        document.stop_at_problems()
    bits = [name for name in ("four_bits", "eight_bits", "bits") if name in document.table.keys]
    if _PACKED.search(written.value) and not any(document.given(name) for name in bits):
        document.opened.add("adapters")
        document.notes.append(
            f"{written.words[:80]}: the checkpoint decides the format of the base: left open"
        )
    if entry is None:
        document.notes.append(f"{written.words[:80]}: no model of the catalogue was read from there")
    return entry


def adapter_values(
    rank: Written | None, targets: Written | None, *, every: bool, more: Mapping[str, Any]
) -> Fields:
    """Return low-rank adapters of a rank, at all products or at those named, and ``more`` of them."""
    if rank is None:
        return {}
    names = targets.value if targets else None
    listed = names if isinstance(names, list) else str(names or "").split(",")
    value = {"rank": rank.value, "targets": "all" if every else _targets(listed), **more}
    return {"adapters": rank.of(value)}


def adapted_modules(model: ModelSpec, adapters: AdapterSpec) -> list[str]:
    """Return the names of the linear modules with an adapter, as transformers has them.

    >>> deepseek = load_entry("model", "deepseek-v2-lite")
    >>> adapted_modules(deepseek, AdapterSpec(rank=8, targets="attention"))
    ['q_proj', 'kv_a_proj_with_mqa', 'kv_b_proj', 'o_proj']
    """
    if model.mla is None:
        return list(adapters.modules)
    queries = _QUERIES if model.mla.q_lora_rank is None else _LATENT_QUERIES
    mlp = [name for name in adapters.modules if name in MLP_MODULES]
    return [*queries, *_LATENT_MODULES, *mlp]


#: The stacks of experts of transformers from 5.0 on, by the ends of their names.
_EXPERT_STACKS: Final = ("experts.gate_up_proj", "experts.down_proj")


def adapted_parameters(adapters: AdapterSpec) -> list[str] | None:
    """Return the stacked parameters with an adapter, for PEFT's target_parameters; None for none."""
    return list(_EXPERT_STACKS) if adapters.experts else None


def _adapted_stacks(document: WrittenDocument) -> dict[str, Any]:
    """Return whether stacked experts have adapters, by PEFT's target_parameters: both, as is noted."""
    written = document.given("adapted_parameters")
    names = [] if written is None else written.value if isinstance(written.value, list) else [written.value]
    stacks = {stack for stack in _EXPERT_STACKS for name in names if str(name).strip().endswith(stack)}
    if written is None or not stacks:
        return {}
    if len(stacks) < len(_EXPERT_STACKS):
        document.notes.append(f"{written.words[:80]}: read as adapters of both stacks of experts")
    return {"experts": True}


def _targets(names: Iterable[object]) -> str | list[str]:
    """Return the targets of ``names`` as a job has them: all where one of them is none of Llama's modules."""
    targets = {str(name).strip() for name in names}
    if any(targets == {*queries, *_LATENT_MODULES} for queries in (_QUERIES, _LATENT_QUERIES)):
        return "attention"
    modules = (*ATTENTION_MODULES, *MLP_MODULES)
    if not targets <= set(modules) or not targets or targets == set(modules):
        return "all"
    return "attention" if targets == set(ATTENTION_MODULES) else [x for x in modules if x in targets]


def quantized_base(document: WrittenDocument) -> dict[str, Any]:
    """Return format of the base by the switches of its bits, DoRA, dropout, and experts with adapters."""
    flags = [(document.flag(name), base) for name, base in (("four_bits", "nf4"), ("eight_bits", "int8"))]
    base = next((base for flag, base in flags if flag is not None and flag.value), None)
    kind = document.text("base_format", ("nf4", "fp4"))
    if base == "nf4" and kind is not None:
        base = str(kind.value)
    return {**base_values(document, base), **_adapted_stacks(document)}


def base_values(document: WrittenDocument, base: str | None) -> dict[str, Any]:
    """Return what a job says of its adapters' base, DoRA and dropout."""
    scales, share = document.flag("double_quantization"), document.given("adapter_dropout")
    four = scales is not None and base in {"nf4", "fp4"}
    dropped = share.value if share is not None and isinstance(share.value, float) else 0.0
    return {
        **({"base": base} if base is not None else {}),
        **({"double_quantization": bool(scales.value)} if scales is not None and four else {}),
        **({"dora": True} if document.on("dora") else {}),
        **({"dropout": dropped} if 0 < dropped < 1 else {}),
    }


def packing(job: Job) -> dict[str, Any]:
    """Return the values of documents in sequences; raises InexpressibleError for pairs and completions."""
    if job.workload.documents is None:
        return {}
    if job.rl is not None:
        raise InexpressibleError(f"documents packed into the sequences of {job.rl.method}")
    if job.software.attention not in {None, "flash2"}:
        raise InexpressibleError(f"documents packed beside software.attention: {job.software.attention}")
    return {"packed": True, "attention": "flash_attention_2"}


def attention_value(job: Job) -> str | None:
    """Return transformers' name of the attention that the job chooses, None where it leaves it to the rest.

    >>> job = load_job("llama3-8b-8x-h100")
    >>> attention_value(replace(job, software=job.software.model_copy(update={"attention": "flash2"})))
    'flash_attention_2'
    """
    return {"eager": "eager", "sdpa": "sdpa", "flash2": "flash_attention_2"}.get(job.software.attention or "")


def read_attention(document: WrittenDocument) -> dict[str, Any]:
    """Return the attention kernels of a file's ``attention``, by the names of transformers and its users.

    What is not priced, such as flex_attention, is noted.
    """
    written = document.given("attention")
    if written is None:
        return {}
    name = str(written.value).lower()
    for words, kernels in _ATTENTION.items():
        if re.fullmatch(words, name):
            return {"attention": kernels}
    document.notes.append(f"{written.words}: priced as PyTorch's attention")
    return {}


def note_packing(document: WrittenDocument) -> None:
    """Note where a file packs documents, whose lengths it does not say."""
    packed = document.on("packed")
    if packed is not None:
        document.notes.append(f"{packed.words}: the job says how long its documents are (workload.documents)")


def rollouts(rl: RLSpec) -> dict[str, Any]:
    """Return the values of where vLLM computes completions; none where the trainer generates them."""
    if rl.vllm_mode is None:
        return {}
    share = {"vllm_share": rl.vllm_gpu_memory_utilization} if rl.vllm_mode == "colocate" else {}
    return {
        "use_vllm": True,
        "vllm_mode": rl.vllm_mode,
        **share,
        "vllm_sleep": rl.vllm_enable_sleep_mode or None,
    }


def rl_of(document: WrittenDocument, method: Written, *betas: str) -> Fields:
    """Return learning by ``method``, in TRL's keys; its weight is at the first of ``betas``."""
    value: dict[str, Any] = {"method": method.value}
    if document.on("precomputed") and method.value in {"dpo", "kto"}:
        value[TRAINER.keys["precomputed"]] = True
    weight = next((found for name in betas if (found := document.given(name)) is not None), None)
    if weight is not None and (beta := _number(weight.value)) is not None:
        value["beta"] = beta
    if method.value == "grpo":
        value |= read_rollouts(document)
    return {"rl": method.of(value)}


def read_rollouts(document: WrittenDocument) -> dict[str, Any]:
    """Return where vLLM computes completions, as a job has it, with the defaults of the file's keys."""
    if not document.on("use_vllm"):
        return {}
    mode, share = document.text("vllm_mode", ("colocate", "server")), document.given("vllm_share")
    where = mode.value if mode is not None else document.table["vllm_mode"].default
    if where != "colocate":
        return {"vllm_mode": where}
    sleeps = document.on("vllm_sleep")
    taken = _number(share.value if share is not None else document.table["vllm_share"].default)
    if taken is None or not 0 < taken < 1:
        document.refuse("it is no share of a device's memory, more than 0 and less than 1", "vllm_share")
        return {}
    resting = {TRAINER.keys["vllm_sleep"]: True} if sleeps else {}
    return {"vllm_mode": where, TRAINER.keys["vllm_share"]: taken, **resting}


def _number(value: object) -> float | None:
    """Return a number that is 0 or more, also one that is written as text; None for anything else."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def sharding_values(document: WrittenDocument, file: LaunchFile, shipped: Shipped | None = None) -> Fields:
    """Return what ``deepspeed``, or ``fsdp`` with ``fsdp_config``, shards; nothing is plain replicas."""
    if document.given("zero_of_program") is not None:
        return _own_program(document)
    if stands(document, "deepspeed"):
        _refuse_both(document)
        return deepspeed_or_shipped(document, file, shipped) | {"way": DEEPSPEED}
    fsdp = document.entries.get("fsdp")
    if fsdp is None or not fsdp.value or str(fsdp.value).lower() == "false":
        return {}
    other = document.text("fsdp_file")
    if other is not None and document.path("fsdp_version") not in document.entries:
        document.notes.append(f"{other.words[:80]}: read that file for more of the sharding")
    return _read_fsdp(document, fsdp) | {"way": FSDP}


def _own_program(document: WrittenDocument) -> Fields:
    """Return the sharding that a program of DeepSpeed's own is given as arguments, and its precision."""
    values = stated(zero=document.number("zero_of_program", least=0)) | document.bound("zero_offload")
    rank, dtype = document.number("deepspeed_rank", least=0), document.given("dtype")
    if rank is not None and rank.value:
        document.opened.add("adapters")
    named = TRAINER.data["own_precisions"].get(str(dtype.value)) if dtype is not None else None
    if named is not None and dtype is not None:
        values["precision"] = dtype.of(named)
    elif not any(document.flag(name) for name in ("bf16", "fp16")):
        document.opened.add("precision")
    return values


def _refuse_both(document: WrittenDocument) -> None:
    fsdp = document.given("fsdp")
    if fsdp is not None and str(fsdp.value).lower() not in {"false", ""}:
        document.refuse(f"deepspeed and fsdp (line {fsdp.line}) exclude each other", "deepspeed")


def _read_fsdp(document: WrittenDocument, fsdp: Written) -> Fields:
    """Return the sharding of FSDP: a truth value of FSDP2's, or the strategy of earlier versions."""
    items = fsdp.value if isinstance(fsdp.value, list) else str(fsdp.value).lower().split()
    names = {str(item).lower() for item in items}
    strategy = next((name for name in _STRATEGIES if name in names), None)
    if unknown := names - set(_STRATEGIES) - {"true", "auto_wrap", "offload"}:
        document.refuse(f"{min(unknown)[:40]!r} is none of {', '.join(_STRATEGIES)}", "fsdp")
    zero, hybrid = _STRATEGIES[strategy] if strategy else (3, False)
    if hybrid:
        document.notes.append(f"{fsdp.words}: sharded inside of each machine, whose devices are not known")
    return {"zero": Written(zero, fsdp.line, fsdp.words, default=strategy is None)} | _resharded(document)


def _resharded(document: WrittenDocument) -> Fields:
    """Return the ZeRO stage that ``reshard_after_forward`` says, as FSDP2 or as FSDP1 has it."""
    for path in ("resharded", "earlier_resharded"):
        written = document.given(path)
        if written is None:
            continue
        name = str(written.value).lower()
        stages = {"true": 3, "false": 2, **{key: zero for key, (zero, _) in _STRATEGIES.items()}}
        if name in stages:
            return {"zero": written.of(stages[name])}
        document.refuse(f"{name[:40]!r} is none of {', '.join(stages)}", path)
    return {}


#: Shortest beginning of a name that counts as that name.
_SHORTEST: Final = 10


def program_deepspeed(document: WrittenDocument, launcher: Sequence[Word]) -> None:
    """Leave open what a program that DeepSpeed starts without a file of its configures by itself."""
    started = any(word.text.rsplit("/", 1)[-1] == "deepspeed" for word in launcher)
    if started and not any(stands(document, name) for name in ("deepspeed", "zero_of_program", "fsdp")):
        said = any(stands(document, name) for name in ("bf16", "fp16"))
        document.opened |= {"zero"} if said else {"zero", "precision"}
        document.notes.append("the program configures DeepSpeed by itself: its sharding is left open")


def rename(document: WrittenDocument) -> None:
    """Call arguments of programs of their own as those of the Trainer and of TRL are called."""
    for ours, names in TRAINER.data["program_names"].items():
        for name in names:
            if name in document.entries and ours not in document.entries:
                document.entries[ours] = document.entries.pop(name)
    for name in TRAINER.data["program_bits"]:
        written = document.entries.pop(name, None)
        switch = TRAINER.data["bits"].get(int(written.value)) if written and _digits(written) else None
        if switch is not None and written is not None:
            document.entries.setdefault(switch, replace(written, value="true"))


def whole_name(name: str, names: Iterable[str]) -> str:
    """Return the argument that a name is the beginning of, where it is that of one alone, as argparse has it.

    >>> names = ("per_device_train_batch_size", "bf16")
    >>> whole_name("per-device-train-batch", names), whole_name("bf", names)
    ('per_device_train_batch_size', 'bf')
    """
    name = name.replace("-", "_")
    if len(name) < _SHORTEST or name in names:
        return name
    found = {other for other in names if other.startswith(name)}
    return found.pop() if len(found) == 1 else name


def _digits(written: Written) -> bool:
    return re.fullmatch(r"\d{1,2}", str(written.value)) is not None
