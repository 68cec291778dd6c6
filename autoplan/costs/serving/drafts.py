"""Memory of speculative decoding: weights of the model that drafts, and its share of the cache.

Notation (this file only)::

    h  hidden size          V  rows of the vocabulary       t  tensor-parallel degree    [1]
    w  hidden states that a drafting layer reads at once                                 [1]

n-gram drafts are copied from the request and take nothing. EAGLE and multi-token prediction (MTP) have one
layer like the model's, a product of w hidden states before it, and embedding and output projection of the
model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from autoplan.costs.serving.engine_memory import stage_weights
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.kv_cache import token_layer_bytes
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_choices import FormatChoices
from autoplan.schema.serving.serving_spec import ServingJob

#: Words of the output projection of EAGLE-3: draft_vocab_size of the published checkpoints, for example
#: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B config.json.
_EAGLE3_WORDS: Final = 32_000
#: Hidden states that the product before a drafting layer reads (SafeAILab/EAGLE, model/cnets.py: fc;
#: DeepSeek-V3, arXiv:2412.19437, section 2.2: M_k).
_JOINED: Final = {"eagle": 2, "eagle3": 3, "mtp": 2}


def drafting_scope(scope: EngineScope) -> EngineScope | None:
    """Return the scope of the model that drafts, on the devices of the last stage; None without one.

    Its weights have 16 bits, but for multi-token prediction, whose layer is one of the model's.

    >>> mtp = SpeculationSpec(method="mtp", tokens=(1,), acceptance=0.85)
    >>> job = replace(load_serving_job("deepseek-v3-8x-h200"), speculation=mtp)
    >>> drafting = drafting_scope(EngineScope(job, EngineLayout(tp=4, pp=2, weights="fp8", spec=1)))
    >>> drafting.model.layers, str(drafting.layout)
    (1, 'tp=4,pp=1,replicas=1,ep=1,adp=1,weights=fp8,kv=auto,spec=0')
    """
    return scope.once(_drafting)


def _drafting(scope: EngineScope) -> EngineScope | None:
    job = _drafting_job(scope.job)
    return None if job is None else EngineScope(job, _drafting_layout(scope))


def _drafting_job(job: ServingJob) -> ServingJob | None:
    speculation, model = job.speculation, job.model
    if speculation is None or speculation.method == "ngram":
        return None
    if speculation.method == "draft_model":
        drafting = job.draft or model
    elif speculation.method == "mtp":
        drafting = _one_layer(model, model.vocabulary, experts=True)
    else:
        words = min(model.vocabulary, _EAGLE3_WORDS) if speculation.method == "eagle3" else model.vocabulary
        drafting = _one_layer(model, words, experts=False)
    mtp = speculation.method == "mtp"
    precision = job.precision if mtp else FormatChoices(kv_cache=job.precision.kv_cache)
    return replace(job, model=drafting, precision=precision, speculation=None, draft=None)


def _one_layer(model: ModelSpec, words: int, *, experts: bool) -> ModelSpec:
    moe = model.moe.model_copy(update={"first_dense_layers": 0, "every": 1}) if model.moe else None
    changes = {"layers": 1, "moe": moe if experts else None, "sliding_window": None, "vocabulary": words}
    return model.model_copy(update=changes)


def _drafting_layout(scope: EngineScope) -> EngineLayout:
    job, layout = scope.job, scope.layout
    mtp = job.speculation is not None and job.speculation.method == "mtp"
    return EngineLayout(
        tp=layout.tp,
        adp=layout.adp,
        ep=layout.ep if mtp else 1,
        kv="auto" if layout.kv == "fp8_ds_mla" and not mtp else layout.kv,
        weights=layout.weights if mtp else "bf16",
    )


def joined_states(job: ServingJob) -> int:
    """Return w, the hidden states that the product before a drafting layer reads [1]; 0: there is none.

    >>> joined_states(load_serving_job("llama3-70b-8x-h100"))
    0
    """
    return _JOINED.get(job.speculation.method, 0) if job.speculation else 0


def draft_weight_bytes(scope: EngineScope) -> float:
    """Return the weights of drafts on a device of the last stage [byte].

    A draft model: all of it. Else a layer, 2 w h^2 of the product before it, and of EAGLE-3
    2 V h / t of its output projection.

    >>> job = replace(serving_job, speculation=eagle)
    >>> layer = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336
    >>> drafts = draft_weight_bytes(EngineScope(job, EngineLayout(spec=3)))
    >>> drafts / 2 - layer - 2 * 4096**2  # two norms are left
    8192.0

    Leaves out: EAGLE's queries, keys and values over twice the width.
    Source: SafeAILab/EAGLE, model/cnets.py.
    """
    job, drafting = scope.job, drafting_scope(scope)
    if drafting is None or not scope.layout.spec or job.speculation is None:
        return 0.0
    weights = stage_weights(drafting, 0)
    if job.speculation.method == "draft_model":
        return weights.total
    h = float(job.model.hidden_size)
    head = (
        2.0 * drafting.model.vocabulary * h / scope.layout.tp if job.speculation.method == "eagle3" else 0.0
    )
    vectors = 2.0 * 2 * h
    return (
        weights.attention + weights.mlp + weights.experts + vectors + 2.0 * joined_states(job) * h * h + head
    )


def draft_token_bytes(scope: EngineScope) -> float:
    """Return the bytes of a token in the cache of drafts on a device of the last stage [byte].

    >>> job = replace(serving_job, speculation=eagle)
    >>> [draft_token_bytes(EngineScope(job, EngineLayout(spec=n))) for n in (3, 0)]  # a 32nd
    [4096.0, 0.0]
    """
    drafting = drafting_scope(scope)
    if drafting is None or not scope.layout.spec:
        return 0.0
    return drafting.model.layers * token_layer_bytes(drafting)
