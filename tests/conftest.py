"""Settings of every test."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every machine and no clock: a change breaks a test, or nothing does. To look for new
# examples, run with `--hypothesis-seed=random --hypothesis-profile=explore`.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=2_000)
settings.load_profile("steady")
