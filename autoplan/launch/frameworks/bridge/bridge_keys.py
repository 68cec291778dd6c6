"""Keys of Megatron Bridge's ConfigContainer, and the arguments of Megatron-LM that they stand for.

Source: NVIDIA-NeMo/Megatron-Bridge 0.3.1, megatron/bridge/training/config.py, models/gpt_provider.py; their
fields are those of Megatron-Core's TransformerConfig, DistributedDataParallelConfig and OptimizerConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FLAGS", "FRACTIONS", "MIRRORED", "PRECISION_NAMES", "SWITCHES", "VALUES"]

#: Keys with a value, by argument.
VALUES: Final[Mapping[str, str]] = {
    "--num-layers": "model.num_layers",
    "--tensor-model-parallel-size": "model.tensor_model_parallel_size",
    "--pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
    "--num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "--decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
    "--pipeline-model-parallel-layout": "model.pipeline_model_parallel_layout",
    "--context-parallel-size": "model.context_parallel_size",
    "--cp-comm-type": "model.cp_comm_type",
    "--expert-model-parallel-size": "model.expert_model_parallel_size",
    "--expert-tensor-parallel-size": "model.expert_tensor_parallel_size",
    "--recompute-granularity": "model.recompute_granularity",
    "--recompute-method": "model.recompute_method",
    "--recompute-num-layers": "model.recompute_num_layers",
    "--recompute-modules": "model.recompute_modules",
    "--cpu-offloading-num-layers": "model.cpu_offloading_num_layers",
    "--seq-length": "model.seq_length",
    "--attention-dropout": "model.attention_dropout",
    "--hidden-dropout": "model.hidden_dropout",
    "--micro-batch-size": "train.micro_batch_size",
    "--global-batch-size": "train.global_batch_size",
    "--data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "--num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "--optimizer": "optimizer.optimizer",
    "--optimizer-offload-fraction": "optimizer.optimizer_offload_fraction",
    "--ckpt-format": "checkpoint.ckpt_format",
}
#: Keys that are true or false, by argument.
SWITCHES: Final[Mapping[str, str]] = {
    "--sequence-parallel": "model.sequence_parallel",
    "--account-for-embedding-in-pipeline-split": "model.account_for_embedding_in_pipeline_split",
    "--account-for-loss-in-pipeline-split": "model.account_for_loss_in_pipeline_split",
    "--use-tp-pp-dp-mapping": "dist.use_tp_pp_dp_mapping",
    "--use-megatron-fsdp": "ddp.use_megatron_fsdp",
    "--use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "--optimizer-cpu-offload": "optimizer.optimizer_cpu_offload",
    "--use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
    "--overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "--overlap-param-gather": "ddp.overlap_param_gather",
}
#: Arguments whose values are numbers between 0 and 1.
FRACTIONS: Final = frozenset({"--optimizer-offload-fraction", "--attention-dropout", "--hidden-dropout"})
FLAGS: Final[Mapping[str, str]] = {**VALUES, **SWITCHES}
#: Keys that have to say the same as another one.
MIRRORED: Final[Mapping[str, str]] = {
    "model.seq_length": "dataset.sequence_length",
    "ddp.use_megatron_fsdp": "dist.use_megatron_fsdp",
    "ddp.use_distributed_optimizer": "optimizer.use_distributed_optimizer",
}
#: Names of ``mixed_precision`` by our precision; without one, all is in single precision.
PRECISION_NAMES: Final[Mapping[str, str | None]] = {
    "fp32": None,
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
