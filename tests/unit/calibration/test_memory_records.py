"""Snapshots and memory timelines of PyTorch: read as data, never executed."""

import io
import json
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.calibration.snapshots import read_memory, read_plain_pickle
from autoplan.errors import AutoplanError, CatalogError, SpecError
from tests.support.trace_events import TRACES

KEYS = st.text(max_size=6) | st.integers() | st.booleans()
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(value=VALUES, protocol=st.integers(2, 5))
def test_plain_values_are_those_of_python(value, protocol, tmp_path_factory):
    """Dictionaries, lists, tuples, texts and numbers are what was pickled, in every binary protocol."""
    path = tmp_path_factory.mktemp("pickle") / "value.pickle"
    path.write_bytes(pickle.dumps(value, protocol=protocol))

    assert read_plain_pickle(path) == value


def test_shared_values_are_read_once(tmp_path):
    """Frames that many allocations share are one value in the file, and here."""
    frame = {"filename": "model.py", "line": 3, "name": "forward"}
    path = tmp_path / "value.pickle"
    path.write_bytes(pickle.dumps([[frame]] * 300 + [frame]))
    value = read_plain_pickle(path)

    assert value[0] is value[299]
    assert value[0][0] is value[300]


def _nested(depth, width):
    """Return lists that hold the same list many times, and so on."""
    value = []
    for _ in range(depth):
        value = [value] * width
    return value


def _endless():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "segments", [_nested(60, 60), _nested(3, 5_000), _endless()], ids=["deep", "wide", "endless"]
)
def test_values_that_hold_each_other_without_end_are_refused(segments, tmp_path):
    """A small file may stand for more values than anybody has time for."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": []}))
    assert path.stat().st_size < 50_000

    with pytest.raises(SpecError, match="have no end"):
        read_memory(path)


class Hostile:
    """Makes a pickle that writes a file when Python reads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_that_calls_something_is_refused_and_not_executed(protocol, tmp_path):
    """A pickle that would run a program says which instruction was met, and runs nothing."""
    mark, path = tmp_path / "executed", tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [Hostile(mark)]}, protocol=protocol))

    with pytest.raises(SpecError, match="GLOBAL at byte"):
        read_memory(path)
    assert not mark.exists()
    pickle.loads(path.read_bytes())  # noqa: S301 - the proof that it would have
    assert mark.exists()


INSTRUCTIONS = {
    "INST": b"\x80\x02(ios\nsystem\n.",
    "PERSID": b"\x80\x02Pid\n.",
    "BINPERSID": b"\x80\x02K\x01Q.",
    "EXT1": b"\x80\x02\x82\x01.",
    "NEWOBJ": b"\x80\x02)\x81.",
    "BUILD": b"\x80\x02}}b.",
    "OBJ": b"\x80\x02(o.",
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 2**60) + b".",
    "BINBYTES8": b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b".",
    "STRING": b"\x80\x02S'x'\n.",
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_other_instruction_is_refused(name, tmp_path):
    """Only what a snapshot needs is known."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(INSTRUCTIONS[name])

    with pytest.raises(SpecError, match=f"instruction {name} at byte"):
        read_memory(path)


BROKEN = {
    "a long text": b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b".",
    "a longer text": b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b".",
    "a long integer": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "an integer of negative length": b"\x80\x02\x8b" + struct.pack("<i", -5) + b".",
    "a far memo": b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b"j" + struct.pack("<I", 7) + b".",
    "an empty stack": b"\x80\x02.",
    "a mark": b"\x80\x02(.",
    "items of a list": b"\x80\x02]K\x01K\x02s.",
    "values of a dictionary": b"\x80\x02}K\x01a.",
    "a key that is a list": b"\x80\x02}]K\x01s.",
    "an odd number of items": b"\x80\x02}(K\x01u.",
    "a tuple of too few": b"\x80\x02K\x01\x87.",
    "a group without a mark": b"\x80\x02]e.",
    "no end": b"\x80\x02]",
    "text that is none": b"\x80\x04\x8c\x02\xff\xfe.",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_pickle_is_said(name, tmp_path):
    """Lengths, marks and memos that lead nowhere end in an error, with little memory."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(BROKEN[name])

    with pytest.raises(AutoplanError):
        read_memory(path)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_an_error(data, tmp_path_factory):
    """No file ends in another exception."""
    path = tmp_path_factory.mktemp("pickle") / "snapshot"
    path.write_bytes(b"\x80" + data)

    with pytest.raises(AutoplanError):
        read_memory(path)


