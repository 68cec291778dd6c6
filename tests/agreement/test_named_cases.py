"""Cases that people know, large and small: what is chosen comes out of the prices, and they say why."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from autoplan import evaluate, plan
from autoplan.catalog import kernels_for, load_entry, load_job, resolve_job, stack
from autoplan.catalog.programs import any_layout
from autoplan.schema.job import JobSpec, Limits, SearchSpec, Workload
from autoplan.search.space.candidate_space import space_of
from tests.support.quick_cases import slow_after

SIZES = (64, 128, 256, 512, 1024)

#: Layouts of GPT-3 175B that were published, for the numbers of devices that they divide.
PUBLISHED = {
    "Korthikanti et al. 2023": "tp=8,pp=8,vpp=3,schedule=interleaved,mbs=1,sp=on,recompute=selective",
    "the same, table 5, first row": "tp=8,pp=8,vpp=3,schedule=interleaved,mbs=1,sp=off,recompute=full",
    "NVIDIA/Megatron-LM README, 1,024 A100": "tp=8,pp=16,mbs=1,recompute=full",
    "NVIDIA/dgxc-benchmarking README_175b.md": "tp=4,pp=8,vpp=6,schedule=interleaved,mbs=1,sp=on",
}


@pytest.fixture(scope="module")
def gpt3():
    """GPT-3 175B on 64 to 1,024 A100: each job with its fastest plan."""
    job = replace(load_job("gpt3-175b-128x-a100"), objectives=("step_time",))
    jobs = {n: replace(job, cluster=replace(job.cluster, devices=n)) for n in SIZES}
    return {n: (job, plan(job)) for n, job in jobs.items()}


def narrowed(job, **search):
    """Return the fastest plan of ``job`` among those that ``search`` leaves, or none."""
    plans = plan(replace(job, objectives=("step_time",), search=SearchSpec(**search))).plans
    return plans[0] if plans else None


def with_network_like_fabric(job):
    """Return ``job`` on nodes whose network is as fast as what joins the devices inside."""
    node = job.cluster.node
    changes = {"bandwidth_per_device": node.fabric.bandwidth, "latency": node.fabric.latency}
    faster = node.model_copy(update={"network": node.network.model_copy(update=changes)})
    return replace(job, cluster=replace(job.cluster, node=faster))


@pytest.mark.parametrize("devices", slow_after(1, SIZES))
def test_gpt3_on_64_to_1024_a100_has_a_proven_plan(gpt3, devices):
    """Each size has a fastest layout that fits, uses every device, and is proven."""
    _, front = gpt3[devices]
    best = front.plans[0]

    assert front.certificate.status == "optimal"
    assert best.predicted.fits
    assert best.layout.devices == devices


def test_more_devices_train_gpt3_on_more_tokens_a_second(gpt3):
    """Twice the devices reach at least 1.8 times the rate; sixteen times the devices at most 17.6 times."""
    rates = [gpt3[n][1].plans[0].predicted.tokens_per_second for n in SIZES]

    assert all(more > 1.8 * few for few, more in pairwise(rates))
    # More ranks share the state, which buys larger microbatches; nothing else gains more than the devices.
    assert rates[-1] < 1.1 * SIZES[-1] / SIZES[0] * rates[0]


@pytest.mark.parametrize("devices", slow_after(1, [64, 1024]))
def test_tensors_of_gpt3_stay_within_a_node_because_the_network_is_slow(gpt3, devices):
    """S6: sixteen-way tensors may be chosen and lose, by what they expose; on a fast network by far less."""
    job, front = gpt3[devices]
    best, wide = front.plans[0], narrowed(job, tensor_parallel=16)
    fast = with_network_like_fabric(job)
    near, far = narrowed(fast, tensor_parallel=(1, 2, 4, 8)), narrowed(fast, tensor_parallel=16)
    exposed = wide.predicted.time.tp_exposed - best.predicted.time.tp_exposed
    lost = wide.predicted.step_seconds - best.predicted.step_seconds

    assert any(16 in group.tp for group in space_of(job).groups)
    assert best.layout.tp <= job.cluster.node.devices
    assert 0 < 0.9 * lost < exposed
    assert far.predicted.step_seconds - near.predicted.step_seconds < lost / 2


@pytest.mark.parametrize("devices", slow_after(1, SIZES))
def test_published_layouts_of_gpt3_are_not_faster_than_the_plan(gpt3, devices):
    """Whatever Megatron's users ran is in the space, priced by the same model, and no faster."""
    job, front = gpt3[devices]
    best = front.plans[0].predicted.step_seconds
    known = {who: layout for who, layout in PUBLISHED.items() if "pp=16" not in layout or devices >= 128}
    priced = {who: evaluate(job, layout).predicted for who, layout in known.items()}

    assert len(priced) >= 3
    assert all(found.step_seconds >= best for found in priced.values() if found.fits), priced
    assert any(found.fits for found in priced.values())


