"""Models with linear attention, and experts: parameters and saved tensors are those of transformers' classes.

Skipped where this Python has no torch and transformers.
"""

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import load_entry, load_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.parameters import total_parameters
from autoplan.costs.core.rank_parameters import adapter_parameters
from autoplan.costs.layer.linear_attention_time import linear_saved_bytes
from autoplan.costs.layer.moe import expert_saved_bytes
from autoplan.launch.frameworks.hugging_face.training_fields import adapted_modules
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.huggingface.model_config import model_from_huggingface
from autoplan.schema.job import WorkloadSpec
from autoplan.schema.layout import parse_layout

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.frameworks

#: Class and sizes of each entry, in the words of its config.json; other sizes are defaults of the class.
ENTRIES = {
    "qwen3-next-80b-a3b": ("Qwen3Next", {"intermediate_size": 5120, "max_position_embeddings": 262144}),
    "qwen3.5-35b-a3b": ("Qwen3_5Moe", {"max_position_embeddings": 262144}),
    "qwen3.5-9b": ("Qwen3_5", {"max_position_embeddings": 262144}),
    "granite-4.0-h-1b": (
        "GraniteMoeHybrid",
        {
            "hidden_size": 1536,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "shared_intermediate_size": 4096,
            "num_local_experts": 0,
            "mamba_n_heads": 48,
        },
    ),
    "granite-4.0-h-350m": (
        "GraniteMoeHybrid",
        {
            "hidden_size": 768,
            "num_hidden_layers": 32,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "shared_intermediate_size": 2048,
            "num_local_experts": 0,
            "mamba_n_heads": 48,
            "mamba_d_head": 32,
            "max_position_embeddings": 32768,
            "layer_types": [
                "full_attention" if i in {10, 13, 17, 27} else "linear_attention" for i in range(32)
            ],
        },
    ),
    "granite-4.0-h-small": (
        "GraniteMoeHybrid",
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 768,
            "shared_intermediate_size": 1536,
            "num_local_experts": 72,
            "num_experts_per_tok": 10,
            "mamba_n_heads": 128,
        },
    ),
    "granite-4.0-h-tiny": (
        "GraniteMoeHybrid",
        {
            "hidden_size": 1536,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "intermediate_size": 512,
            "shared_intermediate_size": 1024,
            "num_local_experts": 64,
            "num_experts_per_tok": 6,
            "mamba_n_heads": 48,
        },
    ),
}
#: What Granite models have, unless their sizes say otherwise.
GRANITE = {
    "num_hidden_layers": 40,
    "vocab_size": 100352,
    "tie_word_embeddings": True,
    "mamba_d_state": 128,
    "mamba_d_head": 64,
    "max_position_embeddings": 131072,
    "position_embedding_type": "nope",
    "layer_types": ["full_attention" if i in {5, 15, 25, 35} else "linear_attention" for i in range(40)],
}
#: Fields in which an entry and a config read from memory may differ.
NAMES = {"name", "title", "source", "published_parameters", "published_active_parameters"}


def config_of(name):
    """Return the class of a model and its config."""
    family, sizes = ENTRIES[name]
    modules = {"Qwen3_5Moe": "qwen3_5_moe", "Qwen3_5": "qwen3_5"}
    kind = "TextConfig" if family in modules else "Config"
    more = GRANITE if family == "GraniteMoeHybrid" else {}
    module = getattr(transformers.models, modules.get(family, "auto"))
    config = getattr(transformers, f"{family}{kind}", None) or getattr(module, f"{family}{kind}")
    model = getattr(transformers, f"{family}ForCausalLM", None) or getattr(module, f"{family}ForCausalLM")
    return model, config(**{**more, **sizes})


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_has_the_parameters_of_its_class(name):
    """The class, built without memory, has exactly the parameters that are counted."""
    model, config = config_of(name)
    with torch.device("meta"):
        built = sum(parameter.numel() for parameter in model(config).parameters())

    assert total_parameters(load_entry("model", name)) == built


