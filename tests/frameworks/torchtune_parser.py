"""Ask torchtune's own parser of recipes about cases on standard input.

The first argument is the folder of torchtune's wheel, which is imported from and not installed. A case has
the ``words`` of ``tune run``, without those two. The answer to each is its config with the overrides merged,
whose components torchtune has bound to their arguments; or why it refuses.
"""

import json
import os
import sys

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from absent_modules import stand_in  # noqa: E402

sys.path.insert(1, sys.argv[1])
stand_in("torchao", "bitsandbytes", "blobfile", "tiktoken", "sentencepiece", "kagglehub")

from torchtune import config as tune_config  # noqa: E402
from torchtune._cli.run import Run  # noqa: E402
from torchtune._cli.tune import TuneCLIParser  # noqa: E402
from torchtune.config._parse import TuneRecipeArgumentParser  # noqa: E402
from torchtune.config._utils import _merge_yaml_and_cli_args  # noqa: E402

STARTED = []
# What the command would start, with the path of the config in its words.
Run._run_distributed = lambda _, args, is_builtin: STARTED.append((args, is_builtin))
Run._run_single_device = lambda _, args, is_builtin: STARTED.append((args, is_builtin))


def checked(case):
    """Return what torchtune makes of a command."""
    STARTED.clear()
    sys.argv = ["tune", "run", *case["words"]]
    parser = TuneCLIParser()
    parser.run(parser.parse_args())
    ((args, builtin),) = STARTED
    parsed = TuneRecipeArgumentParser().parse_known_args(args.recipe_args)
    found = _merge_yaml_and_cli_args(*parsed)
    tune_config.validate(found)
    devices = int(args.nnodes.rpartition(":")[2]) * int(args.nproc_per_node)
    sharded = "distributed" in args.recipe
    return {
        "builtin": builtin,
        "model": found.model._component_,
        "devices": devices,
        "mbs": found.batch_size,
        "steps": found.gradient_accumulation_steps,
        "length": found.tokenizer.max_seq_len,
        "precision": found.dtype,
        "recompute": found.enable_activation_checkpointing,
        "offload": found.enable_activation_offloading,
        "reshard": found.get("fsdp_reshard_after_forward") if sharded else None,
        "rank": found.model.get("lora_rank"),
        "dropout": found.model.get("lora_dropout"),
        "optimizer": found.optimizer._component_,
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
