"""Megatron Bridge: what is emitted and refused, and what YAML files and words of Hydra say."""

import shlex
from dataclasses import replace

import pytest
import yaml

import autoplan
from autoplan.errors import SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.megatron_bridge import TARGET
from autoplan.launch.recognition import recognised
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.layout import parse_layout

FILE = """# overrides of a recipe
model:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  context_parallel_size: 1
  sequence_parallel: true
{}
train:
  micro_batch_size: 1
  global_batch_size: 64
"""
SCRIPT = """torchrun --nproc-per-node 8 run_recipe.py --recipe llama3_8b_pretrain_config \\
    model.tensor_model_parallel_size=${{TP:-4}} model.context_parallel_size=2 train.global_batch_size=32 {}
"""


def read(text, **more):
    """Return what a file says."""
    return TARGET.read(LaunchFile("overrides", text, **more))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", {"tp": 2, "pp": 2, "sp": True}),
        ("  num_layers: 32\n  num_layers_in_first_pipeline_stage: 15", {"stages": [15, 17]}),
        ("  pipeline_model_parallel_layout: Et*15|t*17L", {"stages": [15, 17], "vpp": 1}),
        ("  recompute_granularity: selective", {"recompute": "selective"}),
        (
            "  recompute_granularity: full\n  recompute_method: uniform\n  recompute_num_layers: 2",
            {"recompute": "full", "recompute_num_layers": 2},
        ),
        ("  virtual_pipeline_model_parallel_size: 4", {"vpp": 4}),
    ],
)
def test_files_are_read(more, said):
    """Keys of sections are the fields that they stand for."""
    text = FILE.format(more)
    found = read(text, devices=8)

    assert {key: found.layout_fields[key] for key in said} == said
    assert found.job["workload"]["global_batch_size"] == 64
    assert recognised(LaunchFile("overrides.yaml", text)).name == "megatron-bridge"


def test_a_file_of_nemo_is_another_ones():
    """A model section beside a trainer is NeMo's, whose batches stand elsewhere."""
    text = FILE.format("  micro_batch_size: 1").replace("train:", "trainer:")

    assert not TARGET.recognises(LaunchFile("model_config.yaml", text))


def test_what_the_recipe_decides_stays_open():
    """Fields that no override gives are the recipe's: they are named as not given, and not guessed."""
    found = read(FILE.format(""), devices=8)

    assert {"zero", "recompute", "precision", "optimizer", "sequence_length", "model"} <= set(
        found.unspecified
    )
    assert not set(found.defaults) & {"zero", "recompute", "precision"}


def test_words_of_hydra_are_read():
    """Overrides in a script are read with its variables and its launcher."""
    text = SCRIPT.format("ddp.use_distributed_optimizer=true mixed_precision=bf16_with_mxfp8_mixed")
    found = read(text)

    assert (found.layout_fields["tp"], found.layout_fields["cp"]) == (4, 2)
    assert (found.layout_fields["zero"], found.job["precision"], found.job["devices"]) == (1, "mxfp8", 8)
    assert read(text, variables={"TP": "2"}).layout_fields["tp"] == 2
    assert recognised(LaunchFile("run.sh", text)).name == "megatron-bridge"


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (FILE.format("  tensor_model_paralel_size: 2"), 7, "did you mean tensor_model_parallel_size?"),
        (FILE.format("  recompute_granularity: some"), 7, "neither full nor selective"),
        (FILE.format("").replace("size: 2", "size: 3"), 3, "does not divide"),
        (FILE.format("").replace("64", "63"), 10, "does not divide"),
        (FILE.format("").replace("parallel: true", "parallel: maybe"), 6, "neither true"),
        (SCRIPT.format("model.pipeline_model_parallel_size=$PP"), 2, "give --set PP=VALUE"),
        (SCRIPT.format("model.recompute_modules=[core_attn"), 2, "is no value"),
        ("model:\n  tensor_model_parallel_size: [", 2, "neither JSON nor YAML"),
    ],
)  # fmt: skip
def test_what_contradicts_is_refused(text, line, sentence):
    """Contradictions, misspellings and what depends on the environment are errors with their line."""
    with pytest.raises(SpecError) as caught:
        read(text, devices=8)

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert (problem.file, problem.line) == ("overrides", line)


@pytest.mark.parametrize(
    ("layout", "changes", "part"),
    [
        ("pp=2,dp=4,schedule=gpipe", {}, "gpipe schedule"),
        ("dp=8,zero=1", {"optimizer": "lion"}, "optimizer lion"),
        ("dp=8,zero=1", {"optimizer": "adamw-8bit"}, "optimizer adamw-8bit"),
        ("pp=2,dp=4,order=cp-dp-pp-tp", {}, "number ranks"),
    ],
)
def test_what_has_no_key_is_refused(layout, changes, part):
    """What Megatron-LM lacks, Megatron Bridge lacks as well."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), **changes)
    run = PlannedRun(job, parse_layout(layout, layers=32, devices=8))

    with pytest.raises(InexpressibleError) as caught:
        TARGET.emit(run)

    assert part in caught.value.part
    assert caught.value.nearest or changes


def test_file_and_words_say_the_same():
    """Every key of the file is a word of Hydra as well, and read as the same layout."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    layout = parse_layout("pp=4,dp=2,stages=7/8/9/8,zero=1,recompute=selective", layers=32, devices=8)
    emission = TARGET.emit(PlannedRun(job, layout))
    document = yaml.safe_load(emission.files[0].text)
    words = " ".join(f'"{word}"' for word in emission.arguments)

    assert len(emission.arguments) == sum(len(v) if isinstance(v, dict) else 1 for v in document.values())
    assert "model.pipeline_model_parallel_layout='Et*7|t*8|t*9|t*8L'" in emission.arguments
    assert (
        read(f"torchrun --nproc-per-node 8 run.py {words}\n").layout_string
        == read(emission.files[0].text, devices=8).layout_string
    )


@pytest.mark.parametrize(
    "new",
    [
        "dp=8,zero=1,recompute=full",
        "pp=4,dp=2,zero=1,stages=7/8/9/8",
        "tp=4,cp=2,dp=1,zero=1,recompute=selective",
    ],
)
def test_edits_make_the_other_layout(new):
    """A file, or a script, in which the edits were made has the layout that they are for."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    old = parse_layout("tp=2,pp=2,dp=2,zero=1", layers=32, devices=8)
    layout = parse_layout(new, layers=32, devices=8)
    emission = TARGET.emit(PlannedRun(job, old))
    main = LaunchFile("overrides.yaml", emission.files[0].text, devices=8)
    lines = main.text.splitlines()
    edits = TARGET.edits(main, job, old, layout)
    for edit in sorted(edits, key=lambda edit: not edit.before):
        if not edit.before:
            section, _, key = edit.after.partition(".")
            lines.insert(lines.index(f"{section}:") + 1, f"  {key}")
            continue
        assert edit.before.partition(":")[0] in lines[edit.line - 1]
        lines[edit.line - 1] = f"  {edit.after}"
    words = {word.partition("=")[0]: word for word in emission.arguments}
    script = LaunchFile("run.sh", f"torchrun --nproc-per-node 8 run.py {shlex.join(words.values())}\n")
    for edit in TARGET.edits(script, job, old, layout):
        words[edit.after.partition("=")[0]] = edit.after
    text = f"torchrun --nproc-per-node 8 run.py {shlex.join(words.values())}\n"

    for found in (read("\n".join(lines) + "\n", devices=8), read(text)):
        assert parse_layout(found.layout_string, layers=32, devices=8) == layout
