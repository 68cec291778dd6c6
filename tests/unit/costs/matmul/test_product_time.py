"""The time of a product is that of the same GEMM in a layer."""

import numpy as np
import pytest

from autoplan.answers.gemm.ask import gemm
from autoplan.answers.gemm.single_product import GemmQuestion, ProductSettings
from autoplan.catalog import load_entry, load_job
from autoplan.costs.device.kernels import gemm_seconds
from autoplan.costs.device.machine import machine_of
from autoplan.costs.layer.gemm_shapes import attention_gemms, mlp_gemms
from autoplan.costs.matmul.product import Product
from autoplan.costs.matmul.product_costs import backward_seconds, forward_seconds


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("model", ["llama3-8b", "gpt3-175b"])
def test_gemms_of_a_layer_take_as_long_alone(model, tp):
    """R1: forward and both gradients of each GEMM of a layer have the seconds that training has."""
    machine, spec = machine_of(load_job("llama3-8b-8x-a100")), load_entry("model", model)
    tokens, degree = np.array([8192.0]), np.array([float(tp)])
    shapes = [*attention_gemms(spec, tokens, degree), *mlp_gemms(spec, tokens, degree)]
    for shape in shapes:
        m, n, k = (int(np.max(x)) for x in shape[:3])
        product = Product(m, n, k)

        assert forward_seconds(product, machine) == float(gemm_seconds(m, n, k, machine))
        assert backward_seconds(product, machine) == pytest.approx(
            (float(gemm_seconds(m, k, n, machine)), float(gemm_seconds(k, n, m, machine))), rel=1e-12
        )


def test_a_product_on_a_node_is_that_on_its_device():
    """The device of a node has the same time as the device alone."""
    alone = gemm(GemmQuestion(4096, 4096, 4096, device="h100-sxm5-80gb"))
    of_node = gemm(GemmQuestion(4096, 4096, 4096, hardware="dgx-h100"))

    assert alone.time[0].seconds == of_node.time[0].seconds
    assert alone.memory[0].limit_bytes == of_node.memory[0].limit_bytes


def test_narrow_operands_move_fewer_bytes_and_take_less_time():
    """A product of one row reads its weights: in fp8 half of those in bf16, in nvfp4 a quarter and scales."""
    seconds, sizes = {}, {}
    for operands in ("bf16", "fp8", "nvfp4"):
        settings = ProductSettings(operands=operands)
        answer = gemm(GemmQuestion(1, 16384, 16384, device="b200-sxm-180gb", settings=settings))
        seconds[operands], sizes[operands] = answer.time[0].seconds, answer.facts.w_bytes

    assert sizes["bf16"] == 2 * sizes["fp8"]
    assert sizes["nvfp4"] == 16384**2 * 9 // 16
    assert seconds["nvfp4"] < seconds["fp8"] < seconds["bf16"]
    assert seconds["bf16"] / seconds["fp8"] == pytest.approx(2, rel=0.2)


def test_outside_of_the_measured_table_the_interval_is_wider():
    """R7: a shape that nobody measured has a larger share modelled, and a wider interval."""
    inside = gemm(GemmQuestion(4096, 8192, 8192, device="a100-sxm4-80gb")).time[0]
    outside = gemm(GemmQuestion(1, 128, 64, device="a100-sxm4-80gb")).time[0]

    assert (inside.modelled_share, outside.modelled_share) == (0.0, 1.0)
    widths = [(x.seconds_high - x.seconds_low) / x.seconds for x in (inside, outside)]
    assert widths[0] < widths[1]
