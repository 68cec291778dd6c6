"""Ask Megatron Bridge's own ConfigContainer about cases on standard input.

The arguments are folders of the wheels of Megatron Bridge and of the megatron-core that it asks for, which
are imported from and not installed, under an older Python than theirs as well. A case has ``world_size``, the
``sizes`` of a model, and the ``text`` of a YAML file or ``arguments``. They override a recipe that sets much
else. The answer to each is what the container has after its own validation, with the layers that virtual
stages would build; or why it refuses. The Python that runs this has torch, hydra-core, omegaconf, six and
regex. Kernels of Transformer Engine are not there, and stand-ins are.
"""

import json
import os
import sys
import tempfile
import typing
import warnings

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
warnings.simplefilter("ignore")

if not hasattr(typing, "override"):
    import typing_extensions

    typing.override = typing_extensions.override

# PyTorch looks for triton itself, and takes a stand-in for the real one.
import torch._functorch.partitioners  # noqa: E402
import torch._inductor.utils  # noqa: E402
from absent_modules import stand_in  # noqa: E402
from torch.utils._triton import has_triton_package  # noqa: E402

has_triton_package()
stand_in("triton", "transformer_engine", "mamba_ssm", "causal_conv1d", "fla", "megatron.energon")

sys.path[1:1] = sys.argv[1:]

from megatron.bridge.models.gpt_provider import GPTModelProvider  # noqa: E402
from megatron.bridge.training import config as bridge_config  # noqa: E402
from megatron.bridge.training.mixed_precision import get_mixed_precision_config  # noqa: E402
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator  # noqa: E402
from megatron.core.transformer.transformer_block import get_num_layers_to_build  # noqa: E402


def recipe(sizes):
    """Return a recipe whose layout, recompute and batches an override has to undo."""
    model = GPTModelProvider(
        **{"num_layers": 48, "hidden_size": 4096, "num_attention_heads": 32, **sizes},
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=6,
        context_parallel_size=2,
        sequence_parallel=True,
        seq_length=8192,
        recompute_granularity="full",
        recompute_method="block",
        recompute_num_layers=3,
        pipeline_dtype=torch.bfloat16,
        transformer_impl="local",
        vocab_size=32000,
    )
    return bridge_config.ConfigContainer(
        model=model,
        train=bridge_config.TrainingConfig(train_iters=100, global_batch_size=32, micro_batch_size=2),
        optimizer=bridge_config.OptimizerConfig(optimizer="adam", lr=3e-4, use_distributed_optimizer=True),
        scheduler=bridge_config.SchedulerConfig(lr_warmup_iters=10),
        ddp=bridge_config.DistributedDataParallelConfig(use_distributed_optimizer=True),
        dataset=bridge_config.GPTDatasetConfig(
            random_seed=1,
            reset_attention_mask=False,
            reset_position_ids=False,
            eod_mask_loss=False,
            seq_length=8192,
        ),
        logger=bridge_config.LoggerConfig(),
        tokenizer=bridge_config.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=32000),
        checkpoint=bridge_config.CheckpointConfig(),
        mixed_precision="bf16_mixed",
    )


def overridden(case):
    """Return the container of a recipe with the overrides of a case."""
    if "arguments" in case:
        return process_config_with_overrides(recipe(case["sizes"]), cli_overrides=case["arguments"])
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(case["text"])
        file.flush()
        return process_config_with_overrides(recipe(case["sizes"]), config_filepath=file.name)


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
    """Return what Megatron Bridge makes of a case."""
    bridge_config.get_world_size_safe = lambda: case["world_size"]
    found = overridden(case)
    if isinstance(found.mixed_precision, str):
        found.mixed_precision = get_mixed_precision_config(found.mixed_precision)
    if found.mixed_precision is not None:
        found.mixed_precision.finalize()
        found.mixed_precision.setup(found.model, found.optimizer, found.ddp)
    found.validate()
    model, ddp, optimizer = found.model, found.ddp, found.optimizer
    batches = (found.train.global_batch_size, found.train.micro_batch_size, found.data_parallel_size)
    return {
        "degrees": [
            model.tensor_model_parallel_size,
            model.pipeline_model_parallel_size,
            model.context_parallel_size,
            model.expert_model_parallel_size,
            found.data_parallel_size,
        ],
        "etp": model.expert_tensor_parallel_size,
        "sequence_parallel": model.sequence_parallel,
        "stages": stages(model),
        "microbatches": ConstantNumMicroBatchesCalculator(*batches, False, 0).get(),
        "recompute": [model.recompute_granularity, model.recompute_method, model.recompute_num_layers],
        "sharding": [ddp.use_distributed_optimizer, ddp.use_megatron_fsdp],
        "strategy": ddp.data_parallel_sharding_strategy,
        "instances": ddp.num_distributed_optimizer_instances,
        "dropout": [model.attention_dropout, model.hidden_dropout],
        "offload": [optimizer.optimizer_cpu_offload, model.cpu_offloading_num_layers],
        "formats": [model.bf16, model.fp16, model.fp8],
        "gradients": ddp.grad_reduce_in_fp32,
        "optimizer": optimizer.optimizer,
        "sequence_length": [model.seq_length, found.dataset.seq_length],
    }


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
