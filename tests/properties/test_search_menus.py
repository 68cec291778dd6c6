"""What can run is searched, excluded by what the job says of its search, or named by the certificate."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autoplan.costs.core.candidates import Candidates, divisors
from autoplan.errors import LayoutError
from autoplan.rules.layout_rules import broken_rules
from autoplan.rules.user_constraints import (
    MOST_VIRTUAL_STAGES,
    OFFLOAD_INTERVALS,
    even_only,
    recompute_menu,
    unsearched,
)
from autoplan.schema.layout import parse_layout
from autoplan.search.space.choices import candidate_blocks, with_rank_orders
from tests.support.quick_cases import slow_after
from tests.support.random_jobs import random_job

LAYOUTS = 150
#: Columns of candidates that a layout states too. The order of ranks has a rule of its own on several nodes.
COLUMNS = ("tp", "dp", "cp", "ep", "etp", "microbatch", "zero", "sequence_parallel", "vpp", "schedule")
COLUMNS += ("recompute_num_layers", "offload", "uniform_recompute", "offload_every", "dp_shard")


def random_layout(job, rng):
    """Return a layout drawn without regard to the search, or None where it cannot run."""
    devices, layers, rules = job.cluster.devices, job.model.layers, job.stack.rules
    pp = rng.choice(divisors(devices))
    tp = rng.choice(divisors(devices // pp))
    cp = rng.choice([1, 1, rng.choice(divisors(devices // pp // tp))])
    parts = {"tp": tp, "pp": pp, "cp": cp, "dp": (dp := devices // pp // tp // cp)}
    parts["mbs"] = rng.choice(divisors(max(1, job.workload.global_batch_size // dp)))
    parts["zero"] = rng.choice(rules.zero_stages)
    parts["sp"] = "on" if tp > 1 and rng.random() < 0.7 else "off"
    if job.model.moe:
        parts["ep"], parts["etp"] = rng.choice(divisors(devices)), rng.choice(divisors(devices))
    parts["vpp"] = vpp = rng.choice([1, *range(2, 25)]) if pp > 1 and rng.random() < 0.6 else 1
    if pp > 1 and vpp == 1:
        parts["schedule"] = rng.choice([s for s in rules.schedules if s != "interleaved"])
    if pp > 1 and rng.random() < 0.6:
        parts["stages"] = "/".join(map(str, _stages(layers, pp, vpp, rng)))
    parts["recompute"] = rng.choice(["none", "full", "selective", "full:4"])
    for key, choices in {
        "recompute_num_layers": (2, 4, layers),
        "offload": ("optimizer", "activations", "optimizer+activations"),
        "dp_shard": tuple(divisors(devices)),
        "offload_every": (2, 3, 5),
    }.items():
        if rng.random() < 0.25:
            parts[key] = rng.choice(choices)
    try:
        layout = parse_layout(",".join(f"{k}={v}" for k, v in parts.items()), layers=layers, devices=devices)
    except LayoutError:
        return None
    if broken_rules(job, layout):
        return None
    # Without full recompute there are no units of it.
    return layout if any(layout.counts("full")) else replace(layout, recompute_num_layers=1)


def _stages(layers, pp, vpp, rng):
    """Return a split in multiples of ``vpp``, or but for the ends, or any."""
    cuts = sorted(rng.randint(1, max(1, layers // vpp - 1)) for _ in range(pp - 1))
    chunks = [b - a for a, b in zip([0, *cuts], [*cuts, layers // vpp], strict=True)]
    split = [n * vpp for n in chunks]
    split[rng.choice([0, -1])] += layers - sum(split)
    return split


def is_listed(job, layout):
    """Return whether the search lists the choices of ``layout``, in one order of its ranks."""
    own = Candidates.of([layout])
    for block in candidate_blocks(job, layout.pp):
        known = with_rank_orders(job, block)
        same = np.ones(len(known), dtype=bool)
        for name in COLUMNS:
            same &= getattr(known, name) == getattr(own, name)[0]
        if same.any():
            return True
    return False


#: Words of the certificate, and the layouts that they leave out.
LEFT_OUT = {
    "virtual stages of unequal numbers of layers": lambda x: any(n % x.vpp for n in x.layers),
    f"more than {MOST_VIRTUAL_STAGES} virtual stages": lambda x: x.vpp > MOST_VIRTUAL_STAGES,
    "shard groups other than all ranks and those of a node": lambda x: x.dp_shard > 0,
    "experts split otherwise than tensors or not at all": lambda x: x.etp not in {1, x.tp},
    "offload (search.offload is none)": lambda x: x.offload != "none",
    f"offload of one layer in n other than {', '.join(map(str, OFFLOAD_INTERVALS))}": (
        lambda x: x.offload_every not in OFFLOAD_INTERVALS
    ),
    "recompute units of several layers (search.recompute_num_layers is 1)": (
        lambda x: x.recompute_num_layers > 1
    ),
    "recompute units that do not divide the layers or exceed twice their square root": (
        lambda x: sum(x.layers) % (k := x.recompute_num_layers) or k > 2 * sum(x.layers) ** 0.5
    ),
}


def narrowed(job, layout):
    """Return whether ``search`` says that a layout is not wanted, by a key that no rule is made of."""
    search = job.search
    words = search.offload if isinstance(search.offload, tuple) else (search.offload,)
    return (
        layout.mode not in recompute_menu(job)
        or (even_only(job) and not layout.even)
        or (search.offload != "none" and layout.offload not in words)
        or (search.offload_every != "any" and layout.offload_every > 1)
    )


def outcomes(spec, seed, folder):
    """Return how many random layouts of a job are listed, or left out for which reason that is said."""
    job, rng, seen = spec.loaded(folder), random.Random(seed), Counter()  # noqa: S311 - a test draws
    said = unsearched(job)
    for layout in (random_layout(job, rng) for _ in range(LAYOUTS)):
        if layout is None:
            continue
        if is_listed(job, layout) and not any(n % layout.vpp for n in layout.layers):
            seen["listed"] += 1
            continue
        why = [words for words, leaves_out in LEFT_OUT.items() if words in said and leaves_out(layout)]
        why += ["search"] * narrowed(job, layout)
        assert why, f"{layout} is not searched, and the certificate does not say so"
        seen.update(why)
    return seen


@pytest.mark.parametrize("first", slow_after(1, range(0, 60, 3)))
def test_what_can_run_is_searched_or_named(first, tmp_path):
    """Of random layouts that break no rule, each is listed, narrowed out by the job, or named as left out."""
    seen = Counter()
    for seed in range(first, first + 3):
        spec = random_job(seed)
        seen += outcomes(spec, seed, tmp_path)
        wide = {"offload": ["none", "activations"], "offload_every": "any", "recompute_num_layers": "any"}
        seen += outcomes(spec.changed(search={**spec.job.get("search", {}), **wide}), seed, tmp_path)

    assert seen["listed"] > 10
    assert seen["offload (search.offload is none)"] > 0
    assert seen["search"] > 0
