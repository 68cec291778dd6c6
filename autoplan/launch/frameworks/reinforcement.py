"""The targets ``verl`` and ``openrlhf``: scripts that start their programs, which learn from rewards.

Of learning from rewards it is the actor's training that is read. Its rollouts are an engine on the same
devices or on others, which takes memory and time that a job has as ``rl``; a critic and a reward model have
none there, which is said. verl has overrides of Hydra, trains with FSDP or Megatron-LM, and counts sequences
in batches: prompts times their completions. OpenRLHF trains with DeepSpeed, and ``train_sft``, ``train_dpo``
and their kin are fine-tunes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import alone, assembled_document, without_open
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Written, stated
from autoplan.launch.frameworks.hugging_face.trainer import add_options
from autoplan.launch.frameworks.hugging_face.training_fields import (
    adapter_values,
    model_of,
    read_attention,
)
from autoplan.launch.frameworks.interpolated_values import OVERRIDE, overridden
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices


def _joined(one: Written, other: Written, value: int, line: int | None) -> Written:
    """Return what two values make, which is a default where both are."""
    words = " ".join(written.words for written in (one, other) if written.words)
    return Written(value, line, words, default=one.default and other.default)


#: A command, the name of the program that it starts, and the words behind that.
Started = tuple[Command, str, Sequence[Word]]


def started_program(script: Script, file: LaunchFile, program: re.Pattern[str], title: str) -> Started:
    """Return the last command that starts ``program``, whose first group is its name; raises SpecError."""
    for command in reversed(script.commands):
        for at, word in enumerate(command.words):
            match = program.fullmatch(word.text)
            if match is not None:
                name = next(group for group in match.groups() if group)
                return command, name, command.words[at + 1 :]
    raise SpecError([Problem(f"there is no command of {title}", "script", file.name)])


def actor_devices(document: WrittenDocument) -> Fields:
    """Return the devices that train the policy: those of a node, times the nodes."""
    values = document.bound("gpus", "nodes")
    if len(values) < 2:
        return {}
    gpus, nodes = values["gpus"], values["nodes"]
    return {"devices": _joined(nodes, gpus, gpus.value * nodes.value, gpus.line or nodes.line)}


def summed_length(document: WrittenDocument) -> Fields:
    """Return the longest sequence that is trained: a prompt and its response."""
    values = document.bound("prompt", "response")
    if len(values) < 2:
        return {}
    prompt, response = values["prompt"], values["response"]
    total = prompt.value + response.value
    return {"sequence_length": _joined(prompt, response, total, prompt.line or response.line)}


def _adapted(document: WrittenDocument, more: Mapping[str, Any]) -> Fields:
    """Return the adapters of a rank of at least 1, at all products where none are named."""
    rank, targets = document.number("adapter_rank", least=0), document.given("adapted")
    if rank is None or not rank.value:
        return {}
    every = targets is None or str(targets.value) == "all-linear"
    return adapter_values(rank, targets, every=every, more=more)


def _colocated(document: WrittenDocument, *, sleeps: bool) -> dict[str, Any]:
    """Return what an engine takes of the devices that train; whether it ``sleeps`` where nothing is said."""
    share, sleep = share_of(document, "vllm_share"), document.flag("vllm_sleep")
    return {
        "vllm_mode": "colocate",
        **({TRAINER.keys["vllm_share"]: share} if share is not None and 0 < share < 1 else {}),
        TRAINER.keys["vllm_sleep"]: sleeps if sleep is None else bool(sleep.value),
    }


def policy_rl(method: Written, keys: Mapping[str, Any]) -> Fields:
    """Return learning from completions without a critic, as a job has it."""
    return {"rl": method.of({"method": "grpo", **keys})}


def share_of(document: WrittenDocument, name: str) -> float | None:
    """Return a share between 0 and 1, or a weight of at least 0, that stands at ``name``."""
    written = document.given(name)
    try:
        number = float(str(written.value)) if written is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


TRAINER: Final = interface("trainer")
VERL: Final = interface("verl")
VERL_SFT: Final = interface("verl-sft")
_PROGRAM: Final = re.compile(
    r"(?:.*[./])?verl[./]trainer[./](main_ppo|fsdp_sft_trainer)(?:\.py)?|(?:.*[./])?(main_dapo)(?:\.py)?"
    r"|(?:.*[./])?(main_(?!eval|gen)\w+)(?:\.py)?"
)
_STARTS: Final = re.compile(
    r"\bverl[./]trainer[./](?:main_ppo|fsdp_sft_trainer)\b|\brecipe[./]dapo[./](?:src[./])?main_dapo\b"
)
#: A program of its own that is started with overrides of verl's actor.
_OWN: Final = re.compile(r"(?s)\bmain_\w+.*\bactor_rollout_ref\.actor\.\w")
#: Programs that have verl's own configuration.
_KNOWN: Final = frozenset({"main_ppo", "main_dapo"})
#: Fields that Megatron-LM's own configuration has where a script says none, by the version of verl.
_BY_VERSION: Final = frozenset({"tp", "pp", "recompute", "sp"})
#: Fields that a configuration of the user's may set.
_CONFIGURED: Final = frozenset(
    {"mbs", "global_batch_size", "sequence_length", "devices", "cp", "zero", "recompute", "adapters", "rl"}
)
#: Fields that follow from several keys.
_SUMS: Final = {"devices": ("gpus", "nodes"), "sequence_length": ("prompt", "response")}


def is_verl(file: LaunchFile) -> bool:
    """Return whether a file starts a trainer of verl."""
    patterns = (_STARTS, _OWN)
    return file.values is None and any(pattern.search(file.text) is not None for pattern in patterns)


def read_verl(file: LaunchFile) -> Configuration:
    """Return what a script of verl trains; raises SpecError with all problems."""
    script = read_script(file.text, file.name, file.variables, file.sibling)
    started = started_program(script, file, _PROGRAM, VERL.data["title"])
    samples = started[1] == "fsdp_sft_trainer"
    document = _overrides(script, file, started, samples=samples)
    values = _samples(document, script, started) if samples else _policy(document, started)
    document.stop_at_problems()
    values = without_open(values | _adapted(document, {}))
    return assembled_document(document, file, values, model_of(document), framework="verl")


#: What verl trains with where nothing else is said.
_TRAINED: Final = {
    "zero": Written(3, default=True),
    "precision": Written("bf16", default=True),
    "optimizer": Written("adamw", default=True),
}


def _overrides(script: Script, file: LaunchFile, started: Started, *, samples: bool) -> WrittenDocument:
    """Return the overrides by path; those whose values are not known are left open."""
    table = VERL_SFT if samples else VERL
    document = WrittenDocument(file.name, notes=list(script.notes), table=table)
    for word in started[2]:
        match = OVERRIDE.fullmatch(word.text)
        if match is None or (match[1] not in table.keys.values() and word.unknown is not None):
            continue
        if word.unknown is not None:
            document.refuse_key(f"it depends on {word.unknown.reason}", match[1], word.line)
            continue
        overridden(document, [word.text])
        if match[1] in document.entries:
            value = document.entries[match[1]].value
            document.entries[match[1]] = Written(value, word.line, word.text)
    overridden(document, file.arguments)
    for path, written in document.entries.items():
        section, _, name = path.rpartition(".")
        if section in table.data.get("checked", ()) and path not in table.keys.values():
            document.leave_open(name, written)
    return document


def _samples(document: WrittenDocument, script: Script, started: Started) -> Fields:
    """Return what the trainer of samples does: FSDP over all ranks, in bf16, with AdamW.

    Source: verl b178a3c, ``trainer/fsdp_sft_trainer.py``. Its default of recompute changed between versions,
    and so did what ``data.micro_batch_size`` counts.
    """
    values = {**alone(), **stated(devices=launched_devices(script, started[0])[0])}
    values |= document.bound("global_batch_size", "sequence_length", "cp", "mbs")
    if document.number("earlier_mbs") is not None and document.given("mbs") is None:
        del values["mbs"]
        document.notes.append(f"{document.path('earlier_mbs')} counts otherwise by version: left open")
    values |= {**_TRAINED, "recompute": Written(None), **document.bound("recompute")}
    both = document.on("offloaded") and document.on("moved")
    return values | _software({"offload_parameters": True} if both else {})


def _policy(document: WrittenDocument, started: Started) -> Fields:
    """Return what the actor trains with, by FSDP or by Megatron-LM."""
    strategy = _strategy(document, started)
    values = {**alone(), **actor_devices(document), **summed_length(document)}
    values |= {**_TRAINED, **_optimizer(document)}
    if strategy == "megatron":
        values |= _megatron(document)
    else:
        values |= document.bound("cp") | {"recompute": Written(None)} | document.bound("recompute")
        values |= _sharding(document)
    values |= _updates(document) | _learning(document)
    _said(document)
    return values


def _strategy(document: WrittenDocument, started: Started) -> str:
    """Return what shards the actor: an override, or the configuration that the command names."""
    named = next((c for c in map(_configuration, _texts(started)) if c), "ppo_trainer")
    known = VERL.data["configurations"]
    if started[1] not in _KNOWN:
        named = started[1]
        document.opened |= {"precision", "optimizer"}
    if named not in known and started[1] != "main_dapo":
        document.opened |= _CONFIGURED - {name for name in _CONFIGURED if _given(document, name)}
        document.notes.append(f"the configuration {named[:60]} is the user's: what it may set is left open")
    written = document.text("strategy", tuple(VERL.data["strategies"]))
    return str(written.value) if written is not None else str(known.get(named, "fsdp"))


def _given(document: WrittenDocument, field: str) -> bool:
    """Return whether a command gives all that a field follows from."""
    names = _SUMS.get(field, (field,))
    return all(name in VERL.keys and document.given(name) is not None for name in names)


def _texts(started: Started) -> list[str]:
    texts = [word.text for word in started[2]]
    joined = [f"{one}={two}" for one, two in pairwise(texts)]
    return [*texts, *joined]


def _configuration(text: str) -> str | None:
    match = re.fullmatch(r"(?:--(?:config)[-_]name|-cn)=([\w./-]+?)(?:\.ya?ml)?", text)
    return match[1] if match else None


def _optimizer(document: WrittenDocument) -> Fields:
    named = document.text("optimizer")
    if named is None:
        return {}
    ours = VERL.data["optimizers"].get(str(named.value).lower())
    if ours is None:
        document.opened.add("optimizer")
        return {}
    return {"optimizer": named.of(ours)}


def _software(chosen: Mapping[str, Any]) -> Fields:
    """Return the attention that models of verl load with, and what is ``chosen`` besides.

    Source: verl b178a3c, ``workers/fsdp_workers.py`` and ``trainer/fsdp_sft_trainer.py``: attn_implementation
    is flash_attention_2.
    """
    return {"software": Written({"attention": "flash2", **chosen}, default=not chosen)}


def _sharding(document: WrittenDocument) -> Fields:
    """Return the ZeRO stage and its groups. ``param_offload`` moves shards between phases, not in a step.

    Source: verl b178a3c, ``workers/fsdp_workers.py`` (``create_device_mesh``, ``get_sharding_strategy``).
    """
    values, written = document.bound("resharded"), document.given("shards")
    if written is not None and str(written.value) not in {"-1", "0"}:
        size, devices = document.number("shards"), actor_devices(document).get("devices")
        if size is not None and devices is not None and size.value < devices.value:
            values["dp_shard"] = size
    return values | _software(document.choices("offloaded"))


def _megatron(document: WrittenDocument) -> Fields:
    """Return the degrees of Megatron-LM; those that a script leaves out differ by the version of verl."""
    degrees = {name: document.number(f"megatron_{name}") for name in ("tp", "pp", "cp", "ep", "etp", "vpp")}
    values = {"zero": Written(1, default=True), **stated(**degrees)}
    document.opened |= _BY_VERSION - set(values)
    document.notes.append("Megatron-LM's recompute and what of its degrees is not given are left open")
    return values


def _updates(document: WrittenDocument) -> Fields:
    """Return the sequences of a microbatch and of an update: prompts times their completions."""
    values, dynamic = document.bound("mbs"), document.on("dynamic")
    if dynamic or "mbs" not in values:
        values.pop("mbs", None)
        counted = "microbatches have a number of tokens, not of sequences: left open"
        document.notes.append(counted if dynamic else "no microbatch is given for each device: left open")
    prompts, completions = document.number("mini_batch"), document.bound("completions")["completions"]
    if prompts is None:
        document.notes.append("no ppo_mini_batch_size is given: the batch is left open")
    elif document.number("earlier_mbs") is not None and completions.value > 1:
        document.notes.append("ppo_micro_batch_size is of a version that counts batches otherwise: left open")
    else:
        words = f"{prompts.words} {completions.words}".strip()
        values["global_batch_size"] = Written(prompts.value * completions.value, prompts.line, words)
    return values


def _learning(document: WrittenDocument) -> Fields:
    """Return learning without a critic, as a job has it; with one, nothing is priced beside the actor."""
    estimator = document.text("estimator") or Written("gae", default=True)
    if estimator.value == "gae":
        document.notes.append("a critic is trained besides, on the same devices: it is not priced")
        return {}
    beta, engine = share_of(document, "beta"), document.text("engine")
    keys: dict[str, Any] = {"beta": beta} if document.on("reference") and beta is not None else {}
    if engine is not None and engine.value in {"vllm", "sglang"}:
        keys |= _colocated(document, sleeps=True)
    return policy_rl(estimator, keys)


def _said(document: WrittenDocument) -> None:
    """Say what of a run with rollouts is no part of the layout."""
    tp, devices = document.number("rollout_tp"), actor_devices(document).get("devices")
    if tp is not None and devices is not None and devices.value % tp.value:
        document.refuse(f"engines of {tp.value} devices do not divide the {devices.value}", "rollout_tp")
    split = f" with tensor parallelism {tp.value}" if tp is not None else ""
    document.notes.append(
        f"this is the actor's training: rollouts{split} and the reference run on the same devices besides"
    )


VERL_TARGET: Final = target_of(VERL, recognises=is_verl, read=read_verl)


OPENRLHF: Final = interface("openrlhf")
_NAMES: Final = r"train_(?:sft|dpo|kto|rm|ppo_ray)"
_RLHF_PROGRAM: Final = re.compile(rf"(?:.*[./])?openrlhf[./]cli[./]({_NAMES})(?:\.py)?")
_RLHF_STARTS: Final = re.compile(rf"\bopenrlhf[./]cli[./]{_NAMES}\b")
_RLHF_KNOWN: Final = frozenset((*OPENRLHF.data["known"], *OPENRLHF.keys.values()))
_POLICY: Final = "train_ppo_ray"


def is_openrlhf(file: LaunchFile) -> bool:
    """Return whether a file starts a program of OpenRLHF."""
    return file.values is None and _RLHF_STARTS.search(file.text) is not None


def read_openrlhf(file: LaunchFile) -> Configuration:
    """Return what a script of OpenRLHF trains; raises SpecError with all problems."""
    script = read_script(file.text, file.name, file.variables, file.sibling)
    command, program, words = started_program(script, file, _RLHF_PROGRAM, OPENRLHF.data["title"])
    document = WrittenDocument(file.name, notes=list(script.notes), table=OPENRLHF)
    add_options(document, [*words, *(Word(text, 0) for text in file.arguments)])
    _as_before(document)
    document.check_names("", _RLHF_KNOWN, OPENRLHF.data["title"], others=frozenset(OPENRLHF.keys.values()))
    if "fp16" in document.entries:
        document.refuse_key("OpenRLHF has no such argument: the precision is that of param_dtype", "fp16")
    values = {**alone(), **_training(document, program)}
    if program == _POLICY:
        values |= actor_devices(document) | _actor(document)
    else:
        values |= stated(devices=launched_devices(script, command)[0]) | _preferences(document, program)
    document.stop_at_problems()
    return assembled_document(document, file, without_open(values), model_of(document))


def _as_before(document: WrittenDocument) -> None:
    """Call arguments of 0.10 and later as those before; their parameters are in bf16 by default."""
    found = {old: new for new, old in OPENRLHF.data["later_keys"].items() if new in document.entries}
    for old, new in found.items():
        document.entries[old] = document.entries.pop(new)
    if found:
        document.entries.setdefault(OPENRLHF.keys["dtype"], Written("bf16", default=True))


def _training(document: WrittenDocument, program: str) -> Fields:
    """Return degrees, batches, sharding, formats and adapters, with the program's own defaults."""
    values = document.bound("tp", "cp", "zero", "global_batch_size", "mbs", "sequence_length")
    for name, table in (("mbs", "microbatches"), ("sequence_length", "lengths")):
        if name not in values and program in OPENRLHF.data[table]:
            values[name] = Written(OPENRLHF.data[table][program], default=True)
    groups = document.number("groups")
    if groups is not None and groups.value > 1:
        document.opened.add("dp_shard")
        document.notes.append(f"{groups.words}: a second copy of the parameters in each group is not read")
    values |= _formats(document) | document.bound("recompute", "states")
    kernels = read_attention(document) or {"attention": "flash2"}
    values["software"] = Written({**kernels, **document.choices("liger")}, default=True)
    return values | _adapted(document, {"base": "nf4"} if document.on("four_bits") else {})


