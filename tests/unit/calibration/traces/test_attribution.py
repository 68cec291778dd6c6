"""Seconds of a step by part, on traces whose parts are known by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.calibration.measurement import GroupTraffic
from autoplan.calibration.traces import read_trace
from autoplan.calibration.traces.attribution import measurement
from autoplan.calibration.traces.timeline_record import (
    Times,
    collective_of,
    kind_of_kernel,
    kind_of_operator,
    united,
)
from tests.support.trace_events import annotation, call, collective, kernel, operator, written

US = 1e-6


def part(group, operation):
    """Count groups of two ranks as tensor-parallel, sends as pipeline, others as data-parallel."""
    if operation == "send":
        return "pp_exposed"
    return "tp_exposed" if group.size == 2 else "dp_exposed"


def measured(path, events, steps=None):
    """Return the measurement of the only device of a trace of ``events``."""
    (trace,) = read_trace(written(path / "trace.json.gz", events))
    return measurement(trace, part, steps=steps)


def test_every_moment_counts_once_for_what_hides_the_others(tmp_path):
    """Compute hides communication, both hide copies; what is left waits for the host or for another."""
    events = [
        call(0, 1, 1),
        kernel("ampere_bf16_s16816gemm_128x128_tn", 0, 10, correlation=1),
        collective("allreduce", 5, 10, (0, 1), 2048),  # 5 exposed
        kernel("Memcpy DtoH", 12, 8) | {"cat": "gpu_memcpy"},  # 5 exposed
        call(23, 2, 2),  # the host is late until 25
        kernel("flash_fwd_kernel", 30, 10, correlation=2),  # and the device until 30
        kernel("void at::native::vectorized_elementwise_kernel<4>", 38, 4, correlation=2),  # 2 alone
    ]
    parts = measured(tmp_path, events, steps=1).parts

    assert parts.gemm == pytest.approx(10 * US)
    assert parts.tp_exposed == pytest.approx(5 * US)
    assert parts.copies == pytest.approx(5 * US)
    assert parts.host == pytest.approx(5 * US)
    assert parts.idle == pytest.approx(5 * US)
    assert parts.attention == pytest.approx(10 * US)
    assert parts.elementwise == pytest.approx(2 * US)
    assert parts.total == pytest.approx(42 * US)


def test_waiting_for_data_is_told_from_waiting_for_the_host(tmp_path):
    """Idle time within the data loader counts as such, but not where the device computes meanwhile."""
    events = [
        kernel("gemm", 0, 10),
        annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 5, 15),
        call(28, 2, 1),
        kernel("gemm", 30, 10, correlation=1),
    ]
    parts = measured(tmp_path, events, steps=1).parts

    assert parts.data_loader == pytest.approx(10 * US)
    assert parts.host == pytest.approx(10 * US)


def test_traffic_tells_hidden_from_exposed(tmp_path):
    """Communication of each part: how long it runs, and how long nothing computes meanwhile."""
    events = [
        kernel("gemm", 0, 10),
        collective("_reduce_scatter_base", 2, 4, (0, 1, 2, 3), 4096),
        collective("_allgather_base", 8, 6, (0, 1), 2048),
        collective("_allgather_base", 20, 4, (0, 1), 2048),
    ]
    found = measured(tmp_path, events, steps=1)

    assert found.traffic == (
        GroupTraffic("tp_exposed", pytest.approx(10 * US), pytest.approx(8 * US)),
        GroupTraffic("dp_exposed", pytest.approx(4 * US), pytest.approx(0)),
    )
    gathers, scatter = found.collectives
    assert (gathers.operation, gathers.ranks, gathers.message_bytes, gathers.calls) == (
        "all_gather",
        2,
        2048,
        2,
    )
    assert (gathers.shortest_seconds, gathers.total_seconds) == pytest.approx((4 * US, 10 * US))
    assert (scatter.operation, scatter.ranks) == ("reduce_scatter", 4)


def test_a_step_begins_when_the_device_has_ended_the_one_before(tmp_path):
    """The host runs ahead: steps are annotated at 0, 10 and 20 us, and the device works until 90."""
    events = []
    for step in range(3):
        events += [annotation(f"ProfilerStep#{step}", 10 * step, 10), call(10 * step + 1, 1, step)]
        events.append(kernel("gemm", 5 + 30 * step, 25 if step < 2 else 30, correlation=step))
    found = measured(tmp_path, events)

    assert found.step_numbers == (0, 1, 2)
    assert found.step_seconds == pytest.approx([30 * US, 30 * US, 35 * US])
    assert found.parts.gemm == pytest.approx(25 * US)


def test_steps_of_the_device_stand_for_those_of_the_host(tmp_path):
    """A trace of the device alone has its own annotations: the gap between two steps is in the first."""
    events = [kernel("gemm", start, 20) for start in (0, 30, 60)]
    events += [
        annotation(f"ProfilerStep#{step}", 30 * step, 20) | {"cat": "gpu_user_annotation"}
        for step in range(3)
    ]
    found = measured(tmp_path, events)

    assert found.step_numbers == (0, 1, 2)
    assert found.step_seconds == pytest.approx([30 * US, 30 * US, 20 * US])


def test_the_step_of_median_length_is_measured(tmp_path):
    """One slow step among three changes nothing."""
    events, start = [], 0
    for step, length in enumerate((50, 400, 60)):
        events += [annotation(f"ProfilerStep#{step}", start, length), call(start, 1, step)]
        events.append(kernel("gemm", start + 1, length - 5, correlation=step))
        start += length
    found = measured(tmp_path, events)

    assert found.step == 2
    assert found.seconds == pytest.approx(60 * US)


def test_kernels_within_the_optimizer_are_its_step(tmp_path):
    """What the host launches within Optimizer.step counts for it, whatever it is called."""
    events = [
        call(0, 1, 1),
        kernel("gemm", 2, 10, correlation=1),
        annotation("Optimizer.step#AdamW.step", 12, 10),
        call(13, 1, 2),
        kernel("void at::native::vectorized_elementwise_kernel<4>", 15, 5, correlation=2),
        kernel("void multi_tensor_apply_kernel<FusedAdam>", 25, 5),
    ]

    assert measured(tmp_path, events, steps=1).parts.optimizer == pytest.approx(10 * US)


def test_calls_of_the_allocator_count_once_training_is_warm(tmp_path):
    """Memory is asked for in the first step; later it should not be."""
    events = []
    for step in range(3):
        events += [annotation(f"ProfilerStep#{step}", 100 * step, 100), kernel("gemm", 100 * step + 5, 90)]
        events += [call(100 * step + 1, 2, -1, name) for name in ("cudaMalloc", "cudaFree")]

    assert measured(tmp_path, events).allocator_calls == 4


def test_operators_stand_for_kernels_where_there_is_no_device(tmp_path):
    """Of nested operators the innermost counts; work of Gloo is communication, the rest is Python's."""
    events = [
        annotation("ProfilerStep#7", 0, 100),
        operator("aten::linear", 10, 30),
        operator("aten::addmm", 15, 20),
        operator("aten::copy_", 16, 5),
        operator("c10d::allreduce_", 50, 10),
        annotation("gloo:all_reduce", 52, 30),
        annotation("Optimizer.step#SGD.step", 90, 10),
        operator("aten::add_", 91, 8),
    ]
    info = {"pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]}]}
    path = written(tmp_path / "rank3.json", events, distributedInfo={**info, "rank": 3})
    (trace,) = read_trace(path)
    found = measurement(trace, part)

    assert found.on_host
    assert found.rank == 3
    assert found.parts.gemm == pytest.approx((10 + 15) * US)  # linear itself, and addmm but for the copy
    assert found.parts.elementwise == pytest.approx(5 * US)
    assert found.parts.dp_exposed == pytest.approx(30 * US)
    assert found.parts.optimizer == pytest.approx(8 * US)
    assert found.parts.host == pytest.approx((10 + 12 + 8 + 2) * US)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNN", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16>", "gemm"),
        ("void splitKreduce_kernel<32, 16, int, float>", "gemm"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void deep_ep::internode::dispatch<false, 8>", "communication"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "optimizer"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3", "elementwise"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>", "elementwise"),
        ("my_kernel", "other"),
    ],
)
def test_kernels_are_known_by_their_names(name, kind):
    """cuBLAS, CUTLASS, cuDNN, FlashAttention, Tensile, NCCL, Triton and ATen name what they do."""
    assert kind_of_kernel(name) == kind


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("alltoall_base", "all_to_all"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "send"),
        ("recv", "send"),
        ("broadcast", "broadcast"),
        ("coalesced", "unknown"),
    ],
)
def test_collectives_are_known_by_their_names(name, operation):
    """Both NCCL's names and PyTorch's are known."""
    assert collective_of(name) == operation


