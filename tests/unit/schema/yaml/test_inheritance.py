"""Stacks that extend others: what is merged, what is refused and what is from where."""

import re
from typing import get_args

import pytest
import yaml

from autoplan.catalog import entry_names, entry_text, load_job, read_stack, stack
from autoplan.catalog.entries import stack_at
from autoplan.errors import SpecError
from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.hardware import sourced_numbers
from autoplan.schema.renamed_keys import RENAMED_KNOBS
from autoplan.schema.yaml.inheritance import labelled, leaves, merged

DERIVED = [name for name in entry_names("stack") if "\nextends:" in entry_text("stack", name)[0]]
HEAD = "schema: 1\nkind: stack\nname: {name}\ntitle: mine\ndescription: what differs\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a function that writes a stack of a user's own catalogue and returns its file."""
    folder = tmp_path / "costmodels" / "stacks"
    folder.mkdir(parents=True)
    monkeypatch.setenv("AUTOPLAN_CATALOG", str(tmp_path))

    def write(name, differs):
        file = folder / f"{name}.yaml"
        file.write_text(HEAD.format(name=name) + differs, encoding="utf-8")
        return file

    return write


def read(file):
    """Return the stack of a file."""
    return read_stack(file.read_text(encoding="utf-8"), str(file))


def problem_of(file):
    """Return the one problem of a file that is refused."""
    with pytest.raises(SpecError) as refused:
        read(file)
    (problem,) = refused.value.problems
    return problem


# --- merging


def test_groups_are_merged_and_all_else_is_replaced():
    """A group keeps what the child does not say; a list and a number with its source are replaced whole."""
    number = {"value": 2, "source": "x", "note": "of this value"}
    parent = {"memory": {"cuda_context": number, "autocast_bytes": 2}, "rules": {"zero_stages": (0, 1)}}
    child = {"memory": {"cuda_context": {"value": 3, "source": "y"}}, "rules": {"zero_stages": (1,)}}

    assert merged(parent, child, StackSpec) == {
        "memory": {"cuda_context": {"value": 3, "source": "y"}, "autocast_bytes": 2},
        "rules": {"zero_stages": (1,)},
    }


def test_tables_are_merged_by_name():
    """Sources, and what differs at a precision, are added to those of the parent."""
    parent = {"sources": {"a": "A", "b": "B"}, "by_precision": {"fp8": {"gathered_bytes": 1}}}
    child = {"sources": {"b": None, "c": "C"}, "by_precision": {"fp8": {"master_bytes": 4}}}

    assert merged(parent, child, StackSpec) == {
        "sources": {"a": "A", "c": "C"},
        "by_precision": {"fp8": {"gathered_bytes": 1, "master_bytes": 4}},
    }


def test_an_empty_value_takes_back_what_the_parent_says():
    """A group, a knob and an entry of a table are gone; what the parent does not say stays empty."""
    parent = {"experts": {"kernels": 1}, "memory": {"max_live_parameters": 1}, "by_precision": {"fp8": {}}}
    child = {
        "experts": None,
        "memory": {"max_live_parameters": None},
        "by_precision": {"fp8": None},
        "hybrid_sharding": None,
    }

    assert merged(parent, child, StackSpec) == {"memory": {}, "by_precision": {}, "hybrid_sharding": None}


def test_what_a_file_says_of_itself_is_not_inherited():
    """A title or a description is true of its own stack alone."""
    parent = {"schema": 1, "kind": "stack", "name": "a", "title": "A", "description": "all of a"}

    assert merged(parent, {"name": "b"}, StackSpec) == {"name": "b"}


def test_labels_are_merged_as_values_are():
    """Each value that is replaced whole has the label of the file that says it."""
    parent = labelled({"memory": {"cuda_context": {"value": 1}, "autocast_bytes": 2}}, "parent", StackSpec)
    child = labelled({"memory": {"cuda_context": {"value": 1}}}, "child", StackSpec)

    assert dict(leaves(merged(parent, child, StackSpec))) == {
        ("memory", "cuda_context"): "child",
        ("memory", "autocast_bytes"): "parent",
    }


