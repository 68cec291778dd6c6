"""What requests of each class see: closed forms against the simulation, and prefixes of single classes."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoplan.costs.serving.classes import class_lengths, class_times
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.open_loop import open_loop
from autoplan.costs.serving.queueing.request_load import EngineQueue, length_moments
from autoplan.costs.serving.queueing.run_statistics import run_statistics
from autoplan.costs.serving.queueing.scheduler_rules import CachedPrefix
from autoplan.costs.serving.queueing.steady_state import closed_loop, maximum
from tests.support.affine_iteration import AffineIteration
from tests.support.request_classes import load_of_classes
from tests.support.serving_queues import ENGINES, RoofIteration, rules_of

ITERATIONS = (AffineIteration(8e-3, 2e-5, 8e-8, 5e-5, 1e-9), RoofIteration())

#: Two or three classes: shares, longest prompts and longest answers.
classes = st.lists(
    st.tuples(st.integers(64, 4000), st.integers(120, 800)), min_size=2, max_size=3, unique=True
).map(lambda lengths: [(1 / len(lengths), *own) for own in lengths])
engines = st.sampled_from(ENGINES)
iterations = st.sampled_from(ITERATIONS)


def near(predicted, simulated, share):
    """Whether two values differ by no more than a share."""
    return math.isclose(predicted, simulated, rel_tol=share)


def differing(point, load, rules, iteration, cut, *, first):
    """Return the times of classes that the closed form has otherwise than a simulation of the same load."""
    lengths = length_moments(load, rules)
    times = class_times(point, EngineQueue(lengths, rules, iteration), class_lengths(load, rules))
    names = [str(number) for number in range(len(times))]
    run = run_statistics(simulate(load, rules, iteration), warm=cut, drain=cut, names=names)
    wrong = [] if [known.name for known in run.classes] == names else ["classes"]
    for closed, known, own in zip(times, run.classes, class_lengths(load, rules), strict=True):
        latency = closed.time_to_first_token + (own.output - 1) * closed.time_per_output_token
        compared = (
            ("time per token", closed.time_per_output_token, known.time_per_output_token.mean, 0.05),
            ("latency", latency, known.request_latency.mean, 0.05),
            ("first token", closed.time_to_first_token, known.time_to_first_token.mean, first),
        )
        wrong += [
            (known.name, what, one, two) for what, one, two, share in compared if not near(one, two, share)
        ]
    return wrong


def prefill_share(point):
    """Return the part of the time that prompts take: a steady state has decodes most of the time."""
    return 1 - point.decode_step_seconds / point.step_seconds


@given(classes=classes, clients=st.integers(1, 100), iteration=iterations, seed=st.integers(0, 99))
@settings(max_examples=6, deadline=None)
def test_classes_of_a_closed_loop_in_closed_form(classes, clients, iteration, seed):
    """Time per token and latency of each class lie within 5 % of the simulation, the first token too (V3)."""
    rules = rules_of(ENGINES[0], seqs=256, tokens=8192, blocks=40_000)
    load = load_of_classes(classes, clients * 12 + 900, seed, clients=clients)
    point = closed_loop(
        clients, EngineQueue(length_moments(load, rules), rules, iteration), client_seconds=1e-3
    )
    assume(prefill_share(point) < 0.3)

    assert differing(point, load, rules, iteration, max(100, 2 * clients), first=0.05) == []


@given(
    classes=classes,
    share=st.floats(0.1, 0.4),
    engine=engines,
    ahead=st.booleans(),
    iteration=iterations,
    seed=st.integers(0, 99),
)
@settings(max_examples=6, deadline=None)
def test_classes_of_an_open_loop_in_closed_form(classes, share, engine, ahead, iteration, seed):
    """Time per token and latency of each class lie within 5 % of the simulation, TTFT within 12 %."""
    rules = rules_of(engine, seqs=256, tokens=8192, blocks=40_000, asynchronous=ahead)
    sample = length_moments(load_of_classes(classes, 500, seed), rules)
    rate = share * maximum(EngineQueue(sample, rules, iteration), at_once=False).requests_per_second
    load = load_of_classes(classes, 3000, seed, rate=rate)
    point = open_loop(rate, EngineQueue(length_moments(load, rules), rules, iteration))
    assume(prefill_share(point) < 0.2)

    assert differing(point, load, rules, iteration, 300, first=0.12) == []


@given(
    classes=classes,
    prefixes=st.lists(
        st.builds(CachedPrefix, st.integers(0, 1500), st.sampled_from((0.0, 0.5))), min_size=3, max_size=3
    ),
    engine=engines,
    blocks=st.sampled_from((420, 700)),
    iteration=iterations,
)
@settings(max_examples=25, deadline=None)
def test_prefixes_of_classes_conserve_tokens_and_blocks(classes, prefixes, engine, blocks, iteration):
    """Each class computes what its own prefix leaves, and holds the blocks of what it does not share (V4)."""
    load = load_of_classes(classes, 40, clients=6)
    rules = rules_of(engine, seqs=16, tokens=2048, blocks=blocks)
    # As the engine's room for prefixes: one copy of each.
    held = sum(prefix.shared_tokens // 16 for prefix in prefixes[: len(classes)])
    rules = replace(
        rules, pool=replace(rules.pool, prefix_blocks=held), prefixes=tuple(prefixes[: len(classes)])
    )
    assume(rules.pool.own_blocks > 320)
    run = simulate(load, rules, iteration)

    prompts = sum(n - rules.cached_tokens(n, kind) for n, kind in zip(load.inputs, load.kinds, strict=True))
    assert run.free == rules.pool.own_blocks
    assert run.counts.least_free >= 0
    assert run.counts.prefilled >= prompts
    assert run.counts.preempted or run.counts.prefilled == prompts


def test_a_prefix_of_one_class_hastens_its_first_token_alone():
    """The class that finds its prompt in the cache computes less; the other one only waits less for it."""
    kinds = [(0.5, 2000, 200), (0.5, 2000, 201)]
    iteration = ITERATIONS[0]
    plain = rules_of(ENGINES[0], seqs=256, tokens=8192, blocks=40_000)
    own = replace(plain, prefixes=(CachedPrefix(960), CachedPrefix()))
    load = load_of_classes(kinds, 3000, clients=4)
    first = {}
    for name, rules in (("plain", plain), ("own", own)):
        lengths = length_moments(load, rules)
        point = closed_loop(4, EngineQueue(lengths, rules, iteration), client_seconds=1e-3)
        first[name] = [
            times.time_to_first_token
            for times in class_times(
                point, EngineQueue(lengths, rules, iteration), class_lengths(load, rules)
            )
        ]

    gain = [before - after for before, after in zip(first["plain"], first["own"], strict=True)]
    assert gain[0] > 960 * 5e-5 > gain[1] > 0


@pytest.mark.parametrize("clients", [1, 3])
def test_classes_that_are_alike_see_the_same(clients):
    """Two classes of the same lengths are one class."""
    load = load_of_classes([(0.5, 600, 200), (0.5, 600, 200)], 1500, clients=clients)
    rules = rules_of(ENGINES[0], seqs=256, tokens=8192, blocks=40_000)
    lengths = length_moments(load, rules)
    point = closed_loop(clients, EngineQueue(lengths, rules, ITERATIONS[0]), client_seconds=1e-3)
    one, other = class_times(point, EngineQueue(lengths, rules, ITERATIONS[0]), class_lengths(load, rules))

    assert near(one.time_to_first_token, other.time_to_first_token, 0.02)
    assert near(one.time_per_output_token, other.time_per_output_token, 0.01)
