"""Traces made by hand, and the seconds of a trace counted by painting time, as a reference."""

import gzip
import json
from pathlib import Path

import numpy as np

__all__ = ["TRACES", "annotation", "call", "collective", "kernel", "operator", "painted", "written"]

TRACES = Path(__file__).parent / "traces"


def _event(category, name, start, length, **args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": args.pop("pid", 0),
        "tid": args.pop("tid", 7),
        "ts": start,
        "dur": length,
        "args": args,
    }


def kernel(name, start, length, **args):
    """Return a kernel of a device [us]."""
    return _event("kernel", name, start, length, device=0, stream=7, **args)


def collective(name, start, length, ranks, size, **args):
    """Return a kernel of NCCL with the arguments of its collective [us]; ``size`` is in bytes."""
    facts = {
        "Collective name": name,
        "In msg nelems": size // 2,
        "Out msg nelems": size // 2,
        "dtype": "BFloat16",
        "Group size": len(ranks),
        "Process Group Name": str(ranks),
        "Process Group Ranks": str(list(ranks)),
    }
    return kernel("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", start, length, **facts, **args)


def call(start, length, correlation, name="cudaLaunchKernel"):
    """Return a call of the host [us]."""
    return _event("cuda_runtime", name, start, length, correlation=correlation)


def annotation(name, start, length):
    """Return an annotation of the host [us]."""
    return _event("user_annotation", name, start, length)


def operator(name, start, length, thread=1):
    """Return an operator of the host [us]."""
    return _event("cpu_op", name, start, length, tid=thread)


def written(path, events, **fields):
    """Write a trace of ``events`` and return its path."""
    text = json.dumps({"schemaVersion": 1, **fields, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def painted(path, resolution):
    """Return shares of the time between the first kernel and the last, counted cell by cell.

    Time is cut into cells of ``resolution`` us. Each kernel paints the cells that it covers, with a colour of
    its own for computing, communicating and copying; a cell counts as compute where that colour is on it,
    else as exposed communication, else as an exposed copy, else as idle.
    """
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    device = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"} and e["ph"] == "X"]
    first = min(e["ts"] for e in device)
    last = max(e["ts"] + e["dur"] for e in device)
    colours = {
        x: np.zeros(int((last - first) / resolution) + 1, dtype=bool) for x in ("compute", "nccl", "copy")
    }
    for event in device:
        colour = "nccl" if event["name"].startswith("nccl") else "compute"
        colour = "copy" if event["cat"] != "kernel" else colour
        begin, end = (event["ts"] - first) / resolution, (event["ts"] + event["dur"] - first) / resolution
        colours[colour][round(begin) : round(end)] = True
    compute, nccl, copy = (colours[x] for x in ("compute", "nccl", "copy"))
    cells = {
        "compute": compute,
        "exposed": nccl & ~compute,
        "copies": copy & ~compute & ~nccl,
        "idle": ~(compute | nccl | copy),
    }
    return {name: float(found.mean()) for name, found in cells.items()}
