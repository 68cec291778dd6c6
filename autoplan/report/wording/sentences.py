"""Sentences about plans: short layouts, job lines, certificates, uncertainty and memory.

The sentence on plans so near the memory limit that the allocator may stop the device.

Sentences about a stack that a job does not name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from autoplan.costs.core.frozen_weights import keeps_reference
from autoplan.costs.core.prediction import JobFacts, LayerType, Prediction
from autoplan.report.wording.standing_words import noise_sentence
from autoplan.results.front import Certificate, Front, Rejection, RejectionKind
from autoplan.results.job_summary import number_kinds
from autoplan.results.plan import StackStep
from autoplan.schema.job import Job, JobFile
from autoplan.schema.layout import ORDERS, Layout
from autoplan.schema.post_training import sequences_of_sample
from autoplan.schema.stage_layers import chunks_of, orders_of
from autoplan.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from autoplan.report.render.terminal import Terminal

#: Mark of a plan that fits only without a margin for fragmentation.
CENTRE_ONLY: Final = "?"

_LARGEST_EXACT: Final = 10**12
#: Other programs of which it is said what is against them.
_MOST_PROGRAMS: Final = 4

#: Kinds of numbers whose words differ from their names.
_KNOWN: Final = {"data sheet": "from data sheets", "guess": "guessed"}


def job_lines(job: Job, facts: JobFacts, terminal: Terminal) -> tuple[str, str]:
    """Return the model and devices of a job, and its training conditions."""
    cluster, work, dot = job.cluster, job.workload, f" {terminal.dot} "
    model = job.model.title or job.model.name
    size = format_count(facts.parameters)
    numbers = _alternatives([choice.cluster.devices for choice in job.choices or (job,)])
    what = f"{model} ({size} parameters) on {numbers} {terminal.times} {cluster.device.title}"
    counts = dict.fromkeys(choice.cluster.nodes for choice in job.choices or (job,))
    nodes = "1 node" if list(counts) == [1] else f"{_alternatives(list(counts))} nodes"
    batches = _alternatives([choice.workload.global_batch_size for choice in job.choices or (job,)])
    one, several = ("sequence", "sequences")
    if sequences_of_sample(job.rl) > 1:
        one, several = ("pair of sequences", "pairs of sequences")
    trained = f"1 {one}" if batches == "1" else f"{batches} {several}"
    conditions = (
        f"{nodes} {cluster.node.name}",
        stack_title(job),
        f"{trained} of {work.sequence_length:,} tokens per step",
        *([job.rl.method] if job.rl is not None else ()),
        job.precision,
        job.optimizer,
        f"limit {format_bytes(facts.memory_limit_bytes)} per device",
        *job_assumptions(job.source),
    )
    return what, dot.join(conditions)


def _rl_sentences(job: Job) -> list[str]:
    """Return the sentence on what preference or reinforcement learning adds to a step; none without."""
    rl = job.rl
    if rl is None:
        return []
    passes = zip(("reference", "policy"), rl.passes, strict=True)
    forwards = [f"{n} forward{'s' if n > 1 else ''} of the {of}" for of, n in passes if n]
    parts = [f"besides, a microbatch has {' and '.join(forwards)} without a gradient"] if forwards else []
    if rl.passes.reference:
        copied = keeps_reference(job)
        kept = "a frozen copy, counted with the parameters" if copied else "the base, adapters off"
        parts.append(f"the reference is {kept}")
    if rl.rollout_share:
        share = f"{100 * rl.rollout_share:.0f} %"
        parts.append(f"a colocated vLLM holds {share} of each device, counted as framework")
    if rl.method == "grpo":
        parts.append("the time to generate completions is left out")
    return [f"{rl.method}: {'; '.join(parts)}"] if parts else []


def job_assumptions(source: JobFile | None) -> list[str]:
    """Return what a job of options assumes, in words; empty for other jobs."""
    assumed = source.assumed if source else ()
    return [f"assumed: {', '.join(assumed)}"] if assumed else []


def _alternatives(numbers: Sequence[int]) -> str:
    """Return the distinct numbers, joined by "or".

    >>> _alternatives([2, 4, 4, 8]), _alternatives([1024])
    ('2, 4 or 8', '1,024')
    """
    *most, last = (f"{number:,}" for number in dict.fromkeys(numbers))
    return f"{', '.join(most)} or {last}" if most else last


def layout_parts(layout: Layout, terminal: Terminal) -> list[str]:
    """Return the parts of ``layout`` that differ from their defaults, and always the microbatch size."""
    degrees = (("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp))
    more = (("cp", layout.cp), ("ep", layout.ep))
    parts = [f"{name} {degree}" for name, degree in (*degrees, *more) if degree > 1]
    if layout.etp != layout.tp:
        parts.append(f"etp {layout.etp}")
    parts.append(f"mbs {layout.microbatch}")
    sharding = (("zero", layout.zero), ("dp_shard", layout.dp_shard))
    parts += [f"{name} {number}" for name, number in sharding if number]
    if layout.vpp > 1:
        parts.append(f"vpp {layout.vpp}")
    if layout.sequence_parallel:
        parts.append("sp")
    if layout.pp > 1:
        parts.append(layout.schedule)
    if not layout.even or any(n % layout.vpp for n in layout.layers):
        parts.append(f"stages {_runs(layout.layers, terminal)}")
    parts += _recompute(layout)
    if layout.recompute_num_layers > 1:
        parts.append(f"{layout.recompute_num_layers} layers per recompute unit")
    if layout.offload != "none":
        part = f" of 1 in {layout.offload_every} layers" if layout.offload_every > 1 else ""
        parts.append(f"{layout.offload.replace('+', ' and ')}{part} offloaded")
    if layout.order != ORDERS[0]:
        parts.append(f"ranks {layout.order}")
    return parts


def _runs(layers: Sequence[int], terminal: Terminal) -> str:
    """Return ``9/10/10/10/9`` as ``9/3x10/9``."""
    runs = ((n, len(list(same))) for n, same in groupby(layers))
    return "/".join(
        f"{count}{terminal.times}{n}" if count > 2 else "/".join([str(n)] * count) for n, count in runs
    )


def _recompute(layout: Layout) -> Iterator[str]:
    layers = sum(layout.layers)
    for name, counts in reversed(layout.recomputed):
        recomputed = sum(counts)
        if recomputed:
            yield f"{name} recompute" if recomputed == layers else f"{name} {recomputed} of {layers}"


def wrap_parts(parts: Sequence[str], width: int, terminal: Terminal) -> str:
    """Return ``parts`` separated by dots, in lines of at most ``width`` unless one part is longer."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]} {terminal.dot} {part}" if lines else part
        if lines and len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def count_words(count: int) -> str:
    """Return ``count`` with grouped digits, or in scientific notation if it is very large.

    >>> count_words(1234567), count_words(3 * 10**24), count_words(10**400)
    ('1,234,567', 'about 3e24', 'about 1e400')
    """
    if abs(count) < _LARGEST_EXACT:
        return f"{count:,}"
    # Counts of layouts may exceed the range of floats and of int-to-str conversion.
    exponent = math.floor(math.log10(count))
    digits = max(10, count // 10 ** (exponent - 1))
    fraction = f".{digits % 10}" if digits % 10 else ""
    return f"about {digits // 10}{fraction}e{exponent}"


_PROVEN: Final = {
    "optimal": "proven optimal",
    "feasible": "best so far, not proven optimal",
    "infeasible": "proven infeasible",
}


def certificate_sentence(certificate: Certificate) -> str:
    """Return the sentence on what is proven about a front."""
    proven = _PROVEN[certificate.status]
    if certificate.stopped:
        proven += f" ({certificate.stopped})"
    parts = [f"{proven}: {_covered(certificate)}", *_claims(certificate)]
    if certificate.unsearched:
        parts.append(f"not searched: {', '.join(certificate.unsearched)}")
    return "; ".join(parts)


def proof_sentence(certificate: Certificate) -> str:
    """Return what is proven about a front, without the counts of layouts that it rests on."""
    proven = _PROVEN[certificate.status]
    if certificate.stopped:
        proven += f" ({certificate.stopped})"
    claims = "; ".join(_claims(certificate))
    return f"{proven}: {claims}" if claims else proven


def _claims(certificate: Certificate) -> Iterator[str]:
    """Yield that no step is shorter than the bound, and that plans dominate what is not listed."""
    if certificate.best_bound_step_seconds is not None and certificate.gap is not None:
        bound = format_seconds(certificate.best_bound_step_seconds)
        yield f"no step is shorter than {bound} ({_gaps(certificate.gap, certificate.fastest_gap)})"
    if certificate.thinning and certificate.status == "optimal":
        thinning = _percent(certificate.thinning)
        yield f"every other layout is dominated, within {thinning}, by a plan listed here"


def _covered(certificate: Certificate) -> str:
    """Return how many layouts are covered; a search may be stopped before it counts them."""
    if certificate.stopped and not certificate.layouts_total:
        return "the layouts were not counted"
    choices = number_words(certificate.candidates, "choice")
    layouts = number_words(certificate.layouts_covered, "layout")
    return f"{layouts} covered by {choices} of degrees and schedule ({_solved(certificate)})"


def _solved(certificate: Certificate) -> str:
    if not certificate.candidates_solved:
        return "all excluded by bounds, none solved"
    solves = number_words(certificate.solves, "solve")
    return (
        f"{count_words(certificate.candidates_solved)} solved by {certificate.solver} in {solves},"
        " the others excluded by bounds"
    )


def number_words(count: int, noun: str) -> str:
    """Return ``count`` and its noun.

    >>> number_words(1, "solve"), number_words(2000, "solve")
    ('1 solve', '2,000 solves')
    """
    plural = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count_words(count)} {noun}{plural}"


