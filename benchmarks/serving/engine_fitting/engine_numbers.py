"""Writing fitted numbers into the files of engines, to the ``step`` of each version."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from autoplan.catalog.entries import engine
from benchmarks.serving.engine_fitting.engine_fits import EngineFit
from benchmarks.serving.engine_fitting.step_responses import NUMBERS

__all__ = ["FOLDER", "family_of", "fitted_text", "write_fits"]

FOLDER: Final = Path(__file__).parents[3] / "costmodels" / "engines"
_VERSION: Final = re.compile(r'^  "(?P<version>[^"]+)":')
_NUMBER: Final = re.compile(rf"^ +(?P<name>{'|'.join(NUMBERS)}): \{{value: (?P<value>[^,]+)")


def family_of(name: str) -> str:
    """Return the versions that ``name`` shares a prior with: those of its engine whose steps run alike.

    Alike are steps in the same graphs, with attention of decodes by the same kind of kernel.

    >>> family_of("tensorrt-llm@0.9"), family_of("tensorrt-llm@1.0")
    ('tensorrt-llm, graphs: none', 'tensorrt-llm, graphs: decodes')
    """
    known = engine(name, Path())
    step = known.facts.step
    if step is None:
        return f"{known.name}, graphs: none"
    by_head = ", attention by head" if step.decode_attention == "by head" else ""
    return f"{known.name}, graphs: {step.graphs}{by_head}"


def write_fits(fits: Iterable[EngineFit], folder: Path = FOLDER) -> list[Path]:
    """Write the numbers of ``fits`` to the files of their engines and return these.

    Every ``step`` changes: by the fit of its version, else by that of its family.
    """
    known, written = list(fits), []
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        changed = fitted_text(text, path.stem, known)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            written.append(path)
    return written


def fitted_text(text: str, name: str, fits: Iterable[EngineFit]) -> str:
    """Return the text of an engine's file with the fitted numbers of each ``step``."""
    known = list(fits)
    own = {fit.engine: fit.numbers for fit in known if fit.engine != "family"}
    common = {fit.family: fit.numbers for fit in known if fit.engine == "family"}
    lines = text.splitlines()
    # The first section is that of the oldest version.
    version = next((match["version"] for line in lines if (match := _VERSION.match(line))), "")
    changed = []
    for line in lines:
        if (match := _VERSION.match(line)) is not None:
            version = match["version"]
        full = f"{name}@{version}"
        changed.append(_with_number(line, own.get(full) or common.get(family_of(full), {})))
    return "\n".join(changed) + "\n"


def _with_number(line: str, numbers: Mapping[str, float]) -> str:
    """Return a line with the fitted value of its number, in three digits; other lines as they are."""
    match = _NUMBER.match(line)
    if match is None or match["name"] not in numbers:
        return line
    name, value = match["name"], numbers[match["name"]]
    text = f"{value:.3g}" if name == "scale" else f"{float(f'{value * 1e6:.3g}'):g} us"
    return line[: match.start("value")] + text + line[match.end("value") :]
