"""What the readers of verl and OpenRLHF share: commands of their programs, and rollouts as a job has them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import assembled
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.trainer import add_options
from autoplan.launch.frameworks.hugging_face.training_fields import (
    adapter_values,
    alone,
    model_of,
    without_open,
)
from autoplan.launch.frameworks.interpolated_values import OVERRIDE, overridden
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices

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


def actor_devices(document: WrittenDocument) -> dict[str, Written]:
    """Return the devices that train the policy: those of a node, times the nodes."""
    values = document.bound("gpus", "nodes")
    if len(values) < 2:
        return {}
    gpus, nodes = values["gpus"], values["nodes"]
    words = " ".join(written.words for written in (nodes, gpus) if written.words)
    default = gpus.default and nodes.default
    return {"devices": Written(gpus.value * nodes.value, gpus.line or nodes.line, words, default=default)}


def summed_length(document: WrittenDocument) -> dict[str, Written]:
    """Return the longest sequence that is trained: a prompt and its response."""
    values = document.bound("prompt", "response")
    if len(values) < 2:
        return {}
    prompt, response = values["prompt"], values["response"]
    words = " ".join(written.words for written in (prompt, response) if written.words)
    default = prompt.default and response.default
    total = prompt.value + response.value
    return {"sequence_length": Written(total, prompt.line or response.line, words, default=default)}


def policy_rl(method: Written, keys: Mapping[str, Any]) -> dict[str, Written]:
    """Return learning from completions without a critic, as a job has it."""
    return {"rl": Written({"method": "grpo", **keys}, method.line, method.words)}


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
    values |= _verl_adapters(document)
    return assembled(
        "verl",
        file,
        known_alone(without_open(values), document.opened),
        model=model_of(document),
        opened=document.opened,
        warnings=document.notes,
    )


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
    if offloaded is not None and offloaded.value and moved is not None and moved.value:
        values["software"] = Written({"offload_parameters": True})
    return values


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
    if policy is not None and policy.value:
        values["software"] = Written({"offload_parameters": True}, policy.line, policy.words)
    return values


def _megatron(document: WrittenDocument) -> dict[str, Written]:
    """Return the degrees of Megatron-LM; those that a script leaves out differ by the version of verl."""
    values = {"zero": Written(1, default=True)}
    names = ("tp", "pp", "cp", "ep", "etp", "vpp")
    given = {name: document.number(f"megatron_{name}") for name in names}
    values |= {name: written for name, written in given.items() if written is not None}
    document.opened |= _BY_VERSION - set(values)
    document.notes.append("Megatron-LM's recompute and what of its degrees is not given are left open")
    return values


def _updates(document: WrittenDocument) -> dict[str, Written]:
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


def _verl_adapters(document: WrittenDocument) -> dict[str, Written]:
    rank, targets = document.number("adapter_rank", least=0), document.given("adapted")
    if rank is None or not rank.value:
        return {}
    every = targets is None or str(targets.value) == "all-linear"
    return adapter_values(rank, targets, every=every, more={})


VERL_TARGET: Final = target_of(VERL, recognises=is_verl, read=read_verl)


OPENRLHF: Final = interface("openrlhf")
_RLHF_TRAINER: Final = interface("trainer")
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
        devices = launched_devices(script, command)[0]
        values |= ({"devices": devices} if devices else {}) | _preferences(document, program)
    document.stop_at_problems()
    return assembled(
        "openrlhf",
        file,
        known_alone(without_open(values), document.opened),
        model=model_of(document),
        opened=document.opened,
        warnings=document.notes,
    )


def _as_before(document: WrittenDocument) -> None:
    """Call arguments of 0.10 and later as those before; their parameters are in bf16 by default."""
    found = {old: new for new, old in OPENRLHF.data["later_keys"].items() if new in document.entries}
    for old, new in found.items():
        document.entries[old] = document.entries.pop(new)
    if found:
        document.entries.setdefault(OPENRLHF.keys["dtype"], Written("bf16", default=True))


def _training(document: WrittenDocument, program: str) -> dict[str, Written]:
    """Return degrees, batches, sharding, formats and adapters, with the program's own defaults."""
    values = document.bound("tp", "cp", "zero", "global_batch_size", "mbs", "sequence_length")
    for name, table in (("mbs", "microbatches"), ("sequence_length", "lengths")):
        if name not in values and program in OPENRLHF.data[table]:
            values[name] = Written(OPENRLHF.data[table][program], default=True)
    groups = document.number("groups")
    if groups is not None and groups.value > 1:
        document.opened.add("dp_shard")
        document.notes.append(f"{groups.words}: a second copy of the parameters in each group is not read")
    return values | _formats(document) | _of_memory(document) | _rlhf_adapters(document)


