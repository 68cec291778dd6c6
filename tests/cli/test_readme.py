"""What the documents show is what the program prints: every example in them is run and compared.

In a document, ```` ```console ```` blocks hold commands after ``$`` and their output, ```` ```python ````
blocks hold a session after ``>>>``, and a block whose first line is ``# file: NAME`` is a file that the
commands after it may read; ``<!-- files of: PAGE -->`` brings the files of another page. A console block
without ``$`` is not run: ``test_shown_commands.py`` looks at its commands. Tables between ``<!-- benchmark:
NAME -->`` and ``<!-- end -->`` are what a benchmark computes or has recorded, and so are the pictures
``docs/accuracy.svg`` and ``docs/speed.svg``.

After a change of what the program prints, write the documents anew, or those that are named::

    python tests/cli/test_readme.py [DOCUMENT]...
"""

import contextlib
import doctest
import functools
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(DOCS.rglob("*.md")),
    ROOT / "costmodels" / "README.md",
    ROOT / "specs" / "README.md",
    ROOT / "specs" / "jobs" / "README.md",
    ROOT / "specs" / "grids" / "README.md",
]
#: Documents with examples, or with figures, that take long: they are left to `make test-slow`.
SLOW_EXAMPLES = {
    *(DOCS / f"{name}.md" for name in ("explanations", "matmul", "distributed-matmul", "compare", "guide")),
    *(DOCS / f"{name}.md" for name in ("does-it-fit", "eight-gpus", "search", "serve", "verify")),
    *(DOCS / f"{name}.md" for name in ("serving-classes", "serving-pools", "small-cards")),
    DOCS / "formulas" / "derivations.md",
    ROOT / "specs" / "grids" / "README.md",
}
SLOW_FIGURES = {ROOT / "README.md", DOCS / "accuracy.md", DOCS / "layout-errors.md"}
COLUMNS = 92
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES_OF = re.compile(r"^<!-- files of: (\S+) -->$", re.MULTILINE)
FIGURES = re.compile(r"^(<!-- benchmark: (\w+) -->\n)(.*?)^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
#: What a reader types, whatever the interpreter is called here.
SHELL = 'autoplan() { "$PYTHON" -m autoplan "$@"; }; python() { "$PYTHON" "$@"; }; '


def renewed(text, folder):
    """Return a document with the output of every example in it, and every figure, as it is now."""
    return with_figures(with_examples(text, folder))


def with_figures(text):
    """Return a document with the tables that benchmarks compute or have recorded."""
    return FIGURES.sub(lambda found: f"{found[1]}{FIGURES_OF[found[2]]()}{found[4]}", text)


def with_examples(text, folder):
    """Return a document with the output of every example in it as it is now."""
    names = {}
    for other in FILES_OF.findall(text):
        for _, body in BLOCK.findall((DOCS / other).read_text(encoding="utf-8")):
            write_file(body, folder)

    def block(found):
        language, body = found.groups()
        if write_file(body, folder):
            return found[0]
        if language == "console" and re.search(r"^\$ ", body, re.MULTILINE):
            return f"```console\n{renewed_console(body, folder)}```"
        if language == "python" and ">>>" in body:
            return f"```python\n{renewed_session(body, names, folder)}```"
        return found[0]

    return BLOCK.sub(block, text)


def write_file(body, folder):
    """Write the file that a block is, and return whether it is one."""
    name, _, rest = body.removeprefix("# file: ").partition("\n")
    if is_file := body.startswith("# file: "):
        (folder / name).write_text(rest, encoding="utf-8")
    return is_file


def renewed_console(body, folder):
    """Return the commands of a console block, each followed by what it prints."""
    commands = [line for line in body.splitlines() if line.startswith("$ ")]
    return "".join(f"{command}\n{printed_by(command[2:], folder)}" for command in commands)


def printed_by(command, folder):
    """Return what a shell prints for ``command`` in a folder that holds the document's files."""
    environment = {
        **{k: v for k, v in os.environ.items() if k not in {"FORCE_COLOR", "AUTOPLAN_CATALOG", "TERM"}},
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
    }
    done = subprocess.run(
        ["sh", "-c", SHELL + command],
        check=False,
        capture_output=True,
        cwd=folder,
        env=environment,
        encoding="utf-8",
        timeout=120,
    )
    assert done.stderr == "", f"{command} says {done.stderr}"
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def renewed_session(body, names, folder):
    """Return a session with what each of its statements prints; ``names`` outlive the block."""
    lines = []
    with contextlib.chdir(folder):
        for example in doctest.DocTestParser().get_examples(body):
            first, *more = example.source.splitlines()
            lines += [f">>> {first}", *(f"... {line}" for line in more)]
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(example.source, "<document>", "single"), names)  # noqa: S102 - our own text
            lines += printed.getvalue().splitlines()
    return "".join(f"{line}\n" for line in lines)


