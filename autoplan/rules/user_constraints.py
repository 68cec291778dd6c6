"""Users' rules for candidates and layouts, and what a search chooses from where a job leaves it open.

Rules say which layouts can run, and ``evaluate`` prices these. The search lists fewer: its menus end, and
some keys of ``search`` are narrow unless the job widens them. What is left out is said here, in words for the
certificate, beside the menus themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Candidates, Ints, distinct_rows
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.schema.job import Job, RuleSpec
from autoplan.schema.layout import LAYOUT_KEYS, Layout
from autoplan.schema.recompute import MODES, USUAL_MODES, RecomputeMode, listed_modes, missing_part
from autoplan.schema.stage_layers import counts_embedding_and_loss, even_stages
from autoplan.schema.user_rules.expression import (
    Each,
    Entry,
    Known,
    Name,
    Node,
    Over,
    Place,
    Uniform,
    Value,
    decided,
    left_of,
)


@dataclass(frozen=True, slots=True)
class UserRule:
    """One rule of the user: its sentence and its relation.

    ``located`` is the sentence with the line in the job file, if known.
    """

    sentence: str
    relation: Node
    located: str


def user_rules_of(job: Job) -> list[UserRule]:
    """Return the rules of ``job`` that its file has, then those of its program, each with its sentence."""
    rules = []
    for i, rule in enumerate(job.rules):
        line = f" (line {job.rule_lines[i]})" if job.rule_lines else ""
        sentences = (_sentence(place, rule) for place in (f"rules[{i}]", f"rules[{i}]{line}"))
        rules.append(UserRule(next(sentences), rule.relation, next(sentences)))
    if job.program is not None:
        for rule in job.program.rules:
            sentence = _sentence(job.program.words, rule)
            rules.append(UserRule(sentence, rule.relation, sentence))
    return rules


def without_rules(job: Job, dropped: Collection[int]) -> Job:
    """Return ``job`` without the user's rules at these indices."""
    remaining = [i for i in range(len(job.rules)) if i not in dropped]
    lines = tuple(job.rule_lines[i] for i in remaining) if job.rule_lines else ()
    choices = tuple(without_rules(choice, dropped) for choice in job.choices)
    return replace(job, rules=tuple(job.rules[i] for i in remaining), rule_lines=lines, choices=choices)


def _sentence(place: str, rule: RuleSpec) -> str:
    sentence = f"{place}: {rule.rule}"
    return f"{rule.because.rstrip('. ')} ({sentence})" if rule.because else sentence


def recompute_menu(job: Job) -> tuple[RecomputeMode, ...]:
    """Return the recompute modes that layers may use, in the order in which the job names them.

    Modes that the stack lacks, and those of parts that the model lacks, are left out; where none is left, no
    layer is recomputed.
    """
    wish, has = job.search.recompute, job.stack.rules.recompute
    modes = USUAL_MODES if wish == "any" else wish if isinstance(wish, tuple) else (wish,)
    return tuple(mode for mode in modes if mode in has and lacked_part(job, mode) is None) or ("none",)


def lacked_part(job: Job, mode: str) -> str | None:
    """Return the part that recompute ``mode`` is of and the model lacks; None where it lacks none."""
    model = job.model
    return missing_part(mode, experts=model.moe is not None, latents=model.mla is not None)


def even_only(job: Job) -> bool:
    """Return whether only even stages are allowed."""
    return job.search.stages == "even" or not job.stack.rules.uneven_stages


def embedding_and_loss_counted(job: Job, pp: int, vpp: int) -> bool:
    """Return whether embedding and loss are counted as layers of the pipeline split, which is unique then.

    Only for models with one layer type (Megatron's ``account_for_embedding_in_pipeline_split``).
    """
    if not (job.stack.rules.uneven_chunks and counts_embedding_and_loss(job.model.layers, pp, vpp)):
        return False
    return not layer_types_of(job.model, job.workload.sequence_length).several


def what_is_left(job: Job, relation: Node, candidates: Candidates) -> list[Node]:
    """Return the remainder of ``relation`` for each candidate; equal ones of equal degrees are one object.

    See ``remainders_of``.
    """
    remainders, numbers = remainders_of(job, relation, candidates)
    return [remainders[number] for number in numbers.tolist()]


