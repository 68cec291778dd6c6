"""Frameworks' own programs, what each is asked about a plan, and its answer in the words of a layout."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.frameworks.framework_python import asked, has_module, installed_version, unpacked, wheel
from tests.support.launch_shapes import command

__all__ = ["PROGRAMS", "Program", "expected"]

HERE = Path(__file__).parent
STRATEGIES = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}


@dataclass(frozen=True)
class Program:
    """A program that takes what is emitted for ``target``, and how it is asked.

    ``wheels`` are the names and versions of those that its script imports from, ``module`` what the Python of
    the frameworks has to have. ``case`` makes a case of a run and what is emitted, ``values`` the words of a
    layout of an answer. ``plans`` are those that it is for: all but ``others`` where it is None.
    """

    title: str
    target: str
    script: str
    module: str
    case: Callable
    values: Callable
    wheels: tuple = ()
    package: str = ""
    plans: tuple | None = None
    others: tuple = ()

    @property
    def there(self):
        """Whether the program can be asked."""
        return has_module(self.module) and all(wheel(*names) for names in self.wheels)

    @property
    def version(self):
        """The version that answers."""
        if self.package:
            return installed_version(self.package)
        return Path(wheel(*self.wheels[0])).name.split("-")[1]

    def takes(self, plan):
        """Return whether the program is for a plan of its target."""
        return plan not in self.others and (self.plans is None or plan in self.plans)

    def answers(self, cases):
        """Return what the program says of cases."""
        return asked(HERE / self.script, cases, *(unpacked(*names) for names in self.wheels))


def expected(run):
    """Return what a program has to have of a run; each program has a part of it."""
    layout, job = run.layout, run.job
    shard = layout.dp_shard or layout.dp * layout.cp
    return {
        **{name: getattr(layout, name) for name in ("tp", "pp", "cp", "dp", "ep", "etp", "vpp", "devices")},
        "sp": layout.sequence_parallel,
        "mbs": layout.microbatch,
        "microbatches": job.workload.global_batch_size // (layout.dp * layout.microbatch),
        "batch": job.workload.global_batch_size,
        "length": job.workload.sequence_length,
        "stages": list(layout.layers),
        "zero": layout.zero,
        "groups": layout.dp * layout.cp // shard,
        "precision": job.precision,
        "recompute": layout.mode,
        "optimizer offload": layout.optimizer_offload,
        "activation offload": layout.activation_offload,
        "dropout": 0.0,
        "rank": job.adapters.rank if job.adapters else None,
        "adapter dropout": job.adapters.dropout if job.adapters else None,
    }


def text_case(run, emission):
    """Return the case of a file."""
    return {"world_size": run.layout.devices, "text": emission.files[0].text}


def word_case(run, emission):
    """Return the case of arguments."""
    found = {"world_size": run.layout.devices, "arguments": list(emission.arguments)}
    return found | {"environment": dict(emission.environment)}


def command_case(*program):
    """Return what makes the case of a script: the words behind those of the ``program``."""

    def case(run, emission):
        del run
        words = command(emission.files[0].text)
        assert words[: len(program)] == list(program)
        return {"words": words[len(program) :]}

    return case


def bridge_case(run, emission):
    """Return the case of overrides, with the sizes that a recipe of the model has."""
    model = run.job.model
    experts = {"num_moe_experts": model.moe.experts} if model.moe else {}
    sizes = {"num_attention_heads": model.heads, "hidden_size": model.hidden_size, **experts}
    return {**text_case(run, emission), "sizes": {**sizes, "add_bias_linear": model.bias.mlp}}


def precision(*, bf16, fp16=False, fp8=None):
    """Return the precision of the formats of a program."""
    return "fp8" if fp8 else "bf16" if bf16 else "fp16" if fp16 else "fp32"


def one(values):
    """Return the value that all of ``values`` are."""
    (value,) = set(values)
    return value


def megatron(found):
    """Return what Megatron-LM's arguments and TransformerConfig have."""
    plain = ("tp", "pp", "cp", "dp", "ep", "etp", "vpp", "mbs", "sp", "stages")
    sharded = STRATEGIES.get(found["fsdp"], int(found["distributed_optimizer"]))
    return {name: found[name] for name in plain} | {
        "batch": found["global_batch_size"],
        "length": found["sequence_length"],
        "zero": sharded,
        "groups": found["instances"],
        "precision": precision(bf16=found["bf16"], fp16=found["fp16"], fp8=found["fp8"]),
        "recompute": found["recompute"][0] or "none",
        "optimizer offload": found["optimizer_offload"],
        "activation offload": bool(found["offloaded_layers"]),
        "dropout": one(found["dropout"]),
    }


