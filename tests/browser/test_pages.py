"""Every page in a real browser: quiet, alone, usable by keyboard, readable, and true to the JSON."""

import json
import re

import pytest

from tests.support.spec_runs import run_here
from tests.support.trace_events import annotation, call, kernel
from tests.support.trace_events import written as traced

pytestmark = pytest.mark.browser

JOB = "llama3.2-1b-2x-rtx3090"
HOSTILE = "a<img src=x onerror=alert(1)><script>alert(1)</script>&'\"\u202e.yaml"
A_JOB = """
schema: 1
kind: training
model: llama3.2-1b
hardware: 2x-rtx3090
stack: fsdp2
workload: {sequence_length: 4096, global_batch_size: 16}
"""

#: Commands that write a page; their jobs are small, except for one with a pipeline.
COMMANDS = {
    "plan": ("plan", JOB),
    "evaluate": ("evaluate", "llama3-8b-8x-a100", "--layout", "tp=2,pp=4,mbs=1"),
    "compare": ("compare", JOB, "--layout", "tp=2", "--layout", "pp=2", "--deadline", "0"),
    "explain": ("explain", JOB, "--layout", "tp=2,mbs=4"),
    "gemm": ("gemm", "--m", "4096", "--n", "4096", "--k", "4096", "--device", "a100-sxm4-80gb"),
    "schemes": ("gemm", "--m", "4096", "--n", "4096", "--k", "4096", "--hardware", "dgx-a100-80gb",
                "--devices", "4"),
    "guide": ("guide", "llama3.2-1b", "2x-rtx3090", "--global-batch-size", "8"),
    "diagnose": ("diagnose", "llama3-8b-8x-a100", "--layout", "tp=2,dp=4,mbs=1,recompute=full",
                 "--trace", "TRACE"),
    "sweep": ("sweep", "GRID", "--workers", "1"),
    "serving": ("plan", "llama3-70b-8x-h100"),
    "engine": ("evaluate", "llama3-70b-8x-h100", "--layout", "tp=8"),
}  # fmt: skip
A_GRID = """
schema: 1
kind: sweep
base:
  kind: training
  model: llama3.2-1b
  hardware: 2x-rtx3090
  stack: fsdp2
  workload: {sequence_length: 2048, global_batch_size: 16}
grid:
  devices: [1, 2]
"""

UNFOLD = "() => { for (const part of document.querySelectorAll('details')) part.open = true }"
#: What the keyboard must reach: links, controls, and frames that scroll; not what is hidden.
REACHABLE = """() => Array.from(document.querySelectorAll(
  "a[href], button, select, input, summary, [tabindex='0']"))
  .filter((e) => e.checkVisibility({ checkVisibilityCSS: true }) && !e.disabled)
  .map((e) => (e.dataset.order = e.dataset.order || String(Math.random()), e.dataset.order))"""
#: What has the focus, and whether that is seen.
FOCUSED = """() => { const e = document.activeElement, s = getComputedStyle(e);
  return [e.dataset.order || "", e.tagName, s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2] }"""


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Return a function that gives the page of a command, which is written once."""
    folder, files = tmp_path_factory.mktemp("pages"), {}
    steps = [annotation("ProfilerStep#3", 0, 100_000), call(10, 5, 1)]
    given = {
        "TRACE": traced(folder / "rank0.json.gz", [*steps, kernel("sgemm", 20, 80_000, correlation=1)]),
        "GRID": folder / "grid.yaml",
    }
    given["GRID"].write_text(A_GRID)

    def page_of(name):
        if name not in files:
            files[name] = folder / f"{name}.html"
            done = run_here(*(given.get(word, word) for word in COMMANDS[name]), "--output", files[name])
            assert done.exit_code in {0, 1}, done.stderr
        return files[name]

    return page_of


@pytest.fixture(params=COMMANDS)
def file(request, written):
    """Return the page of each command in turn."""
    return written(request.param)


def test_nothing_is_loaded_and_nothing_goes_wrong(opened, file):
    """The only request is the page itself, and the console stays empty with every part unfolded."""
    answer = opened(file)
    answer.page.evaluate(UNFOLD)
    for button in answer.page.query_selector_all("button:visible"):
        button.click()

    assert answer.messages == []
    assert answer.requests == [file.as_uri()]


def serious(opened_page, **options):
    """Return what axe-core finds of an unfolded page that is serious or critical."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    opened_page.page.evaluate("() => {}" if options else UNFOLD)
    options = {"resultTypes": ["violations"], **options}
    violations = axe.Axe().run(opened_page.page, options=options).response["violations"]
    return [(x["id"], x["nodes"][0]["html"]) for x in violations if x["impact"] in {"serious", "critical"}]


def test_no_serious_violation_of_accessibility(opened, file):
    """axe-core finds nothing serious or critical, colours and contrast included."""
    assert serious(opened(file)) == []


@pytest.mark.parametrize("name", ["plan", "compare", "guide", "serving"])
def test_dark_pages_have_contrast(opened, written, name):
    """In the dark only colours differ: these pages have all of them."""
    assert serious(opened(written(name), scheme="dark"), runOnly=["color-contrast"]) == []


@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_is_wider_than_the_screen(opened, file, width):
    """A page never scrolls sideways, on a phone either; what is wide scrolls in a frame of its own."""
    answer = opened(file, width=width)

    assert answer.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_keyboard_reaches_every_control(opened, file):
    """Tab visits each link, control and frame once, in the order of the page, and shows where it is."""
    answer = opened(file)
    expected = answer.page.evaluate(REACHABLE)
    visited = []
    for _ in expected:
        answer.page.keyboard.press("Tab")
        visited.append(answer.page.evaluate(FOCUSED))

    assert len(expected) > 1
    assert [order for order, *_ in visited] == expected
    assert [tag for _, tag, seen in visited if not seen] == []


