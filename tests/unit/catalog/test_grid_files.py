"""Grids: their cells, the jobs that these become, and every mistake at its place."""

import pytest

from autoplan.catalog import cell_job, load_grid
from autoplan.errors import CatalogError, SpecError
from autoplan.schema.grid_spec import MOST_CELLS

JOB = """\
kind: training
model: gpt2
hardware: 2x-rtx3090
workload: {sequence_length: 512, global_batch_size: 16}
"""
HEAD = "kind: sweep\nbase: llama3.2-1b-2x-rtx3090\n"  # the grid begins on line 3


def load(folder, text):
    """Return the grid of a text."""
    (folder / "grid.yaml").write_text(text, encoding="utf-8")
    return load_grid(folder / "grid.yaml")


def told(folder, text):
    """Return the problems of a grid's text as they are printed, with the file's name alone."""
    with pytest.raises(SpecError) as caught:
        load(folder, text)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def labels(folder, text):
    """Return what each cell of a grid sets."""
    return [cell.label for cell in load(folder, text).cells]


def test_cells_are_every_combination_and_the_last_key_changes_fastest(tmp_path):
    """Cells are numbered in the order in which a reader would write them down."""
    grid = load(tmp_path, HEAD + "grid:\n  model: [gpt2, gpt2-xl]\n  devices: [1, 2]\n")

    assert [(cell.number, cell.label) for cell in grid.cells] == [
        (1, "model=gpt2,devices=1"),
        (2, "model=gpt2,devices=2"),
        (3, "model=gpt2-xl,devices=1"),
        (4, "model=gpt2-xl,devices=2"),
    ]


def test_an_excluded_cell_is_left_out(tmp_path):
    """An entry excludes what has all of its values; a list in it stands for each of its values."""
    text = HEAD + "grid:\n  model: [gpt2, gpt2-xl]\n  devices: [1, 2]\n"

    assert labels(tmp_path, text + "exclude: [{model: gpt2, devices: [1, 2]}]\n") == [
        "model=gpt2-xl,devices=1",
        "model=gpt2-xl,devices=2",
    ]
    assert labels(tmp_path, text + "exclude: [{devices: 1}, {model: gpt2}]\n") == ["model=gpt2-xl,devices=2"]


def test_a_list_that_is_a_value_of_the_grid_excludes_itself_alone(tmp_path):
    """Where a cell's value is a list, an exclusion that names the list means the list."""
    text = HEAD + "grid:\n  search.zero_stage: [0, 1, [0, 1]]\nexclude: [{search.zero_stage: [0, 1]}]\n"

    assert labels(tmp_path, text) == ["search.zero_stage=0", "search.zero_stage=1"]


@pytest.mark.parametrize(
    ("key", "values", "found"),
    [
        ("model", "[gpt2]", lambda job: job.model.name == "gpt2"),
        ("devices", "[1]", lambda job: job.cluster.devices == 1),
        ("devices", "[null]", lambda job: job.cluster.devices == 2),
        ("stack", "[ddp]", lambda job: job.stack.name == "ddp"),
        ("workload.sequence_length", "[128]", lambda job: job.workload.sequence_length == 128),
        ("limits.memory_headroom", "[7 %]", lambda job: job.limits.memory_headroom == 0.07),
        ("limits", "[{step_time: 2 s}]", lambda job: job.limits.step_time == 2.0),
        ("search.recompute", "[[none, full]]", lambda job: job.search.recompute == ("none", "full")),
        ("objectives", "[[step_time]]", lambda job: job.objectives == ("step_time",)),
        ("adapters.rank", "[8]", lambda job: job.adapters.rank == 8),
        ("precision", "[fp16]", lambda job: job.precision == "fp16"),
    ],
)
def test_any_key_of_a_job_can_be_swept(tmp_path, key, values, found):
    """A setting reaches the job, whether the base job has its section or not, and nothing else changes."""
    grid = load(tmp_path, HEAD + f"grid:\n  {key}: {values}\n")
    job = cell_job(grid, grid.cells[0])

    assert found(job)
    assert job.workload.global_batch_size == 64


