"""``autoplan serve-ui`` as a user starts it: answers, hostile requests, clients at once, and its end."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

ROOT = Path(__file__).resolve().parents[2]

SMALL = {
    "kind": "training",
    "model": "gpt2",
    "hardware": "2x-rtx3090",
    "devices": 2,
    "sequence_length": 1024,
    "global_batch_size": 8,
}
SERVED = {
    "kind": "serving",
    "model": "llama3.2-1b",
    "hardware": "2x-rtx3090",
    "devices": 1,
    "engine": "vllm@0.24",
    "input_tokens": 512,
    "output_tokens": 64,
    "clients": 8,
}
INFEASIBLE = {**SMALL, "model": "gpt2-xl", "devices": 1, "global_batch_size": 2}
LONG = {
    **SMALL,
    "model": "deepseek-v3",
    "hardware": "dgx-h100",
    "devices": 2048,
    "sequence_length": 4096,
    "global_batch_size": 4096,
}


class Server:
    """One running server, and requests to it."""

    def __init__(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("AUTOPLAN_CATALOG", None)
        command = [sys.executable, "-m", "autoplan", "serve-ui", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        assert line.startswith("autoplan is at http://127.0.0.1:"), line + self.process.stderr.read()
        self.port = int(line.split(":")[2].split("/")[0])

    def request(self, method, path, body=None, timeout=120, **headers):
        """Return status, headers and body of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def ask(self, path, body, client="a"):
        """Return status and JSON of a question."""
        text = body if isinstance(body, str | bytes) else json.dumps(body)
        headers = {"Content_Type": "application/json", "X_Autoplan_Client": client}
        status, _, answer = self.request("POST", f"/api/{path}", text, **headers)
        return status, json.loads(answer)

    def stop(self, number=signal.SIGINT):
        """Return the exit code after a signal, the seconds it took, and what was written."""
        begin = time.monotonic()
        self.process.send_signal(number)
        try:
            out, err = self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, time.monotonic() - begin, out + err


@pytest.fixture(scope="module")
def server():
    """Run one server for the tests of this file, and end it."""
    running = Server("--deadline", "60")
    yield running
    if running.process.poll() is None:
        code, _, said = running.stop()
        assert (code, said) == (0, "")


def processes_of(parent):
    """Return the processes that a process started."""
    listed = subprocess.run(
        ["ps", "--ppid", str(parent), "-o", "pid="], check=True, capture_output=True, text=True
    )
    return [int(pid) for pid in listed.stdout.split()]


