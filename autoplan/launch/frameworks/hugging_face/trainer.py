"""The target ``trainer``: TrainingArguments of the Hugging Face Trainer, as a JSON file or as arguments.

Fields are those of ``transformers/training_args.py``, without devices and sequences; adapters are those of
TRL's SFTTrainer, whose program takes this file with fields of ``SFTConfig`` and ``ModelConfig``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, takewhile
from typing import Any, Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import alone, assembled_document, without_open
from autoplan.launch.bindings.interface import interface, nested, plan_values, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, FileEdit, LaunchFile, Values, Written, stated
from autoplan.launch.emitted_text import torchrun_words
from autoplan.launch.frameworks.accelerate_values import launched_values, launcher_of
from autoplan.launch.frameworks.deepspeed import deepspeed_section, with_software
from autoplan.launch.frameworks.hugging_face import training_fields as training
from autoplan.launch.frameworks.hugging_face.python_program import (
    ALPACA,
    alpaca_batch,
    is_alpaca,
    is_program,
    method_of_program,
    program_document,
)
from autoplan.launch.frameworks.hugging_face.training_edits import (
    edits_beside,
    edits_of_another,
    in_python,
    key_file_edits,
    script_edits,
)
from autoplan.launch.frameworks.missing_parts import microbatches, model_notes, refuse_software, stack_note
from autoplan.launch.known_models import hub_name
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import beside_or_written
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import (
    launched_devices,
    launcher_words,
    training_command,
    variable_devices,
    without_differing,
)
from autoplan.launch.target import Emission, EmittedFile, PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.post_training import RLSpec

_BATCH: Final = training.TRAINER.keys["mbs"]
#: A section in which programs of their own have TrainingArguments; their microbatch, in it or outside of one.
_SECTION: Final = "training_args."
_BATCHES: Final = re.compile(rf"(?m)^(?:training_args\s*:[^\n]*\n(?:[ \t#][^\n]*\n|\n)*?[ ]+)?{_BATCH}\s*:")
#: What training programs call the tokens of a sequence.
_LENGTHS: Final[Sequence[str]] = training.TRAINER.data["lengths"]
_PROGRAM: Final = (*_LENGTHS, *training.TRAINER.data["program"], *training.key_names("trl"))
#: Arguments that decide a layout or what it costs: an unknown value of any other one does not matter.
_WANTED: Final = frozenset(
    {*_LENGTHS, *(key for name, key in training.TRAINER.keys.items() if "." not in key and name != "model")}
)
#: Fields that arguments decide.
_DECIDES: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(_LENGTHS, ("sequence_length",)),
    **training.TRAINER.data["decides"],
}
_FILE: Final = "training_args.json"
#: Methods of preference and reinforcement learning that TRL has a program for, and names of such programs.
_METHODS: Final = tuple(training.TRAINER.data["methods"])
_TRAINED: Final = re.compile(r"(?m)(?:\btrl\s+|[/._]|\brun_)(dpo|kto|orpo|grpo)(?:\.py)?(?=\s|\\|$)")
#: Programs that train adapters, by their names.
_ADAPTING: Final = re.compile(r"(?i)(?:^|[^a-z])q?lora(?![a-z])|peft")
#: Programs of TRL, and those of its examples and the alignment handbook, whose ModelConfig has the defaults.
_OF_TRL: Final = re.compile(r"(?:^|/)(?:run_)?(?:sft|dpo|orpo|cpo|kto|grpo|rloo|reward\w*)(?:_\w+)?\.py$")


def emit_trainer(run: PlannedRun) -> Emission:
    """Return the plan as JSON and arguments; raises InexpressibleError for what has no field."""
    document = _document(run.job, run.layout)
    text = json.dumps(document, indent=2)
    words = tuple(word for key, value in document.items() for word in _words(key, value))
    notes = (*run.header, *_notes(run.job))
    return Emission((EmittedFile(_FILE, f"{text}\n"),), words, notes=notes, by_arguments=True)


def _edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    document, _, launcher = read_arguments(file)
    beside = None if is_key_file(file) else edits_of_another(document, launcher, file, (job, old, new))
    if not is_key_file(file):
        of = document.entries, (old, new), partial(_document, job)
        edits = script_edits(*of) if beside is None else edits_beside(*of, beside)
        return tuple(map(in_python, edits)) if is_program(file) else edits
    made = key_file_edits(file, document.entries, (job, old, new), partial(_document, job))
    section = _SECTION if re.search(rf"(?m)^{_SECTION[:-1]}\s*:", file.text) else ""
    return tuple(edit if edit.file else replace(edit, path=f"{section}{edit.path}") for edit in made)


def _document(job: Job, layout: Layout) -> dict[str, Any]:
    training.refuse_beyond_data(layout)
    kind = training.checked_kind(job, layout)
    offloads = ("offload_parameters",) if kind in {"fsdp", "deepspeed"} else ()
    refuse_software(job, ("attention", "compile", *offloads), adapters=True, rl=_METHODS)
    planned = plan_values(training.TRAINER, "written", job, layout)
    if job.rl.method == "grpo" if job.rl is not None else job.adapters is None:
        del planned["sample_length"]
    values = {
        **planned,
        "steps": microbatches(job, layout),
        **training.formats(job),
        **_sharding(job, layout, kind),
        **_recompute(layout, kind),
        **(_trl(job, layout, kind) if job.adapters is not None or job.rl is not None else {}),
        **(_adapters(job, job.adapters, kind) if job.adapters is not None else {}),
        **(_rl(job.rl) if job.rl is not None else {}),
        "compiled": job.software.compile,
        "liger": True if job.stack.name.endswith("-liger") else None,
    }
    return nested(training.TRAINER, values)


def _sharding(job: Job, layout: Layout, kind: str) -> dict[str, Any]:
    if kind == "deepspeed":
        return {"optimizer": training.optim_beside(job), "deepspeed": deepspeed_section(job, layout)}
    if kind == "replicas":
        return {"optimizer": training.optim_name(job)}
    recomputes = layout.mode == "full" and not layout.activation_offload
    moved = True if job.software.offload_parameters else None
    fsdp = {"fsdp": True, **training.fsdp_values(layout), "cpu_offload": moved, "fsdp_recompute": recomputes}
    return {"optimizer": training.optim_name(job), **fsdp}


def _recompute(layout: Layout, kind: str) -> dict[str, Any]:
    """Return the fields of recompute, which FSDP has its own one for unless inputs go to host memory."""
    if layout.activation_offload:
        return {"recompute": True, "activation_offload": True}
    return {} if kind == "fsdp" else {"recompute": layout.mode == "full"}


def _trl(job: Job, layout: Layout, kind: str) -> dict[str, Any]:
    """Return the model, which TRL loads, and no recompute beside FSDP's: it recomputes unless told not to."""
    recompute = {"recompute": False} if kind == "fsdp" and not layout.activation_offload else {}
    kernels = {"attention": training.attention_value(job)}
    return {"model": hub_name(job.model), **recompute, **kernels, **training.packing(job)}


