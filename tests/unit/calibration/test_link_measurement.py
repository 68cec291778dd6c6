"""Measured links: what a node's file says of them is what a prediction then takes."""

import numpy as np
import pytest

from autoplan.calibration.torchbench import LinkRates, measured_node, rates_of_nccl_tests
from autoplan.catalog import kernels_for, load_entry, resolve_job
from autoplan.costs.device.machine import machine_of
from autoplan.costs.network.collectives import Group, collective_seconds
from autoplan.costs.predict import predict
from autoplan.errors import UnsupportedError
from autoplan.schema.job import JobSpec, Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.yaml.loader import load_model
from autoplan.schema.yaml.writer import file_text

PRINTED = """
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    42.10    0.02    0.04      0    41.0  0.02  0.04  0
   268435456      67108864     float     sum      -1  61356.0    4.38    7.66      0   61350  4.38  7.66  0
# Avg bus bandwidth    : 3.85
"""


def job_on(path):
    """Return a job on the node of the file at ``path``."""
    workload = Workload(sequence_length=1024, global_batch_size=8)
    return resolve_job(JobSpec(kind="training", model="llama3.2-1b", hardware=str(path), workload=workload))


def test_lines_of_nccl_tests_tell_rate_and_latency():
    """The largest message tells the bus bandwidth, the smallest the time that bytes do not matter to."""
    rates = rates_of_nccl_tests(PRINTED, 8)

    assert rates.bandwidth == pytest.approx(7.66e9)
    assert rates.seconds == pytest.approx(42.1e-6)
    with pytest.raises(UnsupportedError, match="no line"):
        rates_of_nccl_tests("NCCL failure: unhandled system error", 8)


def test_a_prediction_takes_the_measured_time_of_a_collective(tmp_path):
    """256 MiB over eight devices whose ring was measured at 7.66 GB/s take what was measured."""
    node = load_entry("node", "8x-rtx4090")
    rates = rates_of_nccl_tests(PRINTED, 8)
    measured = measured_node(node, kernels_for(node.device), rates)
    file = tmp_path / "node.yaml"
    file.write_text(file_text(measured), encoding="utf-8")
    links = machine_of(job_on(file)).links
    group = Group(np.array(8.0), np.array(1.0))
    seconds = float(collective_seconds("all_reduce", np.array(2.0**28), group, links))

    assert load_model(file.read_text(encoding="utf-8"), type(node), name=file.name).fabric == measured.fabric
    assert seconds == pytest.approx(61356e-6, rel=0.02)


def test_a_measured_rate_leaves_no_interval_of_hosts(tmp_path):
    """The upper end of a step reaches to the slowest host only where nobody measured this one."""
    node = load_entry("node", "8x-rtx4090")
    same = LinkRates(8, 8, node.fabric.bandwidth.value * 0.6, None, 40e-6, "a test")
    file = tmp_path / "node.yaml"
    file.write_text(file_text(measured_node(node, kernels_for(node.device), same)), encoding="utf-8")
    layout = parse_layout("tp=8", layers=16, devices=8)
    widths = {}
    for name in ("8x-rtx4090", file):
        predicted = predict(job_on(name), layout)
        widths[name] = predicted.step_seconds_high / predicted.step_seconds

    assert widths[file] < widths["8x-rtx4090"]


def test_the_network_is_measured_between_nodes_only():
    """One node says nothing of its network; of several, a device's share is that of the ring."""
    node = load_entry("node", "dgx-a100-80gb")
    kernels = kernels_for(node.device)
    alone = measured_node(node, kernels, LinkRates(8, 8, 230e9, None, 30e-6, "a test"))
    both = measured_node(node, kernels, LinkRates(16, 8, 230e9, 20e9, 30e-6, "a test"))

    assert alone.network == node.network
    share = kernels.collectives.network_share.value
    assert both.network.bandwidth_per_device.value == pytest.approx(20e9 / share, rel=0.01)
    assert both.network.bandwidth_per_device.kind == "measured"
