"""``autoplan gemm``: one product on one device and on several, as a user runs it."""

import json
import re

import pytest
import yaml

from autoplan.answers.gemm.ask import gemm
from autoplan.answers.gemm.single_product import GemmQuestion

A100 = ("--device", "a100-sxm4-80gb")
FOUR = ("--hardware", "dgx-a100-80gb", "--devices", "4")
SQUARE = ("--m", "8192", "--n", "8192", "--k", "8192")
LARGE = ("--m", "16384", "--n", "16384", "--k", "16384")


def document(run, *arguments, code=0):
    """Return the document that a command prints."""
    done = run("gemm", *arguments, "--format", "json")

    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_bytes_intensity_and_ridge_are_those_of_pencil_and_paper(run):
    """8192^3 in bf16: 128 MiB an operand, 8192/3 FLOP a byte, and the A100's ridge of 312 T over 2.039 T."""
    answer = document(run, *SQUARE, *A100)

    assert [answer["facts"][f"{name}_bytes"] for name in "awy"] == [2 * 8192**2] * 3
    assert answer["facts"]["flops"] == 2 * 8192**3
    assert answer["roofline"]["intensity"] == pytest.approx(8192 / 3)
    assert answer["roofline"]["ridge"] == pytest.approx(312 / 2.039)
    assert answer["roofline"]["bound"] == "compute"
    assert answer["feasible"] is True


def test_formats_of_an_answer_say_the_same(run):
    """JSON and YAML are one document, and the program gives what the API returns."""
    first = document(run, *SQUARE, *A100)
    text = run("gemm", *SQUARE, *A100, "--format", "yaml")
    answer = gemm(GemmQuestion(8192, 8192, 8192, device="a100-sxm4-80gb"))

    assert yaml.safe_load(text.stdout) == first
    assert first["time"][0]["seconds"] == answer.time[0].seconds
    assert first["memory"][1]["needed_bytes"] == answer.memory[1].needed_bytes


def test_accumulation_in_registers_is_said_to_cost_no_memory(run):
    """The table says where fp32 accumulation is, and lists the workspace that a kernel has besides."""
    text = run("gemm", *SQUARE, *A100).stdout

    assert "accumulated in fp32 in registers: that costs no memory" in " ".join(text.split())
    assert "workspace (Lt)" in text
    assert "fits for inference and for training" in text


@pytest.mark.parametrize(
    ("device", "size"), [("a100-sxm4-80gb", 8_519_680), ("h100-sxm5-80gb", 2**25), ("mi300x", 2**27)]
)
def test_the_workspace_is_that_of_the_architecture(run, device, size):
    """2 x 4 MiB and 8 x 16 KiB, 32 MiB on Hopper, and 128 MiB of hipBLAS on CDNA 3."""
    answer = document(run, *SQUARE, "--device", device)

    assert answer["split_k"]["workspace_bytes"] == size


def test_training_holds_gradients_states_and_the_input_beside_inference(run):
    """Megatron keeps 2 + 4 + 12 bytes of a parameter; backward has A, dY and dX as well."""
    inference, training = document(run, *SQUARE, *A100)["memory"]
    sizes = {tensor["name"]: tensor["bytes"] for tensor in training["tensors"]}

    assert {tensor["name"] for tensor in inference["tensors"]} >= {"A", "W", "Y", "workspace"}
    assert (sizes["W"], sizes["dW"], sizes["optimizer states"]) == tuple(x * 8192**2 for x in (2, 4, 12))
    assert sizes["A"] == sizes["dX"] == sizes["dY"] == 2 * 8192**2
    assert training["needed_bytes"] > inference["needed_bytes"]


