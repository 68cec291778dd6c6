"""The recorded run: what the docs show, with the machine and the versions that it was measured on."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autoplan import __version__

__all__ = ["PEERS", "RECORDED", "load_peers", "load_record", "machine", "save_record"]

RECORDED = Path(__file__).parent / "recorded.json"

#: What other programs take.
PEERS = Path(__file__).parent / "peers.yaml"


def save_record(on: dict[str, Any], measured: dict[str, Any], path: Path) -> None:
    """Write what was measured ``on`` a machine."""
    record = {"on": on, **measured}
    path.write_text(json.dumps(_rounded(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def load_record(path: Path = RECORDED) -> dict[str, Any]:
    """Return the record; raises ValueError or OSError where there is none."""
    record = json.loads(path.read_text(encoding="utf-8"))
    needed = {"on", "solver_import", "solver_import_with_pandas", "rows", "pricing"}
    if not (isinstance(record, dict) and needed <= set(record)):
        raise ValueError(f"{path} is no record of the speed benchmark; write one with --record")
    return record


def load_peers() -> list[dict[str, Any]]:
    """Return what other programs take: program, version, question, devices, layouts, seconds, kind, note."""
    import yaml

    found: list[dict[str, Any]] = yaml.safe_load(PEERS.read_text(encoding="utf-8"))
    return found


def machine() -> dict[str, Any]:
    """Return the day, this machine, and the versions of what a run uses."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "autoplan": __version__,
        "ortools": version("ortools"),
        "numpy": version("numpy"),
    }


def _processor() -> str:
    """Return the processor's name as Linux tells it, elsewhere as Python does."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _rounded(found: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return ``found`` with every number that is not whole cut to four digits: more is noise."""
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_rounded(value) for value in found]
    return float(f"{found:.4g}") if isinstance(found, float) else found
