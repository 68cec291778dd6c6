"""The chosen scheme of a distributed product, why none is possible, and where the choice flips."""

from dataclasses import replace

import numpy as np
import pytest

from autoplan.answers.gemm.single_product import GemmQuestion, pricing_job
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.matmul.distributed_product import Terms
from autoplan.costs.matmul.product import Product
from autoplan.costs.matmul.product_costs import forward_seconds
from autoplan.search.matmul import (
    SchemeQuestion,
    break_even,
    changed_question,
    choice_flips,
    choose_scheme,
    priced_schemes,
    scheme_space,
    undominated,
)


def question_of(product, hardware="dgx-a100-80gb", devices=8, terms=None):
    """Return the question and its priced candidates."""
    job = pricing_job(GemmQuestion(1, 1, 1, hardware=hardware, devices=devices))
    question = SchemeQuestion(product, terms or Terms(), job, machine_of(job), 0.0)
    grids = scheme_space(product, devices, job.cluster.node.devices, question.terms)
    return question, priced_schemes(question, grids)


def chosen_key(question, priced, allowed=()):
    """Return the scheme and grid that are chosen."""
    chosen = choose_scheme(priced, memory_limit_bytes(question.job), allowed)
    return priced.key(chosen.index)


def test_a_long_inner_extent_is_split_with_one_reduction_at_the_end():
    """Tall and skinny operands, as of X^T X: each device multiplies its rows, one reduction adds them up."""
    question, priced = question_of(Product(256, 256, 2**22))

    assert chosen_key(question, priced)[0] == "inner"
    assert (
        chosen_key(*question_of(Product(256, 256, 2**22), terms=Terms("one-copy", "replicated")))[0]
        == "inner"
    )


def test_tall_operands_are_split_by_rows():
    """Many rows and a small W: W is gathered, and A and Y stay where they are."""
    assert chosen_key(*question_of(Product(2**21, 256, 256)))[0] == "rows"
    assert chosen_key(*question_of(Product(256, 2**21, 256)))[0] == "columns"


def test_a_batch_is_split_before_its_products_are():
    """As many products as devices need no communication."""
    question, priced = question_of(Product(4096, 4096, 4096, batch=8))
    chosen = choose_scheme(priced, memory_limit_bytes(question.job))

    assert priced.key(chosen.index) == ("batch", 8, 1, 1, 1)
    assert priced.bytes[chosen.index] == 0.0


def test_small_products_of_a_batch_communicate_together():
    """Where latency is most of a message, a batch that no grid can share out is aggregated."""
    question, priced = question_of(Product(512, 512, 4096, batch=4))
    chosen = choose_scheme(priced, memory_limit_bytes(question.job))
    alone = priced.grids.together == 0

    assert priced.grids.together[chosen.index] == 1
    assert priced.times.seconds[chosen.index] < np.min(priced.times.seconds[alone])


def test_the_axis_that_moves_most_stays_inside_the_node():
    """S6: across nodes, the order of the axes is chosen, and the fabric carries more than the network."""
    question, priced = question_of(Product(16384, 16384, 16384), "selene", 64)
    chosen = choose_scheme(priced, memory_limit_bytes(question.job))
    key = priced.key(chosen.index)
    same = [i for i in range(len(priced.grids)) if priced.key(i) == key]
    orders = {
        tuple(int(getattr(priced.grids, f"{x}_stride")[i]) for x in ("rows", "columns", "inner"))
        for i in same
    }

    assert len(orders) > 1
    assert priced.times.seconds[chosen.index] == min(priced.times.seconds[i] for i in same)
    worst = max(
        min(priced.times.seconds[i] for i in same if orders_of(priced, i) == order) for order in orders
    )
    assert worst > 1.2 * priced.times.seconds[chosen.index]


def orders_of(priced, i):
    """Return the strides of a candidate's axes."""
    return tuple(int(getattr(priced.grids, f"{x}_stride")[i]) for x in ("rows", "columns", "inner"))


def test_less_memory_takes_a_scheme_that_needs_less():
    """A strict budget excludes the fastest scheme; the next one that fits is chosen."""
    question, priced = question_of(Product(16384, 16384, 16384))
    free = choose_scheme(priced, memory_limit_bytes(question.job))
    needed = priced.memory.needed[free.index]
    strict = choose_scheme(priced, needed - 2**20)

    assert priced.memory.needed[strict.index] < needed
    assert strict.seconds > free.seconds


def test_a_conflict_names_only_the_rules_that_matter():
    """Too little memory for all, no grid for a scheme, or both rules only together."""
    question, priced = question_of(Product(16384, 16384, 16384))
    least = float(np.min(priced.memory.needed))
    cannon = question_of(Product(16384, 16384, 16384))[1]
    inner = np.array([name == "inner" for name in priced.names])
    between = (least + float(np.min(priced.memory.needed[inner]))) / 2

    assert choose_scheme(priced, least / 2).conflict == ("memory",)
    assert choose_scheme(cannon, 1e12, ("cannon",)).conflict == ("scheme",)
    assert choose_scheme(priced, between, ("inner",)).conflict == ("memory", "scheme")
    assert memory_limit_bytes(question.job) > between


