"""Edits of a YAML file of ``accelerate launch``, and of arguments with it, that change its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from autoplan.launch.configuration import LaunchFile, Written
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.document_edits import KeyEdit, changed_keys, key_edits
from autoplan.launch.frameworks.written_document import read_yaml
from autoplan.launch.target import InexpressibleError
from autoplan.schema.layout import Layout

__all__ = ["accelerate_edits_of"]

_SECTION: Final = "fsdp_config"
_STRATEGY: Final = f"{_SECTION}.fsdp_sharding_strategy"
_VERSION: Final = f"{_SECTION}.fsdp_version"
_KINDS: Final = {"FSDP": "fsdp", "DEEPSPEED": "deepspeed", "MEGATRON_LM": "megatron"}
#: FSDP1's strategies without groups, by ZeRO stage.
_STRATEGIES: Final = {0: "NO_SHARD", 2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
#: Keys of FSDP1 that FSDP2 does not have.
_FORMER: Final = (
    "fsdp_sharding_strategy",
    "fsdp_backward_prefetch",
    "fsdp_forward_prefetch",
    "fsdp_use_orig_params",
)

#: Returns the keys of a layout by the kind of section, and the arguments of the training program.
Documents = Callable[[Layout, str], tuple[Mapping[str, Any], Sequence[str]]]


def accelerate_edits_of(
    file: LaunchFile, layouts: tuple[Layout, Layout], documents: Documents
) -> tuple[FileEdit, ...]:
    """Return the edits of ``file`` that make the first of ``layouts`` the second one.

    The section stays of its kind. Raises InexpressibleError for a layout that has no keys in it.
    """
    entries = read_yaml(file).entries
    kind = _kind(entries, layouts[1])
    after, words = documents(layouts[1], kind)
    try:
        before, old_words = documents(layouts[0], kind)
    except InexpressibleError:
        before, old_words = {}, ()
    wanted = list(changed_keys(before, after)) if before else _of_layout(entries, after)
    if kind == "fsdp" and _is_first(entries):
        wanted = _of_first(wanted, layouts, after)
    return (*key_edits(entries, wanted), *_program_edits(file.arguments, old_words, words))


def _kind(entries: Mapping[str, Written], new: Layout) -> str:
    written = entries.get("distributed_type")
    name = str(written.value) if written else ""
    plain = "fsdp" if new.zero or new.tp * new.cp > 1 else "replicas"
    return _KINDS.get(name, plain)


def _of_layout(entries: Mapping[str, Written], after: Mapping[str, Any]) -> list[KeyEdit]:
    """Return the keys of a layout that follows one which has none: all in which the file differs."""
    return [
        edit
        for edit in changed_keys({}, after)
        if edit.path in entries or "." in edit.path or edit.path == "distributed_type"
    ]


def _is_first(entries: Mapping[str, Written]) -> bool:
    version = entries.get(_VERSION)
    return version is None or str(version.value) == "1"


def _of_first(
    wanted: list[KeyEdit],
    layouts: tuple[Layout, Layout],
    after: Mapping[str, Any],
) -> list[KeyEdit]:
    """Return the edits of a file of FSDP1: its strategy, or the keys of FSDP2 where it has none."""
    old, new = layouts
    groups = bool(new.dp_shard or old.dp_shard)
    if new.tp * new.cp == 1 and not groups and new.zero in _STRATEGIES:
        first_edits = [edit for edit in wanted if "reshard_after" not in edit.path and edit.path != _VERSION]
        first_edits = [edit for edit in first_edits if not edit.path.startswith("parallelism_config")]
        return (
            [*first_edits, KeyEdit(_STRATEGY, _STRATEGIES[new.zero])] if old.zero != new.zero else first_edits
        )
    removed = [KeyEdit(f"{_SECTION}.{name}", None, removed=True) for name in _FORMER]
    return [*removed, *(edit for edit in changed_keys({}, after) if "." in edit.path)]


def _program_edits(given: Sequence[str], old: Sequence[str], new: Sequence[str]) -> Iterator[FileEdit]:
    """Yield the edits of arguments of the training program, which are pairs of an option and its value."""
    before = dict(pairwise(old))
    own = {option.replace("_", "-"): value for option, value in pairwise(given) if option.startswith("--")}
    for option, value in pairwise(new):
        if option.startswith("--") and before.get(option) != value:
            entry = own.get(option.replace("_", "-"))
            yield FileEdit(f"{option} {entry}" if entry else "", f"{option} {value}")
    for option, value in before.items():
        if option.startswith("--") and option not in new:
            yield FileEdit(f"{option} {value}", "")
