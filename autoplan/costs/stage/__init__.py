"""One pipeline stage: its cost per microbatch and per step."""
