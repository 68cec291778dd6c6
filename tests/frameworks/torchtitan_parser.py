"""Ask torchtitan's own ConfigManager and ParallelDims about cases on standard input.

A case has ``world_size`` and ``arguments``. The answer to each is what its configuration, mesh and stages
are, or why it refuses; without arguments it is what the configuration function ``config`` sets. The Python
that runs this has torchtitan.
"""

import dataclasses
import json
import os
import sys

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

# PyTorch looks for triton itself, and takes a stand-in for the real one.
import torch._functorch.partitioners  # noqa: E402
import torch._inductor.utils  # noqa: E402, F401
from absent_modules import stand_in  # noqa: E402
from torch.utils._triton import has_triton_package  # noqa: E402

has_triton_package()
stand_in("triton")

from torch.distributed.pipelining.schedules import get_schedule_class  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.config.configs import CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa: E402
from torchtitan.distributed.fsdp import get_fsdp_reshard_after_forward_policy  # noqa: E402
from torchtitan.distributed.pipeline_parallel import (  # noqa: E402
    _generate_llm_fqn_per_model_part,
    _get_pipeline_metadata,
)

MODES = {SelectiveAC.Config: "selective", FullAC.Config: "full", type(None): "none"}
SECTIONS = {"training": TrainingConfig, "parallelism": ParallelismConfig, "compile": CompileConfig}


def stages(config, dims):
    """Return the modules of each virtual stage, as torchtitan divides the model."""
    count, layers, first, last = _get_pipeline_metadata(dims, config.parallelism, config.model_spec.model)
    named = config.parallelism.module_fqns_per_model_part
    return named or _generate_llm_fqn_per_model_part(count, layers, first, last)


def steps(config, dims):
    """Return the microbatches of a rank in a step; refused as the Trainer refuses it."""
    training, parallelism = config.training, config.parallelism
    ranks = dims.dp_replicate * dims.dp_shard
    if training.global_batch_size % (training.local_batch_size * ranks):
        raise ValueError("the global batch is no multiple of the local batches")
    passes = training.global_batch_size // (training.local_batch_size * ranks)
    if dims.pp == 1:
        return passes
    return passes * (training.local_batch_size // parallelism.pipeline_parallel_microbatch_size)


def parsed(case):
    """Return what torchtitan makes of arguments."""
    config = ConfigManager().parse_args(case["arguments"])
    parallelism, training = config.parallelism, config.training
    dims = ParallelDims.from_config(parallelism, case["world_size"])
    schedule = get_schedule_class(parallelism.pipeline_parallel_schedule).__name__ if dims.pp > 1 else None
    model = config.model_spec.model
    return {
        "degrees": [dims.tp, dims.pp, dims.cp, dims.ep, dims.dp_replicate, dims.dp_shard],
        "sequence_parallel": parallelism.enable_sequence_parallel,
        "reshard": get_fsdp_reshard_after_forward_policy(
            parallelism.fsdp_reshard_after_forward, dims.pp_enabled
        ),
        "schedule": schedule,
        "stages": stages(config, dims) if dims.pp > 1 else None,
        "steps": steps(config, dims),
        "sequence_length": training.seq_len,
        "formats": [training.dtype, training.mixed_precision_param],
        "recompute": MODES[type(config.activation_checkpoint)],
        "compiled": config.compile.enable,
        "captured": not training.disable_cuda_graphs,
        "model": [len(model.layers), model.dim, model.vocab_size, model.layers[0].attention.n_heads],
    }


def unlike(found, base, section):
    """Return the values of a section that differ from torchtitan's own defaults."""
    names = [field.name for field in dataclasses.fields(base)]
    return {f"{section}.{n}": getattr(found, n) for n in names if getattr(found, n) != getattr(base(), n)}


def function(case):
    """Return what a configuration function sets."""
    config = ConfigManager()._load_config(["--module", case["module"], "--config", case["config"]])[0]
    found = {"activation_checkpoint.mode": MODES[type(config.activation_checkpoint)]}
    for section, base in SECTIONS.items():
        found |= unlike(getattr(config, section), base, section)
    model = config.model_spec.model
    sizes = [len(model.layers), model.dim, model.vocab_size, model.layers[0].attention.n_heads]
    groups = [group.optimizer_name for group in config.optimizer.param_groups]
    defaults = {
        f"{s}.{f.name}": getattr(b(), f.name) for s, b in SECTIONS.items() for f in dataclasses.fields(b)
    }
    return {"values": found, "model": sizes, "optimizers": groups, "defaults": defaults}


def answer(case):
    """Return the answer to a case."""
    try:
        return {"accepted": parsed(case) if "arguments" in case else function(case)}
    except (AttributeError, NameError):
        raise  # a mistake of this file
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the framework raises is its refusal
        return {"refused": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    with ANSWERS:
        json.dump([answer(case) for case in json.load(sys.stdin)], ANSWERS)
