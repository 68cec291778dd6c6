"""Run Megatron-LM's own parser and checks on arguments, and print what its objects say, as JSON.

Usage: python megatron_parser.py FOLDER < CASES, where FOLDER has ``megatron`` and CASES is a JSON list of
{world_size, arguments, environment}. It needs torch and the packages that ``megatron.training`` imports, and
no GPU: what the parser asks of a device is answered here. Transformer Engine is absent, so its layers are
replaced by the local ones, and fused RoPE is off.
"""

import contextlib
import io
import json
import os
import sys
import typing
import warnings


def prepare(folder):
    """Make the program importable on a machine without a GPU, under Python 3.11."""
    sys.path.insert(0, folder)
    warnings.simplefilter("ignore")
    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override
    import torch
    import torch._functorch.partitioners
    import torch._inductor.utils
    from absent_modules import stand_in
    from torch.utils._triton import has_triton_package

    # PyTorch looks for triton itself, and takes a stand-in for the real one.
    has_triton_package()
    stand_in("triton")

    class Device:
        major, minor, multi_processor_count, total_memory, name = 9, 0, 132, 80 << 30, "H100"

    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.get_device_properties = lambda *_, **__: Device()


def stages_of(config):
    """Return the layers of each stage by the rules that the model is built with."""
    from megatron.core.transformer import transformer_block as block
    from megatron.core.transformer.enums import LayerType

    ranks, chunks = (
        range(config.pipeline_model_parallel_size),
        config.virtual_pipeline_model_parallel_size or 1,
    )
    if (given := config.pipeline_model_parallel_layout) is not None:
        return [sum(chunk.count(LayerType.decoder) for chunk in given.layout[rank]) for rank in ranks]
    virtual = range(chunks) if chunks > 1 else [None]
    build = block.get_num_layers_to_build
    return [sum(build(config, vp_stage=v, pp_rank=rank) for v in virtual) for rank in ranks]


def checked(case):
    """Return the degrees, batch and stages that Megatron-LM makes of a case."""
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["environment"], WORLD_SIZE=str(case["world_size"]), RANK="0")
    from megatron.training import arguments as parser

    extra = [
        "--transformer-impl",
        "local",
        "--no-rope-fusion",
        "--no-persist-layer-norm",
        "--no-masked-softmax-fusion",
    ]
    extra += [
        "--no-gradient-accumulation-fusion",
        "--tokenizer-type",
        "NullTokenizer",
        "--train-iters",
        "1",
        "--lr",
        "1e-4",
    ]
    if "--multi-latent-attention" in case["arguments"]:
        extra += ["--rope-type", "rope"]
    sys.argv = ["pretrain_gpt.py", *case["arguments"], *extra]
    args = parser.parse_args()
    parser.validate_args(args)
    config = parser.core_transformer_config_from_args(args)
    # Virtual stages are no argument of their own: the launcher copies them.
    config.virtual_pipeline_model_parallel_size = args.virtual_pipeline_model_parallel_size
    return {
        "tp": config.tensor_model_parallel_size,
        "pp": config.pipeline_model_parallel_size,
        "cp": config.context_parallel_size,
        "dp": args.data_parallel_size,
        "ep": config.expert_model_parallel_size,
        "etp": config.expert_tensor_parallel_size,
        "vpp": args.virtual_pipeline_model_parallel_size or 1,
        "mbs": args.micro_batch_size,
        "global_batch_size": args.global_batch_size,
        "sequence_length": args.seq_length,
        "sp": config.sequence_parallel,
        "distributed_optimizer": args.use_distributed_optimizer,
        "fsdp": args.data_parallel_sharding_strategy if args.use_megatron_fsdp else None,
        "instances": args.num_distributed_optimizer_instances,
        "layers": config.num_layers,
        "experts": config.num_moe_experts,
        "moe_layers": sum(config.moe_layer_freq) if isinstance(config.moe_layer_freq, list) else None,
        "recompute": [config.recompute_granularity, config.recompute_method, config.recompute_num_layers],
        "optimizer_offload": args.optimizer_cpu_offload,
        "offloaded_layers": config.cpu_offloading_num_layers,
        "dropout": [config.attention_dropout, config.hidden_dropout],
        "bf16": config.bf16,
        "fp16": config.fp16,
        "fp8": config.fp8,
        "stages": stages_of(config),
    }


def names():
    """Return the version of the program, and the number of values of each argument of its parser."""
    import argparse

    from megatron.core.package_info import __shortversion__
    from megatron.training.arguments import add_megatron_arguments

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    flags = (argparse._StoreTrueAction, argparse._StoreFalseAction, argparse.BooleanOptionalAction)
    arguments = {
        option: "0" if isinstance(action, flags) else str(action.nargs if action.nargs is not None else 1)
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }
    return {"version": __shortversion__, "arguments": arguments}


def main():
    """Check each case of standard input and print the answers, or print the names of all arguments."""
    prepare(sys.argv[1])
    if sys.argv[2:] == ["--names"]:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            found = names()
        json.dump(found, sys.stdout)
        return
    answers = []
    for case in json.load(sys.stdin):
        shown = io.StringIO()
        try:
            with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
                answers.append({"accepted": checked(case)})
        except (SystemExit, Exception) as error:  # noqa: BLE001 - whatever the framework refuses with
            answers.append({"refused": f"{type(error).__name__}: {error} {shown.getvalue()[-300:]}"})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