def test_an_extent_that_is_left_out_is_solved_for(run):
    """The largest m fits and one more does not; from the smallest compute-bound one on a product is so."""
    answer = document(run, "--n", "8192", "--k", "8192", *A100)
    free, rest = answer["free"], ("--n", "8192", "--k", "8192", *A100)

    assert answer["facts"]["m"] == free["largest_inference"]
    assert document(run, "--m", str(free["largest_inference"]), *rest)["memory"][0]["fits"]
    assert not document(run, "--m", str(free["largest_inference"] + 1), *rest, code=1)["memory"][0]["fits"]
    assert document(run, "--m", str(free["largest_training"]), *rest)["memory"][1]["fits"]
    assert not document(run, "--m", str(free["largest_training"] + 1), *rest)["memory"][1]["fits"]
    bound = free["smallest_compute_bound"]
    sides = [document(run, "--m", str(m), *rest)["roofline"]["bound"] for m in (bound - 1, bound)]
    assert sides == ["memory", "compute"]
    assert document(run, *rest, "--find", "compute-bound")["facts"]["m"] == bound


def test_what_does_not_fit_exits_with_one_and_says_the_smallest_change(run):
    """The reason, and an extent with which it fits, which then does."""
    answer = document(run, "--m", "200000", "--n", "200000", "--k", "8192", *A100, code=1)

    assert "needs 89.5 GiB of the 79.2 GiB" in answer["reasons"][0]
    assert answer["changes"][0] == "inference fits with m = 175,846 instead of 200,000"
    assert document(run, "--m", "175846", "--n", "200000", "--k", "8192", *A100)["memory"][0]["fits"]
    assert not document(run, "--m", "175847", "--n", "200000", "--k", "8192", *A100, code=1)["memory"][0][
        "fits"
    ]


def test_no_extent_is_compute_bound_beside_a_small_one(run):
    """With 100 rows at most 100 FLOP a byte are done, whatever n: exit code 1 says so."""
    answer = document(run, "--m", "100", "--k", "8192", *A100, "--find", "compute-bound", code=1)

    assert "no n is compute-bound: intensity stays below 98.8 FLOP/byte" in answer["reasons"][0]