def test_the_base_job_may_be_a_name_a_file_or_a_mapping(tmp_path):
    """All three give the same job."""
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    indented = "".join(f"  {line}\n" for line in JOB.splitlines())
    grids = [
        load(tmp_path, f"kind: sweep\nbase: {base}\ngrid: {{devices: [1]}}\n")
        for base in ("job.yaml", f"\n{indented}")
    ]
    first, second = (cell_job(grid, grid.cells[0]) for grid in grids)

    assert first == second
    assert load(tmp_path, HEAD + "grid: {devices: [1]}\n").cells


def test_paths_are_relative_to_the_file_that_says_them(tmp_path):
    """A grid names models beside itself, though its base job lies elsewhere and names its own."""
    below = tmp_path / "jobs"
    below.mkdir()
    (below / "job.yaml").write_text(JOB.replace("model: gpt2", "model: ./own.yaml"), encoding="utf-8")
    model = (
        "kind: model\nname: {}\nsource: made up\nlayers: {}\nhidden_size: 64\nheads: 4\nffn_size: 128\n"
        "vocabulary: 100\npositions: rope\nmax_positions: 512\nactivation: swiglu\nnorm: rmsnorm\n"
        "tied_embeddings: false\n"
    )
    (below / "own.yaml").write_text(model.format("own", 2), encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(model.format("mine", 4), encoding="utf-8")
    text = "kind: sweep\nbase: jobs/job.yaml\ngrid: {model: [./mine.yaml], devices: [1, 2]}\n"
    swept = load(tmp_path, text)
    kept = load(tmp_path, text.replace("model: [./mine.yaml], ", ""))

    assert cell_job(swept, swept.cells[0]).model.layers == 4
    assert cell_job(kept, kept.cells[0]).model.layers == 2
    assert swept.cells[0].label == "model=./mine.yaml,devices=1"


def test_values_that_do_not_go_together_are_no_mistake_of_the_grid(tmp_path):
    """Three devices of a two-device node are told when the cell is asked for."""
    grid = load(tmp_path, HEAD + "grid: {devices: [2, 3]}\n")

    assert cell_job(grid, grid.cells[0]).cluster.devices == 2
    with pytest.raises(SpecError, match="3 devices are not a multiple of the 2 devices of a node"):
        cell_job(grid, grid.cells[1])


# --- mistakes


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            "grid: {modle: [gpt2]}",
            "grid.yaml:3: $.grid.modle: unknown key 'modle': did you mean 'model'?",
        ),
        (
            "grid: {global_batch_size: [8]}",
            (
                "grid.yaml:3: $.grid.global_batch_size: unknown key 'global_batch_size':"
                " did you mean 'workload.global_batch_size'?"
            ),
        ),
        ("grid: {devices: 8}", "grid.yaml:3: $.grid.devices: 8 is not a list"),
        ("grid: {devices: []}", "grid.yaml:3: $.grid.devices: an empty list must have at least 1 entry"),
        ("grid: {}", "grid.yaml:3: $.grid: an empty mapping must have at least 1 entry"),
        (
            "grid:\n  devices: [1,\n    0]",
            "grid.yaml:5: $.grid.devices[1]: 0 must be at least 1",
        ),
        (
            "grid: {devices: [1, 1]}",
            "grid.yaml:3: $.grid.devices[1]: 1 is a duplicate of entry 0: remove one",
        ),
        (
            "grid: {limits.memory_headroom: [6]}",
            "grid.yaml:3: $.grid['limits.memory_headroom'][0]: 6 has no unit: write for example 6 %",
        ),
        (
            "grid: {limits: [{memory_hedroom: 6 %}]}",
            (
                "grid.yaml:3: $.grid.limits[0].memory_hedroom: unknown key 'memory_hedroom':"
                " did you mean 'memory_headroom'?"
            ),
        ),
        (
            "grid: {limits: [{}], limits.step_time: [1 s]}",
            "grid.yaml:3: $.grid['limits.step_time']: 'limits' sets 'limits.step_time' too: remove one",
        ),
        (
            "grid: {model: [gtp2]}",
            "grid.yaml:3: $.grid.model[0]: no model is called 'gtp2': did you mean gpt2?",
        ),
        (
            "grid: {model: [missing.yaml]}",
            "grid.yaml:3: $.grid.model[0]: cannot read missing.yaml: No such file or directory",
        ),
        (
            "grid: {hardware: [h100-sxm5-80gb]}",
            "grid.yaml:3: $.grid.hardware[0]: 'h100-sxm5-80gb' is a device",
        ),
        (
            "grid: {devices: [1]}\nexclude: [{device: 1}]",
            "grid.yaml:4: $.exclude[0].device: unknown key 'device': did you mean 'devices'?",
        ),
        (
            "grid: {devices: [1]}\nexclude: [{devices: 2}]",
            "grid.yaml:4: $.exclude[0].devices: 2 is not among the values of 'devices' in the grid",
        ),
        (
            "grid: {devices: [1]}\nexclude: [{devices: 1}]",
            "grid.yaml:4: $.exclude: no cell of the grid remains",
        ),
        (
            "grid: {devices: [1]}\nexclude: [{}]",
            "grid.yaml:4: $.exclude[0]: an empty mapping must have at least 1 entry",
        ),
        (
            "grid: {devices: [1]}\nexclud: []",
            "grid.yaml:4: $.exclud: unknown key 'exclud': did you mean 'exclude'?",
        ),
    ],
)
def test_a_mistake_is_told_at_its_place(tmp_path, lines, problem):
    """Each gives one sentence, with the line and the path in the grid file."""
    (found,) = told(tmp_path, HEAD + lines + "\n")

    assert found.startswith(problem)


