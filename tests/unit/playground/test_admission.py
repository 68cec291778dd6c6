"""Who is answered: bounds of questions, answers that are remembered, and bodies that are read."""

import asyncio

import pytest

from autoplan.playground.answers import Answer
from autoplan.playground.page_server import MOST_BODY_BYTES, RequestGuard, body_of
from autoplan.playground.questions import Ask, TrainingQuestion
from autoplan.playground.solving import Admission, Bounds, RefusedRequestError


def asked(batch):
    """Return a question that differs by its batch."""
    return Ask(
        "plan",
        TrainingQuestion(
            kind="training",
            model="gpt2",
            hardware="dgx-a100-80gb",
            devices=8,
            sequence_length=1024,
            global_batch_size=batch,
        ),
    )


class Processes:
    """Answers when it is allowed to, and counts."""

    def __init__(self, seconds=1.0, size=2):
        self.seconds, self.size = seconds, size
        self.allowed = asyncio.Event()
        self.begun, self.cancelled = [], []

    async def answer(self, question):
        """Return an answer that lasts."""
        self.begun.append(question)
        try:
            await self.allowed.wait()
        except asyncio.CancelledError:
            self.cancelled.append(question)
            raise
        return Answer(200, str(question).encode(), lasting=True)


async def refusal(waiting):
    """Return the status of a refusal."""
    with pytest.raises(RefusedRequestError) as caught:
        await waiting
    return caught.value.status, caught.value.retry_seconds


async def begun(admission, *clients):
    """Return questions at work, one of each client."""
    tasks = [
        asyncio.create_task(admission.answer(address, name, asked(batch)))
        for batch, (address, name) in enumerate(clients, start=1)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def test_a_new_page_takes_the_place_of_one_that_was_answered_before():
    """All places are taken by pages of its machine that had turns: one of them goes, and it comes next."""

    async def run():
        processes = Processes(size=1)
        admission = Admission(processes, Bounds(questions=3))
        processes.allowed.set()
        for batch, name in enumerate("abc", start=20):
            await admission.answer("one", name, asked(batch))
        processes.allowed.clear()
        at_work, waiting, other = await begun(admission, ("one", "a"), ("one", "b"), ("one", "c"))
        own = asyncio.create_task(admission.answer("one", "own tab", asked(9)))
        assert await refusal(waiting) == (503, 2)
        assert not own.done()
        processes.allowed.set()
        assert [answer.status for answer in await asyncio.gather(at_work, own, other)] == [200] * 3
        assert processes.begun[-3:] == [asked(1), asked(9), asked(3)]

    asyncio.run(run())


def test_a_machine_with_few_questions_is_not_shut_out_by_one_with_many():
    """Of all that wait, one of the address with the most open questions goes."""

    async def run():
        processes = Processes(size=1)
        admission = Admission(processes, Bounds(questions=3))
        tasks = await begun(admission, ("two", "x"), ("one", "a"), ("one", "b"))
        three = asyncio.create_task(admission.answer("three", "y", asked(9)))
        assert await refusal(tasks[1]) == (503, 2)
        processes.allowed.set()
        answers = await asyncio.gather(tasks[0], tasks[2], three)
        assert [answer.status for answer in answers] == [200] * 3

    asyncio.run(run())


def test_the_page_that_has_had_most_is_the_one_that_is_refused():
    """Who asks without end and has had more turns than all that wait is told when to come back."""

    async def run():
        processes = Processes(size=1)
        admission = Admission(processes, Bounds(questions=2))
        processes.allowed.set()
        for batch in (31, 32):
            await admission.answer("one", "greedy", asked(batch))
        processes.allowed.clear()
        await begun(admission, ("one", "a"), ("one", "b"))
        assert await refusal(admission.answer("one", "greedy", asked(9))) == (503, 2)

    asyncio.run(run())


def test_a_newer_question_takes_the_place_of_the_older_one_of_its_client_alone():
    """The older one is cancelled and answered with 409; another client of the address is not."""

    async def run():
        processes = Processes()
        admission = Admission(processes, Bounds())
        older, other = await begun(admission, ("one", "a"), ("one", "b"))
        newer = asyncio.create_task(admission.answer("one", "a", asked(7)))
        assert await refusal(older) == (409, None)
        assert processes.cancelled == [asked(1)]
        processes.allowed.set()
        assert (await newer).body == str(asked(7)).encode()
        assert (await other).body == str(asked(2)).encode()

    asyncio.run(run())


def test_a_client_that_is_gone_leaves_no_question_behind():
    """Whoever closes the page cancels its question, and others may ask at once."""

    async def run():
        processes = Processes()
        admission = Admission(processes, Bounds(questions=1))
        (task,) = await begun(admission, ("one", "a"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes.cancelled == [asked(1)]
        processes.allowed.set()
        assert (await admission.answer("two", "a", asked(2))).status == 200

    asyncio.run(run())


def test_a_question_that_waits_too_long_is_turned_away():
    """No question is open for longer than its turn and its deadline."""

    async def run():
        processes = Processes(seconds=0.01)
        admission = Admission(processes, Bounds(waiting_seconds=0.01))
        assert await refusal(admission.answer("one", "a", asked(1))) == (503, 5)
        assert processes.cancelled == [asked(1)]

    asyncio.run(run())


def test_the_same_question_is_answered_from_memory():
    """An answer that lasts is given again without a solve."""

    async def run():
        processes = Processes()
        processes.allowed.set()
        admission = Admission(processes, Bounds())
        first = await admission.answer("one", "a", asked(1))
        assert await admission.answer("two", "b", asked(1)) is first
        assert processes.begun == [asked(1)]

    asyncio.run(run())


def receiver(chunks):
    """Return the receiving end of a request whose body comes in chunks, and how many are left."""
    left = list(chunks)

    async def receive():
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    return receive, left


def test_a_body_is_counted_while_it_comes():
    """A body as large as allowed is read, one byte more is refused, and its rest is not kept."""
    half = b"x" * (MOST_BODY_BYTES // 2)

    assert asyncio.run(body_of(receiver([half, half])[0])) == half + half
    receive, left = receiver([half, half, b"x", b"rest"])
    with pytest.raises(RefusedRequestError) as caught:
        asyncio.run(body_of(receive))
    assert (caught.value.status, left) == (413, [])


@pytest.mark.parametrize(
    ("opened", "host", "status"),
    [
        (False, "192.168.0.7:8765", 421),
        (True, "192.168.0.7:8765", 200),
        (True, "evil.example", 421),
        (True, "gpu-node:80", 200),
        (False, "gpu-node", 200),
        (True, "gpu-node.evil.example", 421),
        (True, "192.168.0.7.evil.example", 421),
    ],
)
def test_an_open_server_takes_addresses_and_its_names_and_no_others(opened, host, status):
    """A name that was bound to the address of the server from outside is none of its names."""
    statuses = []

    async def application(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        statuses.append(message.get("status"))

    guard = RequestGuard(application, frozenset({"gpu-node"}), open=opened)
    scope = {"type": "http", "headers": [(b"host", host.encode())]}
    asyncio.run(guard(scope, receiver([b""])[0], send))

    assert statuses[0] == status
