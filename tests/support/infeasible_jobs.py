"""Jobs without a plan, and the kinds of change that each is to be offered."""

from __future__ import annotations

__all__ = ["JOBS"]


def job(extra="", *, devices=2, batch=8, length=4096, hardware="dgx-a100-80gb", model="llama2-7b"):
    """Return the text of a job file; ``devices`` may be a list, or None for all of the hardware."""
    lines = [
        "# A job of ours.",
        "kind: training",
        f"model: {model}",
        f"hardware: {hardware}",
        *([f"devices: {devices}  # what is free"] if devices else []),
        f"workload: {{sequence_length: {length}, global_batch_size: {batch}}}",
        *extra.splitlines(),
        *([] if "objectives" in extra else ["objectives: [step_time]"]),
        *([] if "program:" in extra else ["program: any-layout"]),
    ]
    return "\n".join(lines) + "\n"


PRICE = "price: {per_device_hour: 2.5, date: 2026-11-01}"
ONE_F_ONE_B = "schedule: 1f1b, recompute: [none, full]"

#: Text of each job, what conflicts in it, where that is one set only, and kinds that must be offered.
JOBS = {
    "own memory limit": (
        job("limits: {peak_memory: 40 GiB}  # ours\nobjectives: [step_time, peak_memory]"),
        ["limits.peak_memory is 40.0 GiB"],
        ["a higher memory limit", "more devices"],
    ),
    "headroom": (
        job("limits:\n  memory_headroom: 50 %"),
        ["limits.memory_headroom is 0.5", "memory: 2 devices of 79.2 GiB each (NVIDIA A100 SXM4 80GB)"],
        ["a higher memory limit"],
    ),
    "no recompute": (
        job("search: {recompute: none, schedule: 1f1b}", length=16384),
        [
            "search.recompute allows none",
            "memory: 2 devices of 79.2 GiB each (NVIDIA A100 SXM4 80GB)",
        ],
        ["recompute", "offload to host memory", "larger devices", "shorter sequences", "low-rank adapters"],
    ),
    "tensor parallelism": (
        job("search: {tensor_parallel: 3, zero_stage: 1}", devices=4),
        ["search.tensor_parallel allows 3"],
        ["wider search.tensor_parallel"],
    ),
    "pipeline": (
        job("search:\n  pipeline_parallel: [3]"),
        ["search.pipeline_parallel allows 3"],
        ["wider search.pipeline_parallel"],
    ),
    "data parallelism": (
        job("search: {data_parallel: 4}", devices=4, batch=7),
        ["search.data_parallel allows 4"],
        ["wider search.data_parallel", "a smaller batch", "a larger batch"],
    ),
    "context parallelism": (
        job("search: {context_parallel: 3}"),
        ["search.context_parallel allows 3"],
        ["wider search.context_parallel"],
    ),
    "expert parallelism": (
        job("search: {expert_parallel: 2}"),
        ["search.expert_parallel allows 2"],
        ["wider search.expert_parallel"],
    ),
    "microbatch": (
        job("search: {microbatch_size: 3}"),
        ["search.microbatch_size allows 3"],
        ["wider search.microbatch_size"],
    ),
    "virtual stages": (
        job("search: {virtual_stages: 3}"),
        ["search.virtual_stages allows 3"],
        ["wider search.virtual_stages"],
    ),
    "ZeRO": (
        job("search: {zero_stage: 3}"),
        ["search.zero_stage allows 3"],
        ["wider search.zero_stage"],
    ),
    "sequence parallelism": (
        job("search: {sequence_parallel: 'on', tensor_parallel: 2}", length=4095),
        ["search.tensor_parallel allows 2", "search.sequence_parallel allows on"],
        ["wider search.sequence_parallel"],
    ),
    "schedule": (
        job("search: {schedule: zero-bubble, pipeline_parallel: 2}"),
        None,
        ["wider search.schedule"],
    ),
    "order of the ranks": (
        job("search: {order: tp-pp-cp-dp}", devices=4),
        ["search.order allows tp-pp-cp-dp"],
        ["wider search.order"],
    ),
    "even stages": (
        job(
            "search: {stages: even, pipeline_parallel: 4, schedule: 1f1b, recompute: none}\n"
            "limits: {peak_memory: 48 GiB}",
            devices=4,
        ),
        None,
        ["wider search.stages"],
    ),
    "two keys": (
        job("search: {tensor_parallel: 3, pipeline_parallel: 3}", devices=4),
        None,
        ["an unrestricted search"],
    ),
    "own rules": (
        job("rules:\n  # ours\n  - tp <= 2\n  - rule: tp * pp >= 4   # why\n    because: a slip\n"),
        ["a slip (rules[1] (line 10): tp * pp >= 4)"],
        ["fewer rules of the job", "more devices"],
    ),
    "rules about stages": (
        job(
            f"search: {{{ONE_F_ONE_B}, pipeline_parallel: 2}}\n"
            "rules: [recompute is uniform, 'full[0] < layers[0]']\nlimits: {peak_memory: 62.8 GiB}",
            length=8192,
        ),
        [
            "search.pipeline_parallel allows 2",
            "rules[1] (line 8): full[0] < layers[0]",
            "limits.peak_memory is 62.8 GiB",
        ],
        ["fewer rules of the job", "a higher memory limit"],
    ),
    "the upper end of the interval": (
        job("limits: {peak_memory: 59.25 GiB}"),
        ["limits.peak_memory is 59.2 GiB"],
        ["memory judged by the central estimate"],
    ),
    "fewer devices than asked for": (
        job("limits: {devices: 2}", devices=4),
        ["limits.devices is 2"],
        ["a higher device limit", "fewer devices"],
    ),
    "other stack by default": (
        job(devices=None, hardware="8x-l40s", model="qwen2.5-72b", batch=16),
        ["memory: 8 devices of 44.4 GiB each (NVIDIA L40S)"],
        ["larger devices"],
    ),
    "kernels of the old device": (
        job("kernels: h100-sxm5-80gb", devices=None, hardware="dgx-h100", model="llama2-70b", batch=16),
        None,
        ["larger devices"],
    ),
    "a named stack": (
        job("search: {recompute: none, schedule: 1f1b}\nstack: hf-fsdp2", length=16384),
        None,
        ["recompute", "larger devices"],
    ),
    "all left to defaults": (
        job("software: {loss: fused}", devices=None, hardware="2x-rtx3090", model="llama3.1-8b").replace(
            "objectives: [step_time]\n", ""
        ),
        None,
        ["more devices"],
    ),
    "batches without objectives": (
        job("search: {data_parallel: 4}", devices=4, batch=[7, 11]).replace("objectives: [step_time]\n", ""),
        None,
        ["wider search.data_parallel", "a smaller batch", "a larger batch"],
    ),
    "optimizer state": (
        job(model="llama2-13b", batch=4),
        ["memory: 2 devices of 79.2 GiB each (NVIDIA A100 SXM4 80GB)"],
        ["an 8-bit or paged optimizer", "low-rank adapters"],
    ),
    "one card": (
        job(
            "stack: ddp\nsearch: {schedule: 1f1b}",
            devices=1,
            batch=4,
            hardware="2x-rtx4090",
            model="llama3.2-1b",
        ),
        None,
        ["a loss in chunks of tokens", "an 8-bit or paged optimizer", "all in bf16", "low-rank adapters"],
    ),
    # Usual programs for one device are others than for two, in the machine of the first.
    "a second card": (
        job(
            "program: usual\nadapters: {rank: 8, base: nf4}\nsearch: {recompute: full, microbatch_size: 1}",
            devices=None,
            hardware="1x-rtx4090",
            model="llama2-70b",
            batch=8,
        ),
        None,
        ["more devices"],
    ),
    "two cards": (
        job(hardware="2x-rtx4090"),
        None,
        ["parameters in host memory", "updates in backward", "low-rank adapters on a quantised base"],
    ),
    "a program": (
        job(
            "program: axolotl\nadapters: {rank: 16}",
            devices=1,
            batch=4,
            hardware="2x-rtx4090",
            model="llama3.1-8b",
        ),
        None,
        ["another program", "low-rank adapters on a quantised base"],
    ),
    "step": (
        job("limits: {step_time: 2 s}"),
        ["limits.step_time is 2.00 s"],
        ["a longer step", "more devices", "shorter sequences", "a smaller batch"],
    ),
    "memory and step": (
        job("limits: {peak_memory: 40 GiB, step_time: 2 s}"),
        None,
        ["a higher memory limit, and a longer step"],
    ),
    "tokens per second": (
        job("limits: {tokens_per_second: 20000}"),
        ["limits.tokens_per_second is 20,000"],
        ["a longer step", "more devices"],
    ),
    "cost": (
        job(f"limits: {{cost: 50}}\n{PRICE}\nobjectives: [cost, peak_memory]"),
        ["limits.cost is 50 USD for a billion tokens"],
        ["a longer step"],
    ),
    "energy": (
        job("limits: {energy: 5 kWh}"),
        ["limits.energy is 5 kWh for a billion tokens"],
        ["a longer step"],
    ),
    "several limits on the step": (
        job(f"limits: {{step_time: 3.5 s, tokens_per_second: 20000, cost: 60}}\n{PRICE}"),
        None,
        ["a longer step"],
    ),
    "several numbers of devices": (
        job("limits: {step_time: 1 s}", devices=[2, 4], batch="[8, 16]"),
        ["limits.step_time is 1.00 s"],
        ["a longer step", "more devices"],
    ),
    "least memory of several": (
        job("limits: {peak_memory: 30 GiB}\nobjectives: [peak_memory]", devices="[1, 2]"),
        ["limits.peak_memory is 30.0 GiB"],
        ["a higher memory limit"],
    ),
    "rules and step": (
        job("rules: [pp == 1]\nlimits: {step_time: 2 s}"),
        ["limits.step_time is 2.00 s"],
        ["a longer step"],
    ),
    "packed documents": (
        job("stack: hf-trainer\nadapters: {rank: 8}", hardware="2x-rtx3090", length=32768).replace(
            "size: 8}", "size: 8, documents: {mean: 600, deviation: 400}}"
        ),
        None,
        ["shorter packed sequences"],
    ),
    "a small card": (
        job("stack: hf-trainer", devices=None, hardware="1x-rtx4090", model="qwen2.5-72b", length=512),
        ["memory: 1 device of 23.6 GiB (NVIDIA GeForce RTX 4090)"],
        ["larger devices, and low-rank adapters on a quantised base"],
    ),
    "a reference": (
        job("stack: hf-trainer\nrl: dpo\nlimits: {peak_memory: 31 GiB}", model="llama3.2-1b", length=512),
        None,
        ["the reference's log-probabilities before training"],
    ),
    "rollouts": (
        job(
            "stack: hf-trainer\nadapters: {rank: 8}\n"
            "rl: {method: grpo, vllm_mode: colocate, vllm_gpu_memory_utilization: 0.6}",
            hardware="2x-rtx3090",
            length=1024,
        ),
        None,
        ["rollouts that leave the devices"],
    ),
}