@functools.cache
def accuracy_summary():
    """Return what the accuracy benchmark makes of all measured runs."""
    from benchmarks.accuracy.summary import summary_of
    from tests.support.all_runs import all_outcomes

    return summary_of(all_outcomes())


def accuracy_picture():
    """Return the picture of predicted against measured step times, as the benchmark draws it."""
    from benchmarks.accuracy.plot import accuracy_svg
    from tests.support.all_runs import all_outcomes

    return accuracy_svg(all_outcomes())


def speed_picture():
    """Return the picture of the recorded run of the speed benchmark, as the benchmark draws it."""
    from benchmarks.speed.plot import speed_svg
    from benchmarks.speed.recorded import load_peers, load_record

    return speed_svg(load_record(), load_peers())


def accuracy_figures():
    """Return the errors against measured runs, as the benchmark computes them."""
    summary = accuracy_summary()
    complete = summary["complete"]
    order, fitting, bars = (complete[key] for key in ("order", "fitting", "error_quantile_90"))
    spreads = {"step time": complete["step_time"]}
    spreads |= {f"peak memory, {kind}": spread for kind, spread in complete["memory"].items()}
    rows = [
        [name, x["n"], *(percent(x[key]) for key in ("median", "mean", "p90")), percent(x["bias"], "+")]
        for name, x in spreads.items()
    ]
    head = ["predicted", "runs", "median error", "mean error", "nine of ten below", "bias"]
    return (
        f"Of {summary['rows']} published runs, {complete['rows']} tell their whole layout. Of these, "
        f"{complete['skipped']} are skipped, each with its\nreason, and {complete['without_step_time']} have "
        f"no measured step time. The others, each priced at its own layout:\n\n"
        f"{markdown(head, rows)}\n"
        f"- Nine of ten step times are off by less than {percent(bars['measured_kernels'])} on devices whose "
        f"kernels were measured,\n  and by less than {percent(bars['other_devices'])} on others.\n"
        f"- In {order['groups']} groups of three runs or more that differ in layout only, running the one "
        f"predicted best loses\n  {percent(order['regret'])} on average against the one measured best; "
        f"Kendall's tau is {order['tau']:.2f}.\n"
        f"- Of {fitting['ran']} runs that ran, {percent(fitting['said_to_fit'])} are said to fit; of "
        f"{fitting['out_of_memory']} that ran out of memory, {percent(fitting['said_not_to_fit'])} are\n"
        f"  said not to.\n"
        f"{blind_sentence()}"
    )


#: Files of runs that were predicted before anything was changed for them.
BLIND = (*(f"training_{number}" for number in range(2, 10)), "strangers")


