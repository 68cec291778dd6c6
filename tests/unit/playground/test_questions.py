"""Questions of the page: what is read, what is refused, and the jobs and links that they become."""

import json
from typing import get_args
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.catalog import entry_names, resolve_job
from autoplan.errors import AutoplanError
from autoplan.playground.answers import changed_query, job_of
from autoplan.playground.questions import (
    Ask,
    Drafting,
    KvFormats,
    LimitOn,
    Load,
    ServingJobQuestion,
    ServingTrade,
    TrainingQuestion,
    UnknownNameError,
    WeightFormats,
    ask_from,
    page_choices,
    query_of,
)
from autoplan.playground.serving_question_jobs import changed_serving_query, serving_job_of
from autoplan.results.front import Edit
from autoplan.results.serving.serving_front import ServingChange
from autoplan.schema.job import JobSpec

FIELDS = {
    "kind": "training",
    "model": "gpt2",
    "hardware": "dgx-a100-80gb",
    "devices": 8,
    "sequence_length": 1024,
    "global_batch_size": 64,
}


def question(**changes):
    """Return a question."""
    return TrainingQuestion(**{**FIELDS, **changes})


questions = st.builds(
    question,
    model=st.sampled_from(("gpt2", "llama3-8b")),
    devices=st.sampled_from((1, 2, 8, 16, 4096)),
    sequence_length=st.integers(1, 4_194_304),
    global_batch_size=st.integers(1, 1_000_000),
    precision=st.sampled_from(("bf16", "fp8")),
    optimizer=st.sampled_from(("adamw", "muon")),
    stack=st.sampled_from(("", "megatron-core", "fsdp2")),
    adapter_rank=st.integers(0, 1_024),
    offload=st.sampled_from(("none", "none,optimizer")),
    objectives=st.sampled_from(("step_time", "step_time+peak_memory")),
    headroom_percent=st.integers(0, 90),
)


@settings(max_examples=15)
@given(questions)
def test_the_job_is_that_of_the_fields_and_the_link_is_that_of_the_question(asked):
    """What the job file says is read as the same job, and query and body give the question back."""
    job = job_of(asked)
    spec = JobSpec.model_validate(
        {
            **{key: getattr(asked, key) for key in ("kind", "model", "hardware", "devices")},
            "workload": asked.model_dump(include={"sequence_length", "global_batch_size"}),
            "precision": asked.precision,
            "optimizer": asked.optimizer,
            "stack": asked.stack or None,
            "adapters": {"rank": asked.adapter_rank} if asked.adapter_rank else None,
            "search": {"offload": tuple(asked.offload.split(","))},
            "limits": {"memory_headroom": asked.headroom_percent / 100},
            "objectives": tuple(asked.objectives.split("+")),
        }
    )
    expected = resolve_job(spec)
    same = ("model", "cluster", "stack", "workload", "precision", "optimizer", "adapters", "objectives")
    pairs = dict(parse_qsl(query_of(asked), keep_blank_values=True))
    values = {key: type(getattr(asked, key))(value) for key, value in pairs.items()}

    assert [name for name in same if getattr(job, name) != getattr(expected, name)] == []
    assert job.limits.memory_headroom == pytest.approx(expected.limits.memory_headroom)
    assert set(job.search.offload) == set(expected.search.offload) or asked.offload == "none"
    assert ask_from("plan", json.dumps({"question": values}).encode()) == Ask("plan", asked)


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_json_is_a_question_or_an_error_in_words(value):
    """No body of JSON is more than an error of the tree."""
    for body in ({"question": value}, {"question": {**FIELDS, "model": value}}, value):
        with pytest.raises(AutoplanError):
            ask_from("plan", json.dumps(body).encode())


@given(st.binary(max_size=300))
def test_any_bytes_are_an_error_in_words(body):
    """What is no JSON at all is refused by name."""
    with pytest.raises(AutoplanError):
        ask_from("launch", body)


@pytest.mark.parametrize(
    "name", ["auto", "../gpt2", "gpt2.yaml", "/etc/passwd", "4x-h100-sxm5-80gb", "GPT2", ""]
)
def test_a_name_that_no_list_has_is_never_looked_up(name, monkeypatch):
    """A name is compared with the lists before anything could be opened."""
    monkeypatch.setattr("autoplan.catalog.roots.read_file", None)
    for key in ("model", "hardware"):
        with pytest.raises(AutoplanError) as caught:
            ask_from("plan", json.dumps({"question": {**FIELDS, key: name}}).encode())
        if name:
            assert isinstance(caught.value, UnknownNameError)
            assert "gpt2" in caught.value.known or "dgx-a100-80gb" in caught.value.known


