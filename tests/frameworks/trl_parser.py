"""Ask TRL's own parser about the files of cases on standard input.

The first argument is TRL's wheel, which is imported from and not installed. A case has the ``text`` of a JSON
file for ``trl sft --config``, or for the program of its ``method``. The answer to each is what TRL makes of
it, or why it refuses. The Python that runs this has transformers, peft and datasets.
"""

import importlib
import json
import os
import sys
import tempfile

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

sys.path.insert(0, sys.argv[1])

from trl import get_peft_config, get_quantization_config  # noqa: E402

#: This machine has no device.
HERE = ("--use_cpu", "true", "--report_to", "none", "--dataset_name", "own")


#: What methods of preference and reinforcement learning are told.
LEARNT = (
    "max_length",
    "precompute_ref_log_probs",
    "beta",
    "use_vllm",
    "vllm_mode",
    "vllm_gpu_memory_utilization",
)


def checked(case):
    """Return what TRL makes of a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file, tempfile.TemporaryDirectory() as folder:
        file.write(case["text"])
        file.flush()
        words = ["--config", file.name, "--output_dir", folder, *HERE]
        program = importlib.import_module(f"trl.scripts.{case.get('method', 'sft')}")
        _, training, model, _ = program.make_parser().parse_args_and_config(
            words, fail_with_unknown_args=True
        )
    if "method" in case:
        return {name: getattr(training, name, None) for name in LEARNT}
    adapters = get_peft_config(model)
    base = get_quantization_config(model) if model.load_in_4bit else None
    return {
        "model": model.model_name_or_path,
        "length": training.max_length,
        "mbs": training.per_device_train_batch_size,
        "steps": training.gradient_accumulation_steps,
        "recompute": bool(
            training.activation_checkpointing
            or training.gradient_checkpointing
            or (training.fsdp_config or {}).get("activation_checkpointing")
        ),
        "rank": adapters.r,
        "dropout": adapters.lora_dropout,
        "targets": sorted(adapters.target_modules)
        if not isinstance(adapters.target_modules, str)
        else adapters.target_modules,
        "base": base and [base.bnb_4bit_quant_type, base.bnb_4bit_use_double_quant],
    }


def answer(case):
    """Return the answer to a case."""
    try:
        return {"accepted": checked(case)}
    except (AttributeError, NameError):
        raise  # a mistake of this file
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the framework raises is its refusal
        return {"refused": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    with ANSWERS:
        json.dump([answer(case) for case in json.load(sys.stdin)], ANSWERS)
