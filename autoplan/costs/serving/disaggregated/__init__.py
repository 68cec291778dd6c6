"""Disaggregated serving: pools of prefill and of decode engines, and the cache transfer between them."""
