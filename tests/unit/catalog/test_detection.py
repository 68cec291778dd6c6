"""Hardware that is found on a machine, with libraries of drivers that are stand-ins."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

import autoplan
from autoplan.answers.catalog.blocks import hardware_document, hardware_table
from autoplan.catalog import detected, detection, entry_names, load_entry, load_job
from autoplan.catalog.detection import FoundDevices, catalogue_name
from autoplan.errors import CatalogError

H100 = ("NVIDIA H100 80GB HBM3", 85_520_809_984)
VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    processes = (name for names in detection._PROCESSES for name in names)
    for name in (*VARIABLES, *detection._VARIABLES, *processes):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)


@pytest.fixture
def nvml(monkeypatch):
    """Return what installs a stand-in of nvidia-ml-py with so many devices."""

    def install(devices, *, linked=lambda _a, _b: True, mig=0):
        module, calls = ModuleType("pynvml"), []

        class NVMLError(Exception):
            """As in nvidia-ml-py."""

        def mig_mode(device):
            if mig is None:
                raise NVMLError("Not Supported")
            return [mig, mig]

        module.NVMLError = NVMLError
        module.NVML_P2P_CAPS_INDEX_NVLINK, module.NVML_P2P_STATUS_OK = 2, 0
        module.nvmlInit = lambda: calls.append("init")
        module.nvmlShutdown = lambda: calls.append("shutdown")
        module.nvmlDeviceGetCount = lambda: len(devices)
        module.nvmlDeviceGetHandleByIndex = lambda index: index
        module.nvmlDeviceGetName = lambda index: devices[index][0].encode()
        module.nvmlDeviceGetMemoryInfo = lambda index: SimpleNamespace(total=devices[index][1])
        module.nvmlDeviceGetUUID = lambda index: f"GPU-{index}abc"
        module.nvmlDeviceGetMigMode = mig_mode
        module.nvmlDeviceGetP2PStatus = lambda a, b, _: 0 if linked(a, b) else 5
        module.calls = calls
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    return install


def test_eight_h100_are_a_node_of_the_catalogue(nvml):
    """A DGX H100 is found by its devices, and NVML is shut down again."""
    module = nvml([H100] * 8)
    found = detected()

    assert (found.entry, found.total, found.devices.linked) == ("8x-h100-sxm5-80gb", 8, "all pairs")
    assert load_entry("node", found.entry).name == "dgx-h100"
    assert module.calls == ["init", "shutdown"]
    assert (
        hardware_table(found).splitlines()[0] == "found     8 x NVIDIA H100 80GB HBM3, 79.6 GiB each (NVML)"
    )
    assert hardware_document(found)["catalog"] == {
        "device": "h100-sxm5-80gb",
        "node": "8x-h100-sxm5-80gb",
        "devices": 8,
    }


def test_a_job_on_auto_is_the_job_on_what_was_found(nvml, tmp_path, monkeypatch):
    """``hardware: auto`` on four nodes of Slurm is the same question as their name and 32 devices."""
    nvml([H100] * 8)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    text = "schema: 1\nkind: training\nmodel: llama3-8b\nhardware: {}\n"
    text += "workload: {{sequence_length: 8192, global_batch_size: 128}}\n"
    (tmp_path / "auto.yaml").write_text(text.format("auto"))
    (tmp_path / "named.yaml").write_text(text.format("dgx-h100\ndevices: 32"))
    auto, named = (load_job(tmp_path / f"{name}.yaml") for name in ("auto", "named"))

    assert auto.cluster == named.cluster
    line = load_job("--model llama3-8b --hardware auto --task train --batch 128 --sequence-length 8192")
    assert line.cluster == named.cluster
    assert autoplan.evaluate(auto, "tp=2,mbs=1").predicted == autoplan.evaluate(named, "tp=2,mbs=1").predicted


@pytest.mark.parametrize(
    ("variable", "value", "entry"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,1,2,3", "4x-h100-sxm5-80gb"),
        ("CUDA_VISIBLE_DEVICES", "GPU-3a, GPU-5abc", "2x-h100-sxm5-80gb"),
        ("CUDA_VISIBLE_DEVICES", "7", "1x-h100-sxm5-80gb"),
    ],
)
def test_only_visible_devices_count(variable, value, entry, nvml, monkeypatch):
    """Devices that the environment hides from the process are not planned for."""
    nvml([H100] * 8, mig=None)
    monkeypatch.setenv(variable, value)

    assert detected().entry == entry
    assert variable in hardware_table(detected())


@pytest.mark.parametrize(
    ("devices", "environment", "message"),
    [
        ([H100] * 8, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is empty"),
        (
            [H100] * 2,
            {"CUDA_VISIBLE_DEVICES": "0,9"},
            "names '9', and this machine has 2 devices, from 0 to 1",
        ),
        ([H100] * 2, {"CUDA_VISIBLE_DEVICES": "MIG-1"}, "names 'MIG-1'"),
        ([H100, ("NVIDIA L4", 24e9)], {}, "1 x NVIDIA H100 80GB HBM3, 1 x NVIDIA L4"),
        ([H100] * 9, {}, "no node with so many of h100-sxm5-80gb: choose up to 8"),
        ([("NVIDIA H100 40GB Turbo", 42e9)], {}, "which the catalogue does not have: the nearest are"),
        ([H100] * 8, {"SLURM_JOB_NUM_NODES": "many"}, "SLURM_JOB_NUM_NODES='many' is not a number of nodes"),
        ([H100] * 8, {"PET_NNODES": "1:4"}, "PET_NNODES='1:4' is not a number of nodes"),
        ([], {}, "pynvml: no devices"),
    ],
)
def test_what_is_not_certain_is_an_error(devices, environment, message, nvml, monkeypatch):
    """Nothing is guessed: the message says what was found and what to do."""
    nvml(devices)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(CatalogError) as error:
        detected()
    assert message in str(error.value)


def test_devices_in_parts_are_refused(nvml):
    """A part of a device (MIG) is no device of the catalogue."""
    nvml([H100] * 8, mig=1)

    with pytest.raises(CatalogError, match="MIG"):
        detected()


def test_without_a_library_the_answer_says_what_to_install(monkeypatch):
    """Neither library is needed, and amdsmi may raise anything when it is imported."""

    class Broken:
        """A finder that lets the import of amdsmi fail as it does without its driver."""

        def find_spec(self, name, *_):
            if name == "amdsmi":
                raise KeyError("ROCM_PATH")

    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])

    with pytest.raises(CatalogError, match=r"pynvml.*amdsmi: 'ROCM_PATH'.*install nvidia-ml-py or amdsmi"):
        detected()


def test_a_driver_that_fails_is_said(nvml):
    """Errors of the driver are a message, and NVML is asked no more."""
    module = nvml([H100])

    def fail():
        raise module.NVMLError("Driver/library version mismatch")

    module.nvmlInit = fail

    with pytest.raises(CatalogError, match="pynvml: Driver/library version mismatch"):
        detected()


def test_devices_of_amd_are_found(monkeypatch):
    """Eight MI300X behind amdsmi are the node of the catalogue."""
    module = ModuleType("amdsmi")
    module.amdsmi_init = module.amdsmi_shut_down = lambda: None
    module.amdsmi_get_processor_handles = lambda: list(range(8))
    module.amdsmi_get_gpu_asic_info = lambda _: {"market_name": "AMD Instinct MI300X OAM"}
    module.amdsmi_get_gpu_memory_total = lambda *_: 206_141_652_992
    module.amdsmi_get_gpu_device_uuid = lambda device: f"{device}"
    module.amdsmi_topo_get_link_type = lambda *_: {"hops": 1, "type": 1}
    module.AmdSmiMemoryType = SimpleNamespace(VRAM=0)
    module.AmdSmiLinkType = SimpleNamespace(AMDSMI_LINK_TYPE_XGMI=1)
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    found = detected()

    assert (found.entry, found.devices.fabric, found.devices.linked) == (
        "8x-mi300x",
        "Infinity Fabric",
        "all pairs",
    )


@pytest.mark.parametrize("linked", [lambda a, b: {a, b} in ({0, 1}, {2, 3}), lambda _a, _b: False])
def test_links_are_told(linked, nvml):
    """Bridges between some pairs, or none at all, are said."""
    nvml([("NVIDIA A100-PCIE-40GB", 42_298_834_944)] * 4, linked=linked)
    found = detected()

    assert found.entry == "4x-a100-pcie-40gb"
    assert found.devices.linked == ("some pairs" if linked(0, 1) else "none")
    assert "NVLink" in hardware_table(found)


@pytest.mark.parametrize(
    ("environment", "nodes"),
    [
        ({}, (1, None)),
        ({"SLURM_NNODES": "16"}, (16, "SLURM_NNODES")),
        ({"SLURM_JOB_NUM_NODES": "16", "SLURM_STEP_NUM_NODES": "2"}, (2, "SLURM_STEP_NUM_NODES")),
        ({"PET_NNODES": "4:4"}, (4, "PET_NNODES")),
        ({"GROUP_WORLD_SIZE": "2", "SLURM_NNODES": "16"}, (2, "GROUP_WORLD_SIZE")),
        ({"WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "8", "RANK": "0"}, (4, "WORLD_SIZE")),
        ({"WORLD_SIZE": "32", "RANK": "0"}, (1, None)),
        ({"OMPI_COMM_WORLD_SIZE": "32", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, (4, "OMPI_COMM_WORLD_SIZE")),
    ],
)
def test_nodes_come_from_the_environment(environment, nodes, monkeypatch):
    """The narrowest statement counts: torchrun's before the step's, and the step's before the job's."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert detection.found_nodes() == nodes


