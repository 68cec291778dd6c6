"""Clients of measured runs: prompts that an earlier run sent, and the lengths of prompts and answers.

Notation (this file only)::

    n  tokens of a prompt      h  tokens of it that the prefix cache has             [1]
    m  mean tokens of a prompt or an answer, M  most tokens of one                   [1]
    k  rate of the exponential distribution of lengths, over 1 / M                   [1]

Clients that draw prompts from a fixed seed send the same ones in each run, and shorter prompts are the
beginnings of longer ones. A server that keeps them computes what it has not seen.

Source: vllm benchmarks/datasets.py, RandomDataset: DEFAULT_SEED = 0, tokens (offset + index + 0, 1, ...) mod
the vocabulary; vllm-project/vllm issues 52884 and 54227 have measured what it does to a sweep; vllm
benchmarks/serve.py sends the first prompt once before each run. vllm benchmarks/datasets.py,
is_valid_sequence, and sglang bench_serving.py, sample_sharegpt_requests: prompts of ShareGPT have at most
1,024 tokens, and 2,048 with their answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import exp, expm1
from statistics import fmean

import numpy as np

from autoplan.costs.serving.queueing.request_load import RequestLoad
from benchmarks.serving.served_jobs import facts_of_runs
from benchmarks.serving.served_runs import ServedRun

__all__ = ["PromptCache", "hit_rate", "with_told_lengths"]

#: Most tokens of a prompt of ShareGPT, and of one with its answer.
_PROMPT, _BOTH = 1024, 2048


class PromptCache:
    """Prefix caches of the engines behind a router that sends requests to each in turn; least used first out.

    >>> cache = PromptCache(engines=1, capacity=100)
    >>> cache.run(requests=4, tokens=10), cache.run(4, 20), cache.run(4, 5)
    (0.0, 0.5, 1.0)
    """

    def __init__(self, engines: int, capacity: int) -> None:
        self._engines: list[dict[int, int]] = [{} for _ in range(engines)]
        self._capacity = capacity
        self._sent = 0

    def run(self, requests: int, tokens: int, tests: int = 0) -> float:
        """Return the share of tokens that are cached in a run of so many prompts of n tokens [1].

        ``tests``: requests with the first prompt that a client sends before it measures.
        """
        for _ in range(tests):
            self._send(0, tokens)
        return sum(self._send(prompt, tokens) for prompt in range(requests)) / (requests * tokens)

    def _send(self, prompt: int, tokens: int) -> int:
        """Return h of a prompt, which is then the one used last."""
        engine = self._engines[self._sent % len(self._engines)]
        self._sent += 1
        held = engine.pop(prompt, 0)
        engine[prompt] = max(held, tokens)
        room = self._capacity - sum(engine.values())
        while room < 0 and len(engine) > 1:
            room += engine.pop(next(iter(engine)))
        return min(held, tokens)


@dataclass(frozen=True, slots=True)
class _Session:
    """Runs of a client one after the other, by the end of their ids, with tokens and number of prompts."""

    prefix: str
    tests: int
    runs: tuple[tuple[str, int, int], ...]


@cache
def _sessions() -> tuple[_Session, ...]:
    return tuple(
        _Session(entry["prefix"], entry["tests"], tuple((str(x), int(y), int(z)) for x, y, z in runs))
        for entry in facts_of_runs("sessions")
        for runs in entry["runs"]
    )


def hit_rate(run: ServedRun, engines: int, capacity: int) -> float:
    """Return the share of a run's prompt tokens that earlier requests left in the caches [1].

    A row that stands for several runs, which its session has more than once, has their mean.
    ``capacity``: tokens of each of the ``engines`` that compute prompts.
    """
    for entry in facts_of_runs("documents"):
        if re.search(entry["rows"], run.id):
            return float(entry["share"])
    for session in _sessions():
        end, prompts = run.id.removeprefix(session.prefix), PromptCache(engines, capacity)
        if run.id.startswith(session.prefix) and any(end == one for one, _, _ in session.runs):
            rates = [(one, prompts.run(count, n, session.tests)) for one, n, count in session.runs]
            return fmean(rate for one, rate in rates if one == end)
    return 0.0


def with_told_lengths(run: ServedRun, load: RequestLoad, seed: int = 0) -> RequestLoad:
    """Return a load whose prompts and answers are as long as the client of a run had them.

    A row has the mean alone, and its client the most, M. Conversations of ShareGPT that are longer than M
    are left out: of all distributions over 1 to M with that mean the one that assumes least, exp(-k x / M),
    is taken (maximum entropy; Jaynes 1957). Answers that the model would end beyond M are M long.
    """
    told, requests = (run.client.lengths if run.client else None) or "", len(load)
    most, inputs, outputs = _most_of_answers(run), run.workload.input_len or 1, run.workload.output_len or 1
    if told.startswith("ShareGPT"):
        load = replace(load, inputs=_spread(inputs, _PROMPT, requests, seed + 1) or load.inputs)
        if not most:
            left = _BOTH - max(load.inputs)
            return replace(load, outputs=_spread(outputs, left, requests, seed) or load.outputs)
    return replace(load, outputs=_spread(outputs, most, requests, seed, stopped=True) or load.outputs)


def _most_of_answers(run: ServedRun) -> int:
    """Return the most tokens of an answer that ends where the model ends it; 0 where answers are alike."""
    for entry in facts_of_runs("early_ends"):
        match = re.search(entry["rows"], run.id)
        if match:
            return int(entry.get("most") or match["most"])
    return 0


def _spread(mean: int, most: int, requests: int, seed: int, *, stopped: bool = False) -> tuple[int, ...]:
    """Return lengths with a mean, M at most; empty where all are alike.

    ``stopped``: longer ones are as long as M, otherwise they are none of the lengths.
    """
    if not 1 < mean < most:
        return ()
    parts = (np.arange(requests) + 0.5) / requests
    mean_of = _stopped_mean if stopped else _mean
    rate = _rate(mean / most, mean_of)
    shares = parts if abs(rate) < 1e-6 else -np.log1p(parts * (-1.0 if stopped else expm1(-rate))) / rate
    lengths = np.clip(np.rint(shares * most), 1, most).astype(np.int64)
    return tuple(np.random.default_rng(seed).permutation(lengths).tolist())


def _rate(mean: float, mean_of: Callable[[float], float]) -> float:
    """Return k at which the mean, which falls with k, is ``mean`` of the most [1].

    >>> abs(_rate(0.5, _mean)) < 1e-6, round(_mean(_rate(0.2, _mean)), 3)
    (True, 0.2)
    >>> round(_stopped_mean(_rate(0.92, _stopped_mean)), 3)
    0.92
    """
    low, high = -700.0, 700.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) > mean else (low, middle)
    return low


def _mean(rate: float) -> float:
    """Return the mean of exp(-k x) over 0 to 1: 1 / k - 1 / (exp(k) - 1)."""
    return 0.5 - rate / 12 if abs(rate) < 1e-4 else 1.0 / rate - exp(-rate) / -expm1(-rate)


def _stopped_mean(rate: float) -> float:
    """Return the mean of the lesser of 1 and an exponential of rate k: (1 - exp(-k)) / k, at most 1."""
    return 1.0 if rate < 1e-6 else -expm1(-rate) / rate
