"""Limits on what one client can take: sizes, times and memory, on real sockets."""

import json
import socket
import threading
import time

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = b"POST /v1/assess HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d"


def connect(service):
    return socket.create_connection(("127.0.0.1", service.port), timeout=120)


def receive_all(connection):
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def test_a_body_that_says_it_is_too_large_is_rejected(running):
    service = running(max_body=1000)
    answer = service.http.post("/v1/assess", content=b"x" * 1001, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "1,000 bytes" in answer.json()["detail"]


def test_a_body_that_turns_out_too_large_is_rejected(running):
    service = running(max_body=1000)
    parts = (b" " * 100 for _ in range(1000))
    answer = service.http.post("/v1/assess", content=parts, headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_hundreds_of_megabytes_are_answered_and_not_held(running, helpers):
    import resource

    service, before = running(read_timeout=300.0), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    part = b" " * 2**20
    answer = service.http.post(
        "/v1/assess", content=(part for _ in range(400)), headers={"content-type": "application/json"}, timeout=300
    )
    assert answer.status_code == 413
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB
    assert service.assess(helpers.row).status_code == 200


def test_a_client_that_asks_before_it_sends_is_answered_at_once(running):
    service = running(max_body=1000, read_timeout=60.0)
    with connect(service) as connection:
        connection.sendall(HEAD % 5000 + b"\r\nExpect: 100-continue\r\n\r\n")
        started = time.monotonic()
        assert b" 413 " in receive_all(connection)
    assert time.monotonic() - started < 50


def test_large_bodies_share_one_memory(running, helpers):
    service = running(max_body=1000, read_timeout=60.0)
    waiting = [connect(service) for _ in range(8)]
    for connection in waiting:
        connection.sendall(HEAD % 1000 + b"\r\n\r\n" + b" " * 990)
    helpers.until(lambda: count_held_bytes(service) >= 8 * 990)
    answer = service.http.post("/v1/assess", content=b" " * 300, headers={"content-type": "application/json"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    for connection in waiting:
        connection.close()
    helpers.until(lambda: count_held_bytes(service) == 0)
    assert service.assess(helpers.row).status_code == 200


def count_held_bytes(service):
    """Bytes of bodies that the limits count."""
    layer = service.app.middleware_stack
    while not hasattr(layer, "_held"):
        layer = getattr(layer, "_app", None) or layer.app
    return layer._held


def test_a_body_that_does_not_arrive_times_out(running):
    service = running(read_timeout=0.5)
    with connect(service) as connection:
        connection.sendall(HEAD % 50 + b"\r\n\r\n{")
        assert b" 408 " in receive_all(connection)


def test_headers_without_end_are_cut_off(running, helpers):
    service = running()
    protocol = service.server.config.http_protocol_class
    assert protocol is H11Protocol  # also where httptools is installed, which would take them all
    with connect(service) as connection, pytest.raises(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10_000_000)
    assert service.assess(helpers.row).status_code == 200


def test_headers_that_do_not_arrive_time_out(running, helpers):
    service = running(read_timeout=0.5)
    with connect(service) as silent, connect(service) as slow, connect(service) as second:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b'"ok"' not in received:
            received += second.recv(65536)
        second.sendall(b"GET /hea")  # of the next request on the same connection
        for connection in (silent, slow, second):
            with pytest.raises((ConnectionResetError, AssertionError)):  # closed, by a reset or an end
                assert connection.recv(1)
    assert service.assess(helpers.row).status_code == 200


def test_a_client_that_goes_away_is_not_logged_as_an_error(running, helpers, logs):
    service = running()
    with connect(service) as connection:
        connection.sendall(HEAD % 50 + b"\r\n\r\n{")
        time.sleep(0.2)
    helpers.until(lambda: [line for line in logs if line.get("status") == 408])
    assert not [line for line in logs if line["event"] == "fault"]


def test_an_answer_that_is_not_read_is_given_up(running, helpers):
    service = running(read_timeout=1.5)
    rows = json.dumps({"rows": [helpers.row] * 20_000}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", service.port))
        connection.sendall(HEAD % len(rows) + b"\r\n\r\n" + rows)
        connections = service.server.server_state.connections
        helpers.until(lambda: service.service.metrics._rows[0]._value.get() == 20_000)
        helpers.until(lambda: not connections)
    assert service.assess(helpers.row).status_code == 200


def test_an_answer_that_is_read_slowly_arrives(running, helpers):
    service = running(read_timeout=1.5)
    rows = json.dumps({"rows": [helpers.row] * 10_000}).encode()
    with connect(service) as connection:
        connection.sendall(HEAD % len(rows) + b"\r\nConnection: close\r\n\r\n" + rows)
        helpers.until(lambda: service.service.metrics._rows[0]._value.get() == 10_000)
        received = 0
        while part := connection.recv(2**17):
            received += len(part)
            time.sleep(0.1)
    assert received > 2_000_000


def test_requests_beyond_the_limit_are_rejected(running, helpers):
    service, first = running(max_concurrent=1), []
    go_on = helpers.pause(service)
    thread = threading.Thread(
        target=lambda: first.append(
            httpx.post(f"{service.url}/v1/assess", json={"rows": [helpers.row]}, timeout=120, verify=False)
        )
    )
    thread.start()
    helpers.until(lambda: service.service._n_working == 1)
    assert service.assess(helpers.row).status_code == 503
    go_on()
    thread.join()
    assert first[0].status_code == 200