def _formats(document: WrittenDocument) -> Fields:
    """Return precision and optimizer: before 0.10 a switch says the precision, and later a name."""
    bf16, optimizer = document.on("bf16"), document.text("optimizer")
    dtype = bf16.of("bf16") if bf16 else document.bound("dtype").get("dtype")
    if dtype is None:
        document.opened.add("precision")
    if optimizer is not None and optimizer.value != "adam":
        document.opened.add("optimizer")
        document.notes.append(f"{optimizer.words}: the optimizer is not priced: left open")
    # FusedAdam and DeepSpeedCPUAdam decay weights as AdamW does unless they are told otherwise.
    return {**stated(precision=dtype), "optimizer": Written("adamw", default=True)}


def _preferences(document: WrittenDocument, program: str) -> Fields:
    """Return what a program learns from pairs, as a job has it."""
    method = OPENRLHF.data["methods"].get(program)
    if program == "train_rm":
        document.notes.append("a reward model is trained on pairs: its head is not priced")
    if method is None:
        return {}
    beta = share_of(document, "beta")
    return {"rl": Written({"method": method, **({"beta": beta} if beta is not None else {})}, None, program)}


def _actor(document: WrittenDocument) -> Fields:
    """Return what the actor learns from: a prompt and its response, without a critic where there is none."""
    values: Fields = {} if document.given("sequence_length") else summed_length(document)
    if document.on("dynamic"):
        values["mbs"] = Written(None)
    document.notes.append("this is the actor's training: rollouts and the reference are run besides")
    estimator = document.text("estimator") or Written("gae", default=True)
    if estimator.value == "gae":
        document.notes.append("a critic is trained besides: it is not priced")
        return values
    return values | policy_rl(estimator, _rollouts(document))


def _rollouts(document: WrittenDocument) -> dict[str, Any]:
    """Return where vLLM computes completions: on the devices that train, or elsewhere."""
    beta, engines = share_of(document, "divergence"), document.number("engines", least=0)
    keys: dict[str, Any] = {"beta": 0.01 if beta is None else beta}
    if engines is None or not engines.value:
        return keys
    if not document.on("shared"):
        return {**keys, "vllm_mode": "server"}
    return keys | _colocated(document, sleeps=False)


OPENRLHF_TARGET: Final = target_of(OPENRLHF, recognises=is_openrlhf, read=read_openrlhf)
