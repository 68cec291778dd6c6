"""Selective recompute of layers with experts whose parts are compiled one by one (torchtitan --compile)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import load_entry, load_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.layer.alternate_recompute import alternate_gemms, products_of_attention
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.schema.layout import parse_layout

EXPERTS = replace(load_job("llama3-8b-8x-a100"), model=load_entry("model", "qwen3-30b-a3b"))
DENSE = load_job("llama3-8b-8x-a100")


def kept(job, name, text="zero=3"):
    """Return the bytes of a token that a layer keeps under selective recompute."""
    layout = parse_layout(text, layers=job.model.layers, devices=8)
    saved = saved_bytes_per_token(replace(job, stack=stack(name)), Candidates.of([layout]))
    return float(saved.recomputed["selective"][0])


def test_compiled_parts_keep_the_output_of_the_attention_kernel_alone():
    """The input of 2,048, the kernel's output of 32 heads of 128, and 4 bytes a head."""
    assert kept(EXPERTS, "fsdp2-compile") == 2 * 2048 + 2 * 32 * 128 + 4 * 32
    # Without compilation products of queries, of values and of the router stay, too.
    products = 2 * 32 * 128 + 2 * 4 * 128 + 2 * 128
    assert kept(EXPERTS, "fsdp2") - kept(EXPERTS, "fsdp2-compile") == pytest.approx(products)


def test_with_split_sequences_both_reduce_scatters_are_kept():
    """A fourth of input and kernel each, and a fourth of both outputs."""
    assert kept(EXPERTS, "fsdp2-compile", "tp=4,zero=3") == (4 * 2048 + 2 * 2048 + 2 * 32 * 128 + 4 * 32) / 4


def test_a_whole_block_that_is_compiled_keeps_what_an_eager_one_keeps():
    """A dense block is one graph, which the partitioner cuts by the same list."""
    assert kept(DENSE, "fsdp2-compile") == kept(DENSE, "fsdp2")


def test_all_products_of_attention_are_made_again():
    """Queries, keys, values, output, instead of keys and output."""
    one = np.ones(1)
    made_again = products_of_attention(EXPERTS.model, one, one, one)
    usual = [x for x in alternate_gemms(EXPERTS.model, one, one, one) if x.number]
    assert (len(made_again), len(usual)) == (4, 2)
