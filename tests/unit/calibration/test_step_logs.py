"""Step times out of logs: one case for each format, the warm-up, and what is refused."""

import re

import pytest

from autoplan.calibration.logs import read_step_log
from autoplan.catalog import load_job
from autoplan.errors import CatalogError, SpecError

MEGATRON = (
    " [2025-02-24 17:31:25.1] iteration {step:8d}/     100 | consumed samples:          128 |"
    " elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 120.1 |"
    " learning rate: 6.000000E-07 | global batch size:   128 | lm loss: 1.248322E+01 | grad norm: 0.231 |"
)
NEMO = (
    "Training epoch 0, iteration {step}/249 | lr: 1.961e-06 | global_batch_size: 128 | global_step: {step} |"
    " reduced_train_loss: 1.315 | train_step_timing in s: {s}"
)
NEMO_BAR = (
    "Epoch 0: :   2%|2| {step}/100 [01:48<00:00, reduced_train_loss=0.0172, global_step={step},"
    " consumed_samples=256.0, train_step_timing in s={s}]"
)
BRIDGE = "Step Time : {s}s GPU utilization: 528.1 TFLOP/s/GPU"
NANOTRON = (
    "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: {step} / 378950 | consumed_tokens: 85.8G |"
    " elapsed_time_per_iteration_ms: {s}K | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K |"
    " global_batch_size: 128 | lm_loss: 2.38 | lr: 1e-05"
)
TITAN = (
    "[rank0]:[titan] 2026-02-24 19:46:17,508 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.62585  "
    "\x1b[38;2;180;60;0mgrad_norm: 26.6250  \x1b[36mmemory: 66.91GiB(37.51%)  \x1b[34mtps: {tps:,}  "
    "\x1b[36mtflops: 314.71  \x1b[35mmfu: 13.99%\x1b[39m"
)
DEEPSPEED = (
    "[2024-07-17 19:53:24,981] [INFO] [timer.py:258:stop] epoch=0/micro_step=45/global_step={step},"
    " RunningAvgSamplesPerSec=16.124955167964504, CurrSamplesPerSec={rate}, MemAllocated=0.02GB,"
    " MaxMemAllocated=0.97GB"
)
DEEPSPEED_OLD = (
    "[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/{step}, SamplesPerSec={rate}, MemAllocated=0.26GB"
)
PIPELINE = "steps: {step} loss: 5.5508 iter time (s): {s} samples/sec: 136.706"
BREAKDOWN = (
    "[2023-07-25 21:03:17,269] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | forward: {third} |"
    " backward: {third} | backward_inner: 2001.89 | backward_allreduce: 162.60 | step: {third}"
)
BAR = "  {step}%|##        | {step}/100 [00:{step:02d}<10:00, {s}s/it]"
BAR_RATE = "  {step}%|##        | {step}/100 [00:{step:02d}<10:00, {rate_of_steps}it/s]"

SECONDS = (30.0, 12.0, 12.5, 13.0, 12.5)
TOKENS = 128 * 8192 / 8


def filled(line, seconds=SECONDS):
    """Return a log of one ``line`` for each of ``seconds``, with other lines around them."""
    lines = [
        line.format(
            step=step,
            s=s,
            ms=1e3 * s,
            tps=round(TOKENS / s),
            rate=128 / s,
            rate_of_steps=1 / s,
            third=1e3 * s / 3,
        )
        for step, s in enumerate(seconds, start=1)
    ]
    return "\n".join(["setting up", *lines, "done", ""])


@pytest.fixture(scope="module")
def job():
    """Return a job of 128 sequences of 8,192 tokens on 8 devices."""
    return load_job("llama3-8b-8x-a100")


def read(tmp_path, job, text):
    """Return what ``text`` says of a step of ``job``."""
    file = tmp_path / "run.log"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_step_log(file, job)


@pytest.mark.parametrize(
    ("framework", "line"),
    [
        ("Megatron-LM", MEGATRON),
        ("NeMo", NEMO),
        ("NeMo", NEMO_BAR),
        ("NeMo", BRIDGE),
        ("nanotron", NANOTRON),
        ("torchtitan", TITAN),
        ("DeepSpeed", DEEPSPEED),
        ("DeepSpeed", DEEPSPEED_OLD),
        ("DeepSpeed", PIPELINE),
        ("DeepSpeed", BREAKDOWN),
        ("Hugging Face Trainer", BAR),
        ("Hugging Face Trainer", BAR_RATE),
    ],
)
def test_each_framework_is_read(tmp_path, job, framework, line):
    """The first of five steps is warm-up, and of the others the median counts."""
    found = read(tmp_path, job, filled(line))

    assert found.framework == framework
    assert (found.used, found.dropped) == (4, 1)
    assert found.seconds == pytest.approx(12.5, rel=1e-3)


