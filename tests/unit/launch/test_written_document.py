"""JSON and YAML files as values by path: aliases, merges, limits."""

import pytest

from autoplan.errors import SpecError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import read_yaml
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.interpolated_values import overridden, resolved


def values(text, **more):
    """Return the values of a file by path."""
    entries = read_yaml(LaunchFile("a.yaml", text, **more)).entries
    return {path: written.value for path, written in entries.items() if written.value is not None}


def test_aliases_and_merges_have_their_values():
    """A merged mapping gives what its place does not have, as YAML 1.1 says."""
    text = "base: &b {x: 1, y: {z: 2}}\nown:\n  x: 3\n  <<: *b\nother: *b\nfirst: {<<: [*b, {w: 4, x: 5}]}\n"

    found = values(text)

    assert (found["own.x"], found["own.y.z"], found["other.x"]) == (3, 2, 1)
    assert (found["first.x"], found["first.w"]) == (1, 4)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1, 2, 3]\n" + "".join(f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}]\n"
                                      for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        "a: &a {k: 1}\n" + "".join(f"{c}: &{c} {{{', '.join(f'k{i}: *{p}' for i in range(9))}}}\n"
                                   for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        "a: &a\n  b: *a\n",
        "a: &a\n  - *a\n",
        "a:\n  <<: 3\n",
        "? [1, 2]\n: 3\n",
    ],
)  # fmt: skip
def test_what_has_no_end_is_refused(text):
    """Aliases that multiply or contain themselves are an error, and take no time."""
    with pytest.raises(SpecError, match=r"too many values|too deeply|no mapping|structured keys"):
        values(text)


def test_references_are_followed():
    """References are absolute or relative, in texts too; what is not known stays as it is written."""
    text = """a: {x: 8, y: "${.x}", z: "${..b}", text: "n${a.x}-${b}"}
b: 3
product: ${multiply:2, ${multiply:${a.x}, ${b}}}
up: ${divide_ceil:${a.x}, ${b}}
home: ${oc.env:HOME,none}
loop: ${loop}
lost: ${c.d}
given: "???"
"""
    document = read_yaml(LaunchFile("a.yaml", text))
    file = LaunchFile("a.yaml", text, variables={"HOME": "/x"})

    found = {path: written.value for path, written in resolved(document, file).entries.items()}

    assert (found["a.y"], found["a.z"], found["a.text"]) == (8, 3, "n8-3")
    assert (found["product"], found["up"], found["home"]) == (48, 3, "/x")
    assert (found["loop"], found["lost"], found["given"]) == ("${loop}", "${c.d}", None)


def test_overrides_are_told_from_other_words():
    """Overrides set and remove values; other words are returned."""
    document = read_yaml(LaunchFile("a.yaml", "a: {b: 1, c: 2}\n"))

    rest = overridden(document, ["a.b=5", "~a.c", "++new.key=[1,2]", "--flag", "word"])

    assert rest == ["--flag", "word"]
    assert document.entries["a.b"].value == 5
    assert "a.c" not in document.entries
    assert document.entries["new.key"].value == [1, 2]


def test_a_key_that_is_called_as_a_binding_keeps_its_path():
    """A problem of a key of the file names that key, also where a binding of the table has the same name."""
    file = LaunchFile("accelerate.yaml", "kind: job\ndistributed_type: FSDP\n")
    document = read_yaml(file, interface("accelerate"))

    document.check_sections()

    assert [(problem.path, problem.line) for problem in document.problems] == [("kind", 1)]
    assert document.text("kind").value == "FSDP"


def test_what_a_key_decides_stands_in_the_table():
    """A switch or a name decides the field that its row says; a key of the same meaning counts as it."""
    text = "compile: {enabled: false}\n\nactivation_checkpointing: true\n"
    text += "distributed: {sequence_parallel: on}\n"
    document = read_yaml(LaunchFile("a.yaml", text), interface("automodel"))
    found = document.bound("recompute", "sp", "compiled", "strategy")

    assert {field: written.value for field, written in found.items()} == {
        "recompute": "full",
        "sp": True,
        "software": {"compile": False},
        "strategy": "fsdp2",
    }
    assert found["recompute"].line == 3
    assert found["strategy"].default
    assert document.choices("compiled") == {"compile": False}
