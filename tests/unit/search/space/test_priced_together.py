"""Groups of one depth priced together have the prices that each has alone."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from autoplan import load_job
from autoplan.catalog import stack
from autoplan.costs.core.candidates import Candidates, joined
from autoplan.costs.device.machine import machine_of
from autoplan.costs.stage.mixed_stages import price_layer_types
from autoplan.schema.layout import parse_layout
from autoplan.search.space.choices import recompute_modes
from autoplan.search.space.priced_candidates import all_priced, priced, sized

CASES = Path(__file__).parents[4] / "benchmarks" / "speed" / "cases"


def arrays_of(record):
    """Yield every array of a dataclass of arrays, in the order of its fields."""
    values = (
        record.values() if isinstance(record, dict) else (getattr(record, x.name) for x in fields(record))
    )
    for value in values:
        yield from [value] if isinstance(value, np.ndarray) else arrays_of(value)


def test_groups_of_a_depth_have_the_prices_that_each_has_alone():
    """Candidates of one and of two chunks a device are different groups where layers differ."""
    job = load_job(CASES / "llama4-maverick-512x-h100.yaml")
    texts = (
        "tp=8,pp=8,ep=8,mbs=1,zero=1",
        "tp=8,pp=8,ep=8,mbs=2,zero=1",
        "tp=8,pp=8,ep=8,mbs=1,zero=1,vpp=2",
    )
    layouts = [parse_layout(text, layers=48, devices=512) for text in texts]
    candidates = joined([Candidates.of([layout]) for layout in layouts])
    groups, machine = sized(job, candidates, recompute_modes(job), even=False), machine_of(job)
    together = all_priced(job, groups, machine)
    assert [len(group.candidates) for group in together] == [2, 1]
    for group, own in zip(together, groups, strict=True):
        alone = priced(job, own, machine)
        assert np.array_equal(group.m, alone.m)
        for kind, kind_alone in zip(group.kinds, alone.kinds, strict=True):
            pairs = zip(arrays_of(kind), arrays_of(kind_alone), strict=True)
            assert all(np.array_equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize(("stack_name", "tail"), [("megatron-core", "zero=1"), ("analytic", "zero=2,mbs=2")])
def test_candidates_that_share_seconds_have_the_prices_that_each_has_alone(stack_name, tail):
    """Virtual stages, recompute units, schedules and offload change what is shared, and no price."""
    job = replace(load_job("llama3-8b-8x-a100"), stack=stack(stack_name))
    choices = (
        "schedule=1f1b",
        "schedule=gpipe",
        "schedule=zero-bubble",
        "vpp=2",
        "vpp=4",
        "recompute=full,recompute_num_layers=4",
        "recompute=full,offload=activations",
        "recompute=full,offload=activations,recompute_num_layers=4",
    )
    layouts = [parse_layout(f"tp=2,pp=2,{x},{tail}", layers=32, devices=8) for x in choices]
    machine = machine_of(job)
    # Only of many candidates are those alike looked for.
    (together,) = price_layer_types(job, Candidates.of(layouts * 40), machine)
    for row, layout in enumerate(layouts):
        (alone,) = price_layer_types(job, Candidates.of([layout]), machine)
        pairs = zip(arrays_of(together.take(slice(row, row + 1))), arrays_of(alone), strict=True)
        assert all(np.array_equal(ours, theirs) for ours, theirs in pairs)
