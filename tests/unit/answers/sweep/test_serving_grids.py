"""Grids of serving jobs: models, hardware and loads planned as each of them alone, kept and resumed."""

import csv
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import autoplan
from autoplan.answers.sweep.ask import Journal, journal_path
from autoplan.catalog import cell_job, load_grid
from autoplan.errors import SpecError
from autoplan.planning.caching import fingerprint
from autoplan.results.sweep import ServingCellAnswer
from tests.support.spec_runs import run_here

BASE = """
  kind: serving
  model: llama3.1-8b
  hardware: dgx-h100
  devices: 1
  stack: vllm@0.24
  workload: {input_tokens: 512, output_tokens: 128, concurrency: 8}
"""
GRID = f"""
kind: sweep
base: {BASE}
grid:
  model: [llama3.1-8b, qwen2.5-7b]
  workload.concurrency: [8, 32]
  devices: [1, 9]
exclude:
- {{model: qwen2.5-7b, workload.concurrency: 32}}
"""


@pytest.fixture
def grid(tmp_path):
    """Return the path of a grid of six cells, three of which have no devices."""
    path = tmp_path / "grid.yaml"
    path.write_text(GRID, encoding="utf-8")
    return path


@pytest.fixture
def threads():
    """Return an executor of this process."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_a_cell_is_the_best_plan_of_its_job_alone(grid, threads):
    """Each row has the figures of planning that job: the best by its first objective."""
    answer = autoplan.sweep(grid, executor=threads)

    assert answer.kind == "serving"
    assert answer.counts() == {"planned": 3, "invalid": 3}
    for row in answer.rows:
        if row.answer.status == "invalid":
            assert "not a multiple of the 8 devices" in row.answer.reasons[0]
            continue
        front = autoplan.plan(cell_job(load_grid(grid), row.cell))
        rates = [plan.output_tokens_per_second_per_device for plan in front.plans]
        assert row.answer.output_tokens_per_second_per_device == max(rates)
        assert row.answer.layout == front.best.layout_string
        assert row.answer.time_per_output_token_seconds == front.best.time_per_output_token
        assert (row.answer.plans, row.answer.engine_used) == (len(front.plans), "vllm 0.24")


def test_rows_are_kept_and_not_planned_again(grid, threads, tmp_path):
    """The file has a column for each figure of serving, and the journal answers the second run."""
    out = tmp_path / "rows.csv"
    first = autoplan.sweep(grid, output=out, executor=threads)
    again = autoplan.sweep(grid, output=out, executor=threads)
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    assert (first.reused, again.reused) == (0, 3)
    assert again.rows == first.rows
    assert list(rows[0])[4:] == [field.name for field in dataclasses.fields(ServingCellAnswer)]
    with Journal(journal_path(out), ServingCellAnswer) as journal:
        assert (
            journal.answer(fingerprint(cell_job(load_grid(grid), first.rows[0].cell))) == first.rows[0].answer
        )


def test_keys_and_names_are_those_of_a_serving_job(grid):
    """What is misspelt is told with its line; keys of training are unknown."""
    text = GRID.replace("workload.concurrency: [8", "workload.sequence_length: [8").replace(
        "qwen2.5-7b]", "qwen]"
    )
    grid.write_text(text.partition("exclude:")[0], encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_grid(grid)

    assert [problem.path for problem in caught.value.problems] == [
        "$.grid.model[1]",
        "$.grid['workload.sequence_length']",
    ]


def test_the_base_may_be_a_shipped_serving_job(grid):
    """A name of specs/serving is found as one of specs/jobs is."""
    grid.write_text("kind: sweep\nbase: llama3.1-8b-1x-h100\ngrid: {workload.concurrency: [1, 2]}\n")
    found = load_grid(grid)

    assert found.kind == "serving"
    assert [cell_job(found, cell).workload.concurrency for cell in found.cells] == [1, 2]


def test_a_trace_is_read_beside_the_base_and_counts(tmp_path, threads):
    """Its path is relative to the base job, wherever one plans; other requests are another question."""
    (tmp_path / "jobs").mkdir()
    trace = tmp_path / "jobs" / "requests.csv"
    trace.write_text("input_tokens,output_tokens\n300,40\n500,60\n", encoding="utf-8")
    job = BASE.replace("input_tokens: 512", "input_tokens: {trace: requests.csv}")
    job = job.replace("output_tokens: 128", "output_tokens: {trace: requests.csv}")
    (tmp_path / "jobs" / "job.yaml").write_text(job.replace("\n  ", "\n"), encoding="utf-8")
    path = tmp_path / "grid.yaml"
    path.write_text("kind: sweep\nbase: jobs/job.yaml\ngrid: {devices: [1, 2]}\n", encoding="utf-8")
    grid = load_grid(path)
    before = fingerprint(cell_job(grid, grid.cells[0]))
    answer = autoplan.sweep(grid, executor=threads)
    trace.write_text("input_tokens,output_tokens\n300,40\n500,90\n", encoding="utf-8")

    assert answer.counts() == {"planned": 2}
    assert fingerprint(cell_job(grid, grid.cells[0])) != before


def test_the_table_has_the_columns_of_serving_and_says_once_what_is_common(grid, tmp_path):
    """The command prints one row a cell; what all engines have stands above; a page draws the cells."""
    out = run_here("sweep", grid, "--workers", "1", "--output", tmp_path / "page.html").stdout
    document = json.loads(run_here("sweep", grid, "--workers", "1", "--format", "json").stdout)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")

    assert "every engine: 1 engine · tp 1" in out
    assert "3 planned, 3 invalid" in out
    assert "tokens/s" in out
    assert document["sweep"]["kind"] == "serving"
    assert document["rows"][0]["time_per_output_token_seconds"] > 0
    assert "step_seconds" not in document["rows"][0]
    assert page.count("data-token-seconds=") == 3
    assert "Most: cell" in page


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_plans_serving_jobs(grid, tmp_path, threads):
    """A cluster by address gives the rows that processes give."""
    distributed = pytest.importorskip("distributed")
    out = tmp_path / "rows.json"
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs="CRITICAL"
    ) as cluster:
        done = run_here("sweep", grid, "--dask", cluster.scheduler_address, "--output", out)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    alone = autoplan.sweep(grid, executor=threads)

    assert (done.exit_code, done.stderr) == (0, "")
    assert [row["layout"] for row in rows] == [row.answer.layout for row in alone.rows]