def _rl(rl: RLSpec) -> dict[str, Any]:
    """Return the fields of DPOConfig, KTOConfig or GRPOConfig, with one at least that tells which it is."""
    if rl.method == "grpo":
        return {"beta": rl.beta, "use_vllm": False, **training.rollouts(rl)}
    weight = {"chosen_weight": 1.0} if rl.method == "kto" else {}
    return {"precomputed": rl.precompute_ref_log_probs, "beta": rl.beta, **weight}


def _adapters(job: Job, adapters: AdapterSpec, kind: str) -> dict[str, Any]:
    """Return the fields of TRL's ModelConfig, whose defaults store the base in fp32; the scale is 2."""
    linear = [training.TRAINER.data["every_module"]]
    return {
        "dtype": training.TRAINER.data["dtypes"][job.precision],
        "peft": True,
        "adapter_scale": 2 * adapters.rank,
        "adapter_dropout": adapters.dropout,
        "adapted": linear if adapters.targets == "all" else training.adapted_modules(job.model, adapters),
        "adapted_parameters": training.adapted_parameters(adapters),
        "dora": True if adapters.dora else None,
        **_quantization(job, adapters, kind),
    }


def _quantization(job: Job, adapters: AdapterSpec, kind: str) -> dict[str, Any]:
    """Return the fields of the frozen base's format.

    FSDP2 and ZeRO-3 shard a base in 4 bits where it is stored as numbers of the format of the run (accelerate
    ``fsdp_utils.fsdp2_prepare_model``; PEFT's guide to DeepSpeed), and none in 8 bits.
    """
    base = adapters.base
    if base is None:
        return {}
    if base == "int8":
        training.refuse_sharded_integers(kind)
        return {"eight_bits": True}
    return {
        "four_bits": True,
        "base_format": base,
        "double_quantization": adapters.doubly_quantized,
        "base_storage": training.TRAINER.data["dtypes"][job.precision] if kind != "replicas" else None,
    }


