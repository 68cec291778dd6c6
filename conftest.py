"""What examples in docstrings may use without importing it."""

from __future__ import annotations

import pytest

from tests.support.affine_iteration import AffineIteration


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["AffineIteration"] = AffineIteration