def remainders_of(job: Job, relation: Node, candidates: Candidates) -> tuple[list[Node], Ints]:
    """Return what remains of ``relation`` with the degrees of candidates substituted, and which is whose [C].

    TRUE or FALSE if the degrees decide it, else a relation between layers and recompute of the stages. The
    layers of a stage are known for pp = 1, and for even stages.
    """
    pp, names = candidates.pp, names_in(relation)
    columns = _columns(job, candidates, names)
    # Layers of stages are the same for all where the relation is not about stages.
    of_stages = _is_of_stages(relation)
    vpp = candidates.vpp if of_stages else np.zeros_like(candidates.vpp)
    first, numbers = distinct_rows([vpp, *(column.codes for column in columns.values())])
    fixed = [(name, value) for name, value in (_job_names(job) | {"pp": pp}).items() if name in names]
    modes, virtual = recompute_menu(job) if of_stages else None, vpp[first].tolist()
    splits = {v: _only_split(job, pp, v) if of_stages else () for v in set(virtual)}
    rows = zip(virtual, *(x.at(first) for x in columns.values()), strict=True)
    remainders = [
        _remainder(relation, (*fixed, *zip(columns, values, strict=True)), pp, modes, splits[v])
        for v, *values in rows
    ]
    return remainders, numbers


@lru_cache(maxsize=2**14)
def _remainder(
    relation: Node,
    names: tuple[tuple[str, Value], ...],
    stages: int,
    modes: tuple[RecomputeMode, ...] | None,
    split: tuple[int, ...],
) -> Node:
    # Candidates are asked for several times, and programs share rules.
    counts: dict[Place, int] = {("layers", i): n for i, n in enumerate(split)}
    if modes is not None:
        counts |= without_layers(modes, stages)
    return left_of(relation, Known(dict(names), stages, counts))


def breaks(job: Job, relation: Node, layout: Layout) -> bool:
    """Return whether ``layout`` breaks ``relation``."""
    (names,) = names_of(job, Candidates.of([layout]))
    counts = {"layers": layout.layers} | {mode.name: layout.counts(mode.name) for mode in MODES}
    entries = {(name, i): n for name, stages in counts.items() for i, n in enumerate(stages)}
    return not decided(relation, Known(names, layout.pp, entries))


def names_of(job: Job, candidates: Candidates) -> list[dict[str, Value]]:
    """Return the values of all names of users' rules, for each candidate."""
    fixed, columns = _job_names(job) | {"pp": candidates.pp}, _columns(job, candidates, _COLUMNS.keys())
    values = (column.at(np.arange(len(candidates))) for column in columns.values())
    return [fixed | dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


@lru_cache(maxsize=256)
def names_in(relation: Node) -> frozenset[str]:
    """Return the names that ``relation`` uses."""
    if isinstance(relation, Name):
        return frozenset({relation.name})
    return frozenset(name for part in relation.below() for name in names_in(part))


@lru_cache(maxsize=256)
def _is_of_stages(relation: Node) -> bool:
    """Return whether ``relation`` is about layers or recompute of stages."""
    return isinstance(relation, Each | Entry | Over | Uniform) or any(map(_is_of_stages, relation.below()))


@dataclass(frozen=True, slots=True)
class _Column:
    """A name of users' rules for each candidate: numbers, or indices of ``words``."""

    codes: Ints
    words: Sequence[str] | None = None

    def at(self, index: Ints) -> list[Value]:
        """Return the values at ``index``."""
        codes: list[Value] = self.codes[index].tolist()
        return codes if self.words is None else [self.words[code] for code in self.codes[index].tolist()]


#: Values of rules' names that are not a column of candidates as it is.
_DERIVED: Final[Mapping[str, Callable[[Job, Candidates], Ints]]] = {
    "dp_shard": lambda _, c: np.where(c.dp_shard > 0, c.dp_shard, c.dp * c.cp),
    "microbatches": lambda job, c: job.workload.global_batch_size // (c.dp * c.microbatch),
}
#: The names in which candidates of one pipeline depth differ: their column, and the words that it indexes.
_COLUMNS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    key.name: (key.column, key.words[::-1] if key.kind == "switch" else key.words)
    for key in LAYOUT_KEYS
    if key.column
} | {"microbatches": ("", ())}


def _columns(job: Job, candidates: Candidates, names: Collection[str]) -> dict[str, _Column]:
    """Return the values of those of ``names`` in which candidates of one pipeline depth differ."""
    return {
        name: _Column(
            _DERIVED[name](job, candidates) if name in _DERIVED else getattr(candidates, field), words or None
        )
        for name, (field, words) in _COLUMNS.items()
        if name in names
    }


def _job_names(job: Job) -> dict[str, Value]:
    model, cluster, work = job.model, job.cluster, job.workload
    return {
        "devices": cluster.devices,
        "devices_per_node": cluster.node.devices,
        "nodes": cluster.nodes,
        "sequence_length": work.sequence_length,
        "global_batch_size": work.global_batch_size,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "hidden_size": model.hidden_size,
        "ffn_size": model.ffn_size,
        "vocabulary": model.vocabulary,
    }


