"""Bytes over the fabric and over the network: nothing is lost, and nothing crosses inside a node."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.costs.device.machine import Links
from autoplan.costs.network.collectives import (
    Group,
    bus_bandwidth_factor,
    link_bytes,
    point_to_point_seconds,
)
from autoplan.planning import communicating

POWERS = st.integers(0, 6).map(lambda n: 2.0**n)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def links(devices):
    """Return links of nodes with so many devices."""
    return Links(devices, 7e9, 7e9, False, 0.0, 1e9, 0.0, 0.0, ())


@given(st.sampled_from(OPERATIONS), POWERS, POWERS, st.sampled_from([1, 2, 4, 8, 16]))
def test_both_links_together_carry_what_a_rank_sends(operation, ranks, stride, devices):
    """f(n) V in total; nothing over the network inside a node, all of it where no two ranks share one."""
    group = Group(np.array(ranks), np.array(stride))
    fabric, network = link_bytes(operation, np.array(1024.0), group, links(devices))
    inside = float(group.ranks_in_node(links(devices)))

    assert float(fabric + network) == pytest.approx(
        1024.0 * float(bus_bandwidth_factor(operation, group.ranks))
    )
    assert float(fabric) >= 0 <= float(network)
    if inside == ranks:
        assert network == 0
    elif inside == 1:
        assert float(fabric) == pytest.approx(0.0)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_the_card_of_a_node_is_busy_whoever_sends(stages):
    """With one card, the ranks at the edge of a node send through all of it, be they one or eight.

    Where each device has a card of its own, one that sends alone is no faster.
    """
    pipeline = Group(np.array(2.0 * stages), np.array(8.0 / stages))
    size = np.array(1e9)
    own = links(8)
    shared = replace(own, shared_card=True)
    inside = 1e9 / 7e9
    alone, busy = (2 * float(point_to_point_seconds(size, pipeline, x)) - inside for x in (own, shared))
    senders = 8 / stages

    assert alone == pytest.approx(1e9 / own.network_bandwidth)
    assert senders * 1e9 / busy == pytest.approx(8 * own.network_bandwidth)


def test_placement_adds_up_to_what_is_communicated():
    """By stage and axis, both links carry the bytes of the messages times what a rank sends of them."""
    job, layout = "gpt3-175b-128x-a100", "tp=8,pp=4,recompute=full"
    sent = {}
    for x in communicating.communication(job, layout):
        factor = (
            1.0
            if x.operation == "send"
            else float(bus_bandwidth_factor(x.operation, np.array(float(x.ranks))))
        )
        key = (x.stage, x.axis, x.ranks, x.stride)
        sent[key] = sent.get(key, 0.0) + factor * x.bytes
    traffic = communicating.placement(job, layout).traffic

    assert {(x.stage, x.axis, x.ranks, x.stride): x.fabric_bytes + x.network_bytes for x in traffic} == {
        key: pytest.approx(size) for key, size in sent.items()
    }
    assert all(x.network_bytes == 0 for x in traffic if x.axis == "tp")
    assert all(x.fabric_bytes == 0 for x in traffic if x.axis == "pp")
