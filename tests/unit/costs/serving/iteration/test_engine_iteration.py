"""One iteration of an engine on jobs whose times are known from the design or from arithmetic."""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest

from autoplan.catalog import engine_kernels_for, kernels_for, load_entry, load_serving_job
from autoplan.costs.core.iteration import Chunk
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import GroupIteration, RepeatedIteration
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration
from autoplan.costs.serving.iteration.layer_prices import launch_seconds, launched_kernels
from autoplan.errors import UnsupportedError
from autoplan.schema.serving.engine_layout import EngineLayout
from tests.support.affine_iteration import AffineIteration


def built(name="llama3.1-8b-1x-h100", layout=None, **changes):
    """Return the price of iterations of a job, with changed facts of a step."""
    job = load_serving_job(name)
    facts = job.engine.facts
    step = facts.step.model_copy(update=changes)
    job = replace(job, engine=replace(job.engine, facts=facts.model_copy(update={"step": step})))
    device = job.cluster.device.name
    return engine_iteration(
        EngineScope(job, layout or EngineLayout()), kernels_for(device), engine_kernels_for(device)
    )


def with_value(number, value):
    """Return a sourced number with another value."""
    return number.model_copy(update={"value": value})


@pytest.mark.parametrize(
    ("requests", "context", "least"),
    [(1, 1024, 4.52e-3), (64, 4096, 4.48e-3 + 64 * 4096 * 131_072 / 3.35e12)],
)
def test_a_decode_step_lies_above_its_reads_and_below_twice(requests, context, least):
    """The lower bounds of the design for 8B in bf16 on an H100, within a factor of two."""
    seconds = built().seconds(requests, requests * context)

    assert 0.97 * least < seconds < 2.2 * least


def test_tensor_parallelism_makes_a_step_shorter_by_less_than_its_degree():
    """All-reduces and launches do not divide."""
    one = built("llama3-70b-8x-h100", EngineLayout(tp=2, weights="fp8")).seconds(16, 16 * 2048)
    four = built("llama3-70b-8x-h100", EngineLayout(tp=8, weights="fp8")).seconds(16, 16 * 2048)

    assert one / 4 < four < one


def test_pipeline_stages_do_not_make_one_request_faster():
    """Stages are in series for a single request."""
    alone = built("llama3-70b-8x-h100", EngineLayout(tp=4)).seconds(1, 2048)
    staged = built("llama3-70b-8x-h100", EngineLayout(tp=4, pp=2)).seconds(1, 2048)

    assert staged >= alone


def test_an_asynchronous_host_hides_behind_the_device():
    """With async scheduling the longer of both counts, else their sum."""
    hidden = built()
    seen = replace(hidden, host=replace(hidden.host, hidden=False, step=2e-3))
    hidden = replace(hidden, host=replace(hidden.host, hidden=True, step=2e-3, per_request=0.0))
    device = replace(hidden, host=replace(hidden.host, step=0.0)).seconds(8, 8192)

    assert hidden.seconds(8, 8192) == device
    assert seen.seconds(8, 8192) >= device + 2e-3


def test_a_host_that_launches_every_kernel_does_so_beside_its_own_work():
    """One thread schedules and launches: outside of graphs, where the host is what lasts, both count."""
    iteration = built(graphs="none")
    host = replace(iteration.host, hidden=True, step=40e-3, per_request=0.0, eager=25e-3)

    assert replace(iteration, host=host).seconds(8, 8192) == pytest.approx(65e-3)


def test_attention_by_head_reads_keys_for_every_query_head():
    """Kernels that do not group heads read the cache of 8B four times, and long contexts take longer."""
    grouped, by_head = built(), built(decode_attention="by head")

    assert by_head.decode.at(64, 8192) > 2 * grouped.decode.at(64, 8192)