def test_mistakes_of_every_part_are_told_at_once(tmp_path):
    """Base job, keys, values and exclusions hide nothing of each other."""
    text = (
        "kind: sweep\nbase:\n  kind: training\n  model: gpt2\n  workload: {sequence_length: 0}\n"
        "grid:\n  hardware: [2x-rtx3099]\n  devcies: [1]\n  devices: [x]\nexclude:\n- {model: gpt2}\n- 3\n"
    )

    assert [line.split(": ")[:2] for line in told(tmp_path, text)] == [
        ["grid.yaml:5", "$.base.workload.sequence_length"],
        ["grid.yaml:5", "$.base.workload.global_batch_size"],
        ["grid.yaml:7", "$.grid.hardware[0]"],
        ["grid.yaml:8", "$.grid.devcies"],
        ["grid.yaml:9", "$.grid.devices[0]"],
        ["grid.yaml:11", "$.exclude[0].model"],
        ["grid.yaml:12", "$.exclude[1]"],
    ]


def test_mistakes_of_a_base_file_name_that_file(tmp_path):
    """A reader is led to the file that is wrong, and to the grid's own mistakes first."""
    (tmp_path / "job.yaml").write_text(JOB.replace("gpt2", "gtp2") + "precison: bf16\n", encoding="utf-8")
    text = "kind: sweep\nbase: job.yaml\ngrid: {devices: [0]}\n"

    assert told(tmp_path, text) == [
        "grid.yaml:3: $.grid.devices[0]: 0 must be at least 1",
        "job.yaml:2: $.model: no model is called 'gtp2': did you mean gpt2?",
        "job.yaml:5: $.precison: unknown key 'precison': did you mean 'precision'?",
    ]


@pytest.mark.parametrize("base", ["no-such-job", "missing.yaml", "../../etc/passwd"])
def test_a_base_job_that_is_not_there_is_told(tmp_path, base):
    """A name or a path that leads nowhere stands at `base`."""
    (found,) = told(tmp_path, f"kind: sweep\nbase: {base}\ngrid: {{devices: [1]}}\n")

    assert found.startswith("grid.yaml:2: $.base: ")


def test_too_many_cells_are_refused_before_they_are_made(tmp_path):
    """A grid that nobody could wait for says how many cells it has."""
    many = list(range(1, 1001))
    text = HEAD + f"grid:\n  devices: {many}\n  workload.global_batch_size: {many}\n"

    assert told(tmp_path, text) == [
        f"grid.yaml:3: $.grid: the grid has 1,000,000 cells: at most {MOST_CELLS:,} are supported"
    ]


def test_a_grid_that_is_not_there_is_told():
    """A misspelt name of a shipped grid has near-misses."""
    with pytest.raises(CatalogError, match="did you mean small-models-2x-gpu"):
        load_grid("small-model-2x-gpu")
