"""Ask autoplan for a layout, and train a tiny Llama under it.

    torchrun --nproc-per-node 2 -m examples.real_run.train examples/real_run/jobs/ddp.yaml

Rank 0 plans; the others get the layout as text. The collectives of one step are counted, and written with
the losses of all steps to a JSON file for each job in the folder --output. --single trains in one process
without any layout. --profile writes a trace of a few warm steps for each rank, for ``autoplan diagnose``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

import autoplan
from examples.real_run.context_parallel import positions_of
from examples.real_run.counting import CollectiveCounter
from examples.real_run.data_parallel import DataParallel, Replica, data_parallel
from examples.real_run.mesh import Mesh
from examples.real_run.model import Llama, Parallel
from examples.real_run.pipeline import one_forward_one_backward

#: The step whose collectives are counted: before, DDP regroups its buckets and FSDP2 initialises itself.
COUNTED_STEP = 2
STACKS = ("ddp", "fsdp2", "megatron-core")


def main() -> None:
    """Plan, train, and write what was counted."""
    options = _options()
    torch.set_num_threads(1)
    if options.single:
        for path in options.jobs:
            _write(options.output, path.stem, _trained_alone(autoplan.load_job(path), options.steps))
        return
    dist.init_process_group("gloo")
    try:
        for path in options.jobs:
            found = _trained(path, options.steps, options.profile)
            if dist.get_rank() == 0:
                _write(options.output, path.stem, found)
    finally:
        dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=Path, nargs="+")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", type=Path, help="folder for the results; printed if left out")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--profile", type=Path, help="folder for traces: one for each job and rank")
    return parser.parse_args()


def _write(folder: Path | None, name: str, found: dict[str, Any]) -> None:
    text = json.dumps(found, indent=1)
    if folder is None:
        print(text)  # noqa: T201 - the answer of a program
    else:
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def planned_layout(job: autoplan.Job) -> autoplan.Layout:
    """Return the fastest layout of ``job``, which rank 0 asks autoplan for."""
    answer: list[str | None] = [None]
    if dist.get_rank() == 0:
        answer = [autoplan.plan(job).fastest.layout_string]
    dist.broadcast_object_list(answer)
    return autoplan.evaluate(job, str(answer[0])).layout


def refuse_unknown(job: autoplan.Job, layout: autoplan.Layout) -> None:
    """Raise ValueError for a layout that this program has no code for."""
    if job.stack.name not in STACKS:
        raise ValueError(f"this program has {', '.join(STACKS)}, not {job.stack.name}")
    beyond = {
        "precision": job.precision != "fp32",
        "experts": job.model.moe is not None,
        "recompute": layout.recompute != "none",
        "offload": layout.offload != "none",
        "virtual stages": layout.vpp > 1,
        "a schedule but 1f1b": layout.schedule != "1f1b",
        "dp_shard of megatron-core": job.stack.name == "megatron-core" and layout.dp_shard > 0,
        "devices but one a process": layout.devices != dist.get_world_size(),
    }
    if any(beyond.values()):
        raise ValueError(f"this program has no {', '.join(name for name, is_so in beyond.items() if is_so)}")


@contextmanager
def _profiled(folder: Path | None, name: str) -> Iterator[Callable[[], None]]:
    """Record steps 3 to 5 of the block, which calls what is yielded after each; nothing without a folder."""
    if folder is None:
        yield lambda: None
        return
    (folder / name).mkdir(parents=True, exist_ok=True)
    trace = folder / name / f"rank{dist.get_rank()}.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=2, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda profiled: profiled.export_chrome_trace(str(trace)),
    ) as profiled:
        yield profiled.step


def _trained(path: Path, steps: int, traces: Path | None = None) -> dict[str, Any]:
    """Train under the planned layout; return losses, and what each rank counted and holds."""
    job = autoplan.load_job(path)
    layout = planned_layout(job)
    refuse_unknown(job, layout)
    mesh = Mesh.of(layout)
    stage = mesh.pipeline.rank
    model = Llama(job, layout, Parallel.of(job, layout, mesh), stage)
    trained = data_parallel(model, job, layout, mesh)
    losses, counter = [], CollectiveCounter()
    with _profiled(traces, path.stem) as step_done:
        for step in range(steps):
            batch = _Batch(job, layout, mesh, step)
            if step == COUNTED_STEP:
                with counter:
                    loss = batch.trained(trained)
            else:
                loss = batch.trained(trained)
            losses.append(_summed(loss, mesh))
            step_done()
    parameters, optimizer = trained.state_bytes()
    calls = [[x.operation, x.ranks, x.stride, x.message_bytes, n] for x, n in sorted(counter.calls.items())]
    own = {"stage": stage, "parameters": parameters, "optimizer": optimizer, "calls": calls}
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return {"layout": str(layout), "losses": losses, "ranks": ranks}


def _trained_alone(job: autoplan.Job, steps: int) -> dict[str, Any]:
    """Train in this process alone, with the whole batch as one microbatch."""
    batch, layers = job.workload.global_batch_size, job.model.layers
    layout = autoplan.Layout(tp=1, pp=1, dp=1, microbatch=batch, layers=(layers,))
    trained = Replica(Llama(job, layout, Parallel()))
    losses = [_Batch(job, layout, Mesh(), step).trained(trained) for step in range(steps)]
    return {"layout": None, "losses": losses, "ranks": []}


def _summed(loss: float, mesh: Mesh) -> float:
    """Return the loss of all ranks; those of a tensor-parallel group have the same one."""
    total = torch.tensor(loss if mesh.tensor.rank == 0 else 0.0, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


class _Batch:
    """The sequences of one step that this rank trains on."""

    def __init__(self, job: autoplan.Job, layout: autoplan.Layout, mesh: Mesh, step: int) -> None:
        work = job.workload
        shape = (work.global_batch_size, work.sequence_length + 1)
        tokens = torch.randint(job.model.vocabulary, shape, generator=torch.Generator().manual_seed(step % 4))
        own = tokens.chunk(layout.dp)[mesh.replica.rank]
        positions = positions_of(mesh.context.rank, mesh.context.size, work.sequence_length)
        self.inputs, self.labels = (x[:, positions].T.contiguous() for x in (own[:, :-1], own[:, 1:]))
        self.microbatch, self.microbatches = layout.microbatch, own.shape[0] // layout.microbatch
        self.mesh, self.tokens = mesh, work.global_batch_size * work.sequence_length
        split = layout.tp if layout.sequence_parallel else 1
        self.boundary = (len(positions) // split, layout.microbatch, job.model.hidden_size)

    def trained(self, model: DataParallel) -> float:
        """Train ``model`` on the batch; return this rank's part of the mean loss before the update."""

        def run(index: int, x: Tensor | None) -> Tensor:
            model.before(last=index == self.microbatches - 1)
            part = slice(index * self.microbatch, (index + 1) * self.microbatch)
            inputs = self.inputs[:, part] if x is None else x
            return model.module(inputs, self.labels[:, part])

        scale = model.loss_scale / self.tokens
        total = one_forward_one_backward(run, self.microbatches, self.mesh.pipeline, self.boundary, scale)
        model.update()
        return total / self.tokens


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
