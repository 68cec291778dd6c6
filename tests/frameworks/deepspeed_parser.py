"""Ask DeepSpeed's own DeepSpeedConfig about cases on standard input, under a group that is not there.

A case has ``world_size`` and the ``text`` of a JSON file. The answer to each is what its object has, or
why it refuses. The Python that runs this has deepspeed and torch.
"""

import json
import os
import sys

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import deepspeed.comm  # noqa: E402
import torch.distributed  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

# No process talks to another here: the operator for that, which DeepSpeed would compile, is not needed.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


class Ranks:
    """The part of a model-parallel unit that DeepSpeedConfig asks for."""

    def __init__(self, size):
        self.size = size

    def get_data_parallel_world_size(self):
        """Return the data-parallel ranks."""
        return self.size


def read(case):
    """Return the object that DeepSpeed makes of a case."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["world_size"])
    try:
        deepspeed.comm.comm.cdb = None
        deepspeed.comm.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
        document = json.loads(case["text"])
        tp = document.get("tensor_parallel", {}).get("autotp_size", 1)
        cp = document.get("sequence_parallel_size", 1)
        unit = Ranks(case["world_size"] // (tp * cp)) if tp > 1 else None
        return DeepSpeedConfig(document, unit)
    finally:
        torch.distributed.destroy_process_group()


def fields(found):
    """Return what an object of DeepSpeed has."""
    checkpointing, zero = found.activation_checkpointing_config, found.zero_config
    return {
        "batch": found.train_batch_size,
        "mbs": found.train_micro_batch_size_per_gpu,
        "steps": found.gradient_accumulation_steps,
        "dp": found.world_size,
        "tp": found.tensor_parallel_config.autotp_size,
        "zero": int(found.zero_optimization_stage),
        "offload": str(zero.offload_optimizer.device) if zero.offload_optimizer else None,
        "cpu_checkpointing": checkpointing.cpu_checkpointing,
        "bf16": found.bfloat16_config.enabled,
        "fp16": found.float16_config.enabled,
        "optimizer": found.optimizer_name,
        "gradients": found.grad_accum_dtype,
    }


def answer(case):
    """Return the answer to a case."""
    try:
        found = read(case)
    except Exception as error:  # noqa: BLE001 - whatever the framework raises is its refusal
        return {"refused": f"{type(error).__name__}: {error}"[:500]}
    return {"accepted": fields(found)}


if __name__ == "__main__":
    with ANSWERS:
        json.dump([answer(case) for case in json.load(sys.stdin)], ANSWERS)