def test_one_step_is_enough(tmp_path, job):
    """There is nothing to drop."""
    assert read(tmp_path, job, filled(MEGATRON, [12.0])).seconds == pytest.approx(12.0)


def test_the_average_of_a_trainer_is_read_where_there_is_no_bar(tmp_path, job):
    """The summary at the end tells steps a second, in quotes or not."""
    for value in ("0.125", "'0.125'"):
        text = f"{{'train_runtime': 100.0, 'train_steps_per_second': {value}, 'train_loss': 1.0}}\n"
        assert read(tmp_path, job, text).seconds == 8.0


def test_the_bar_of_training_is_told_from_others(tmp_path, job):
    """A bar that ran for less time is an evaluation; states of a bar are parted by carriage returns."""
    training = "\r".join(f" {n}%|#| {n}/100 [02:{n:02d}<1:00:00,  8.00s/it]" for n in range(1, 6))
    evaluation = "\r".join(f" {10 * n}%|#| {n}/10 [00:{n:02d}<00:10,  1.00it/s]" for n in range(1, 10))

    assert read(tmp_path, job, f"{training}\n{evaluation}\n{training}\n").seconds == 8.0


def test_ranks_that_tell_the_same_step_count_once(tmp_path, job):
    """The steps are counted, not the lines; lines of a validation do not count."""
    ranks = "\n".join([filled(TITAN)] * 3)
    validation = "validate step: 10  loss:  7.6  memory: 1.00GiB(1.0%)  tps: 99\n"
    found = read(tmp_path, job, ranks + validation)

    assert (found.used, found.dropped) == (4, 1)
    assert found.seconds == pytest.approx(12.5, rel=1e-3)


def test_a_framework_goes_before_what_runs_inside_of_it(tmp_path, job):
    """Megatron-DeepSpeed prints both: the time of the whole iteration is taken."""
    both = filled(MEGATRON) + filled(BREAKDOWN, [9.0] * 5) + filled(DEEPSPEED, [9.0] * 5)

    assert read(tmp_path, job, both).framework == "Megatron-LM"


def test_an_unknown_format_names_the_known_ones_and_shows_the_log(tmp_path, job):
    """Three lines are shown, and nothing of them reaches the terminal unescaped."""
    with pytest.raises(SpecError) as caught:
        read(tmp_path, job, "epoch 1\x1b]0;x\x07\nloss 3\n\nloss 2\nloss 1\n")

    text = str(caught.value)
    for part in (
        "Megatron-LM",
        "torchtitan",
        "Hugging Face Trainer",
        "line 1 'epoch 1",
        "line 2 'loss 3'",
        "line 4 'loss 2'",
    ):
        assert part in text
    assert "loss 1" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        (filled(MEGATRON).replace("size:   128", "size:    64"), "run.log:2: $: the global batch size is 64"),
        (filled(MEGATRON, [5.0]).replace(": 5000.0", ": 0.0"), "run.log:2: $: no step takes 0 s"),
        (re.sub(r"tps: [\d,]+", "tps: 0", filled(TITAN)), "run.log:2: $: no step takes 0 s: 0 tokens/s"),
        ("steps: 1 loss: 1.0 iter time (s): 1e300 samples/sec: 1\n", "run.log:1: $: no step takes 1e+300 s"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, job, text, message):
    """Another batch, and times that no step takes."""
    with pytest.raises(SpecError) as caught:
        read(tmp_path, job, text)

    assert message in str(caught.value)


@pytest.mark.parametrize("data", [b"\x7fELF\x00\x01", b"a\0b\n", b"\xff\xfe\x00"])
def test_a_binary_file_is_refused(tmp_path, job, data):
    """A log is text."""
    with pytest.raises(CatalogError):
        read(tmp_path, job, data)


def test_a_log_that_is_too_large_is_refused(tmp_path, job):
    """Some MB hold any few steps."""
    with pytest.raises(CatalogError, match="larger than 32 MiB"):
        read(tmp_path, job, b"\n" * (33 * 2**20))


def test_long_lines_are_passed_over(tmp_path, job):
    """A line of megabytes is no line of a step, and costs no time."""
    assert read(tmp_path, job, "1%|" + "9" * 10**6 + "\n" + filled(BAR)).seconds == pytest.approx(12.5)
