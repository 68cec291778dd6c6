"""No device is slower than a sibling that has at most as much of everything, and whose kernels a device has.

Siblings have a maker and an architecture in common, and nodes of one topology. One has as much of everything
where each number of its data sheet is as good: peaks, memory, bandwidths, caches, links, slot, and the host
and network of the node. Kernels from sweeps of two devices may cross by what the sweeps differ.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations
from statistics import mean

import pytest

from autoplan import evaluate
from autoplan.catalog import entry_names, kernels_for, load_entry, load_job, load_serving_job, stack
from autoplan.catalog.relatives import (
    engine_kernels_for,
    engine_kernels_origin,
    own_kernels,
    relatives_kernels,
)
from autoplan.costs.predict import predict
from autoplan.errors import AutoplanError
from autoplan.schema.hardware import sourced_numbers
from autoplan.schema.job import Cluster, Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.serving.request_lengths import ServingWorkload
from tests.support.quick_cases import slow_after

DEVICES = entry_names("device")
#: Waves of tiles and classes of engines step: what a device may lose to a lesser sibling.
STEPS = 0.02
#: The same between sweeps of two devices, which differ by shapes, software and clocks.
SWEEPS = 0.05
#: Numbers of a data sheet of which less is better, and those that are no strength.
LESS, NEITHER = {"fabric.latency", "network.latency"}, {"power"}

TRAINING = [
    ("llama3-8b", "fsdp2", "bf16", {1: ("mbs=1",), 8: ("zero=3", "tp=8")}),
    ("gpt2-xl", "analytic", "fp16", {1: ("mbs=4",), 8: ("zero=0", "tp=4,pp=2")}),
    ("llama3-8b", "megatron-core", "fp8", {1: ("mbs=1",), 8: ("tp=8", "pp=4,tp=2")}),
    ("mixtral-8x7b", "megatron-core", "bf16", {8: ("ep=8", "tp=8")}),
    ("gpt2", "analytic", "bf16", {1: ("mbs=8",), 8: ("tp=4", "pp=4")}),
]
SERVING = ["llama3.2-1b", "qwen2.5-3b"]


def node_of(name, devices):
    """Return the node of so many of the device."""
    return load_entry("node", f"{devices}x-{name}")


@cache
def data_sheet(name, devices):
    """Return the numbers of a device and of its node: more is better."""
    entries = load_entry("device", name), node_of(name, devices)
    known = {
        where: x.value for entry in entries for where, x in sourced_numbers(entry) if where not in NEITHER
    }
    return {where: -value if where in LESS else value for where, value in known.items()}


def siblings(devices):
    """Return the pairs of devices of which the second has at least as much of everything."""
    return [pair for pair in permutations(DEVICES, 2) if _as_much(*pair, devices)]


def _as_much(less, more, devices):
    one, two = (load_entry("device", name) for name in (less, more))
    nodes = [node_of(name, devices) for name in (less, more)]
    if (one.vendor, one.architecture) != (two.vendor, two.architecture) or len(
        {n.fabric.topology for n in nodes}
    ) > 1:
        return False
    # Boxes that copy through the host differ by host: one that a file describes is not like a guess.
    if (
        devices > 1
        and nodes[0].fabric.topology == "host"
        and len({n.derived_from is None for n in nodes}) > 1
    ):
        return False
    few, many = data_sheet(less, devices), data_sheet(more, devices)
    return all(where in many and many[where] >= value for where, value in few.items())


def tolerance(less, more):
    """Return what the second may lose: more where their kernels were measured in sweeps of two devices."""
    return STEPS if len({_origin(less), _origin(more)}) == 1 else SWEEPS


def _origin(name):
    """Return the files that the kernels of a device are of, for training and for engines."""
    engines = engine_kernels_for(name)
    return kernels_for(name).name, engines and engines[0].name


def losses(figures, devices):
    """Return the pairs whose second device is slower than it may be, by how much."""
    both = [(less, more) for less, more in siblings(devices) if less in figures and more in figures]
    lost = {
        (less, more, key): figures[more][key] / value - 1.0
        for less, more in both
        for key, value in figures[less].items()
        if key in figures[more]
    }
    assert lost, "no two devices compare"
    return {case: share for case, share in lost.items() if share > tolerance(*case[:2])}


def trained(name, devices, model, software, precision, layouts):
    """Return the step time of each layout on a node of the device; of none where it lacks the precision."""
    of, specification = load_entry("device", name), load_entry("model", model)
    if of.peak_flops(precision) is None:
        return {}
    job = replace(
        load_job("llama3-8b-8x-a100"),
        model=specification,
        cluster=Cluster(device=of, node=node_of(name, devices), devices=devices),
        kernels=kernels_for(name),
        stack=stack(software),
        workload=Workload(sequence_length=1024, global_batch_size=64),
        precision=precision,
    )
    read = {text: parse_layout(text, layers=specification.layers, devices=devices) for text in layouts}
    return {text: predict(job, layout).step_seconds for text, layout in read.items()}


def served(name, devices, model):
    """Return the times of an engine on a node of the device; of none where it does not start."""
    job = replace(
        load_serving_job("llama3.1-8b-1x-h100"),
        cluster=Cluster(device=load_entry("device", name), node=node_of(name, devices), devices=devices),
        model=load_entry("model", model),
        workload=ServingWorkload(input_tokens=256, output_tokens=64, concurrency=1),
    )
    try:
        plan = evaluate(job, f"tp={devices},seqs=32,tokens=8192")
    except AutoplanError:
        return {}
    if not plan.fits:
        return {}
    return {"prefill": plan.time_to_first_token, "decode": plan.time_per_output_token}


@pytest.mark.parametrize(("model", "software", "precision", "layouts"), slow_after(2, TRAINING))
@pytest.mark.parametrize("devices", [1, 8])
def test_no_device_trains_slower_than_one_that_has_less_of_everything(
    model, software, precision, layouts, devices
):
    """Of all pairs of the catalogue, the one with as much of everything takes no longer for a step."""
    figures = {
        name: trained(name, devices, model, software, precision, layouts.get(devices, ())) for name in DEVICES
    }
    assert devices not in layouts or losses(figures, devices) == {}


@pytest.mark.parametrize("model", slow_after(1, SERVING))
@pytest.mark.parametrize("devices", [1, 4])
def test_no_device_serves_slower_than_one_that_has_less_of_everything(model, devices):
    """Of all pairs of the catalogue, the one with as much of everything prefills and decodes as fast."""
    assert losses({name: served(name, devices, model) for name in DEVICES}, devices) == {}


def test_a_device_without_kernels_has_those_of_a_relative_or_the_mean():
    """A relative was measured itself, and has the maker, architecture and kind of memory of the device."""
    taken = {name: relatives_kernels(name) for name in DEVICES if own_kernels(name) is None}
    relatives = {
        name: load_entry("device", kernels.devices[0]) for name, kernels in taken.items() if kernels.devices
    }

    assert {name: kernels.name for name, kernels in taken.items()}["mi350x"] == "mi355x"
    for name, relative in relatives.items():
        of = load_entry("device", name)
        assert (relative.vendor, relative.architecture) == (of.vendor, of.architecture)
        assert len({x.memory.technology.startswith("HBM") for x in (relative, of)}) == 1
    assert all(kernels.name == "default" for name, kernels in taken.items() if name not in relatives)
    measured = {load_entry("device", name).architecture for name in DEVICES if own_kernels(name)}
    assert not measured & {load_entry("device", name).architecture for name in taken if name not in relatives}


def test_a_device_that_was_not_measured_says_so_for_training_and_serving():
    """No curve that is lent, or a relative's, counts as measured on the device; the relative is named."""
    for name in DEVICES:
        kernels, (measured, taken_from) = kernels_for(name), engine_kernels_origin(name)
        if own_kernels(name) is None:
            assert name not in kernels.devices
        assert taken_from is None or not measured
        if not measured and kernels.devices and name not in kernels.devices:
            of, relative = (load_entry("device", known) for known in (name, taken_from))
            assert (relative.vendor, relative.architecture) == (of.vendor, of.architecture)


def test_shares_of_devices_without_relatives_are_the_mean_of_the_measured():
    """R7: the shares of the default are the means over the files of measured devices."""
    files = [load_entry("kernels", name) for name in entry_names("kernels")]
    default, measured = (
        load_entry("kernels", "default"),
        [dict(sourced_numbers(x)) for x in files if x.devices],
    )
    means = {
        where: (number.value, mean(numbers[where].value for numbers in measured))
        for where, number in sourced_numbers(default)
        if number.source in {"mean", "measured"}
    }

    assert len(means) == 7
    assert all(value == pytest.approx(average, abs=0.0006) for value, average in means.values()), means
