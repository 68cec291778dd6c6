"""Megatron-LM: arguments of its training programs, in both directions.

Names and meanings are those of ``megatron/training/arguments.py`` and ``megatron/core/transformer/`` at the
version that ``megatron_lm.TARGET`` names: ``specs/interfaces/megatron-lm.yaml`` has the bindings, and
``megatron-lm.json`` every argument with the number of its values.
"""
