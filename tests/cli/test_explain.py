"""``autoplan explain``: what fills a layout's memory, what would help, and every way to get it wrong."""

import json
import re
from xml.etree import ElementTree as ET

import pytest
import yaml

from autoplan import load_job
from autoplan.answers.explain.ask import explain
from autoplan.report import explanation_document
from tests.support.page_reader import assert_stands_alone

JOB = "llama3-8b-8x-a100"
TIGHT = ("explain", JOB, "--layout", "tp=1,mbs=4")
ROOMY = ("explain", JOB, "--layout", "tp=4,pp=2")
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "transient", "framework")
EVENTS = ("end of forward", "loss", "output layer", "last layer", "first layer", "optimizer step")
SVG = "{http://www.w3.org/2000/svg}"

A_JOB = """
schema: 1
kind: training
model: llama3-8b
hardware: dgx-a100-80gb
stack: megatron-core
workload: {sequence_length: 8192, global_batch_size: 128}
limits: {peak_memory: 3 GiB}
"""


def test_a_layout_that_does_not_fit_exits_1_with_remedies(run):
    """The verdict names stage, moment and how far over; remedies are numbered, with what to change."""
    done = run(*TIGHT)

    assert done.exit_code == 1
    assert done.stderr == ""
    text = " ".join(done.stdout.split())
    assert re.search(r"does not fit: a device of stage 0 uses [\d.]+ GiB at its peak \([a-z ]+\)", text)
    assert text.count("over the limit") == 2
    assert "with fragmentation" in text
    assert "changes that make it fit, the fastest first" in text
    assert re.search(r"\n 1  tp=\d+,pp=", done.stdout)


def test_a_layout_that_fits_exits_0_with_what_would_make_room(run):
    """The picture and the remedies are there all the same."""
    done = run(*ROOMY)

    assert done.exit_code == 0
    assert "fits: a device of stage" in done.stdout
    assert "below the limit" in done.stdout
    assert "changes that save memory, the fastest first" in done.stdout


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_picture_has_a_letter_for_each_part_and_a_mark_at_the_limit(process, encoding):
    """Without colours and in any character set, parts and limit can be told apart."""
    done = process(*TIGHT, env={"PYTHONIOENCODING": encoding, "NO_COLOR": "1"})
    text = done.stdout.decode(encoding)
    mark = "|" if encoding == "ascii" else "┃"

    assert done.returncode == 1
    for event in EVENTS:
        (row,) = re.findall(rf"^{event} +[\d.]+  (.*)$", text, re.MULTILINE)
        assert row.count(mark) == 1
        assert re.match(r"P+G+O+A*", row.replace(mark, ""))
    for category in CATEGORIES:
        assert f"{category[0].upper()} {category}" in text


def test_at_most_four_stages_are_pictured(run):
    """The fullest, the first, the last and one between; the others are counted."""
    text = run("explain", JOB, "-l", "pp=8").stdout
    stages = re.findall(r"^stage (\d) \(4 layers\): ", text, re.MULTILINE)

    assert len(stages) == 4
    assert {"0", "7"} <= set(stages)
    assert "(4 more stages: --format json)" in text


@pytest.mark.parametrize("columns", ["72", "80", "100", "160"])
@pytest.mark.parametrize("command", [TIGHT, ROOMY])
def test_tables_and_pictures_keep_to_the_width(run, monkeypatch, command, columns):
    """Only layout strings, which are there to be copied, may be longer."""
    monkeypatch.setenv("COLUMNS", columns)
    lines = run(*command).stdout.splitlines()

    assert max(len(line) for line in lines if "tp=" not in line and "block:" not in line) <= int(columns)


