"""Ask accelerate's own loader, launcher and plugins about cases on standard input.

A case has the ``text`` of a YAML file. The answer to each is the environment that the launcher would give to
every process, and what the plugins make of it; or why the file is refused. The Python that runs this has
accelerate.
"""

import json
import os
import sys
import tempfile

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from accelerate.commands.launch import _validate_launch_command, launch_command_parser  # noqa: E402
from accelerate.parallelism_config import ParallelismConfig  # noqa: E402
from accelerate.utils import (  # noqa: E402
    DeepSpeedPlugin,
    FullyShardedDataParallelPlugin,
    MegatronLMPlugin,
)
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env  # noqa: E402

CLEAN = dict(os.environ)


def launched(text):
    """Return the arguments that the launcher has with a file, and the environment of its processes."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        words = ["--config_file", file.name, "train.py"]
        arguments, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(words))
        if arguments.use_deepspeed:
            # As the launcher itself has it, before it starts processes.
            keys = [*defaults.deepspeed_config, "mixed_precision"]
            arguments.deepspeed_fields_from_accelerate_config = ",".join(keys)
            _, environment = prepare_deepspeed_cmd_env(arguments)
        else:
            environment = prepare_multi_gpu_env(arguments)
    return arguments, environment


def sizes():
    """Return the degrees of the mesh, whose product has to be the number of processes."""
    found = ParallelismConfig()
    names = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "total_size")
    return {name: getattr(found, name) for name in names}


def fsdp():
    """Return what the plugin of FSDP has."""
    found = FullyShardedDataParallelPlugin()
    return {
        "version": found.fsdp_version,
        "reshard": found.reshard_after_forward,
        "recompute": found.activation_checkpointing,
        "offload": found.activation_checkpointing_offload,
    }


def deepspeed():
    """Return what the plugin of DeepSpeed has."""
    found = DeepSpeedPlugin()
    return {
        "stage": found.zero_stage,
        "steps": int(found.gradient_accumulation_steps),
        "offload": found.offload_optimizer_device,
    }


def checked(text):
    """Return what accelerate makes of a file."""
    arguments, environment = launched(text)
    os.environ.clear()
    os.environ.update({**CLEAN, **environment})
    found = {"processes": arguments.num_processes, "precision": arguments.mixed_precision}
    if arguments.use_parallelism_config:
        found["sizes"] = sizes()
        if found["sizes"]["total_size"] != arguments.num_processes:
            raise ValueError("total_size is not num_processes")  # as Accelerator says when it starts
    if arguments.use_fsdp:
        found["fsdp"] = fsdp()
    if arguments.use_deepspeed:
        found["deepspeed"] = deepspeed()
    if arguments.use_megatron_lm:
        found["megatron"] = {
            key: value
            for key, value in MegatronLMPlugin().megatron_lm_default_args.items()
            if isinstance(value, bool | int | str)
        }
    return found


def answer(case):
    """Return the answer to a case."""
    try:
        return {"accepted": checked(case["text"])}
    except (AttributeError, NameError):
        raise  # a mistake of this file
    except Exception as error:  # noqa: BLE001 - whatever the framework raises is its refusal
        return {"refused": f"{type(error).__name__}: {error}"[:500]}
    finally:
        os.environ.clear()
        os.environ.update(CLEAN)


if __name__ == "__main__":
    with ANSWERS:
        json.dump([answer(case) for case in json.load(sys.stdin)], ANSWERS)
