"""The served page in a real browser: quiet, alone, usable by keyboard, and true to the server's answer."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
SMALL = "?model=gpt2&hardware=2x-rtx3090&devices=2&sequence_length=1024&global_batch_size=8"
SERVED = (
    "?kind=serving&model=llama3.2-1b&hardware=2x-rtx3090&devices=1"
    "&input_tokens=512&output_tokens=64&clients=8"
)
TOO_LARGE = "?model=gpt2-xl&hardware=2x-rtx3090&devices=1&sequence_length=1024&global_batch_size=2"
PATIENCE = 120_000  # [ms]


@pytest.fixture(scope="module")
def address():
    """Return the address of a server of this machine."""
    command = [sys.executable, "-m", "autoplan", "serve-ui", "--port", "0", "--deadline", "60"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().split()[3]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


class ServedPage:
    """A page of the server, with its console, its requests, and the answers that it got."""

    def __init__(self, context, address, query):
        self.page = context.new_page()
        self.messages, self.requests, self.answers = [], [], []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("response", self._keep)
        self.page.set_default_timeout(PATIENCE)
        self.page.goto(address + query)

    def _keep(self, response):
        if "/api/plan" in response.url:
            self.answers.append(response)

    def settle(self):
        """Wait until nothing is being asked."""
        self.page.locator("#results[aria-busy=false]:not(.stale)").wait_for()
        return self

    def answer(self):
        """Return the newest answer of the server."""
        return self.answers[-1].json()

    def text(self, selector):
        """Return the text of an element."""
        return self.page.locator(selector).inner_text()


@pytest.fixture
def served(chromium, address):
    """Return a function that opens the served page with a query."""
    contexts = []

    def open_query(query, *, width=1280, scheme="light"):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        return ServedPage(context, address, query)

    yield open_query
    for context in contexts:
        context.close()


def test_the_page_shows_the_answer_and_asks_nobody_else(served, address):
    """Points and rows are those of the JSON, the console stays empty, and only this server is asked."""
    opened = served(SMALL).settle()
    front = opened.answer()["answer"]["front"]
    points = opened.page.locator("#front circle").evaluate_all(
        "all => all.map((e) => [Number(e.dataset.stepSeconds), Number(e.dataset.memoryBytes)])"
    )
    predicted = [plan["predicted"] for plan in front]
    expected = [[p["step_seconds"], p["peak_memory_bytes_per_device"]] for p in predicted]

    assert points == expected
    assert opened.page.locator("#plans tr").count() == len(front)
    assert opened.text("#verdict-head").startswith(f"Feasible: {len(front)} plans")
    opened.page.locator("#launch pre").first.wait_for()
    assert "MEGATRON_ARGS" in opened.page.locator("#launch pre").first.inner_text()
    assert opened.messages == []
    assert [url for url in opened.requests if not url.startswith(address)] == []


def test_a_serving_job_has_its_own_controls_and_the_servers_answer(served, address):
    """Points, rows and tables are those of the JSON; the launch file is the engine's."""
    opened = served(SERVED).settle()
    front = opened.answer()["answer"]["front"]
    points = opened.page.locator("#front circle").evaluate_all(
        "all => all.map((e) => [Number(e.dataset.tokenSeconds), Number(e.dataset.tokensPerSecond)])"
    )
    predicted = [plan["predicted"] for plan in front]
    keys = ("time_per_output_token_seconds", "output_tokens_per_second_per_device")

    assert points == [[p[key] for key in keys] for p in predicted]
    assert opened.page.locator("#plans tr").count() == len(front)
    assert opened.page.locator("#clients").is_visible()
    assert not opened.page.locator("#sequence_length").is_visible()
    assert not opened.page.locator("#requests_per_minute").is_visible()
    opened.page.locator("#launch pre").first.wait_for()
    assert "vllm serve" in opened.page.locator("#launch pre").first.inner_text()
    assert opened.messages == []
    assert [url for url in opened.requests if not url.startswith(address)] == []