def _gaps(largest: float, fastest: float | None) -> str:
    """Return the gap, and of what it is, where the fastest plan is nearer to its bound than another plan.

    >>> _gaps(0.048, 0.0), _gaps(0.02, 0.02)
    ('gap of the fastest plan 0 %, of another one from the bound within its memory up to 4.8 %', 'gap 2 %')
    """
    if fastest is None or _gap(fastest) == _gap(largest):
        return f"gap {_gap(largest)}"
    others = f"of another one from the bound within its memory up to {_gap(largest)}"
    return f"gap of the fastest plan {_gap(fastest)}, {others}"


def _gap(share: float) -> str:
    """Return an optimality gap; gaps of the solver's rounding are given as an upper limit."""
    return "under 0.01 %" if 0 < share < 1e-4 else _percent(share)


def risk_sentence(front: Front) -> str:
    """Return the sentence on plans that exceed the limit with the most fragmentation; empty if none."""
    risky = sum(only_at_centre(plan.predicted) for plan in front.plans)
    if not risky:
        return ""
    return (
        f"memory: {number_words(risky, 'plan')} marked {CENTRE_ONLY} fit only without a margin for"
        " fragmentation; limits.memory_confidence: upper excludes them"
    )


def only_at_centre(predicted: Prediction) -> bool:
    """Return whether a layout fits, but not with the most fragmentation and context."""
    return predicted.memory.fits_at_centre and predicted.memory_needed_bytes > predicted.memory_limit_bytes


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def rejected_sentence(rejected: Sequence[Rejection], most: int = 3) -> str:
    """Return the counts of rejected layouts by reason, the most frequent first; empty if none."""
    rejected = [rejection for rejection in rejected if rejection.kind != "not on the front"]
    total = sum(rejection.layouts for rejection in rejected)
    if not total:
        return ""
    ranked = sorted(rejected, key=lambda rejection: (-rejection.layouts, rejection.reason))
    reasons = [f"{r.reason} ({count_words(r.layouts)})" for r in ranked[:most] if r.layouts]
    others = sum(1 for r in ranked[most:] if r.layouts)
    if others:
        reasons.append(f"{number_words(others, 'other reason')}")
    return f"rejected: {number_words(total, 'layout')}: {'; '.join(reasons)}"


