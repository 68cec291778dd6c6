"""The hardware catalogue: every file loads, and what a reader can check is right."""

import functools
import re
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from autoplan.catalog import kernels_for
from autoplan.schema.base import FROM_FILE
from autoplan.schema.hardware import (
    ClusterSpec,
    DeviceSpec,
    HardwareSpec,
    NodeSpec,
    sourced_numbers,
)

CATALOGUE = Path(__file__).parents[3] / "hardware"
FILES = sorted(CATALOGUE.glob("*/*.yaml"))
FOLDERS = {"devices": DeviceSpec, "nodes": NodeSpec, "clusters": ClusterSpec}
ADAPTER = TypeAdapter(HardwareSpec)

NODES_OF_THE_CONTRACT = [
    "dgx-a100-40gb",
    "dgx-a100-80gb",
    "dgx-h100",
    "hgx-h200",
    "dgx-b200",
    "dgx-b300",
    "gb200-nvl72",
    "2x-rtx3090",
    "2x-rtx3090-nvlink",
    "8x-rtx3090",
    "8x-rtx3090-nvlink",
    "2x-rtx4090",
    "4x-rtx4090",
    "8x-rtx4090",
    "2x-h100-pcie",
    "2x-a100-pcie-80gb",
    "8x-a100-pcie-80gb",
    "2x-rtx5090",
    "8x-rtx5090",
    "8x-l40s",
    "8x-l4",
    "8x-a40",
    "4x-a10g",
    "8x-mi300x",
    "8x-mi325x",
    "8x-mi355x",
    "8x-v100-32gb",
    "8x-v100-16gb",
    "8x-rtx-pro-6000",
    "aws-p4d-24xlarge",
    "gcp-a2-megagpu-16g",
]

TERA, GIGA, MIB, GIB = 1e12, 1e9, 2**20, 2**30


def parse(text):
    """Return the entry that ``text`` describes, read as a file is."""
    return ADAPTER.validate_python(yaml.safe_load(text), context={FROM_FILE: True})


@functools.cache
def entry(folder, name):
    """Return one entry of the catalogue, loaded once."""
    return parse((CATALOGUE / folder / f"{name}.yaml").read_text(encoding="utf-8"))


def device(name):
    """Return a device."""
    return entry("devices", name)


def node(name):
    """Return a node."""
    return entry("nodes", name)


def entries(folder):
    """Return all entries of a folder."""
    return [entry(folder, path.stem) for path in FILES if path.parent.name == folder]


def example(**changes):
    """Return the README's example as data, with some top-level keys replaced."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (CATALOGUE / "README.md").read_text("utf-8"), re.DOTALL)
    return yaml.safe_load(text) | changes


def refuse(data):
    """Return the message with which ``data`` is refused."""
    with pytest.raises(ValidationError) as caught:
        parse(yaml.safe_dump(data))
    return str(caught.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_entry_loads_under_its_own_name(path):
    """Every file is of its folder's kind and is called like its entry."""
    loaded = entry(path.parent.name, path.stem)
    assert isinstance(loaded, FOLDERS[path.parent.name])
    assert loaded.name == path.stem


def test_only_data_lives_in_the_catalogue():
    """The catalogue holds YAML in its three folders, a list of machines and a README, no code."""
    found = {path.relative_to(CATALOGUE) for path in CATALOGUE.rglob("*") if path.is_file()}
    assert found == {path.relative_to(CATALOGUE) for path in FILES} | {
        Path("README.md"),
        Path("machines.yaml"),
    }
    assert {path.parent.name for path in FILES} == set(FOLDERS)


def test_catalogue_is_large_enough():
    """At least thirty devices and forty nodes are known."""
    assert len(entries("devices")) >= 30
    assert len(entries("nodes")) >= 40
    assert len(entries("clusters")) >= 3


def test_references_resolve():
    """Each node's device and each cluster's node exist."""
    devices = {loaded.name for loaded in entries("devices")}
    nodes = {loaded.name for loaded in entries("nodes")}
    assert {loaded.device for loaded in entries("nodes")} <= devices
    assert {loaded.node for loaded in entries("clusters")} <= nodes