@pytest.mark.parametrize(
    ("edit", "control"),
    [
        (("devices", "16"), {"devices": "16"}),
        (("hardware", "dgx-h100"), {"hardware": "dgx-h100"}),
        (("workload.global_batch_size", "32"), {"global_batch_size": "32"}),
        (("limits.memory_headroom", "3.7 %"), {"headroom_percent": "3"}),
        (("adapters", "{rank: 16}"), {"adapter_rank": "16"}),
        (("search.offload", "[none, optimizer]"), {"offload": "none,optimizer"}),
        (("optimizer", "adamw-8bit"), {"optimizer": "adamw-8bit"}),
    ],
)
def test_an_edit_of_the_job_file_is_one_of_the_controls(edit, control):
    """A remedy that the controls can show has a link that makes it, and changes nothing else."""
    key, after = edit
    query = dict(parse_qsl(changed_query(question(), [Edit(key, "before", after)]), keep_blank_values=True))
    plain = dict(parse_qsl(query_of(question()), keep_blank_values=True))

    assert query == {**plain, **control}


@pytest.mark.parametrize(
    "edit",
    [("search.tensor_parallel", "any"), ("hardware", "3x-unknown"), ("adapters", "{rank: 4, targets: all}")],
)
def test_an_edit_without_a_control_has_no_link(edit):
    """A remedy that no control shows is told in words alone."""
    assert changed_query(question(), [Edit(edit[0], "before", edit[1])]) is None


def test_the_choices_are_the_catalogue():
    """Every entry of the catalogue can be chosen, and what is chosen first is one of each list."""
    choices = page_choices()
    names = {key: [entry["name"] for entry in choices[key]] for key in ("models", "hardware", "stacks")}

    assert names["models"] == list(entry_names("model"))
    assert sorted(names["hardware"]) == sorted([*entry_names("node"), *entry_names("cluster")])
    assert names["stacks"] == list(entry_names("stack"))
    for kind, targets in (("training", "targets"), ("serving", "engine_targets")):
        first = dict(choices["first"][kind])
        assert first.pop("target") in [target["name"] for target in choices[targets]]
        assert ask_from("plan", json.dumps({"question": first}).encode()).question.kind == kind


SERVED = {
    "kind": "serving",
    "model": "llama3.1-8b",
    "hardware": "dgx-h100",
    "devices": 2,
    "engine": "vllm@0.24",
    "input_tokens": 1024,
    "output_tokens": 128,
}
served = st.builds(
    lambda **changes: ServingJobQuestion(**{**SERVED, **changes}),
    devices=st.sampled_from((1, 2, 4, 8, 16)),
    engine=st.sampled_from(("vllm@0.24", "sglang@0.5.8")),
    longest_request=st.sampled_from((0, 2_000, 8_192)),
    load=st.sampled_from(get_args(Load)),
    clients=st.integers(1, 100_000),
    requests_per_minute=st.integers(1, 1_000_000),
    weights=st.sampled_from(get_args(WeightFormats)),
    kv_cache=st.sampled_from(get_args(KvFormats)),
    first_token_ms=st.integers(0, 3_600_000),
    token_ms=st.integers(0, 3_600_000),
    limit_on=st.sampled_from(get_args(LimitOn)),
    trade=st.sampled_from(get_args(ServingTrade)),
    headroom_percent=st.integers(0, 90),
    shared_tokens=st.sampled_from((0, 512)),
    hit_percent=st.integers(0, 99),
    other_percent=st.sampled_from((0, 0, 1, 25, 99)),
    other_input_tokens=st.integers(512, 8_192),
    other_output_tokens=st.integers(1, 512),
    other_first_token_ms=st.integers(0, 3_600_000),
    drafting=st.sampled_from(get_args(Drafting)),
    drafts=st.integers(1, 16),
    acceptance_percent=st.integers(0, 100),
)


def limit_of(job, name, key):
    """Return a limit of a job, or of a class, in milliseconds, on its mean or a percentile; 0 for none."""
    limit = getattr(job.limits, name, None)
    seconds = limit if key == "mean" or limit is None else getattr(limit, key)
    return round((seconds or 0.0) * 1000, 6)