def _words(key: str, value: object) -> tuple[str, ...]:
    """Return a field as arguments; a mapping is one word of JSON, a list several words."""
    if key == training.TRAINER.keys["fsdp"]:
        return (f"--{key}",)
    if isinstance(value, list):
        return (f"--{key}", *map(str, value))
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else str(value)
    return (f"--{key}", text)


def _notes(job: Job) -> tuple[str, ...]:
    return (
        *_start(job),
        *model_notes(job),
        *stack_note(job, ("hf-", "ddp", "deepspeed", "fsdp2"), "hf-fsdp2", "the Trainer"),
    )


def _start(job: Job) -> tuple[str, ...]:
    """Return how to start the program: one of the user's, or TRL's with adapters or a method of it."""
    if job.adapters is None and job.rl is None:
        length = f"sequences of {job.workload.sequence_length} tokens are the training program's choice"
        kernels = training.attention_value(job)
        loaded = (f"load the model with attn_implementation={kernels!r}",) if kernels else ()
        return f"start it with: {torchrun_words(job)} PROGRAM {_FILE}", length, *loaded
    script = training.TRAINER.data["script"].format(job.rl.method if job.rl is not None else "sft")
    start = f"{torchrun_words(job)} {script} {_FILE} --dataset_name DATASET"
    model = (
        ()
        if hub_name(job.model)
        else (f"set {training.TRAINER.keys['model']}: the hub has no known name of it",)
    )
    padding = "shorter samples are padded to the longest of a microbatch alone"
    if job.workload.documents is not None:
        return f"start it with: {start}", *model
    if job.rl is None:
        return f"start it with: {start}", *model, f"{padding}: --packing fills sequences"
    if job.rl.method != "grpo":
        return f"start it with: {start}", *model, padding
    length = (
        f"prompt and max_completion_length make up the {job.workload.sequence_length} tokens of a sequence"
    )
    return f"start it with: {start} --reward_funcs FUNCTION", *model, length


def is_trainer(file: LaunchFile) -> bool:
    """Return whether a file has TrainingArguments, as a JSON file or as arguments in a script."""
    if file.text.lstrip().startswith("{"):
        return f'"{_BATCH}"' in file.text
    if is_yaml(file) or is_program(file):
        return True
    lines = [line for line in file.text.splitlines() if not line.lstrip().startswith("#")]
    named = re.compile(rf"--(?:{_BATCH[:-5]}|{_BATCH.replace('_', '-')[:-5]})(?:[_-]size)?\b")
    return any(named.search(line) for line in lines) or is_alpaca(lines)


def is_yaml(file: LaunchFile) -> bool:
    """Return whether a file has TrainingArguments as YAML, as programs of TRL take them with ``--config``."""
    others = (*interface("llama-factory").data["signs"], interface("axolotl").keys["model"])
    found = [key for key in others if re.search(rf"(?m)^{key}\s*:", file.text)]
    taught = re.search(r"(?m)^(?:teacher|loss_functions)\s*:", file.text) is not None
    return _BATCHES.search(file.text) is not None and len(found) < 2 and not taught


def read_trainer(file: LaunchFile) -> Configuration:
    """Return what a JSON file or a script says; raises SpecError with all problems."""
    document, devices, launcher = read_arguments(file)
    batch = alpaca_batch(document)
    names = training.key_names("trainer").union(_PROGRAM, training.TRAINER.data["weight_types"])
    others = None if is_key_file(file) else frozenset((*_DECIDES, _BATCH))
    document.check_names("", names, "TrainingArguments", others=others)
    values = {**alone(), **stated(devices=devices)}
    values |= {**training.precision_of(document), "optimizer": training.optimizer_of(document)}
    values |= training.sharding_values(document, file)
    launched = launched_values(document, launcher, file, values)
    values |= launched
    _leave_open(document)
    _of_the_program(document, file, launched)
    _open_types(document, values)
    values |= _read_recompute(document, values)
    training.with_defaults(document, "mbs", "steps")
    values |= training.batch_of(document, file, values) | batch
    length = next((written for name in _LENGTHS if (written := document.number(name)) is not None), None)
    values |= stated(sequence_length=length)
    adapters = _read_adapters(document)
    software = training.software_of(document, "compiled", "cpu_offload", "state_offload", "liger")
    if not adapters and _all_in_bf16(document, values):
        software = with_software(software, {"software": Written({"pure_bf16": True})})
    values = with_software(values, software, adapters, _read_rl(document, file))
    training.note_packing(document)
    document.stop_at_problems()
    return assembled_document(document, file, without_open(values), training.model_of(document))


