"""The faults that `make mutants` plants fit into the package as it is, and are the ones asked for."""

import ast

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.planted_faults import FAULTS, TESTS, planted


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.means)
def test_a_fault_fits_into_its_file(fault):
    """Its text stands there once, the result is another program, and it is Python."""
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    changed = planted(fault, text)

    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_there_are_forty_faults_or_more_in_every_room():
    """Each room of the cost model that prices seconds has some, and no fault stands twice."""
    rooms = {fault.file.split("/")[2] for fault in FAULTS if fault.file.startswith("autoplan/costs/")}

    assert len({(fault.file, fault.becomes, fault.was) for fault in FAULTS}) == len(FAULTS) >= 40
    assert {"device", "network", "layer", "pipeline", "memory", "stage", "serving", "predict.py"} <= rooms


def test_the_tests_that_must_notice_are_there():
    """A path that is gone would be an error of every run."""
    assert all((ROOT / path).exists() for path in TESTS)


def test_a_fault_that_does_not_fit_is_refused():
    """Its text may be gone, or stand in several places."""
    with pytest.raises(ValueError, match="stands 0 times"):
        planted(FAULTS[0], "")
    with pytest.raises(ValueError, match="stands 2 times"):
        planted(FAULTS[0], 2 * FAULTS[0].was)
