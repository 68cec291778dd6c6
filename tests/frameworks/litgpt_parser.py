"""Ask LitGPT's own command line about cases on standard input.

The arguments are wheels, which are imported from and not installed: LitGPT, Lightning, jsonargparse and what
they import. A case has the ``words`` of a command, without ``litgpt`` itself. The answer to each is what
jsonargparse makes of them by the signature of the command, and LitGPT of its arguments; or why it refuses.
"""

import json
import os
import sys

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from absent_modules import stand_in  # noqa: E402

sys.path[1:1] = sys.argv[1:]
stand_in("litdata", "bitsandbytes")

from jsonargparse import ArgumentParser  # noqa: E402
from litgpt.config import Config  # noqa: E402
from litgpt.finetune.full import setup as finetune_full  # noqa: E402
from litgpt.finetune.lora import setup as finetune_lora  # noqa: E402
from litgpt.pretrain import setup as pretrain  # noqa: E402

COMMANDS = {"finetune_lora": finetune_lora, "finetune_full": finetune_full, "pretrain": pretrain}


def checked(case):
    """Return what LitGPT makes of a command."""
    command, model, *words = case["words"]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_function_arguments(COMMANDS[command], sub_configs=True)
    where = "--model_name" if command == "pretrain" else "--checkpoint_dir"
    found = parser.instantiate(parser.parse_args([where, model, *words]))
    train, ranks = found.train, found.devices * found.num_nodes
    return {
        "layers": Config.from_name(model.rpartition("/")[2]).n_layer,
        "devices": ranks,
        "mbs": train.micro_batch_size,
        "steps": train.gradient_accumulation_iters(found.devices, found.num_nodes),
        "batch": train.global_batch_size,
        "length": train.max_seq_length,
        "precision": found.precision,
        "quantize": found.get("quantize"),
        "rank": found.get("lora_r"),
        "dropout": found.get("lora_dropout"),
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