def blind_sentence():
    """Return the errors of every list but the first, which came before its devices could be priced."""
    from benchmarks.accuracy.__main__ import DEFAULT_RUNS

    folder = DEFAULT_RUNS[0].parent / "blind"
    found = [x for stem in BLIND[1:] for x in predicted_blind(folder / f"{stem}.csv")]
    median, mean, covered, _ = spread_of(found)
    return (
        f"- Publications that nobody here had met, predicted before anything was changed for them: "
        f"{len(found)} runs,\n"
        f"  {median} off in the median, {mean} in the mean, {covered} inside the 90 % interval.\n"
    )


def stack_figures():
    """Return the errors of step time for each stack on each device."""
    complete = accuracy_summary()["complete"]
    whole = {"stack": "all", "device": "", "covered": complete["coverage"]["all"]["share"]}
    whole |= {**complete["step_time"], "order": complete["order"]}
    shares = ("median", "mean", "p90", "worst")
    rows = [
        [
            *(x[key] for key in ("stack", "device", "n", "skipped")),
            *(percent(x[key]) for key in shares),
            percent(x["bias"], "+"),
            percent(x["covered"]),
            percent(x["order"]["regret"]),
            "-" if x["order"]["tau"] is None else f"{x['order']['tau']:.2f}",
        ]
        for x in [*complete["by_stack_and_device"], whole]
    ]
    return markdown(
        ["stack", "device", "runs", "skipped", *shares, "bias", "covered", "regret", "tau"], rows, left=2
    )


def coverage_figures():
    """Return how many measured step times lie in the predicted interval."""
    names = {
        "all": "all",
        "measured_kernels": "on devices whose kernels were measured",
        "other_devices": "on other devices",
        "known_stack": "of stacks with a cost model of their own",
        "stand_in_stack": "of stacks that another stands in for",
    }
    coverage = accuracy_summary()["complete"]["coverage"]
    rows = [[name, coverage[key]["n"], percent(coverage[key]["share"])] for key, name in names.items()]
    return markdown(["runs", "n", "inside the 90 % interval"], rows)


def pair_figures():
    """Return how often two runs of a group are in order, by how much their predictions differ."""
    rows = [
        [
            f"{percent(x['least'])} to {percent(x['most'])}"
            if x["most"]
            else f"{percent(x['least'])} and more",
            x["pairs"],
            percent(x["right"]),
        ]
        for x in accuracy_summary()["complete"]["order_by_difference"]
    ]
    return markdown(["predicted difference", "pairs", "in order"], rows)


def part_figures():
    """Return which parts of a step the errors between layouts go with."""
    rows = [
        [
            x["stack"],
            x["part"],
            x["groups"],
            x["rows"],
            percent(x["deviation"]),
            f"{x['alone']:+.2f} ± {x['error']:.2f}",
            percent(x["explained"]),
            "-" if x["jointly"] is None else f"{x['jointly']:+.2f}",
        ]
        for x in accuracy_summary()["complete"]["parts"]
    ]
    head = ["stack", "part", "groups", "runs", "spread", "alone", "explained", "jointly"]
    return markdown(head, rows, left=2)


def coefficient_figures():
    """Return every fitted coefficient with the runs behind it."""
    coefficients = accuracy_summary()["coefficients"]
    keys = ("file", "name", "text", "fitted_on", "rows", "groups", "sources", "thin")
    on_runs = [x for x in coefficients if x["fitted_on_runs"]]
    thin = sum(bool(x["thin"]) for x in on_runs)
    rows = [[x[key] for key in keys] for x in coefficients]
    head = ["file", "coefficient", "value", "fitted on", "runs", "groups", "sources", "thin"]
    counts = f"{len(coefficients)} coefficients are fitted, {len(on_runs)} of them on runs"
    words = f"{counts}. Of these, {thin} serve fewer than two sources or groups."
    return f"{words}\n\n{markdown(head, rows, left=4)}"


def stranger_figures():
    """Return the errors of all runs that a fit has not seen, by what was left out together."""
    found = left_out_summaries()
    return left_out_table([(LEFT_OUT[key], found[key]["all"]) for key in LEFT_OUT])