@pytest.mark.parametrize(
    ("reported", "gigabytes", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", 42.3, "a100-sxm4-40gb"),
        ("NVIDIA A100-SXM4-80GB", 85.2, "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", 85.2, "a100-pcie-80gb"),
        ("NVIDIA H100 PCIe", 85.5, "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", 100.5, "h100-nvl-94gb"),
        ("NVIDIA H200", 150.1, "h200-sxm-141gb"),
        ("NVIDIA H200 NVL", 150.1, "h200-nvl-141gb"),
        ("Tesla V100-SXM2-32GB", 34.4, "v100-sxm2-32gb"),
        ("Tesla T4", 15.8, "t4"),
        ("NVIDIA A10G", 24.1, "a10g"),
        ("NVIDIA GeForce RTX 4090", 25.4, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", 51.5, "rtx-4090-48gb"),
        ("NVIDIA RTX 6000 Ada Generation", 51.5, "rtx-6000-ada"),
        ("NVIDIA RTX 4000 Ada Generation", 21.5, "rtx-4000-ada"),
        ("NVIDIA RTX A5000", 25.8, "rtx-a5000"),
        ("NVIDIA L40", 48.3, "l40"),
        ("AMD Instinct MI100", 34.3, "mi100"),
    ],
)
def test_names_of_drivers_are_names_of_the_catalogue(reported, gigabytes, name):
    """What drivers call a device is found by its words and its memory."""
    found = FoundDevices(reported, 1, gigabytes * 1e9, "NVLink", "one device", "NVML")

    assert catalogue_name(found, capacities()) == name


@pytest.mark.parametrize(
    "reported",
    ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA H100", "Quadro P400"],
)
def test_a_device_with_another_word_is_another_device(reported):
    """A laptop's 4090 is no 4090, and what has other memory is another one."""
    found = FoundDevices(reported, 1, 17.2e9, "NVLink", "one device", "NVML")

    with pytest.raises(CatalogError, match="which the catalogue does not have"):
        catalogue_name(found, capacities())


def capacities():
    """Return the memory of every device of the catalogue."""
    return {name: load_entry("device", name).memory.capacity.value for name in entry_names("device")}
