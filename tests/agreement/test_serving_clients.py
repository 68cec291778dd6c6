"""Clients of measured runs by hand: prompts that were sent before, answers that end early."""

from statistics import fmean

import pytest

from autoplan.catalog import load_entry
from autoplan.costs.serving.queueing.request_load import RequestLoad
from benchmarks.serving.__main__ import DEFAULT_RUNS
from benchmarks.serving.clients import PromptCache, hit_rate, with_told_lengths
from benchmarks.serving.served_jobs import served_job
from benchmarks.serving.served_runs import RunClient, ServedRun, read_served_runs
from tests.support.serving_runs import RUN


def run_named(name, **changed):
    """Return a run with an id that facts of clients name."""
    return ServedRun.model_validate({**RUN, "id": name, **changed})


def test_a_longer_prompt_is_cached_as_far_as_the_one_before_it():
    """128, 1,024 and 2,048 tokens in turn: nothing, an eighth, a half."""
    cache = PromptCache(engines=1, capacity=10**6)

    assert [cache.run(4, tokens) for tokens in (128, 1024, 2048)] == [0.0, 0.125, 0.5]


def test_the_prompt_sent_to_test_a_server_is_cached_in_the_run_after_it():
    """One of four prompts is known; a second run knows all."""
    cache = PromptCache(engines=1, capacity=10**6)

    assert (cache.run(4, 100, tests=1), cache.run(4, 100, tests=1)) == (0.25, 1.0)


def test_prompts_in_the_same_order_find_nothing_in_a_cache_that_holds_fewer():
    """The least recently used goes first, so that each is gone when its turn comes."""
    full, short = (PromptCache(engines=1, capacity=tokens) for tokens in (400, 300))

    assert (full.run(4, 100), full.run(4, 100)) == (0.0, 1.0)
    assert (short.run(4, 100), short.run(4, 100)) == (0.0, 0.0)


def test_a_router_in_turn_sends_prompts_to_the_other_engine_after_an_odd_number():
    """Five requests over two engines: the next run finds what the last one left on the other one."""
    cache = PromptCache(engines=2, capacity=10**6)

    # The first prompt went to one engine as a test and to the other then; a run later the rest is there, too.
    assert [cache.run(4, 100, tests=1) for _ in range(3)] == [0.0, 0.25, 1.0]


def test_a_sweep_of_a_fixed_seed_finds_its_shorter_prompts():
    """Four prompts of 1,024 tokens after those of 128; the first run finds nothing."""
    first, later = (run_named(f"tt-qwen3-4b-4090-{lengths}-c1") for lengths in ("128-128", "1024-128"))

    assert hit_rate(first, 1, 10**5) == 0.0
    assert hit_rate(later, 1, 10**5) == 0.125
    assert hit_rate(run_named("x"), 1, 10**5) == 0.0


@pytest.mark.parametrize(("mean", "stopped"), [(47, 0.082), (64, 0.203), (100, 0.597)])
def test_answers_that_end_early_have_the_mean_of_their_row_and_no_more_than_their_most(mean, stopped):
    """The model may end each token alike; the client stops those that would be longer than the most."""
    load = {**RUN["workload"], "output_len": mean}
    run = run_named("dstack-pd-1p1d-2048-128-c32", workload=load)
    answers = with_told_lengths(run, RequestLoad((9,) * 512, (mean,) * 512)).outputs

    assert fmean(answers) == pytest.approx(mean, rel=0.02)
    assert min(answers) >= 1
    assert max(answers) == 128
    assert answers.count(128) / 512 == pytest.approx(stopped, abs=0.01)


def test_answers_of_runs_that_ignore_the_end_are_all_alike():
    """A row without such a fact has the lengths that it tells."""
    load = RequestLoad((9,) * 8, (7,) * 8)

    assert with_told_lengths(run_named("x"), load) == load


def test_conversations_of_sharegpt_differ_in_both_lengths():
    """Means of the row, prompts of 1,024 tokens at most and 2,048 with their answers, most of them short."""
    run = run_named("x", workload={**RUN["workload"], "input_len": 220, "output_len": 200})
    run = run.model_copy(update={"client": RunClient(lengths="ShareGPT (means)")})
    load = with_told_lengths(run, RequestLoad((220,) * 512, (200,) * 512))

    assert fmean(load.inputs) == pytest.approx(220, rel=0.02)
    assert fmean(load.outputs) == pytest.approx(200, rel=0.02)
    assert max(load.inputs) <= 1024
    assert max(x + y for x, y in zip(load.inputs, load.outputs, strict=True)) <= 2048
    assert sorted(load.outputs)[256] < 150


def test_a_row_of_several_runs_has_the_mean_of_their_shares():
    """2,048 tokens after 512 of the same prompts: a quarter; twice more, all of them: 0.75 on average."""
    run = run_named("css-qwen2.5-7b-a100pcie-tp1-medium")

    assert hit_rate(run, engines=1, capacity=10**6) == pytest.approx((0.2575 + 1 + 1) / 3)


def test_a_client_that_sends_more_prompts_begins_with_those_of_the_run_before():
    """60, then 120 of 1,024 tokens: half of them; 240 in a cache of 120: half; 480 in that of 240: none."""
    rates = [
        hit_rate(run_named(f"oi-qwen3-4b-5090-0.24-{end}"), engines=1, capacity=120 * 1024)
        for end in ("q1", "q2", "q4", "q8")
    ]

    assert rates == [0.0, 0.5, 0.5, 0.0]


def test_the_median_prompt_of_repeated_documents_has_been_sent_but_for_its_question():
    """Ten documents with ten questions each: the share that the row's source gives, and only for its rows."""
    long, short = (run_named(f"rr-qwen2.5-7b-l4-{kind}-c1") for kind in ("long", "other"))

    assert hit_rate(long, 1, 10**5) == 0.97
    assert hit_rate(short, 1, 10**5) == 0.0


def test_cards_that_cannot_reach_each_other_have_the_fabric_of_cards_without_links():
    """A log that tells of no peer-to-peer access has a node's links be those of a pair of RTX 4090."""
    runs = dict(read_served_runs(DEFAULT_RUNS[-1].with_name("served_runs_4.yaml")))
    jobs = [served_job(runs[name]) for name in ("dl-qwen2-7b-a100pcie-t2-n1", "dl-qwen2-7b-a100pcie-t5-n1")]

    without = load_entry("node", "2x-rtx4090").fabric
    assert [x.job.cluster.node.fabric == without for x in jobs] == [True, False]