def left_out_figures():
    """Return the errors of groups that a fit has not seen, by stack and by how much tables price."""
    found = left_out_summaries()["group"]
    stacks = [(f"group, {x['stack']}", x) for x in found["by_stack"]]
    shares = [(f"group, {x['modelled']} modelled", x) for x in found["by_modelled_share"]]
    return left_out_table([*stacks, *shares])


def left_out_summaries():
    """Return the summary of each key's kept rows."""
    from benchmarks.accuracy.fitting.kept import KEPT, load_left_out
    from benchmarks.accuracy.fitting.leaving_report import left_out_summary

    return {key: left_out_summary(load_left_out(KEPT / f"{key}.csv")) for key in LEFT_OUT}


def left_out_table(named_errors):
    """Return the errors of left-out runs, and how many lie in their interval."""
    rows = [
        [
            name,
            x["n"],
            *(percent(x[key]) for key in ("median", "mean", "p90", "worst")),
            percent(x["bias"], "+"),
            percent(x["covered"]),
        ]
        for name, x in named_errors
    ]
    return markdown(["left out together", "n", "median", "mean", "p90", "worst", "bias", "covered"], rows)


def distance_figures():
    """Return what intervals hold of runs that no fit has seen, by what a slow machine would add."""
    from benchmarks.accuracy.fitting.kept import KEPT, load_left_out
    from benchmarks.accuracy.fitting.widths import weights_of
    from benchmarks.accuracy.outcomes import publication

    found = [x for name in ("source", "unseen") for x in load_left_out(KEPT / f"{name}.csv")]
    bounds = {"by less than 10 %": (0.0, 0.1), "by 10 to 50 %": (0.1, 0.5), "by more": (0.5, float("inf"))}
    classes = {
        f"dense, longer {name}": [x for x in found if not x.experts and low <= x.slow_share < high]
        for name, (low, high) in bounds.items()
    }
    rows = []
    for name, members in {**classes, "experts": [x for x in found if x.experts], "all": found}.items():
        alike = sum(weights_of(members)[[x.covered for x in members]]) / sum(weights_of(members))
        ends = [statistics.median(x.ends[side] for x in members) for side in (0, 1)]
        shares = percent(statistics.mean(x.covered for x in members)), percent(alike)
        publications = len({publication(x.source) for x in members})
        rows.append([name, len(members), publications, *shares, *(f"{x:.2f}" for x in ends)])
    head = ["on a slow machine", "runs", "publications", "inside", "publications alike"]
    return markdown([*head, "lower end, median", "upper end"], rows)


def fit_figures():
    """Return the coefficients that are fitted on runs, with all of them and without each publication."""
    from benchmarks.accuracy.fitting.fit_values import FIT_VALUES, left_out_ranges, load_fit_values
    from benchmarks.accuracy.fitting.kept import KEPT

    rows = [
        [
            whole.name,
            *(f"{x:.3g}" for x in (whole.prior, whole.value, whole.shipped)),
            whole.rows,
            whole.sources,
            percent(whole.spread_left),
            *(f"{x.value:.3g} ({x.left_out})" for x in (extremes.least, extremes.greatest)),
        ]
        for extremes in left_out_ranges(load_fit_values(KEPT / FIT_VALUES))
        for whole in (extremes.whole,)
    ]
    head = ["coefficient", "before any run", "fitted", "shipped", "runs", "sources", "spread left"]
    return markdown([*head, "least (without)", "greatest (without)"], rows)