def _all_in_bf16(document: WrittenDocument, values: Values) -> bool:
    """Return whether weights that were loaded in bf16 are what is trained, without fp32 ones.

    The Trainer casts none, so that autocast finds them in bf16, and gradients and Adam's states are alike;
    accelerate's FSDP casts them to fp32, and DeepSpeed keeps fp32 ones beside them.
    """
    loaded = (document.given(name) for name in training.TRAINER.data["weight_types"])
    in_bf16 = any(one is not None and one.value in {"bf16", "bfloat16"} for one in loaded)
    ways, none = {training.DEEPSPEED, training.FSDP}, training.OPEN
    sharded = values.get("way") in ways or values.get("zero", none).value != 0
    return in_bf16 and not sharded and values.get("precision", none).value == "bf16"


def _open_types(document: WrittenDocument, values: Values) -> None:
    """Leave the precision open of weights of another type without autocast: the program decides it."""
    types = [document.given(name) for name in training.TRAINER.data["weight_types"]]
    other = any(one is not None and one.value != training.TRAINER.data["dtypes"]["fp32"] for one in types)
    if (
        other
        and values.get("precision", training.OPEN).default
        and not training.stands(document, "zero_of_program")
    ):
        document.opened.add("precision")
    for name in training.TRAINER.data["weight_types"]:
        document.text(name, tuple(training.TRAINER.data["weight_type_names"]))


def _leave_open(document: WrittenDocument) -> None:
    """Leave the fields open that fields of TrainingArguments decide which are not read."""
    for path, fields in training.TRAINER.data["undecided"].items():
        entry = document.entries.get(path)
        if training.stands(document, path) and (entry is None or str(entry.value).lower() != "false"):
            document.opened |= set(fields)
            document.notes.append(f"{path} may decide {', '.join(fields)}: left open")


def is_key_file(file: LaunchFile) -> bool:
    """Return whether a file is keys and values rather than a script."""
    return file.values is not None or file.text.lstrip().startswith("{") or is_yaml(file)


def read_arguments(file: LaunchFile) -> tuple[WrittenDocument, Written | None, Sequence[Word]]:
    """Return TrainingArguments, the devices of a script, and its launcher; raises SpecError for none."""
    if is_program(file):
        return program_document(file), None, launcher_of(file)
    if not is_key_file(file):
        return _script(file)
    document = read_yaml(file, training.TRAINER)
    document.entries = {path.removeprefix(_SECTION): entry for path, entry in document.entries.items()}
    add_options(document, [Word(text, 0) for text in file.arguments])
    training.rename(document)
    if "use_peft" not in document.entries:
        _program_adapters(document, "")
    return document, None, launcher_of(file)


def _of_the_program(document: WrittenDocument, file: LaunchFile, launched: Values) -> None:
    """Leave open what a YAML file does not say, as programs and launchers have defaults of their own."""
    if is_program(file) and not file.launcher and not training.stands(document, "deepspeed"):
        document.opened |= set() if training.stands(document, "fsdp") else {"zero"}
    if not is_yaml(file) and not (file.name.endswith((".yaml", ".yml")) and file.text.lstrip()[:1] == "{"):
        return
    if (
        not training.stands(document, "fsdp")
        and not training.stands(document, "deepspeed")
        and not file.launcher
    ):
        document.opened |= {"zero"}
        document.notes.append("the launcher's own file decides the sharding: left open")
    if not any(name in document.entries for name in ("bf16", "fp16")) and "precision" not in launched:
        document.opened |= {"precision"}
    if not any(document.path(name) in document.entries for name in ("recompute", "earlier_recompute")):
        document.opened |= {"recompute"}


