"""Ask vLLM's own parser and engine configuration about cases on standard input.

The first argument is a folder with the Python files of vLLM's wheel. A case has the ``words`` of ``vllm
serve``, without the program, and the ``config`` of the model, which stands in for its checkpoint. The answer
to each is what VllmConfig has, or why it is refused. The Python that runs this has torch, transformers and
the small packages that the parser imports; kernels are not there, and stand-ins are. What it asks of a device
is answered here.
"""

import dataclasses
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

# They look for triton themselves, and take a stand-in for the real one.
import torch  # noqa: E402
import torch._functorch.partitioners  # noqa: E402
import torch._inductor.utils  # noqa: E402
import transformers  # noqa: E402, F401
from absent_modules import stand_in  # noqa: E402
from torch.utils._triton import has_triton_package  # noqa: E402

has_triton_package()
sys.path.insert(0, sys.argv[1])
os.environ.update(HF_HUB_OFFLINE="1", VLLM_TARGET_DEVICE="cuda")
KERNELS = (
    *("_C", "_C_stable_libtorch", "_moe_C", "vllm_flash_attn", "vllm_flash_attn.flash_attn_interface"),
    "model_executor.layers.mamba.mamba_mixer2",
)
for kernels in KERNELS:
    sys.modules[f"vllm.{kernels}"] = MagicMock()
# What kernels say that they support.
torch.ops._C = SimpleNamespace(
    cutlass_scaled_mm_supports_fp8=lambda _: True,
    cutlass_scaled_mm_supports_block_fp8=lambda _: True,
    cutlass_group_gemm_supported=lambda _: True,
    cutlass_scaled_mm_supports_fp4=lambda _: False,
)
stand_in(
    *("triton", "flashinfer", "flash_attn", "xgrammar", "llguidance", "compressed_tensors"),
    *("openai", "openai_harmony", "fastapi", "uvloop", "partial_json_parser", "prometheus_client", "zmq"),
    *("cachetools", "blake3", "cbor2", "pybase64", "orjson"),
)


# PyTorch asks whether functions of custom operators are kernels of these classes.
importlib.import_module("triton.runtime.jit").JITFunction = type("JITFunction", (), {})
importlib.import_module("triton.runtime.autotuner").Autotuner = type("Autotuner", (), {})

import vllm.platforms  # noqa: E402
from vllm.platforms import cuda  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402


class Device(cuda.NonNvmlCudaPlatform):
    """One of eight H100."""

    @classmethod
    def get_device_capability(cls, _device=0):
        """Return the generation."""
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_name(cls, _device=0):
        """Return the name."""
        return "NVIDIA H100 80GB HBM3"

    @classmethod
    def get_device_total_memory(cls, _device=0):
        """Return the bytes of a device."""
        return 80 << 30

    @classmethod
    def device_count(cls):
        """Return the devices of a node."""
        return 8

    @classmethod
    def is_fully_connected(cls, _devices):
        """Return whether all devices are connected."""
        return True


vllm.platforms._current_platform = Device()
torch.cuda.device_count = torch.accelerator.device_count = Device.device_count

from vllm.config import VllmConfig  # noqa: E402
from vllm.config.compilation import PassConfig  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402


def decoder(model):
    """Return what a decoder says of itself: its class is not imported, as its kernels are not there."""
    yes = {"is_text_generation_model", "supports_pp", "supports_lora"}
    found = {
        "architecture": model.class_name,
        "attn_type": "decoder",
        "default_seq_pooling_type": "LAST",
        "default_tok_pooling_type": "ALL",
        "score_type": "bi-encoder",
        "supported_video_pruning_methods": (),
    }
    flags = {field.name: field.name in yes for field in dataclasses.fields(registry._ModelInfo)}
    return registry._ModelInfo(**(flags | found))


registry._LazyRegisteredModel.inspect_model_cls = decoder
# What else kernels are asked for while a configuration is made.
VllmConfig._get_quantization_config = staticmethod(lambda *_: None)
PassConfig.flashinfer_max_size = lambda *_: None


def checked(case):
    """Return what vLLM makes of words."""
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
        words = ["--model", folder, "--skip-tokenizer-init", *case["words"]]
        config = AsyncEngineArgs.from_cli_args(parser.parse_args(words)).create_engine_config()
    parallel, model, scheduler, cache = (
        config.parallel_config,
        config.model_config,
        config.scheduler_config,
        config.cache_config,
    )
    drafts, transfer = config.speculative_config, config.kv_transfer_config
    return {
        "tp": parallel.tensor_parallel_size,
        "pp": parallel.pipeline_parallel_size,
        "adp": parallel.data_parallel_size,
        "dcp": parallel.decode_context_parallel_size,
        "experts_split": parallel.enable_expert_parallel,
        "devices": parallel.world_size_across_dp,
        "seqs": scheduler.max_num_seqs,
        "tokens": scheduler.max_num_batched_tokens,
        "longest": model.max_model_len,
        "dtype": str(model.dtype),
        "quantization": model.quantization,
        "kv": cache.cache_dtype,
        "block": cache.block_size,
        "memory": cache.gpu_memory_utilization,
        "spec": drafts.num_speculative_tokens if drafts else 0,
        "role": transfer.kv_role if transfer else None,
        "connector": transfer.kv_connector if transfer else None,
    }


def answer(case):
    """Return the answer to a case."""
    try:
        return {"accepted": checked(case)}
    except (AttributeError, NameError):
        raise  # a mistake of this file
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the framework raises is its refusal
        return {"refused": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    with ANSWERS:
        json.dump([answer(case) for case in json.load(sys.stdin)], ANSWERS)
