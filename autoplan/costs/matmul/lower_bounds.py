"""Least communication of a distributed product, whatever its scheme.

Notation (this file only)::

    m, n, k     extents of the product                                        [1]
    x, y, z     the three extents in descending order                         [1]
    p           devices, each with as many of the products                    [1]
    M           elements that a device's memory holds                         [1]
"""

from __future__ import annotations

from math import sqrt

__all__ = ["least_words", "least_words_for_memory", "least_words_of_any_memory"]


def least_words_of_any_memory(m: float, n: float, k: float, p: float) -> float:
    """Return the elements of A and W that some device must receive, and of Y send, with any memory [1].

    D - (m n + m k + n k) / p where operands begin and the result ends in one copy, and D is
    (x y + x z) / p + y z for p <= x / y; 2 (x y z^2 / p)^(1/2) + x y / p for p <= x y / z^2;
    3 (x y z / p)^(2/3) above: one, two and three extents are split.

    >>> round(least_words_of_any_memory(1000, 1000, 1000, 8))  # 3 x 250,000 less 3 x 125,000
    375000
    >>> least_words_of_any_memory(1024, 8, 8, 4)  # tall and skinny: all of the small matrix, less its quarter
    48.0

    Leaves out: algorithms that multiply with fewer than m n k products (Strassen).
    Source: Al Daas et al. 2022, arXiv:2205.13407, with tight constants; Ballard et al. 2012,
    arXiv:1202.3177, without.
    """
    x, y, z = sorted((m, n, k), reverse=True)
    if p <= x / y:
        accessed = (x * y + x * z) / p + y * z
    elif p <= x * y / z**2:
        accessed = 2.0 * sqrt(x * y * z**2 / p) + x * y / p
    else:
        accessed = 3.0 * (x * y * z / p) ** (2.0 / 3.0)
    return max(0.0, accessed - (x * y + x * z + y * z) / p)


def least_words_for_memory(m: float, n: float, k: float, p: float, memory: float) -> float:
    """Return the elements that some device must send and receive together with M elements of memory [1].

    m n k / (2 sqrt(2) p sqrt(M)) - M, at least 0: less memory, more communication.

    >>> least_words_for_memory(4000, 4000, 4000, 8, 5000) > least_words_for_memory(4000, 4000, 4000, 8, 20000)
    True

    Leaves out: algorithms that multiply with fewer than m n k products (Strassen).
    Source: Irony, Toledo and Tiskin 2004, doi:10.1016/j.jpdc.2004.03.021; Ballard et al. 2011,
    arXiv:0905.2485, for all of linear algebra.
    """
    return max(0.0, m * n * k / (2.0 * sqrt(2.0) * p * sqrt(memory)) - memory)


def least_words(m: float, n: float, k: float, p: float, memory: float) -> float:
    """Return the elements that some device must send, where devices send as much as they receive [1].

    The larger of both bounds, of which the one with M elements of memory counts what is sent and received.

    >>> round(least_words(1000, 1000, 1000, 8, 1e12))
    375000

    Source: as for both.
    """
    return max(least_words_of_any_memory(m, n, k, p), least_words_for_memory(m, n, k, p, memory) / 2.0)
