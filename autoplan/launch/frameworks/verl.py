"""The target ``verl``: scripts that start its trainers, by the overrides of Hydra that these are given.

Of learning from rewards it is the actor's training that is read: its layout is that of FSDP or Megatron-LM.
Its rollouts are an engine on the same devices, which takes memory and time that a job has as ``rl``; a critic
and a reward model have none there, which is said. Batches count sequences: prompts times their completions.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from autoplan.launch.assembly import assembled
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.training_fields import (
    adapter_values,
    alone,
    model_of,
    without_open,
)
from autoplan.launch.frameworks.interpolated_values import OVERRIDE, overridden
from autoplan.launch.frameworks.reinforcement import (
    Started,
    actor_devices,
    policy_rl,
    share_of,
    started_program,
    summed_length,
)
from autoplan.launch.scripts.script import Script
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices
from autoplan.launch.target import Target

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
    document = _document(script, file, started, samples=samples)
    values = _samples(document, script, started) if samples else _policy(document, started)
    document.stop_at_problems()
    values |= _adapters(document)
    return assembled(
        "verl",
        file,
        known_alone(without_open(values), document.opened),
        model=model_of(document),
        opened=document.opened,
        warnings=document.notes,
    )


def _document(script: Script, file: LaunchFile, started: Started, *, samples: bool) -> WrittenDocument:
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


def _samples(document: WrittenDocument, script: Script, started: Started) -> dict[str, Written]:
    """Return what the trainer of samples does: FSDP over all ranks, in bf16, with AdamW.

    Source: verl b178a3c, ``trainer/fsdp_sft_trainer.py``. Its default of recompute changed between versions,
    and so did what ``data.micro_batch_size`` counts.
    """
    devices = launched_devices(script, started[0])[0]
    values = {**alone(), **({"devices": devices} if devices else {})}
    values |= document.bound("global_batch_size", "sequence_length", "cp", "mbs")
    if document.number("earlier_mbs") is not None and document.given("mbs") is None:
        del values["mbs"]
        document.notes.append(f"{document.path('earlier_mbs')} counts otherwise by version: left open")
    values |= _trained() | _recompute(document)
    offloaded, moved = document.flag("offloaded"), document.flag("moved")
    both = offloaded is not None and bool(offloaded.value) and moved is not None and bool(moved.value)
    return values | _software(offloaded=both)


def _trained() -> dict[str, Written]:
    return {
        "zero": Written(3, default=True),
        "precision": Written("bf16", default=True),
        "optimizer": Written("adamw", default=True),
    }


def _recompute(document: WrittenDocument) -> dict[str, Written]:
    written = document.flag("recompute")
    if written is None:
        return {"recompute": Written(None)}
    return {"recompute": Written("full" if written.value else "none", written.line, written.words)}


def _policy(document: WrittenDocument, started: Started) -> dict[str, Written]:
    """Return what the actor trains with, by FSDP or by Megatron-LM."""
    strategy = _strategy(document, started)
    values = {**alone(), **actor_devices(document), **summed_length(document)}
    values |= _trained() | _optimizer(document)
    if strategy == "megatron":
        values |= _megatron(document)
    else:
        values |= document.bound("cp") | _recompute(document) | _sharding(document)
    values |= _batches(document) | _learning(document)
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


def _optimizer(document: WrittenDocument) -> dict[str, Written]:
    named = document.text("optimizer")
    if named is None:
        return {}
    ours = VERL.data["optimizers"].get(str(named.value).lower())
    if ours is None:
        document.opened.add("optimizer")
        return {}
    return {"optimizer": Written(ours, named.line, named.words)}


def _sharding(document: WrittenDocument) -> dict[str, Written]:
    """Return the ZeRO stage and its groups. ``param_offload`` moves shards between phases, not in a step.

    Source: verl b178a3c, ``workers/fsdp_workers.py`` (``create_device_mesh``, ``get_sharding_strategy``).
    """
    kept = document.flag("resharded")
    values = {"zero": Written(2, kept.line, kept.words)} if kept is not None and not kept.value else {}
    written = document.given("shards")
    if written is not None and str(written.value) not in {"-1", "0"}:
        size, devices = document.number("shards"), actor_devices(document).get("devices")
        if size is not None and devices is not None and size.value < devices.value:
            values["dp_shard"] = size
    policy = document.flag("offloaded")
    return values | _software(offloaded=policy is not None and bool(policy.value))


def _software(*, offloaded: bool) -> dict[str, Written]:
    """Return the attention that models load with, and whether parameters stay in host memory.

    Source: verl b178a3c, ``workers/fsdp_workers.py`` and ``trainer/fsdp_sft_trainer.py``: attn_implementation
    is flash_attention_2.
    """
    moved = {"offload_parameters": True} if offloaded else {}
    return {"software": Written({"attention": "flash2", **moved}, default=not offloaded)}


def _megatron(document: WrittenDocument) -> dict[str, Written]:
    """Return the degrees of Megatron-LM; those that a script leaves out differ by the version of verl."""
    values = {"zero": Written(1, default=True)}
    names = ("tp", "pp", "cp", "ep", "etp", "vpp")
    given = {name: document.number(f"megatron_{name}") for name in names}
    values |= {name: written for name, written in given.items() if written is not None}
    document.opened |= _BY_VERSION - set(values)
    document.notes.append("Megatron-LM's recompute and what of its degrees is not given are left open")
    return values


def _batches(document: WrittenDocument) -> dict[str, Written]:
    """Return the sequences of a microbatch and of an update: prompts times their completions."""
    values = document.bound("mbs")
    dynamic, earlier = document.flag("dynamic"), document.number("earlier_mbs")
    if (dynamic is not None and dynamic.value) or "mbs" not in values:
        values.pop("mbs", None)
        document.notes.append(
            "microbatches have a number of tokens, not of sequences: left open"
            if dynamic is not None and dynamic.value
            else "no microbatch is given for each device: left open"
        )
    prompts, completions = document.number("mini_batch"), document.bound("completions")["completions"]
    if prompts is None:
        document.notes.append("no ppo_mini_batch_size is given: the batch is left open")
    elif earlier is not None and completions.value > 1:
        document.notes.append("ppo_micro_batch_size is of a version that counts batches otherwise: left open")
    else:
        total = prompts.value * completions.value
        words = f"{prompts.words} {completions.words}".strip()
        values["global_batch_size"] = Written(total, prompts.line, words)
    return values


def _learning(document: WrittenDocument) -> dict[str, Written]:
    """Return learning without a critic, as a job has it; with one, nothing is priced beside the actor."""
    estimator = document.text("estimator") or Written("gae", default=True)
    if estimator.value == "gae":
        document.notes.append("a critic is trained besides, on the same devices: it is not priced")
        return {}
    keys: dict[str, object] = {}
    reference, beta = document.flag("reference"), share_of(document, "beta")
    if reference is not None and reference.value and beta is not None:
        keys["beta"] = beta
    engine = document.text("engine")
    if engine is not None and engine.value in {"vllm", "sglang"}:
        sleeps = document.flag("vllm_sleep")
        share = share_of(document, "vllm_share")
        keys["vllm_mode"] = "colocate"
        keys |= {TRAINER.keys["vllm_share"]: share} if share is not None and 0 < share < 1 else {}
        keys[TRAINER.keys["vllm_sleep"]] = sleeps is None or bool(sleeps.value)
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


def _adapters(document: WrittenDocument) -> dict[str, Written]:
    rank, targets = document.number("adapter_rank", least=0), document.given("adapted")
    if rank is None or not rank.value:
        return {}
    every = targets is None or str(targets.value) == "all-linear"
    return adapter_values(rank, targets, every=every, more={})


TARGET: Final = Target(
    name="verl",
    framework=VERL.data["title"],
    version=VERL.data["version"],
    check="names checked",
    recognises=is_verl,
    read=read_verl,
)
