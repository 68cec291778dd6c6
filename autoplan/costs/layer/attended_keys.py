"""Keys that a token attends to, and those that a kernel computes for it.

Notation (this file only)::

    s  tokens of a sequence              [1]
    w  width of a sliding window         [1]
    n  tokens of a document              [1]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.sizes import causal_keys
from autoplan.schema.job import Job, document_pieces
from autoplan.schema.model import ModelSpec


def mean_keys(job: Job) -> float:
    """Return the mean number of keys that a token attends to, over tokens and layers [1].

    (s + 1)/2 for causal attention; w - w(w-1)/(2s) with a sliding window w < s; 0 in layers with linear
    attention. Of documents packed into the
    sequence, s is a token's own: with lengths n, (E[n^2]/E[n] + 1)/2.

    >>> from autoplan.schema.job import Workload
    >>> job = load_job("llama3-8b-8x-a100")
    >>> mean_keys(job)  # 8,193 / 2
    4096.5
    >>> packed = Workload(sequence_length=8192, global_batch_size=128, documents=(1000, 3000))
    >>> mean_keys(replace(job, workload=packed))  # (1,000 x 500.5 + 3,000 x 1,500.5) / 4,000
    1250.5

    Leaves out: the spread of lengths around a window, where mean and deviation alone are given; document
    masks of attention that is not fused, which computes what it masks.
    Source: the sum of min(i, w) over i = 1..s, over s.
    """
    model, work = job.model, job.workload
    whole = ((float(work.sequence_length), 1.0),)
    pieces = document_pieces(work.documents, work.sequence_length) if work.documents else whole
    windows = [_window(model, layer) for layer in range(model.layers)]
    keys = {
        window: sum(share * float(causal_keys(np.asarray(s), window)) for s, share in pieces)
        for window in set(windows)
    }
    return sum(keys[window] for window in windows) / model.layers


def visited_keys(job: Job) -> float:
    """Return the mean number of keys that a fused kernel computes for a token [1], ``mean_keys`` or more.

    A kernel that reads its mask from memory skips none of a sequence.

    >>> job = load_job("llama3-8b-8x-a100")
    >>> masked = job.stack.block.model_copy(update={"attention": "masked"})
    >>> masked = replace(job, stack=job.stack.model_copy(update={"block": masked}))
    >>> visited_keys(job), visited_keys(masked)
    (4096.5, 8192.0)

    Source: PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: FlashAttention takes no attn_mask;
    the memory-efficient kernel, whose loop over keys ends early under is_causal alone, does
    (mem_eff_attention/kernel_forward.h). huggingface/transformers issue 30461: training of Mistral 7B is 1.3
    times as long at 4,096 tokens with such a mask, 1.6 at 8,192.
    """
    masked = job.stack.block.attention == "masked"
    return float(job.workload.sequence_length) if masked else mean_keys(job)


def _window(model: ModelSpec, layer: int) -> float:
    """Return the most keys that a token attends to in a layer: none in linear attention."""
    return 0.0 if model.is_linear_layer(layer) else model.attention_window(layer) or np.inf
