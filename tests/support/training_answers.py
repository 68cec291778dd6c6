"""Training jobs whose answers are tampered with, and the answers, each planned once."""

import functools

from autoplan import plan
from autoplan.planning.infeasible.smallest_relaxations import suggested
from autoplan.schema.resolved_job import hashes
from tests.support.tampering import (
    document_of,
)

__all__ = ["JOBS", "again", "answers_in", "replanned"]

HEAD = "schema: 1\nkind: training\n"
NARROW = "microbatch_size: 1, schedule: 1f1b, recompute: [none, full]"
JOBS = {
    "two devices": f"""{HEAD}
model: llama3.2-1b
hardware: dgx-a100-80gb
devices: 2
stack: megatron-core
workload: {{sequence_length: 4096, global_batch_size: 8}}
search: {{{NARROW}}}
""",
    "sixteen devices": f"""{HEAD}
model: llama2-7b
hardware: dgx-a100-80gb
devices: 16
stack: megatron-core
workload: {{sequence_length: 4096, global_batch_size: 16}}
search: {{{NARROW}, zero_stage: [0, 1], context_parallel: 1, tensor_parallel: [1, 2, 8]}}
""",
    "infeasible": f"""{HEAD}
model: llama2-7b
hardware: dgx-a100-80gb
devices: 2
stack: megatron-core
workload: {{sequence_length: 16384, global_batch_size: 8}}
search: {{{NARROW.replace("[none, full]", "none")}}}
""",
    "own rules": f"""{HEAD}
model: llama3.2-1b
hardware: dgx-a100-80gb
devices: 2
stack: megatron-core
workload: {{sequence_length: 4096, global_batch_size: 8}}
search: {{{NARROW}, zero_stage: [0, 1]}}
rules:
  - recompute is uniform
  - rule: layers[0] <= layers[-1]
    because: the first stage has the embedding too
""",
    "several questions": f"""{HEAD}
model: llama3.2-1b
hardware: dgx-a100-80gb
devices: [1, 2]
stack: megatron-core
workload: {{sequence_length: 4096, global_batch_size: [4, 8]}}
search: {{{NARROW}, zero_stage: 1}}
objectives: [step_time, peak_memory, devices]
""",
}


@functools.cache
def again(job_hash, job_text, with_suggestions):
    """Return an answer without plans, planned again: once for each job of these tests."""
    job = again.jobs[job_hash]
    return suggested(plan(job)) if with_suggestions else plan(job)


again.jobs = {}


def replanned(deadline, job, with_suggestions):
    """Stand in for the search that answers without plans are repeated by."""
    job_hash = hashes(job)[0]
    again.jobs[job_hash] = job
    return again(job_hash, repr(job), with_suggestions)


def answers_in(folder):
    """Return a function that returns the answer of a kind, and the file of its job."""

    @functools.cache
    def answer(kind):
        file = folder / f"{kind}.yaml"
        file.write_text(JOBS[kind])
        front = plan(file)
        return document_of(front if front.feasible else suggested(front)), file

    return answer
