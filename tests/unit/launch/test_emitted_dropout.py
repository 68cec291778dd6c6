"""Plans without dropout masks are emitted without dropout, by every target with a default of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from autoplan.catalog import load_entry, load_job
from autoplan.costs.core.sizes import dropout_masks
from autoplan.launch.registry import find_target, target_names
from autoplan.launch.target import PlannedRun
from autoplan.schema.layout import parse_layout

#: Frameworks whose models have dropout unless they are told; the others take it from the model's config.
OWN_DEFAULT = ("megatron-lm", "megatron-bridge", "accelerate")
#: Jobs by model and stack: with masks only GPT models in the stacks that keep them.
JOBS = [
    ("llama3-8b", "megatron-core", 0.0),
    ("gpt3-1.3b", "megatron-core", 0.1),
    ("gpt3-1.3b", "analytic", 0.0),
    ("mixtral-8x7b", "megatron-core", 0.0),
]
#: accelerate has a section of Megatron's for its stacks alone.
CASES = [
    (target, *job) for target in OWN_DEFAULT for job in JOBS if target != "accelerate" or job[1] != "analytic"
]


def emission_of(target, model, stack):
    """Return what is emitted for a target, with all layers recomputed."""
    job = load_job("llama3-8b-8x-a100")
    workload = job.workload.model_copy(update={"sequence_length": 2048})
    job = replace(job, workload=workload, model=load_entry("model", model), stack=load_entry("stack", stack))
    layout = parse_layout("tp=2,zero=1,recompute=full", layers=job.model.layers, devices=8)
    return job, find_target(target).emit(PlannedRun(job, layout))


def dropouts(target, emission):
    """Return the probabilities of dropout in what is emitted; empty where none stand there."""
    if target == "megatron-lm":
        words = dict(zip(emission.arguments, emission.arguments[1:], strict=False))
        return {float(words[name]) for name in ("--attention-dropout", "--hidden-dropout")}
    document = yaml.safe_load(emission.files[0].text)
    section = document["model"] if target == "megatron-bridge" else document.get("megatron_lm_config", {})
    return {value for key, value in section.items() if "dropout" in key}


@pytest.mark.parametrize(("target", "model", "stack", "rate"), CASES)
def test_dropout_is_emitted_as_it_is_priced(target, model, stack, rate):
    """Both probabilities stand in what is emitted: 0 where no mask is priced, else that of GPT."""
    job, emission = emission_of(target, model, stack)

    assert dropouts(target, emission) == {rate}
    assert (dropout_masks(job) > 0) == (rate > 0)


#: Those that take it from the model's own config, and say so.
TOLD = ("trainer", "axolotl", "llama-factory", "torchtune", "unsloth", "litgpt")


@pytest.mark.parametrize("target", TOLD)
def test_models_with_dropout_of_their_own_are_told(target):
    """A GPT model priced without masks needs its config changed, a gated one does not."""
    job = replace(load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "hf-fsdp2"))
    layout = parse_layout("zero=0" if target == "unsloth" else "zero=3", layers=32, devices=8)
    notes = find_target(target).emit(PlannedRun(job, layout)).notes
    gpt = replace(job, model=job.model.model_copy(update={"activation": "gelu"}))

    assert not any("dropout" in note for note in notes)
    assert any("without dropout" in note for note in find_target(target).emit(PlannedRun(gpt, layout)).notes)


def test_the_header_lists_the_model_arguments_that_are_not_in_the_file():
    """What decides the model's numbers and stands in no file of ours is named, and not emitted."""
    for model, there in (
        ("llama3-8b", "--rotary-base"),
        ("gpt3-1.3b", "--norm-epsilon"),
        ("deepseek-v3", "--mscale"),
    ):
        _, emission = emission_of("megatron-lm", model, "megatron-core")
        (line,) = [line for line in emission.files[0].text.splitlines() if "not in this file" in line]
        listed = set(line.split(": ")[1].split())

        assert there in listed
        assert ("--rotary-base" in listed) == (load_entry("model", model).positions == "rope")
        assert not listed & set(emission.arguments)


def test_every_target_that_describes_a_model_is_asked():
    """A new target that emits a model is added to one of the lists above, or has no model in its files."""
    without_model = {"deepspeed", "torchtitan", "torchrun", "slurm", "skypilot", "kubernetes"}
    assert {*OWN_DEFAULT, *TOLD} | without_model == set(target_names(emitted=True))
