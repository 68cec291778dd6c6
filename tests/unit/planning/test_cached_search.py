"""Answers are kept once, are the same as found anew, and are never partial or out of date."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.catalog import load_job
from autoplan.deadline import Deadline
from autoplan.errors import CatalogError
from autoplan.planning import caching
from autoplan.planning.caching import CACHE_VARIABLE, SolveLock, cache_folder, read_answer
from autoplan.planning.plan_and_evaluate import plan
from autoplan.report.document_fields import front_document
from autoplan.report.render.serialization import dump
from autoplan.schema.job import Limits, SearchSpec

#: One process of many: asks, and says what it got; one that searches leaves a mark, and takes its time.
ASKING = """
import os, sys, time
from pathlib import Path
import autoplan
folder, marks, slow = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
def progress(plans, share):
    (marks / str(os.getpid())).touch()
    time.sleep(slow if plans == 1 else 0.0)
front = autoplan.plan("llama2-7b-2x-a100", cache=folder, progress=progress)
print([p.layout_string for p in front.plans], front.certificate)
"""


@pytest.fixture
def job():
    """Return a job that is planned in a moment."""
    job = load_job("llama2-7b-2x-a100")
    return replace(
        job, search=SearchSpec(tensor_parallel=2, microbatch_size=(1, 2), zero_stage=1, recompute="full")
    )


@pytest.fixture
def searches(monkeypatch):
    """Return the list of searches, which grows by one a search."""
    import autoplan.search

    done, search = [], autoplan.search.search

    def counted(*arguments, **options):
        done.append(arguments)
        return search(*arguments, **options)

    monkeypatch.setattr(autoplan.search, "search", counted)
    return done


def answers(folder):
    """Return the files of answers in ``folder``."""
    return sorted(folder.glob("*.json"))


def test_the_second_answer_is_the_first_without_a_search(job, searches, tmp_path):
    """The same question is searched once, and its answer is equal in every part."""
    first, second = (plan(job, cache=tmp_path) for _ in range(2))

    assert len(searches) == 1
    assert second == first == plan(job, cache=False)
    assert dump(front_document(second), "json") == dump(front_document(first), "json")
    assert len(answers(tmp_path)) == 1
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"]


def test_an_infeasible_answer_is_kept_with_its_reasons(job, searches, tmp_path):
    """Many processes of a job that cannot run do not search one after the other."""
    tight = replace(job, limits=Limits(peak_memory="1 GiB"))
    first, second = (plan(tight, cache=tmp_path) for _ in range(2))

    assert first.plans == ()
    assert first.reasons
    assert second == first
    assert len(searches) == 1


def test_a_job_of_several_batches_keeps_each(searches, tmp_path, job):
    """The front over several batches is merged from kept answers."""
    choices = tuple(
        replace(job, workload=job.workload.model_copy(update={"global_batch_size": n})) for n in (64, 128)
    )
    both = replace(choices[0], choices=choices)
    first, second = (plan(both, cache=tmp_path) for _ in range(2))

    assert len(answers(tmp_path)) == len(searches) == 2
    assert second == first


@pytest.mark.parametrize(
    "change",
    [
        lambda job: replace(job, limits=Limits(memory_headroom=0.1)),
        lambda job: replace(
            job,
            stack=job.stack.model_copy(update={"title": "edited"}),
        ),
        lambda job: replace(
            job,
            cluster=replace(
                job.cluster, device=job.cluster.device.model_copy(update={"title": "edited in the catalogue"})
            ),
        ),
        lambda job: replace(job, deadline=job.deadline + 1),
    ],
    ids=["limit", "stack", "device", "deadline"],
)
def test_another_question_is_searched(change, job, searches, tmp_path):
    """Whatever a catalogue or a job says differently is another question; so is another deadline."""
    plan(job, cache=tmp_path)
    plan(change(job), cache=tmp_path)

    assert len(searches) == 2


def test_another_program_is_not_answered(job, searches, tmp_path, monkeypatch):
    """Code or solver of another version find no answer of this one."""
    plan(job, cache=tmp_path)
    monkeypatch.setattr(caching, "planner_name", lambda: "autoplan of tomorrow")
    plan(job, cache=tmp_path)

    assert len(searches) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("tp=2", "tp=1", 1),
        lambda _: "[" * 100_000,
        lambda _: json.dumps({"digest": 1, "answer": 2}),
        lambda text: text.replace("optimal", "proven!"),
    ],
    ids=["empty", "half", "altered", "nested", "kinds", "status"],
)
def test_a_spoiled_file_is_as_good_as_none(spoil, job, searches, tmp_path):
    """A file that is not what was written is not believed, and is written anew."""
    first = plan(job, cache=tmp_path)
    (file,) = answers(tmp_path)
    file.write_text(spoil(file.read_text()))

    assert plan(job, cache=tmp_path) == first
    assert len(searches) == 2
    assert plan(job, cache=tmp_path) == first
    assert len(searches) == 2


def test_a_stopped_answer_holds_for_one_start(job, tmp_path, monkeypatch):
    """An answer that a deadline cut short serves the ranks of this start, and not those of the next day."""
    from autoplan.results.front import Certificate

    front = plan(job)
    stopped = replace(front.certificate, stopped="the deadline of 1 s was reached", status="feasible")
    assert isinstance(stopped, Certificate)
    caching.write_answer(tmp_path / "a.json", replace(front, certificate=stopped))

    assert read_answer(tmp_path / "a.json", job) is not None
    os.utime(tmp_path / "a.json", (0, 0))
    assert read_answer(tmp_path / "a.json", job) is None


def test_what_a_user_interrupted_is_not_kept(job, tmp_path):
    """Ctrl-C ends one search, and is no answer for others."""
    deadline = Deadline(60.0)
    deadline.stop()
    plan(job, cache=tmp_path, deadline=deadline)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_holds_at_most_so_many(job, tmp_path, monkeypatch):
    """The answers that were asked for the longest ago go first, and what killed processes left goes, too."""
    monkeypatch.setattr(caching, "MOST_FILES", 3)
    front = plan(job)
    for name in (".a.json.killed", "b.lock"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    for number in range(5):
        path = tmp_path / f"{number}.json"
        caching.write_answer(path, front)
        os.utime(path, (1000 + number, 1000 + number))

    caching.write_answer(tmp_path / "5.json", front)

    assert [path.name for path in sorted(tmp_path.iterdir())] == ["3.json", "4.json", "5.json"]


def test_where_the_folder_is(monkeypatch, tmp_path):
    """Nothing is kept unless a folder is named or asked for."""
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert cache_folder(None) is None
    assert cache_folder(cache=True) == tmp_path / "autoplan" / "answers"
    assert cache_folder(tmp_path) == tmp_path
    monkeypatch.setenv(CACHE_VARIABLE, "/shared")
    assert cache_folder(None) == cache_folder(cache=True) == Path("/shared")
    assert cache_folder(cache=False) is None


def test_a_folder_that_cannot_be_used_is_said(job, tmp_path):
    """Whoever names a folder learns that it does not work, instead of a thousand searches."""
    (tmp_path / "file").touch()

    with pytest.raises(CatalogError, match=f"cannot use .*file.* as cache: .*{CACHE_VARIABLE}"):
        plan(job, cache=tmp_path / "file")


def test_a_lock_of_a_dead_process_is_taken_at_once(tmp_path):
    """A process that was killed while it searched does not stop the others."""
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    own = SolveLock(tmp_path / "a.lock", answered=lambda: False, may_wait=lambda: True)
    host = own._owner.split()[0]
    (tmp_path / "a.lock").write_text(f"{host} {int(gone.stdout)} 0123")

    own.acquire()

    assert own.locked
    own.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_another_machine_is_stale_when_nobody_touches_it(tmp_path, monkeypatch):
    """A machine that was lost does not stop the others; one that touches its lock does."""
    monkeypatch.setattr(caching, "_STALE_SECONDS", 0.3)
    monkeypatch.setattr(caching, "_TOUCHED_EVERY_SECONDS", 0.05)
    path, end = tmp_path / "a.lock", time.monotonic() + 1.0
    first = SolveLock(path, answered=lambda: False, may_wait=lambda: True)
    first._owner = "elsewhere 1 0123"
    first.acquire()
    second = SolveLock(path, answered=lambda: False, may_wait=lambda: time.monotonic() < end)
    second.acquire()
    assert not second.locked

    first._released.set()  # lost: nobody touches it any more, and nobody removes it
    third = SolveLock(path, answered=lambda: False, may_wait=lambda: True)
    third.acquire()
    assert third.locked
    first.release()
    assert path.exists()
    third.release()


def start(folder, marks, slow=0.0):
    """Start one process that asks."""
    return subprocess.Popen(
        [sys.executable, "-c", ASKING, str(folder), str(marks), str(slow)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_fifty_processes_make_one_search(tmp_path):
    """Fifty that ask at once get fifty equal answers from one search, and leave one whole file."""
    folder, marks = tmp_path / "cache", tmp_path / "marks"
    marks.mkdir()
    asking = [start(folder, marks, slow=3.0) for _ in range(50)]
    said = [process.communicate(timeout=300) for process in asking]

    assert [process.returncode for process in asking] == [0] * 50, said[0][1]
    assert len({out for out, _ in said}) == 1
    assert said[0][0].startswith("['tp=")
    assert len(list(marks.iterdir())) == 1
    assert [path.suffix for path in folder.iterdir()] == [".json"]


@pytest.mark.slow
def test_kills_among_fifty_cost_a_search_for_each_that_searched(tmp_path):
    """Fifty ask at once and ten are killed: the others answer alike, by one search that nobody killed."""
    folder, marks, choice = tmp_path / "cache", tmp_path / "marks", random.Random(1)  # noqa: S311 - moments
    marks.mkdir()
    asking = [start(folder, marks, slow=3.0) for _ in range(50)]
    while not any(marks.iterdir()):
        assert all(process.poll() is None for process in asking)
        time.sleep(0.05)
    killed = choice.sample(asking, 10)
    for process in killed:
        process.send_signal(signal.SIGKILL)
        time.sleep(choice.uniform(0.0, 0.3))
    answers_of = {process.pid: process.communicate(timeout=300)[0] for process in asking}
    said = [answers_of[process.pid] for process in asking if process not in killed]

    assert len(set(said)) == 1
    assert said[0].startswith("['tp=")
    searched = {int(mark.name) for mark in marks.iterdir()}
    assert len(searched - {process.pid for process in killed}) <= 1
    assert [path.suffix for path in answers(folder)] == [".json"]


@pytest.mark.slow
def test_kills_at_random_moments_leave_no_partial_answer(tmp_path):
    """Processes killed at any moment leave whole answers or none, and the next one is answered soon."""
    folder, marks, choice = tmp_path / "cache", tmp_path / "marks", random.Random(0)  # noqa: S311 - moments
    marks.mkdir()
    job = load_job("llama2-7b-2x-a100")
    whole = plan(job)
    for _ in range(12):
        asking = [start(folder, marks) for _ in range(3)]
        time.sleep(choice.uniform(0.2, 4.0))
        for process in asking:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        found = [read_answer(file, job) for file in answers(folder)] if folder.exists() else []
        assert all(front is not None and front.plans == whole.plans for front in found)
        if found and choice.random() < 0.7:
            answers(folder)[0].unlink()
    before = len(list(marks.iterdir()))
    last = start(folder, marks)
    out, errors = last.communicate(timeout=60)

    assert last.returncode == 0, errors
    assert out.startswith(str([p.layout_string for p in whole.plans]))
    assert len(list(marks.iterdir())) - before <= 1