MODULE = {"filename": "/venv/torch/nn/modules/linear.py", "line": 5, "name": "__init__"}
FORWARD = {"filename": "/venv/torch/nn/modules/linear.py", "line": 9, "name": "forward"}
BACKWARD = {"filename": "/venv/torch/autograd/graph.py", "line": 7, "name": "_engine_run_backward"}
OPTIMIZER = {"filename": "/venv/torch/optim/adamw.py", "line": 1, "name": "_init_group"}
GIB = 2**30


def entry(action, address, size, *frames):
    """Return an action of the allocator."""
    return {"action": action, "addr": address, "size": size, "frames": list(frames), "stream": 0}


def snapshot(history, blocks, reserved=8 * GIB):
    """Return a snapshot with one segment of ``blocks``: address, size and frames."""
    listed = [
        {
            "address": a,
            "size": n,
            "requested_size": n - 512,
            "state": "active_allocated",
            "frames": list(frames),
        }
        for a, n, *frames in blocks
    ]
    free = reserved - sum(x["size"] for x in listed)
    listed.append({"address": 10**12, "size": free, "requested_size": 0, "state": "inactive", "frames": []})
    segment = {
        "device": 0,
        "address": 1,
        "total_size": reserved,
        "blocks": listed,
        "requested_size": reserved // 2,
    }
    return {"segments": [segment], "device_traces": [history]}


HISTORY = [
    entry("segment_alloc", 1, 8 * GIB),
    entry("alloc", 11, GIB, MODULE),
    entry("alloc", 12, 2 * GIB, FORWARD),
    entry("alloc", 13, 3 * GIB, FORWARD, BACKWARD),
    entry("free_requested", 12, 2 * GIB),
    entry("free_completed", 12, 2 * GIB),
    entry("segment_free", 99, GIB),
    entry("free_requested", 13, 3 * GIB),
    entry("free_completed", 13, 3 * GIB),
    entry("alloc", 14, GIB, OPTIMIZER),
]
BLOCKS = [(10, GIB), (11, GIB, MODULE), (14, GIB, OPTIMIZER)]


def saved(value, path, form):
    """Write a snapshot as a pickle or as JSON."""
    data = io.BytesIO()
    pickle.dump(value, data)
    path.write_bytes(data.getvalue() if form == "pickle" else json.dumps(value).encode())
    return path


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_the_peak_of_a_snapshot_is_found_in_its_history(form, tmp_path):
    """The level is counted back from the end; what lived at the peak is known by who asked for it."""
    found = read_memory(saved(snapshot(HISTORY, BLOCKS), tmp_path / "snapshot", form))

    assert found.allocated == 7 * GIB  # what is older than the history, and what was asked for up to backward
    assert dict(found.categories) == {
        "unknown": GIB,
        "parameters": GIB,
        "activations": 2 * GIB,
        "backward": 3 * GIB,
    }
    assert found.event == "backward"
    assert found.reserved == 9 * GIB
    assert (found.retries, found.out_of_memory) == (1, 0)


