"""Serving of models with linear attention: states of requests in vLLM's blocks, and what is refused."""

from dataclasses import replace

import pytest

from autoplan.catalog import load_entry, load_serving_job
from autoplan.catalog.serving_jobs import resolve_serving_job
from autoplan.costs.core.parameters import total_parameters
from autoplan.costs.serving.engine_memory import stage_weights
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.kv_cache import cache_shape, kv_cache_bytes, state_bytes
from autoplan.costs.serving.queueing.scheduler_rules import scheduler_rules
from autoplan.errors import SpecError
from autoplan.planning.serving_plans import evaluate_serving
from autoplan.rules.engine_rules import broken_engine_rules, no_pools
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingSpec

#: Attention and states of Qwen3.5-4B, whose blocks a log of vLLM names.
QWEN_4B = {"hidden_size": 2560, "heads": 16, "kv_heads": 4, "head_dim": 256, "layers": 32}


def scope_of(name, tp=1, **changes):
    """Return the scope of an engine of vLLM that serves a model on H100s."""
    model = load_entry("model", name).model_copy(update=changes)
    return EngineScope(replace(load_serving_job("llama3-70b-8x-h100"), model=model), EngineLayout(tp=tp))


def spec_of(**fields):
    """Return a serving job of Qwen3-Next as its file says it."""
    base = {
        "kind": "serving",
        "model": "qwen3-next-80b-a3b",
        "hardware": "dgx-h100",
        "stack": "vllm@0.33",
        "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 16},
    }
    return ServingSpec.model_validate({**base, **fields})


def test_blocks_hold_a_state():
    """528 tokens of Qwen3.5-4B, as vLLM 0.19.1 logs (vllm-project/vllm#40696): 16 ceil(2146304 / 65536)."""
    scope = scope_of("qwen3.5-35b-a3b", **QWEN_4B)

    assert state_bytes(scope) == 2 * 3 * 8192 + 4 * 32 * 128 * 128
    assert cache_shape(scope, 0).block_tokens == 528


def test_layers_are_divided_into_groups_of_the_rarer_kind():
    """Qwen3-Next has 12 layers with keys and 36 with states: one group and three."""
    shape = cache_shape(scope_of("qwen3-next-80b-a3b"), 0)

    assert (shape.full_groups, shape.state_groups, shape.group_layers, shape.full_layers) == (1, 3, 12, 12)


def test_the_state_of_a_request_does_not_grow():
    """Only layers with softmax attention take more blocks for a longer request."""
    shape = cache_shape(scope_of("qwen3-next-80b-a3b"), 0)
    one, ten = (shape.request_bytes(n * shape.block_tokens) for n in (1, 10))

    assert one == 4 * shape.block_bytes
    assert ten - one == 9 * shape.block_bytes


def test_keys_are_those_of_softmax_attention():
    """A fourth of the layers have keys and values."""
    model = load_entry("model", "qwen3-next-80b-a3b")

    assert kv_cache_bytes(model, 1000, 2) == 12 * 2 * 2 * 256 * 1000 * 2


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "granite-4.0-h-tiny"])
def test_weights_are_all_parameters_in_16_bits(name):
    """On one device an engine has each parameter once, and a table of rotary positions."""
    scope = scope_of(name)
    weights, model = stage_weights(scope, 0), scope.model
    rotary = 2 * model.max_positions * model.head_dim if model.positions == "rope" else 0

    # The vocabulary is padded to a multiple of 64, which both have.
    assert weights.total - rotary == pytest.approx(2 * total_parameters(model), abs=1)


def test_tensor_parallelism_replicates_one_group_of_keys():
    """Two devices have half of Granite's heads each, and both its one group of B and C."""
    one, two = (state_bytes(scope_of("granite-4.0-h-small", tp)) for tp in (1, 2))

    assert one == 2 * 3 * (8192 + 256) + 2 * 128 * 64 * 128
    assert two == 2 * 3 * (4096 + 256) + 64 * 64 * 128 * 2


def test_the_queue_counts_a_block_of_each_group():
    """A short request has one block with keys and one in each group of states."""
    pool = scheduler_rules(scope_of("granite-4.0-h-tiny")).pool

    assert (pool.groups, pool.window_groups, pool.window_blocks) == (1, 9, 1)


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (EngineLayout(tp=32), "must divide the 16 query heads"),
        (EngineLayout(tp=8, dcp=2), "dcp=2 is not supported with the linear attention"),
    ],
)
def test_a_layout_that_vllm_refuses_breaks_a_rule(layout, sentence):
    """Rules say what linear attention does not allow."""
    job = scope_of("qwen3-next-80b-a3b").job

    assert any(sentence in rule for rule in broken_engine_rules(job, layout))


def test_heads_of_keys_are_divided():
    """Key heads that are no single group must be divided by tp."""
    model = load_entry("model", "qwen3-next-80b-a3b")
    linear = model.linear_attention.model_copy(update={"key_heads": 4})
    job = replace(
        scope_of("qwen3-next-80b-a3b").job, model=model.model_copy(update={"linear_attention": linear})
    )
    broken = broken_engine_rules(job, EngineLayout(tp=8))

    assert any("tp=8 must divide the 4 key heads of linear attention" in rule for rule in broken)


def test_a_layout_is_priced_with_a_wider_interval():
    """An answer says that no run of such a model was measured, and decodes take longer with more requests."""
    job = resolve_serving_job(spec_of())
    few, many = (
        evaluate_serving(
            replace(job, workload=job.workload.model_copy(update={"concurrency": n})), "tp=4,ep=4"
        )[1]
        for n in (4, 64)
    )

    assert few.fits
    assert few.time_per_output_token < many.time_per_output_token
    assert any("no run with linear attention was measured" in reason for reason in few.intervals.reasons)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"stack": "sglang"}, "SGLang is not priced, only vLLM"),
        (
            {"speculation": {"method": "ngram", "tokens": [3], "acceptance": 0.5}},
            "speculation is not priced",
        ),
        (
            {
                "workload": {
                    "input_tokens": 1024,
                    "output_tokens": 256,
                    "prefix": {"shared_tokens": 512, "hit_rate": 0.5},
                }
            },
            "a prefix cache is not priced",
        ),
    ],
)
def test_what_is_not_priced_is_refused(fields, sentence):
    """A job that needs more than is priced never gets an answer."""
    with pytest.raises(SpecError, match=sentence):
        resolve_serving_job(spec_of(**fields))


def test_pools_are_refused():
    """States are not sent from prefill to decode."""
    assert "is not priced" in no_pools(resolve_serving_job(spec_of()))