# --- the shipped stacks


@pytest.mark.parametrize("name", entry_names("stack"))
def test_a_stack_is_what_its_files_say(name):
    """Each value that a file writes is that of the stack, and each that it inherits is its parent's."""
    found = read_stack(*entry_text("stack", name))
    own = yaml.safe_load(entry_text("stack", name)[0])
    parent = read_stack(*entry_text("stack", own["extends"])).content if "extends" in own else {}

    assert found.spec == stack(name)
    assert found.parents[:1] == ((own["extends"],) if "extends" in own else ())
    for path, origin in found.inherited.items():
        assert origin in found.parents
        assert value_at(found.content, path) == value_at(parent, path) is not None


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_stack_says_only_what_differs(name):
    """No shipped file repeats what it would inherit; a number from another source is another one."""
    own = {"sources": {}} | yaml.safe_load(entry_text("stack", name)[0])
    parent = read_stack(*entry_text("stack", own.pop("extends"))).content
    said = [path for path, _ in leaves(labelled(own, "own", StackSpec)) if path[0] not in ("schema", "kind")]
    same = [path for path in said if value_at(own, path) == plain(value_at(parent, path))]

    assert [path for path in same if value_at(own, (*path, "source")) not in own["sources"]] == []


def value_at(tree, path):
    """Return what ``tree`` holds at ``path``; None where it does not go there."""
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def plain(value):
    """Return ``value`` with lists in the place of tuples, as YAML has them."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, tuple) else value


# --- where parents are found


#: Words with which a source sets a switch against what it says itself, for the sake of measured runs.
CONTRADICTS = re.compile(
    r"\b(too (fast|slow|large|small)|as if it|come out|take as long|until it is known|but (the|its) runs)\b"
)


@pytest.mark.parametrize("name", entry_names("stack"))
def test_no_source_of_a_stack_contradicts_its_switches(name):
    """Switches restate source code. What runs would rather have is a number of kind fitted, or an error."""
    found = stack(name)
    fitted = {x.source for _, x in sourced_numbers(found) if x.kind == "fitted"}
    told = {key: text for key, text in found.sources.items() if key not in fitted}
    assert not [key for key, text in told.items() if CONTRADICTS.search(text)]


def test_deepspeeds_pipelines_send_and_reduce_as_their_engine_does():
    """Partitioned boundaries and all-reduces: fp32 gradients in bf16, 16 bits in fp16 (pipe/engine.py)."""
    found = stack("megatron-deepspeed")
    assert found.overlap.scatter_gather_tensors_in_pipeline
    assert found.overlap.all_reduce_under_zero
    assert found.by_precision["bf16"].reduced_bytes == 4
    assert found.overlap.gradient_bytes == 2


def test_a_users_stack_extends_a_shipped_one(own):
    """A stack of a user's own catalogue is what it says and, for the rest, the shipped one."""
    file = own("mine", "extends: fsdp2\nmemory: {gradient_bytes: 2}\nexperts:\n")
    mine, shipped = stack_at(str(file), file.parent), stack("fsdp2")

    assert mine.memory == shipped.memory.model_copy(update={"gradient_bytes": 2})
    assert mine.experts is None
    assert (mine.block, mine.overlap, mine.rules) == (shipped.block, shipped.overlap, shipped.rules)


def test_a_users_stack_may_have_the_name_of_the_shipped_one_that_it_extends(own):
    """It stands in for the shipped one, whose children stay as they are shipped."""
    found = read(own("fsdp2", "extends: fsdp2\nblock: {kernels: 99}\n"))
    child = read_stack(*entry_text("stack", "fsdp2-compile"))

    assert found.spec.block.kernels == 99
    assert found.parents[0] == entry_text("stack", "fsdp2-compile")[1].replace("fsdp2-compile", "fsdp2")
    assert "99" not in str(child.content)
    assert child.inherited["memory", "gradient_bytes"] == "fsdp2"