def bridge(found):
    """Return what Megatron Bridge's ConfigContainer has."""
    distributed, fsdp = found["sharding"]
    bf16, fp16, fp8 = found["formats"]
    return {
        **dict(zip(("tp", "pp", "cp", "ep", "dp"), found["degrees"], strict=True)),
        "etp": found["etp"],
        "vpp": one(len(stage) for stage in found["stages"]),
        "stages": [sum(stage) for stage in found["stages"]],
        "sp": found["sequence_parallel"],
        "microbatches": found["microbatches"],
        "length": one(found["sequence_length"]),
        "zero": STRATEGIES[found["strategy"]] if fsdp else int(distributed),
        "groups": found["instances"],
        "precision": precision(bf16=bf16, fp16=fp16, fp8=fp8),
        "recompute": found["recompute"][0] or "none",
        "optimizer offload": found["offload"][0],
        "activation offload": bool(found["offload"][1]),
        "dropout": one(found["dropout"]),
    }


def deepspeed(found):
    """Return what DeepSpeedConfig has."""
    plain = ("batch", "mbs", "zero")
    return {name: found[name] for name in plain} | {
        "microbatches": found["steps"],
        "tp": max(1, found["tp"]),
        "precision": precision(bf16=found["bf16"], fp16=found["fp16"]),
        "optimizer offload": found["offload"] == "cpu",
    }


def accelerate(found):
    """Return what accelerate's launcher and plugins have."""
    values = {"devices": found["processes"], "precision": found["precision"]}
    if "sizes" in found:
        sizes = found["sizes"]
        values |= {"tp": sizes["tp_size"], "cp": sizes["cp_size"], "groups": sizes["dp_replicate_size"]}
        values["dp"] = sizes["dp_replicate_size"] * sizes["dp_shard_size"]
    if "fsdp" in found:
        fsdp = found["fsdp"]
        values |= {"zero": 3 if fsdp["reshard"] else 2, "recompute": "full" if fsdp["recompute"] else "none"}
        values["activation offload"] = fsdp["offload"]
    return values


def torchtitan(found):
    """Return what torchtitan's configuration, mesh and stages have."""
    tp, pp, cp, ep, replicate, shard = found["degrees"]
    values = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": replicate * shard, "groups": replicate}
    if shard * cp > 1:
        values["zero"] = 3 if found["reshard"] else 2
    if found["stages"]:
        layers = [sum(name.startswith("layers.") for name in part) for part in found["stages"]]
        values["stages"] = [sum(layers[stage::pp]) for stage in range(pp)]
        values["vpp"] = len(layers) // pp
    return values | {
        "microbatches": found["steps"],
        "length": found["sequence_length"],
        "recompute": found["recompute"],
        "precision": {"bfloat16": "bf16", "float16": "fp16"}[found["formats"][1]],
    }


def steps(found):
    """Return the microbatches that programs of Hugging Face have."""
    return {"mbs": found["mbs"], "microbatches": found["steps"]}


def trainer(found):
    """Return what TrainingArguments and the plugins that follow have."""
    recompute = found["recompute"] or found.get("fsdp", {}).get("recompute", False)
    sharded = {"zero": 3 if found["fsdp"]["reshard"] else 2} if "fsdp" in found else {"zero": 0}
    return {
        **steps(found),
        **sharded,
        "precision": found["precision"],
        "recompute": "full" if recompute else "none",
        "activation offload": found["offload"],
    }


def trl(found):
    """Return what TRL's arguments have."""
    return {
        **steps(found),
        "length": found["length"],
        "recompute": "full" if found["recompute"] else "none",
        "rank": found["rank"],
        "adapter dropout": found["dropout"],
    }


def axolotl(found):
    """Return what axolotl's configuration and mesh have."""
    bf16, fp16 = found["formats"]
    sizes = found["sizes"] or {}
    reshard = found["fsdp"] and found["fsdp"][1]
    return {
        **steps(found),
        "length": found["sequence_length"],
        "precision": precision(bf16=bf16, fp16=fp16),
        "recompute": "full" if found["recompute"] else "none",
        "activation offload": bool(found["offload"]),
        "zero": (3 if reshard else 2) if found["fsdp"] else 0,
        "rank": found["adapters"][1],
        **({"tp": sizes.get("tp_size", 1), "cp": sizes.get("cp_size", 1)} if found["fsdp"] else {}),
        **({"groups": sizes.get("dp_replicate_size", 1)} if found["fsdp"] else {}),
    }