def blind_figures():
    """Return the errors on the runs that were predicted blind, before any change for them, then and now."""
    from benchmarks.accuracy.__main__ import DEFAULT_RUNS

    folder = DEFAULT_RUNS[0].parent
    rows = [
        [f"{stem}, {name}", len(found), *spread_of(found)]
        for stem in BLIND
        for name, found in (
            ("blind", predicted_blind(folder / "blind" / f"{stem}.csv")),
            ("now", predicted_now(folder / f"{stem}.yaml")),
            ("without facts of publications", predicted_unkeyed(folder / f"{stem}.yaml")),
        )
    ]
    for name, priced in (("now", predicted_now), ("without facts of publications", predicted_unkeyed)):
        found = priced(folder / "training.yaml")
        rows.append([f"training, {name}", len(found), *spread_of(found)])
    return markdown(["complete runs", "n", "median", "mean", "covered", "said to fit"], rows)


@functools.cache
def complete_outcomes():
    """Return the outcomes of the complete rows of every file of runs."""
    from benchmarks.accuracy.__main__ import DEFAULT_RUNS
    from benchmarks.accuracy.outcomes import outcomes_of_files

    paths = sorted(DEFAULT_RUNS[0].parent.glob("*.yaml"))
    return outcomes_of_files([x for x in paths if x.stem not in {"facts", "priors"}], complete=True)


def reported_figures():
    """Return how far reported peaks of memory are from predicted ones, by what was measured."""
    from benchmarks.accuracy.scores import reported_memory

    outcomes = [x for x in complete_outcomes() if x.memory_ratio is not None]
    kinds = sorted({x.run.measured.peak_memory_kind or "unstated" for x in outcomes})
    of_kinds = [
        (kind, [x for x in outcomes if (x.run.measured.peak_memory_kind or "unstated") == kind])
        for kind in kinds
    ]
    rows = []
    for name, members in [*of_kinds, ("all", outcomes)]:
        found = reported_memory(members)
        publications = len({x.publication for x in members})
        ends = [f"{found[key]:.2f}" for key in ("low", "median", "high")]
        rows.append([name, found["n"], publications, *ends, percent(found["covered"])])
    head = ["peak memory", "runs", "publications", "5 %", "median", "95 %", "inside the 90 % interval"]
    return markdown(head, rows)


def fits_figures():
    """Return how many runs ran and ran out of memory, by the share of the limit that each needs."""
    ends = (0.0, 0.8, 0.9, 0.95, 1.0, 1.05, 1.2, 1.5, float("inf"))
    needed = [
        (x.predicted.memory_needed_bytes / x.predicted.memory_limit_bytes, x.ran)
        for x in complete_outcomes()
        if x.predicted is not None
    ]
    rows = []
    for low, high in pairwise(ends):
        ran = [did for share, did in needed if low <= share < high]
        name = f"{percent(low)} and more" if high == ends[-1] else f"{percent(low)} to {percent(high)}"
        rows.append([name, len(ran), sum(ran), len(ran) - sum(ran)])
    return markdown(["needed of the limit", "runs", "ran", "ran out of memory"], rows)


def predicted_blind(path):
    """Return what a file keeps of complete runs: measured, predicted, both ends of the interval, the fit."""
    import csv

    with path.open(encoding="utf-8", newline="") as file:
        return [
            [float(x[key]) for key in ("measured", "predicted", "low", "high")] + [x["fits"] == "True"]
            for x in csv.DictReader(file)
            if x["complete"] == "True" and x["measured"] and x["predicted"]
        ]


def predicted_now(path):
    """Return the same of the complete runs of a file as they are predicted now."""
    from benchmarks.accuracy.outcomes import outcomes_of_file

    return [
        [x.run.step_seconds, p.step_seconds, p.step_seconds_low, p.step_seconds_high, p.fits]
        for x in outcomes_of_file(path, complete=True)
        if (p := x.predicted) is not None and x.run.step_seconds
    ]


def predicted_unkeyed(path):
    """Return the same without what is known of single publications beside their rows."""
    from benchmarks.accuracy.facts import without_keyed_facts

    with without_keyed_facts():
        return predicted_now(path)


