"""The explorer's server: answers, refusals, hostile requests, many clients, time-outs and the command."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import logging
import multiprocessing
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from explorer_serving import ENDLESS, endless, running
from lossnav.cli import explore
from lossnav.explorer import api, server, workers
from lossnav.explorer.export import VARIANTS, export

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def explorer():
    with running() as found:
        assert found.ask("path", {})[0] == 200  # warm
        yield found


def refused(status, body):
    """A 4xx status with one sentence, and no trace."""
    assert 400 <= status < 500, (status, body[:300])
    sentence = json.loads(body)["error"]
    assert sentence.strip()
    assert not re.search(r"Traceback|File \"|\.py\b", sentence)
    return True


def test_an_answer_is_that_of_the_pure_function(explorer):
    for question, request in [("path", {"gamma": 1.0}), ("beliefs", {"seed": 4}), ("field", {})]:
        status, found = explorer.ask(question, request)
        assert status == 200
        assert found == json.loads(json.dumps(api.answer(question, request)))


def test_the_page_loads_only_its_own_files(explorer):
    status, headers, body = explorer.send("GET", "/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'self' 'unsafe-inline'" not in policy
    text = body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"\son\w+=", text)
    assert not re.search(r"(src|href)=\"(https?:)?//", text)
    total = 0
    for name in re.findall(r"(?:src|href)=\"(static/[^\"]+)\"", text):
        status, headers, body = explorer.send(
            "GET", f"/{name}", headers={"Accept-Encoding": "gzip"}
        )
        assert status == 200, name
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-encoding"] == "gzip"
        total += len(body)
        again = explorer.send("GET", f"/{name}", headers={"If-None-Match": headers["etag"]})
        assert again[0] == 304
    assert total < 5e6


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ({"Host": "evil.example"}, "evil.example"),
        ({"Host": "127.0.0.1.evil.example:80"}, "evil"),
        ({"Host": "127.0.0.1@evil.example"}, "evil"),
        ({"Host": ""}, "served"),
        ({"Origin": "https://evil.example"}, "evil.example"),
        ({"Origin": "null"}, "null"),
        ({"Origin": "http://["}, "http://["),
        ({"Host": "["}, "served"),
        ({"Origin": "http://127.0.0.1:1"}, "refused"),
        ({"Sec-Fetch-Site": "cross-site"}, "other sites"),
    ],
)
def test_only_the_page_itself_may_ask(explorer, headers, word):
    for method, path in (("POST", "/api/path"), ("GET", "/"), ("GET", "/api/catalogue")):
        status, _, body = explorer.send(
            method, path, "{}" if method == "POST" else None, JSON | headers
        )
        assert status == 403
        assert refused(status, body)
        assert word in json.loads(body)["error"]
    own = {"Origin": f"http://127.0.0.1:{explorer.port}", "Sec-Fetch-Site": "same-origin"}
    assert explorer.ask("path", {}, **own)[0] == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/static/../server.py", 404), ("/static/..%2fserver.py", 404), ("/static/%2e%2e/%2e%2e/etc/passwd", 404),
        ("//etc/passwd", 404), ("/static/", 404), ("/static/index.html/", 404), ("/static/a%00b", 404),
        ("/api/path", 405), ("/api/nothing", 404), ("/docs", 404), ("/" + "a" * 5000, 404),
    ],
)  # fmt: skip
def test_path_tricks_find_nothing(explorer, path, status):
    found, _, body = explorer.send("GET", path)
    assert found == status
    assert refused(found, body)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("", JSON, 400), ("{", JSON, 400), ("NaN", JSON, 400), ('{"gamma": NaN}', JSON, 400),
        ('{"gamma": Infinity}', JSON, 400), ("[" * 8000, JSON, 400), (b"\xff\xfe", JSON, 400), ("null", JSON, 422),
        ("[]", JSON, 422), ('{"gamma": 1e999}', JSON, 422), ('{"gamma": ' + "9" * 4000 + "}", JSON, 422),
        ('{"gamma": ' + "9" * 5000 + "}", JSON, 400),  # more digits than Python reads
        ("x" * 20000, JSON, 413), ("{}", {}, 415), ("{}", {"Content-Type": "text/plain"}, 415), ('{"x": [[[[]]]]}', JSON, 422),
    ],
)  # fmt: skip
def test_bodies_that_are_no_requests(explorer, body, headers, status):
    found, _, text = explorer.send("POST", "/api/path", body, headers)
    assert refused(found, text)
    assert found == status


def hostile(rng):
    """A body that somebody might send who means no good."""
    names = [
        "landscape",
        "gamma",
        "x",
        "horizon",
        "rules",
        "box",
        "expression",
        "steps",
        "__class__",
        "",
    ]
    values = [
        None, True, -1, 0, 1e308, -1e308, 1e-320, 10**30, "", "x", "' OR 1=1", "<script>", "\x00", "٣", [], {}, [1] * 50,
        {"a": {"b": []}}, "double-well", "expression", "__import__('os').system('id')", "x" * 5000, "9**9**9", "x**x**x",
        "(" * 200, "lambda: 0", "x.__class__", "[1 for x in y]", "f'{x}'", "1/0", "sqrt(-1)*x", "log(0)+y",
    ]  # fmt: skip
    found = {rng.choice(names): rng.choice(values) for _ in range(rng.randrange(1, 4))}
    found[rng.choice(["zzz", "gamma", "rules", "box"])] = rng.choice([[], "x", {}, -5, [None] * 4])
    return found


def test_a_thousand_hostile_requests_leave_it_up(explorer):
    rng = random.Random(11)

    def one(number):
        rnd = random.Random(number)
        question = rnd.choice([*api.QUESTIONS, "path", "rules"])
        body = json.dumps(hostile(rnd)).encode()
        kind = rnd.randrange(6)
        if kind == 0:  # a body with some bytes changed
            body = bytearray(body)
            for _ in range(3):
                body[rnd.randrange(len(body))] = rnd.randrange(256)
            body = bytes(body)
        elif kind == 1:
            body = body[: rnd.randrange(len(body))]
        headers = (
            JSON
            if kind != 2
            else {"Content-Type": rnd.choice(["text/html", "", "application/xml"])}
        )
        method = "POST" if kind != 3 else rnd.choice(["PUT", "DELETE", "PATCH", "GET"])
        return explorer.send(method, f"/api/{question}", body, headers)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = []
        for status, _, body in pool.map(one, [rng.randrange(10**9) for _ in range(1000)]):
            if status != 200:  # a changed byte may leave a request that is fine
                assert refused(status, body)
            statuses.append(status)
    assert statuses.count(200) < 20
    assert {400, 405, 415, 422} <= set(statuses)
    assert explorer.ask("path", {})[0] == 200


def test_fifty_clients_at_once_all_get_their_own_answer(explorer):
    gammas = [0.05 * (1 + i % 10) for i in range(50)]
    known = {
        gamma: api.answer("path", {"landscape": "bowl", "gamma": gamma})["J"]
        for gamma in set(gammas)
    }
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        found = pool.map(
            lambda gamma: explorer.ask("path", {"landscape": "bowl", "gamma": gamma}), gammas
        )
        for gamma, (status, answer) in zip(gammas, found, strict=True):
            assert status == 200
            assert answer["J"] == known[gamma]


def patiently(event):
    """Wait for something that must come; when it comes depends on the machine."""
    until = time.monotonic() + 60
    while not event():
        assert time.monotonic() < until
        time.sleep(0.01)


def asked(port, question, request):
    """A request that was sent, and whose answer nobody waits for yet."""
    body = json.dumps(request)
    link = socket.create_connection(("127.0.0.1", port))
    link.sendall(
        f"POST /api/{question} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return link


def half_sent(port):
    """A request whose end never comes."""
    link = socket.create_connection(("127.0.0.1", port))
    link.sendall(
        b"POST /api/path HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    return link


def test_slow_clients_hold_nobody_up(explorer, monkeypatch):
    """Others are answered while they are waited for."""
    monkeypatch.setattr(server, "PATIENCE", 3600.0)
    held = [half_sent(explorer.port) for _ in range(30)]
    assert explorer.ask("path", {"landscape": "bowl"})[0] == 200
    assert select.select(held, [], [], 0)[0] == []  # none was told anything, so all are held still
    for link in held:
        link.close()
    assert explorer.ask("path", {"landscape": "bowl"})[0] == 200


def test_a_request_that_does_not_come_is_given_up(explorer, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    with half_sent(explorer.port) as link:
        link.settimeout(60)
        answer = http.client.HTTPResponse(link)  # headers and body may arrive one after the other
        answer.begin()
        body = json.loads(answer.read())
    assert answer.status == 408
    assert body == {"error": "The request did not arrive within 0.2 seconds."}


def given_up(link):
    """Whether the server has closed the connection, without an answer."""
    link.settimeout(60)
    with contextlib.suppress(ConnectionResetError):
        return link.recv(1) == b""
    return True


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"GET /api/catalogue HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET"],
    ids=["nothing", "half of the headers", "one request and a part of another"],
)  # fmt: skip
def test_headers_that_do_not_come_are_given_up(explorer, monkeypatch, begun):
    """A byte now and then does not prolong it."""
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    with socket.create_connection(("127.0.0.1", explorer.port)) as link:
        link.sendall(begun)
        if begun.endswith(b"GET"):
            answer = http.client.HTTPResponse(link)
            answer.begin()
            answer.read()
        with contextlib.suppress(ConnectionError):
            while not select.select([link], [], [], 0.05)[0]:
                link.sendall(b"x")
        assert given_up(link)


def test_a_new_client_is_let_in_when_there_are_too_many_connections(explorer, monkeypatch):
    """The oldest that waits for nothing makes room, whatever time it still has."""
    monkeypatch.setattr(server, "PATIENCE", 3600.0)
    monkeypatch.setattr(server, "MOST", 20)
    patiently(lambda: not explorer.connections())
    held = [half_sent(explorer.port) for _ in range(60)]
    assert explorer.ask("path", {"landscape": "bowl"})[0] == 200
    assert given_up(held[0])
    patiently(lambda: len(explorer.connections()) == 19)  # one has been answered, and has left
    assert len(select.select(held, [], [], 0)[0]) == 41
    for link in held:
        link.close()


def test_what_takes_too_long_is_stopped_and_said(monkeypatch):
    monkeypatch.setattr(workers, "serve", endless)
    with running(workers=1, limit=1.5) as found:
        patiently(lambda: found.ask("path", {"landscape": "bowl"})[0] == 200)
        status, answer = found.ask("path", ENDLESS)
        assert status == 422
        assert "longer than 1.5 seconds" in answer["error"]
        assert found.ask("path", {"landscape": "bowl"})[0] == 200  # the worker is free again


def test_a_client_that_leaves_stops_the_work(monkeypatch):
    """Nothing else does: the work has no end, and an hour's time."""
    monkeypatch.setattr(workers, "serve", endless)
    with running(workers=1, limit=3600.0) as found:
        pool = found.app.state.workers
        assert found.ask("path", {"landscape": "bowl"})[0] == 200
        patiently(lambda: pool.idle == 1)
        link = asked(found.port, "path", ENDLESS)
        patiently(lambda: pool.idle == 0)
        link.close()
        patiently(lambda: pool.idle == 1)
        assert found.ask("path", {"landscape": "bowl"})[0] == 200


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_error(explorer, monkeypatch):
    said = []
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "error", lambda *a, **_: said.append(a))
    half_sent(explorer.port).close()
    patiently(lambda: not explorer.connections())
    explorer.ask("path", {"landscape": "bowl"})
    assert said == []


