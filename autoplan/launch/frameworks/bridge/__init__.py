"""Megatron Bridge: overrides of a recipe's ConfigContainer, which holds Megatron-Core's own settings."""