def test_tables_fit_on_a_narrow_terminal_in_ascii(process):
    """Numbers are never cut or folded: columns that are less asked for are left out."""
    environment = {"COLUMNS": "72", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    text = process("gemm", *LARGE, *FOUR, env=environment).stdout.decode("ascii")

    assert max(map(len, text.splitlines())) <= 72
    assert re.search("^summa 2x2 +256.0 MiB", text, re.MULTILINE)


def test_headroom_and_a_limit_of_memory_are_kept(run):
    """Both lower what a product may use."""
    free = document(run, *SQUARE, *A100)["memory"][0]["limit_bytes"]
    spared = document(run, *SQUARE, *A100, "--headroom", "10 %")["memory"][0]["limit_bytes"]
    limited = document(run, *SQUARE, *A100, "--memory", "1 GiB", code=1)["memory"][0]

    assert spared == pytest.approx(0.9 * free)
    assert limited["limit_bytes"] == 2**30
    assert not limited["fits"]


def test_split_k_counts_its_partial_sums(run):
    """4 s m n bytes: in the workspace where they are fewer, else in a buffer of their own."""
    small = document(run, "--m", "128", "--n", "128", "--k", "65536", *A100, "--split-k", "4")
    large = document(run, *SQUARE, *A100, "--split-k", "4")

    assert (small["split_k"]["bytes"], small["split_k"]["in_workspace"]) == (4 * 4 * 128**2, True)
    assert (large["split_k"]["bytes"], large["split_k"]["in_workspace"]) == (4 * 4 * 8192**2, False)
    assert "split-k partial sums" in {tensor["name"] for tensor in large["memory"][0]["tensors"]}


def test_several_devices_get_a_proven_scheme_beside_the_others(run):
    """The best of each scheme is listed with bytes, messages, memory and time; the chosen one is fastest."""
    answer = document(run, *LARGE, *FOUR)
    chosen, schemes = answer["chosen"], answer["schemes"]

    assert {row["scheme"] for row in schemes} == {"rows", "columns", "inner", "summa", "cannon", "3d"}
    assert chosen["seconds"] == min(row["seconds"] for row in schemes if row["fits"])
    assert answer["certificate"]["status"] == "optimal"
    assert answer["certificate"]["method"] == "enumeration"
    assert answer["certificate"]["bound_seconds"] == answer["certificate"]["seconds"] == chosen["seconds"]
    assert all(row["communication_ratio"] >= 1 for row in schemes)
    assert answer["least_seconds"] <= chosen["overlapped_seconds"] <= chosen["serial_seconds"]
    assert sum(row["sent_bytes"] for row in answer["transfers"]) == chosen["sent_bytes"]
    fastest = min(answer["panels"], key=lambda row: row["overlapped_seconds"])
    assert fastest["width"] == chosen["panel_width"]


def test_column_and_row_parallel_products_need_the_collectives_of_their_names(run):
    """With operands in place, column-parallel all-gathers Y, and row-parallel all-reduces it."""
    placed = (*LARGE, *FOUR, "--start", "in-place", "--result", "replicated")
    columns = document(run, *placed, "--scheme", "columns")["transfers"]
    inner = document(run, *placed, "--scheme", "inner")["transfers"]

    assert [(row["operation"], row["ranks"]) for row in columns] == [("all_gather", 4)]
    assert [(row["operation"], row["ranks"]) for row in inner] == [("all_reduce", 4)]
    assert inner[0]["sent_bytes"] == 2 * columns[0]["sent_bytes"]


def test_without_overlap_each_panel_is_waited_for(run):
    """The time is then that of compute and communication one after the other."""
    answer = document(run, *LARGE, *FOUR, "--no-overlap")
    chosen = answer["chosen"]

    assert chosen["seconds"] == chosen["serial_seconds"]
    assert chosen["seconds"] == pytest.approx(chosen["compute_seconds"] + chosen["communication_seconds"])
    assert not any(row["overlapped"] for row in answer["schemes"])


def test_a_batch_that_communicates_together_is_told_so(run):
    """The table names the aggregation, the document says it in a field."""
    small = ("--m", "512", "--n", "512", "--k", "4096", "--batch", "4")
    place = ("--hardware", "dgx-a100-80gb", "--devices", "4", "--scheme", "inner")

    assert document(run, *small, *place)["chosen"]["aggregated"] is True
    assert "communicate in one message" in run("gemm", *small, *place).stdout


def test_partial_sums_in_fp32_double_what_is_reduced(run):
    """Their format is what a reduction sends."""
    inner = (*LARGE, *FOUR, "--scheme", "inner")
    narrow, wide = (document(run, *inner, "--partial-dtype", x)["chosen"] for x in ("bf16", "fp32"))

    assert wide["sent_bytes"] == 2 * narrow["sent_bytes"]


@pytest.mark.slow
def test_devices_that_hold_too_little_exit_with_one_and_a_change_that_helps(run):
    """The changes were tried: with the rows and with the devices that are named it fits."""
    huge = ("--n", "163840", "--k", "16384")
    answer = document(run, "--m", "1638400", *huge, *FOUR, code=1)
    rows = next(x for x in answer["changes"] if x.startswith("m = "))
    most = int(rows.split()[2].replace(",", ""))

    assert "every scheme needs at least" in answer["reasons"][0]
    assert answer["chosen"] is None
    assert "8 devices instead of 4" in answer["changes"]
    assert document(run, "--m", str(most), *huge, *FOUR)["chosen"]["fits"]
    assert document(run, "--m", str(most + 1), *huge, *FOUR, code=1)["chosen"] is None
    assert document(run, "--m", "1638400", *huge, "--hardware", "dgx-a100-80gb", "--devices", "8")["chosen"][
        "fits"
    ]


def test_a_scheme_that_no_grid_has_is_told_with_those_that_there_are(run):
    """Two devices make no square."""
    answer = document(
        run, *LARGE, "--hardware", "dgx-a100-80gb", "--devices", "2", "--scheme", "cannon", code=1
    )

    assert answer["reasons"] == ["2 devices have no grid for cannon here: there is columns, inner, rows"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--m", "0", *SQUARE[2:], *A100), "--m: 0 is not a number from 1 to"),
        (("--m", "-5", *SQUARE[2:], *A100), "--m: -5 is not a number from 1 to"),
        (("--m", "1e30", *SQUARE[2:], *A100), "valid int"),
        (("--m", "1" + "0" * 30, *SQUARE[2:], *A100), "is not a number from 1 to 1,099,511,627,776"),
        (("--m", "9" * 5000, *SQUARE[2:], *A100), "--m"),
        (("--m", "many", *SQUARE[2:], *A100), "valid int"),
        (("--m", "nan", *SQUARE[2:], *A100), "valid int"),
        (("--m", "\x1b[31m8", *SQUARE[2:], *A100), "valid int"),
        ((*SQUARE, *A100, "--batch", "0"), "--batch: 0 is not a number"),
        ((*SQUARE, *A100, "--split-k", "-1"), "--split-k: -1 is not a number"),
        (("--m", "8", *A100), "only one of m, n and k may be left out"),
        (SQUARE, "say where it runs: --device NAME, or --hardware NAME"),
        ((*SQUARE, *A100, *FOUR), "give one of both"),
        ((*SQUARE, *A100, "--devices", "4"), "several devices need the links between them"),
        ((*SQUARE[2:], *FOUR), "on several devices all of m, n and k are needed"),
        (
            (*SQUARE, "--hardware", "dgx-a100-80gb", "--devices", "0"),
            "--devices: 0 is not a number from 1 to 16,384",
        ),
        ((*SQUARE, "--hardware", "dgx-a100-80gb", "--devices", "-4"), "--devices"),
        (
            (*SQUARE, "--hardware", "dgx-a100-80gb", "--devices", "12"),
            "12 devices are not a multiple of the 8",
        ),
        ((*SQUARE, "--hardware", "dgx-a100-80gb", "--devices", "9999999999"), "--devices"),
        ((*SQUARE, "--device", "a100"), "a100"),
        ((*SQUARE, "--hardware", "nonsense"), "no hardware is called 'nonsense'"),
        ((*SQUARE, *A100, "--dtype", "int3"), "--dtype"),
        ((*SQUARE, *A100, "--dtype", "fp8"), "has no fp8 matrix rate"),
        ((*SQUARE, *A100, "--headroom", "5"), "--headroom"),
        ((*SQUARE, *A100, "--headroom", "120 %"), "--headroom"),
        ((*SQUARE, *A100, "--memory", "-1 GiB"), "--memory"),
        ((*SQUARE, *A100, "--memory", "1e400 GiB"), "--memory"),
        ((*SQUARE, *A100, "--stack", "nonsense"), "nonsense"),
        ((*LARGE, *FOUR, "--scheme", "magic"), "--scheme"),
        ((*LARGE, *FOUR, "--bias"), "--bias: is for one device: leave it out"),
        ((*LARGE, *FOUR, "--split-k", "2"), "--split-k: is for one device: leave it out"),
        ((*SQUARE, *A100, "--scheme", "rows"), "--scheme: needs several: --devices N"),
        ((*SQUARE, *A100, "--no-overlap"), "--no-overlap: needs several: --devices N"),
        ((*SQUARE, "--hardware", "\x1b[31mnode"), "no hardware is called"),
    ],
)
def test_bad_input_is_refused_with_what_would_be_right(run, arguments, said):
    """Exit code 2, nothing on standard output, no traceback, and no control character reaches a terminal."""
    done = run("gemm", *arguments)

    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.slow
def test_extents_at_the_edge_of_what_is_allowed_are_answered(run):
    """The largest and the smallest extents overflow nothing."""
    huge = str(2**40)
    tiny = document(run, "--m", "1", "--n", "1", "--k", "1", *A100)
    large = document(run, "--m", huge, "--n", huge, "--k", huge, *A100, code=1)
    spread = document(run, "--m", huge, "--n", huge, "--k", huge, *FOUR, code=1)
    lost = run("gemm", "--m", "1", "--n", "1", "--k", "1", *FOUR)

    assert tiny["roofline"]["bound"] == "memory"
    assert large["facts"]["a_bytes"] == 2**81
    assert spread["chosen"] is None
    assert lost.exit_code == 1
    assert "no grid of 4 devices leaves each a part" in lost.stderr
