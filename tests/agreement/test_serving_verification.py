"""The verification of serving answers against brute force, and against the search that it does not share."""

from itertools import product
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.deadline import ENDLESS, Deadline
from autoplan.planning.serving_plans import serving_costs
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.verification.serving.better_choices import (
    ChoiceSearch,
    boxes_beyond,
    choice_values,
    integral_time,
    integral_tokens,
)
from autoplan.verification.serving.option_listing import LOAD_PARTS, listed_space
from tests.support.quick_cases import slow_after
from tests.support.serving_jobs import serving_job
from tests.support.serving_relaxations import TIMES, no_worse

OBJECTIVES = (
    ("throughput_per_device", "time_per_output_token"),
    ("throughput", "devices"),
    ("throughput_per_device", "time_to_first_token", "time_per_output_token"),
    ("devices", "request_latency"),
    ("throughput",),
)
DEVICES = 6


class Engine:
    """An option as the verification looks at it: devices, a share, tokens a second and times."""

    def __init__(self, devices, share, tokens, tpot, ttft, formats=()):
        self.devices, self.share, self.classes, self.formats = devices, share, (), formats
        self.predicted = self.load = self
        self.output_tokens_per_second, self.kind = tokens, "closed loop"
        self.time_per_output_token, self.time_to_first_token = tpot, ttft
        self.request_latency = ttft + 100 * tpot


engines = st.builds(
    Engine,
    st.sampled_from((1, 2, 3, 4)),
    st.sampled_from((LOAD_PARTS, LOAD_PARTS // 2, LOAD_PARTS // 3, LOAD_PARTS * 2 // 3)),
    st.integers(1, 90).map(float),
    st.sampled_from((0.01, 0.02, 0.03)),
    st.sampled_from((0.1, 0.2)),
    st.sampled_from((("bf16", "auto"), ("fp8", "auto"))),
)


def all_values(options, objectives, job):
    """Return the objectives of every choice of engines that makes the whole load."""
    allowed = job.search.replicas
    found = set()
    for counts in product(*(range(DEVICES // option.devices + 1) for option in options)):
        chosen = [(n, option) for n, option in zip(counts, options, strict=True) if n]
        devices = sum(n * option.devices for n, option in chosen)
        if not 1 <= devices <= DEVICES or sum(n * option.share for n, option in chosen) != LOAD_PARTS:
            continue
        if not isinstance(allowed, str) and sum(counts) != allowed:
            continue
        if len({option.formats for _, option in chosen}) > 1 and not job.search.mixed_formats:
            continue
        rate = sum(n * integral_tokens(option.output_tokens_per_second) for n, option in chosen)
        times = {name: max(integral_time(option, name) for _, option in chosen) for name in TIMES}
        found.add(choice_values(rate, devices, times, objectives))
    return sorted(found)


def is_better(value, known, thinning):
    """Return whether a choice beats every known one by the thinning in some objective."""
    return all(
        any(v <= k - max(1, ceil(abs(k) * thinning)) for v, k in zip(value, one, strict=True))
        for one in known
    )


@given(
    options=st.lists(engines, min_size=1, max_size=4),
    objectives=st.sampled_from(OBJECTIVES),
    kept=st.sets(st.integers(0, 30)),
    replicas=st.sampled_from(("any", 2)),
    thinning=st.sampled_from((0.0, 0.05)),
    mixed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_better_choice_is_named_where_there_is_one(options, objectives, kept, replicas, thinning, mixed):
    """Of all choices some are called the front: the rest has a better one exactly where brute force has."""
    job = serving_job(devices=DEVICES, search={"replicas": replicas, "mixed_formats": mixed})
    values = all_values(options, objectives, job)
    known = [value for i, value in enumerate(values) if i in kept]
    search = ChoiceSearch(job, options, DEVICES, lambda option: option, ENDLESS)
    boxes = boxes_beyond(known, objectives, thinning)
    named = any(search.better(box) for box in boxes)

    assert search.undecided == 0
    assert named == any(is_better(value, known, thinning) for value in values)


@given(options=st.lists(engines, min_size=1, max_size=4), objectives=st.sampled_from(OBJECTIVES))
@settings(max_examples=20, deadline=None)
def test_what_a_simulation_breaks_is_no_better_choice(options, objectives):
    """Where every option breaks a simulated limit, nothing is named."""
    job = serving_job(devices=DEVICES)
    search = ChoiceSearch(job, options, DEVICES, lambda _: None, ENDLESS)

    assert not any(search.better(box) for box in boxes_beyond([], objectives, 0.01))


JOBS = (
    {"workload": {"input_tokens": 512, "output_tokens": 64, "concurrency": 96}, "devices": 6},
    {"workload": {"input_tokens": 512, "output_tokens": 64, "request_rate": 20.0}, "devices": 4},
    {"workload": {"input_tokens": 512, "output_tokens": 64}, "devices": 2},
    {
        "workload": {"input_tokens": 512, "output_tokens": 64, "concurrency": 24},
        "devices": 4,
        "limits": {"time_per_output_token": 0.02},
        "precision": {"weights": ("bf16", "fp8")},
    },
    {
        "model": "gpt-oss-20b",
        "workload": {"input_tokens": 512, "output_tokens": 64, "concurrency": 24},
        "devices": 4,
        "search": {"max_num_batched_tokens": 2048, "pipeline_parallel": 1},
        "precision": {"weights": "mxfp4"},
    },
    {"workload": {"input_tokens": 512, "output_tokens": 64, "concurrency": 200}, "devices": 16},
)


@pytest.mark.parametrize("settings_", slow_after(4, JOBS))
def test_the_uncut_listing_has_every_option_and_nothing_that_none_equals(settings_):
    """The verification lists all sizes; what the search leaves out of them equals an option that it has."""
    job = serving_job(**{"model": "llama3.1-8b", "stack": "vllm@0.24", **settings_})
    costs = serving_costs(job)
    search, space = ServingSearch(job, costs), listed_space(job, costs, Deadline())
    own = {(str(x.layout), x.share): x.predicted for x in search.options.all}
    listed = {(str(x.engine.layout), x.share): x.predicted for x in space.options}

    # Clients that wait are priced by Little's law from those of a smaller share.
    assert all(alike(own[key], listed[key]) for key in own)
    assert search.options.counts[0] == space.sizes
    assert search.units.total == space.units_total
    assert {x.reason: x.layouts for x in search.units.rejected} == dict(space.rejected)
    for option in (x for x in space.options if (str(x.engine.layout), x.share) not in own):
        assert any(
            no_worse(x.predicted, option.predicted, 0.005)
            for x in search.options.all
            if (x.devices, x.share) == (option.devices, option.share)
        )


def alike(one, other):
    """Return whether two predictions differ by rounding alone."""
    return no_worse(one, other, 1e-9) and no_worse(other, one, 1e-9) and one.load == other.load