def test_the_kind_of_the_job_changes_question_controls_and_link(served):
    """Model, hardware and devices stay; fields, table and targets are those of the other kind."""
    opened = served(SMALL.replace("gpt2", "llama3.2-1b")).settle()
    opened.page.locator("#kind").select_option("serving")
    opened.page.locator("#plan-heads", has_text="Time/token").wait_for()
    opened.settle()

    question = opened.answer()["question"]
    assert [question[key] for key in ("kind", "model", "hardware", "devices")] == [
        "serving",
        "llama3.2-1b",
        "2x-rtx3090",
        2,
    ]
    assert "kind=serving" in opened.page.url
    targets = opened.page.locator("#target option").evaluate_all("all => all.map((e) => e.value)")
    assert "vllm" in targets
    assert "megatron-lm" not in targets
    opened.page.locator("#kind").select_option("training")
    opened.page.locator("#plan-heads", has_text="MFU").wait_for()
    assert opened.settle().answer()["question"]["kind"] == "training"
    assert opened.messages == []


def test_a_slider_that_moves_asks_once_and_the_newest_answer_stays(served):
    """Twenty steps of a slider are one or two questions, and what is shown is the last position."""
    opened = served(SMALL).settle()
    before = len(opened.answers)
    slider = opened.page.locator("#global_batch_size-slider")
    slider.focus()
    for _ in range(4):
        opened.page.keyboard.press("ArrowRight")
    wanted = int(opened.page.locator("#global_batch_size").input_value())
    opened.page.locator("#about", has_text=f"{wanted} sequences").wait_for()
    opened.settle()

    assert wanted > 8
    assert opened.answer()["question"]["global_batch_size"] == wanted
    assert len(opened.answers) - before <= 2
    assert f"global_batch_size={wanted}" in opened.page.url


def test_an_older_answer_never_replaces_a_newer_one(served):
    """An answer that comes late, for what the page no longer asks, is not shown."""
    opened = served(SMALL).settle()
    waiting = []

    def delayed(route):
        if json.loads(route.request.post_data)["question"]["global_batch_size"] == 16:
            waiting.append(route)
        else:
            route.continue_()

    opened.page.route("**/api/plan", delayed)
    opened.page.locator("#global_batch_size").fill("16")
    opened.page.wait_for_timeout(800)
    opened.page.locator("#global_batch_size").fill("24")
    opened.page.locator("#about", has_text="24 sequences").wait_for()
    opened.settle()
    assert len(waiting) == 1
    with contextlib.suppress(Exception):  # the page has cancelled that request, which is as good
        waiting[0].fulfill(status=200, content_type="application/json", body=opened.answers[0].text())
    opened.page.wait_for_timeout(300)

    assert "24 sequences" in opened.text("#about")


def test_a_link_reproduces_question_plan_and_target(served):
    """A page that is opened with the address of another one shows the same."""
    first = served(SMALL + "&headroom_percent=5").settle()
    first.page.locator("#plan-3").check()
    first.page.locator("#target").select_option("torchrun")
    second = served("?" + first.page.url.split("?")[1]).settle()

    assert second.answer() == first.answer()
    assert second.page.locator("#plan-3").is_checked()
    assert second.page.locator("#target").input_value() == "torchrun"
    assert second.page.locator("#headroom_percent").input_value() == "5"


def test_a_change_that_helps_is_made_by_its_link(served):
    """Where nothing is feasible the page says why, and following a remedy leads to plans."""
    opened = served(TOO_LARGE)
    opened.page.locator("#remedies .remedy").first.wait_for()

    assert opened.text("#verdict-head") == "Nothing is feasible"
    assert "that may be used" in opened.text("#verdict-text")
    remedy = opened.page.locator("#remedies .remedy", has_text="more devices")
    remedy.get_by_role("link").click()
    opened.page.locator("#verdict-head", has_text="Feasible").wait_for()
    assert opened.page.locator("#devices").input_value() == "2"


def test_what_a_target_cannot_express_is_said_where_the_file_would_be(served):
    """A refusal is text of the page, and no error of the console."""
    opened = served(SMALL).settle()
    opened.page.locator("#target").select_option("axolotl")
    opened.page.locator("#launch", has_text="cannot express this plan").wait_for()

    assert opened.page.locator("#launch pre").count() == 0
    assert opened.messages == []


def test_a_link_with_what_is_not_known_says_so(served):
    """Names and numbers of a link that no control has are text in a notice, never markup."""
    opened = served(SMALL.replace("gpt2", "<img src=x onerror=alert(1)>") + "&precision=fp17").settle()

    assert "<img src=x onerror=alert(1)>" in opened.text("#notice")
    assert "fp17" in opened.text("#notice")
    assert opened.page.locator("#notice img").count() == 0
    assert opened.messages == []


