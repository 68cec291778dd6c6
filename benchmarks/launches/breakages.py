"""Public launch files, each broken in one way: a reader has to refuse them with their file and line.

A breakage is a substitution in the text of a file: a degree that divides nothing, two precisions, a misspelt
key of parallelism, a value of another type, a bracket that is not closed, a batch that ranks do not divide;
or a file that it names is missing. Of every framework the first files that a breakage fits are broken.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from autoplan.answers.configure.ask import read
from autoplan.errors import AutoplanError

__all__ = ["Variant", "broken_files", "lines_of_variants"]

#: Most files of a framework that one breakage is made of.
_MOST: Final = 2
_LINE: Final = r"(?m)^(?P<head>(?!\s*#).*?)"
_TABLE: Final = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
#: What a file has to have, by its values, for a breakage to be one.
_NEEDS: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "batch that ranks do not divide": lambda values: values.get("dp", 1) > 1,
    "sequence that ranks do not divide": lambda values: bool(values.get("sp")) or values.get("cp", 1) > 1,
    "expert degree divides nothing": lambda values: values.get("ep", 1) > 1,
}
#: Files in which a first match stands in a branch of the script that is not taken.
_UNTAKEN: Final = (
    "pretrain_gpt_103b.sbatch",
    "pretrain_llama2_distributed.sh",
    "qwen2_5/sft_conv.sh",
    "llamafactory-lora-vllm/serve/serve.sh",
)
#: A breakage of keys alone: a shell reads its text as a command.
_BRACKET: Final = "bracket that is not closed"
#: Fields that are open, or the file refused, where a file that it names is missing.
_NAMED: Final = ("zero", "devices", "adp")


@dataclass(frozen=True, slots=True)
class Variant:
    """A broken file: how it is broken, and what came of it: refused with a line, refused, open, or read."""

    file: str
    framework: str
    breakage: str
    kind: str
    message: str


def broken_files(files: Iterable[tuple[Mapping[str, Any], Mapping[str, str]]]) -> Iterator[Variant]:
    """Yield what comes of the broken variants of files, each an entry and the texts of its files by path."""
    used: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, (entry, texts) in enumerate(files):
            if "refused" in entry:
                continue
            for breakage, changed in _variants(entry, texts):
                key = (breakage, entry["framework"])
                if used[key] < _MOST:
                    used[key] += 1
                    yield _tried(entry, breakage, changed, Path(folder) / f"{number}-{sum(used.values())}")


def _variants(entry: Mapping[str, Any], texts: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the breakages that fit a file, with the texts of its files."""
    text = texts[entry["path"]]
    for breakage, row in _TABLE["breakages"].items():
        pattern, put = row["pattern"], row["put"]
        if pattern.startswith("LINE"):
            pattern, put = pattern.replace("LINE", _LINE, 1), rf"\g<head>{put}"
        changed, count = re.subn(pattern, put, text, count=1)
        needed = _NEEDS.get(breakage, bool)(entry["values"])
        needed = needed and not (breakage == _BRACKET and entry["path"].endswith(".sh"))
        place = f"{entry['repository']}/{entry['path']}"
        if count and changed != text and needed and not place.endswith(_UNTAKEN):
            yield breakage, {**texts, entry["path"]: changed}
    if entry.get("beside"):
        yield "a file that it names is missing", {entry["path"]: text}


def _tried(entry: Mapping[str, Any], breakage: str, texts: Mapping[str, str], folder: Path) -> Variant:
    for place, text in texts.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    name = f"{entry['repository']}/{entry['path']}"
    path = folder / entry["path"]
    try:
        found = read(path, devices=entry.get("devices"), variables=dict(entry.get("set", {})))
    except AutoplanError as error:
        message = str(error).replace(f"{folder}/", "")
        kind = "refused with line" if re.search(r":\d+: ", message) else "refused"
        return Variant(name, entry["framework"], breakage, kind, message[:200])
    row = _TABLE["breakages"].get(breakage, {})
    wanted = (row["opens"],) if "opens" in row else () if row else _NAMED
    opened = any(field in found.unspecified for field in wanted)
    return Variant(name, entry["framework"], breakage, "open" if opened else "read", "")


def lines_of_variants(variants: Iterable[Variant]) -> Iterator[str]:
    """Yield the outcomes by breakage, and every variant that is not refused with its line."""
    kinds = ("refused with line", "refused", "open", "read")
    listed = list(variants)
    yield f"{'breakage':<36}" + "".join(f"{kind:>19}" for kind in kinds)
    for name in (*dict.fromkeys(variant.breakage for variant in listed), ""):
        counts = Counter(variant.kind for variant in listed if name in {variant.breakage, ""})
        yield f"{name or 'all':<36}" + "".join(f"{counts[kind]:>19}" for kind in kinds)
    good = sum(variant.kind in {"refused with line", "open"} for variant in listed)
    yield f"{good} of {len(listed)} ({good / (len(listed) or 1):.1%}) are refused with a line, or left open"
    for variant in listed:
        if variant.kind not in {"refused with line", "open"}:
            yield f"{variant.kind:<9}{variant.file}: {variant.breakage}  {variant.message}"
