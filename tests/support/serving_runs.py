"""A run of the serving benchmark, as a row of its data has it."""

RUN = {
    "id": "x-1",
    "group": "Llama-3.1-8B|h100-sxm5-80gb|vllm",
    "hardware": {"gpu": "h100-sxm5-80gb", "gpus": 1},
    "model": {
        "name": "Llama-3.1-8B",
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocab": 128256,
    },
    "workload": {"concurrency": 4, "input_len": 256, "output_len": 16, "mode": "online closed loop"},
    "measured": {"ttft_ms": 40, "tpot_ms": 9},
    "layout": {"tp": 1, "weight_dtype": "fp16", "framework": "vllm 0.12.0"},
    "client": {"lengths": "fixed", "requests": 16},
}