def llama_factory(found):
    """Return what LLaMA-Factory's arguments have."""
    bf16, fp16, _ = found["formats"]
    kind, rank, _ = found["adapters"]
    return {
        **steps(found),
        "length": found["sequence_length"],
        "precision": precision(bf16=bf16, fp16=fp16),
        "recompute": "full" if found["recompute"] else "none",
        "zero": (3 if found["fsdp"][1] else 2) if found["fsdp"] else 0,
        "rank": rank if kind == "lora" else None,
    }


def torchtune(found):
    """Return what torchtune's config has."""
    reshard = found["reshard"]
    return {
        **steps(found),
        **{name: found[name] for name in ("devices", "length", "precision", "rank")},
        "adapter dropout": found["dropout"],
        "recompute": "full" if found["recompute"] else "none",
        "activation offload": found["offload"],
        "zero": 0 if reshard is None else 3 if reshard else 2,
    }


def unsloth(found):
    """Return what the calls of Unsloth and SFTConfig have."""
    bf16, fp16 = found["formats"]
    return {
        **steps(found),
        "length": one(found["length"]),
        "precision": precision(bf16=bf16, fp16=fp16),
        "recompute": "full" if found["checkpointing"] else "none",
        "activation offload": found["checkpointing"] == "unsloth",
        "rank": found["rank"],
        "adapter dropout": found["dropout"],
    }


def litgpt(found):
    """Return what the arguments of LitGPT's command have."""
    return {
        **steps(found),
        **{name: found[name] for name in ("devices", "batch", "length", "rank")},
        "precision": {"bf16-mixed": "bf16", "bf16-true": "bf16", "32-true": "fp32"}[found["precision"]],
        "adapter dropout": found["dropout"],
    }


_LITGPT = ("litgpt", "lightning", "lightning_utilities", "torchmetrics", "jsonargparse", "docstring_parser")
PROGRAMS = (
    *(
        Program(
            f"Megatron-LM {release}",
            "megatron-lm",
            "megatron_parser.py",
            "torch",
            word_case,
            megatron,
            wheels,
        )
        for release, wheels in (
            ("newest", (("megatron_core", "0.19."),)),
            ("before", (("megatron_core", "0.18."),)),
        )
    ),
    Program(
        *("Megatron Bridge", "megatron-bridge", "megatron_bridge_parser.py", "hydra", bridge_case, bridge),
        wheels=(("megatron_bridge",), ("megatron_core", "0.19.")),
    ),
    Program(
        *("DeepSpeed", "deepspeed", "deepspeed_parser.py", "deepspeed", text_case, deepspeed),
        package="deepspeed",
    ),
    Program(
        *("accelerate", "accelerate", "accelerate_parser.py", "accelerate", text_case, accelerate),
        package="accelerate",
    ),
    Program(
        *("torchtitan", "torchtitan", "torchtitan_parser.py", "torchtitan", word_case, torchtitan),
        package="torchtitan",
    ),
    Program(
        *("transformers", "trainer", "trainer_parser.py", "deepspeed", text_case, trainer),
        package="transformers",
        others=("LoRA",),
    ),
    Program("TRL", "trainer", "trl_parser.py", "peft", text_case, trl, (("trl",),), plans=("LoRA",)),
    Program("axolotl", "axolotl", "axolotl_parser.py", "peft", text_case, axolotl, (("axolotl",),)),
    Program(
        *("LLaMA-Factory", "llama-factory", "llama_factory_parser.py", "peft", text_case, llama_factory),
        wheels=(("llamafactory",),),
    ),
    Program(
        *("torchtune", "torchtune", "torchtune_parser.py", "torch", command_case("tune", "run"), torchtune),
        wheels=(("torchtune",),),
    ),
    Program(
        *("Unsloth", "unsloth", "unsloth_parser.py", "transformers", text_case, unsloth),
        wheels=(("unsloth",), ("trl",)),
    ),
    Program(
        *("LitGPT", "litgpt", "litgpt_parser.py", "torch", command_case("litgpt"), litgpt),
        wheels=tuple((name,) for name in _LITGPT),
    ),
)
