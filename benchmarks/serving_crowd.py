"""A crowd at the server: connections of which half leave mid-stream, and clients that take nothing.

    python benchmarks/serving_crowd.py [--connections 500] [--seed 0] [--slow 8]

Runs the server on the stand-in of the tests, whose KV rows are checked at every read, over real
sockets. First all connections ask for streams at the same time; every second one, drawn by the
seed, closes its socket after some chunks. What is checked: that the others get their whole answers,
that no page is held afterwards, and that the books of pages are right. Then clients that ask and
never read stay connected, while others are timed with them and without.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import socket
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import httpx2
from served import MODEL, Served, Setting, served

from flowforge.bench.quiet import machine_line
from flowforge.serving.settings import Limits, ServerSettings

_NUM_TOKENS = 40


def ask(server: Served, number: int, **more: object) -> socket.socket:
    """A connection on which a stream was asked for."""
    host, port = server.url.removeprefix("http://").split(":")
    said = {"role": "user", "content": f"count {number}"}
    body = {"model": MODEL, "messages": [said], "stream": True, "max_tokens": _NUM_TOKENS, **more}
    sent = json.dumps(body).encode()
    connection = socket.socket()
    # Clients that do not read are to be felt soon.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    connection.connect((host, int(port)))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n" % len(sent) + sent
    )
    return connection


def crowd(server: Served, num_connections: int, seed: int) -> None:
    """Connections of which half leave."""
    draw = random.Random(seed)
    leaving = set(draw.sample(range(num_connections), num_connections // 2))
    waiting = selectors.DefaultSelector()
    read: dict[int, bytes] = {}
    started_s = time.perf_counter()
    for number in range(num_connections):
        waiting.register(ask(server, number), selectors.EVENT_READ, number)
        read[number] = b""
    patience = {number: draw.randrange(1, _NUM_TOKENS // 2) for number in leaving}
    num_whole = 0
    while waiting.get_map():
        for key, _ in waiting.select():
            connection, number = key.fileobj, int(key.data)
            assert isinstance(connection, socket.socket)
            piece = connection.recv(65536)
            read[number] += piece
            is_bored = number in leaving and read[number].count(b"data: ") >= patience[number]
            if is_bored or not piece:
                num_whole += b"[DONE]" in read[number]
                assert is_bored or b"[DONE]" in read[number], read[number][-300:]
                waiting.unregister(connection)
                connection.close()
    seconds = time.perf_counter() - started_s
    server.check_nothing_held()
    statistics = server.statistics()
    print(f"{num_connections} connections, {len(leaving)} left mid-stream, {num_whole} whole")
    print(f"  {seconds:.1f} s, {statistics.requests.aborted} generations given up")
    print(f"  pages held afterwards: {statistics.kv.pages_held}; the books are right")


def latencies(server: Served, number: int) -> list[float]:
    """Seconds of answers, one after the other."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "say hello"}]}
    found: list[float] = []
    with httpx2.Client(timeout=60) as client:
        for _ in range(number):
            started_s = time.perf_counter()
            client.post(f"{server.url}/v1/chat/completions", json=body)
            found.append(time.perf_counter() - started_s)
    return found


def dawdlers(server: Served, num_slow: int) -> None:
    """Clients that ask and never read, beside others."""
    alone = latencies(server, 100)
    written = server.statistics().requests.length_limited + 4 * num_slow
    slow = [
        ask(server, number, n=4, max_tokens=700, logprobs=True, top_logprobs=20)
        for number in range(num_slow)
    ]
    # Once the engine has written for them, they only hold their connections.
    server.wait_until(lambda: server.statistics().requests.length_limited >= written)
    beside = latencies(server, 100)
    num_there = server.service.admission.num_active
    for connection in slow:
        connection.close()
    server.check_nothing_held()
    ratio = median(beside) / median(alone)
    print(f"{num_slow} clients that never read ({num_there} still connected): others take ", end="")
    print(f"{ratio:.2f} of the time without (median of 100, {1000 * median(alone):.1f} ms)")


def main(arguments: argparse.Namespace) -> None:
    """Run both and print."""
    settings = ServerSettings((MODEL,), limits=Limits(max_requests=arguments.connections + 16))
    with served(Setting(settings)) as server:
        crowd(server, arguments.connections, arguments.seed)
        dawdlers(server, arguments.slow)
    print(machine_line())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=int, default=4)
    main(parser.parse_args())
