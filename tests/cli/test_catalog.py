"""``autoplan catalog`` and ``autoplan schema``."""

import json
import typing

import jsonschema
import pytest
import yaml

from autoplan.answers.catalog.blocks import COLUMNS
from autoplan.catalog import FOLDERS, EntryKind, entry_names, entry_text


def test_the_table_of_kinds_has_all_kinds_that_types_name():
    """Types need the kinds as literals, and listings a column for each."""
    assert list(FOLDERS) == list(typing.get_args(EntryKind))
    assert set(COLUMNS) == set(FOLDERS)


def test_list_counts_every_kind(run):
    """Without a kind all catalogues are listed, with how many entries they hold."""
    done = run("catalog", "list")

    assert done.exit_code == 0
    for kind in FOLDERS:
        assert f"{len(entry_names(kind))} entries of kind {kind}" in done.stdout


@pytest.mark.parametrize("kind", FOLDERS)
def test_list_of_a_kind_names_its_entries_with_their_facts(run, kind):
    """The same names stand in the table and in JSON, and JSON has every column's key."""
    table = run("catalog", "list", kind).stdout
    listed = json.loads(run("catalog", "list", kind, "--format", "json").stdout)["catalog"][kind]

    assert [entry["name"] for entry in listed] == list(entry_names(kind))
    assert all(f"\n{name}" in table for name in entry_names(kind))
    assert {fact.key for fact in COLUMNS[kind]} <= set(listed[0])


@pytest.mark.parametrize("columns", ["72", "80", "100", "160"])
def test_listings_keep_to_the_width(run, monkeypatch, columns):
    """A narrow terminal gets fewer facts, never broken lines."""
    monkeypatch.setenv("COLUMNS", columns)
    lines = run("catalog", "list").stdout.splitlines()

    assert max(map(len, lines)) <= int(columns)


def test_a_broken_entry_does_not_hide_the_rest(run, monkeypatch, tmp_path):
    """A user's own catalogue with a mistake is listed, and the check says what is wrong."""
    folder = tmp_path / "hardware" / "nodes"
    folder.mkdir(parents=True)
    (folder / "my-broken-node.yaml").write_text("schema: 1\nkind: node\n")
    monkeypatch.setenv("AUTOPLAN_CATALOG", str(tmp_path))
    listed = run("catalog", "list", "node")
    checked = run("catalog", "check")

    assert listed.exit_code == 0
    assert "my-broken-node" in listed.stdout
    assert "dgx-a100-80gb" in listed.stdout
    assert checked.exit_code == 2
    assert all(line.startswith("node my-broken-node: ") for line in checked.stdout.splitlines())


def test_check_finds_nothing_wrong(run):
    """The shipped catalogues are in order."""
    done = run("catalog", "check")

    assert done.exit_code == 0
    assert "all valid" in done.stdout


def test_show_prints_the_file_as_it_is(run):
    """A reader sees the comments and sources of the file, and a model's parameters."""
    done = run("catalog", "show", "llama3-8b")

    assert done.exit_code == 0
    assert entry_text("model", "llama3-8b")[0].rstrip() in done.stdout
    assert "8,030,261,248" in done.stdout
    assert yaml.safe_load(done.stdout)["layers"] == 32


def test_show_as_json_holds_values_in_base_units(run):
    """Programs get numbers, not texts with units."""
    done = run("catalog", "show", "dgx-a100-80gb", "--format", "json")
    (entry,) = json.loads(done.stdout)["entries"]

    assert entry["kind"] == "node"
    assert entry["values"]["fabric"]["bandwidth"]["value"] == 300e9


def test_show_prints_every_kind_that_has_the_name(run):
    """``a100-sxm4-80gb`` is a device, its kernel curves and those of engines; ``--kind`` picks one."""
    every = run("catalog", "show", "a100-sxm4-80gb").stdout
    one = run("catalog", "show", "a100-sxm4-80gb", "--kind", "device").stdout

    assert [entry["kind"] for entry in yaml.safe_load_all(every)] == ["device", "kernels", "engine-kernels"]
    assert yaml.safe_load(one)["kind"] == "device"


@pytest.mark.parametrize("name", ["dgx-a100", "llama3-8", "../hardware", "", "a/b", "DGX"])
def test_show_of_an_unknown_name_exits_2(run, name):
    """A name that no catalogue holds is told, with what is near."""
    done = run("catalog", "show", name)

    assert done.exit_code == 2
    assert done.stderr.startswith("error: no entry is called")


def test_near_misses_are_suggested_across_kinds(run):
    """A typo costs one look."""
    assert "did you mean llama3-8b" in run("catalog", "show", "llama3-8").stderr


@pytest.mark.parametrize("kind", FOLDERS)
def test_schemas_are_schemas_and_accept_the_shipped_files(run, kind):
    """An editor that reads the schema accepts what autoplan accepts."""
    schema = json.loads(run("schema", kind).stdout)
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for name in entry_names(kind):
        validator.validate(yaml.safe_load(entry_text(kind, name)[0]))


def test_schema_of_runs_accepts_what_calibrate_reads(run):
    """A user's runs are no entry of a catalogue, and have a schema all the same."""
    validator = jsonschema.Draft202012Validator(json.loads(run("schema", "runs").stdout))
    one = {"job": "llama3-8b-8x-a100", "layout": "tp=8", "step_time": "46.9 s"}

    assert validator.is_valid({"schema": 1, "kind": "runs", "runs": 3 * [one]})
    assert validator.is_valid({"schema": 1, "kind": "runs", "runs": [one]})
    assert not validator.is_valid({"schema": 1, "kind": "runs", "runs": []})


def test_schema_refuses_a_job_with_an_unknown_key(run):
    """The schema is as strict as the program."""
    validator = jsonschema.Draft202012Validator(json.loads(run("schema").stdout))
    job = yaml.safe_load(entry_text("job", "llama3-8b-8x-a100")[0])

    assert validator.is_valid(job)
    assert not validator.is_valid({**job, "devicez": 8})


def test_schema_as_yaml_is_the_same(run):
    """Both formats say the same."""
    assert yaml.safe_load(run("schema", "-f", "yaml").stdout) == json.loads(run("schema").stdout)


def test_nodes_that_no_file_describes_are_shown_and_told(run):
    """The list says what names there are; such a node is shown as the file that it would be."""
    assert "4x-DEVICE" in run("catalog", "list", "node").stdout
    listed = json.loads(run("catalog", "list", "node", "-f", "json").stdout)["derived_nodes"]
    assert listed["devices"] == [1, 2, 4, 8]
    shown = run("catalog", "show", "4x-h100-pcie-80gb").stdout
    assert shown.startswith("# node 4x-h100-pcie-80gb: derived from ")
    assert "kind: guess" in shown
    values = json.loads(run("catalog", "show", "8x-mi350x", "-f", "json").stdout)["entries"][0]["values"]
    assert values["derived_from"] == "8x-mi300x"
    assert run("catalog", "show", "2x-rtx-4090").stdout.startswith("# node 2x-rtx4090: ")
    assert "4x-h100-pcie-80gb" in run("catalog", "show", "4x-h100").stderr
