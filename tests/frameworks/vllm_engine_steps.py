"""Runs vLLM's engine in this process on a tiny model of dummy weights, and says what each step scheduled.

Run by the Python that has vLLM: cases as JSON on standard input, one answer for each on standard output. Time
is counted in steps of the engine, so that answers do not depend on how fast the machine is.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def main():
    """Answer the cases of standard input; what the engine prints goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        said = [answered(folder, case) for case in json.load(sys.stdin)]
    json.dump(said, answers)


def answered(folder, case):
    """Return what the engine does with the requests of a case, and how many blocks its cache has."""
    from vllm import EngineArgs, LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            disable_log_stats=True,
            **case["settings"],
        )
    )
    core = engine.engine_core.engine_core
    try:
        # One block is a placeholder that no request gets.
        blocks = core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
        return {"blocks": blocks, **Run(engine, core.scheduler, case).ended()}
    finally:
        engine.engine_core.shutdown()


class Run:
    """Requests of a case on an engine, which come at steps or as clients have their answers."""

    def __init__(self, engine, scheduler, case):
        self.engine, self.requests, self.step = engine, case["requests"], 0
        self.clients, self.sent, self.preempted = case.get("clients", 0), 0, 0
        self.seen, self.tokens = {}, []
        self.schedule, scheduler.schedule = scheduler.schedule, self.watched

    def watched(self, *arguments, **named):
        """Schedule a step, and keep what it has."""
        made = self.schedule(*arguments, **named)
        self.preempted += len(made.preempted_req_ids or ())
        self.tokens.append(made.total_num_scheduled_tokens)
        for name in made.num_scheduled_tokens:
            self.seen.setdefault(int(name.split("-")[0]), {"scheduled": self.step})
        return made

    def ended(self):
        """Return when each request was scheduled first, had its first token, and ended [steps]."""
        engine = self.engine
        while engine.has_unfinished_requests() or self.sent < len(self.requests):
            if not self.clients and not engine.has_unfinished_requests():
                self.step = max(self.step, self.requests[self.sent]["arrival"])
            self.send()
            outputs = engine.step()
            self.step += 1
            for output in outputs:
                self.take(output)
        return {
            "requests": [self.seen[at] for at in range(len(self.requests))],
            "tokens": self.tokens,
            "preempted": self.preempted,
        }

    def send(self):
        """Give the engine the requests that are due."""
        while self.sent < len(self.requests):
            running = self.sent - sum("last" in times for times in self.seen.values())
            due = running < self.clients if self.clients else self.requests[self.sent]["arrival"] <= self.step
            if not due:
                return
            add(self.engine, str(self.sent), self.requests[self.sent])
            self.sent += 1

    def take(self, output):
        """Keep when a request had a token."""
        times = self.seen[int(output.request_id)]
        if output.outputs and output.outputs[0].token_ids:
            times.setdefault("first", self.step)
        if output.finished:
            times |= {"last": self.step, "cached": output.num_cached_tokens}


def add(engine, name, request):
    """Give a request to the engine; its prompt begins with tokens that others may have, then its own."""
    from vllm import SamplingParams

    shared = request.get("shared", 0)
    own = [(7 * int(name) + at * (int(name) + 3)) % 250 for at in range(request["input"] - shared)]
    prompt = {"prompt_token_ids": [at % 250 for at in range(shared)] + own}
    sampling = SamplingParams(max_tokens=request["output"], ignore_eos=True, detokenize=False)
    engine.add_request(name, prompt, sampling)


if __name__ == "__main__":
    main()