def rejected_rows(rejected: Sequence[Rejection]) -> list[tuple[str, str]]:
    """Return the counts of rejected layouts with their reasons, the most frequent first."""
    ranked = sorted(rejected, key=lambda rejection: (-rejection.layouts, rejection.reason))
    counted = [x for x in ranked if x.layouts and x.kind != "not on the front"]
    return [(count_words(x.layouts), x.reason) for x in counted]


#: Outcomes of layouts, in the singular and the plural, in the order in which the search decides them.
_OUTCOMES: Final[dict[RejectionKind, tuple[str, str]]] = {
    "rule": ("breaks a rule", "break a rule"),
    "equivalent": (
        "is equivalent by symmetry to a layout that was considered",
        "are equivalent by symmetry to a layout that was considered",
    ),
    "memory": (
        "does not fit in memory even with full recompute",
        "do not fit in memory even with full recompute",
    ),
    "not on the front": ("is covered and not on the front", "are covered and not on the front"),
}


def space_sentence(front: Front) -> str:
    """Return the sentence on the search space; the counts by outcome add up to all layouts.

    It is empty where the search was stopped before it counted them.
    """
    if front.certificate.stopped and not front.certificate.layouts_total:
        return ""
    parts = []
    for kind, words in _OUTCOMES.items():
        count = sum(r.layouts for r in front.rejected if r.kind == kind)
        if count:
            parts.append(f"{count_words(count)} {words[count > 1]}")
    if front.plans:
        parts.append(f"{count_words(len(front.plans))} on the front")
    return f"search space: {number_words(front.certificate.layouts_total, 'layout')}: {', '.join(parts)}"


