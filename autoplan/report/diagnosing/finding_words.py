"""What a finding of a diagnosis says, and what it usually means, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from autoplan.report.wording.part_names import TIME_NAMES
from autoplan.results.diagnosing.diagnosis import Finding, FindingKind
from autoplan.units import format_bytes, format_seconds, format_share

__all__ = ["MEASURED_NAMES", "finding_meaning", "finding_sentence"]

Facts: TypeAlias = Mapping[str, float | int | str]

#: Names of the parts that a profile has, and a prediction has not.
MEASURED_NAMES: Final = {
    **TIME_NAMES,
    "overhead": "exposed copies",
    "unknown_exposed": "other communication",
    "data_loader": "data loading",
    "host": "waiting for the host",
    "idle": "other idle time",
    "gemm": "GEMM",
    "attention": "attention",
    "elementwise": "memory-bound kernels",
    "other": "other kernels",
    "copies": "exposed copies",
}


def _number(facts: Facts, key: str) -> float:
    value = facts.get(key, 0.0)
    return 0.0 if isinstance(value, str) else float(value)


def _part(facts: Facts) -> str:
    return MEASURED_NAMES.get(str(facts.get("part", "")), str(facts.get("part", "")))


def _exposed(facts: Facts) -> str:
    seconds, exposed = _number(facts, "seconds"), _number(facts, "exposed_seconds")
    return (
        f"{_part(facts)}: {format_seconds(exposed)} of {format_seconds(seconds)} of communication run while"
        " nothing computes"
    )


def _collective(facts: Facts) -> str:
    size, rate = _number(facts, "message_bytes"), _number(facts, "bus_bandwidth")
    shortest = format_seconds(_number(facts, "shortest_seconds"))
    predicted = format_seconds(_number(facts, "predicted_seconds"))
    return (
        f"{_part(facts)}: {facts.get('operation')} of {format_bytes(size)} over {facts.get('ranks')} ranks"
        f" takes {shortest} at best, {rate / 1e9:,.1f} GB/s of bus bandwidth; the model says {predicted}"
    )


def _compute(facts: Facts) -> str:
    kinds = ("gemm", "attention", "elementwise", "other")
    shares = [(MEASURED_NAMES[kind], _number(facts, f"{kind}_seconds")) for kind in kinds]
    listed = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in shares if seconds)
    longest = f"; longest is {facts['kernel']}" if "kernel" in facts else ""
    return f"kernels take longer than predicted: {listed}{longest}"


def _kernels(facts: Facts) -> str:
    share, median = format_share(_number(facts, "small_share")), _number(facts, "median_kernel_seconds")
    return (
        f"the device waits for launches: {_number(facts, 'kernels'):,.0f} kernels a step, {share} of them"
        f" shorter than 10 us, the median {format_seconds(median)}"
    )


def _uneven(facts: Facts) -> str:
    who = f"stage {facts['stage']}" if "stage" in facts else str(facts.get("rank", ""))
    most, mean = _number(facts, "slowest_seconds"), _number(facts, "mean_seconds")
    return f"{who} computes {format_seconds(most)}, the mean is {format_seconds(mean)}"


def _allocator(facts: Facts) -> str:
    calls, retries = _number(facts, "calls"), _number(facts, "retries")
    return f"{calls:,.0f} calls to the driver in warm steps, {retries:,.0f} segments given back to it"


_SENTENCES: Final[dict[FindingKind, Callable[[Facts], str]]] = {
    "no overlap": _exposed,
    "exposed communication": _exposed,
    "slow collectives": _collective,
    "slow compute": _compute,
    "slow optimizer": lambda facts: (
        f"the optimizer step takes longer than the predicted"
        f" {format_seconds(_number(facts, 'predicted_seconds'))}"
    ),
    "small kernels": _kernels,
    "host": _kernels,
    "data loader": lambda _: "the device is idle while the host waits for the next batch",
    "stragglers": lambda facts: f"{_part(facts)}: ranks wait for {facts.get('rank')}, which comes last",
    "imbalanced stages": _uneven,
    "imbalanced ranks": _uneven,
    "imbalanced experts": _uneven,
    "bubble": lambda facts: (
        f"stages wait for each other longer than {facts.get('microbatches')} microbatches explain"
    ),
    "copies": lambda _: "copies between host and device that nothing hides",
    "allocator": _allocator,
    "memory": lambda facts: (
        f"stage {facts.get('stage')} allocates {format_bytes(_number(facts, 'more_bytes'))} more than"
        " predicted"
    ),
    "unknown groups": lambda _: "communication of groups that the layout does not have, or that have no name",
}

_MEANINGS: Final[dict[FindingKind, str]] = {
    "no overlap": "overlap is switched off, or the collectives run on the stream that computes (Megatron-LM:"
    " --overlap-grad-reduce, --overlap-param-gather, --tp-comm-overlap; FSDP: prefetch; DDP: no_sync in every"
    " microbatch but the last)",
    "exposed communication": "less compute hides it than the model assumes, or ranks wait for each other",
    "slow collectives": "the group spans another path than the model's: ranks placed across nodes or sockets,"
    " peer access or NVLink off, a shared network, or NCCL on the wrong interface (NCCL_DEBUG=INFO shows it)",
    "slow compute": "shapes that the kernels do not like, no fused attention or norms, a lower clock under"
    " the power limit, or another precision than the job says",
    "slow optimizer": "an optimizer that is not fused, or states in host memory",
    "small kernels": "kernels too short to cover their launch: larger microbatches, fusion or torch.compile,"
    " CUDA graphs",
    "host": "Python, logging, .item() and other synchronisations between launches, or few and slow CPU cores",
    "data loader": "too few workers or no prefetch, slow storage, or preprocessing on the host",
    "stragglers": "that rank is slower or starts late: its clock, its host, its data, or a noisy neighbour",
    "imbalanced stages": "stages of unequal work: move layers, the embedding or the head (as `plan` does)",
    "imbalanced ranks": "unequal sequence lengths, or a slow device",
    "imbalanced experts": "tokens are routed unevenly: load-balancing loss, capacity, placement of experts",
    "bubble": "an uneven or late stage, sends that are not posted ahead, or fewer microbatches than planned",
    "copies": "offloading, or pageable host memory: pin it, and copy on a stream of its own",
    "allocator": "memory at its limit or fragmented: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a"
    " layout that needs less",
    "memory": "activations that are kept and should not be, another recompute than planned, or several copies"
    " of states",
    "unknown groups": "name the process groups, or the layout given is not the one that ran",
}


def finding_sentence(finding: Finding) -> str:
    """Return what the trace shows."""
    return _SENTENCES[finding.kind](dict(finding.facts))


def finding_meaning(finding: Finding) -> str:
    """Return what a finding of its kind usually means."""
    return _MEANINGS[finding.kind]