BOXES = ("qwen3-1.7b-2x-rtx3090", "qwen3-1.7b-2x-rtx3090-nvlink")


@pytest.fixture(scope="module", params=["megatron-core", "fsdp2"])
def boxes(request):
    """Qwen3 1.7B on two RTX 3090 without a bridge and with one."""
    return [replace(any_layout(load_job(name)), stack=stack(request.param)) for name in BOXES]


def test_the_two_boxes_differ_in_their_link_only(boxes):
    """Same model, batch, devices, host and network."""
    nodes = [job.cluster.node.model_dump(exclude={"name", "title", "sources", "fabric"}) for job in boxes]
    jobs = [replace(job, name="", cluster=replace(job.cluster, node=boxes[0].cluster.node)) for job in boxes]

    assert nodes[0] == nodes[1]
    assert jobs[0] == jobs[1]
    assert boxes[0].cluster.node.fabric != boxes[1].cluster.node.fabric


def test_a_bridge_turns_two_stages_into_two_parts_of_each_layer(boxes):
    """Over PCIe the model is cut into stages, over NVLink within layers, though both may do either."""
    pcie, nvlink = (plan(job).plans[0] for job in boxes)

    assert (pcie.layout.tp, pcie.layout.pp) == (1, 2)
    assert (nvlink.layout.tp, nvlink.layout.pp) == (2, 1)
    for job, best, other in (
        (boxes[0], pcie, {"tensor_parallel": 2}),
        (boxes[1], nvlink, {"pipeline_parallel": 2}),
    ):
        assert narrowed(job, **other).predicted.step_seconds > 1.04 * best.predicted.step_seconds


def test_the_link_explains_why_the_choice_flips(boxes):
    """The same two layouts on both boxes: nothing but exposed transfers changes, and tensors send more."""
    layouts = [str(plan(job).plans[0].layout) for job in boxes]
    stages, tensors = ([evaluate(job, layout).predicted for job in boxes] for layout in layouts)

    slower = [pcie.step_seconds - nvlink.step_seconds for pcie, nvlink in (stages, tensors)]
    exposed = [_exposed(pcie) - _exposed(nvlink) for pcie, nvlink in (stages, tensors)]
    assert exposed == pytest.approx(slower, rel=1e-6)
    assert slower[1] > 5 * slower[0] > 0
    # What two stages cost beside transfers, in recomputed layers and the bubble, is all they lose on NVLink.
    lost = stages[1].step_seconds - tensors[1].step_seconds
    assert slower[1] - slower[0] > lost > 0


def _exposed(predicted):
    """Return the seconds that wait for transfers between stages and between parts of a layer."""
    time = predicted.time
    return time.tp_exposed + time.pp_exposed + time.bubble


@pytest.fixture(scope="module")
def mi300x():
    """Mistral 7B on eight MI300X, and its front."""
    job = load_job("mistral-7b-8x-mi300x")
    return job, plan(job)


