"""The layer that logs and counts each request."""

import asyncio

from onsphere.service.metrics import Metrics, RequestLogger


def test_other_kinds_of_connections_are_passed_on():
    seen = []

    async def inner(scope, receive, send):
        seen.append(scope["type"])

    watch = RequestLogger(inner, metrics=Metrics(), paths=frozenset(), log_values=False)
    asyncio.run(watch({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def test_an_error_in_the_middle_of_an_answer_is_logged(logs):
    async def inner(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        raise ZeroDivisionError

    sent = []

    async def send(message):
        sent.append(message["type"])

    watch = RequestLogger(inner, metrics=Metrics(), paths=frozenset(), log_values=False)
    asyncio.run(watch({"type": "http", "path": "/", "method": "GET", "headers": []}, None, send))
    assert sent == ["http.response.start"]
