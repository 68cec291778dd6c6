"""Facts that amend rows of measured runs: data that names what there is, applied alike to every row."""

import pytest

from autoplan.catalog import entry_names, stack
from autoplan.errors import SpecError
from autoplan.schema.model import ModelSpec
from autoplan.schema.yaml.loader import load_model
from benchmarks.accuracy.facts import FactsFile, Told, facts, told_of, with_knobs, without_keyed_facts
from benchmarks.accuracy.jobs import sharing_ranks
from benchmarks.accuracy.runs import Run, RunLayout
from benchmarks.accuracy.stacks import stack_of

PLAIN = {
    "id": "somebody-1",
    "group": "somebody",
    "source": "somebody",
    "stack": "somebody's",
    "hardware": {"gpu": "l40s", "gpus": 8, "gpus_per_node": 8},
    "model": {"name": "Llama"},
    "layout": {"tp": 2, "pp": 1, "dp": 4, "precision": "bf16"},
    "measured": {},
}


def run_of(**changes):
    """Return a run that no fact is about, with some changes; a double underscore goes one level down."""
    row = {key: dict(value) if isinstance(value, dict) else value for key, value in PLAIN.items()}
    for key, value in changes.items():
        part, _, inner = key.partition("__")
        if inner:
            row[part][inner] = value
        else:
            row[part] = value
    return Run.model_validate(row)


def test_facts_name_what_there_is():
    """Stacks, nodes and models are in the catalogue; fields are those of layouts, models and facts."""
    for fact in facts():
        assert {fact.priced_as} - {None} <= set(entry_names("stack"))
        assert {fact.node, fact.usual_node} - {None} <= set(entry_names("node"))
        assert {fact.latent_attention_of} - {None} <= set(entry_names("model"))
        assert fact.layout.keys() | fact.runs.layout.keys() <= RunLayout.model_fields.keys()
        assert fact.architecture.keys() <= ModelSpec.model_fields.keys()


def test_a_stranger_has_no_keyed_facts():
    """Facts of a publication go where they are left out; those of a stack stay."""
    qwen = run_of(source="QwenLM/Qwen, speed", stack="other: hf trainer ddp")

    told = told_of(qwen)
    with without_keyed_facts():
        plain = told_of(qwen)

    assert {"block": {"fused_norms": True}} in told.knobs
    assert {"block": {"fused_norms": True}} not in plain.knobs
    assert told.priced_as == plain.priced_as == "hf-trainer"
    assert told_of(qwen) == told


def test_every_fact_says_something():
    """One that changes nothing would hide that it was misspelt."""
    silent = {"runs", "source"}

    for fact in facts():
        assert fact.model_fields_set - silent


@pytest.mark.parametrize("name", entry_names("stack"))
def test_knobs_of_facts_fit_every_stack(name):
    """A row of another stack may be one that a fact is about, by its source; twice is as once."""
    for fact in facts():
        once = with_knobs(stack(name), fact.knobs)

        assert with_knobs(once, fact.knobs) == once


def test_knobs_are_checked_as_those_of_a_stacks_file():
    """An unknown knob, and a value that none may have, are refused."""
    for knobs in ({"memory": {"gradient_byts": 2}}, {"memory": {"gradient_bytes": "two"}}, {"memry": {}}):
        with pytest.raises(ValueError, match=r"memory|memry|gradient"):
            with_knobs(stack("fsdp2"), knobs)


def test_a_run_that_no_fact_is_about_stays_as_it_is():
    """Rows of any file are read, and what nobody knows of them is not invented."""
    run = run_of()

    assert told_of(run) == Told(run.layout, run.stack)


def test_a_fact_sees_what_those_before_it_have_said():
    """A later fact is about the layout as earlier ones have left it: compiled, with asynchronous tensors."""
    told = told_of(run_of(stack="fsdp2", layout__compile=True))
    both = told_of(run_of(stack="fsdp2", layout__compile=True, layout__async_tp=True))

    assert told.layout.sequence_parallel
    assert (told.priced_as, both.priced_as) == ("fsdp2-compile", "fsdp2-async-tp")


def test_rows_say_what_their_software_was():
    """What a publication ran is in its rows, in the words of a job, so that a stranger can say it as well."""
    ran = run_of(stack="fsdp1", software={"attention": "flash1-triton", "recompute_early_stop": False})
    plain, told = stack_of(run_of(stack="fsdp1")), stack_of(ran)

    assert (plain.block.attention, told.block.attention) == ("flash2", "flash1-triton")
    assert not told.block.checkpoint_early_stop
    assert sharing_ranks(run_of(layout__dp=16, layout__zero_group=8)) == 8
    assert sharing_ranks(run_of(layout__dp=16)) == 0


def test_a_mistake_in_a_file_of_facts_is_told_at_its_line():
    """The file is as strict as every other, and a fact without a source is refused."""
    text = "schema: 1\nkind: run-facts\nfacts:\n  - runs: {stak: fsdp2}\n    priced_as: ddp\n"
    with pytest.raises(SpecError) as refused:
        load_model(text, FactsFile, name="facts.yaml")
    told = {problem.path: (problem.line, problem.message) for problem in refused.value.problems}

    assert told["$.facts[0].runs.stak"] == (4, "unknown key 'stak': did you mean 'stack'?")
    assert "'source' is missing" in told["$.facts[0].source"][1]
