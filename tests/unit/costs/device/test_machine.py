"""Rates of a machine: products in fp32, in tf32 and on vector units."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.catalog import load_job, stack
from autoplan.costs.device.machine import machine_of
from autoplan.schema.costmodel.software import SoftwareSpec, with_software

JOB = replace(load_job("llama3-8b-8x-a100"), precision="fp32")


@pytest.mark.parametrize(("name", "asked"), [("ddp", False), ("fsdp2", False), ("nanogpt", True)])
def test_pytorch_multiplies_fp32_on_vector_units_unless_a_program_asks_for_tf32(name, asked):
    """An A100 has 19.5 TFLOP/s of fp32, of which products reach 12.21, whether rows are aligned or not."""
    found = stack(name)
    without, tf32 = (
        machine_of(replace(JOB, stack=with_software(found, SoftwareSpec(tf32=x)))) for x in (False, True)
    )
    assert (without.peak_flops, tf32.peak_flops) == (19.5e12, 156e12)
    assert without.gemm.peak == pytest.approx(12.21e12)
    assert (without.gemm.table, without.unaligned_share) == (None, 1.0)
    assert machine_of(replace(JOB, stack=found)).peak_flops == (tf32 if asked else without).peak_flops
