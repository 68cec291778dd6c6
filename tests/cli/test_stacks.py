"""Stacks as a user writes, looks at and plans with them."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from autoplan.catalog import entry_names, entry_text, read_stack, stack
from autoplan.catalog.entries import load_entry
from autoplan.schema.costmodel.stack import StackSpec

README = Path(__file__).resolve().parents[2] / "costmodels" / "README.md"
#: What the README of the cost models says to copy: ten lines.
MINE = re.search(r"^# file: mine.yaml\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def catalogue(tmp_path, monkeypatch):
    """Return the folder of stacks of a user's own catalogue, with ``mine`` in it."""
    folder = tmp_path / "costmodels" / "stacks"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(MINE, encoding="utf-8")
    monkeypatch.setenv("AUTOPLAN_CATALOG", str(tmp_path))
    # The program reads an entry once, and each test has another catalogue.
    load_entry.cache_clear()
    yield folder
    load_entry.cache_clear()


def marked(text):
    """Return each line of a shown stack by its key, with the mark behind it."""
    lines = (line.partition("  # ") for line in text.splitlines() if ":" in line.partition("  # ")[0])
    return {line.strip().partition(":")[0]: mark for line, _, mark in lines if not line.startswith("#")}


@pytest.mark.parametrize("name", entry_names("stack"))
def test_a_shown_stack_is_whole(run, name):
    """What is printed reads as a stack without a parent, which says the same."""
    done = run("catalog", "show", name, "--kind", "stack")
    shown = yaml.safe_load(done.stdout)
    found = read_stack(done.stdout, f"{name}.yaml")

    assert done.exit_code == 0
    assert "extends" not in shown
    assert found.parents == ()
    assert found.spec == stack(name)


def test_show_marks_what_is_inherited_and_what_no_file_says(run, catalogue):
    """A value has the name of the stack that it is from behind it, or none where it is the file's own."""
    text = run("catalog", "show", "mine").stdout
    marks = marked(text)

    assert f"# stack mine: {catalogue / 'mine.yaml'}\n" in text
    assert f"# extends fsdp2: {entry_text('stack', 'fsdp2')[1]}\n" in text
    assert (marks["gradient_bytes"], marks["host_launch"], marks["title"]) == ("fsdp2", "", "")
    assert "  gradient_bytes: 2\n" in text
    assert (marks["fused_norms"], marks["embedding_gradient_full_vocabulary"]) == ("fsdp2-compile", "fsdp2")
    assert (marks["state_bytes"], marks["collectives_per_layer"]) == ("analytic", "default")


def test_show_of_a_stack_in_json_tells_where_each_value_is_from(run, catalogue):
    """Programs get the values in base units, the parents in order, and the origin of each path."""
    (entry,) = json.loads(run("catalog", "show", "mine", "--format", "json").stdout)["entries"]

    assert entry["extends"] == ["fsdp2-compile", "fsdp2", "analytic"]
    assert entry["values"]["memory"]["gradient_bytes"] == 2
    assert entry["values"]["host_launch"]["value"] == 6e-6
    assert entry["inherited"]["block.fused_norms"] == "fsdp2-compile"
    assert entry["inherited"]["memory.parameter_bytes"] == "fsdp2"
    assert not {"memory.gradient_bytes", "host_launch", "title", "name"} & entry["inherited"].keys()
    assert "overlap.collectives_per_layer" in entry["defaults"]


def test_show_of_a_stack_in_yaml_is_that_in_json(run):
    """Both formats say the same."""
    one = json.loads(run("catalog", "show", "fsdp2", "-f", "json").stdout)

    assert yaml.safe_load(run("catalog", "show", "fsdp2", "-f", "yaml").stdout) == one


def test_the_stack_of_the_readme_is_ten_lines():
    """A new stack is what differs."""
    assert len(MINE.splitlines()) == 10


def test_a_users_stack_is_listed_checked_and_planned_with(run, catalogue, tmp_path):
    """Ten lines are a stack like any other."""
    job = yaml.safe_load(entry_text("job", "llama3-8b-8x-a100")[0]) | {"stack": "mine"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    listed = run("catalog", "list", "stack").stdout
    checked = run("catalog", "check")
    planned = json.loads(run("evaluate", tmp_path / "job.yaml", "--layout", "tp=8", "-f", "json").stdout)

    assert "\nmine " in listed
    assert (checked.exit_code, "all valid" in checked.stdout) == (0, True)
    assert planned["job"]["stack"] == "mine"
    assert planned["provenance"]["stack"]["sources"]["fork"] == "our trainer, commit 1a2b3c"


def test_a_saved_plan_needs_no_parent(run, catalogue, tmp_path):
    """A plan holds its stack whole: it is verified where the catalogue is not."""
    job = yaml.safe_load(entry_text("job", "llama2-7b-2x-a100")[0])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job | {"stack": "mine"}))
    run("plan", tmp_path / "job.yaml", "-f", "json", "-o", tmp_path / "plan.json")
    (catalogue / "mine.yaml").unlink()
    done = run("verify", tmp_path / "plan.json")

    assert done.exit_code == 0


def test_an_unknown_parent_is_told_as_an_error_of_the_file(run, catalogue):
    """The file, the line and what is near stand in one line."""
    (catalogue / "mine.yaml").write_text(MINE.replace("fsdp2-compile", "fsdp2-compiled"))
    done = run("catalog", "check")

    assert done.exit_code == 2
    assert f"{catalogue / 'mine.yaml'}:4: $.extends: no stack is called 'fsdp2-compiled'" in done.stdout
    assert "did you mean fsdp2-compile" in done.stdout


def test_a_job_tells_what_is_wrong_with_its_stacks_parents(run, tmp_path):
    """A circle ends with exit code 2 and a sentence, not with a traceback."""
    for one, other in (("a", "b"), ("b", "a")):
        text = MINE.replace("name: mine", f"name: {one}").replace("fsdp2-compile", f"./{other}.yaml")
        (tmp_path / f"{one}.yaml").write_text(text)
    job = yaml.safe_load(entry_text("job", "llama3-8b-8x-a100")[0]) | {"stack": "./a.yaml"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    done = run("plan", tmp_path / "job.yaml")

    assert done.exit_code == 2
    assert done.stdout == ""
    assert "cyclic inheritance" in done.stderr


def test_the_schema_asks_a_file_without_a_parent_for_everything(run):
    """An editor accepts what differs where a parent is named, and misses the rest where none is."""
    validator = jsonschema.Draft202012Validator(json.loads(run("schema", "stack").stdout))
    mine = yaml.safe_load(MINE)
    whole = yaml.safe_load(run("catalog", "show", "fsdp2").stdout)
    less = {**whole, "memory": {k: v for k, v in whole["memory"].items() if k != "gradient_bytes"}}

    assert validator.is_valid(mine)
    assert validator.is_valid({**mine, "experts": None, "sources": {"docs": None}})
    assert validator.is_valid(whole)
    assert not validator.is_valid({key: value for key, value in mine.items() if key != "extends"})
    assert not validator.is_valid(less)
    assert not validator.is_valid({**mine, "memory": {"gradient_byts": 2}})
    assert not validator.is_valid({**mine, "host_launch": {"value": "6 us"}})


def test_every_stack_of_the_catalogue_is_of_the_schemas_model(run):
    """The key of the parent is gone once a stack is read: a plan's hash does not know it."""
    assert "extends" not in StackSpec.model_fields