def test_who_leaves_takes_nobody_along(explorer):
    """Work that is broken off at any moment must not break off that of others."""
    rng = random.Random(2)
    body = json.dumps({"landscape": "double-well", "gamma": 3.0})
    head = f"POST /api/path HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    for _ in range(60):
        link = socket.create_connection(("127.0.0.1", explorer.port))
        link.sendall(head.encode())
        time.sleep(rng.uniform(0.0, 0.06))
        link.close()
        status, answer = explorer.ask("path", {"landscape": "bowl"})
        assert status == 200, answer


def _asleep(connection):
    """A worker that hears no signal."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    connection.send_bytes(b"ready")
    connection.recv_bytes()
    time.sleep(600)


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_a_worker_that_dies_is_replaced_once(monkeypatch, deaths):
    """A question that was stopped may leave a module half imported, of which the next one dies."""
    made = []

    class Mortal(workers.Worker):
        def _start(self):
            made.append(self)
            self.process = self

        def _answer(self, message, limit):
            if len(made) <= deaths:
                raise EOFError
            return b"200{}"

        def close(self):
            self.process = None

    worker = Mortal(None)
    if deaths < 2:
        assert worker.ask(b"[]", 1.0) == b"200{}"
    else:
        with pytest.raises(workers.Lost):
            worker.ask(b"[]", 1.0)
    assert worker.losses == deaths
    assert len(made) == min(deaths + 1, 2)


def test_no_worker_is_started_after_the_end(monkeypatch):
    """A question that is interrupted by the end must not start a process that nobody ends."""
    pool = workers.Workers(1)
    pool.close()
    monkeypatch.setattr(workers.Worker, "_start", lambda self: pytest.fail("started"))
    with pytest.raises(workers.Lost):
        pool._workers[0].ask(b"[]", 1.0)


def test_a_worker_that_does_not_break_off_is_killed(monkeypatch):
    monkeypatch.setattr(workers, "serve", _asleep)

    async def ask():
        pool = workers.Workers(1, limit=0.1)
        try:
            with pytest.raises(workers.TooSlow):
                await pool.ask("path", {})
            await asyncio.sleep(0.05)
            return pool.losses, pool.idle
        finally:
            pool.close()

    assert asyncio.run(ask()) == (1, 1)


def test_a_path_does_not_wait_for_what_can_wait(monkeypatch):
    """With two workers, questions that take long have one of them at most."""
    monkeypatch.setattr(workers, "serve", endless)
    with running(workers=2, limit=3600.0) as found:
        pool = found.app.state.workers
        assert found.ask("path", {"landscape": "bowl"})[0] == 200  # after those that warm up
        patiently(lambda: (pool.waiting, pool.idle) == (0, 2))
        links = [asked(found.port, "rules", ENDLESS) for _ in range(4)]
        patiently(lambda: pool.waiting == 3)
        for _ in range(3):
            assert found.ask("path", {"landscape": "bowl"})[0] == 200
            patiently(lambda: pool.idle == 1)
        assert pool.waiting == 3
        for link in links:
            link.close()
        patiently(lambda: (pool.waiting, pool.idle) == (0, 2))


def test_twenty_slow_formulas_do_not_delay_a_known_landscape(monkeypatch):
    """None of them ever ends, and there is no limit: whoever waits for one waits for ever."""
    monkeypatch.setattr(workers, "serve", endless)
    monkeypatch.setattr(workers, "SLICE", 0.05)
    with running(workers=2, limit=3600.0) as found:
        pool = found.app.state.workers
        assert found.ask("path", {"landscape": "bowl"})[0] == 200
        patiently(lambda: (pool.waiting, pool.idle) == (0, 2))
        slow = ENDLESS | {"landscape": "expression", "expression": "x**2 + y**2"}
        links = [asked(found.port, "path", slow) for _ in range(20)]
        patiently(lambda: pool.waiting == 19)
        assert found.ask("path", {"landscape": "bowl"})[0] == 200
        assert pool.waiting == 19
        for link in links:
            link.close()
        patiently(lambda: (pool.waiting, pool.idle) == (0, 2))


def test_a_question_that_is_not_quick_starts_again_among_the_slow_ones(monkeypatch):
    """So twenty slow ones about known landscapes do not delay another one either."""
    monkeypatch.setattr(workers, "serve", endless)
    monkeypatch.setattr(workers, "SLICE", 0.05)
    with running(workers=2, limit=3600.0) as found:
        pool = found.app.state.workers
        assert found.ask("path", {"landscape": "bowl"})[0] == 200
        patiently(lambda: (pool.waiting, pool.idle) == (0, 2))
        links = [asked(found.port, "path", ENDLESS) for _ in range(20)]
        patiently(lambda: (pool.waiting, pool.idle) == (19, 1))
        assert found.ask("path", {"landscape": "bowl"})[0] == 200
        for link in links:
            link.close()
        patiently(lambda: (pool.waiting, pool.idle) == (0, 2))


def order_of_turns(asked, costs):
    """In which order questions (client, kind) have the one worker, which is given back at once."""

    async def all_turns():
        pool, order = workers.Turns(["worker"]), []
        held = await pool.take("nobody", workers.SLOW)

        async def one(client, kind):
            worker = await pool.take(client, kind)
            order.append((client, kind))
            pool.give_back(worker, client, kind, costs[kind])

        waiting = [asyncio.ensure_future(one(*question)) for question in asked]
        await asyncio.sleep(0)
        pool.give_back(held, "nobody", workers.SLOW, 0.0)
        await asyncio.gather(*waiting)
        assert pool.free == ["worker"]
        assert not pool._flows
        return order

    return asyncio.run(all_turns())


def test_clients_take_turns():
    asked = [("many", workers.NEW)] * 20 + [("one", workers.NEW)] * 2
    order = order_of_turns(asked, {workers.NEW: 1.0})
    assert [i for i, (client, _) in enumerate(order) if client == "one"] == [1, 3]


def test_kinds_share_the_time_and_not_the_turns():
    """Seven short questions go with each long one, and those of one flow keep their order."""
    asked = [("me", workers.SLOW)] * 5 + [("me", workers.NEW)] * 14
    order = order_of_turns(asked, {workers.SLOW: 7.0, workers.NEW: 1.0})
    long = [i for i, (_, kind) in enumerate(order) if kind == workers.SLOW]
    assert long == [0, 8, 16, 17, 18]


@pytest.mark.parametrize("has_run", [True, False])
def test_a_turn_that_nobody_wants_any_more_goes_to_the_next(has_run):
    """Also if the worker comes between a cancellation and the task that it ends."""

    async def leave():
        pool = workers.Turns(["worker"])
        held = await pool.take("a", workers.NEW)
        waiting = [asyncio.ensure_future(pool.take(name, workers.NEW)) for name in "bcd"]
        await asyncio.sleep(0)
        waiting[0].cancel()  # before its turn
        if has_run:
            await asyncio.sleep(0)
        pool.give_back(held, "a", workers.NEW, 1.0)
        waiting[1].cancel()  # at the moment of its turn
        assert await waiting[2] == "worker"
        assert [task.cancelled() for task in waiting] == [True, True, False]
        pool.give_back("worker", "d", workers.NEW, 1.0)
        assert (pool.free, pool._flows) == (["worker"], {})

    asyncio.run(leave())


def test_the_schema_says_what_is_checked(explorer):
    status, _, body = explorer.send("GET", "/openapi.json")
    assert status == 200
    paths = json.loads(body)["paths"]
    for question, (_, table) in api.QUESTIONS.items():
        post = paths[f"/api/{question}"]["post"]
        schema = post["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == set(table)
        assert schema["additionalProperties"] is False
        assert {"200", "400", "413", "415", "422", "429"} <= set(post["responses"])
        for name, field in schema["properties"].items():
            if "maximum" in field:  # one step outside is refused
                for value in (field["maximum"] + 1, field["minimum"] - 1):
                    assert explorer.ask(question, {name: value})[0] == 422, (question, name, value)


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("good", [True, False], ids=["as the schema says", "not as it says"])
def test_every_operation_keeps_to_its_schema(explorer, good):
    """Schemathesis makes requests up from the schema; all answers are of a kind that it promises."""
    document = json.loads(explorer.send("GET", "/openapi.json")[2])
    mode = GenerationMode.POSITIVE if good else GenerationMode.NEGATIVE
    names = set()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = found.ok()
        if not good and operation.method == "get":
            continue

        @settings(
            max_examples=8,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case):
            response = case.call(base_url=explorer.address)
            case.validate_response(
                response, checks=CHECKS if good else [*CHECKS, negative_data_rejection]
            )

        check()
        names.add(operation.path)
    assert {f"/api/{question}" for question in api.QUESTIONS} <= names


def test_no_second_explorer_on_one_port(explorer):
    with pytest.raises(
        ValueError, match=f"Port {explorer.port} is taken.*--port {explorer.port + 1}"
    ):
        explore.listening("127.0.0.1", explorer.port)
    with pytest.raises(ValueError, match="no address of this machine"):
        explore.listening("no.such.name.invalid", 0)


def test_the_command_prints_its_address_and_stops_on_ctrl_c():
    code = "import typer; from lossnav.cli.explore import explore; typer.run(explore)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--port", "0", "--no-open"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        err = process.communicate(timeout=30)[1]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert err.strip().endswith("Stopped.")


def test_ctrl_c_twice_still_ends_in_order(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    running_server = server.Server(server.configuration(server.create_app()))
    for _ in range(2):
        running_server.handle_exit(signal.SIGINT, None)
    assert running_server.should_exit
    assert not running_server.force_exit
    assert ended == []
    running_server.handle_exit(signal.SIGINT, None)
    assert ended == [130]


@pytest.mark.parametrize("questions", [0, 1])
def test_a_worker_whose_server_has_ended_ends_without_a_word(monkeypatch, questions):
    """Before its first question, or while it works on one."""
    near, far = multiprocessing.Pipe()
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def answer(question, request):
        near.close()
        return {}

    monkeypatch.setattr(api, "answer", answer)
    if questions:
        near.send_bytes(b'["path", {}]')
    else:
        near.close()
    assert workers.serve(far) is None


def test_an_answer_does_not_wait_for_an_acknowledgement():
    """Without TCP_NODELAY the second part of an answer may wait 40 ms for the first one's receipt."""
    found = []

    async def answer(_, writer):
        taken = writer.get_extra_info("socket")
        found.append(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def connect():
        with explore.listening("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            async with await asyncio.start_server(answer, sock=listener):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await reader.read()
                writer.close()

    asyncio.run(connect())
    assert found
    assert all(found)


def test_the_export_opens_from_disk(tmp_path):
    folder = tmp_path / "page"
    size = export(
        folder, landscapes=["bowl"], gammas=[0.5], variants=VARIANTS[:2], starts=2, stories=[]
    )
    assert size < 12e6
    page = (folder / "index.html").read_text()
    for name in re.findall(r"(?:src|href)=\"([^\"#]+)\"", page):
        assert (folder / name).is_file(), name
    manifest = (folder / "static" / "manifest.js").read_text()
    stored = json.loads(manifest.split("Explorer.stored = ", 1)[1].rstrip().rstrip(";"))
    here = stored["grid"]["landscapes"]["bowl"]
    assert here["gammas"] == [0.0, 0.5]
    text = (folder / "data" / "bowl-1-1-1.js").read_text()
    kept = json.loads(text[text.index(",") + 1 : text.rindex(")")])
    x, y = here["starts"][1]
    request = {"landscape": "bowl", "gamma": 0.5, "x": x, "y": y, **here["variants"][1]}
    assert kept["path"]["J"] == pytest.approx(api.answer("path", request)["J"], rel=1e-4)
    export(
        folder, landscapes=["bowl"], gammas=[], variants=VARIANTS[:1], starts=1, stories=[]
    )  # again
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    for bad, word in [(tmp_path / "other", "other things"), (tmp_path / "no" / "no", "no folder")]:
        with pytest.raises(ValueError, match=word):
            export(bad, landscapes=["bowl"])
    assert (tmp_path / "other" / "thesis.tex").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "page"]


def test_everything_that_the_page_needs_is_in_the_package():
    static = Path(api.__file__).parent / "static"
    page = (static / "index.html").read_text()
    named = set(re.findall(r"static/([\w.]+)", page)) - {"plotly.min.js"}
    assert named == {file.name for file in static.iterdir()} - {"index.html"}
