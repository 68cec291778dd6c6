"""What examples in docstrings may use without importing it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _names_of_examples(doctest_namespace: dict[str, object]) -> None:
    # Imported here: a run that collects one quick test loads no cost model before its own imports do.
    from tests.support.example_names import example_names

    doctest_namespace.update(example_names())