def spread_of(found):
    """Return the median and the mean error, the share inside the interval, and the share said to fit."""
    errors = [abs(predicted / measured - 1) for measured, predicted, *_ in found]
    inside = [low <= measured <= high for measured, _, low, high, _ in found]
    shares = (statistics.median(errors), statistics.mean(errors), statistics.mean(inside))
    return [percent(x) for x in (*shares, statistics.mean(fits for *_, fits in found))]


def fine_tune_figures():
    """Return the errors of fine-tunes on few devices by publication and task, of memory and of the step."""
    from benchmarks.accuracy.__main__ import DEFAULT_RUNS
    from benchmarks.accuracy.outcomes import outcomes_of_file
    from benchmarks.accuracy.scores import grouped, memory_errors

    folder = DEFAULT_RUNS[0].parent
    files = ("fine_tuning.yaml", "fine_tuning_2.yaml", "fine_tuning_3.yaml")
    outcomes = [x for name in files for x in outcomes_of_file(folder / name) if not x.run.measured.oom]
    names = {"sft": "full", "lora": "LoRA", "qlora": "QLoRA"}

    def task(run):
        return f"{names[run.task]}, {'one device' if run.hardware.gpus == 1 else 'several'}"

    parts = grouped(outcomes, lambda x: (x.publication, task(x.run)))
    rows = []
    for (publication, what), members in [*sorted(parts.items()), (("all", ""), outcomes)]:
        memory = [error for errors in memory_errors(members).values() for error in errors]
        times = [x.error for x in members if x.error is not None]
        rows.append([publication, what, len(members), *off_and_bias(memory), *off_and_bias(times)])
    head = ["publication", "what", "runs", "memory off", "bias", "step off", "bias"]
    return markdown(head, rows)


def off_and_bias(errors):
    """Return the median of the absolute errors, and the signed one."""
    if not errors:
        return ["-", "-"]
    return [percent(statistics.median(map(abs, errors))), f"{100 * statistics.median(errors):+.1f} %"]


def memory_figures():
    """Return the errors against bytes counted on real modules, as the benchmark computes them."""
    from benchmarks.memory.__main__ import main

    summary = printed_in_process(main)["summary"]
    rows = [
        [name.replace("_", " "), spread["n"], percent(spread["median"]), percent(spread["worst"])]
        for name, spread in summary["errors"].items()
    ]
    return markdown(["on rank 0", "cases", "median error", "worst"], rows)


def speed_figures():
    """Return the recorded run of the speed benchmark, and the machine that it was recorded on."""
    from benchmarks.speed.recorded import load_record
    from benchmarks.speed.report import count

    record = load_record()
    on, unit, plain = (record[key] for key in ("on", "solver_import", "solver_import_with_pandas"))
    imports = [
        [
            name,
            "",
            "",
            *seconds_of(x),
            f"{x['cpu_seconds'] / unit['cpu_seconds']:.1f}",
            f"{x['cpu_seconds'] / plain['cpu_seconds']:.1f}",
            "",
            mebibytes(x),
            "",
            "",
        ]
        for name, x in (("the solver's import alone", unit), ("the same with pandas", plain))
    ]
    rows = [
        [
            *(
                row["model"],
                f"{row['devices']:,}",
                row["layers"],
                *seconds_of(row),
                f"{row['cpu_ratio']:.1f}",
                f"{row['plain_cpu_ratio']:.1f}",
            ),
            "" if row["target_ratio"] is None else f"{row['target_ratio']:g}",
            *(mebibytes(row), row["plans"], count(row["layouts_covered"])),
        ]
        for row in record["rows"]
    ]
    head = ["model", "devices", "layers", "CPU s", "wall s", "x import", "x plain", "wished", "MiB"]
    head += ["plans", "layouts"]
    return (
        f"Recorded on {on['date']}: {record['processors']} cores of {on['processor']}, load "
        f"{record['load_before']:.1f} at the start, {record['load_after']:.1f} at the end;\n"
        f"Python {on['python']}, autoplan {on['autoplan']}, OR-Tools {on['ortools']}, "
        f"numpy {on['numpy']}; medians; rounds: {record['repeat']}.\n\n"
        f"{markdown(head, [*imports, *rows])}"
    )


