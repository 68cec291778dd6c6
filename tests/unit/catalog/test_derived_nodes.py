"""Nodes that no file describes: derived from their device and the nearest node of the catalogue."""

import pytest

from autoplan.catalog import COUNTS, entry_names, load_entry, resolve_job
from autoplan.catalog.entries import hardware
from autoplan.catalog.hardware_names import nearest_kind
from autoplan.errors import CatalogError, UnsupportedError
from autoplan.schema.hardware import NodeSpec, sourced_numbers
from autoplan.schema.job import JobSpec
from autoplan.schema.yaml.loader import load_model
from autoplan.schema.yaml.writer import file_text


@pytest.mark.parametrize("name", entry_names("device"))
def test_every_device_has_nodes_of_one_two_four_and_eight(name, tmp_path):
    """Each name resolves to a node; what is derived has no number of its own, and says where each is from."""
    for count in COUNTS:
        node = load_entry("node", f"{count}x-{name}")
        if node.derived_from is None:
            assert node.name in entry_names("node")
            continue
        assert (node.device, node.devices, node.name) == (name, count, f"{count}x-{name}")
        numbers = [number for _, number in sourced_numbers(node)]
        assert {number.kind for number in numbers} <= {"derived", "guess"}
        assert all(number.source in node.sources and number.note for number in numbers)
        assert load_model(file_text(node), NodeSpec, name="again") == node


def test_a_file_precedes_what_would_be_derived():
    """The name of a file means the file, and another name of the same node means that node."""
    assert load_entry("node", "8x-mi300x").derived_from is None
    assert load_entry("node", "2x-rtx-4090").name == "2x-rtx4090"
    assert load_entry("node", "8x-h100-sxm5-80gb").name == "dgx-h100"


def test_a_part_of_a_node_has_its_fabric_and_its_share_of_the_host():
    """Four of the eight devices of a DGX H100 have half of its memory, and each its network card."""
    whole, part = load_entry("node", "dgx-h100"), load_entry("node", "4x-h100-sxm5-80gb")

    assert part.derived_from == "dgx-h100"
    assert part.fabric.bandwidth.value == whole.fabric.bandwidth.value
    assert part.host.memory.value == whole.host.memory.value / 2
    assert part.network.bandwidth_per_device.value == whole.network.bandwidth_per_device.value
    assert part.fabric.bandwidth.kind == "derived"


def test_the_network_card_of_a_node_is_shared_by_its_devices():
    """A node of four with one port has twice the bandwidth per device of a node of eight."""
    eight, four = load_entry("node", "8x-l4"), load_entry("node", "4x-l4")

    assert four.network.bandwidth_per_device.value == 2 * eight.network.bandwidth_per_device.value


def test_a_device_without_a_node_has_its_own_link():
    """The NVLink of an H800 is its data sheet's, all else is guessed after a DGX H100."""
    node = load_entry("node", "8x-h800-sxm5-80gb")

    assert (node.fabric.topology, node.fabric.bandwidth.value) == ("switch", 200e9)
    assert node.fabric.bandwidth.kind == "derived"
    assert {node.fabric.latency.kind, node.host.memory.kind, node.network.latency.kind} == {"guess"}


def test_a_mesh_keeps_the_share_of_a_pair():
    """One of seven links joins a pair, as on other boards of eight."""
    fabric = load_entry("node", "8x-mi350x").fabric

    assert fabric.topology == "mesh"
    assert fabric.pair_bandwidth.value == pytest.approx(fabric.bandwidth.value / 7)


def test_cards_with_bridges_are_taken_without():
    """A bridge joins two cards; between four there is PCIe, and the note says so."""
    node = load_entry("node", "4x-h100-pcie-80gb")

    assert (node.fabric.topology, node.fabric.bandwidth.value) == ("pcie-switch", 63e9)
    assert "2x-h100-pcie" in node.note


def test_geforce_cards_copy_through_the_host():
    """A card with half a slot copies at half the rate of one with a whole slot of its generation."""
    narrow, wide = (load_entry("node", f"2x-{card}") for card in ("rtx-5060-ti-16gb", "rtx-5080"))

    assert narrow.fabric.topology == wide.fabric.topology == "host"
    assert narrow.fabric.bandwidth.value < wide.fabric.bandwidth.value


def test_every_kind_of_device_has_a_usual_node():
    """The nodes that stand for a kind exist."""
    for name in entry_names("device"):
        assert nearest_kind(load_entry("device", name)) in entry_names("node")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("4x-h100", "4x-h100-pcie-80gb"),
        ("9x-rtx-4090", "8x-rtx-4090"),
        ("16x-h100-sxm5-80gb", "8x-h100-sxm5-80gb"),
        ("8x-rtx-5090x", "8x-rtx-5090"),
    ],
)
def test_a_name_that_is_nearly_one_is_answered_with_it(name, hint, tmp_path):
    """Messages know derived names."""
    with pytest.raises(CatalogError, match=hint):
        hardware(name, tmp_path)


def test_a_device_alone_is_answered_with_its_nodes(tmp_path):
    """The plan depends on what joins the devices, so that their number has to be said."""
    with pytest.raises(UnsupportedError, match="1x-h800-sxm5-80gb, 2x-h800-sxm5-80gb"):
        hardware("h800-sxm5-80gb", tmp_path)


def test_a_job_takes_several_derived_nodes():
    """More devices than a node has are whole nodes of it."""
    spec = JobSpec(
        kind="training",
        model="llama2-7b",
        hardware="4x-h100-pcie-80gb",
        devices=16,
        workload={"sequence_length": 4096, "global_batch_size": 64},
    )

    assert resolve_job(spec).cluster.nodes == 4
