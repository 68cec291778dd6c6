"""The target ``openrlhf``: scripts that start OpenRLHF's programs, which train with DeepSpeed.

``train_sft``, ``train_dpo`` and their kin are fine-tunes. Of ``train_ppo_ray`` it is the actor's training
that is read; its rollouts are engines on the same devices or on others, and a critic is said, not priced.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from autoplan.launch.assembly import assembled
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.trainer import add_options
from autoplan.launch.frameworks.hugging_face.training_fields import (
    adapter_values,
    alone,
    model_of,
    read_attention,
    without_open,
)
from autoplan.launch.frameworks.reinforcement import (
    actor_devices,
    policy_rl,
    share_of,
    started_program,
    summed_length,
)
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices
from autoplan.launch.target import Target

OPENRLHF: Final = interface("openrlhf")
TRAINER: Final = interface("trainer")
_NAMES: Final = r"train_(?:sft|dpo|kto|rm|ppo_ray)"
_PROGRAM: Final = re.compile(rf"(?:.*[./])?openrlhf[./]cli[./]({_NAMES})(?:\.py)?")
_STARTS: Final = re.compile(rf"\bopenrlhf[./]cli[./]{_NAMES}\b")
_KNOWN: Final = frozenset((*OPENRLHF.data["known"], *OPENRLHF.keys.values()))
_POLICY: Final = "train_ppo_ray"


def is_openrlhf(file: LaunchFile) -> bool:
    """Return whether a file starts a program of OpenRLHF."""
    return file.values is None and _STARTS.search(file.text) is not None


def read_openrlhf(file: LaunchFile) -> Configuration:
    """Return what a script of OpenRLHF trains; raises SpecError with all problems."""
    script = read_script(file.text, file.name, file.variables, file.sibling)
    command, program, words = started_program(script, file, _PROGRAM, OPENRLHF.data["title"])
    document = WrittenDocument(file.name, notes=list(script.notes), table=OPENRLHF)
    add_options(document, [*words, *(Word(text, 0) for text in file.arguments)])
    _as_before(document)
    document.check_names("", _KNOWN, OPENRLHF.data["title"], others=frozenset(OPENRLHF.keys.values()))
    if "fp16" in document.entries:
        document.refuse_key("OpenRLHF has no such argument: the precision is that of param_dtype", "fp16")
    values = {**alone(), **_training(document, program)}
    if program == _POLICY:
        values |= actor_devices(document) | _policy(document)
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
    return values | _formats(document) | _memory(document) | _adapters(document)


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


def _memory(document: WrittenDocument) -> dict[str, Written]:
    full, states = document.flag("recompute"), document.flag("states")
    on = full is not None and full.value
    values = {"recompute": replace(full or Written(None, default=True), value="full" if on else "none")}
    if states is not None and states.value:
        values["offload"] = Written("optimizer", states.line, states.words)
    liger = document.flag("liger")
    software = read_attention(document) or {"attention": "flash2"}
    if liger is not None and liger.value:
        software |= {"loss": "chunked", "fused_kernels": True}
    return {**values, "software": Written(software, default=True)}


def _adapters(document: WrittenDocument) -> dict[str, Written]:
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


def _policy(document: WrittenDocument) -> dict[str, Written]:
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
    keys |= {TRAINER.keys["vllm_share"]: share} if share is not None and 0 < share < 1 else {}
    keys[TRAINER.keys["vllm_sleep"]] = sleeps is not None and bool(sleeps.value)
    return keys


TARGET: Final = Target(
    name="openrlhf",
    framework=OPENRLHF.data["title"],
    version=OPENRLHF.data["version"],
    check="names checked",
    recognises=is_openrlhf,
    read=read_openrlhf,
)
