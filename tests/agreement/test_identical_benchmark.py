"""The frozen cases ask what they say, and a changed answer is seen."""

import re

import pytest

from autoplan.catalog import entry_names
from autoplan.launch.engines.engine_targets import ENGINE_TARGETS
from autoplan.launch.registry import target_names
from benchmarks.identical.__main__ import main
from benchmarks.identical.cases import cases

#: Quick ones: a refusal, a product, and what was emitted read back.
FEW = "^gemm-0|^emit-megatron-lm-[01r]"


def test_cases_have_every_shipped_job_and_target_once():
    """A job or target that is added is compared from then on."""
    names = [case.name for case in cases()]
    words = [case.arguments for case in cases()]

    assert len(set(names)) == len(names)
    assert {f"plan-{job}" for kind in ("job", "serving") for job in entry_names(kind)} <= set(names)
    assert {w[3] for w in words if w[0] == "emit"} == {*target_names(emitted=True), *ENGINE_TARGETS}
    assert {"plan", "evaluate", "explain", "compare", "gemm", "emit", "read"} <= {w[0] for w in words}


def test_a_changed_answer_is_seen(tmp_path, capsys):
    """The same program answers alike; a changed, a missing and a new answer are named."""
    assert main(["--only", FEW, "--write", str(tmp_path)]) == 0
    assert main(["--only", FEW, "--against", str(tmp_path)]) == 0
    first, again = re.findall(r"^cases: (\d+)\nsha256: (\w+)$", capsys.readouterr().out, re.MULTILINE)
    assert first == again
    assert int(first[0]) == len(list(tmp_path.glob("*.txt"))) > 4

    changed = tmp_path / "gemm-0.txt"
    changed.write_text(changed.read_text(encoding="utf-8").replace("8192", "8193", 1), encoding="utf-8")
    (tmp_path / "emit-megatron-lm-0.txt").rename(tmp_path / "gemm-0-gone.txt")
    assert main(["--only", FEW, "--against", str(tmp_path)]) == 1

    printed = capsys.readouterr().out
    assert "identical: False" in printed
    assert re.search(r"^gemm-0:\n  -.*8193.*\n  \+.*8192", printed, re.MULTILINE)
    assert "emit-megatron-lm-0:\n  only now" in printed
    assert "gemm-0-gone:\n  only before" in printed


def test_an_empty_folder_is_no_answer(tmp_path):
    """Nothing to compare with is an error, and not agreement."""
    with pytest.raises(SystemExit, match="2"):
        main(["--against", str(tmp_path)])