def test_names_are_unique_across_folders():
    """A job may name any entry without saying which folder it is in."""
    names = [path.stem for path in FILES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_number_has_unit_kind_and_source(folder):
    """What carries a kind in a file is a text with a unit, or a count or ratio, and has a source."""

    def numbers(data):
        for value in data.values():
            if isinstance(value, dict) and "kind" in value:
                yield value
            elif isinstance(value, dict):
                yield from numbers(value)

    for path in (CATALOGUE / folder).glob("*.yaml"):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        for number in numbers(data):
            assert number["source"] in data["sources"]
            assert isinstance(number["value"], int | float) or " " in number["value"]


def test_every_source_is_used():
    """A device or node lists no source that none of its numbers names."""
    for loaded in entries("devices") + entries("nodes"):
        assert {number.source for _, number in sourced_numbers(loaded)} == set(loaded.sources)


def test_what_was_not_read_is_called_a_guess():
    """A number that comes from memory is a guess, never a data sheet or a measurement."""
    for path in FILES:
        loaded = entry(path.parent.name, path.stem)
        for where, number in sourced_numbers(loaded):
            if "not read in a source" in loaded.sources[number.source]:
                assert number.kind == "guess", f"{path.stem}: {where}"


def test_nodes_of_the_contract_exist():
    """The nodes that jobs, examples and documents name are all there."""
    assert set(NODES_OF_THE_CONTRACT) <= {loaded.name for loaded in entries("nodes")}


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("a100-sxm4-80gb", "bf16", 312),
        ("h100-sxm5-80gb", "bf16", 989),
        ("h100-sxm5-80gb", "fp8", 1979),
        ("b200-sxm-180gb", "bf16", 2250),
        ("b200-sxm-180gb", "mxfp8", 4500),
        ("rtx-4090", "bf16", 165.2),  # fp32 accumulation: half of 330.3
        ("rtx-3090", "bf16", 71),
        ("rtx-5090", "bf16", 240),  # measured; 209.5 at the boost clock of its data sheet
        ("v100-sxm2-32gb", "fp16", 125),
        ("mi300x", "bf16", 1307.4),
    ],
)
def test_peak_rates(name, precision, teraflops):
    """Peak rates are dense and accumulate in fp32."""
    assert device(name).peak_flops(precision) == pytest.approx(teraflops * TERA)


@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "v100-sxm2-32gb", "t4"])
def test_no_bf16_before_ampere(name):
    """A device without bf16 says None, so that a caller can name fp16 instead."""
    assert device(name).peak_flops("bf16") is None
    assert device(name).peak_flops("fp16") is not None


def test_peak_of_an_unknown_precision():
    """A word that is not a precision is an error that lists the precisions."""
    with pytest.raises(ValueError, match="fp32, tf32, bf16"):
        device("t4").peak_flops("bfloat16")


def test_usable_memory_is_not_the_marketed_one():
    """Plans start from what PyTorch reports: 79.15 GiB of an A100's 80."""
    memory = device("a100-sxm4-80gb").memory
    assert memory.capacity.value == 81920 * MIB == 80 * GIB
    assert memory.usable.value == pytest.approx(79.15 * GIB)
    for loaded in entries("devices"):
        assert 0.9 < loaded.memory.usable.value / loaded.memory.capacity.value <= 1


@pytest.mark.parametrize(
    ("name", "gigabytes_per_second"),
    [("a100-sxm4-80gb", 2039), ("h100-sxm5-80gb", 3350), ("h100-sxm5-96gb-hbm2e-500w", 2400)],
)
def test_memory_bandwidth(name, gigabytes_per_second):
    """Memory bandwidth is the data sheet's."""
    assert device(name).memory.bandwidth.value == pytest.approx(gigabytes_per_second * GIGA)


def test_switched_nodes_give_a_pair_the_full_rate():
    """NVLink behind a switch is 300, 450 and 900 GB/s a direction by generation."""
    rates = {name: node(name).fabric.bandwidth.value for name in ("dgx-a100-80gb", "dgx-h100")}
    assert rates == {"dgx-a100-80gb": 300 * GIGA, "dgx-h100": 450 * GIGA}
    assert node("dgx-b200").fabric.bandwidth.value == 900 * GIGA
    assert node("dgx-h100").fabric.pair_bandwidth is None


def test_node_fabric_agrees_with_the_device_link():
    """A switch or a mesh carries what the device's links can send."""
    for loaded in entries("nodes"):
        if loaded.fabric.topology in {"switch", "mesh", "cube-mesh"}:
            link = device(loaded.device).link
            assert link is not None
            assert loaded.fabric.bandwidth.value == link.bandwidth.value, loaded.name


def test_mesh_pair_has_one_of_seven_links():
    """Two MI300X share one link of 64 GB/s, a seventh of the mesh."""
    fabric = node("8x-mi300x").fabric
    assert fabric.pair_bandwidth.value == 64 * GIGA
    assert fabric.bandwidth.value == 7 * fabric.pair_bandwidth.value


