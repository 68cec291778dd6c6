"""The wheel holds the package and its catalogues, and claims no other name."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import autoplan

ROOT = Path(__file__).resolve().parents[2]
CATALOGUES = ("costmodels", "hardware", "specs")


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Return the names of the files in a wheel built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    # The build backend of this environment: no other environment, so no network.
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    done = subprocess.run(build, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def files_of(folder, pattern="*"):
    """Return the files below a folder of the checkout, as paths inside it."""
    found = (ROOT / folder).rglob(pattern)
    return {path.relative_to(ROOT / folder).as_posix() for path in found if path.is_file()}


@pytest.mark.parametrize("catalogue", CATALOGUES)
def test_a_catalogue_is_shipped_inside_the_package(names, catalogue):
    """Every file of a catalogue travels, and nothing that is not in the checkout."""
    prefix = f"autoplan/_shipped/{catalogue}/"
    shipped = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    assert "README.md" in shipped
    assert any(name.endswith(".yaml") for name in shipped)
    assert shipped == files_of(catalogue)


def test_the_shipped_catalogues_hold_no_python(names):
    """Nothing that is shipped as data can be imported."""
    assert [name for name in names if "/_shipped/" in name and name.endswith(".py")] == []


def test_the_code_and_its_type_marker_are_shipped(names):
    """Every module of the package travels, with the marker for type checkers."""
    wanted = {f"autoplan/{name}" for name in files_of("autoplan", "*.py") | {"py.typed"}}

    assert wanted - names == set()


def test_nothing_else_is_at_the_top(names):
    """Installing autoplan claims one import name, so it can overwrite nobody's files."""
    tops = {name.partition("/")[0] for name in names}

    assert tops == {"autoplan", f"autoplan-{autoplan.__version__}.dist-info"}