@pytest.mark.parametrize("name", ENTRIES)
def test_a_config_reads_as_the_entry(name):
    """The config of the class is read as the catalogue's model, but for the format of its states."""
    _, config = config_of(name)
    entry = load_entry("model", name).model_dump(exclude=NAMES)
    read = model_from_huggingface(config.to_dict(), name="x").model_dump(exclude=NAMES)
    for model in (entry, read):
        del model["linear_attention"]["state"]

    assert read == entry


def kernel(outputs, saved):
    """Return a function of autograd with the outputs and the saved tensors of a kernel, which it is not."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            tensors = [tensor.contiguous() for tensor in tensors]
            ctx.save_for_backward(*saved(*tensors))
            return outputs(*tensors)

        @staticmethod
        def backward(ctx, *_):
            raise NotImplementedError

    return Kernel.apply


def fla_saved(q, k, v, g, beta):
    """Return what ChunkGatedDeltaRuleFunction saves, with normalised queries and keys and a chunk of 64."""
    norms = [torch.empty(x.shape[:3], dtype=torch.float32) for x in (q, k)]
    inverse = torch.empty(*v.shape[:3], 64, dtype=k.dtype)
    return (torch.empty_like(q), torch.empty_like(k), v, torch.empty_like(g), beta, inverse, *norms)


@pytest.mark.parametrize(("fused", "frozen"), [(True, False), (False, False), (True, True)])
def test_a_gated_delta_net_saves_what_hooks_count(fused, frozen, monkeypatch):
    """Saved tensors of transformers' module for a token, given what the kernels below it save.

    Of a frozen one, below adapters of other modules, the inputs of its GEMMs are not saved.
    """
    code = transformers.models.qwen3_next.modeling_qwen3_next
    delta = kernel(lambda *x: torch.empty_like(x[2]), fla_saved)
    conv = kernel(lambda x, _: torch.empty_like(x), lambda x, w: (x, w))
    norm = kernel(lambda x, _: torch.empty_like(x), lambda x, z: (x, z, torch.empty(len(x))))
    monkeypatch.setattr(code, "causal_conv1d_fn", lambda x, w, *_, **__: conv(x, w))
    monkeypatch.setattr(
        code, "torch_chunk_gated_delta_rule", lambda *x, g, beta, **_: (delta(*x, g, beta), None)
    )
    module = code.Qwen3NextGatedDeltaNet(transformers.Qwen3NextConfig(), 0).to(torch.bfloat16).train()
    module.requires_grad_(not frozen)
    if fused:
        module.norm.forward = norm
    weights = {x.untyped_storage().data_ptr() for x in module.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens = torch.randn(1, 128, 2048, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        module(tokens)
    counted = sum(storage.nbytes() for storage in kept.values()) / 128 - 2 * 2048 * (not frozen)
    one = Candidates.of([parse_layout("tp=1", layers=48, devices=8)])
    model = load_entry("model", "qwen3-next-80b-a3b")

    kept_bytes = linear_saved_bytes(model, one, 2.0, fused_norm=fused, frozen=frozen, output_frozen=frozen)
    # The rest are copies of vectors of single heads.
    assert counted == pytest.approx(kept_bytes[0], abs=4)


SPARSE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 96,
}


class Dequantized(torch.nn.Module):
    """Makes a new tensor of a parameter wherever it is read, as bitsandbytes' parametrization does."""

    @torch.no_grad()
    def forward(self, weight):
        """Return a copy, of which no gradient is taken."""
        return weight.clone()


