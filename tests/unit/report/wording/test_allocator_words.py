"""The sentence on plans near the memory limit."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from autoplan import evaluate, load_job
from autoplan.report.wording.sentences import near_limit_sentences, surety_sentences


@pytest.fixture(scope="module")
def job():
    """Two and more plans of it differ much in memory."""
    return load_job("llama3-8b-8x-a100")


def plans_at(job, *shares):
    """Plans with peaks of these shares of the device's memory."""
    usable = job.cluster.device.memory.usable.value
    return [SimpleNamespace(peak_memory_bytes_per_device=share * usable, fits=True) for share in shares]


@pytest.mark.parametrize(("share", "said"), [(0.5, 0), (0.94, 0), (0.96, 1), (1.0, 1)])
def test_a_plan_above_95_per_cent_is_told(job, share, said):
    """Up to there the allocator has room."""
    assert len(near_limit_sentences(job, plans_at(job, share))) == said


def test_the_sentence_counts_the_plans_and_names_the_largest_share(job):
    """One of a front of two, or several of three."""
    one, two = plans_at(job, 0.5, 0.96), plans_at(job, 0.5, 0.96, 0.98)

    assert near_limit_sentences(job, one)[0].startswith("1 of 2 plans need 96 % of a device's memory: ")
    assert near_limit_sentences(job, two)[0].startswith("2 of 3 plans need up to 98 % of a device's memory: ")


def test_a_stack_without_a_caching_allocator_says_nothing(job):
    """Programs in C allocate once, at the start."""
    fragmentation = job.stack.memory.allocator_fragmentation.model_copy(update={"value": 1.0})
    memory = job.stack.memory.model_copy(update={"allocator_fragmentation": fragmentation})
    arena = replace(job, stack=job.stack.model_copy(update={"memory": memory}))

    assert near_limit_sentences(arena, plans_at(job, 0.99)) == []


def test_the_report_of_a_layout_near_the_limit_says_so(job):
    """It stands with the other sentences on how sure a prediction is."""
    predicted, usable = evaluate(job, "tp=8,mbs=1").predicted, job.cluster.device.memory.usable.value
    near = replace(predicted, peak_memory_bytes_per_device=0.97 * usable)

    assert "num_alloc_retries" in " ".join(surety_sentences(job, [near]))
    assert "num_alloc_retries" not in " ".join(surety_sentences(job, [predicted]))
