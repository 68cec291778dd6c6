"""Rates of the links between devices, timed with PyTorch or nccl-tests, and a node's file with them.

Under torchrun every process times its part. Over nodes, the group of all ranks tells the network's rate.

Notation (this file only)::

    r, n  ranks in this node, in all        V  bytes of a message        B  bandwidth of a ring [byte/s]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from autoplan.calibration.record import Point
from autoplan.calibration.torchbench import TorchBench
from autoplan.errors import UnsupportedError
from autoplan.schema.base import Sourced
from autoplan.schema.costmodel.kernel_spec import Collectives, KernelSpec
from autoplan.schema.hardware import Fabric, NodeSpec

S = TypeVar("S", bound=Sourced)

#: What a measured node's name ends in, and the key of its source.
_SUFFIX: Final = "-measured"
_SOURCE: Final = "measured"
#: Bytes of a message that bandwidth decides, on an accelerator and on a processor, and one that latency does.
_LARGE: Final = {True: 256 * 2**20, False: 4 * 2**20}
_SMALL: Final = 1024
_NCCL_TEST: Final = "all_reduce_perf"
#: A line of nccl-tests: bytes, elements, type, operation, root, then out of place microseconds and two rates.
_NCCL_LINE: Final = re.compile(
    r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+([\d.]+)", re.MULTILINE
)
_MOST_SECONDS: Final = 300
#: Digits that a timing of a second or two tells.
_DIGITS: Final = 3
#: A hop takes no less: the launch alone may take longer than guessed.
_LEAST_HOP: Final = 1e-7


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What collectives between ``ranks`` devices reach, ``local_ranks`` of them in each node.

    ``bandwidth`` of a ring inside a node and ``network`` of one device between nodes [byte/s], None with one
    device in a node and with one node; ``seconds`` of an all-reduce of a kilobyte; ``by`` timed them.
    """

    ranks: int
    local_ranks: int
    bandwidth: float | None
    network: float | None
    seconds: float | None
    by: str


def measured_links(bench: TorchBench) -> LinkRates:
    """Return what PyTorch's collectives reach between the processes of torchrun; seconds of wall time.

    Raises UnsupportedError for one process alone, and where processes of a node are no power of two.
    """
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(bench.ranks)))
    if bench.ranks == 1:
        raise UnsupportedError("links are timed between two devices or more, and one process runs alone")
    if local not in bench.groups and local > 1:
        raise UnsupportedError(f"links are timed between 2, 4, 8, ... processes of a node, not {local}")
    large = _LARGE[bench.cuda]

    def seconds(operation: str, ranks: int, size: int) -> float:
        return bench.seconds(Point("collective", operation, (ranks, size)))

    inside = seconds("all_reduce", local, large) if local > 1 else None
    small = seconds("all_reduce", local, _SMALL) if local > 1 else None
    across = seconds("all_gather", bench.ranks, large) if bench.ranks > local else None
    return LinkRates(
        ranks=bench.ranks,
        local_ranks=local,
        bandwidth=2.0 * (local - 1) / local * large / inside if inside else None,
        network=(bench.ranks - 1) / bench.ranks * large / across / local if across else None,
        seconds=small,
        by=str(bench.environment),
    )


def nccl_tests_links(devices: int) -> LinkRates | None:
    """Return what ``all_reduce_perf`` of nccl-tests reaches on this machine; None where it is not installed.

    Raises UnsupportedError where it fails, with the last line that it prints.
    """
    program = shutil.which(_NCCL_TEST)
    if program is None:
        return None
    large = _LARGE[True]
    sizes = ("-b", _SMALL, "-e", large, "-f", large // _SMALL, "-g", devices)
    return rates_of_nccl_tests(_printed([program, *map(str, sizes)]), devices)


def rates_of_nccl_tests(text: str, devices: int) -> LinkRates:
    """Return what the lines of nccl-tests say: the bus bandwidth of the largest message.

    >>> rates = rates_of_nccl_tests("268435456 67108864 float sum -1 61356 4.38 7.66 0", 8)
    >>> rates.bandwidth / 1e9, round(rates.seconds, 4)
    (7.66, 0.0614)
    """
    rows = [(int(size), float(us), float(rate)) for size, us, rate in _NCCL_LINE.findall(text)]
    if not rows:
        raise UnsupportedError(f"{_NCCL_TEST} printed no line that can be read")
    (_, first, _), (_, _, rate) = min(rows), max(rows)
    return LinkRates(devices, devices, rate * 1e9, None, first * 1e-6, f"{_NCCL_TEST} of nccl-tests")


def spread_over_devices(processes: int, words: Sequence[str]) -> str:
    """Return what the first of ``processes`` prints of ``python -m autoplan`` with ``words`` under torchrun.

    Raises UnsupportedError without PyTorch, and where the processes fail.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return _printed([sys.executable, *launcher, "-m", "autoplan", *words])


def _printed(command: Sequence[str]) -> str:
    """Return what ``command`` prints; raises UnsupportedError with its error where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"links were not timed within {_MOST_SECONDS} s: {command[0]}") from error
    if done.returncode != 0:
        lines = [x for x in done.stderr.splitlines() if x.strip()] or [f"exit code {done.returncode}"]
        said = next((x for x in lines if "rror: " in x), lines[-1])
        raise UnsupportedError(f"timing links failed: {said[:200]}")
    return done.stdout


def measured_node(node: NodeSpec, kernels: KernelSpec, rates: LinkRates) -> NodeSpec:
    """Return ``node`` with the measured rates, as a file.

    A prediction takes ``collectives.fabric_share`` of a fabric's bandwidth and ``network_share`` of a
    network's, so that the file has the measured rates over these. Pairs of a mesh or bridge change alike.
    """
    network = node.network
    if rates.network is not None:
        old, share = network.bandwidth_per_device, kernels.collectives.network_share
        network = network.model_copy(
            update={"bandwidth_per_device": _number(old, rates.network / share.value)}
        )
    said = f"autoplan hardware --measure: {rates.ranks} ranks, {rates.local_ranks} in a node, by {rates.by}"
    return node.model_copy(
        update={
            "name": f"{node.name}{_SUFFIX}",
            "fabric": _measured_fabric(node.fabric, kernels.collectives, rates),
            "network": network,
            "sources": {**node.sources, _SOURCE: said},
            "derived_from": None,
        }
    )


def _measured_fabric(fabric: Fabric, achieved: Collectives, rates: LinkRates) -> Fabric:
    """Return the fabric with its measured bandwidth, and the latency of a hop beside the launch."""
    if rates.bandwidth is None or rates.seconds is None:
        return fabric
    value = rates.bandwidth / achieved.fabric_share.value
    hop = (rates.seconds - achieved.launch.value) / (2.0 * (rates.local_ranks - 1))
    update = {
        "bandwidth": _number(fabric.bandwidth, value),
        "latency": _number(fabric.latency, max(hop, _LEAST_HOP)),
    }
    if fabric.pair_bandwidth is not None:
        factor = value / fabric.bandwidth.value
        update["pair_bandwidth"] = _number(fabric.pair_bandwidth, factor * fabric.pair_bandwidth.value)
    return fabric.model_copy(update=update)


def _number(old: S, value: float) -> S:
    """Return ``old`` with a measured value."""
    rounded = float(f"{value:.{_DIGITS}g}")
    return old.model_copy(update={"value": rounded, "kind": "measured", "source": _SOURCE, "note": None})
