"""Jobs on machines where one resource takes time and nothing else does, for counts by hand.

A device, a node, kernels and a stack whose shares are 1, whose launches and latencies are 0, and whose rates
are ``FREE`` but for those that a test sets. Sizes of the model are small and even, so that counts stay exact.
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.catalog import load_entry, resolve_serving_job, stack
from autoplan.costs.predict import predict
from autoplan.schema.job import Cluster, Job, Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.serving_spec import ServingSpec

__all__ = [
    "FREE",
    "changed",
    "ideal_cluster",
    "ideal_job",
    "ideal_kernels",
    "ideal_serving_job",
    "parts",
    "small_model",
    "with_numbers",
]

#: A rate at which nothing takes time.
FREE = 1e30

_SHARES = (
    "gemm.ceiling",
    "gemm.sustained_share",
    "attention.forward_ceiling",
    "attention.backward_ceiling",
    "attention.flash2_share",
    "attention.flash1_share",
    "memory_bound.bandwidth_share",
    "collectives.fabric_share",
    "collectives.network_share",
)
_FIXED_TIMES = (
    "gemm.half_m",
    "gemm.half_n",
    "gemm.half_k",
    "gemm.launch",
    "attention.half_sequence",
    "attention.half_rows",
    "attention.launch",
    "memory_bound.launch",
    "collectives.launch",
)


def changed(entry, path, value):
    """Return a catalogue entry with the field at the dotted ``path`` set."""
    head, _, rest = path.partition(".")
    inner = changed(getattr(entry, head), rest, value) if rest else value
    return entry.model_copy(update={head: inner})


def with_numbers(entry, **numbers):
    """Return ``entry`` with sourced numbers set; two underscores stand for the dot of a path."""
    for name, value in numbers.items():
        entry = changed(entry, name.replace("__", ".") + ".value", value)
    return entry


def ideal_kernels():
    """Return kernels that reach all of the peak and of every bandwidth at once."""
    kernels = load_entry("kernels", "default")
    for path in _SHARES:
        kernels = changed(kernels, f"{path}.value", 1.0)
    for path in _FIXED_TIMES:
        kernels = changed(kernels, f"{path}.value", 0.0)
    return kernels


def ideal_cluster(
    devices, *, per_node=8, peak=FREE, hbm=FREE, fabric=FREE, network=FREE, host=FREE, hops=(0, 0)
):
    """Return devices of so many FLOP/s and bytes/s; ``hops`` are latencies of fabric and network [s]."""
    device = load_entry("device", "a100-sxm4-80gb")
    device = with_numbers(device, peak__bf16=peak, memory__bandwidth=hbm)
    device = device.model_copy(update={"l2_cache": None})
    node = load_entry("node", "dgx-a100-80gb").model_copy(update={"devices": per_node})
    node = with_numbers(node, fabric__bandwidth=fabric, network__bandwidth_per_device=network)
    node = with_numbers(node, fabric__latency=hops[0], network__latency=hops[1], host__link_bandwidth=host)
    return Cluster(device, node, devices)


def ideal_stack(name, interference=0.0):
    """Return a shipped stack whose kernels have no overhead; its policies are its own."""
    software = with_numbers(
        stack(name),
        block__attention_share=1.0,
        block__norm_traffic=1.0,
        block__elementwise_traffic=1.0,
        host_launch=0.0,
        overlap__interference=interference,
    )
    return changed(software, "overlap.hook_launches", None)


def small_model(**changes):
    """Return a model of 8 layers with grouped queries and a gate, or with ``changes``."""
    sizes = {"layers": 8, "hidden_size": 512, "heads": 8, "kv_heads": 4, "ffn_size": 1024, "vocabulary": 4096}
    return ModelSpec(name="small", source="sizes that are easy to count", **{**sizes, **changes})


def ideal_job(
    software, *, devices=1, batch=8, sequence=256, model=None, interference=0.0, more=None, **rates
):
    """Return a job of a shipped stack on an ideal cluster of ``rates``; ``more`` are fields of the job."""
    return Job(
        name="small",
        model=model or small_model(),
        cluster=ideal_cluster(devices, **rates),
        stack=ideal_stack(software, interference),
        kernels=ideal_kernels(),
        workload=Workload(sequence_length=sequence, global_batch_size=batch),
        **(more or {}),
    )


def parts(job, text, zero=None):
    """Return the seconds of a layout's step by part."""
    stage = job.stack.rules.default_zero if zero is None else zero
    layout = parse_layout(text, layers=job.model.layers, devices=job.cluster.devices, zero=stage)
    return predict(job, layout).time


def ideal_serving_job(model=None, devices=1, engine="vllm@0.11", facts=None, **rates):
    """Return a serving job on an ideal cluster; an engine's step has no overhead but what ``facts`` say."""
    job = resolve_serving_job(
        ServingSpec.model_validate(
            {
                "kind": "serving",
                "model": "llama3-8b",
                "hardware": "dgx-a100-80gb",
                "devices": devices,
                "stack": engine,
                "workload": {"input_tokens": 1024, "output_tokens": 1024},
            }
        )
    )
    step = with_numbers(job.engine.facts.step, scale=1.0, host=0.0, host_per_request=0.0, eager_kernel=0.0)
    step = step.model_copy(update={"pads": False, "graphs": "all"})
    step = with_numbers(step, **(facts or {}))
    facts_of_engine = job.engine.facts.model_copy(update={"step": step})
    return replace(
        job,
        model=model or small_model(),
        engine=replace(job.engine, facts=facts_of_engine),
        cluster=ideal_cluster(devices, **rates),
    )
