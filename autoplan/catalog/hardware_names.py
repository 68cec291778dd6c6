"""Nodes that are meant by what people call hardware, such as ``2x4090``, and machines that providers rent."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from autoplan.catalog.derived_nodes import COUNTS, derived_name
from autoplan.catalog.roots import entry_names, entry_text, names_like, shipped_text
from autoplan.schema.hardware import MachinesSpec, NodeSpec, RentedMachine
from autoplan.schema.yaml.loader import load_model

_FILE: Final = ("hardware", "machines.yaml")
#: Key of their file in the sources of a node.
_SOURCE: Final = "machines"


@cache
def rented_machines() -> Mapping[str, RentedMachine]:
    """Return the machines that providers rent, by names such as ``aws-g5-12xlarge``."""
    return _listed().machines


def as_rented(derived: NodeSpec, name: str) -> NodeSpec:
    """Return ``derived``, which has the devices of the machine ``name``, as that machine."""
    memory = derived.host.memory.model_copy(
        update={
            "value": rented_machines()[name].host_memory,
            "kind": "guess",
            "source": _SOURCE,
            "note": None,
        }
    )
    fields = {
        "name": name,
        "title": f"{derived.title} ({name})",
        "host": derived.host.model_copy(update={"memory": memory}),
        "sources": {**derived.sources, _SOURCE: _listed().source},
        "derived_from": derived.derived_from or derived.name,
    }
    return derived.model_copy(update=fields)


@cache
def _listed() -> MachinesSpec:
    return load_model(shipped_text(*_FILE), MachinesSpec, name="/".join(_FILE))


#: How many devices, before their name or after it: 2x4090, 8 x H100, 8*a100, A100x8, H100:8.
_BEFORE: Final = re.compile(r"([1-9][0-9]{0,3}) *[x*\u00d7][ _-]*(.+)")
_AFTER: Final = re.compile(r"(.*[0-9 _-])(?:[x*\u00d7]|:) *([1-9][0-9]?)")
#: Words around the name of a device that no entry has.
_ASIDE: Final = frozenset({"nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct", "intel"})
#: NVIDIA's system and the board in it, whose names people take for each other.
_SYSTEM: Final = re.compile(r"^[dh]gx-?")
#: Words of a machine's name that its provider's pages leave out, or write before it.
_PROVIDERS: Final = frozenset({"aws", "azure", "gcp", "oci", "standard"})
#: The most devices that a message names, and nodes that a file describes.
_MOST_DEVICES: Final = 3
_MOST_NODES: Final = 4


def nodes_like(name: str) -> list[str]:
    """Return names of nodes of the number of devices that ``name`` says, such as ``4x-h100``; else none.

    First those whose device most nodes of the catalogue have.

    >>> nodes_like("2x 4090"), nodes_like("8xA100-PCIe")
    (['2x-rtx-4090', '2x-rtx-4090-48gb'], ['8x-a100-pcie-80gb', '8x-a100-pcie-40gb'])
    """
    count, part = counted_devices(name)
    if count is None:
        return []
    most = min(count, COUNTS[-1])
    return [derived_name(most, d) for d in _usual_first(devices_called(part)) or _spelt_like(part)]


def machine_called(words: str) -> str | None:
    """Return the node or cluster whose name has these words, but for its provider and DGX for HGX.

    >>> machine_called("p5.48xlarge"), machine_called("Standard_ND96isr_H100_v5"), machine_called("DGX H200")
    ('aws-p5-48xlarge', 'azure-nd96isr-h100-v5', 'hgx-h200')
    >>> machine_called("g5.12xlarge"), machine_called("1x-dgx-spark"), machine_called("h200")
    ('aws-g5-12xlarge', 'dgx-spark', None)
    """
    wanted = _machine(words.casefold().removeprefix("1x-"))
    names = {*entry_names("node"), *entry_names("cluster"), *rented_machines()}
    machines = [name for name in names if _machine(name) == wanted]
    return machines[0] if len(machines) == 1 else None


def _machine(name: str) -> str:
    words = "-".join(word for word in _words(name) if word not in _PROVIDERS)
    return _SYSTEM.sub("hgx-", words)


def devices_called(words: str) -> list[str]:
    """Return the devices of the catalogue that ``words`` may stand for.

    >>> devices_called("NVIDIA H100 80GB"), devices_called("rtx4090"), devices_called("A10")
    (['h100-pcie-80gb', 'h100-sxm5-80gb'], ['rtx-4090'], ['a10'])
    """
    wanted = [word for word in _words(words) if word not in _ASIDE]
    pieces = [_pieces(word) for word in wanted]
    names = entry_names("device")
    same = [name for name in names if [*_pieces(name)] == [piece for word in pieces for piece in word]]
    return same or [name for name in names if wanted and all(_has(name, word) for word in pieces)]


def unknown_hardware(reference: str) -> str:
    """Return the sentence on an unknown hardware name, with names that work."""
    sentence = f"no hardware is called {reference!r}: "
    of_file = "your own is named by a YAML file, such as ./node.yaml"
    count, part = counted_devices(reference)
    if count and (machine := machine_called(part)):
        return f"{sentence}did you mean {machine} with --nodes {count}? ({of_file})"
    near = nodes_like(reference)
    if near:
        several = f", with --devices {count} for several nodes" if (count or 0) > COUNTS[-1] else ""
        return f"{sentence}did you mean {_in_words(near[:_MOST_DEVICES])}{several}? ({of_file})"
    devices = _usual_first(devices_called(part))[:_MOST_DEVICES]
    if devices:
        counts = ", ".join(map(str, COUNTS[:-1]))
        named = _in_words([f"{derived_name(1, d)} to {derived_name(COUNTS[-1], d)}" for d in devices])
        described = ", ".join(sorted(sorted(_described(devices), key=len)[:_MOST_NODES]))
        also = f"; the catalogue also has {described}" if described else ""
        return f"{sentence}a node has {counts} or {COUNTS[-1]} of a device: {named}{also} ({of_file})"
    names = [*entry_names("node"), *entry_names("cluster")]
    near = [name for name in names if _SYSTEM.sub("", name) == _SYSTEM.sub("", reference.casefold())]
    near = near or names_like(reference, names)
    hint = f"did you mean {_in_words(near)}?" if near else "see `autoplan catalog list node`"
    return f"{sentence}{hint} ({of_file})"


def _usual_first(devices: list[str]) -> list[str]:
    """Return ``devices``, first those that most nodes have."""
    return sorted(devices, key=lambda device: -len(_described([device])))


def _described(devices: list[str]) -> list[str]:
    """Return the nodes that a file describes with one of ``devices``."""
    held = re.compile(rf"^device: *(?:{'|'.join(map(re.escape, devices))}) *$", re.MULTILINE)
    return [name for name in entry_names("node") if held.search(entry_text("node", name)[0])]


def counted_devices(name: str) -> tuple[int | None, str]:
    """Return the number of devices that ``name`` says, or None, and the rest of it.

    >>> counted_devices("2x-rtx4090"), counted_devices("8 x A100"), counted_devices("dgx-h100")
    ((2, 'rtx4090'), (8, 'a100'), (None, 'dgx-h100'))
    """
    word = name.casefold().strip()
    before = _BEFORE.fullmatch(word)
    if before:
        return int(before[1]), before[2]
    after = _AFTER.fullmatch(word)
    return (int(after[2]), after[1].rstrip()) if after and len(word) <= 100 else (None, word)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.casefold()[:100]) if word]


def _pieces(text: str) -> tuple[str, ...]:
    """Return the runs of letters and of digits of ``text``.

    >>> _pieces("rtx-4090"), _pieces("h100")
    (('rtx', '4090'), ('h', '100'))
    """
    return tuple(re.findall(r"[a-z]+|[0-9]+", text.casefold()))


def _has(name: str, word: tuple[str, ...]) -> bool:
    """Return whether ``word`` begins where a word of a device's ``name`` does, in whole runs."""
    parts = name.split("-")
    tails = [_pieces("-".join(parts[at:])) for at in range(len(parts))]
    return any(tail[: len(word)] == word for tail in tails)


def _spelt_like(part: str) -> list[str]:
    return difflib.get_close_matches(part, entry_names("device"), 3, 0.75)


def _in_words(words: list[str]) -> str:
    return " or ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)