def _formats(document: WrittenDocument) -> dict[str, Written]:
    """Return precision and optimizer: before 0.10 a switch says the precision, and later a name."""
    bf16, optimizer = document.flag("bf16"), document.text("optimizer")
    values = document.bound("dtype")
    if bf16 is not None and bf16.value:
        values = {"dtype": Written("bf16", bf16.line, bf16.words)}
    if "dtype" not in values:
        document.opened.add("precision")
    if optimizer is not None and optimizer.value != "adam":
        document.opened.add("optimizer")
        document.notes.append(f"{optimizer.words}: the optimizer is not priced: left open")
    # FusedAdam and DeepSpeedCPUAdam decay weights as AdamW does unless they are told otherwise.
    return {
        **({"precision": values["dtype"]} if values else {}),
        "optimizer": Written("adamw", default=True),
    }


def _of_memory(document: WrittenDocument) -> dict[str, Written]:
    full, states = document.flag("recompute"), document.flag("states")
    on = full is not None and full.value
    values = {"recompute": replace(full or Written(None, default=True), value="full" if on else "none")}
    if states is not None and states.value:
        values["offload"] = Written("optimizer", states.line, states.words)
    liger = document.flag("liger")
    if liger is not None and liger.value:
        values["software"] = Written({"loss": "chunked", "fused_kernels": True}, liger.line, liger.words)
    return values


def _rlhf_adapters(document: WrittenDocument) -> dict[str, Written]:
    rank, four = document.number("adapter_rank", least=0), document.flag("four_bits")
    if rank is None or not rank.value:
        return {}
    targets = document.given("adapted")
    every = targets is None or str(targets.value) == "all-linear"
    base = "nf4" if four is not None and four.value else None
    more = {"base": base} if base else {}
    return adapter_values(rank, targets, every=every, more=more)


def _preferences(document: WrittenDocument, program: str) -> dict[str, Written]:
    """Return what a program learns from pairs, as a job has it."""
    method = OPENRLHF.data["methods"].get(program)
    if program == "train_rm":
        document.notes.append("a reward model is trained on pairs: its head is not priced")
    if method is None:
        return {}
    beta = share_of(document, "beta")
    return {"rl": Written({"method": method, **({"beta": beta} if beta is not None else {})}, None, program)}


def _actor(document: WrittenDocument) -> dict[str, Written]:
    """Return what the actor learns from: a prompt and its response, without a critic where there is none."""
    values: dict[str, Written] = {} if document.given("sequence_length") else summed_length(document)
    dynamic = document.flag("dynamic")
    if dynamic is not None and dynamic.value:
        values["mbs"] = Written(None)
    document.notes.append("this is the actor's training: rollouts and the reference are run besides")
    estimator = document.text("estimator") or Written("gae", default=True)
    if estimator.value == "gae":
        document.notes.append("a critic is trained besides: it is not priced")
        return values
    return values | policy_rl(estimator, _rollouts(document))


def _rollouts(document: WrittenDocument) -> dict[str, Any]:
    """Return where vLLM computes completions: on the devices that train, or elsewhere."""
    beta = share_of(document, "divergence")
    keys: dict[str, Any] = {"beta": 0.01 if beta is None else beta}
    engines, shared = document.number("engines", least=0), document.flag("shared")
    if engines is None or not engines.value:
        return keys
    if shared is None or not shared.value:
        return {**keys, "vllm_mode": "server"}
    share, sleeps = share_of(document, "vllm_share"), document.flag("vllm_sleep")
    keys["vllm_mode"] = "colocate"
    keys |= {_RLHF_TRAINER.keys["vllm_share"]: share} if share is not None and 0 < share < 1 else {}
    keys[_RLHF_TRAINER.keys["vllm_sleep"]] = sleeps is not None and bool(sleeps.value)
    return keys


OPENRLHF_TARGET: Final = target_of(OPENRLHF, recognises=is_openrlhf, read=read_openrlhf)