def is_alive(pid):
    """Return whether a process runs; one that ended and that nobody asked about does not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]
    except OSError:
        return False


def planned(tmp_path, process, answer, *, code=0):
    """Return what the command line says of the job file that the page shows."""
    file = tmp_path / answer["job_file"]["name"]
    file.write_text(answer["job_file"]["text"])
    result = process("plan", file.name, "--format", "json", cwd=tmp_path)
    assert result.returncode == code
    return json.loads(result.stdout)


def test_the_answer_is_that_of_the_command_line(server, process, tmp_path):
    """The page has no calculator of its own: the answer is ``plan --format json`` of its job file."""
    status, answer = server.ask("plan", {"question": SMALL})

    assert status == 200
    assert answer["verdict"]["feasible"]
    assert answer["answer"] == planned(tmp_path, process, answer)
    assert len(answer["plans"]) == len(answer["answer"]["front"]) > 1


@pytest.mark.slow
def test_remedies_are_those_of_the_command_line(server, process, tmp_path):
    """A question without a plan has the suggestions of the command, and links that make the changes."""
    status, answer = server.ask("remedies", {"question": INFEASIBLE})

    assert status == 200
    assert not answer["verdict"]["feasible"]
    assert answer["answer"] == planned(tmp_path, process, answer, code=1)
    changes = [dict(parse_qsl(r["query"], keep_blank_values=True)) for r in answer["remedies"] if r["query"]]
    assert {"1", "2"} == {change["devices"] for change in changes}
    assert {"0", "16"} == {change["adapter_rank"] for change in changes}


def test_a_link_reproduces_the_question(server):
    """The query of an answer holds all of its question: asked again, it is the same."""
    _, answer = server.ask("plan", {"question": {**SMALL, "precision": "fp16", "headroom_percent": 7}})
    numbers = {name for name, value in answer["question"].items() if isinstance(value, int)}
    pairs = dict(parse_qsl(answer["query"], keep_blank_values=True))
    question = {name: int(value) if name in numbers else value for name, value in pairs.items()}
    _, again = server.ask("plan", {"question": question})

    assert question == answer["question"]
    assert again == answer


def test_the_launch_file_is_that_of_emit(server, process, tmp_path):
    """The launch file of a layout is what the command shown beside it writes."""
    _, answer = server.ask("plan", {"question": SMALL})
    layout = answer["answer"]["front"][0]["layout_string"]
    status, launch = server.ask("launch", {"question": SMALL, "layout": layout, "target": "megatron-lm"})
    (tmp_path / answer["job_file"]["name"]).write_text(answer["job_file"]["text"])
    result = process(*launch["command"].split()[1:], cwd=tmp_path)

    assert (status, result.returncode) == (200, 0), launch
    assert launch["files"][0]["text"] == result.stdout.decode()


def test_what_a_target_cannot_express_is_said(server):
    """Where a target lacks a part of a plan, the answer names it in the words of ``emit``, without a file."""
    ask = {"question": SMALL, "layout": "tp=2,dp=1", "target": "axolotl"}
    status, answer = server.ask("launch", ask)

    assert (status, answer["files"]) == (200, [])
    assert "axolotl cannot express this plan" in answer["refusal"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "../../etc/passwd"}, "'../../etc/passwd' is not in the list: known are bloom-176b"),
        ({"hardware": "/etc/passwd"}, "known are 1x-gh200"),
        ({"hardware": "auto"}, "is not in the list"),
        ({"stack": "megatron.yaml"}, "known are analytic"),
        ({"model": "specs/models/gpt2.yaml"}, "is not in the list"),
        ({"model": "a: {b: c}\n- d"}, "is not in the list"),
        ({"model": {"layers": 1}}, "a mapping is not text"),
        ({"model": None}, "is not text"),
        ({"unknown": 1}, "unknown"),
        ({"devices": -1}, "at least 1"),
        ({"devices": 10**30}, "at most 16384"),
        ({"devices": 2.5}, "whole number"),
        ({"devices": True}, "whole number"),
        ({"sequence_length": "2048"}, "whole number"),
        ({"precision": "fp17"}, "fp17"),
        ({"kind": "inference"}, "training, serving"),
        ({"kind": "serving"}, "engine"),
    ],
)
def test_a_wrong_question_is_refused_in_words(server, changes, words):
    """Paths, files, YAML, unknown keys and numbers out of range are answered with what is right."""
    status, answer = server.ask("plan", {"question": {**SMALL, **changes}})

    assert (status, words in answer["error"]) == (400, True), answer["error"][:300]
    assert "Traceback" not in answer["error"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "../vllm"}, "known are"),
        ({"engine": "vllm"}, "vllm@0.24"),
        ({"model": "/etc/passwd"}, "is not in the list"),
        ({"clients": 0}, "at least 1"),
        ({"token_ms": 1.5}, "whole number"),
        ({"weights": "fp4"}, "fp4"),
        ({"load": "trace"}, "trace"),
        ({"sequence_length": 1}, "sequence_length"),
    ],
)
def test_a_wrong_serving_question_is_refused_in_words(server, changes, words):
    """As for training: names of lists, words of lists, bounded numbers, and nothing else."""
    status, answer = server.ask("plan", {"question": {**SERVED, **changes}})

    assert (status, words in answer["error"]) == (400, True), answer["error"][:300]


@pytest.mark.slow
def test_a_serving_answer_and_its_launch_file_are_those_of_the_command_line(server, process, tmp_path):
    """Plans are those of ``plan --format json`` of the job file, files those of the ``emit`` shown."""
    status, answer = server.ask("plan", {"question": SERVED})
    front = planned(tmp_path, process, answer)
    layout = answer["answer"]["front"][0]["layout_string"]
    launched, launch = server.ask("launch", {"question": SERVED, "layout": layout, "target": "vllm"})
    result = process(*launch["command"].split()[1:], cwd=tmp_path)
    other, refused = server.ask("launch", {"question": SERVED, "layout": layout, "target": "sglang"})

    assert (status, launched, other) == (200, 200, 200)
    assert answer["answer"] == front
    assert len(answer["plans"]) == len(front["front"])
    assert launch["files"][0]["text"] == result.stdout.decode()
    assert refused["files"] == []
    assert "the engine of the job is" in refused["refusal"]


@pytest.mark.slow
def test_a_serving_question_without_a_plan_has_its_changes(server):
    """The nearest limit is a link that has plans."""
    asked = {**SERVED, "token_ms": 1}
    _, answer = server.ask("plan", {"question": asked})
    (query,) = [x["query"] for x in answer["remedies"] if "time_per_output_token" in x["sentence"]]
    changed = dict(parse_qsl(query))
    _, again = server.ask("plan", {"question": {**asked, "token_ms": int(changed["token_ms"])}})

    assert not answer["verdict"]["feasible"]
    assert answer["conflicts"] == ["time_per_output_token"]
    assert again["verdict"]["feasible"]


@pytest.mark.parametrize(
    "body",
    [
        "kind: training\nmodel: gpt2\n",
        "",
        "[]",
        "null",
        '{"question": {"devices": NaN}}',
        '{"question": {"devices": Infinity}}',
        '{"question": 1, "question": 2}',
        "[" * 10_000,
        "1" * 10_000,
        b"\xff\xfe",
        '{"question": {}}',
    ],
    ids=["yaml", "empty", "list", "null", "nan", "infinity", "twice", "deep", "digits", "bytes", "no keys"],
)
def test_a_body_that_is_no_question_is_refused(server, body):
    """What is no JSON object of a question is a 400 with words, whatever it is."""
    status, answer = server.ask("plan", body)

    assert status == 400
    assert answer["error"]
    assert "Traceback" not in json.dumps(answer)


def test_a_layout_and_an_image_are_checked_too(server):
    """Text of a launch request is parsed as a layout, and an image is one word without a shell's signs."""
    ask = {"question": SMALL, "layout": "tp=2", "target": "megatron-lm"}

    assert server.ask("launch", {**ask, "layout": "$(id); ../../etc/passwd"})[0] == 422
    assert server.ask("launch", {**ask, "layout": "tp=2," * 5_000})[0] in {400, 413}
    assert server.ask("launch", {**ask, "target": "../slurm"})[0] == 400
    assert server.ask("launch", {**ask, "image": "a b; rm -rf /"})[0] == 400


