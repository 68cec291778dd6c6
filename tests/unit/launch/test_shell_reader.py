"""Shell scripts read without executing them: the words of commands with their lines, and what is unknown."""

import tracemalloc

import pytest

from autoplan.errors import SpecError
from autoplan.launch.scripts.shell_reader import read_script


def words_of(text, **variables):
    """Return the words of the last command ``run`` in a script."""
    script = read_script(text, "run.sh", variables)
    return [command for command in script.commands if command.words[0].text == "run"][-1].words[1:]


def texts(text, **variables):
    """Return the texts of the words of the last command ``run``."""
    return [word.text for word in words_of(text, **variables)]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("TP=4\nrun --tp $TP ${TP}x", ["--tp", "4", "4x"]),
        ("run ${TP:-2} ${PP-3} ${A:+set}", ["2", "3"]),
        (": ${TP:=4}\nrun $TP", ["4"]),
        ("N=$((8 * 2 / 3)); run $N $((N+1)) $((N == 5 ? 1 : 0))", ["5", "6", "1"]),
        ("((N = 4)); ((N *= 3)); ((N++)); let M=N+1; run $N $M", ["13", "14"]),
        (
            "A=(a 'b c' --x)\nA+=(d)\nrun \"${A[@]}\" ${#A[@]} ${A[1]}",
            ["a", "b c", "--x", "d", "4", "b", "c"],
        ),
        ("A=(\n  --tp 2  # degree\n  # --pp 4\n  --sp\n)\nrun ${A[@]}", ["--tp", "2", "--sp"]),
        ('A=()\nrun "${A[@]}" end', ["end"]),
        ("G=0,1,2\nrun $(echo $G | tr ',' '\\n' | wc -l) $(echo \"$G\" | awk -F, '{print NF}')", ["3", "3"]),
        ("G=0,1\nrun $(echo $G | tr ',' ' ' | wc -w) $(($(echo $G | grep -o , | wc -l) + 1))", ["2", "2"]),
        ("M=org/model\nrun $(basename ${M}) `dirname $M`", ["model", "org"]),
        ('P=$(realpath "$0")\nrun $(dirname "$P")/a', ["./a"]),
        ("declare -A S=([7b]=32 [13b]=40)\nM=13b\nrun ${S[$M]}", ["40"]),
        ('OPTS="--a 1 \\\n  --b 2"\nrun $OPTS "$OPTS"', ["--a", "1", "--b", "2", "--a 1   --b 2"]),
        ("run --a \\\n  --b # comment\n", ["--a", "--b"]),
        ("if [ $SIZE = 7B ]; then L=32; elif [[ $SIZE == 13* ]]; then L=40; else L=1; fi; run $L", ["1"]),
        ("SIZE=13B\nif [ $SIZE = 7B ]; then L=32; elif [[ $SIZE == 13* ]]; then L=40; fi; run $L", ["40"]),
        ("case x7 in a|x*) L=1;; *) L=2;; esac; run $L", ["1"]),
        ("case b in (a) run 1;; (b) run 2;; esac", ["2"]),
        ("case a in a) L=1;& b) L=$((L+1));;& c) L=9;;& esac; run $L", ["2"]),
        (r"[ \( a = b \) -o c = c ] && run yes", ["yes"]),
        ("cat <<A <<B\n$1\nA\nrun 2\nB\nrun a\\\nb 3", ["ab", "3"]),
        ("run 2>&1 <<< here > log.txt ${X:-end}", ["end"]),
        ("PLACE=<PATH_OF_DATA>\nrun a", ["a"]),
        ('[ -z "$TP" ] && TP=8; [ -n "$TP" ] || TP=9; run $TP', ["8"]),
        ('f() { run "$1" $2; }; f a b', ["a", "b"]),
        ("function f { local x=$1; run $x; }\nf 3", ["3"]),
        ("for tp in 4; do run $tp; done", ["4"]),
        ('CMD="run --a \'1 2\' --b"\nbash -c "$CMD"', ["--a", "1 2", "--b"]),
        ("X=3\nsrun -N 2 bash -c 'cd /x && run --x $X | tee log'", ["--x", "3"]),
        ("CMD=\"run --l 'a\\|b'\"; eval $CMD", ["--l", "a\\|b"]),
        ("sbatch <<EOF\n#!/bin/bash\nrun $((2+3)) \\$((1+1))\nEOF\n", ["5", "2"]),
        (
            "P=/a/b/model.bin; run ${P##*/} ${P%.bin} ${P/b/c} ${#P}",
            ["model.bin", "/a/b/model", "/a/c/model.bin", "14"],
        ),
        ("(TP=2; run $TP); run ${TP:-1}", ["1"]),
        ("A=2\nwhile [[ $# -gt 0 ]]; do case $1 in --a) A=$2; shift 2;; esac; done; run $A", ["2"]),
        ('f() { while [ "$1" != "" ]; do A=$1; shift; done; }; A=1; f "$@"; run $A', ["1"]),
        ('for x in "$@"; do A=$x; done; run ${A:-3}', ["3"]),
        ("until [ -n a ]; do run never; done; run $PWD/x", ["./x"]),
        ('W=$(cat <<E\nrun a\nE\n)\necho "$W" > w.sh\nbash w.sh', ["a"]),
        ("N=2\ncat <<E > d/w.sh\nrun $N\nE\nchmod +x d/w.sh; ./d/w.sh", ["2"]),
        ("#SBATCH -N 2\n[ -z $SLURM_JOB_ID ] && exit\nrun $SLURM_NNODES", ["2"]),
        ("run 2>&1 a > log.txt < in b &\n", ["a", "b"]),
    ],
)
def test_words_are_those_of_a_shell(script, expected):
    """Variables, arrays, arithmetic, conditions, functions and nested scripts expand as in bash."""
    assert texts(script) == expected


