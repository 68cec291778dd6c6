"""Functions of torchtitan that make a configuration: their models, and values unlike torchtitan's defaults.

They are read from ``torchtitan/models/*/config_registry.py`` of the version that TARGET names, and
tests/frameworks asks the package itself for them. Those whose converters quantize the model are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["CONFIG_FUNCTIONS", "DEFAULTS", "ConfigFunction", "function_of"]


@dataclass(frozen=True, slots=True)
class ConfigFunction:
    """A function of ``--config`` in a ``--module``.

    ``models`` have equal sizes, and the first is its own; ``values`` are those by dotted path that differ
    from DEFAULTS.
    """

    module: str
    models: tuple[str, ...]
    values: Mapping[str, Any] = field(default_factory=dict)


#: What holds for a configuration that says nothing else.
DEFAULTS: Final[Mapping[str, Any]] = {
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.enable_sequence_parallel": True,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.pipeline_parallel_first_stage_less_layers": 1,
    "parallelism.pipeline_parallel_last_stage_less_layers": 1,
    "parallelism.pipeline_parallel_layers_per_stage": None,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.context_parallel_degree": 1,
    "parallelism.expert_parallel_degree": 1,
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.seq_len": 2048,
    "training.enable_cpu_offload": False,
    "training.disable_cuda_graphs": False,
    "training.dtype": "float32",
    "training.mixed_precision_param": "bfloat16",
    "compile.enable": False,
}
_LOSS_COMPILED: Final = {
    "training.disable_cuda_graphs": True,
    "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
    "compile.enable": True,
    "compile.components": ["loss"],
}


def _values(batch: int, length: int, recompute: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "training.local_batch_size": batch,
        "training.seq_len": length,
        "activation_checkpoint.mode": recompute,
        **more,
    }


CONFIG_FUNCTIONS: Final[Mapping[str, ConfigFunction]] = {
    "llama3_8b": ConfigFunction("llama3", ("llama3.1-8b", "llama3-8b"), _values(1, 8192, "selective")),
    "llama3_70b": ConfigFunction(
        "llama3",
        ("llama3.1-70b", "llama3-70b"),
        _values(8, 8192, "full", **{"parallelism.tensor_parallel_degree": 8}),
    ),
    "qwen3_0_6b": ConfigFunction("qwen3", ("qwen3-0.6b",), _values(4, 4096, "selective")),
    "qwen3_1_7b": ConfigFunction("qwen3", ("qwen3-1.7b",), _values(4, 4096, "selective")),
    "qwen3_14b": ConfigFunction("qwen3", ("qwen3-14b",), _values(4, 4096, "full")),
    "qwen3_32b": ConfigFunction("qwen3", ("qwen3-32b",), _values(2, 4096, "full")),
    "qwen3_30b_a3b": ConfigFunction("qwen3", ("qwen3-30b-a3b",), _values(2, 4096, "full")),
    "deepseek_v3_16b": ConfigFunction(
        "deepseek_v3",
        ("deepseek-v2-lite",),
        _values(4, 4096, "selective", **_LOSS_COMPILED, **{"parallelism.expert_parallel_degree": 8}),
    ),
    "deepseek_v3_671b": ConfigFunction(
        "deepseek_v3",
        ("deepseek-v3",),
        _values(4, 4096, "selective", **_LOSS_COMPILED, **{"parallelism.expert_parallel_degree": 2}),
    ),
    "gpt_oss_20b": ConfigFunction("gpt_oss", ("gpt-oss-20b",), _values(1, 8192, "full")),
    "gpt_oss_120b": ConfigFunction("gpt_oss", ("gpt-oss-120b",), _values(1, 8192, "full")),
}


def function_of(model: str) -> tuple[str, str] | None:
    """Return module and function of a model of the catalogue; None where torchtitan has none.

    >>> function_of("llama3-8b"), function_of("gpt2")
    (('llama3', 'llama3_8b'), None)
    """
    return next(
        ((function.module, name) for name, function in CONFIG_FUNCTIONS.items() if model in function.models),
        None,
    )