def _script(file: LaunchFile) -> tuple[WrittenDocument, Written | None, Sequence[Word]]:
    """Return the arguments of the training program of a script, and the number of devices."""
    script = read_script(file.text, file.name, file.variables, file.sibling)
    file = replace(file, sibling=beside_or_written(file.sibling, script))
    names = training.key_names("trainer").union(_PROGRAM, ALPACA)
    listed = lambda word: word.startswith("--") and training.whole_name(word[2:], names) in names  # noqa: E731
    words, command = training_command(script, listed)
    words, rivals = without_differing(script, command, words, listed)
    devices, why = launched_devices(script, command)
    if devices is None and command is not None and command.words[0].text.startswith("python"):
        devices = variable_devices(script, command, file.variables)
    if not words:
        raise SpecError([Problem("there are no TrainingArguments", "script", file.name)])
    document = WrittenDocument(file.name, notes=[*script.notes, *rivals], table=training.TRAINER)
    if devices is None and file.devices is None and why:
        document.notes.append(why)
    _add_file(document, words, file)
    add_options(document, [*words, *(Word(text, 0) for text in file.arguments)])
    document.entries = {training.whole_name(name, names): entry for name, entry in document.entries.items()}
    training.rename(document)
    launcher = launcher_words(command.words) if command else ()
    started = command.words[len(launcher)].text if command and len(launcher) < len(command.words) else ""
    _program_adapters(document, started)
    training.program_deepspeed(document, launcher)
    return document, devices, launcher


def _add_file(document: WrittenDocument, words: Sequence[Word], file: LaunchFile) -> None:
    """Add the keys of the files that ``--config`` or the first word names; arguments go over them."""
    behind = [b for a, b in pairwise(words) if a.text == training.TRAINER.data["file"]]
    for name in (word.text for word in (*_first_file(words), *behind) if word.unknown is None):
        text = file.sibling(name)
        if text is None:
            document.opened |= {"zero", "recompute", "mbs", "sequence_length", "precision"}
            document.notes.append(f"{name} is not read: what it says is left open")
            continue
        inner = read_yaml(LaunchFile(name, text), training.TRAINER)
        document.entries |= {path: replace(entry, line=None) for path, entry in inner.entries.items()}
        document.notes += [*inner.notes, f"{name}: read with this file"]


def add_options(document: WrittenDocument, words: Sequence[Word]) -> None:
    """Add the options of a command line to a document; a value that is a JSON object becomes a mapping."""
    for at, word in enumerate(words):
        if not word.text.startswith("--"):
            continue
        name, equals, value = word.text[2:].partition("=")
        behind = words[at + 1] if at + 1 < len(words) and not words[at + 1].text.startswith("--") else None
        value_word = Word(value, word.line, word.unknown) if equals else behind
        if value_word is not None and name.replace("-", "_") == training.TRAINER.keys["adapted"]:
            value_word = _joined(value_word, words[at + 2 :])
        _set(document, name.replace("-", "_"), word, value_word)


def _joined(first: Word, behind: Sequence[Word]) -> Word:
    """Return several words of one option as one, with commas between them."""
    more = takewhile(lambda word: not word.text.startswith("--"), behind)
    return replace(first, text=",".join([first.text, *(word.text for word in more)]))


def _set(document: WrittenDocument, name: str, word: Word, value_word: Word | None) -> None:
    line = (value_word.line if value_word else word.line) or None
    unknown = value_word.unknown if value_word else None
    if unknown is not None and name not in _WANTED:
        document.entries.pop(name, None)  # A file read before may say something else.
        return
    if unknown is not None:
        do = f": give --set {unknown.name}=VALUE" if unknown.name else ": give the argument with --arg"
        fields = _DECIDES.get(name, ())
        if name in training.TRAINER.data["of_no_layout"]:
            document.notes.append(f"--{name} (line {line}) depends on {unknown.reason}: not read")
            return
        if not fields or (unknown.name and name not in training.TRAINER.data["named_files"]):
            document.refuse_key(f"its value depends on {unknown.reason}{do}", name, line)
            return
        document.opened |= set(fields)
        document.notes.append(f"--{name} (line {line}) depends on {unknown.reason}: left open{do}")
        return
    text = value_word.text if value_word else "true"
    for path in [path for path in document.entries if path.startswith(f"{name}.")]:
        del document.entries[path]
    words = f"--{name} {text}" if value_word else f"--{name}"
    document.entries[name] = Written(text, line, words[:200])
    if text.startswith("{"):
        _add_mapping(document, name, text, line)


def _add_mapping(document: WrittenDocument, name: str, text: str, line: int | None) -> None:
    try:
        root = json.loads(text)
    except (ValueError, RecursionError):
        document.refuse_key("it is no JSON object", name, line)
        return
    document.entries[name] = Written(None, line, f"--{name}")
    training.add_leaves(document, f"{name}.", root, line)


