"""Matrix products and attention of a layout's layers with their FLOPs, bytes and seconds, for a roofline.

Notation (this file only)::

    m, n, k  extents of a product: [m, k] times [k, n]                                [1]
    r        rows of queries of an attention kernel: heads times tokens of a rank     [1]
    g        rows of keys, and of values: their heads times the same tokens           [1]
    K        mean number of keys that a row attends to in one kernel                  [1]
    w, v     width of a query or key head, and of a value head                        [1]
    e        bytes of an element                                                      [byte]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import numpy as np

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.prediction import AttentionKernel, LayerProduct, LayerProducts, ProductPass
from autoplan.costs.core.scope import tokens_of
from autoplan.costs.core.sizes import attention_widths
from autoplan.costs.device.kernels import Gemm, gemm_seconds, gemm_work
from autoplan.costs.device.machine import Machine, machine_of
from autoplan.costs.layer.attended_keys import visited_keys
from autoplan.costs.layer.context_parallel import attention_steps
from autoplan.costs.layer.gemm_shapes import input_gradient_gemms, weight_gradient_gemms
from autoplan.costs.layer.layer_time import attention_kernel_seconds, layer_gemms
from autoplan.costs.layer.mla import head_widths
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.model import ModelSpec

_PASSES: Final[tuple[ProductPass, ...]] = ("forward", "input gradient", "weight gradient")
_ATTENTION_PASSES: Final[tuple[Literal["forward", "backward"], ...]] = ("forward", "backward")
#: Bytes of the log-sum-exp of a row of scores, which backward reads: fp32.
_ROW_BYTES: Final = 4.0


def step_products(job: Job, layout: Layout) -> LayerProducts:
    """Return products and attention of each layer type for one microbatch on one rank ([FLOP], [byte], [s]).

    The layout must be valid. Attention has 2 r K (w + v) FLOPs forward and 2 r K (3 w + 2 v) backward. It
    moves e (r + g)(w + v) bytes forward and twice that backward, and 4 r bytes of log-sum-exp.

    >>> one = parse_layout("tp=8,mbs=1", layers=32, devices=8)
    >>> answer = step_products(job, one)
    >>> [(x.name, int(x.m), int(x.n), int(x.k)) for x in answer.products if x.product_pass == "forward"][:2]
    [('queries, keys, values', 8192, 768, 4096), ('attention output', 8192, 4096, 512)]
    >>> [round(x.flops / (4 * 8192 * 4096.5 * 512), 3) for x in answer.attention]  # 4 heads of 128 a rank
    [1.0, 2.5]

    Leaves out: adapters (LoRA), attention that is not fused, kernels of linear attention, embedding and head;
    of attention keys and values that are read again where they leave the L2 cache, and fp32 sums of query
    gradients.
    Source: the products that ``costs/layer`` prices; for the tensors of attention Dao 2023
    (FlashAttention-2), arXiv:2307.08691, algorithms 1 and 2.
    """
    machine, candidates = machine_of(job), Candidates.of([layout])
    types = layer_types_of(job.model, job.workload.sequence_length)
    products = [x for one in types.jobs(job) for x in _of_type(one, candidates, machine)]
    kernels = [x for one in types.jobs(job) for x in _attention_kernels(one, candidates, machine)]
    bandwidth = job.cluster.device.memory.bandwidth.value
    products, kernels = list(dict.fromkeys(products)), list(dict.fromkeys(kernels))
    return LayerProducts(machine.peak_flops, bandwidth, tuple(products), tuple(kernels))


def _of_type(job: Job, candidates: Candidates, machine: Machine) -> Iterator[LayerProduct]:
    """Yield the products of one layer type, pass by pass."""
    gemms = layer_gemms(job, tokens_of(job, candidates), candidates)
    passes = (gemms, input_gradient_gemms(gemms), weight_gradient_gemms(gemms))
    names = _names(job.model)
    for product_pass, seconds_of_pass in zip(_PASSES, passes, strict=True):
        for name, gemm in zip(names, seconds_of_pass, strict=True):
            product = _product(name, product_pass, gemm, machine)
            if product.calls > 0:
                yield product


def _product(name: str, product_pass: ProductPass, gemm: Gemm, machine: Machine) -> LayerProduct:
    m, n, k, calls, groups = (float(np.max(x)) for x in gemm)
    extents = (np.array(m), np.array(n), np.array(k))
    flops, hbm_bytes = gemm_work(extents, machine.element_bytes, np.array(groups))
    seconds = float(gemm_seconds(*extents, machine, groups))
    return LayerProduct(
        name=name,
        product_pass=product_pass,
        m=m,
        n=n,
        k=k,
        groups=groups,
        calls=calls,
        flops=float(flops),
        hbm_bytes=float(hbm_bytes),
        seconds=seconds,
    )


def _attention_kernels(job: Job, candidates: Candidates, machine: Machine) -> Iterator[AttentionKernel]:
    """Yield the attention kernel of one layer type, forward and backward; none where it is not fused."""
    if job.stack.block.attention == "eager" or job.model.linear_attention is not None:
        return
    wide, narrow = head_widths(job.model)
    tokens, steps = float(tokens_of(job, candidates)[0]), float(attention_steps(job, candidates)[0])
    # In units of one head's width, so that these are heads of a rank.
    heads, key_heads = attention_widths(job.model, candidates.tp.astype(np.float64), 1.0)
    rows, key_rows = float(heads[0]) * tokens, float(key_heads[0]) * tokens
    keys = visited_keys(job) / steps
    tensors = machine.element_bytes * (rows + key_rows) * (wide + narrow)
    widths, copies = (wide + narrow, 3 * wide + 2 * narrow), (1, 2)
    seconds = attention_kernel_seconds(job, candidates, machine)
    for index, attention_pass in enumerate(_ATTENTION_PASSES):
        yield AttentionKernel(
            attention_pass=attention_pass,
            queries=rows,
            keys=keys,
            calls=steps,
            flops=2.0 * rows * keys * widths[index],
            hbm_bytes=copies[index] * tensors + _ROW_BYTES * rows,
            seconds=float(seconds[index][0]),
        )


def _names(model: ModelSpec) -> list[str]:
    """Return the names of a layer's products, in the order of ``layer_gemms``."""
    mla, moe = model.mla, model.moe
    if model.linear_attention is not None:
        names = ["linear attention in", "linear attention out"]
    elif mla is None:
        names = ["queries, keys, values", "attention output"]
    else:
        down = [] if mla.q_lora_rank is None else ["queries down"]
        names = [*down, "keys and values down", "queries up", "keys and values up", "attention output"]
    up = "up and gate" if model.gated else "up"
    if moe_layer_share(model) < 1:
        names += [f"MLP {up}", "MLP down"]
    if moe is not None:
        names += ["router", f"experts {up}", "experts down"]
        names += [f"shared expert {up}", "shared expert down"] if moe.shared_expert_ffn_size else []
    return names
