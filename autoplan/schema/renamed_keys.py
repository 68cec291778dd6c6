"""Former names of keys, with their names now: a file that still has one is told what it is called."""

from __future__ import annotations

from typing import Final

#: Keys of layouts, of ``search`` and of users' rules.
RENAMED_KEYS: Final = {"checkpoint": "recompute_num_layers", "shard": "dp_shard"}

#: Knobs of cost models; the name now depends on the group for those with several.
RENAMED_KNOBS: Final[dict[str, tuple[str, ...]]] = {
    "biases_apart": ("separate_bias_kernels",),
    "boundary_split": ("scatter_gather_tensors_in_pipeline",),
    "boundary_waits": ("p2p_blocking_sides",),
    "cast_bytes": ("autocast_bytes",),
    "checkpoint_blocks": ("recompute_several_layers",),
    "checkpoint_stops_early": ("checkpoint_early_stop",),
    "context": ("cuda_context", "context_parallel"),
    "embedding_gradient_whole": ("embedding_gradient_full_vocabulary",),
    "exchange": ("dispatch", "comm_type"),
    "experts_sharded_whole": ("experts_sharded_on_dim0",),
    "fused_rotation": ("fused_rope",),
    "gather_limit": ("max_live_parameters",),
    "gathered_inputs_kept": ("gathered_inputs_saved",),
    "gathers_into_lists": ("all_gather_into_list",),
    "grouped": ("grouped_gemm",),
    "head_gather_held": ("output_layer_gathered_twice",),
    "host_update": ("cpu_optimizer_bandwidth",),
    "hybrid": ("hybrid_sharding",),
    "interleaved": ("interleaved_p2p",),
    "kernels": ("routing_kernels",),
    "kernels_each": ("kernels_per_expert",),
    "messages": ("collectives_per_layer",),
    "norm_weights_apart": ("separate_norm_wgrad",),
    "offload": ("optimizer_offload",),
    "packed_qkv_kept": ("packed_qkv_saved",),
    "pipeline": ("p2p",),
    "plain": ("without_cp_ep",),
    "prefetched_layers": ("unsharded_layers",),
    "products_reduced_apart": ("dgrad_reduced_per_gemm",),
    "reduces_whole": ("all_reduce_under_zero",),
    "reserved_share": ("allocator_fragmentation",),
    "rows_kept": ("saved_tensors_per_routed_token",),
    "sequences_reordered": ("gather_reorder_copies",),
    "stays": ("resident_layers",),
    "stream": ("memory_bound",),
    "tensor": ("tp_comm",),
    "tensor_backward": ("tp_dgrad_reduce",),
    "vocabulary_multiple": ("make_vocab_size_divisible_by",),
    "waited_passes": ("host_sync_passes",),
    "waited_passes_sharded": ("host_sync_passes_zero",),
    "waits": ("no_prefetch",),
}