def _read_recompute(document: WrittenDocument, values: Values) -> Fields:
    """Return recompute and offload of its inputs; FSDP's own flag counts where it is on."""
    paths = ("fsdp_recompute", "recompute", "earlier_recompute")
    flags = [flag for path in paths if (flag := document.flag(path)) is not None]
    on = next((flag for flag in flags if flag.value), None)
    if on is None:
        return training.recompute_of(document, *paths)
    fields = {"recompute": on.of("full")}
    for every_name, offload_name in (
        ("recompute_every", "activation_offload"),
        ("earlier_every", "earlier_offload"),
    ):
        every = document.number(every_name)
        if every is not None and every.value > 1:
            document.notes.append(f"{every.words}: recompute of every {every.value}th layer is not read")
            fields["recompute"] = training.OPEN
        offload = document.on(offload_name)
        if offload is not None:
            states = values["offload"].value if "offload" in values else None
            both = "optimizer+activations" if states else "activations"
            fields["offload"] = offload.of(both)
    return fields


def _read_adapters(document: WrittenDocument) -> Fields:
    """Return the adapters of TRL's ModelConfig, with its defaults."""
    on = document.flag("peft")
    if on is None or not on.value:
        return {}
    training.with_defaults(document, "adapter_rank", "adapter_dropout", "double_quantization")
    # Left out, PEFT adapts q and v of Llama and its relatives.
    targets = document.given("adapted") or Written(["q_proj", "v_proj"], on.line, on.words, default=True)
    every = training.TRAINER.data["every_module"] in (targets.value, *list(targets.value))
    rank, more = document.number("adapter_rank"), training.quantized_base(document)
    return training.adapter_values(rank, targets, every=every, more=more)


def _read_rl(document: WrittenDocument, file: LaunchFile) -> Fields:
    """Return the method that TRL's program is called as, or that keys of one alone say; else it is open."""
    program = method_of_program(file.text) if is_program(file) else None
    if program is not None:
        return training.rl_of(document, Written(program, None, program), "beta")
    found = None if is_key_file(file) else _TRAINED.search(re.sub(r"(?m)^\s*#.*$", "", file.text))
    if found is not None:
        return training.rl_of(document, Written(found[1], None, found[0].strip()), "beta")
    for method, keys in training.TRAINER.data["methods"].items():
        written = next((document.entries[key] for key in keys if key in document.entries), None)
        if written is not None:
            return training.rl_of(document, replace(written, value=method), "beta")
    loss = document.entries.get("loss_type")
    losses = loss.value if loss is not None and isinstance(loss.value, list) else [loss and loss.value]
    if loss is not None and set(map(str, losses)) <= set(training.TRAINER.data["losses"]):
        return training.rl_of(document, replace(loss, value="dpo"), "beta")
    if (weight := document.given("beta")) is not None:
        document.opened.add("rl")
        document.notes.append(f"{weight.words}: of DPO, KTO or ORPO, which the training program decides")
    return {}


def _program_adapters(document: WrittenDocument, program: str) -> None:
    """Read the adapters of a program of its own, whose switch and rank may be its defaults: open then."""
    switch, rank = document.entries.get("use_peft"), document.entries.get("lora_r")
    other = program.endswith(".py") and _OF_TRL.search(program) is None
    renamed = switch is not None and (other or switch.words.split()[0] != "--use_peft")
    tuned = str(getattr(document.entries.get("finetuning_type"), "value", "")) == "lora"
    if switch is None and rank is not None and (_ADAPTING.search(program) or tuned):
        document.entries["use_peft"] = replace(rank, value="true")
    elif (renamed and rank is None) or (switch is None and rank is not None):
        document.entries.pop("use_peft", None)
        document.opened.add("adapters")
        document.notes.append(
            f"{(switch or rank or training.OPEN).words}: the program decides the adapters: left open"
        )


def _first_file(words: Sequence[Word]) -> Sequence[Word]:
    """Return the first word where it is a file of keys: one of JSON only where it is the only word."""
    endings = (".yaml", ".yml", ".json") if len(words) == 1 else (".yaml", ".yml")
    return words[:1] if words and words[0].text.endswith(endings) else ()


TARGET: Final = target_of(
    training.TRAINER, emit=emit_trainer, recognises=is_trainer, read=read_trainer, edits=_edits
)