def test_a_number_out_of_range_is_said_and_not_asked(served):
    """A field that is no valid number stops the question with words."""
    opened = served(SMALL).settle()
    before = len(opened.answers)
    opened.page.locator("#devices").fill("-3")
    opened.page.locator("#verdict-head", has_text="No question yet").wait_for()
    opened.page.wait_for_timeout(600)

    assert "Devices" in opened.text("#verdict-text")
    assert len(opened.answers) == before


@pytest.mark.parametrize(
    ("scheme", "query"), [("light", SMALL), ("dark", SMALL), ("light", SERVED), ("dark", SERVED)]
)
def test_no_serious_violation_of_accessibility(served, scheme, query):
    """axe-core finds nothing serious or critical on a page with plans, contrast included."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    opened = served(query, scheme=scheme).settle()
    opened.page.locator("#launch pre").first.wait_for()
    # The policy of the page forbids what axe evaluates in it, so the script goes in by the browser's own way.
    violations = axe.Axe().run(opened.page, options={"resultTypes": ["violations"]}).response["violations"]

    assert [
        (x["id"], x["nodes"][0]["html"]) for x in violations if x["impact"] in {"serious", "critical"}
    ] == []


@pytest.mark.parametrize("query", [SMALL, SERVED])
def test_the_keyboard_reaches_every_control(served, query):
    """Tab visits each field, slider, link, button and frame that scrolls, and the focus is seen."""
    opened = served(query).settle()
    opened.page.locator("#launch pre").first.wait_for()
    if query == SMALL:
        opened.page.locator("summary").click()
    reachable = opened.page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, select, input, summary, [tabindex='0']")]
        .filter((e) => e.checkVisibility() && e.getClientRects().length && (e.type !== "radio" || e.checked))
        .map((e, index) => (e.dataset.order = String(index)))"""
    )
    opened.page.evaluate("() => { document.activeElement.blur(); getSelection().removeAllRanges() }")
    visited = set()
    for _ in range(len(reachable) + 5):
        opened.page.keyboard.press("Tab")
        order, seen = opened.page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
            return [e.dataset.order || "", s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2] }"""
        )
        assert seen or not order
        visited.add(order)

    assert set(reachable) - visited == set()


@pytest.mark.parametrize("query", [SMALL, SERVED])
def test_the_page_is_as_wide_as_a_phone(served, query):
    """On 375 pixels nothing but tables, pictures and files scrolls sideways."""
    opened = served(query, width=375).settle()
    opened.page.locator("#launch pre").first.wait_for()

    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 375

    top = "document.querySelector(name).getBoundingClientRect().top"
    answer, question = (opened.page.evaluate(f"name => {top}", name) for name in ("#results", "#question"))
    assert 0 <= answer < question, "the answer is first"
    opened.page.get_by_role("link", name="Change the question").click()
    assert abs(opened.page.evaluate(f"name => {top}", "#question")) < 100
    lines = opened.page.locator("#front .whisker.chosen").evaluate_all(
        "all => all.map((e) => e.getAttribute('x2') - e.getAttribute('x1'))"
    )
    assert max(lines) > 0, "the interval of the chosen plan lies on the axis of time"


def test_a_second_class_of_requests_and_drafts_have_controls_and_are_shown(served):
    """Their fields appear with a share and a method; the job file has them, and each class has a row."""
    opened = served(SERVED).settle()
    page = opened.page
    assert not page.locator("#other_input_tokens").is_visible()
    assert not page.locator("#acceptance_percent").is_visible()
    page.locator("#other_percent").fill("25")
    page.locator("#drafting").select_option("ngram")
    page.locator("#other_input_tokens").fill("2000")
    opened.settle()
    page.wait_for_function("location.search.includes('other_input_tokens=2000')")
    answer = opened.settle().answer()

    assert page.locator("#other_input_tokens").is_visible()
    assert page.locator("#acceptance_percent").is_visible()
    assert "other_percent=25" in page.url
    assert "name: other" in answer["job_file"]["text"]
    assert "method: ngram" in answer["job_file"]["text"]
    classes = answer["answer"]["front"][0]["predicted"]["classes"]
    assert [known["name"] for known in classes] == ["main", "other"]
    page.get_by_text("Classes of requests").first.wait_for()
    assert opened.messages == []
