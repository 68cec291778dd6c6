"""Drafts of engines: what each key moves, memory, and the closed form against the simulation."""

from dataclasses import replace
from functools import lru_cache

import pytest

from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.planning.serving_plans import evaluate_serving
from autoplan.rules.engine_rules import broken_engine_rules
from autoplan.schema.serving.engine_layout import EngineLayout
from tests.support.serving_jobs import serving_job


@lru_cache
def served(method="eagle3", drafts=3, acceptance=0.7, clients=8, draft_model=None):
    """Return the prediction of an 8B model with drafts under a closed loop."""
    job = serving_job(
        "llama3.1-8b",
        stack="vllm@0.24",
        workload={"input_tokens": {"uniform": (200, 400)}, "output_tokens": 200, "concurrency": clients},
        speculation={
            "method": method,
            "tokens": (drafts,),
            "acceptance": acceptance,
            "draft_model": draft_model,
        },
    )
    _, plan = evaluate_serving(job, EngineLayout(tokens=2048, seqs=256, spec=drafts))
    return plan.groups[0].predicted


def test_more_acceptance_makes_tokens_faster():
    """Time per token falls with acceptance, and drafts that are never accepted cost time."""
    times = [served(acceptance=q).time_per_output_token for q in (0.0, 0.5, 0.8, 1.0)]

    assert times == sorted(times, reverse=True)
    assert times[0] > served(drafts=0).time_per_output_token > times[2]


def test_every_method_has_a_cost_of_its_own():
    """n-gram drafts are free on the device, a layer costs less than a model, and each takes its memory."""
    methods = {
        "ngram": served("ngram"),
        "eagle": served("eagle"),
        "eagle3": served(),
        "draft_model": served("draft_model", draft_model="llama3.2-1b"),
    }
    seconds = {name: known.drafts.draft_seconds for name, known in methods.items()}
    weights = {name: known.capacity.stages[0].weights.draft for name, known in methods.items()}
    tokens = {name: known.capacity.pool.tokens for name, known in methods.items()}

    assert seconds["ngram"] == weights["ngram"] == 0
    assert 0 < seconds["eagle3"] < seconds["draft_model"]
    assert seconds["eagle3"] < seconds["eagle"]  # 32,000 words of its own, not all 128,256
    assert 0 < weights["eagle"] < weights["eagle3"] < weights["draft_model"]
    assert tokens["ngram"] > tokens["eagle"] > tokens["draft_model"]
    assert weights["draft_model"] == pytest.approx(2 * 1_235_814_400, rel=0.02)


def test_drafts_lose_above_a_batch():
    """At the batch that is said a token is faster with drafts, and at twice that batch it is not."""
    few, many = served(drafts=5, acceptance=0.3, clients=1), served(drafts=5, acceptance=0.3, clients=200)
    limit = few.drafts.gains_up_to

    assert limit is not None
    assert few.drafts.speedup > 1 or limit == 0
    assert many.drafts.speedup < 1
    assert limit < many.point.decodes


@pytest.mark.parametrize("clients", [1, 4, 16])
def test_the_closed_form_is_near_the_simulation(clients):
    """The simulation draws the steps of each answer; the means are those of the closed form."""
    assert served(clients=clients).simulation.gap < 0.05


def test_a_draft_of_a_pipeline_is_on_its_last_stage():
    """Only the last stage has the weights that draft, and they are not there without drafts."""
    job = serving_job(
        "llama3.1-8b",
        devices=2,
        stack="vllm@0.24",
        speculation={"method": "eagle", "tokens": 2, "acceptance": 0.5},
    )
    with_drafts, without = (predict_capacity(EngineScope(job, EngineLayout(pp=2, spec=n))) for n in (2, 0))

    assert [stage.weights.draft > 0 for stage in with_drafts.stages] == [False, True]
    assert not any(stage.weights.draft for stage in without.stages)


def test_a_draft_model_must_be_divisible_as_the_engine_is():
    """Heads of the model that drafts are split over the same devices."""
    job = serving_job(
        "llama3.1-8b",
        stack="vllm@0.24",
        devices=8,
        speculation={
            "method": "draft_model",
            "tokens": (2,),
            "acceptance": 0.5,
            "draft_model": "qwen2.5-0.5b",
        },
    )
    broken = broken_engine_rules(job, EngineLayout(tp=4, spec=2))

    assert broken == ["tp=4 must divide the heads and ffn_size of qwen2.5-0.5b, which drafts"]
    assert not broken_engine_rules(job, EngineLayout(tp=2, spec=2))


def test_the_first_token_waits_for_the_front_end():
    """A job whose engine has no front end has the first token so much earlier; the rest is the same."""
    job = serving_job(
        "llama3.1-8b",
        stack="vllm@0.24",
        workload={"input_tokens": {"uniform": (200, 400)}, "output_tokens": 200, "request_rate": 1.0},
    )
    step = job.engine.facts.step
    none = step.model_copy(
        update={
            "front_end": step.front_end.model_copy(update={"value": 0.0}),
            "front_end_per_token": step.front_end_per_token.model_copy(update={"value": 0.0}),
        }
    )
    bare = replace(job, engine=replace(job.engine, facts=job.engine.facts.model_copy(update={"step": none})))
    (_, late), (_, early) = (evaluate_serving(x, EngineLayout()) for x in (job, bare))

    wait = step.front_end.value + 300 * step.front_end_per_token.value
    assert late.time_to_first_token - early.time_to_first_token == pytest.approx(wait, rel=0.01)
    assert late.time_per_output_token == early.time_per_output_token
    percentiles = [x.statistics.time_to_first_token.p50 for x in (late, early)]
    assert percentiles[0] - percentiles[1] == pytest.approx(wait, rel=0.01)
