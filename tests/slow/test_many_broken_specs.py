"""Broken specs by the thousand: an exit code of 0, 1 or 2, and never a traceback."""

from __future__ import annotations

import pytest

from tests.support.broken_specs import broken_specs
from tests.support.spec_runs import assert_answered_or_refused, swept_here

#: `make test` takes the first hundred.
SPECS = 2_000
BATCH = 500


@pytest.mark.parametrize("batch", range(SPECS // BATCH))
def test_thousands_of_broken_specs_are_answered_or_refused(tmp_path, monkeypatch, batch):
    """Each ends in time with an answer, or with an error that names a file or the layout."""
    monkeypatch.chdir(tmp_path)
    with swept_here(monkeypatch):
        for spec in broken_specs(range(batch * BATCH, (batch + 1) * BATCH)):
            assert_answered_or_refused(spec, tmp_path)