def test_each_word_has_the_line_where_its_text_stands():
    """The value of a variable has the line of the assignment, and every item of an array its own."""
    words = words_of("TP=4\nA=(\n  --tp\n  $TP\n)\nrun ${A[@]} end\n")

    assert [(word.text, word.line) for word in words] == [("--tp", 3), ("4", 1), ("end", 6)]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("run --tp $(nvidia-smi | wc -l)", "the output of $(nvidia-smi | wc -l)"),
        ("TP=`cat tp`\nrun --tp $TP", "the output of `cat tp`"),
        ("for TP in 1 2; do :; done\nrun --tp $TP", "the loop in line 1"),
        ("while read x; do TP=$x; done\nrun --tp $TP", "read reads in line 1"),
        ("source env.sh\nrun --tp $TP", "env.sh does, which line 1 reads"),
        ("if [ -f x ]; then TP=2; else TP=4; fi\nrun --tp $TP", "the condition in line 1"),
        ("run --tp $TP", "TP, which is not set here"),
        ("TP=$1\nrun --tp $TP", "the script's argument $1"),
        ("N=$(nproc)\nrun --tp $((N / 2))", "the output of $(nproc)"),
    ],
)
def test_what_is_not_known_says_why(script, reason):
    """Commands, loops, other files and undecided conditions are never guessed."""
    unknown = words_of(script)[1].unknown

    assert unknown is not None
    assert reason in unknown.reason


def test_what_both_branches_agree_in_is_known():
    """A condition that is not known leaves alone what it does not change."""
    script = "A=(--tp 2)\nif [ -f x ]; then A+=(--wandb); B=1; else B=1; fi\nrun ${A[@]} $B"

    assert [(w.text, w.unknown is None) for w in words_of(script)] == [
        ("--tp", True),
        ("2", True),
        ("--wandb", False),
        ("1", True),
    ]


def test_variables_come_from_outside():
    """A default gives way to a variable that is set, and an assignment does not."""
    assert texts("TP=${TP:-1}\nPP=2\nrun $TP $PP $1", TP="8", PP="9", **{"1": "x"}) == ["8", "2", "x"]
    assert read_script("PP=2", "run.sh", {"PP": "9"}).notes == (
        "PP=9 from outside is overwritten by the script",
    )


def test_a_file_that_lies_there_is_followed_in_the_line_that_reads_it():
    """What it sets has that line; of one that is away, arrays of arguments are not known."""
    files = {"models/a.sh": "ARGS=(--tp 2)\nX=1\n"}
    text = 'D=$(dirname "$0")\nsource "$D/models/a.sh"\nrun ${ARGS[@]} $X\n'
    followed = read_script(text, "run.sh", {}, files.get).commands[-1].words
    away = read_script(text, "run.sh").commands[-1].words

    assert [(word.text, word.line) for word in followed[1:]] == [("--tp", 2), ("2", 2), ("1", 2)]
    assert away[1].unknown is not None
    assert "unless ./models/a.sh does" in away[1].unknown.reason