def test_points_of_the_front_are_those_of_the_document(opened, written):
    """Points lie where the JSON says, and following one shows its plan, without a script too."""
    plans = json.loads(run_here(*COMMANDS["plan"], "--format", "json").stdout)["front"]
    page = opened(written("plan")).page
    points = page.eval_on_selector_all(
        "a.point",
        "all => all.map((a) => { const c = a.querySelector('circle'); return"
        " [+a.dataset.stepSeconds, +a.dataset.memoryBytes, +c.getAttribute('cx'), +c.getAttribute('cy')] })",
    )
    numbers = [
        (x["predicted"]["step_seconds"], x["predicted"]["peak_memory_bytes_per_device"]) for x in plans
    ]

    assert [(seconds, size) for seconds, size, *_ in points] == numbers
    assert [x for *_, x, _ in sorted(points)] == sorted(x for *_, x, _ in points)
    assert [y for *_, y in sorted(points, key=lambda p: -p[1])] == sorted(y for *_, y in points)


def test_a_plan_is_chosen_by_keyboard_and_by_link(opened, written):
    """The list and the links of the table show one plan, whose JSON is that of its number."""
    page = opened(written("plan")).page
    options = page.eval_on_selector_all("#choice option", "all => all.map((o) => o.value)")
    page.focus("#choice")
    page.keyboard.press("End")
    chosen = page.eval_on_selector_all(".detail:not([hidden])", "all => all.map((e) => e.id)")
    page.click(f"a[href='#details-{options[0]}']")
    back = page.eval_on_selector_all(".detail:not([hidden])", "all => all.map((e) => e.id)")

    assert len(options) > 1
    assert chosen == [f"details-{options[-1]}"]
    assert back == [f"details-{options[0]}"]
    marked = page.eval_on_selector_all("tr.chosen", "all => all.map((e) => e.id)")
    assert marked == [f"plan-{options[0]}"]


def test_without_a_script_a_link_shows_its_plan(opened, written):
    """The fastest plan is shown, and the link of another one shows it too."""
    other = opened(written("plan")).page.eval_on_selector_all(
        ".detail[hidden]", "all => all.map((e) => e.id)"
    )[0]
    page = opened(written("plan"), script=False, fragment=f"#{other}").page

    assert page.is_visible(f"#{other}")
    assert not page.is_visible("#choosing")


def test_names_of_users_stay_text(opened, tmp_path):
    """A name full of markup runs nothing, loads nothing, and is read as it was typed."""
    job, file = tmp_path / HOSTILE.replace("/", "\u2215"), tmp_path / "report.html"
    job.write_text(A_JOB)
    assert run_here("plan", job, "-o", file).exit_code == 0
    answer = opened(file)
    asked = []
    answer.page.on("dialog", lambda dialog: asked.append(dialog.message))

    assert answer.page.query_selector_all("img, main script") == []
    assert "onerror=alert(1)" in answer.page.inner_text("main")
    assert (asked, answer.messages, answer.requests) == ([], [], [file.as_uri()])


def test_the_step_zooms_by_button_and_by_key(opened, written):
    """The span halves around its middle, moves by quarters, and comes back; pieces stay the step's."""
    page = opened(written("evaluate")).page
    status, frame = page.locator(".zoom [role=status]"), page.locator(".zoom .picture")
    full_span, pieces = status.inner_text(), page.locator(".zoom rect").count()
    page.click("button[data-act=in]")
    halved = status.inner_text()
    frame.focus()
    page.keyboard.press("ArrowLeft")
    earlier, fewer = status.inner_text(), page.locator(".zoom rect").count()
    page.keyboard.press("0")

    step = float(page.get_attribute(".zoom", "data-seconds"))
    words = [f"{x * step:.2f} s" for x in (0, 1 / 8, 1 / 4, 5 / 8, 3 / 4, 1)]
    assert full_span == f"{words[0]} to {words[5]} of {words[5]}"
    assert halved == f"{words[2]} to {words[4]} of {words[5]}"
    assert earlier == f"{words[1]} to {words[3]} of {words[5]}"
    assert fewer < pieces
    assert status.inner_text() == full_span
    assert page.locator(".still:visible").count() == 0


def test_without_a_script_the_step_is_drawn_too(opened, written):
    """Both ends of the step are pictures; what needs a script is not shown."""
    page = opened(written("evaluate"), script=False).page

    assert page.locator(".still svg.timeline:visible").count() == 2
    assert page.locator("button:visible").count() == 0


def test_a_point_is_read_out_on_hover_and_focus(opened, written):
    """The line below the front says what the point is, in the words of its name."""
    page = opened(written("plan")).page
    points = page.locator("a.point")
    points.last.hover()
    hovered = page.locator(".readout:visible").first.inner_text()
    points.first.focus()

    assert hovered == points.last.get_attribute("aria-label")
    assert page.locator(".readout:visible").first.inner_text() == points.first.get_attribute("aria-label")


def test_text_is_copied_by_its_button(opened, written):
    """A button for each text, which selects it and says that it was copied, or how to copy it."""
    page = opened(written("gemm")).page
    button = page.locator("button.copy").first
    button.click()
    page.locator("button.copy", has_text=re.compile("^(copied|selected)")).first.wait_for()

    assert button.inner_text() in {"copied", "selected: copy it with the keyboard"}
    assert page.evaluate("getSelection().toString()").startswith("autoplan gemm --m 4096")


def test_nothing_moves_by_itself(opened, written):
    """No page animates anything, whatever motion its reader asks for."""
    for motion in ("reduce", "no-preference"):
        page = opened(written("plan"), motion=motion).page
        assert page.evaluate("document.getAnimations().length") == 0
