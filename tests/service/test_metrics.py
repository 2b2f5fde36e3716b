"""The layer that guards, logs and counts each request."""

import asyncio
from types import SimpleNamespace

from onsphere.service import Settings
from onsphere.service.limits import Gate
from onsphere.service.metrics import Metrics


def watch(inner):
    service = SimpleNamespace(settings=Settings("m"), keys={}, metrics=Metrics())
    return Gate(inner, service=service, paths=frozenset())


def test_other_kinds_of_connections_are_passed_on():
    seen = []

    async def inner(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(watch(inner)({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def test_an_error_in_the_middle_of_an_answer_is_logged(logs):
    async def inner(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        raise ZeroDivisionError

    sent = []

    async def send(message):
        sent.append(message["type"])

    async def run():
        headers = [(b"host", b"localhost")]
        await watch(inner)({"type": "http", "path": "/", "method": "GET", "headers": headers}, None, send)

    asyncio.run(run())
    assert sent == ["http.response.start"]
