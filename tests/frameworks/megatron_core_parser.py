"""Ask Megatron-Core's own TransformerConfig about cases on standard input.

A case has the ``fields`` of TransformerConfig, and ``batch`` with the sizes of batches and the data-parallel
ranks. The answer to each is what the object has, with the layers that each virtual stage would build and the
microbatches of a step; or why it refuses. The Python that runs this has megatron-core and torch.
"""

import json
import os
import sys
import warnings

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
warnings.simplefilter("ignore")

import torch  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.transformer_block import get_num_layers_to_build  # noqa: E402

KEPT = (
    *("num_layers", "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "recompute_method"),
    *("recompute_granularity", "recompute_num_layers", "recompute_modules", "cpu_offloading_num_layers"),
)


def stages(config):
    """Return the layers of each virtual stage of each stage."""
    virtual = config.virtual_pipeline_model_parallel_size
    chunks = range(virtual) if virtual else [None]
    found = []
    for rank in range(config.pipeline_model_parallel_size):
        parallel_state.set_pipeline_model_parallel_rank(rank)
        found.append([get_num_layers_to_build(config, vp_stage=v, pp_rank=rank) for v in chunks])
    return found


def checked(case):
    """Return what Megatron-Core makes of a case."""
    # Without Transformer Engine, its transformer layers and fused kernels are not there.
    formats = {"bf16": True, "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16}
    config = TransformerConfig(transformer_impl="local", **formats, **case["fields"])
    batch = case["batch"]
    calculator = ConstantNumMicroBatchesCalculator(batch["global"], batch["micro"], batch["ranks"], False, 0)
    found = {name: getattr(config, name) for name in KEPT}
    return {**found, "stages": stages(config), "microbatches": calculator.get()}


def answer(case):
    """Return the answer to a case."""
    try:
        return {"accepted": checked(case)}
    except (AttributeError, NameError):
        raise  # a mistake of this file
    except Exception as error:  # noqa: BLE001 - whatever the framework raises is its refusal
        return {"refused": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    with ANSWERS:
        json.dump([answer(case) for case in json.load(sys.stdin)], ANSWERS)