def surety_sentences(
    job: Job, predicted: Sequence[Prediction], stacks: Sequence[StackStep] = ()
) -> list[str]:
    """Return the sentences on what was assumed, on prediction intervals and on the kernel curves."""
    kinds = ", ".join(f"{n} {_KNOWN.get(kind, kind)}" for kind, n in number_kinds(job.kernels).items() if n)
    curves = f"kernel curves {job.kernels.name}: {kernels_origin(job)}; numbers: {kinds}"
    intervals = [*near_limit_sentences(job, predicted), _intervals(job, predicted)] if predicted else []
    origins = [*_rl_sentences(job), curves, *_linear_attention(job), *_derived_node(job)]
    return [*assumed_sentences(job), *stacks_sentences(stacks), *intervals, *origins]


def kernels_origin(job: Job) -> str:
    """Return in words where the kernel curves of ``job`` were measured."""
    kernels, device_name = job.kernels, job.cluster.device.name
    if device_name in kernels.devices[:1]:
        return "measured on this device"
    if device_name in kernels.devices:
        return f"measured on {kernels.devices[0]}, whose chip is that of this device"
    if kernels.devices:
        return f"not measured on this device: those of {kernels.devices[0]}, its nearest measured relative"
    return f"not measured on this device: {kernels.valid_for}"


def _linear_attention(job: Job) -> list[str]:
    """Return the sentence on layers without softmax attention; empty for a model without such layers."""
    linear, model = job.model.linear_attention, job.model
    if linear is None:
        return []
    names = {"gated-delta-net": "gated delta net", "mamba2": "Mamba-2"}
    layers = sum(map(model.is_linear_layer, range(model.layers)))
    sentence = (
        f"{layers} of {model.layers} layers have linear attention ({names[linear.kind]}), with the memory"
        " that transformers' modules take: its kernels are priced by the FLOPs and bytes of chunks of"
        f" {linear.chunk} tokens at a rate that is a guess, not by measured tables"
    )
    return [sentence]


def _derived_node(job: Job) -> list[str]:
    """Return the sentence on a node that no file describes; empty for one of the catalogue or a file."""
    node = job.cluster.node
    if node.derived_from is None:
        return []
    kinds = ", ".join(f"{n} {_KNOWN.get(kind, kind)}" for kind, n in number_kinds(node).items() if n)
    origin = f"{node.device} and {node.derived_from}"
    return [f"node {node.name}: derived from {origin}, since no file describes it; numbers: {kinds}"]


def _intervals(job: Job, predicted: Sequence[Prediction]) -> str:
    uncertainty = job.stack.uncertainty
    less = _percents([1.0 - x.step_seconds_low / x.step_seconds for x in predicted])
    more = _percents([x.step_seconds_high / x.step_seconds - 1.0 for x in predicted])
    priced = _percents([1.0 - x.modelled_share for x in predicted])
    note = f"; {uncertainty.time.note}" if uncertainty.time.note else ""
    lower, higher = _percent(uncertainty.memory_lower.value), _percent(uncertainty.memory_higher.value)
    return (
        f"90 % intervals: step time {less} less and {more} more ({uncertainty.time.kind}; {priced} of it from"
        f" measured tables{note}), memory that a run reports {lower} less and {higher} more, as far as the"
        f" device has it ({uncertainty.memory_higher.kind})"
    )