def test_operators_are_known_by_their_names():
    """What only calls others computes nothing."""
    names = (
        "aten::mm",
        "aten::convolution_backward",
        "aten::_scaled_dot_product_flash_attention",
        "aten::add",
    )

    assert [kind_of_operator(x) for x in names] == ["gemm", "gemm", "attention", "elementwise"]
    assert kind_of_operator("record_param_comms") is None


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(SPANS, SPANS, st.integers(0, 70), st.integers(0, 70))
def test_sets_of_time_are_sets(one, two, begin, end):
    """Unions, lengths within a window and gaps are those of sets of whole nanoseconds."""

    def times(spans):
        return Times.of(
            np.array([a for a, _ in spans], dtype=np.int64),
            np.array([a + n for a, n in spans], dtype=np.int64),
        )

    def cells(spans):
        return {x for a, n in spans for x in range(a, a + n)}

    begin, end = sorted((begin, end))
    union, expected = united([times(one), times(two)]), cells(one) | cells(two)
    gaps = union.gaps(begin, end)

    assert union.seconds * 1e9 == pytest.approx(len(expected))
    assert union.within(np.array([begin]), np.array([end])).tolist() == [
        len(expected & set(range(begin, end)))
    ]
    assert {x for a, b in zip(gaps.start, gaps.end, strict=True) for x in range(a, b)} == set(
        range(begin, end)
    ) - expected
    assert union.holds(np.arange(80)).tolist() == [x in expected for x in range(80)]