def seconds_of(row):
    """Return the processor and the wall seconds of a recorded process."""
    return [f"{row[key]:.2f}" for key in ("cpu_seconds", "seconds")]


def mebibytes(row):
    """Return the most memory of a recorded process."""
    return f"{row['peak_memory_bytes'] / 2**20:.0f}"


def peer_figures():
    """Return what other programs take for the same kind of question."""
    from benchmarks.speed.recorded import load_peers

    kinds = {"cpu": "", "wall": " wall", "extrapolated": " extrapolated"}
    rows = [
        [
            *(f"{peer['program']} ({peer['version']})", peer["question"], peer["note"]),
            "" if peer["layouts"] is None else f"{peer['layouts']:,}",
            f"{peer['seconds']:,}{kinds[peer['kind']]}",
        ]
        for peer in load_peers()
    ]
    return markdown(["program", "question", "note", "layouts", "CPU s"], rows, left=3)


def printed_in_process(main):
    """Return the JSON that a benchmark's ``main`` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["--format", "json"]) == 0
    return json.loads(printed.getvalue())


def percent(share, sign=""):
    """Return a share as the documents write it, a dash for none."""
    return "-" if share is None else f"{100 * share:{sign}.1f} %"


def markdown(head, rows, left=1):
    """Return a table in Markdown, its first columns to the left and the others to the right."""
    lines = [head, [*["---"] * left, *["---:"] * (len(head) - left)], *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


LEFT_OUT = {
    "source": "publication",
    "device": "device, as if nobody had measured it",
    "stack": "stack, as if nobody knew it",
    "assumed": "publication, the stack assumed: none is named",
    "group": "group: one model, cluster and batch",
}

FIGURES_OF = {
    "accuracy": accuracy_figures,
    "stacks": stack_figures,
    "coverage": coverage_figures,
    "distance": distance_figures,
    "pairs": pair_figures,
    "parts": part_figures,
    "coefficients": coefficient_figures,
    "strangers": stranger_figures,
    "left_out": left_out_figures,
    "fits": fit_figures,
    "blind": blind_figures,
    "peaks": lambda: f"{fits_figures()}\n\n{reported_figures()}",
    "fine_tunes": fine_tune_figures,
    "memory": functools.cache(memory_figures),
    "speed": speed_figures,
    "peers": peer_figures,
}

PICTURES = {
    ROOT / "docs" / "accuracy.svg": accuracy_picture,
    ROOT / "docs" / "speed.svg": speed_picture,
}


def comparable(text):
    """Return ``text`` without what differs between two good installations: the solver's version."""
    return re.sub(r"CP-SAT\s+[\d.]*\d", "CP-SAT N", text)


def cases(paths, slow):
    """Return what is parametrized by ``paths``, those that are ``slow`` marked so."""
    return [pytest.param(path, marks=pytest.mark.slow) if path in slow else path for path in paths]


