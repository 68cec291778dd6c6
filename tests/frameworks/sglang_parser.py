"""Ask SGLang's own parser and ServerArgs about cases on standard input.

The first argument is a folder with the Python files of SGLang's wheel. A case has the ``words`` of
``sglang.launch_server`` and the ``config`` of the model, which stands in for its checkpoint. The answer to
each is what ServerArgs has after its own checks, or why they refuse. The Python that runs this has torch and
transformers; kernels are not there, and stand-ins are. What it asks of a device is answered here.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
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
os.environ.update(HF_HUB_OFFLINE="1")
stand_in(
    *("triton", "sgl_kernel", "tvm_ffi", "flashinfer", "flash_attn", "compressed_tensors", "pynvml"),
    *("IPython", "sentencepiece", "torchvision", "zmq", "pybase64", "orjson", "gguf"),
)
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 8
torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
torch.cuda.get_device_name = lambda *_, **__: "NVIDIA H100 80GB HBM3"
torch.cuda.mem_get_info = lambda *_, **__: (80 << 30, 80 << 30)
torch.version.cuda = "13.0"

# Kernels of reductions register classes in C++.
sys.modules["sglang.kernels.ops.communication.all_reduce"] = MagicMock()

from sglang.srt import server_args  # noqa: E402

server_args.get_device = lambda *_, **__: "cuda"
server_args.get_device_memory_capacity = lambda *_, **__: 81559

KEPT = (
    *("tp_size", "pp_size", "dp_size", "ep_size", "enable_dp_attention", "nnodes", "dtype", "quantization"),
    *("kv_cache_dtype", "max_running_requests", "chunked_prefill_size", "context_length", "page_size"),
    *("mem_fraction_static", "speculative_algorithm", "speculative_num_steps", "disaggregation_mode"),
    *("attn_cp_size", "dcp_size", "speculative_num_draft_tokens"),
)


def checked(case):
    """Return what SGLang makes of words."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
        found = server_args.prepare_server_args(
            ["--model-path", folder, "--skip-tokenizer-init", *case["words"]]
        )
        found.resolve_once()
        found.check_server_args()
    return {name: value for name, value in found.resolved_dict().items() if name in KEPT}


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