def test_a_snapshot_without_history_tells_what_lives_now(tmp_path):
    """Where nothing was recorded, the peak is not known: the present stands for it."""
    found = read_memory(saved(snapshot([], BLOCKS), tmp_path / "snapshot", "pickle"))

    assert found.allocated == 3 * GIB
    assert dict(found.categories) == {"unknown": GIB, "parameters": GIB, "optimizer": GIB}
    assert found.event == ""


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 100)), min_size=1, max_size=30),
    st.integers(0, 30),
)
def test_peaks_are_those_of_playing_the_history_forward(steps, lost):
    """However much of the history is lost, the peak of the rest is that of playing all of it forward."""
    from autoplan.calibration.snapshots import measured_snapshot

    history, living, levels = [], {}, [0]
    for address, size in steps:
        if address in living:
            history.append(entry("free_requested", address, living.pop(address)))
        else:
            living[address] = size
            history.append(entry("alloc", address, size, FORWARD))
        levels.append(sum(living.values()))
    kept, blocks = history[lost:], [(a, n, FORWARD) for a, n in living.items()]
    found = measured_snapshot(snapshot(kept, blocks, reserved=1000), "x")

    assert found.allocated == max(levels[min(lost, len(history)) :])
    assert sum(size for _, size in found.categories) == found.allocated


WRONG = {
    "segments": {"segments": 3},
    "a segment": {"segments": [3]},
    "no segment": {"segments": []},
    "a size": {"segments": [{"total_size": "x", "blocks": []}]},
    "a negative size": {"segments": [{"total_size": -1, "address": 0, "blocks": []}]},
    "blocks": {"segments": [{"total_size": 1, "address": 0, "blocks": [7]}]},
    "an action": {
        "segments": [{"total_size": 1, "address": 0, "blocks": []}],
        "device_traces": [[{"size": 1}]],
    },
    "a history": {"segments": [{"total_size": 1, "address": 0, "blocks": []}], "device_traces": [{}]},
    "another document": {"traceEvents": []},
    "a number": 3,
    "a timeline of two lengths": [[1, 2], [[0] * 9]],
    "a row of a timeline": [[1], [[0] * 4]],
    "an event of a timeline": [[1, 2, "x", 0]],
    "a category of a timeline": [[1, 2, 3, 12], [1, 2, 3, 4], [1, 2, 3, 4]],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_malformed_record_is_said(name, tmp_path):
    """Wrong types anywhere are errors with a place."""
    for form in ("pickle", "json"):
        path = saved(WRONG[name], tmp_path / f"record.{form}", form)
        with pytest.raises(SpecError) as error:
            read_memory(path)
        assert str(path) in str(error.value)


def test_a_record_that_is_cut_off_is_said(tmp_path):
    """Half a file is no record."""
    path = saved(snapshot(HISTORY, BLOCKS), tmp_path / "snapshot", "pickle")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CatalogError, match="ends within its pickle"):
        read_memory(path)
    path.write_text('{"segments": [', encoding="utf-8")
    with pytest.raises(SpecError, match="no JSON"):
        read_memory(path)


def test_a_timeline_of_the_profiler_has_its_own_categories(tmp_path):
    """The row with the largest sum is the peak; categories are those of torch.profiler, in its order."""
    rows = [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 10, 20, 30, 40, 50, 60, 70, 80], [0] * 9]
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps([[1, 2, 3], rows]), encoding="utf-8")
    found = read_memory(path)

    assert found.allocated == 360
    assert dict(found.categories) == {
        "parameters": 10,
        "optimizer": 20,
        "activations": 30 + 50 + 70,
        "transient": 40,
        "gradients": 60,
        "unknown": 80,
    }


def test_events_of_the_profiler_add_up_to_their_peak():
    """A real timeline of events: the peak is that of adding up its bytes, counted with numpy."""
    import gzip

    import numpy as np

    path = TRACES / "memory-timeline.raw.json.gz"
    with gzip.open(path) as file:
        events = np.array([[row[2], row[3]] for row in json.load(file)], dtype=np.int64)
    levels = np.cumsum(events[:, 0])
    at = int(levels.argmax())
    parameters = events[: at + 1][events[: at + 1, 1] == 0, 0].sum()
    found = read_memory(path)

    assert found.allocated == levels[at]
    assert dict(found.categories)["parameters"] == parameters