def test_dominated_candidates_are_never_best():
    """What is left out is slower and larger than a candidate of the same scheme and grid."""
    _, priced = question_of(Product(8192, 8192, 8192))
    kept = set(undominated(priced).tolist())

    assert 0 < len(kept) < len(priced.grids)
    for i in range(len(priced.grids)):
        alike = [j for j in kept if priced.key(j) == priced.key(i)]
        assert any(
            priced.times.seconds[j] <= priced.times.seconds[i]
            and priced.memory.needed[j] <= priced.memory.needed[i]
            for j in alike
        )


@pytest.mark.parametrize(
    ("hardware", "devices"), [("dgx-a100-80gb", 4), pytest.param("selene", 16, marks=pytest.mark.slow)]
)
def test_the_choice_flips_where_it_is_said_to(hardware, devices):
    """On each side of a flip all candidates, priced anew, have the choice that the flip says."""
    question, priced = question_of(Product(16384, 16384, 16384), hardware, devices)
    limit = memory_limit_bytes(question.job)
    here = chosen_key(question, priced)
    flips = list(choice_flips(question, priced, limit))

    assert {flip.parameter for flip in flips} == {"latency", "bandwidth", "rows"}
    for flip in flips:
        for value, key in zip((flip.near, flip.far), flip.choices, strict=True):
            asked = changed_question(question, flip.parameter, value)
            grids = scheme_space(asked.product, devices, asked.job.cluster.node.devices, asked.terms)
            found = priced_schemes(asked, grids)
            index = choose_scheme(found, limit).index

            assert (None if index is None else found.key(index)) == key
        assert flip.choices[0] == here
        wide = 1.0 if flip.parameter == "rows" else 2e-6 * flip.near
        assert 0 < abs(flip.far - flip.near) <= wide


def test_an_equally_fast_choice_is_no_flip():
    """With slow links a split of the inner extent only equals one of rows: what is said to be faster is."""
    question, priced = question_of(Product(4096, 4096, 4096), "2x-rtx4090", 2)
    limit = memory_limit_bytes(question.job)
    flips = list(choice_flips(question, priced, limit))

    assert flips
    for flip in flips:
        grids = scheme_space(replace(question.product, m=int(flip.far)), 2, 2, Terms())
        if flip.parameter != "rows":
            grids = priced.grids
        there = priced_schemes(changed_question(question, flip.parameter, flip.far), grids)
        usual = [there.times.seconds[i] for i in range(len(grids)) if there.key(i) == flip.choices[0]]
        assert flip.choices[1] is None or min(usual, default=np.inf) > flip.seconds[1]


def test_a_bandwidth_without_end_flips_to_less_work_at_a_time():
    """With links of any speed no scheme is chosen for its bytes: communication no longer counts."""
    question, priced = question_of(Product(16384, 16384, 16384), "dgx-a100-80gb", 4)
    faster = changed_question(question, "bandwidth", 1e6)
    faster = changed_question(faster, "latency", 1e-6)
    times = priced_schemes(faster, priced.grids).times

    assert np.allclose(
        times.seconds[priced.grids.steps == 1], times.compute[priced.grids.steps == 1], rtol=1e-3
    )


def test_operands_in_place_need_no_gathers():
    """With A and W where they are needed, a column-parallel product sends nothing but its result."""
    placed = Terms("in-place", "replicated")
    _, priced = question_of(Product(8192, 8192, 8192), devices=4, terms=placed)
    by_name = {priced.names[i]: i for i in range(len(priced.grids))}

    assert priced.bytes[by_name["columns"]] == 3 / 4 * 2 * 8192**2
    assert priced.bytes[by_name["inner"]] == 2 * 3 / 4 * 2 * 8192**2
    assert "cannon" not in by_name


def test_rows_that_are_fewer_than_devices_are_not_split():
    """No part of a grid is empty."""
    question, _ = question_of(Product(3, 8192, 8192))
    grids = scheme_space(replace(question.product, n=1), 8, 8, Terms())

    assert (grids.rows <= 3).all()
    assert (grids.columns == 1).all()
    assert len(scheme_space(Product(1, 1, 1), 4, 8, Terms())) == 0


@pytest.mark.parametrize(("hardware", "devices"), [("dgx-a100-80gb", 8), ("2x-rtx4090", 2)])
@pytest.mark.parametrize("m", [512, 65536])
def test_several_devices_pay_from_the_rows_that_are_named(hardware, devices, m):
    """One row less, and one device that has all operands is as fast as the best scheme."""
    question, priced = question_of(Product(m, 2048, 2048), hardware, devices)
    limit = memory_limit_bytes(question.job)
    found = break_even(question, priced, limit)

    assert found.several - found.one == 1
    for rows, pays in ((found.one, False), (found.several, True)):
        asked = changed_question(question, "rows", rows)
        grids = scheme_space(asked.product, devices, question.job.cluster.node.devices, asked.terms)
        several = choose_scheme(priced_schemes(asked, grids), limit).seconds

        assert (several < forward_seconds(asked.product, asked.machine)) == pays
