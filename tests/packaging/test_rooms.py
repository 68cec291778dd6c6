"""The rooms of the house: small folders, and one name for one thing."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "autoplan"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__"))
FOLDERS = sorted({path.parent for path in [*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]})
UNITS = ROOT / "tests" / "unit"


def named(path):
    """Return a path as tests are called by it."""
    return path.relative_to(ROOT).as_posix()


#: What the parts of an answer are called, the same in each folder of ``answers``.
PARTS = {"ask", "blocks", "command", "page", "serving", "serving_blocks", "value"}


def test_no_module_name_stands_twice():
    """Whoever looks for a module by name finds one; the parts of answers are called alike."""
    found = defaultdict(list)
    for path in MODULES:
        if path.parent.parent != PACKAGE / "answers" or path.stem not in PARTS:
            found[path.stem].append(named(path))

    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_class_name_has_two_meanings():
    """A class is known by its name alone."""
    found = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(named(path))

    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_module_hides_a_function_of_its_package():
    """``autoplan.sweep`` stays a function: no folder or module is called like what its package gives on."""
    hidden = []
    for path in PACKAGE.rglob("__init__.py"):
        below = {
            p.stem if p.suffix else p.name for p in path.parent.iterdir() if p.suffix == ".py" or p.is_dir()
        }
        public = [
            name.value
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
            for name in node.value.elts
        ]
        hidden += [f"{named(path)}: {name}" for name in public if name in below]

    assert hidden == []


def test_unit_tests_mirror_the_package():
    """The unit tests of a room are in the folder of its name."""
    folders = {path.parent.relative_to(UNITS) for path in UNITS.rglob("*.py")}

    assert sorted(str(folder) for folder in folders if not (PACKAGE / folder).is_dir()) == []


def test_tests_do_not_import_tests():
    """What two of them use stands in ``tests/support``; ``test_readme`` is a program as well."""
    modules = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    imported = re.compile(r"^\s*(?:from|import)\s+(tests\.[\w.]*\btest_\w+)", re.MULTILINE)
    found = {named(path): imported.findall(text) for path, text in modules.items() if imported.search(text)}

    assert found == {"tests/frameworks/test_tutorial.py": ["tests.cli.test_readme"]}