def test_slurm_options_set_its_variables():
    """Options of Slurm in the script are known to it."""
    script = "#!/bin/bash\n#SBATCH -N 4\n#SBATCH --ntasks-per-node=8\nrun $SLURM_NNODES $SLURM_NTASKS"

    assert texts(script) == ["4", "32"]


@pytest.mark.parametrize(
    ("script", "line", "message"),
    [
        ("run 'a\n", 1, "a quote ' is not closed"),
        ("a\nrun ${A", 2, "not closed"),
        ("if true; then\nrun\n", 3, "'fi' is missing"),
        ("run $(a\n", 1, "not closed"),
        ("A=(1 2\n", 1, "an array is not closed"),
        ("cat <<EOF\nx\n", 2, "the here-document is not closed by EOF"),
        ("done\n", 1, "'done' is not expected here"),
        ("f() { f; }; f", 1, "nested too deeply"),
        ("$(" * 3000, 1, "not closed"),
        ("{ " * 3000, 1, "nested too deeply"),
        ("f() " * 30_000, 1, "nested too deeply"),
        ("case a in " + "a) ;& " * 3000 + "esac", 1, "nested too deeply"),
        ("a|" * 20_000 + ")", 1, "')' is not expected here"),
        ("a=(b " * 20_000, 1, "an array"),
        ("A=x\n" + "A=$A$A\n" * 40, 22, "too much text"),
        ("A=" + "a" * 1_000 + "\n" + "B=x\n" + "B=$B$B\n" * 12 + "C=${A//a/$B}\n", 15, "too much text"),
    ],
)
def test_what_cannot_be_read_names_its_line(script, line, message):
    """A script that bash refuses, or that grows without bound, is an error with a line and no traceback."""
    with pytest.raises(SpecError) as caught:
        read_script(script, "run.sh")

    (problem,) = caught.value.problems
    assert message in problem.message
    assert (problem.file, problem.line) == ("run.sh", line)


def test_nothing_is_executed(tmp_path):
    """Commands, substitutions and here-documents leave no trace."""
    mark = tmp_path / "mark"
    read_script(
        f"touch {mark}\nA=$(touch {mark})\nbash -c 'touch {mark}'\ncat > {mark} <<E\nx\nE\n", "run.sh"
    )

    assert not mark.exists()


@pytest.mark.parametrize("sign", ["-le", "-gt", "!=", "=="])
def test_a_comparison_names_the_variable_that_decides_it(sign):
    """Numbers that are compared in any way lead to the variable to set, not to those set inside."""
    script = read_script(
        f'if [ $NODES {sign} 4 ]; then\n    : "${{TP:=4}}"\nfi\ntorchrun --tp $TP\n', "train.sh"
    )

    assert script.hints == (
        "the condition in line 1 is decided by NODES, which is not set here: give --set NODES=VALUE",
    )


def test_no_word_is_made_before_it_is_measured():
    """A replacement that would fill the memory is refused before it is there."""
    text = "A=" + "a" * 1_999 + "\nB=x\n" + "B=$B$B\n" * 19 + "run ${A//a/$B}\n"
    tracemalloc.start()
    try:
        with pytest.raises(SpecError, match="too much text"):
            read_script(text, "run.sh")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 64 * 2**20


def test_what_is_said_goes_over_the_output_of_a_command():
    """``--set`` says what a command would put out, and not what a script sets itself."""
    assert texts("N=`nvidia-smi -L | wc -l`\nrun $N", N="4") == ["4"]
    assert texts("N=2\nrun $N", N="4") == ["2"]


def test_a_redirection_of_the_shell_runs_nothing():
    """``exec`` with files alone is no command."""
    assert read_script("exec > >(tee log) 2>&1\nrun", "run.sh").commands[0].words[0].text == "run"


def test_eval_keeps_what_is_known_beside_what_is_not():
    """A file of logs by the date leaves the arguments known."""
    words = words_of('L=$(date)\nC="run --tp 2"\neval "$C > \\"$L\\" &"')
    assert [(word.text, word.unknown) for word in words[:2]] == [("--tp", None), ("2", None)]


def test_a_file_of_a_folder_that_is_not_known_is_read_where_it_lies():
    """A folder by a command is looked for beside the script."""
    found = {"base/params.sh": "TP=4"}
    script = read_script('D=$(pwd -P)\nsource "$D/base/params.sh"\nrun $TP', "run.sh", {}, found.get)
    assert [word.text for word in script.commands[-1].words] == ["run", "4"]
