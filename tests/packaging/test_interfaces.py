"""Keys of frameworks stand in their tables, ``specs/interfaces``, and nowhere else."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from autoplan.launch.bindings.interface import interface, listed_data
from autoplan.launch.frameworks.megatron.arguments import arities
from autoplan.launch.registry import TARGETS, find_target

ROOT = Path(__file__).resolve().parents[2]
TABLES = sorted(path.stem for path in (ROOT / "specs" / "interfaces").glob("*.yaml"))
CODE = sorted((ROOT / "autoplan" / "launch").rglob("*.py"))
#: Arguments of torchrun, which engines have too, and of the shell's programs.
OF_LAUNCHERS = {"--nnodes", "--node-rank", "--master-addr"}
KINDS = {"count", "size", "fraction", "switch", "text", "words"}


def keys_of(table):
    """Return the keys of a table: those of its bindings, or those that stand for another table's bindings."""
    data = interface(table).data
    keyed = [*data.get("keys", ()), *data.get("recipe_keys", ()), *data.get("python_names", ())]
    return [*interface(table).keys.values(), *keyed]


def texts_of(path):
    """Yield every text of a module that is no docstring, with its line, and those of f-strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value, node.lineno


def long_keys():
    """Return the keys of all tables that are no words of ours: arguments, and names of several parts."""
    names = {name for table in TABLES for name in interface(table).keys}
    keys = {key for table in TABLES for key in keys_of(table)}
    return {
        key for key in keys if key not in names | OF_LAUNCHERS and re.search(r"^--|\w_\w.*[_.]\w|\.\w*_", key)
    }


#: Targets that are only written, whose few names stand in a table at the top of their module.
WRITTEN_ALONE = {"litgpt.py", "torchtune.py", "unsloth.py"}


@pytest.mark.parametrize(
    "path",
    [x for x in CODE if x.name not in WRITTEN_ALONE],
    ids=lambda path: str(path.relative_to(ROOT / "autoplan" / "launch")),
)
def test_no_key_of_a_framework_stands_in_code(path):
    """What a framework calls a setting is in its table alone; code has the name of the binding."""
    keys = long_keys()
    found = [
        (token, line)
        for text, line in texts_of(path)
        for token in re.findall(r"--[a-z][\w-]+|[A-Za-z][\w.]*", text)
        if token in keys
    ]

    assert found == []


@pytest.mark.parametrize("table", TABLES)
def test_a_key_has_one_binding(table):
    """No key stands twice in a table, and no name of ours either."""
    data = interface(table).data
    bound = Counter(interface(table).keys.values())
    names = [name for group in data["bindings"].values() for name in group]

    assert [key for key, count in bound.items() if count > 1] == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize("table", TABLES)
def test_a_table_says_where_it_is_from(table):
    """A table names its framework, the version and the place that it was read in; kinds are known ones."""
    data = interface(table).data

    assert data["name"] == table
    assert {"title", "version", "source"} <= set(data)
    assert {binding.kind for binding in interface(table)} <= KINDS
    assert table not in TARGETS or find_target(table).version == data["version"]


def test_tables_on_another_one_name_its_bindings():
    """Keys of Megatron Bridge and NeMo stand for arguments that Megatron-LM's table has."""
    known = set(interface("megatron-lm").keys)
    texts = [
        text
        for table in ("megatron-bridge", "nemo")
        for text in (
            *interface(table).data["keys"].values(),
            *interface(table).data.get("recipe_keys", {}).values(),
        )
    ]

    assert texts
    assert {name for text in texts for name in text.removeprefix("not ").split(" and ")} <= known


def test_bound_keys_are_listed_ones():
    """Every argument that is bound is one that the framework's own list of arguments or keys has."""
    listed = listed_data("training-keys")
    for table in ("trainer", "axolotl"):
        written = interface(table).groups["written"].values()
        tops = {binding.key.partition(".")[0] for binding in written}
        beside = "trl" if table == "trainer" else f"{table}.plugins"
        assert tops <= {*listed[table], *listed[beside]}
    assert set(interface("megatron-lm").keys.values()) <= set(arities())
    for table in ("deepspeed", "accelerate", "nanotron", "llm-foundry"):
        data = interface(table).data
        top = data["sections"]["top"]
        known = set(top if isinstance(top, list) else top["keys"])
        keys = {key for key in interface(table).keys.values() if not key.startswith("--")}
        assert {key.partition(".")[0] for key in keys} <= known
