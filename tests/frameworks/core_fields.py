"""Arguments of Megatron-LM as fields of Megatron-Core's TransformerConfig."""

from autoplan.launch.frameworks.megatron.arguments import FLAGS, TABLE, parse_arguments
from autoplan.launch.frameworks.megatron_bridge import PATHS
from autoplan.launch.scripts.pieces import Word


def core_case(run, arguments):
    """Return the case of ``megatron_core_parser`` that the arguments of a planned run are."""
    given = parse_arguments([Word(text, 1) for text in arguments], "arguments", frozenset()).given
    found = {}
    for binding, path in PATHS.items():
        flag = FLAGS[binding]
        section, _, name = path.partition(".")
        if section != "model" or flag not in given or name == "seq_length":
            continue
        words = [word.text for word in given[flag].values]
        value = int(words[0]) if words and words[0].isdigit() else words[0] if words else True
        found[name] = words if name == "recompute_modules" else TABLE[binding].kind == "switch" or value
    model, layout = run.job.model, run.layout
    found |= {"hidden_size": model.hidden_size, "num_attention_heads": model.heads}
    found |= {"num_query_groups": model.kv_heads, "add_bias_linear": model.bias.mlp}
    if model.moe is not None:
        found["num_moe_experts"] = model.moe.experts
    if "cpu_offloading_num_layers" in found:
        found["cpu_offloading"] = True
    sizes = {"micro": layout.microbatch, "ranks": layout.dp}
    return {"fields": found, "batch": {"global": run.job.workload.global_batch_size, **sizes}}
