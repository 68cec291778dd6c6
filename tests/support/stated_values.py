"""What files say of a plan that are emitted and not read back: found in their text, without the target."""

import ast
import re
import shlex

__all__ = ["stated", "stated_of"]


def stated_of(run):
    """Return what the file of a run has to say."""
    layout, workload = run.layout, run.job.workload
    return {
        "devices": layout.devices,
        "mbs": layout.microbatch,
        "global_batch_size": workload.global_batch_size,
        "sequence_length": workload.sequence_length,
        "zero": layout.zero,
        "recompute": layout.mode,
    }


def stated(target, emission):
    """Return what the emitted file of a target says."""
    return {"torchtune": _torchtune, "unsloth": _unsloth, "litgpt": _litgpt}[target](emission)


def command(text):
    """Return the words of the command that a script ends with."""
    return shlex.split(text[text.index("exec ") :].replace("\\\n", " "))[1:-1]


def option(words, name, default="1"):
    """Return the value after the word ``name``."""
    return words[words.index(name) + 1] if name in words else default


def _torchtune(emission):
    words = command(emission.files[0].text)
    keys = dict(word.split("=") for word in words if "=" in word)
    per_node = int(option(words, "--nproc_per_node"))
    devices = int(option(words, "--nnodes")) * per_node
    sharded = "_distributed" in " ".join(words)
    assert sharded == (devices > 1)
    mbs = int(keys["batch_size"])
    return {
        "devices": devices,
        "mbs": mbs,
        "global_batch_size": mbs * int(keys["gradient_accumulation_steps"]) * devices,
        "sequence_length": int(keys["tokenizer.max_seq_len"]),
        "zero": (3 if keys["fsdp_reshard_after_forward"] == "True" else 2) if sharded else 0,
        "recompute": "full" if keys["enable_activation_checkpointing"] == "True" else "none",
    }


def _litgpt(emission):
    words = command(emission.files[0].text)
    devices = int(option(words, "--devices")) * int(option(words, "--num_nodes"))
    return {
        "devices": devices,
        "mbs": int(option(words, "--train.micro_batch_size")),
        "global_batch_size": int(option(words, "--train.global_batch_size")),
        "sequence_length": int(option(words, "--train.max_seq_length")),
        "zero": 3 if devices > 1 else 0,
        "recompute": "none" if "pretrain" in words or devices == 1 else "full",
    }


def _unsloth(emission):
    text = emission.files[0].text
    tables = {
        node.targets[0].id: {
            key.value: ast.unparse(value) if isinstance(value, ast.Attribute) else ast.literal_eval(value)
            for key, value in zip(node.value.keys, node.value.values, strict=True)
        }
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Dict)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.isupper()
    }
    training, model = tables["TRAINING"], tables["MODEL"]
    nodes = re.search(r"--nnodes (\d+)", text)
    each = re.search(r"--nproc-per-node (\d+)", text)
    devices = int(nodes[1] if nodes else 1) * int(each[1] if each else 1)
    assert model["max_seq_length"] == training["max_length"]
    mbs = training["per_device_train_batch_size"]
    checkpointing = tables.get("ADAPTERS", model)["use_gradient_checkpointing"]
    assert bool(checkpointing) == training["gradient_checkpointing"]
    return {
        "devices": devices,
        "mbs": mbs,
        "global_batch_size": mbs * training["gradient_accumulation_steps"] * devices,
        "sequence_length": training["max_length"],
        "zero": 0,
        "recompute": "full" if checkpointing else "none",
    }
