"""A tiny Llama trained under the layouts that autoplan plans, with its collectives counted."""