def on_node(job, name):
    """Return ``job`` on the devices of another node."""
    node = load_entry("node", name)
    device = load_entry("device", node.device)
    cluster = replace(job.cluster, node=node, device=device)
    return replace(job, cluster=cluster, kernels=kernels_for(device.name))


def test_eight_mi300x_hold_a_model_whole_where_eight_h100_share_its_state(mi300x):
    """192 GB a device take two sequences of a replica under ZeRO-1; 80 GB do not, by the same model."""
    job, front = mi300x
    best = front.plans[0]
    smaller = on_node(job, "dgx-h100")

    assert front.certificate.status == "optimal"
    assert (best.layout.dp, best.layout.zero, best.layout.microbatch) == (8, 1, 2)
    assert best.layout.recomputed == ()
    assert best.predicted.fits
    assert not evaluate(smaller, best.layout_string).predicted.fits
    assert (
        plan(smaller).plans[0].predicted.peak_memory_bytes_per_device
        < best.predicted.peak_memory_bytes_per_device
    )


def test_two_mi300x_reach_each_other_over_one_link_of_the_mesh(mi300x):
    """On a mesh a pair has one link of seven, tp=2 waits nearly as long as tp=8; on a switch it has all."""
    job, _ = mi300x
    layouts = ("tp=2,dp=4,sp=on", "tp=8,sp=on")
    on_mesh, on_switch = (
        [evaluate(where, layout).predicted.time.tp_exposed for layout in layouts]
        for where in (job, on_node(job, "dgx-h100"))
    )

    assert on_mesh[0] > 0.75 * on_mesh[1]
    assert on_switch[0] < 0.3 * on_switch[1]


def test_unmeasured_devices_are_predicted_with_wide_bars(mi300x):
    """No kernel of the MI300X was measured here: all of the step is modelled, and its interval says so."""
    job, front = mi300x
    ours, measured = front.plans[0].predicted, plan(on_node(job, "dgx-h100")).plans[0].predicted

    assert ours.modelled_share == 1.0 > measured.modelled_share
    assert ours.step_seconds_high / ours.step_seconds > measured.step_seconds_high / measured.step_seconds


@pytest.fixture(scope="module")
def nvidia_70b():
    """Llama 3 70B in fp8 on 64 H100, 128 sequences of 8,192, as NVIDIA's recipes run it."""
    spec = JobSpec(
        kind="training",
        model="llama3-70b",
        hardware="dgx-h100",
        devices=64,
        stack="megatron-bridge",
        precision="fp8",
        workload=Workload(sequence_length=8192, global_batch_size=128),
        objectives=("step_time",),
    )
    return resolve_job(spec)


def test_the_recipe_of_70b_takes_what_was_published(nvidia_70b):
    """9.86 s a step (NVIDIA/dgxc-benchmarking llama3.1/README.md, release v25.04), which no fit has seen."""
    job = replace(nvidia_70b, limits=Limits(memory_confidence="central"))
    published = evaluate(job, "tp=4,pp=8,dp=2,vpp=5,schedule=interleaved,mbs=1,sp=on").predicted

    # Products in fp8 reach 87 % of their peak in sweeps of kernels, and more than that in this run.
    assert published.step_seconds == pytest.approx(9.86, rel=0.1)
    assert published.fits


def test_the_plan_of_70b_has_the_degrees_of_the_recipe(nvidia_70b):
    """Of all that surely fit the fastest has four tensor ranks, eight stages and two replicas, too."""
    best = plan(nvidia_70b).plans[0]
    published = evaluate(nvidia_70b, "tp=4,pp=8,dp=2,vpp=5,schedule=interleaved,mbs=1,sp=on").predicted

    assert (best.layout.tp, best.layout.pp, best.layout.dp, best.layout.microbatch) == (4, 8, 2, 1)
    assert best.layout.schedule == "interleaved"
    assert 0.95 * published.step_seconds < best.predicted.step_seconds <= published.step_seconds
