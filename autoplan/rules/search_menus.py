"""What a search chooses from where a job leaves it open, and what runs and prices beyond that.

Rules say which layouts can run, and ``evaluate`` prices these. The search lists fewer: its menus end, and
some keys of ``search`` are narrow unless the job widens them. What is left out is said here, in words for the
certificate, beside the menus themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from autoplan.rules.user_constraints import even_only
from autoplan.schema.job import Job

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
