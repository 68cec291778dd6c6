"""Tokens that a step with drafts gives, and the steps of an answer.

Notation (this file only)::

    g  drafts of a step       q  probability that a draft is accepted                [1]
    Y  tokens of a step       n  tokens that an answer has yet to get                [1]
    a  mean of Y              s  variance of Y                                       [1]

A draft counts only where all before it were accepted, and the model adds one token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.serving.queueing.length_moments import LengthMoments


@dataclass(frozen=True)
class AcceptedTokens:
    """Accepted drafts: ``drafts`` in a step, each accepted with probability ``acceptance``."""

    drafts: int
    acceptance: float

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities of 1, 2, ... g + 1 tokens [1]: q^(y-1) (1 - q), the last q^g."""
        q, counts = self.acceptance, np.arange(self.drafts + 1)
        each = q**counts * (1.0 - q)
        each[-1] = q**self.drafts
        return np.asarray(each)

    @cached_property
    def mean(self) -> float:
        """Mean tokens of a step [1]: (1 - q^(g+1)) / (1 - q).

        Source: Leviathan et al. 2022, arXiv:2211.17192, equation 1.

        >>> round(AcceptedTokens(3, 0.8).mean, 3), AcceptedTokens(1, 0.85).mean, AcceptedTokens(4, 1.0).mean
        (2.952, 1.85, 5.0)
        """
        return float((self.probabilities * np.arange(1, self.drafts + 2)).sum())

    @cached_property
    def variance(self) -> float:
        """Variance of the tokens of a step [1].

        >>> AcceptedTokens(1, 0.5).variance
        0.25
        """
        squares = self.probabilities * np.arange(1, self.drafts + 2) ** 2
        return float(squares.sum()) - self.mean**2

    @cached_property
    def beyond(self) -> float:
        """Mean tokens of the last step beyond the end of a long answer [1]: E[Y^2] / 2a - 1/2.

        They are lost. Source: renewal theory, Feller 1971, An Introduction to Probability Theory and Its
        Applications 2, section XI.4, for integers.

        >>> AcceptedTokens(0, 0.5).beyond, AcceptedTokens(3, 1.0).beyond
        (0.0, 1.5)
        """
        return (self.variance + self.mean**2) / (2.0 * self.mean) - 0.5

    def steps(self, tokens: float) -> float:
        """Return the mean steps that ``tokens`` tokens take [1]: (n + tokens beyond the end) / a.

        >>> AcceptedTokens(3, 0.0).steps(10.0), round(AcceptedTokens(1, 0.5).steps(100.0), 2)
        (10.0, 66.89)

        Leaves out: that answers of a few tokens take a little less or more.
        """
        return (tokens + self.beyond) / self.mean if tokens > 0 else 0.0

    def in_steps(self, lengths: LengthMoments) -> LengthMoments:
        """Return ``lengths`` with an answer's steps in the place of its tokens; its contexts are the same.

        >>> rules = SchedulerRules(8, 64, BlockPool(999, 4))
        >>> lengths = length_moments(RequestLoad((8,), (21,), (0.0,)), rules)
        >>> AcceptedTokens(4, 1.0).in_steps(lengths).output  # 20 tokens, and 2 beyond the end
        5.4
        """
        if not self.drafts or lengths.output <= 1:
            return lengths
        return replace(lengths, output=1.0 + self.steps(lengths.output - 1.0), fixed=False)

    def drawn(self, outputs: tuple[int, ...], seed: int) -> tuple[int, ...]:
        """Return the steps, the prompt's among them, of answers of ``outputs`` tokens, drawn at random.

        Normal around the mean with the variance s n / a^3, between n / (g + 1) and n; of a few tokens, too.

        >>> AcceptedTokens(2, 1.0).drawn((1, 2, 13), 0)
        (1, 2, 5)

        Source: the central limit theorem of renewal processes, Feller 1971, section XI.5.
        """
        left = np.array(outputs, dtype=np.int64) - 1
        spread = np.sqrt(self.variance * left / self.mean**3)
        noise = np.random.default_rng(seed).normal(size=len(left)) * spread
        steps = np.rint((left + self.beyond) / self.mean + noise)
        least = np.ceil(left / (self.drafts + 1))
        steps = np.where(left > 0, np.clip(steps, least, left), 0)
        return tuple((1 + steps).astype(np.int64).tolist())