def test_geforce_with_and_without_nvlink():
    """A bridged pair of RTX 3090 is faster than one over the host; RTX 4090 has no bridge."""
    plain, bridged = node("2x-rtx3090").fabric, node("2x-rtx3090-nvlink").fabric
    assert (plain.topology, bridged.topology) == ("host", "bridge")
    assert bridged.bandwidth.value > 5 * plain.bandwidth.value
    assert device("rtx-4090").link is None
    assert {loaded.fabric.topology for loaded in entries("nodes") if loaded.device == "rtx-4090"} == {
        "host",
        "pcie-switch",
    }


def test_network_share_of_one_device():
    """DGX A100: 8 x 200 Gb/s over 8 devices; p4d: 4 x 100 Gb/s over 8 devices."""
    assert node("dgx-a100-80gb").network.bandwidth_per_device.value == 25 * GIGA
    assert node("aws-p4d-24xlarge").network.bandwidth_per_device.value == 6.25 * GIGA


def test_network_of_jean_zay_is_what_it_measured():
    """4 GB in 1.531 s over 32 devices, a ring on one of four cards, each of which two devices share."""
    ring = 4 * GIGA / 1.531 * 2 * 31 / 32
    share = kernels_for("a100-sxm4-80gb").collectives.network_share.value
    a_device = node("jean-zay-a100").network.bandwidth_per_device.value
    assert a_device * share == pytest.approx(ring / 2, rel=0.01)


def test_network_is_never_faster_than_the_fabric():
    """Inside a node a device sends at least as fast as between nodes."""
    for loaded in entries("nodes"):
        assert loaded.network.bandwidth_per_device.value <= loaded.fabric.bandwidth.value
        assert loaded.network.latency.value >= loaded.fabric.latency.value


def test_cluster_counts_its_devices():
    """The cluster of Llama 3.1 405B has 16384 devices, on its own network."""
    cluster = entry("clusters", "llama3-405b")
    assert cluster.nodes * node(cluster.node).devices == 16384
    assert cluster.network.bandwidth_per_device.value == 50 * GIGA
    assert entry("clusters", "selene").network is None


def test_readme_example_loads():
    """The README's complete example is a valid device."""
    loaded = ADAPTER.validate_python(example(), context={FROM_FILE: True})
    assert isinstance(loaded, DeviceSpec)
    assert loaded.schema_version == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"power": {"value": "72 W", "kind": "guess", "source": "dream"}}, "'dream'"),
        ({"power": {"value": 72.0, "kind": "guess", "source": "mem"}}, "has no unit"),
        ({"power": {"value": "0 W", "kind": "guess", "source": "mem"}}, "not positive"),
        ({"power": {"value": "72 W", "source": "mem"}}, "kind"),
        ({"power": {"value": "72 W", "kind": "rumour", "source": "mem"}}, "kind"),
        ({"name": "Example 24GB"}, "name"),
        ({"schema": 2}, "schema"),
        ({"kind": "gadget"}, "kind"),
        ({"colour": "green"}, "colour"),
        ({"peak": {}}, "needs a bf16 or an fp16 peak rate"),
    ],
)
def test_bad_device_is_refused(changes, message):
    """A wrong device file is refused with a message that names what is wrong."""
    assert message in refuse(example(**changes))


def test_usable_above_capacity_is_refused():
    """Usable memory cannot exceed the capacity."""
    data = example()
    data["memory"]["usable"]["value"] = "24 GiB"
    assert "larger than the capacity" in refuse(data)


@pytest.mark.parametrize(
    ("name", "message"),
    [("8x-mi300x", "needs `pair_bandwidth`"), ("dgx-h100", "means nothing in a switch fabric")],
)
def test_pair_bandwidth_goes_with_the_topology(name, message):
    """A mesh needs the bandwidth of a pair, a switch has none."""
    data = yaml.safe_load((CATALOGUE / "nodes" / f"{name}.yaml").read_text(encoding="utf-8"))
    fabric = data["fabric"]
    if fabric.pop("pair_bandwidth", None) is None:
        fabric["pair_bandwidth"] = fabric["bandwidth"]
    assert message in refuse(data)


def test_entries_do_not_change():
    """An entry is frozen."""
    with pytest.raises(ValidationError):
        device("t4").name = "t5"


def test_every_field_is_described():
    """The schema can explain each of its fields."""
    for model in FOLDERS.values():
        schema = model.model_json_schema()
        for part in (schema, *schema["$defs"].values()):
            for name, field in part.get("properties", {}).items():
                assert field.get("description"), f"{model.__name__}: {name}"
