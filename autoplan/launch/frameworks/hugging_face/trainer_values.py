"""What TrainingArguments of the Hugging Face Trainer say: in a JSON or YAML file, or in a shell script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import assembled
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.training_fields import (
    OPEN,
    adapter_values,
    alone,
    batch_of,
    deepspeed_values,
    key_names,
    model_of,
    optimizer_of,
    precision_of,
    recompute_of,
    stands,
    without_open,
)
from autoplan.launch.frameworks.written_document import WrittenDocument, read_yaml
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices, training_command

__all__ = ["is_key_file", "is_trainer", "read_arguments", "read_trainer", "sharding_values"]

_BATCH: Final = "per_device_train_batch_size"
#: What training programs call the tokens of a sequence.
_LENGTHS: Final = ("max_length", "max_seq_length", "model_max_length", "block_size", "cutoff_len")
#: Low-rank adapters as TRL's programs are told them (ModelConfig), with what they do not change in a layout.
_PEFT: Final = ("use_peft", "lora_r", "lora_target_modules", "lora_alpha", "lora_dropout")
_PROGRAM: Final = (
    *(*_LENGTHS, *_PEFT, "model_name_or_path", "evaluation_strategy", "no_cuda", "warmup_ratio"),
)
#: Arguments that decide a layout or what it costs: an unknown value of any other one does not matter.
_WANTED: Final = frozenset(
    {
        *(*_LENGTHS, _BATCH, "gradient_accumulation_steps", "bf16", "fp16", "optim", "fsdp", "fsdp_config"),
        *("deepspeed", "activation_checkpointing", "gradient_checkpointing", "torch_compile"),
        *("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs", "use_liger_kernel"),
        *_PEFT[:3],
    }
)
#: Strategies of the text that ``fsdp`` had before, and whether each is hybrid.
_STRATEGIES: Final = {
    "full_shard": (3, False),
    "shard_grad_op": (2, False),
    "hybrid_shard": (3, True),
    "hybrid_shard_zero2": (2, True),
    "no_shard": (0, False),
}
_CONFIG: Final = "fsdp_config."


def is_trainer(file: LaunchFile) -> bool:
    """Return whether a file has TrainingArguments, as a JSON file or as arguments in a script."""
    if file.text.lstrip().startswith("{"):
        return f'"{_BATCH}"' in file.text
    lines = [line for line in file.text.splitlines() if not line.lstrip().startswith("#")]
    return any(f"--{name}" in line for name in (_BATCH, _BATCH.replace("_", "-")) for line in lines)


def read_trainer(file: LaunchFile) -> Configuration:
    """Return what a JSON file or a script says; raises SpecError with all problems."""
    document, devices = read_arguments(file)
    document.check_names("", key_names("trainer") | frozenset(_PROGRAM), "TrainingArguments")
    values = {**alone(), **({"devices": devices} if devices else {})}
    values |= {**precision_of(document), "optimizer": optimizer_of(document, "optim")}
    values |= sharding_values(document)
    values |= _recompute(document, values)
    defaults = {_BATCH: 8, "gradient_accumulation_steps": 1}
    for path, value in defaults.items():
        document.entries.setdefault(path, Written(value, default=True))
    values |= batch_of(document, file, values, _BATCH, "gradient_accumulation_steps")
    length = next((written for name in _LENGTHS if (written := document.number(name)) is not None), None)
    values |= {"sequence_length": length} if length else {}
    values |= _software(document) | _adapters(document)
    document.stop_at_problems()
    model = model_of(document, "model_name_or_path")
    values = without_open(values)
    return assembled("trainer", file, values, model=model, warnings=document.notes)


def is_key_file(file: LaunchFile) -> bool:
    """Return whether a file is keys and values rather than a script."""
    return file.values is not None or file.text.lstrip().startswith("{")


def read_arguments(file: LaunchFile) -> tuple[WrittenDocument, Written | None]:
    """Return TrainingArguments as a file has them, and the devices that a script starts; raises SpecError."""
    if not is_key_file(file):
        return _script(file)
    document = read_yaml(file)
    add_options(document, [Word(text, 0) for text in file.arguments])
    return document, None


def _script(file: LaunchFile) -> tuple[WrittenDocument, Written | None]:
    """Return the arguments of the training program of a script, and the number of devices."""
    script = read_script(file.text, file.name, file.variables)
    names = key_names("trainer")
    known = lambda word: word.startswith("--") and word[2:].replace("-", "_") in names  # noqa: E731
    words, command = training_command(script, known)
    devices, why = launched_devices(script, command)
    if not words:
        raise SpecError([Problem("there are no TrainingArguments", "script", file.name)])
    document = WrittenDocument(file.name, notes=list(script.notes))
    if devices is None and file.devices is None and why:
        document.notes.append(why)
    add_options(document, [*words, *(Word(text, 0) for text in file.arguments)])
    return document, devices


def add_options(document: WrittenDocument, words: Sequence[Word]) -> None:
    """Add the options of a command line to a document; a value that is a JSON object becomes a mapping."""
    for at, word in enumerate(words):
        if not word.text.startswith("--"):
            continue
        name, equals, value = word.text[2:].partition("=")
        behind = words[at + 1] if at + 1 < len(words) and not words[at + 1].text.startswith("--") else None
        given = Word(value, word.line, word.unknown) if equals else behind
        name = name.replace("-", "_")
        if name == "lora_target_modules" and behind is not None:
            listed = takewhile(lambda x: not x.text.startswith("--"), words[at + 1 :])
            given = replace(behind, text=",".join(x.text for x in listed))
        _set(document, name, word, given)


def _set(document: WrittenDocument, name: str, word: Word, given: Word | None) -> None:
    line = (given.line if given else word.line) or None
    unknown = given.unknown if given else None
    if unknown is not None and name not in _WANTED:
        return
    if unknown is not None:
        do = f": give --set {unknown.name}=VALUE" if unknown.name else ": give the argument with --arg"
        document.refuse(f"its value depends on {unknown.reason}{do}", name, line)
        return
    text = given.text if given else "true"
    for path in [path for path in document.entries if path.startswith(f"{name}.")]:
        del document.entries[path]
    document.entries[name] = Written(text, line, f"--{name} {text}"[:200])
    if text.startswith("{"):
        _add_mapping(document, name, text, line)


def _add_mapping(document: WrittenDocument, name: str, text: str, line: int | None) -> None:
    try:
        root = json.loads(text)
    except (ValueError, RecursionError):
        document.refuse("it is no JSON object", name, line)
        return
    document.entries[name] = Written(None, line, f"--{name}")
    _leaves(document, f"{name}.", root, line)


def _leaves(document: WrittenDocument, prefix: str, node: Mapping[str, Any], line: int | None) -> None:
    for key, value in node.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            document.entries[path] = Written(None, line, f"{key}:")
            _leaves(document, f"{path}.", value, line)
        else:
            document.entries[path] = Written(value, line, f"{key}: {str(value)[:40]!r}")


def sharding_values(document: WrittenDocument) -> dict[str, Written]:
    """Return what ``deepspeed``, or ``fsdp`` with ``fsdp_config``, shards; nothing is plain replicas."""
    if stands(document, "deepspeed"):
        _refuse_both(document)
        return _deepspeed(document)
    fsdp = document.entries.get("fsdp")
    if fsdp is None or not fsdp.value or str(fsdp.value).lower() == "false":
        return {}
    other = document.text("fsdp_config")
    if other is not None and f"{_CONFIG}version" not in document.entries:
        document.notes.append(f"{other.words[:80]}: read that file for more of the sharding")
    return _fsdp(document, fsdp)


def _refuse_both(document: WrittenDocument) -> None:
    fsdp = document.given("fsdp")
    if fsdp is not None and str(fsdp.value).lower() not in {"false", ""}:
        document.refuse(f"deepspeed and fsdp (line {fsdp.line}) exclude each other", "deepspeed")


def _deepspeed(document: WrittenDocument) -> dict[str, Written]:
    values = deepspeed_values(document)
    if "zero" not in values:
        return {"zero": OPEN}
    return values


def _fsdp(document: WrittenDocument, fsdp: Written) -> dict[str, Written]:
    """Return the sharding of FSDP: a truth value of FSDP2's, or the strategy of earlier versions."""
    items = fsdp.value if isinstance(fsdp.value, list) else str(fsdp.value).lower().split()
    names = {str(item).lower() for item in items}
    strategy = next((name for name in _STRATEGIES if name in names), None)
    unknown = names - set(_STRATEGIES) - {"true", "auto_wrap", "offload"}
    if unknown:
        document.refuse(f"{min(unknown)[:40]!r} is none of {', '.join(_STRATEGIES)}", "fsdp")
    zero, hybrid = _STRATEGIES[strategy] if strategy else (3, False)
    values = {"zero": Written(zero, fsdp.line, fsdp.words, default=strategy is None)}
    values |= _resharded(document)
    if hybrid:
        document.notes.append(f"{fsdp.words}: sharded inside of each machine, whose devices are not known")
    states = document.flag(f"{_CONFIG}cpu_offload") or document.flag(f"{_CONFIG}offload_params")
    if "offload" in names or (states is not None and states.value):
        where = states or fsdp
        values["offload"] = Written("optimizer", where.line, where.words)
        document.notes.append(f"{where.words}: parameters are in host memory as well, which is not priced")
    return values


