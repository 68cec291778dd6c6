"""Ask transformers' own HfArgumentParser and TrainingArguments about cases on standard input.

A case has ``world_size``, and the ``text`` of a JSON file or ``arguments``. The answer to each is what the
arguments and the plugins of accelerate that they make have, or why they refuse. The Python that runs this has
transformers and accelerate, and deepspeed for cases of it.
"""

import dataclasses
import json
import os
import sys
import tempfile

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import deepspeed.comm  # noqa: E402
import torch.distributed  # noqa: E402
from accelerate.utils import FullyShardedDataParallelPlugin  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers import HfArgumentParser, TrainingArguments  # noqa: E402

CLEAN = dict(os.environ)
# No process talks to another here: the operator for that, which DeepSpeed would compile, is not needed.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
#: This machine has no device, and no group of processes.
HERE = {"use_cpu": True, "output_dir": tempfile.gettempdir(), "report_to": "none"}


def parsed(case):
    """Return the TrainingArguments of a case, whose number of processes is that of the case."""
    TrainingArguments.world_size = property(lambda _: case["world_size"])
    parser = HfArgumentParser(TrainingArguments)
    if "text" in case:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(json.loads(case["text"]) | HERE, file)
            file.flush()
            return parser.parse_json_file(file.name)[0]
    here = [word for key, value in HERE.items() for word in (f"--{key}", str(value))]
    return parser.parse_args_into_dataclasses([*case["arguments"], *here])[0]


def sharded(found):
    """Return what the plugin of FSDP has."""
    plugin = FullyShardedDataParallelPlugin(**found.fsdp_plugin_args)
    return {
        "version": plugin.fsdp_version,
        "reshard": plugin.reshard_after_forward,
        "recompute": plugin.activation_checkpointing,
    }


def zero(found, world_size):
    """Return what DeepSpeed makes of its section; mismatches are refused, as when training starts."""
    config = found.hf_deepspeed_config
    if config.mismatches:
        raise ValueError(f"deepspeed and TrainingArguments differ: {config.mismatches}")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        deepspeed.comm.comm.cdb = None
        deepspeed.comm.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
        own = DeepSpeedConfig(config.config)
    finally:
        torch.distributed.destroy_process_group()
    offload = own.zero_config.offload_optimizer
    return {
        "stage": int(own.zero_optimization_stage),
        "batch": own.train_batch_size,
        "offload": str(offload.device) if offload else None,
        "optimizer": own.optimizer_name,
    }


def checked(case):
    """Return what the arguments of a case have."""
    found = parsed(case)
    kwargs = found.activation_checkpointing_kwargs or {}
    answer = {
        "mbs": found.per_device_train_batch_size,
        "steps": found.gradient_accumulation_steps,
        "precision": found.mixed_precision,
        "optim": str(found.optim.value),
        "recompute": found.activation_checkpointing,
        "offload": bool(kwargs.get("offload")),
        "compiled": found.torch_compile,
    }
    if found.fsdp:
        answer["fsdp"] = sharded(found)
    if found.deepspeed:
        answer["deepspeed"] = zero(found, case["world_size"])
    return answer


def answer(case):
    """Return the answer to a case; without one, the names of all fields."""
    if not case:
        return sorted(field.name for field in dataclasses.fields(TrainingArguments))
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
