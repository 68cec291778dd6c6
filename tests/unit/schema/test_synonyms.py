"""Words of other programs in a job file are told their right form, all at once."""

import pytest

from autoplan.catalog import entry_names
from autoplan.errors import SpecError
from autoplan.schema.job import JobSpec
from autoplan.schema.serving.serving_spec import ServingSpec
from autoplan.schema.yaml.annotations import below, choices, fields, unfold
from autoplan.schema.yaml.loader import load_model
from autoplan.schema.yaml.synonyms import (
    ENTRY_SYNONYMS,
    KEY_SYNONYMS,
    UNPRICED,
    VALUE_SYNONYMS,
    right_key,
)

ROOTS = (unfold(JobSpec), unfold(ServingSpec))


def _paths(place, above=()):
    for name in fields(place):
        yield ".".join((*above, name))
        if len(above) < 1:
            yield from _paths(below(place, name), (*above, name))


def _all_choices(place, depth=4):
    yield from choices(place)
    for name in fields(place) if depth else ():
        inner = below(place, name)
        yield from _all_choices(inner, depth - 1)
        yield from _all_choices(below(inner, 0), depth - 1)


def test_each_word_of_the_table_leads_to_what_there_is():
    """A synonym is no key itself where its right form is known; forms, values and entries exist."""
    known = [set(_paths(root)) for root in ROOTS]
    for word, paths in KEY_SYNONYMS.items():
        assert word == word.lower().replace("-", "_")
        assert all(any(path in paths_of for paths_of in known) for path in paths), word
        assert any(right_key(word.upper(), root) for root in ROOTS), word
    assert UNPRICED.isdisjoint(KEY_SYNONYMS)
    values = {value for root in ROOTS for value in _all_choices(root)} | {"training"}
    for word, meant in VALUE_SYNONYMS.items():
        assert values & set(meant), word
    for kind, words in ENTRY_SYNONYMS.items():
        for word, entries in words.items():
            assert word not in entry_names(kind)
            assert set(entries) <= set(entry_names(kind)), word


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "seq_len: 4k",
            "called workload.sequence_length: write workload: {sequence_length: 4096}",
        ),
        ("gpus: 2", "'gpus' is called devices: write devices: 2"),
        ("device: 2", "'device' is called devices: write devices: 2"),
        ("batch_size: 32", "write workload: {global_batch_size: 32}"),
        ("lora: {r: 8, alpha: 16}", "'lora' is called adapters: write adapters: {rank: 16}"),
        ("tp: 2", "write search: {tensor_parallel: 2}"),
        ("lr: 2e-4", "'lr' changes neither time nor memory: leave it out"),
        ("gradient_accumulation_steps: 8", "follows from workload.global_batch_size"),
        ("per-device-train-batch-size: 2", "write search: {microbatch_size: 2}"),
        (
            "sequence_length: 2048",
            "belongs to workload: write workload: {sequence_length: 2048}",
        ),
        ("workload: {max_seq_length: 8K}", "is called workload.sequence_length: write sequence_length: 8192"),
        ("workload: {sequence_length: 4k}", "'4k' is not a whole number: write 4096"),
        ("workload: {optimizer: sgd}", "'optimizer' stands at the top of a job: write optimizer: sgd"),
        ("optimizer: paged_adamw_8bit", "did you mean 'adamw-8bit'?"),
        ("search: {zero_stage: ZeRO-3}", "'ZeRO-3' is not 'any', a whole number or a list: write 3"),
        ("search: {recompute: true}", "did you mean 'full'?"),
        ("kind: sft", "did you mean 'training'?"),
    ],
)
def test_words_of_other_programs_are_told_their_right_form(text, said):
    """The message has what to write, with the value that was written where it means the same."""
    base = "" if text.startswith("kind") else "kind: training\n"
    with pytest.raises(SpecError) as refused:
        load_model(f"{base}{text}\n", JobSpec, name="job.yaml")
    assert said in str(refused.value)


def test_a_key_that_is_named_is_not_missing_as_well():
    """One problem for a key under another name, all of a file at once, and the same words in serving jobs."""
    text = "kind: serving\nmodel: gpt2\nhardware: 2x-rtx4090\nstack: vllm\n"
    with pytest.raises(SpecError) as refused:
        load_model(
            f"{text}workload: {{isl: 1k, osl: 1k, batch_size: 4}}\nttft: 1 s\n", ServingSpec, name="job.yaml"
        )
    assert [problem.message.partition(": write ")[2] for problem in refused.value.problems] == [
        "input_tokens: 1024",
        "output_tokens: 1024",
        "concurrency: 4",
        'limits: {time_to_first_token: "1 s"}',
    ]