def test_a_file_extends_a_file_beside_it(tmp_path):
    """A path is relative to the file that writes it, and a job may name the child by its path."""
    (tmp_path / "more").mkdir()
    (tmp_path / "base.yaml").write_text(
        HEAD.format(name="base") + "extends: megatron-core\nblock: {kernels: 7}\n"
    )
    (tmp_path / "more" / "child.yaml").write_text(HEAD.format(name="child") + "extends: ../base.yaml\n")
    shipped, _ = entry_text("job", "llama3-8b-8x-a100")
    job = yaml.safe_load(shipped) | {"stack": "more/child.yaml"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    found = load_job(tmp_path / "job.yaml").stack

    assert (found.name, found.block.kernels) == ("child", 7)
    assert found.memory == stack("megatron-core").memory


def test_a_chain_is_followed_to_its_end(own):
    """The nearest parent wins, and each value is from the one that says it."""
    own("one", "extends: ddp\nblock: {kernels: 1}\nmemory: {autocast_bytes: 1}\n")
    own("two", "extends: one\nblock: {kernels: 2}\n")
    found = read(own("three", "extends: two\n"))

    assert found.parents == ("two", "one", "ddp", "analytic")
    assert (found.spec.block.kernels, found.spec.memory.autocast_bytes) == (2, 1)
    assert found.inherited["block", "kernels"] == "two"
    assert found.inherited["memory", "autocast_bytes"] == "one"
    assert found.inherited["host_launch",] == "analytic"


# --- what is refused


def test_an_unknown_parent_is_told_with_the_stacks_that_there_are(own):
    """The error names the file, the line, what is near and every stack."""
    file = own("mine", "extends: fdsp2\n")
    problem = problem_of(file)

    assert (problem.file, problem.line, problem.path) == (str(file), 6, "$.extends")
    assert "no stack is called 'fdsp2': did you mean fsdp2" in problem.message
    assert all(name in problem.message for name in entry_names("stack"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("memory: {reserved_share: 1.0}", "reserved_share: is called allocator_fragmentation now"),
        ("memory: {context: 1 GiB}", "context: is called cuda_context now"),
        ("context: {exchange: ring}", "context: is called context_parallel now"),
        ("experts: {exchange: rows}", "exchange: is called dispatch now"),
        ("experts: {kernels: 40}", "kernels: is called routing_kernels now"),
        ("block: {offload: true}", "unknown key 'offload'"),
    ],
)
def test_a_former_name_of_a_knob_is_refused_with_its_name_now(own, said, told):
    """Of several new names, the one that the group has."""
    assert told in problem_of(own("mine", f"extends: fsdp2\n{said}\n")).message


def test_every_former_name_has_a_knob():
    """A name now is a knob of a stack or of kernels, in a group that has no knob of the former name."""
    groups = [StackSpec, KernelSpec, *_groups_of(StackSpec)]
    for former, names in RENAMED_KNOBS.items():
        for name in names:
            found = [set(group.model_fields) for group in groups if name in group.model_fields]
            assert found
            assert all(former not in knobs for knobs in found)


def _groups_of(group):
    """Return the models of the groups of a stack."""
    told = [
        x for field in group.model_fields.values() for x in (field.annotation, *get_args(field.annotation))
    ]
    return [x for x in told if isinstance(x, type) and issubclass(x, Frozen)]


@pytest.mark.parametrize("said", ["''", "", "3", "[fsdp2]", "{name: fsdp2}"])
def test_a_parent_that_is_no_name_is_refused(own, said):
    """What is no text cannot be a stack's name."""
    assert "is not the name of a stack" in problem_of(own("mine", f"extends: {said}\n")).message


@pytest.mark.parametrize("path", ["nowhere/x.yaml", "../../../etc/passwd"])
def test_a_parent_that_is_no_file_is_refused(own, path):
    """A path that cannot be read, or is no YAML, is told at its line."""
    problem = problem_of(own("mine", f"extends: {path}\n"))

    assert (problem.line, problem.path) == (6, "$.extends")


def test_a_stack_that_extends_itself_is_refused(own):
    """Its own name means the shipped one; where there is none, it is told."""
    assert "mine extends itself" in problem_of(own("mine", "extends: mine\n")).message


def test_a_circle_of_parents_is_refused(own):
    """The whole circle is told, at the line that closes it."""
    one, two = own("one", "extends: two\n"), own("two", "\nextends: one\n")
    problem = problem_of(one)

    assert f"{one} extends {two} extends {one}" in problem.message
    assert (problem.file, problem.line) == (str(two), 7)


def test_a_long_chain_is_refused(own):
    """Nobody follows it, and reading it must end."""
    own("s0", "extends: fsdp2\n")
    files = [own(f"s{i}", f"extends: s{i - 1}\n") for i in range(1, 12)]

    assert "more than 8 parents" in problem_of(files[-1]).message


def test_an_unknown_knob_of_a_child_is_told_at_its_line(own):
    """A child is checked as strictly as a whole file, with a suggestion."""
    file = own("mine", "extends: fsdp2\nmemory:\n  gradient_byts: 2\n")
    problem = problem_of(file)

    assert (problem.file, problem.line, problem.path) == (str(file), 8, "$.memory.gradient_byts")
    assert "did you mean 'gradient_bytes'?" in problem.message


def test_a_misspelt_extends_is_one_problem(own):
    """Not one for every knob that the file lacks without its parent."""
    assert (
        problem_of(own("mine", "extend: fsdp2\n")).message == "unknown key 'extend': did you mean 'extends'?"
    )


def test_a_required_knob_cannot_be_taken_back(own):
    """Nothing stands in for it."""
    problem = problem_of(own("mine", "extends: fsdp2\nmemory: {parameter_bytes: null}\n"))

    assert problem.path == "$.memory.parameter_bytes"
    assert "is missing" in problem.message


def test_a_number_is_said_whole(own):
    """A value without its kind and source would stand beside those of another value."""
    with pytest.raises(SpecError) as refused:
        read(own("mine", "extends: fsdp2\nhost_launch: {value: 3 us}\n"))

    assert [problem.path for problem in refused.value.problems] == [
        "$.host_launch.kind",
        "$.host_launch.source",
    ]


def test_a_source_of_an_inherited_number_cannot_become_another(own):
    """Otherwise a number would be cited from a source that it is not from."""
    problem = problem_of(own("mine", "extends: fsdp2\nsources:\n  shared: my own runs\n"))

    assert (problem.line, problem.path) == (8, "$.sources.shared")
    assert "is already the source of block.norm_traffic, inherited from fsdp2" in problem.message


def test_sources_go_with_their_numbers(own):
    """A source whose numbers are all replaced is not inherited; one that explains switches is."""
    found = read(own("mine", "extends: fsdp2\nactivation_offload:\n")).spec.sources

    assert "activation-offload" not in found
    assert "docs" in found


def test_what_is_wrong_with_a_parent_is_told_of_the_parent(own):
    """The child has no line for it."""
    parent = own("parent", "extends: fsdp2\nblock: {kernels: many}\n")
    problem = problem_of(own("mine", "extends: parent\n"))

    assert (problem.file, problem.line, problem.path) == (str(parent), 7, "$.block.kernels")


def test_sources_that_are_no_table_are_refused(own):
    """They are told as in a whole file."""
    assert problem_of(own("mine", "extends: fsdp2\nsources: 3\n")).message == "3 is not a mapping"
