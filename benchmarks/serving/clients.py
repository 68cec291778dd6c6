"""Clients of measured runs: prompts that an earlier run of a session sent, and answers that end early.

Notation (this file only)::

    n  tokens of a prompt      h  tokens of it that the prefix cache has             [1]
    m  mean tokens of an answer, M  most tokens of one                               [1]
    k  rate of the exponential distribution of answers, cut at M                     [1]

Clients that draw prompts from a fixed seed send the same ones in each run, and shorter prompts are the
beginnings of longer ones. A server that keeps them computes what it has not seen.

Source: vllm benchmarks/datasets.py, RandomDataset: DEFAULT_SEED = 0, tokens (offset + index + 0, 1, ...) mod
the vocabulary; vllm-project/vllm issues 52884 and 54227 have measured what it does to a sweep; vllm
benchmarks/serve.py sends the first prompt once before each run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import exp, expm1
from statistics import fmean

import numpy as np

from benchmarks.serving.served_jobs import facts_of_runs
from benchmarks.serving.served_runs import ServedRun

__all__ = ["PromptCache", "early_ends", "hit_rate"]


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


def early_ends(run: ServedRun, requests: int, seed: int = 0) -> tuple[int, ...]:
    """Return the tokens of answers that end where the model ends them; empty where all are alike.

    A row has their mean m alone, and its client the most, M. Of all distributions over 1 to M with that mean
    the one that assumes least, exp(-k x) cut at M, is taken (maximum entropy; Jaynes 1957).
    """
    matches = (re.search(entry["rows"], run.id) for entry in facts_of_runs("early_ends"))
    most = next((int(match["most"]) for match in matches if match), 0)
    mean = run.workload.output_len or 1
    if not 1 < mean < most:
        return ()
    parts = (np.arange(requests) + 0.5) / requests
    rate = _rate(mean / most)
    shares = parts if abs(rate) < 1e-6 else -np.log1p(parts * expm1(-rate)) / rate
    answers = np.maximum(1, np.rint(shares * most)).astype(np.int64)
    return tuple(np.random.default_rng(seed).permutation(answers).tolist())


def _rate(mean: float) -> float:
    """Return k for a mean of shares of 0 to 1: 1 / k - 1 / (exp(k) - 1), which falls with k.

    >>> abs(_rate(0.5)) < 1e-6, round(_mean(_rate(0.2)), 3)
    (True, 0.2)
    """
    low, high = -700.0, 700.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _mean(middle) > mean else (low, middle)
    return low


def _mean(rate: float) -> float:
    return 0.5 - rate / 12 if abs(rate) < 1e-4 else 1.0 / rate - exp(-rate) / -expm1(-rate)