def _percents(shares: Sequence[float]) -> str:
    """Return the range of ``shares`` in integer per cent.

    >>> _percents([0.123, 0.179]), _percents([0.123])
    ('12 to 18 %', '12 %')
    """
    ends = dict.fromkeys(f"{100 * end:.0f}" for end in (min(shares), max(shares)))
    return f"{' to '.join(ends)} %"


def fits_sentence(predicted: Prediction) -> str:
    """Return whether a layout fits its devices, and by how much: at its peak, and with fragmentation."""
    peak, limit = predicted.peak_memory_bytes_per_device, predicted.memory_limit_bytes
    high = predicted.memory_needed_bytes
    use = f"{format_bytes(peak)} of {format_bytes(limit)} per device"
    if high <= limit:
        return f"fits: {use}, {format_bytes(high)} with fragmentation, {format_bytes(limit - high)} free"
    over = f"{format_bytes(high - limit)} over the limit with fragmentation"
    if predicted.memory.fits_at_centre:
        verdict = "fits" if predicted.fits else "does not fit"
        return f"{verdict}: only without its margin for fragmentation: {use}, {over}"
    return f"does not fit: {use}, {format_bytes(peak - limit)} over the limit, {over}"


def peaks_sentence(predicted: Prediction) -> str:
    """Return peak memory: allocated, reserved by the allocator, and used on the device."""
    allocated = format_bytes(predicted.peak_allocated_bytes)
    reserved = format_bytes(predicted.peak_reserved_bytes)
    device = format_bytes(predicted.peak_memory_bytes_per_device)
    return f"{allocated} allocated, {reserved} reserved by the allocator, {device} on the device"


def front_sentences(front: Front) -> list[str]:
    """Return the sentences below a front."""
    sentences = [
        noise_sentence(front.order_noise),
        certificate_sentence(front.certificate),
        space_sentence(front),
        rejected_sentence(front.rejected),
    ]
    uncertainty = surety_sentences(front.job, [plan.predicted for plan in front.plans], front.stacks)
    return [sentence for sentence in (*sentences, *uncertainty, risk_sentence(front)) if sentence]


#: Share of a device's memory above which a plan is near the limit.
_NEAR: Final = 0.95


def near_limit_sentences(job: Job, predicted: Sequence[Prediction]) -> list[str]:
    """Return the sentence on plans that fit with less than 5 % to spare; none without a caching allocator.

    When an allocation fails, PyTorch's caching allocator waits for the device, frees its cached blocks and
    allocates again (``num_alloc_retries`` of ``torch.cuda.memory_stats``): pytorch, c10/cuda/
    CUDACachingAllocator.cpp, release_cached_blocks.
    """
    if job.stack.memory.allocator_fragmentation.value <= 1.0:
        return []
    usable = job.cluster.device.memory.usable.value
    shares = [x.peak_memory_bytes_per_device / usable for x in predicted if x.fits]
    near = [share for share in shares if share > _NEAR]
    if not near:
        return []
    which = "the plan needs" if len(predicted) == 1 else f"{len(near)} of {len(predicted)} plans need"
    most = f"{100 * max(near):.0f} %" if len(near) == 1 else f"up to {100 * max(near):.0f} %"
    sentence = (
        f"{which} {most} of a device's memory: where an allocation fails, PyTorch's allocator waits for the"
        " device, frees its cache and allocates again (num_alloc_retries), which the step time leaves out"
    )
    return [sentence]


def stack_title(job: Job) -> str:
    """Return the programs of the search, or the stack; an assumed stack is marked."""
    runs = [one.program for one in job.choices or (job,) if one.program]
    programs = dict.fromkeys(title for one in runs for title in (one.title, *one.alike))
    if len(programs) > 1:
        *others, last = programs
        return f"{', '.join(others)} or {last}"
    if job.program is not None:
        return job.program.title if job.choices else job.program.words
    return f"{job.stack.title} (assumed)" if job.stack_assumed else job.stack.title


