"""Names of the keys of DeepSpeed's JSON file, so that a misspelt one is found.

Source: DeepSpeed 0.19.8, ``deepspeed/runtime/config.py`` and ``runtime/zero/config.py``.
"""

from __future__ import annotations

from typing import Final

from autoplan.launch.frameworks.written_document import WrittenDocument

__all__ = ["check_key_names"]

_KEYS: Final = frozenset(
    {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        *("activation_checkpointing", "aio", "bf16", "bfloat16", "checkpoint", "comms_logger", "compile"),
        *("communication_data_type", "csv_monitor", "data_efficiency", "data_types", "dataloader_drop_last"),
        *("datastates_ckpt", "disable_allgather", "dump_state", "expert_parallel", "flops_profiler", "fp16"),
        *("gradient_allreduce_op", "gradient_clipping", "gradient_predivide_factor", "hybrid_engine"),
        *("log_level", "managed_gradient_accumulation", "memory_breakdown", "optimizer", "pipeline"),
        *("prescale_gradients", "scheduler", "seq_parallel_communication_data_type", "steps_per_print"),
        *("sequence_parallel_size", "tensor_parallel", "tensorboard", "timers", "torch_autocast", "wandb"),
        *("use_data_before_expert_parallelism", "vocabulary_size", "wall_clock_breakdown", "autotuning"),
        *("weight_quantization", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "comet"),
        *("zero_optimization", "amp", "compression_training", "elasticity", "sparse_attention"),
    }
)
_ZERO_KEYS: Final = frozenset(
    {
        *("allgather_bucket_size", "allgather_partitions", "compute_grad_norm", "contiguous_gradients"),
        *("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory", "elastic_checkpoint"),
        *("enable_sanity_checks", "ignore_unused_parameters", "leaf_module", "legacy_stage1"),
        *("load_from_fp32_weights", "log_trace_cache_warnings", "memory_efficient_linear"),
        *("offload_optimizer", "offload_param", "overlap_comm", "override_module_apply"),
        *("parameter_alignment", "pipeline_loading_checkpoint", "reduce_bucket_size", "reduce_scatter"),
        *("round_robin_gradients", "save_muon_momentum_buffer_in_memory", "stage", "zenflow"),
        *("stage3_allgather_sequential", "stage3_gather_16bit_weights_on_model_save"),
        *("stage3_gather_fp16_weights_on_model_save", "stage3_max_live_parameters"),
        *("stage3_max_reuse_distance", "stage3_model_persistence_threshold"),
        *("stage3_module_granularity_threshold", "stage3_param_persistence_threshold"),
        *("stage3_prefetch_bucket_size", "stage3_use_all_reduce_for_fetch_params", "sub_group_size"),
        *("use_multi_rank_bucket_allreduce", "zero_hpz_partition_size", "zero_quantized_gradients"),
        *("zero_quantized_nontrainable_weights", "zero_quantized_weights"),
        # Of versions before 0.19.
        *("mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"),
    }
)


def check_key_names(document: WrittenDocument) -> None:
    """Refuse keys that DeepSpeed refuses, and misspelt ones that it lets through."""
    document.check_names("", _KEYS, "DeepSpeed")
    document.check_names("zero_optimization", _ZERO_KEYS, "DeepSpeed", strict=True)
