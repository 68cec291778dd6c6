"""Traces as files: in pieces, cut off, packed, broken or hostile."""

import gzip
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.calibration.traces import event_stream, read_trace, timeline_record, trace_files
from autoplan.calibration.traces.event_stream import trace_items
from autoplan.errors import AutoplanError, CatalogError, SpecError
from tests.support.trace_events import kernel, written

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), max_size=8),
    fields=st.dictionaries(st.text(max_size=4).filter(lambda x: x != "traceEvents"), VALUES, max_size=4),
    piece=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
)
def test_a_trace_in_pieces_is_what_json_says(events, fields, piece, indent, tmp_path_factory):
    """Wherever the pieces of a file end, its fields and events are those of Python's own reader."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_text(json.dumps({**fields, "traceEvents": events}, indent=indent), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_stream, "_PIECE", piece)
        items = list(trace_items(path))

    assert [value for key, value in items if key == "traceEvents"] == events
    assert dict(x for x in items if x[0] != "traceEvents") == fields


def test_a_list_of_events_may_lack_its_end(tmp_path):
    """The Trace Event Format allows a list alone, without its last bracket."""
    path = tmp_path / "trace.json"
    path.write_text(
        f"[{json.dumps(kernel('gemm', 0, 5))},\n{json.dumps(kernel('gemm', 7, 5))},\n", encoding="utf-8"
    )

    assert len(read_trace(path)[0]) == 2


EVENT = json.dumps(kernel("gemm", 0, 5))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("   \n", "it is empty"),
        ("hello", "it begins with 'h'"),
        ('{"traceEvents": 3}', "traceEvents is not a list"),
        ('{"traceEvents": [1]}', "traceEvents[0] is a number, not an object"),
        ('{"traceEvents": [[]]}', "traceEvents[0] is a list, not an object"),
        ('{"traceEvents": []}', "no kernel and no operator in 0 events"),
        ("{}", "no kernel and no operator in 0 events"),
        (f'{{"traceEvents": [{EVENT}', "expected ',' or ']' after event 0"),
        (f'{{"traceEvents": [{EVENT}, {EVENT[:30]}', "the file ends within event 1"),
        (f'{{"traceEvents": [{EVENT} {EVENT}]}}', "expected ',' or ']' after event 0"),
        ('{"traceEvents": [{"ph": nope}]}', "event 0 is no JSON"),
        ('{"traceEvents": [' + '{"a":' * 100_000, "nested too deeply"),
        ('{"a": 1 "b": 2}', "expected ',' or '}'"),
        ("{3: 1}", "expected the name of a field"),
        ('{"a": ' + "9" * 5000 + "}", "no JSON"),
    ],
)
def test_what_is_no_trace_is_said(text, said, tmp_path):
    """A file that is cut off or no trace names what is wrong and where."""
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(SpecError) as error:
        read_trace(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dur": -1}, "traceEvents[0].dur: a duration of -1 us is negative"),
        ({"dur": "3"}, "traceEvents[0].dur: '3' is no time"),
        ({"dur": True}, "is no time"),
        ({"dur": None}, "None is no time"),
        ({"ts": float("nan")}, "nan is no time"),
        ({"ts": float("inf")}, "inf is no time"),
        ({"ts": 10**400}, "is no time"),
        ({"name": 3}, "traceEvents[0].name: an event needs a name"),
    ],
)
def test_a_kernel_without_a_time_is_refused(change, said, tmp_path):
    """Wrong types and negative durations are errors at their event."""
    path = written(tmp_path / "trace.json", [{**kernel("gemm", 0, 5), **change}])

    with pytest.raises(SpecError) as error:
        read_trace(path)
    assert said in str(error.value)


def test_other_values_of_wrong_types_change_nothing(tmp_path):
    """What is not needed may be anything: events without a category, arguments that are a list, odd ranks."""
    odd = [
        {},
        {"ph": "X"},
        {"ph": "X", "cat": 3, "ts": "x"},
        {"ph": "M", "name": 3},
        {**kernel("gemm", 0, 5), "args": []},
        kernel(
            "ncclKernel_AllReduce", 6, 5, **{"Process Group Ranks": {"a": 1}, "Group size": -3, "dtype": 7}
        ),
        kernel("gemm", 12, 5, correlation="seven"),
    ]
    path = written(
        tmp_path / "trace.json", odd, distributedInfo={"rank": "x", "pg_config": [3, {"pg_name": 1}]}
    )

    assert len(read_trace(path)[0]) == 3


def test_a_gzip_file_that_is_cut_off_is_said(tmp_path):
    """The end of a packed file is missing."""
    path = written(tmp_path / "trace.json.gz", [kernel(f"gemm {x}", x, 1) for x in range(500)])
    path.write_bytes(path.read_bytes()[:-200])

    with pytest.raises(CatalogError, match="cut off"):
        read_trace(path)


def test_a_gzip_file_that_is_damaged_is_said(tmp_path):
    """Bytes within a packed file are wrong."""
    path = written(tmp_path / "trace.json.gz", [kernel(f"gemm {x}", x, 1) for x in range(500)])
    data = bytearray(path.read_bytes())
    data[40:60] = b"x" * 20
    path.write_bytes(data)

    with pytest.raises(AutoplanError):
        read_trace(path)


def test_a_gzip_bomb_is_refused_early(tmp_path, monkeypatch):
    """A file that expands without end is refused before it fills anything."""
    monkeypatch.setattr(event_stream, "_SMALL", 2**20)
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [')
        for _ in range(64):
            file.write(b" " * 2**20)

    with pytest.raises(CatalogError, match="expands more than 250 times"):
        read_trace(path)


def test_memory_does_not_grow_with_what_is_not_needed(tmp_path):
    """A trace of 40 MB, most of it flows and call stacks, is read with a few MB."""
    path = tmp_path / "trace.json"
    flow = json.dumps({"ph": "f", "cat": "ac2g", "id": 1, "args": {"stack": "x" * 4000}})
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{"traceEvents": [{EVENT}')
        for _ in range(10_000):
            file.write(f",{flow}")
        file.write("]}")
    tracemalloc.start()
    try:
        read_trace(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert path.stat().st_size > 40e6
    assert peak < 12e6


def test_more_devices_than_a_node_has_are_refused(tmp_path, monkeypatch):
    """One file has the devices of a process or a node; a name of one may be long."""
    monkeypatch.setattr(timeline_record, "_MOST_DEVICES", 3)
    names = ["a" * 60, "b", "c", "a" * 60]
    events = [kernel("gemm", 10 * i, 5) | {"args": {"device": name}} for i, name in enumerate(names)]
    assert [len(one) for one in read_trace(written(tmp_path / "three.json", events))] == [2, 1, 1]

    events.append(kernel("gemm", 90, 5) | {"args": {"device": "d"}})
    with pytest.raises(SpecError, match=r"over 3 devices.*a file for each"):
        read_trace(written(tmp_path / "four.json", events))


def test_a_file_that_is_missing_or_a_folder_without_traces_is_said(tmp_path):
    """Names that lead nowhere are errors with the name."""
    with pytest.raises(CatalogError, match=r"nowhere.json"):
        read_trace(tmp_path / "nowhere.json")
    with pytest.raises(CatalogError, match="has no trace"):
        trace_files([tmp_path])
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"\x00" * 20)
    with pytest.raises(CatalogError, match="nsys export --type sqlite"):
        read_trace(report)


def test_a_folder_stands_for_its_traces(tmp_path):
    """Traces of a folder are read by name; other files are left alone."""
    for name in ("rank1.json", "rank0.json.gz", "notes.txt"):
        written(tmp_path / name, [kernel("gemm", 0, 1)])

    assert [x.name for x in trace_files([tmp_path])] == ["rank0.json.gz", "rank1.json"]
    assert [read_trace(x)[0].facts.rank for x in trace_files([tmp_path])] == [0, 1]
