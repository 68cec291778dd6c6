"""Ask axolotl's own schema and mesh about cases on standard input.

The first argument is axolotl's wheel, which is imported from and not installed. A case has ``world_size`` and
the ``text`` of a YAML file. The answer to each is what the configuration and the degrees of its mesh are, or
why they are refused. The Python that runs this has torch, transformers and accelerate.
"""

import json
import os
import sys

# What the framework prints, from its import on, is no answer.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

sys.path.insert(0, sys.argv[1])

# They look for those packages themselves, and take a stand-in for the real one.
import transformers.modeling_flash_attention_utils  # noqa: E402, F401
import yaml  # noqa: E402
from absent_modules import stand_in  # noqa: E402

# Ring attention is a package of GPU kernels that the schema looks for.
stand_in("ring_flash_attn", "flash_attn")

from axolotl.utils.distributed import _get_parallel_config_kwargs  # noqa: E402
from axolotl.utils.schemas.config import AxolotlInputConfig  # noqa: E402
from axolotl.utils.schemas.fsdp import FSDPConfig  # noqa: E402

#: What a user adds to the keys that decide a layout.
ADDED = {"base_model": "some/model", "learning_rate": 1e-5, "datasets": [{"path": "own", "type": "alpaca"}]}


def checked(case):
    """Return what axolotl makes of a file."""
    found = AxolotlInputConfig(**{**ADDED, **yaml.safe_load(case["text"])})
    sharded = bool(found.fsdp or found.fsdp_config)
    sizes = _get_parallel_config_kwargs(
        case["world_size"],
        found.tensor_parallel_size,
        found.context_parallel_size,
        found.dp_shard_size,
        found.dp_replicate_size,
        sharded,
    )
    product = 1
    for size in sizes.values():
        product *= size
    if sizes and product != case["world_size"]:
        raise ValueError(f"{sizes} do not make {case['world_size']}")  # as ParallelismConfig says
    config = found.fsdp_config
    return {
        "mbs": found.micro_batch_size,
        "steps": found.gradient_accumulation_steps,
        "sequence_length": found.sequence_len,
        "formats": [found.bf16, found.fp16],
        "optimizer": found.optimizer,
        "recompute": found.gradient_checkpointing,
        "offload": found.activation_offloading,
        "sizes": sizes if sharded else None,
        "fsdp": [found.fsdp_version, config.reshard_after_forward] if config else None,
        "deepspeed": found.deepspeed,
        "adapters": [found.adapter, found.lora_r],
        "model": found.base_model,
        "method": found.rl and str(found.rl.value),
    }


def names():
    """Return all keys of the schema, and those of ``fsdp_config``."""
    keys = set(AxolotlInputConfig.model_fields)
    for field in AxolotlInputConfig.model_fields.values():
        keys |= {field.alias} if field.alias else set()
        alias = field.validation_alias
        keys |= set(getattr(alias, "choices", [alias])) if alias is not None else set()
    return [sorted(keys), sorted(FSDPConfig.model_fields)]


def answer(case):
    """Return the answer to a case; without one, the names of all keys."""
    if not case:
        return names()
    try:
        return {"accepted": checked(case)}
    except (AttributeError, NameError):
        raise  # a mistake of this file
    except Exception as error:  # noqa: BLE001 - whatever the framework raises is its refusal
        return {"refused": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    with ANSWERS:
        json.dump([answer(case) for case in json.load(sys.stdin)], ANSWERS)
