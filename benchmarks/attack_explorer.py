"""Hostile requests to the explorer, with an honest client beside them.

    python benchmarks/attack_explorer.py                    10,000 requests; at most five minutes
    python benchmarks/attack_explorer.py --requests 1000    fewer

Goals on two idle cores: no answer with a 5xx status, and a p95 of the honest client under attack of at most three times
its p95 on the idle server. The requests are malformed JSON, wrong types, huge numbers, wrong hosts and origins, deep and slow
formulas, bodies that are too large, paths that do not exist, broken HTTP, and requests that never end. The attackers are four
threads of another process, which shares the two cores with the server.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import multiprocessing
import random
import socket
import time

import numpy as np

from explorer import moves, served

NAMES = [
    "landscape",
    "gamma",
    "x",
    "horizon",
    "rules",
    "box",
    "expression",
    "steps",
    "metric",
    "__class__",
    "",
]
VALUES = [
    None, True, -1, 1e308, -1e308, 1e-320, 10**30, "", "x", "' OR 1=1", "<script>", "\x00", "٣", [], {}, [1] * 50,
    {"a": {"b": []}}, [[[[]]]], "__import__('os').system('id')", "x" * 5000,
]  # fmt: skip
FORMULAS = [
    "(" * 140 + "x" + ")" * 140, "-" * 280 + "x", "sin(" * 60 + "x" + ")" * 60, "9**9**9", "x**x**x", "1/0*x", "x.__class__",
    "lambda: 0", "+".join(f"sin({i}*x*y)" for i in range(1, 25)), "exp(exp(exp(exp(x*y))))", "((x+y)**9+1)**9", "sqrt(-1)*x",
]  # fmt: skip


def wrong_type(rng):
    return json.dumps({rng.choice(NAMES): rng.choice(VALUES) for _ in range(3)}).encode()


def malformed(rng):
    raw = bytearray(wrong_type(rng))
    for _ in range(3):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw[: rng.randrange(1, len(raw) + 1)])


def huge(rng):
    return b'{"gamma": %s}' % rng.choice([b"1e999", b"9" * 4000, b"9" * 6000, b"-1e400", b"NaN"])


def formula(rng):
    return json.dumps(
        {"landscape": "expression", "expression": rng.choice(FORMULAS), "gamma": rng.random()}
    ).encode()


def oversize(rng):
    return b'{"expression": "' + b"x" * rng.choice([17_000, 60_000]) + b'"}'


def nested(rng):
    return b"[" * rng.randrange(100, 8000)


def attack(rng, port):
    """The bytes of one hostile request."""
    body = rng.choice([wrong_type, malformed, huge, formula, oversize, nested])(rng)
    host, more, path, method = f"127.0.0.1:{port}", "", "/api/path", "POST"
    trick = rng.randrange(9)
    if trick == 0:
        host = rng.choice(["evil.example", "127.0.0.1@evil.example", "[", "", "a" * 3000])
    elif trick == 1:
        origin = rng.choice(["https://evil.example", "null", "http://[", "http://127.0.0.1:1"])
        more = f"Origin: {origin}\r\n"
    elif trick == 2:
        path = rng.choice(
            [
                "/static/../server.py",
                "/static/%2e%2e/%00",
                "//etc/passwd",
                "/api/no",
                "/" + "a" * 9000,
            ]
        )
        method = rng.choice(["GET", "POST"])
    elif trick == 3:
        method = rng.choice(["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
    elif trick == 4:
        return rng.randbytes(rng.randrange(1, 400)) + b"\r\n\r\n"
    elif trick == 5:
        more = f"X: {'a' * rng.choice([9_000, 40_000])}\r\n"
    else:
        path = f"/api/{rng.choice(['path', 'path', 'landscape', 'rules', 'basins', 'field', 'equations', 'beliefs', 'uncertainty'])}"
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}Content-Type: application/json\r\n"
    whole = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    return whole[: rng.randrange(len(whole))] if rng.random() < 0.02 else whole


def one(port, number, until):
    """The status of one attack; 0 if the connection was closed without an answer."""
    if time.monotonic() > until:
        return None
    try:
        with socket.create_connection(("127.0.0.1", port), 30) as link:
            link.sendall(attack(random.Random(number), port))
            answer = http.client.HTTPResponse(link)
            answer.begin()
            return answer.status
    except (OSError, http.client.HTTPException):
        return 0


def attackers(port, count, seconds, results):
    """All attacks, in a process of their own; four at a time."""
    until = time.monotonic() + seconds
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = collections.Counter(pool.map(lambda i: one(port, i, until), range(count)))
    results.put(dict(found))


def honest(port, wanted):
    """Times of moves on built-in landscapes, for as long as ``wanted()``; and other statuses than 200 or 422."""
    times, wrong, all_moves = [], [], list(moves(quick=True))
    rng = random.Random(0)
    while wanted(len(times)):
        _, slider, settings, value = rng.choice(all_moves)
        body = json.dumps(settings | {slider: value})
        begun = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/api/path", body, {"Content-Type": "application/json"})
        status = connection.getresponse().status
        times.append(time.perf_counter() - begun)
        connection.close()
        if status not in (200, 422):  # some settings have no optimal path
            wrong.append(status)
        time.sleep(0.02)
    return 1e3 * np.array(times), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=300.0, help="no new attack after that")
    given = parser.parse_args()
    with served() as port:
        idle, _ = honest(port, lambda count: count < 200)
        results = multiprocessing.Queue()
        process = multiprocessing.Process(
            target=attackers, args=(port, given.requests, given.seconds, results), daemon=True
        )
        process.start()
        try:
            under, wrong = honest(port, lambda _: process.is_alive() and results.empty())
            found = results.get(timeout=60)
        finally:
            process.kill()
            process.join()
        after, _ = honest(port, lambda count: count < 50)
    made = sum(count for status, count in found.items() if status is not None)
    print(
        f"{made} attacks, by status (0 is closed without one): {dict(sorted((s, n) for s, n in found.items() if s is not None))}"
    )
    if made < given.requests:
        print(f"  the time was over before the other {given.requests - made}")
    errors = sum(count for status, count in found.items() if status is not None and status >= 500)
    print(f"Answers with 5xx: {errors}   goal 0: {'met' if not errors else 'MISSED'}")
    for title, times in (("idle", idle), ("under attack", under), ("afterwards", after)):
        print(
            f"Honest client, {title:<13}{len(times):5d} moves  median {np.median(times):6.1f}  p95 {np.percentile(times, 95):7.1f} ms"
        )
    print(f"  refused (429 or 5xx): {len(wrong)}")
    ratio = np.percentile(under, 95) / np.percentile(idle, 95)
    print(f"p95 under attack / idle: {ratio:.2f}   goal <= 3: {'met' if ratio <= 3 else 'MISSED'}")


if __name__ == "__main__":
    main()
