"""Reports: bars, rows, short layouts, and tables whose parts add up."""

import dataclasses
import io
import itertools
import math

import pytest

from autoplan import Front, evaluate, load_job
from autoplan.answers.evaluate.blocks import plan_table
from autoplan.answers.plan.blocks import front_table
from autoplan.costs.core.prediction import CATEGORIES
from autoplan.costs.predict import facts_of
from autoplan.report.charts.chart_data import fullest_stage, memory_rows, time_rows
from autoplan.report.document_fields import plain
from autoplan.report.render.terminal import Terminal, bar, spread, terminal_of
from autoplan.report.wording.part_names import MEMORY_PARTS
from autoplan.report.wording.sentences import (
    certificate_sentence,
    layout_parts,
    rejected_sentence,
    wrap_parts,
)
from autoplan.results.front import Rejection
from tests.support.by_hand import CERTIFICATE

JOB = "llama3-8b-8x-a100"
PLAIN = Terminal(120)
ASCII = Terminal(120, unicode=False)
LAYOUTS = (
    "tp=2",
    "pp=4,stages=7/8/8/9,recompute=full:3+selective:4/full/none/none",
    "tp=4,pp=2,vpp=2",
)


@pytest.fixture(scope="module")
def job():
    """Return a shipped job."""
    return load_job(JOB)


@pytest.fixture(scope="module")
def front(job):
    """Return a front made by hand."""
    plans = tuple(evaluate(job, layout) for layout in LAYOUTS)
    return Front(job, plans, CERTIFICATE, (Rejection("a rule", 3),), facts=facts_of(job))


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.1, 0.5, 0.999, 1.0, 7.0, -1.0])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_bar_is_as_long_as_its_share(share, unicode):
    """Within one column, never wider than the whole, and nothing only where there is nothing."""
    length = len(bar(share, 20, unicode=unicode))
    wanted = min(1.0, max(0.0, share)) * 20

    assert abs(length - wanted) <= 1
    assert length <= 20
    assert (length > 0) == (share > 0)


@pytest.mark.parametrize("count", [0, 1, 2, 11, 12, 13, 14, 23, 24, 100, 9_999])
def test_rows_are_spread_with_first_and_last(count):
    """At most twelve, in order, no row twice, even gaps."""
    rows = spread(count, 12)
    gaps = {b - a for a, b in itertools.pairwise(rows)}

    assert len(rows) == min(count, 12)
    assert rows == sorted(set(rows))
    assert not rows or (rows[0], rows[-1]) == (0, count - 1)
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_short_layout_leaves_out_what_is_trivial(job):
    """One device's worth of parallelism is not worth a word; the microbatch always is."""
    parts = layout_parts(evaluate(job, "tp=2,zero=0").layout, PLAIN)

    assert parts == ["tp 2", "dp 4", "mbs 1", "sp"]


def test_a_short_layout_summarises_stages_and_recompute(job):
    """Uneven stages are listed, recompute is counted over all layers."""
    parts = layout_parts(evaluate(job, LAYOUTS[1]).layout, PLAIN)

    assert parts[-3:] == ["stages 7/8/8/9", "full 11 of 32", "selective 4 of 32"]


def test_long_runs_of_equal_stages_are_counted():
    """A pipeline of many stages still fits a table."""
    layers = (8, *[2] * 8, 8)
    layout = evaluate(load_job(JOB), "tp=2").layout
    deep = dataclasses.replace(layout, pp=10, layers=layers)

    assert "stages 8/8x2/8" in layout_parts(deep, ASCII)