def _only_split(job: Job, pp: int, vpp: int) -> tuple[int, ...]:
    """Return the layers of each stage if only one split is possible, else nothing."""
    layers, counted = job.model.layers, embedding_and_loss_counted(job, pp, vpp)
    if pp > 1 and not (even_only(job) or counted):
        return ()
    if not counted and (pp * vpp > layers or layers % vpp):
        return ()
    return even_stages(layers, pp, vpp)


@lru_cache(maxsize=256)
def without_layers(modes: Collection[str], stages: int) -> dict[Place, int]:
    """Return the counts of recompute modes that no layer has where a search is of ``modes``: all 0.

    The answer is one for all who ask for it, and not to be changed.
    """
    unused = {mode.name for mode in MODES} - set(listed_modes(modes))
    return {(mode, i): 0 for mode in sorted(unused) for i in range(stages)}


#: Most virtual stages of a device that are listed.
MOST_VIRTUAL_STAGES: Final = 16
#: Numbers n of layers of which one is offloaded, where ``search.offload_every`` leaves it open.
OFFLOAD_INTERVALS: Final = (1, 2, 4, 8)


def unsearched(job: Job) -> tuple[str, ...]:
    """Return in words the layouts that rules allow and ``job``'s search does not list.

    What ``search`` excludes as the job says is not among them, but keys that are narrow by default are.
    """
    return tuple(words for words, applies in _LEFT_OUT.items() if applies(job))


def _allows(choice: object, values: Sequence[object]) -> bool:
    """Return whether a key of ``search`` allows one of ``values``."""
    allowed = choice if isinstance(choice, tuple) else (choice,)
    return choice == "any" or any(value in values for value in allowed)


def _interleaves(job: Job) -> bool:
    """Return whether devices may have several virtual stages, in split numbers of layers."""
    search, rules = job.search, job.stack.rules
    deeper = range(2, job.cluster.devices + 1)
    return (
        rules.pipeline_parallel
        and "interleaved" in rules.schedules
        and _allows(search.schedule, ["interleaved"])
        and _allows(search.pipeline_parallel, deeper)
        and _allows(search.virtual_stages, range(2, job.model.layers + 1))
        and len(deeper) > 0
    )


def _many_chunks(job: Job) -> bool:
    layers = job.model.layers
    several = [v for v in range(MOST_VIRTUAL_STAGES + 1, layers // 2 + 1) if layers % v == 0]
    return _interleaves(job) and _allows(job.search.virtual_stages, several) and bool(several)


def _shard_groups(job: Job) -> bool:
    several = job.stack.hybrid_sharding is not None and job.cluster.devices > 3
    return several and job.search.dp_shard == "any"


def _expert_splits(job: Job) -> bool:
    policy = job.stack.experts if job.model.moe is not None else None
    several = policy is not None and policy.expert_tensor_parallel != "tp" and job.cluster.devices > 1
    return several and job.search.expert_tensor_parallel == "any"


def _no_offload(job: Job) -> bool:
    stack = job.stack
    offloads = stack.optimizer_offload is not None or stack.activation_offload is not None
    return offloads and job.search.offload == "none"


def _offload_intervals(job: Job) -> bool:
    policy, offload = job.stack.activation_offload, job.search.offload
    words = offload if isinstance(offload, tuple) else (offload,)
    offloads = policy is not None and policy.partial and any("activations" in word for word in words)
    return offloads and job.search.offload_every == "any"


def _recomputes_fully(job: Job) -> bool:
    return job.stack.rules.recompute_several_layers and _allows(job.search.recompute, ["full"])


#: What is left out, and the jobs in which that makes a difference.
_LEFT_OUT: Final[dict[str, Callable[[Job], bool]]] = {
    "virtual stages of unequal numbers of layers": lambda job: (
        _interleaves(job) and job.stack.rules.uneven_chunks and not even_only(job)
    ),
    f"more than {MOST_VIRTUAL_STAGES} virtual stages": _many_chunks,
    "shard groups other than all ranks and those of a node": _shard_groups,
    "experts split otherwise than tensors or not at all": _expert_splits,
    "offload (search.offload is none)": _no_offload,
    f"offload of one layer in n other than {', '.join(map(str, OFFLOAD_INTERVALS))}": _offload_intervals,
    "recompute units of several layers (search.recompute_num_layers is 1)": (
        lambda job: _recomputes_fully(job) and job.search.recompute_num_layers == 1
    ),
    "recompute units that do not divide the layers or exceed twice their square root": (
        lambda job: _recomputes_fully(job) and job.search.recompute_num_layers == "any"
    ),
}
