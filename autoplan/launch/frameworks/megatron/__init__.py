"""Megatron-LM: arguments of its training programs, in both directions.

Names and meanings are those of ``megatron/training/arguments.py`` and ``megatron/core/transformer/`` at the
version that ``megatron_lm.TARGET`` names; ``argument_names.json`` lists every argument with the number of
its values.
"""