def assumed_sentences(job: Job) -> list[str]:
    """Return the program or stack that is assumed for ``job``, and why; empty where the job names it."""
    if job.program is not None:
        why = f", the fastest that has this layout ({_others(job)})" if job.lacking else ""
        return [f"program: {job.program.words}{why}"] if why else []
    if not job.stack_assumed:
        return []
    node, name = job.cluster.node, job.stack.name
    why = f"the usual one on {node.name}" if node.default_stack else f"{node.name} has no usual one"
    stack = f"stack: {name}, assumed: {why}"
    if job.lacking:
        return [f"no program starts it ({_others(job)})", stack]
    return [f"{stack}; name one with stack: to narrow the interval of the step time"]


def _others(job: Job) -> str:
    """Return what is against other programs, for the first few of them."""
    against = [f"{title}: {words}" for title, words in job.lacking[:_MOST_PROGRAMS]]
    left = len(job.lacking) - len(against)
    return "; ".join([*against, *([f"{left} more"] if left else [])])


def stacks_sentences(steps: Sequence[StackStep]) -> list[str]:
    """Return the sentence on the range of a layout's step among the stacks that may be meant; empty if none.

    >>> from autoplan.results.plan import StackStep
    >>> steps = [StackStep("ddp", 1.0, True), StackStep("fsdp2", 2.0, False)]
    >>> stacks_sentences(steps)[0].partition(" under ")[2]
    'the stacks that may be meant: ddp 1.00 s, fsdp2 2.00 s (does not fit)'
    """
    if not steps:
        return []
    if len(steps) == 1:
        return [f"of the stacks that may be meant, {steps[0].stack} alone can run this layout"]
    times = sorted(step.step_seconds for step in steps)
    ends = f"{format_seconds(times[0])} to {format_seconds(times[-1])}"
    listed = ", ".join(
        f"{step.stack} {format_seconds(step.step_seconds)}{'' if step.fits else ' (does not fit)'}"
        for step in sorted(steps, key=lambda step: step.step_seconds)
    )
    return [f"the same layout takes {ends} under the stacks that may be meant: {listed}"]


def stage_layer_types(layers: Sequence[LayerType], layout: Layout) -> list[str]:
    """Return the types of each stage of ``layers``, such as ``2 dense, 1 MoE``; empty if all are of one."""
    types = list(dict.fromkeys(layers))
    if len(types) == 1:
        return []
    several_mlps, several_windows, several_attentions = (
        len({getattr(layer_type, name) for layer_type in types}) > 1
        for name in ("experts", "window", "linear")
    )
    names = []
    for layer_type in types:
        words = ["MoE" if layer_type.experts else "dense"] * several_mlps
        words += ["local" if layer_type.window else "global"] * several_windows
        words += ["linear attention" if layer_type.linear else "attention"] * several_attentions
        names.append(" ".join(words))
    sequence = [types.index(layer_type) for layer_type in layers]
    stages = orders_of(sequence, layout.layers, layout.vpp)
    counts = (sorted(Counter(stage).items()) for stage in stages)
    return [", ".join(f"{count} {names[kind]}" for kind, count in stage) for stage in counts]


def uneven_chunks(layout: Layout) -> list[str]:
    """Return a sentence on the first and last virtual stage if they have fewer layers than the others.

    >>> uneven_chunks(parse_layout("tp=8,pp=8,vpp=8", layers=126, devices=64))
    ['virtual stages have 2 layers: the first has 1 and the embedding, the last 1 and the output layer']
    >>> uneven_chunks(parse_layout("tp=8,pp=8,vpp=7", layers=126, devices=64))
    []
    """
    if not any(n % layout.vpp for n in layout.layers):
        return []
    (first, *_), (*_, last) = (chunks_of(layout.layers, layout.vpp)[i] for i in (0, -1))
    most = sorted({-(-n // layout.vpp) for n in layout.layers})
    layers = f"{' or '.join(map(str, most))} layer{'s' if most != [1] else ''}"
    ends = f"the first has {_with(first, 'embedding')}, the last {_with(last, 'output layer')}"
    return [f"virtual stages have {layers}: {ends}"]


def _with(layers: int, part: str) -> str:
    return f"{layers} and the {part}" if layers else f"only the {part}"
