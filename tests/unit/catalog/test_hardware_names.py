"""What people call hardware leads to names that work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoplan.catalog.entries import hardware, is_node, written
from autoplan.catalog.hardware_names import rented_machines, unknown_hardware
from autoplan.errors import CatalogError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("H100", "8x-h100-sxm5-80gb"),
        ("4090", "1x-rtx-4090"),
        ("RTX 4090", "8x-rtx-4090"),
        ("NVIDIA GeForce RTX 3090", "1x-rtx-3090"),
        ("a100", "8x-a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-80GB", "8x-a100-sxm4-80gb"),
        ("8 x H100", "8x-h100-sxm5-80gb"),
        ("H100:8", "8x-h100-sxm5-80gb"),
        ("A100x4", "4x-a100-pcie-80gb"),
        ("3x-h100", "3x-h100-sxm5-80gb"),
        ("16x-h100", "8x-h100-sxm5-80gb"),
        ("2x-rtx4009", "2x-rtx-4090"),
        ("2x-dgx-h100", "dgx-h100"),
        ("h100x8", "8x-h100-sxm5-80gb"),
    ],
)
def test_what_people_call_hardware_suggests_nodes_that_work(written: str, meant: str) -> None:
    """The error has the node that is meant; all names in it are of nodes; a file is named."""
    with pytest.raises(CatalogError) as refused:
        hardware(written, Path())
    said = str(refused.value)
    assert said == unknown_hardware(written)
    assert "./node.yaml" in said
    hint = said.removeprefix(f"no hardware is called {written!r}")
    named = re.findall(r"(?:\d+x|dgx|hgx)-[a-z0-9.-]+[a-z0-9]", hint)
    assert meant in named
    assert all(is_node(name) for name in named)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1x-a6000", "1x-rtx-a6000"),
        ("8x-a5000", "8x-rtx-a5000"),
        ("2x4090", "2x-rtx4090"),
        ("3x-rtx3090", "3x-rtx-3090"),
        ("6x4090", "6x-rtx-4090"),
        ("2xMI300X", "2x-mi300x"),
        ("1x-rtx3060", "1x-rtx-3060-12gb"),
        ("1x-4080", "1x-rtx-4080"),
        ("dgxh100", "dgx-h100"),
        ("hgx-h100", "dgx-h100"),
        ("dgx-h200", "hgx-h200"),
        ("DGX A100 80GB", "dgx-a100-80gb"),
        ("p5.48xlarge", "aws-p5-48xlarge"),
        ("a3-highgpu-8g", "gcp-a3-highgpu-8g"),
        ("Standard_ND96isr_H100_v5", "azure-nd96isr-h100-v5"),
        ("Standard_ND96asr_v4", "azure-nd96asr-a100-v4"),
        ("BM.GPU.H100.8", "dgx-h100"),
        ("1x-dgx-spark", "dgx-spark"),
        ("g5.12xlarge", "aws-g5-12xlarge"),
        ("g2-standard-48", "gcp-g2-standard-48"),
    ],
)
def test_what_one_device_alone_is_called_names_its_node(written: str, meant: str) -> None:
    """One of which others have more words, such as 48 GB, is the one that is meant."""
    assert hardware(written, Path())[0].name == meant


@pytest.mark.parametrize("name", rented_machines())
def test_a_rented_machine_has_its_devices_and_the_memory_of_its_host(name: str) -> None:
    """It is called by its provider's name, with or without the provider; a job finds it again."""
    machine, (found, devices) = rented_machines()[name], hardware(name, Path())
    assert hardware(found.name, Path()) == (found, devices)
    assert hardware(name.partition("-")[2], Path()) == (found, devices)
    if machine.node is None:
        assert (found.name, found.device, devices) == (name, machine.device, machine.devices)
        assert found.host.memory.value == machine.host_memory
        assert found.derived_from
        assert written("node", name)[0].startswith("schema: 1")
