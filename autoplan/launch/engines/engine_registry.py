"""What engines can be emitted for, by name."""

from __future__ import annotations

import difflib
from typing import Final

from autoplan.errors import UnsupportedError
from autoplan.launch.engines.serve_manifests import MANIFEST_TARGETS
from autoplan.launch.engines.serve_script import SCRIPT_TARGETS
from autoplan.launch.engines.served_run import EngineTarget

ENGINE_TARGETS: Final = {target.name: target for target in (*SCRIPT_TARGETS, *MANIFEST_TARGETS)}


def engine_target(name: str) -> EngineTarget:
    """Return the target called ``name``; raises UnsupportedError with the known names for any other."""
    if name not in ENGINE_TARGETS:
        near = difflib.get_close_matches(name, ENGINE_TARGETS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(ENGINE_TARGETS)}"
        raise UnsupportedError(f"no target of engines is called {name!r}: {hint}")
    return ENGINE_TARGETS[name]