@settings(max_examples=15)
@given(served)
def test_the_serving_job_is_that_of_the_fields_and_the_link_is_that_of_the_question(asked):
    """What the job file says is what the controls say, and query and body give the question back."""
    job = serving_job_of(asked)
    rate = job.workload.request_rate
    pairs = dict(parse_qsl(query_of(asked), keep_blank_values=True))
    values = {key: type(getattr(asked, key))(value) for key, value in pairs.items()}

    assert (job.model.name, str(job.engine)) == (asked.model, asked.engine)
    assert (job.cluster.devices, job.objectives) == (asked.devices, tuple(asked.trade.split("+")))
    assert job.workload.concurrency == (asked.clients if asked.load == "clients" else None)
    assert rate == (pytest.approx(asked.requests_per_minute / 60) if asked.load == "requests" else None)
    assert job.longest_request == (asked.longest_request or job.workload.longest_tokens)
    assert ",".join(job.precision.weights) == asked.weights
    assert ",".join(job.precision.kv_cache) == asked.kv_cache
    limited = job.workload.classes[0] if asked.other_percent else job
    assert limit_of(limited, "time_to_first_token", asked.limit_on) == asked.first_token_ms
    assert limit_of(limited, "time_per_output_token", asked.limit_on) == asked.token_ms
    weights = {"main": 1 - asked.other_percent / 100, "other": asked.other_percent / 100}
    assert {known.name: known.weight for known in job.workload.classes} == (
        pytest.approx(weights) if asked.other_percent else {}
    )
    for other in job.workload.classes[1:]:
        assert (other.input_tokens, other.output_tokens) == (
            asked.other_input_tokens,
            asked.other_output_tokens,
        )
        assert limit_of(other, "time_to_first_token", asked.limit_on) == asked.other_first_token_ms
    prefix = job.workload.prefix
    assert prefix.shared_tokens == asked.shared_tokens
    assert prefix.hit_rate == pytest.approx(asked.hit_percent / 100)
    drafts = job.speculation
    assert (drafts is None) == (asked.drafting == "none")
    if drafts is not None:
        assert (drafts.method, drafts.tokens) == (asked.drafting, (0, asked.drafts))
        assert drafts.acceptance == pytest.approx(asked.acceptance_percent / 100)
    assert job.limits.memory_headroom == pytest.approx(asked.headroom_percent / 100)
    assert ask_from("plan", json.dumps({"question": values}).encode()) == Ask("plan", asked)


@pytest.mark.parametrize(
    ("limit_on", "change", "control"),
    [
        ("mean", ("devices", "4"), {"devices": "4"}),
        ("mean", ("limits.time_to_first_token", "67.3 ms"), {"first_token_ms": "68"}),
        ("p99", ("limits.time_per_output_token", "{p99: 12.1 ms}"), {"token_ms": "13"}),
        ("p99", ("precision.kv_cache", "fp8"), {"kv_cache": "fp8"}),
        ("mean", ("workload.longest_request", "4096"), {"longest_request": "4096"}),
        ("p99", ("limits.time_per_output_token", "12.1 ms"), None),
        ("p90", ("limits.time_per_output_token", "{p99: 12.1 ms}"), None),
        ("mean", ("precision.weights", "int8"), None),
        ("mean", ("search.tensor_parallel", "any"), None),
        ("mean", ("workload.classes.1.limits.time_to_first_token", "67.3 ms"), None),
    ],
)
def test_a_change_of_a_serving_job_is_one_of_the_controls(limit_on, change, control):
    """A remedy that the controls can show has a link that makes it; any other is told in words alone."""
    asked = ServingJobQuestion(**SERVED, limit_on=limit_on)
    link = changed_serving_query(asked, ServingChange(*change, "sentence", plan=None))
    plain = dict(parse_qsl(query_of(asked), keep_blank_values=True))

    if control is None:
        assert link is None
    else:
        assert dict(parse_qsl(link, keep_blank_values=True)) == {**plain, **control}


def test_a_change_of_a_class_is_one_of_the_controls_where_there_are_two():
    """The limits of both classes have controls; those of the job have none then."""
    asked = ServingJobQuestion(**SERVED, other_percent=25)
    of_classes = (
        ("0", "time_per_output_token", "token_ms"),
        ("1", "time_to_first_token", "other_first_token_ms"),
    )
    for number, limit, control in of_classes:
        key = f"workload.classes.{number}.limits.{limit}"
        link = changed_serving_query(asked, ServingChange(key, "67.3 ms", "sentence", plan=None))
        assert dict(parse_qsl(link))[control] == "68"
    change = ServingChange("limits.time_to_first_token", "67.3 ms", "sentence", plan=None)
    assert changed_serving_query(asked, change) is None