def test_devices_that_fill_no_nodes_are_refused(server):
    """A question that is well-formed and has no answer is a 422 with the planner's words."""
    status, answer = server.ask("plan", {"question": {**SMALL, "hardware": "dgx-a100-80gb", "devices": 12}})

    assert (status, "not a multiple" in answer["error"]) == (422, True)


def test_a_large_body_is_refused_while_it_comes(server):
    """Ten megabytes are a 413, whether or not the request says its length, and nothing of them is stored."""
    headers = {"Content_Type": "application/json"}
    status, _, body = server.request("POST", "/api/plan", b"x" * 10_000_000, **headers)
    chunks = (b"x" * 65_536 for _ in range(160))
    chunked, _, _ = server.request("POST", "/api/plan", chunks, **headers)

    assert (status, chunked) == (413, 413)
    assert "16384 bytes" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "a b", "10.0.0.1"]
)
def test_another_host_name_is_refused(server, host):
    """A page of another site whose name was bound to this address reads nothing (DNS rebinding)."""
    status, _, body = server.request("GET", "/", Host=host)

    assert (status, "not one of this server" in json.loads(body)["error"]) == (421, True)


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_allowed_at_any_port(server, host):
    """A tunnel may have another port."""
    assert server.request("GET", "/", Host=host)[0] == 200


def test_other_origins_methods_types_and_addresses_are_refused(server):
    """There is no CORS, and what is not served says so in JSON."""
    question = json.dumps({"question": SMALL})
    json_type = {"Content_Type": "application/json"}
    refused = {
        403: server.request("POST", "/api/plan", question, Origin="http://evil.example", **json_type),
        415: server.request("POST", "/api/plan", question, Content_Type="text/plain"),
        405: server.request("GET", "/api/plan"),
        404: server.request("GET", "/../../etc/passwd"),
        400: server.request("POST", "/api/plan", question, X_Autoplan_Client="a/b", **json_type),
    }

    for expected, (status, headers, body) in refused.items():
        assert (status, headers["content-type"]) == (expected, "application/json")
        assert json.loads(body)["error"]
        assert not any(name.startswith("access-control") for name in headers)


