"""Run programs of cases on standard input with Unsloth's own signatures and TRL's own SFTConfig.

The arguments are folders of the wheels of Unsloth and TRL, which are imported from and not installed. A case
has the ``text`` of a program. Unsloth itself is not imported: it starts a device. The answer to each is what
its calls are bound to, and what SFTConfig has; or why they refuse.
"""

import ast
import inspect
import json
import os
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

sys.path.insert(1, sys.argv[2])

from trl import SFTConfig  # noqa: E402


def signature(file, owner, name):
    """Return the arguments by name of a function of a class, read from its source."""
    classes = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef))
    body = next(node.body for node in classes if node.name == owner)
    found = next(node.args for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    names = [argument.arg for argument in [*found.args, *found.kwonlyargs]]
    # Whatever else is passed on to transformers counts as unknown.
    return inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in names]
    )


MODELS = Path(sys.argv[1], "unsloth", "models")
LOADED = signature(MODELS / "loader.py", "FastLanguageModel", "from_pretrained")
ADAPTED = signature(MODELS / "llama.py", "FastLlamaModel", "get_peft_model")


def checked(case):
    """Return what a program calls."""
    calls = {}

    def record(name, bound):
        def called(*values, **named):
            bound.bind(**named) if bound is not None else None
            calls[name] = (values, named)
            return ("model", "tokenizer") if name == "model" else MagicMock()

        return called

    fake = types.ModuleType("unsloth")
    fake.FastLanguageModel = types.SimpleNamespace(
        from_pretrained=record("model", LOADED),
        get_peft_model=lambda model, **named: record("adapters", ADAPTED)(model=model, **named),
    )
    trl, datasets = types.ModuleType("trl"), types.ModuleType("datasets")
    # This machine has no device.
    trl.SFTConfig = lambda **named: SFTConfig(**named, use_cpu=True, report_to="none")
    trl.SFTTrainer, datasets.load_dataset = record("trainer", None), record("data", None)
    before = {name: sys.modules.get(name) for name in ("unsloth", "trl", "datasets")}
    sys.modules.update(unsloth=fake, trl=trl, datasets=datasets)
    sys.argv = ["unsloth_train.py", "data"]
    try:
        exec(compile(case["text"], "unsloth_train.py", "exec"), {})  # noqa: S102 - the emitted program
    finally:
        sys.modules.update({name: module for name, module in before.items() if module is not None})
    model, adapters = calls["model"][1], calls.get("adapters", ((), {}))[1]
    training = calls["trainer"][1]["args"]
    return {
        "model": model["model_name"],
        "length": [model["max_seq_length"], training.max_length],
        "base": [model["load_in_4bit"], model["load_in_8bit"], model["full_finetuning"]],
        "checkpointing": (adapters or model)["use_gradient_checkpointing"],
        "mbs": training.per_device_train_batch_size,
        "steps": training.gradient_accumulation_steps,
        "formats": [training.bf16, training.fp16],
        "optim": str(training.optim.value),
        "rank": adapters.get("r"),
        "dropout": adapters.get("lora_dropout"),
        "targets": adapters.get("target_modules"),
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