def test_colours_are_there_when_asked_for(run, monkeypatch):
    """Parts have colours beside their letters."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert "\x1b[" in run(*TIGHT).stdout


@pytest.mark.parametrize("command", [TIGHT, ROOMY])
def test_json_is_the_document_of_the_api(run, command):
    """The command line prints what the API returns, number for number."""
    job = load_job(JOB)
    document = json.loads(run(*command, "--format", "json").stdout)

    assert document == explanation_document(job, explain(job, command[-1]))
    assert yaml.safe_load(run(*command, "-f", "yaml").stdout) == document


def test_json_has_the_keys_of_the_contract(run):
    """Layout, prediction, the fullest stage, moments by stage, and remedies with plans of their own."""
    document = json.loads(run(*TIGHT, "-f", "json").stdout)
    explained = document["explanation"]

    assert {"schema", "job", "explanation", "provenance"} == set(document)
    assert document["schema"] == 1
    keys = {"layout", "layout_string", "predicted", "fullest", "stages", "remedies", "standing"}
    assert keys | {"bound", "bottlenecks"} == set(explained)
    assert sum(x["share"] for x in explained["bottlenecks"]) == pytest.approx(1.0)
    assert explained["bound"] in {x["bound"] for x in explained["bottlenecks"]}
    assert explained["fullest"]["over_limit_bytes_high"] > explained["fullest"]["over_limit_bytes"] > 0
    for stage in explained["stages"]:
        assert max(m["total_bytes"] for m in stage["events"]) == pytest.approx(stage["total_bytes"])
        for event in stage["events"]:
            parts = sum(event[f"{category}_bytes"] for category in CATEGORIES)
            assert parts == pytest.approx(event["total_bytes"])
    keys = {"name", "change", "saved_bytes", "slowdown", "fits", "layout", "layout_string", "predicted"}
    assert all(set(remedy) == keys for remedy in explained["remedies"])


def test_everything_that_the_table_says_of_a_remedy_is_in_json(run):
    """Names and changes stand in both."""
    table = run(*TIGHT).stdout
    remedies = json.loads(run(*TIGHT, "-f", "json").stdout)["explanation"]["remedies"]

    assert remedies
    for remedy in remedies:
        assert remedy["name"] in table
        assert remedy["change"] in table


@pytest.mark.parametrize("layout", ["tp=1,mbs=4", "tp=2,pp=4", "pp=32,dp=1,tp=4"])
def test_svg_is_well_formed_and_stands_on_its_own(run, tmp_path, layout):
    """A picture has a panel a stage, a bar a moment, the limit, a legend and no reference to anything."""
    file = tmp_path / "memory.svg"
    job = JOB if layout != "pp=32,dp=1,tp=4" else "gpt3-175b-128x-a100"
    done = run("explain", job, "-l", layout, "--output", file)
    text = file.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 - our own text
    texts = [element.text for element in root.iter(f"{SVG}text")]

    assert done.exit_code in {0, 1}
    assert done.output == ""
    assert root.tag == f"{SVG}svg"
    panels = [t for t in texts if re.match(r"stage \d+, \d+ layers?$", t)]
    assert 1 <= len(panels) <= 16
    assert texts.count("optimizer step") == len(panels)
    assert len(root.findall(f".//{SVG}line[@class='limit']")) == len(panels) + 1
    assert any(t.startswith("limit ") for t in texts)
    assert set(CATEGORIES) <= set(texts)
    assert any(t.startswith("tp=") for t in texts)
    assert text.count("http") == 1  # the name space
    assert "<script" not in text
    assert "url(" not in text


def test_html_holds_the_picture_and_the_remedies(run, tmp_path):
    """A page is whole, loads nothing, and is light or dark as its reader wishes."""
    file = tmp_path / "memory.html"
    done = run(*TIGHT, "-o", file)
    text = file.read_text(encoding="utf-8")
    page = assert_stands_alone(text)
    remedies = explain(load_job(JOB), "tp=1,mbs=4").remedies

    assert done.exit_code == 1
    assert len(page.texts["remedies"]) == 1 + len(remedies)
    assert "prefers-color-scheme: dark" in text
    start = text.index('<svg xmlns="http://www.w3.org/2000/svg" class="memory"')
    svg = text[start : text.index("</svg>", start) + 6]
    assert ET.fromstring(svg).tag == f"{SVG}svg"  # noqa: S314 - our own text
    assert all(remedy.change in text for remedy in remedies)
    assert page.copied["command"].startswith("autoplan explain")


def test_names_with_markup_are_text(run, tmp_path):
    """A model's title and a job's name cannot break a picture or a page."""
    file = tmp_path / "a<b>&'\"\x1b.yaml"
    file.write_text(A_JOB)
    for suffix in ("svg", "html"):
        assert run("explain", file, "-l", "tp=2", "-o", tmp_path / f"out.{suffix}").exit_code == 1
    page = (tmp_path / "out.html").read_text(encoding="utf-8")

    ET.fromstring((tmp_path / "out.svg").read_text(encoding="utf-8"))  # noqa: S314 - our own text
    assert "a<b>" not in page
    assert "a&lt;b&gt;&amp;" in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.json", "{"), ("a.yaml", "schema: 1"), ("a.yml", "schema: 1"), ("a.txt", "Llama"), ("a", "Llama")],
)
def test_the_file_s_name_says_its_format(run, tmp_path, name, start):
    """Nobody has to say it twice."""
    file = tmp_path / name

    assert run(*ROOMY, "--output", file).exit_code == 0
    assert file.read_text(encoding="utf-8").startswith(start)


def test_a_format_may_be_named_for_any_other_file(run, tmp_path):
    """``--format`` decides where the name says nothing that is known."""
    file = tmp_path / "explanation.dat"

    assert run(*ROOMY, "--output", file, "--format", "json").exit_code == 0
    assert json.loads(file.read_text())["schema"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "a.pdf"), ".pdf is not a known format"),
        (("-o", "a.svg", "-f", "json"), "--format json contradicts the suffix .svg"),
        (("-o", "no/such/folder/a.svg"), "cannot write"),
        (("-f", "svg"), "svg"),
    ],
)
def test_an_output_that_cannot_be_exits_2_and_writes_nothing(run, tmp_path, monkeypatch, arguments, message):
    """A format that nobody knows, two that differ, and a folder that is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    done = run(*ROOMY, *arguments)

    assert done.exit_code == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layout", "code"),
    [("tp=3", 1), ("tp=2,pp=2,dp=4", 1), ("foo=1", 2), ("", 0), ("recompute=full:99", 2), ("x" * 10_000, 2)],
)
def test_a_layout_that_breaks_a_rule_is_an_answer_and_no_layout_is_bad_input(run, layout, code):
    """What cannot run exits with 1, what names no layout with 2, and nothing at all is the default."""
    done = run("explain", JOB, "--layout", layout)

    if layout:
        assert done.exit_code == code
        assert run("evaluate", JOB, "--layout", layout).exit_code == 2
        assert (done.stdout == "") == (code == 2)
    else:
        assert done.exit_code in {0, 1}


@pytest.mark.parametrize("job", ["", "no-such-job", "no/such/file.yaml"])
def test_an_unknown_job_exits_2(run, job):
    """A name or a path that leads nowhere is told in one line."""
    done = run("explain", job, "--layout", "tp=2")

    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_where_nothing_is_enough_it_says_so(run, tmp_path):
    """What saves memory is listed, and that it is not enough even in pairs."""
    file = tmp_path / "job.yaml"
    file.write_text(A_JOB)
    done = run("explain", file, "-l", "tp=2")
    remedies = json.loads(run("explain", file, "-l", "tp=2", "-f", "json").stdout)["explanation"]["remedies"]

    assert done.exit_code == 1
    assert "neither one nor two of them make it fit" in done.stdout
    assert remedies
    assert not any(remedy["fits"] for remedy in remedies)