def test_responses_forbid_every_other_source(server):
    """Page and errors have the strict policy, and the page names no address of elsewhere."""
    for path in ("/", "/playground.js", "/controls.js", "/pictures.js", "/playground.css", "/nothing"):
        _, headers, body = server.request("GET", path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        foreign = body.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"http://" not in foreign
        assert b"https://" not in foreign
        assert b"innerHTML" not in body


@pytest.mark.slow
def test_a_newer_question_of_a_client_takes_the_place_of_the_older_one(server):
    """The older one is answered at once with 409, and the newer one with its plans."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        older = threads.submit(server.ask, "plan", {"question": LONG}, "b")
        time.sleep(1.0)
        newer = threads.submit(server.ask, "plan", {"question": SMALL}, "b")

        assert older.result()[0] == 409
        assert newer.result()[0] == 200


@pytest.mark.slow
def test_clients_at_once_have_their_own_answers_and_too_many_are_turned_away(server):
    """Each client has the answer to its own question; beyond sixteen open ones, 503."""
    batches = [8 * (number + 1) for number in range(24)]

    def ask(batch):
        return server.ask("plan", {"question": {**SMALL, "global_batch_size": batch}}, f"client{batch}")

    with concurrent.futures.ThreadPoolExecutor(24) as threads:
        answers = dict(zip(batches, threads.map(ask, batches), strict=True))
    statuses = [status for status, _ in answers.values()]

    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 16
    for batch, (status, answer) in answers.items():
        if status == 200:
            assert answer["answer"]["job"]["workload"]["global_batch_size"] == batch
        else:
            assert "16 questions are open" in answer["error"]


def killed(server):
    """End every process of a server that answers questions, as the system does when memory is short."""
    workers = [
        pid
        for pid in processes_of(server.process.pid)
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    return len(workers)


def test_processes_that_die_are_replaced(server):
    """Between questions nobody notices; during one it is refused, and the next ones are answered."""
    assert server.ask("plan", {"question": SMALL})[0] == 200
    assert killed(server) == 2
    # Asked for the first time, so that none is remembered.
    batches = iter(range(8, 800, 8))
    after = [{**SMALL, "global_batch_size": next(batches), "headroom_percent": 3} for _ in range(4)]
    assert [server.ask("plan", {"question": question})[0] for question in after] == [200] * 4

    with concurrent.futures.ThreadPoolExecutor() as threads:
        asked = threads.submit(server.ask, "plan", {"question": LONG}, "long")
        time.sleep(2.0)
        assert killed(server) == 2
        status, answer = asked.result()
    assert (status, "the process that worked on this question ended" in answer["error"]) == (503, True)
    after = [{**SMALL, "global_batch_size": next(batches), "headroom_percent": 4} for _ in range(4)]
    assert [server.ask("plan", {"question": question})[0] for question in after] == [200] * 4


def test_silent_connections_do_not_close_the_page(server):
    """As many as the server has places for, and more: the next request is answered."""
    with contextlib.ExitStack() as stack:
        for _ in range(160):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))

        assert server.request("GET", "/", timeout=20)[0] == 200


def test_a_port_that_is_taken_is_an_error_in_words(server, process):
    """A second server on the same port says what to do, without a traceback."""
    result = process("serve-ui", "--port", server.port)

    assert result.returncode == 2
    assert f"cannot listen on port {server.port} of 127.0.0.1".encode() in result.stderr
    assert b"--port 0" in result.stderr
    assert b"Traceback" not in result.stderr


def test_without_the_extra_the_command_names_it(run, monkeypatch):
    """The packages of the extra are asked for when the command runs, not before."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = run("serve-ui")

    assert result.exit_code == 2
    assert "pip install 'autoplan[ui]'" in result.stderr


def test_another_address_is_warned_of(process):
    """Whoever opens the page to other machines is told that there is no password."""
    with socket.create_server(("0.0.0.0", 0)) as taken:  # noqa: S104 - the port is taken, so nothing is served
        port = taken.getsockname()[1]
        refused = process("serve-ui", "--host", "0.0.0.0", "--port", port)  # noqa: S104
    assert refused.returncode == 2
    assert b"cannot listen" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_with_its_questions_and_processes(number):
    """Ctrl-C while a question is at work: it is answered with 503, and no process stays behind."""
    running = Server("--solves", "1", "--host", "127.0.0.1")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        asked = threads.submit(running.ask, "plan", {"question": LONG})
        time.sleep(2.0)
        children = processes_of(running.process.pid)
        code, _, said = running.stop(number)

        assert (code, said) == (0, "")
        assert asked.result()[0] == 503
    assert children
    patience = time.monotonic() + 20
    while any(map(is_alive, children)) and time.monotonic() < patience:
        time.sleep(0.1)
    assert [pid for pid in children if is_alive(pid)] == []
