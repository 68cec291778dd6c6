"""One layer against what was published of one layer, before anything of a step is added.

Korthikanti et al. 2022, arXiv:2205.05198, table 4: the 22B model (48 layers of 6,144, 64 heads), sequences of
2,048, microbatch 4, eight A100 of one node as tensor-parallel ranks, dropout, eager attention. A layer timed
alone runs at the clock of a sweep, which hours of training do not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import resolve_job
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import machine_of
from autoplan.costs.layer.layer_time import layer_times
from autoplan.schema.job import JobSpec, Workload
from autoplan.schema.layout import parse_layout


def timed(sequence_parallel):
    """Return the times of the layer in milliseconds, by the names of ``LayerTimes``."""
    spec = JobSpec(
        kind="training",
        model="megatron-22b",
        hardware="dgx-a100-80gb",
        devices=8,
        stack="megatron-lm",
        precision="fp16",
        workload=Workload(sequence_length=2048, global_batch_size=4),
    )
    job = resolve_job(spec)
    clock = job.kernels.gemm.sustained_share.model_copy(update={"value": 1.0})
    gemm = job.kernels.gemm.model_copy(update={"sustained_share": clock})
    job = replace(job, kernels=job.kernels.model_copy(update={"gemm": gemm}))
    layers = job.model.layers
    one = Candidates.of([parse_layout(f"tp=8,mbs=4,sp={sequence_parallel}", layers=layers, devices=8)])
    times = layer_times(job, one, machine_of(job))
    seconds = {name: getattr(times, name) for name in times.__slots__ if name != "recompute"}
    seconds |= {mode: repeated.compute for mode, repeated in times.recompute.items()}
    return {name: 1e3 * float(np.ravel(value)[0]) for name, value in seconds.items()}


@pytest.fixture(scope="module")
def published():
    """Return the times of the layer as every rank has whole sequences between its products."""
    return timed("off")


def test_forward_of_a_layer(published):
    """7.7 ms with its two all-reduces."""
    assert published["forward"] + published["tensor_forward"] == pytest.approx(7.7, rel=0.025)


def test_split_sequences_spare_half_a_millisecond_forward(published):
    """7.2 ms: norms, dropout and additions on an eighth of the tokens, for two gathers and two scatters."""
    split = timed("on")
    whole, parts = (x["forward"] + x["tensor_forward"] for x in (published, split))

    assert parts == pytest.approx(7.2, rel=0.025)
    assert whole - parts == pytest.approx(0.5, rel=0.25)


def test_backward_of_a_layer(published):
    """11.9 ms; that code reduced inputs' gradients beside weights' products, which this stack does not."""
    backward = published["backward"]

    assert backward < 11.9 < backward + published["tensor_backward"]


def test_attention_done_again(published):
    """1.3 ms more in backward: two products over the scores, softmax and dropout."""
    assert published["selective"] == pytest.approx(1.3, rel=0.12)