def _resharded(document: WrittenDocument) -> dict[str, Written]:
    """Return the ZeRO stage that ``reshard_after_forward`` says, as FSDP2 or as FSDP1 has it."""
    for path in (f"{_CONFIG}reshard_after_forward", f"{_CONFIG}fsdp_reshard_after_forward"):
        written = document.given(path)
        if written is None:
            continue
        name = str(written.value).lower()
        stages = {"true": 3, "false": 2, **{key: zero for key, (zero, _) in _STRATEGIES.items()}}
        if name in stages:
            return {"zero": Written(stages[name], written.line, written.words)}
        document.refuse(f"{name[:40]!r} is none of {', '.join(stages)}", path)
    return {}


def _recompute(document: WrittenDocument, values: Mapping[str, Written]) -> dict[str, Written]:
    """Return recompute and offload of its inputs; FSDP's own flag counts where it is on."""
    paths = (f"{_CONFIG}activation_checkpointing", "activation_checkpointing", "gradient_checkpointing")
    flags = [flag for path in paths if (flag := document.flag(path)) is not None]
    on = next((flag for flag in flags if flag.value), None)
    if on is None:
        return recompute_of(document, *paths)
    fields = {"recompute": Written("full", on.line, on.words)}
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        every = document.number(f"{name}.every_n_layers")
        if every is not None and every.value > 1:
            document.notes.append(f"{every.words}: recompute of every {every.value}th layer is not read")
            fields["recompute"] = OPEN
        offload = document.flag(f"{name}.offload")
        if offload is not None and offload.value:
            states = values["offload"].value if "offload" in values else None
            both = "optimizer+activations" if states else "activations"
            fields["offload"] = Written(both, offload.line, offload.words)
    return fields


def _adapters(document: WrittenDocument) -> dict[str, Written]:
    """Return low-rank adapters; without targets PEFT takes two products of attention."""
    used = document.flag("use_peft")
    if used is None or not used.value:
        return {}
    rank = document.number("lora_r") or Written(16, default=True)
    targets = document.given("lora_target_modules")
    if targets is None:
        document.notes.append("lora_target_modules is left out: read as all products of attention")
        return adapter_values(rank, Written("q_proj"), every=False)
    return adapter_values(rank, targets, every=targets.value in ("all-linear", ["all-linear"]))


def _software(document: WrittenDocument) -> dict[str, Written]:
    compiled, liger = document.flag("torch_compile"), document.flag("use_liger_kernel")
    values: dict[str, Any] = {}
    if compiled is not None:
        values["compile"] = compiled.value
    if liger is not None and liger.value:
        values |= {"loss": "chunked", "fused_kernels": True}
    return {"software": Written(values)} if values else {}
