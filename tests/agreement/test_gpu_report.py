"""The report of a GPU writes its predictions first, and nobody changes them after."""

import json
import subprocess
import sys

import pytest

from examples.gpu_report.__main__ import main
from examples.gpu_report.cases import CASES


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A folder with the predictions of one RTX 4090."""
    folder = tmp_path_factory.mktemp("report")
    assert main(["--hardware", "1x-rtx-4090", "--output", str(folder), "--predict-only"]) == 0
    return folder


def test_predictions_are_of_three_models_under_three_stacks(report):
    """Each with its interval and bytes; layers with heads that tensor cores cannot read, too."""
    told = json.loads((report / "predictions.json").read_text(encoding="utf-8"))

    assert told["steps"].keys() == {case.name for case in CASES}
    assert len({case.model for case in CASES}) == len({case.stack for case in CASES}) == 3
    steps = told["steps"].values()
    assert all(x["step_seconds_low"] < x["step_seconds"] < x["step_seconds_high"] for x in steps)
    assert {x["fits"] for x in steps} == {True, False}
    unaligned = {name: x for name, x in told["layers"].items() if "108" in name}
    assert len(unaligned) == 3
    for name, x in unaligned.items():
        plain = told["layers"][name.partition(",")[0]]
        assert x["eager forward"] > plain["eager forward"]


def test_predictions_come_without_torch_and_are_not_written_again(report, capsys):
    """The same ones stay as they are; those of another device are refused."""
    path = report / "predictions.json"
    before = path.read_bytes()

    # Other tests of this process may have imported torch.
    script = "import sys; from examples.gpu_report.__main__ import main;"
    script += "print(main(sys.argv[1:]), 'torch' in sys.modules)"
    again = ["--hardware", "1x-rtx-4090", "--output", str(report), "--predict-only"]
    run = subprocess.run([sys.executable, "-c", script, *again], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "0 False"
    assert main(["--hardware", "1x-rtx-3090", "--output", str(report), "--predict-only"]) == 2
    assert "name another folder" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_hardware_that_nobody_knows_is_said_so(tmp_path, capsys):
    """An error of the user, not a traceback."""
    assert main(["--hardware", "1x-abacus", "--output", str(tmp_path), "--predict-only"]) == 2
    assert "1x-abacus" in capsys.readouterr().err
