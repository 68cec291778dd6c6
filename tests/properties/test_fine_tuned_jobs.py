"""Random jobs that fine-tune: nothing that is planned is refuted, and less is kept than without."""

from __future__ import annotations

import random

import pytest

from autoplan import evaluate
from autoplan.catalog import stack
from autoplan.schema.job import Job
from tests.support.quick_cases import slow_after
from tests.support.random_jobs import RandomJob, random_job
from tests.support.spec_runs import run_here

STACKS = ("ddp", "hf-trainer", "hf-fsdp2", "torchtune", "fsdp1", "fsdp2", "unsloth", "deepspeed", "litgpt")
OF_ATTENTION = ("attention", ["q_proj", "v_proj"], ["o_proj"])
TARGETS = ("all", "attention", ["q_proj", "v_proj"], ["gate_proj", "down_proj"], ["o_proj"])


def fine_tuned(seed: int) -> RandomJob:
    """Return a random job with a fine-tune that its stack has; of experts below adapters of attention."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    spec = next(x for x in map(random_job, range(10 * seed, 10 * seed + 200)) if plain(x))
    sparse = "moe" in spec.model
    name = rng.choice([x for x in STACKS if stack(x).experts is not None] if sparse else STACKS)
    policy = stack(name).fine_tuning
    search = {"offload": rng.choice(["none", ["none", "activations"]])}
    chosen: dict[str, object] = {"stack": name, "rules": None, "search": search, "limits": None}
    if rng.random() < 0.7:
        base = rng.choice([None, *policy.bases]) if not sparse else None
        targets = rng.choice(OF_ATTENTION if sparse else TARGETS)
        adapters = {"rank": rng.choice([4, 16]), "targets": targets, "dora": rng.random() < 0.3}
        adapters |= {"base": base, "dropout": rng.choice([0, 0.1])}
        adapters["dora"] = adapters["dora"] and policy.dora
        chosen["adapters"] = adapters
    if rng.random() < 0.4:
        chosen["rl"] = rng.choice(
            ["dpo", "kto", "orpo", {"method": "grpo", "beta": 0.1, "vllm_mode": "colocate"}]
        )
    if policy.paged_optimizers:
        chosen["optimizer"] = rng.choice(["adamw", "paged-adamw", "paged-adamw-8bit"])
    software = {}
    if policy.optimizer_in_backward and rng.random() < 0.5:
        software["optimizer_in_backward"] = True
    if policy.offload_parameters and rng.random() < 0.4:
        software["offload_parameters"] = True
    if software:
        chosen["software"] = software
    work = {**spec.job["workload"]}
    if rng.random() < 0.4:
        work["documents"] = rng.choice([[100, 700], {"mean": 300, "deviation": 100}])
    return spec.changed(
        workload=work, precision=None, hardware="8x-l40s", devices=rng.choice([1, 2, 4, 8]), **chosen
    )


def plain(spec: RandomJob) -> bool:
    """Return whether the model has no latent attention."""
    return "mla" not in spec.model


@pytest.mark.parametrize("seed", slow_after(2, range(40)))
def test_no_fine_tune_that_is_planned_is_refuted(seed, tmp_path):
    """`plan` answers without a warning, and `verify` finds nothing false in it."""
    job, file = fine_tuned(seed).written(tmp_path), tmp_path / "plan.json"
    planned = run_here("plan", job, "--format", "json", "--output", file)
    done = run_here("verify", file, "--job", job, "--deadline", 5)

    assert planned.exit_code in {0, 1}, planned.output
    assert done.exit_code in {0, 3}, done.output


def least_memory(job: Job) -> float:
    """Return the memory of one sequence at a time with full recompute, which a front may be thinned of."""
    return evaluate(job, "mbs=1,recompute=full").predicted.peak_memory_bytes_per_device


@pytest.mark.parametrize(
    ("leaner", "than"),
    [
        ({"adapters": {"rank": 8, "base": "nf4"}}, {"adapters": {"rank": 8, "base": "int8"}}),
        ({"adapters": {"rank": 8, "base": "int8"}}, {"adapters": {"rank": 8}}),
        ({"adapters": {"rank": 8}}, {}),
        ({"optimizer": "paged-adamw-8bit"}, {"optimizer": "adamw-8bit"}),
        ({"optimizer": "adamw-8bit"}, {"optimizer": "adamw"}),
        ({"adapters": {"rank": 8, "targets": ["q_proj"]}}, {"adapters": {"rank": 8, "dora": True}}),
    ],
)
def test_what_is_kept_in_fewer_bits_takes_less(leaner, than, tmp_path):
    """A base of 4 bits less than one of 8, pages less than what stays, adapters less than all of a model."""
    dense = next(one for one in map(fine_tuned, range(1, 9)) if "moe" not in one.model)
    spec = dense.changed(stack="ddp", adapters=None, optimizer=None, software=None, devices=1, search=None)
    of = [least_memory(spec.changed(**more).loaded(tmp_path)) for more in (leaner, than)]

    assert of[0] < of[1]