def named(path):
    """Return the name of a file in messages."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", cases(DOCUMENTS, SLOW_EXAMPLES), ids=named)
def test_examples_print_what_the_document_shows(document, tmp_path):
    """A reader who types what is shown sees what is shown; if not, run this file as a program."""
    text = document.read_text(encoding="utf-8")

    assert comparable(with_examples(text, tmp_path)) == comparable(text)


@pytest.mark.parametrize("document", cases(DOCUMENTS, SLOW_FIGURES), ids=named)
def test_figures_are_those_of_the_benchmarks(document):
    """A table of errors or of times says what its benchmark computes now, or has recorded."""
    text = document.read_text(encoding="utf-8")

    assert with_figures(text) == text


@pytest.mark.slow
def test_the_interval_of_memory_is_that_of_published_runs():
    """Ends and coverage are computed over every file of runs, not chosen."""
    from autoplan.catalog import stack
    from benchmarks.accuracy.scores import reported_memory

    found, spread = reported_memory(complete_outcomes()), stack("megatron-core").uncertainty

    assert 1 - spread.memory_lower.value == pytest.approx(found["low"], abs=0.02)
    assert 1 + spread.memory_higher.value == pytest.approx(found["high"], abs=0.04)
    assert 0.85 <= found["covered"] <= 0.95


def alike(one, other, far=0.15):
    """Return whether two pictures are the same but for what rounding moves: their numbers are close."""
    number = re.compile(r"-?\d+(?:\.\d+)?")
    if number.sub("#", one) != number.sub("#", other):
        return False
    pairs = zip(number.findall(one), number.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= far for a, b in pairs)


@pytest.mark.parametrize("picture", cases(PICTURES, {ROOT / "docs" / "accuracy.svg"}), ids=named)
def test_pictures_are_current(picture):
    """A picture in the documents shows what the benchmark predicts now, or has recorded."""
    assert alike(picture.read_text(encoding="utf-8"), PICTURES[picture]())


def test_a_stale_picture_is_noticed():
    """Numbers may differ by what rounding does; a mark that moved, is gone or says more is told."""
    mark = '<use x="10.2" y="3.0" /><text>median 3.4 %</text>'

    assert alike(mark, mark.replace("10.2", "10.3").replace("3.4", "3.5"))
    assert not alike(mark, mark.replace("10.2", "12.2"))
    assert not alike(mark, mark * 2)
    assert not alike(mark, mark.replace("median", "mean"))


def test_the_readme_opens_with_a_command_then_a_spec_and_its_table():
    """The first screen is one line and its answer; then input, command, output, set-up and measured error."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [language for language, _ in BLOCK.findall(text)]

    assert blocks[:3] == ["console", "yaml", "console"]
    assert "python" in blocks
    assert "make test" in text
    assert len(text.splitlines()) <= 130
    assert [name for _, name, _, _ in FIGURES.findall(text)] == ["accuracy"]


def test_an_example_that_is_wrong_is_noticed(tmp_path):
    """Commands and sessions are run: a document that lies is written differently."""
    lie = "```console\n$ python -c 'print(6 * 7)'\n41\n```\n\n```python\n>>> 6 * 7\n41\n```\n"

    assert renewed(lie, tmp_path) == lie.replace("41", "42")


def test_an_example_may_read_the_files_shown_before_it(tmp_path):
    """A block that names a file is that file."""
    text = "```yaml\n# file: a.txt\nkind: training\n```\n\n```console\n$ cat a.txt\nkind: training\n```\n"

    assert renewed(text, tmp_path) == text


def test_a_page_may_read_the_files_of_another(tmp_path):
    """A page that goes on where another ends has its files."""
    text = "<!-- files of: diagnose.md -->\n\n```console\n$ head -1 job.yaml\nkind: training\n```\n"

    assert renewed(text, tmp_path) == text


def write_documents(names):
    """Write every document and picture anew, or those named, and say which of them changed."""
    chosen = {Path(name).resolve() for name in names}
    for document in [path for path in DOCUMENTS if path in chosen or not chosen]:
        text = document.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            new = renewed(text, Path(folder))
        if new != text:
            document.write_text(new, encoding="utf-8")
            print(f"{document.relative_to(ROOT)} written anew")  # noqa: T201 - this is a program
    for picture, drawn in PICTURES.items() if not chosen else ():
        if not (picture.exists() and alike(picture.read_text(encoding="utf-8"), drawn())):
            picture.write_text(drawn(), encoding="utf-8")
            print(f"{picture.relative_to(ROOT)} drawn anew")  # noqa: T201 - this is a program


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    write_documents(sys.argv[1:])
