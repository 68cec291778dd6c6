"""Ask LLaMA-Factory's own argument classes about cases on standard input.

The first argument is LLaMA-Factory's wheel, which is imported from and not installed. A case is the ``text``
of a YAML file. The answer to each is what the arguments have, or why they are refused. The Python that runs
this has torch, transformers, accelerate, peft and omegaconf; their versions are not those that LLaMA-Factory
asks for, and it is told not to mind.
"""

import dataclasses
import json
import os
import sys
import tempfile

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

os.environ["DISABLE_VERSION_CHECK"] = "1"
sys.path.insert(0, sys.argv[1])

from accelerate.utils import FullyShardedDataParallelPlugin  # noqa: E402
from llamafactory.hparams.parser import _TRAIN_ARGS, _parse_train_args, get_train_args  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

CLEAN = dict(os.environ)
#: What a user adds to the keys that decide a layout.
ADDED = {
    "model_name_or_path": "some/model",
    "stage": "sft",
    "do_train": True,
    "dataset": "own",
    "template": "llama3",
    "output_dir": tempfile.gettempdir(),
    "report_to": "none",
    "use_cpu": True,
}


def checked(case):
    """Return what the arguments of a file have; DeepSpeed is refused outside of a group of processes."""
    document = {**ADDED, **OmegaConf.to_container(OmegaConf.create(case["text"]))}
    parse = _parse_train_args if "deepspeed" in document else get_train_args
    model, data, training, finetuning, _ = parse(document)
    answer = {
        "mbs": training.per_device_train_batch_size,
        "steps": training.gradient_accumulation_steps,
        "sequence_length": data.cutoff_len,
        "formats": [training.bf16, training.fp16, finetuning.pure_bf16],
        "optim": str(training.optim.value),
        "recompute": not model.disable_gradient_checkpointing,
        "reentrant": model.use_reentrant_gc,
        "adapters": [finetuning.finetuning_type, finetuning.lora_rank, list(finetuning.lora_target)],
        "liger": model.enable_liger_kernel,
        "learns": [finetuning.stage, finetuning.pref_loss, finetuning.pref_beta],
        "fsdp": None,
        "stage": None,
    }
    if training.fsdp:
        plugin = FullyShardedDataParallelPlugin(**training.fsdp_plugin_args)
        answer["fsdp"] = [plugin.fsdp_version, plugin.reshard_after_forward]
    if training.deepspeed:
        config = training.hf_deepspeed_config.config
        answer["stage"] = config["zero_optimization"]["stage"]
        differing = [
            line for line in training.hf_deepspeed_config.mismatches if "train_batch_size" not in line
        ]
        if differing:  # the size of the batch is that of one process here
            raise ValueError(f"deepspeed and TrainingArguments differ: {differing}")
    return answer


def answer(case):
    """Return the answer to a case; without one, the names of all fields."""
    if not case:
        return sorted({f.name for kind in _TRAIN_ARGS for f in dataclasses.fields(kind) if f.init})
    try:
        return {"accepted": checked(case)}
    except (AttributeError, NameError):
        raise  # a mistake of this file
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the framework raises is its refusal
        return {"refused": f"{type(error).__name__}: {error}"[:500]}
    finally:
        os.environ.clear()
        os.environ.update(CLEAN)


if __name__ == "__main__":
    with ANSWERS:
        json.dump([answer(case) for case in json.load(sys.stdin)], ANSWERS)