def test_parts_wrap_between_and_never_within():
    """A part longer than the line stands alone."""
    assert wrap_parts(["tp 2", "pp 2", "a long part"], 11, ASCII) == "tp 2 | pp 2\na long part"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_time_add_up_to_the_step(job, layout):
    """What the picture shows is the whole step."""
    predicted = evaluate(job, layout).predicted

    assert math.isclose(
        sum(seconds for _, seconds in time_rows(predicted.time)),
        predicted.step_seconds,
        rel_tol=1e-3,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_categories_of_memory_add_up_to_the_peak(job, layout):
    """What the picture shows is the fullest device, whole."""
    predicted = evaluate(job, layout).predicted

    assert math.isclose(
        sum(size for _, size in memory_rows(fullest_stage(predicted))),
        predicted.peak_memory_bytes_per_device,
        rel_tol=1e-6,
    )


@pytest.mark.parametrize("width", [72, 80, 99, 100, 110, 120, 160, 300])
@pytest.mark.parametrize("unicode", [True, False])
def test_tables_keep_to_the_width_and_lose_no_number(job, front, width, unicode):
    """At every width, every step time is whole; only the string to copy may be longer."""
    terminal = Terminal(width, unicode=unicode)
    text = front_table(front, terminal)
    lines = [line for line in text.splitlines() if "schedule=" not in line]

    assert max(map(len, lines)) <= width
    assert all(f"{plan.predicted.step_seconds:,.2f}" in text for plan in front.plans)
    assert "…" not in text
    assert unicode or text.isascii()


@pytest.mark.parametrize("width", [72, 120, 160])
def test_evaluations_keep_to_the_width(job, width):
    """Every stage is a row, whatever the width."""
    text = plan_table(job, evaluate(job, LAYOUTS[1]), Terminal(width))
    lines = [line for line in text.splitlines() if "schedule=" not in line]

    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert all(f"\n    {stage}       {n}" in text for stage, n in enumerate((7, 8, 8, 9)))


def test_deep_pipelines_show_some_stages_and_the_fullest():
    """Thirty-two stages are thinned out, and the table says how many are missing."""
    big = load_job("gpt3-175b-128x-a100")
    text = plan_table(big, evaluate(big, "tp=2,pp=32,dp=2"), PLAIN)

    assert "(16 more stages: --format json)" in text


def test_square_brackets_survive(front):
    """What looks like markup in a title or a reason is text."""
    model = front.job.model.model_copy(update={"title": "Foo [bold]x[/bold] [tok/s]"})
    tricky = dataclasses.replace(
        front,
        job=dataclasses.replace(front.job, model=model),
        rejected=(Rejection("[red]rule[/red] step [s]", 5),),
    )
    text = front_table(tricky, PLAIN, details=True)

    assert "Foo [bold]x[/bold] [tok/s]" in text
    assert "5  [red]rule[/red] step [s]" in text


def test_colours_change_nothing_but_colours(front):
    """The text under the colours is the same."""
    import re

    coloured = front_table(front, Terminal(120, colour=True))
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)

    assert coloured != bare
    assert [line.rstrip() for line in bare.splitlines()] == front_table(front, PLAIN).splitlines()


def test_a_certificate_reads_like_a_sentence():
    """Counts, solver, bound and thinning are all in it."""
    text = certificate_sentence(CERTIFICATE)

    assert text.startswith("proven optimal: 12,345,678 layouts covered by 412 choices")
    assert "37 solved by CP-SAT in 120 solves" in text
    assert "no step is shorter than 32.90 s (gap 0.1 %)" in text


def test_rejections_are_ranked_and_cut():
    """The most frequent reasons come first, the rest is a number."""
    rejected = [Rejection(f"rule {n}", n) for n in range(6)]

    assert rejected_sentence(rejected) == (
        "rejected: 15 layouts: rule 5 (5); rule 4 (4); rule 3 (3); 2 other reasons"
    )
    assert rejected_sentence([]) == ""


def test_documents_hold_plain_values():
    """Numbers of numpy and tuples become what JSON knows; what it has no word for is null."""
    import numpy as np

    value = plain({"a": (np.int64(1), np.float64(2.5)), "b": np.bool_(True), "c": math.nan})

    assert value == {"a": [1, 2.5], "b": True, "c": None}
    assert plain(7 * 10**5_000) == "about 7e5000"
    assert type(value["b"]) is bool


@pytest.mark.parametrize(("encoding", "unicode"), [("utf-8", True), ("ascii", False), ("latin-1", False)])
def test_a_stream_gets_what_its_encoding_carries(encoding, unicode):
    """Blocks where they can be shown, ASCII elsewhere."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)

    assert terminal_of(stream, {}) == Terminal(120, colour=False, unicode=unicode)


@pytest.mark.parametrize(
    ("columns", "width"),
    [("100", 100), ("10", 72), ("0", 120), ("", 120), ("wide", 120), ("9" * 5_000, 120)],
)
def test_columns_of_the_environment_are_read_with_care(columns, width):
    """A width is a number, and neither absurdly small nor large."""
    assert terminal_of(None, {"COLUMNS": columns}).width == width


def test_no_color_wins():
    """``NO_COLOR`` is stronger than ``FORCE_COLOR``, and a dumb terminal has none."""

    class Screen(io.StringIO):
        def isatty(self):
            return True

    assert terminal_of(Screen(), {}).colour
    assert not terminal_of(Screen(), {"TERM": "dumb"}).colour
    assert not terminal_of(Screen(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}).colour


def test_every_category_of_memory_has_looks_of_its_own():
    """The table of parts is that of the prediction, and no two share a letter, a style or a colour."""
    assert tuple(MEMORY_PARTS) == (*CATEGORIES, "framework")
    assert all(len(set(looks)) == len(looks) for looks in zip(*MEMORY_PARTS.values(), strict=True))