def test_experts_in_triton_take_longer_to_launch():
    """A Hopper device has mxfp4 experts in Triton, a Blackwell one in compiled kernels."""
    hopper, layout = load_serving_job("gpt-oss-120b-1x-h100"), EngineLayout(weights="mxfp4")
    cluster = replace(hopper.cluster, device=load_entry("device", "b200-sxm-180gb"))
    blackwell = replace(hopper, cluster=cluster)

    triton, compiled = EngineScope(hopper, layout), EngineScope(blackwell, layout)
    assert launch_seconds(triton, 8e-6) > 3 * launch_seconds(compiled, 8e-6)
    assert launch_seconds(triton, 0.0) == pytest.approx(36 * 0.88e-3)


def test_a_batch_is_padded_to_the_next_captured_size():
    """Nine requests take the products of sixteen in a graph, up to attention and sampling."""
    iteration = built()

    assert iteration.captured.at(16) > iteration.captured.at(9)
    assert iteration.seconds(9, 0) == pytest.approx(iteration.seconds(16, 0), rel=0.05)


def test_eager_steps_wait_for_the_launches_of_the_host():
    """Without graphs a small step takes as long as launching its kernels."""
    job = load_serving_job("llama3.1-8b-1x-h100")
    step = job.engine.facts.step
    slow = built(graphs="none", eager_kernel=with_value(step.eager_kernel, 50e-6))

    assert slow.seconds(1, 128) >= launched_kernels(EngineScope(job, EngineLayout())) * 50e-6


def test_the_past_of_a_chunk_is_not_computed_again():
    """The second half of a prompt attends to all of it, and takes less than the whole."""
    iteration = built()
    whole, second = iteration.seconds(0, 0, [Chunk(8192)]), iteration.seconds(0, 0, [Chunk(4096, 4096)])
    first = iteration.seconds(0, 0, [Chunk(4096)])

    assert first < second < whole


def test_groups_of_attention_share_the_experts():
    """Eight groups with four requests each are one engine with thirty-two."""
    whole = built("deepseek-v3-8x-h200", EngineLayout(adp=8, ep=8, weights="fp8-block"))
    group = GroupIteration(whole, 8)

    assert group.seconds(4, 4096) == whole.seconds(32, 8 * 4096)
    assert group.decode_run(4, 4096, 10) == whole.decode_run(32, 8 * 4096, 10)


def test_an_engine_without_times_of_a_step_is_refused():
    """A file of one's own may leave `step` out: then there is no prediction, and it says why."""
    job = load_serving_job("llama3.1-8b-1x-h100")
    facts = job.engine.facts.model_copy(update={"step": None})
    job = replace(job, engine=replace(job.engine, facts=facts))

    with pytest.raises(UnsupportedError, match="has no `step`"):
        engine_iteration(EngineScope(job, EngineLayout()), kernels_for("h100-sxm5-80gb"), None)


class CountedIteration(AffineIteration):
    """An iteration that counts how often it is asked for each step."""

    asked: ClassVar[Counter] = Counter()

    def seconds(self, decodes, context_tokens, chunks=()):
        """Return the time of a sum, and count it."""
        self.asked[decodes, context_tokens, tuple(chunks)] += 1
        return super().seconds(decodes, context_tokens, chunks)


def test_repeated_steps_are_priced_once_at_the_same_time():
    """A step that is asked for again is not priced again, however many others were in between."""
    counted = CountedIteration(1.0, 0.5, per_context=0.125, per_token=0.25)
    repeated, steps = RepeatedIteration(counted), [[], [Chunk(3)], [Chunk(3), Chunk(1, 8)]]
    for _ in range(2):
        for decodes in range(300):
            for chunks in steps:
                price = repeated.seconds(decodes, 8.0 * decodes, chunks)
                assert price == AffineIteration.seconds(counted, decodes, 8.0 * decodes, chunks)
    assert set(counted.asked.values()) == {1}


def test_no_more_than_the_last_steps_are_kept():
    """A caller that never asks twice gets every price, and what is kept stays small."""
    repeated = RepeatedIteration(AffineIteration(1.0, 0.5))
    for decodes in range(5000):
        assert repeated.seconds(decodes, 0.0) == 1.0 + 0.5 * decodes
        assert len(repeated._times) <= 1000