def routed_bytes(implementation, *, adapters, base=None):
    """Return what a layer saves of copies of tokens, and of weights of experts that are quantised [byte].

    For a token, of which there are 128.
    """
    found = []
    for layers in (1, 2):
        torch.manual_seed(0)
        config = transformers.Qwen3MoeConfig(num_hidden_layers=layers, **SPARSE)
        config._experts_implementation = implementation
        model = transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16)
        if adapters:
            targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
            peft = pytest.importorskip("peft")
            lora = peft.LoraConfig(r=4, target_modules=targets)
            model = peft.get_peft_model(model, lora, autocast_adapter_dtype=False)
            model.enable_input_require_grads()
        if base is not None:
            for name, module in model.named_modules():
                if name.endswith("mlp.experts"):
                    for weight in ("gate_up_proj", "down_proj"):
                        torch.nn.utils.parametrize.register_parametrization(module, weight, Dequantized())
        weights, kept = {x.untyped_storage().data_ptr() for x in model.parameters()}, {}

        def pack(tensor, weights=weights, kept=kept):
            storage, routed = tensor.untyped_storage(), tensor.shape[-1] in {32, 64} and tensor.dim() == 2
            # A token of its own has 128 rows; its copies have 256 in all, or those of each expert. Weights
            # of experts have three axes.
            copied = (routed and len(tensor) != 128) or (tensor.dim() == 3 and len(tensor) == 8)
            if storage.data_ptr() not in weights and copied:
                kept[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            model(torch.arange(128)[None])
        found.append(sum(storage.nbytes() for storage in kept.values()) / 128)
    return found[1] - found[0]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(
    ("implementation", "name", "adapters", "base"),
    [
        ("grouped_mm", "hf-trainer", False, None),
        ("grouped_mm", "hf-trainer", True, None),
        ("grouped_mm", "hf-trainer", True, "nf4"),
        ("eager", "ddp", False, None),
        ("eager", "ddp", True, None),
    ],
)
def test_experts_save_what_hooks_count(implementation, name, adapters, base):
    """Of a routed token, in one product for all experts or expert by expert, trained or below adapters.

    Stacks of a quantised base are saved as they were dequantised, where backward does not make them again.
    """
    of = stack(name)
    if base is not None:
        of = of.model_copy(update={"experts": of.experts.model_copy(update={"quantized": True})})
    config = transformers.Qwen3MoeConfig(num_hidden_layers=2, **SPARSE)
    job = replace(
        load_job("mixtral-8x7b-8x-h200"),
        model=model_from_huggingface(config.to_dict(), name="x"),
        stack=of,
        workload=WorkloadSpec(sequence_length=128, global_batch_size=1),
        adapters=AdapterSpec(rank=4, targets="attention", base=base) if adapters else None,
    )
    one = Candidates.of([parse_layout("tp=1", layers=2, devices=8)])
    # Gate, up and the activation in two bytes each, and the input of down where that is trained.
    inner = 6.0 if adapters else 8.0
    router = 6 * 8 + 22 * 2
    counted = routed_bytes(implementation, adapters=adapters, base=base)

    assert counted == float(expert_saved_bytes(job, one, inner, 2.0)[0]) - router


LATENT = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
HYBRID = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
#: Class, config and targets; the sizes that both have are SPARSE's.
ADAPTED = [
    ("DeepseekV3", LATENT, "attention"),
    ("DeepseekV3", LATENT | {"q_lora_rank": None}, "attention"),
    ("Qwen3_5", HYBRID, "all"),
    ("Qwen3_5", HYBRID, "attention"),
    ("Llama", {"num_hidden_layers": 2}, "all"),
]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(("family", "sizes", "targets"), ADAPTED)
def test_adapters_have_the_parameters_that_peft_makes(family, sizes, targets):
    """At the modules whose names are written, latent and linear attention among them."""
    peft = pytest.importorskip("peft")
    module = getattr(transformers.models, {"Qwen3_5": "qwen3_5"}.get(family, "auto"))
    config = getattr(transformers, f"{family}Config", None)
    if family == "Qwen3_5":
        config = module.Qwen3_5TextConfig
    config = config(**{"num_hidden_layers": 2, "tie_word_embeddings": False, **SPARSE, **sizes})
    built = getattr(transformers, f"{family}ForCausalLM", None) or module.Qwen3_5ForCausalLM
    adapters = AdapterSpec(rank=4, targets=targets)
    job = replace(
        load_job("llama3-8b-8x-a100"),
        model=model_from_huggingface(config.to_dict(), name="x"),
        adapters=adapters,
    )
    names = "all-linear" if targets == "all" else adapted_modules(job.model, adapters)
    with torch.device("meta"):
        tuned = peft.get_peft_model(built(config), peft.LoraConfig(r=4, target_modules=names))
    counted = sum(x.numel() for x in tuned.parameters() if x.requires_grad)

    assert float(adapter_parameters(job, np.ones(1))[0]) * job.model.layers == counted
