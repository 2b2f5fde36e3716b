"""Connect each address to what it does."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import signal
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic import ValidationError

from onsphere.errors import OnsphereError
from onsphere.export.deployed import Facts
from onsphere.service import schemas
from onsphere.service.answers import RequestError, StoreError, encode_json, find_place
from onsphere.service.assess import AssessRequest
from onsphere.service.labels import LABELS_AT_ONCE, explain_no_update, read_labels
from onsphere.service.limits import Gate
from onsphere.service.metrics import Metrics, log_event, start_tracing
from onsphere.service.recorder import OpenStore, Recorder
from onsphere.service.rows import ARROW, CSV, JSON, MEDIA_TYPES, check_brackets, read_media_type
from onsphere.service.served_model import LiveModel, ServedModel, make_late_error
from onsphere.service.settings import Settings, read_keys
from onsphere.service.store import Store
from onsphere.table.cells import Problem, show_value

_PAGE = Path(__file__).parent / "page"
_PAGES = {"/": "index.html", "/docs": "docs.html"}
_LIVE_SECONDS = 1.0  # that one look at the store is shown to all pages
_FOLLOW_SECONDS = 1.0  # between looks at rows and labels of all workers
_FIRST_SECONDS = 5.0  # for the labels of earlier runs, before the service starts all the same
_NAME = re.compile(rb"[!-~]{1,200}")
_Named = Header(pattern="^[!-~]{1,200}$", description="Names the request; sent again, it is not counted again.")


class Service:
    """The model and the store that all addresses share."""

    def __init__(self, settings: Settings, served: ServedModel | None = None) -> None:
        self.settings = settings
        self.keys = read_keys(settings.api_keys, settings.keys_file)
        self.served = served or ServedModel(settings)
        self.recorder = Recorder(settings)
        self.metrics = Metrics()
        self._n_working, self._replaced = 0, set[LiveModel]()
        self._live_lock, self._labels_lock, self._follow_lock = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._has_followed = False
        self._watch_models()

    @asynccontextmanager
    async def run(self, app: FastAPI) -> AsyncGenerator[None]:
        """Start and stop what runs beside requests, and reload the model when its file changes or SIGHUP comes."""
        loop, settings = asyncio.get_running_loop(), self.settings
        await self.recorder.start()
        first = asyncio.create_task(self._follow())
        await asyncio.wait({first}, timeout=_FIRST_SECONDS)  # very many labels are followed later, and /readyz says so
        self.metrics.loaded.set(self.served.loaded_at)
        tasks = [first, asyncio.create_task(_repeat(_FOLLOW_SECONDS, self._follow))]
        if settings.watch:
            tasks.append(asyncio.create_task(_repeat(settings.watch, self._reload_if_changed)))
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread:
            loop.add_signal_handler(signal.SIGHUP, lambda: tasks.append(asyncio.create_task(self._reload_and_log())))
        try:
            yield
        finally:
            if in_main_thread:
                loop.remove_signal_handler(signal.SIGHUP)
            await self.recorder.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for live in [*self._replaced, self.served.live]:
                live.close()
                await asyncio.gather(*live.restarting)
            await asyncio.sleep(0)  # in which the connections to their processes are closed

    async def _follow(self) -> None:
        """Let the monitor and the model follow the rows and labels that any worker took."""
        async with self._follow_lock:
            with suppress(Exception):  # of the store, which the recorder notes
                await self._read_slices()
            await self._catch_up(self.served.live)
            self._has_followed = True

    async def _read_slices(self) -> None:
        while not await self.recorder.do(OpenStore.catch_up):
            pass  # single rows have their turn after each slice

    async def _catch_up(self, live: LiveModel) -> bool:
        """Update a model with the labels that it has not seen, and return whether it has followed all of them."""
        if live.facts.kind == "onnx" or live.facts.calibration is None:
            return True
        model = live.facts.sha256
        try:
            while labels := await self.recorder.do(OpenStore.run, Store.read_labels, model, live.last_label):
                await live.update(labels)
        except Exception as error:  # they are read at the next look
            if isinstance(error, RequestError):  # of the model; the recorder says what is wrong with the store
                log_event("labels", level=logging.ERROR, reason=error.detail)
            return False
        return True

    async def reload(self) -> bool:
        """Load the model's file again, and return whether another model answers now."""
        before = await self.served.reload(self._catch_up)
        if before is not None:  # requests in flight may still need its processes
            self._replaced.add(before)
            asyncio.get_running_loop().call_later(self.settings.timeout, self._close, before)
        self.metrics.loaded.set(self.served.loaded_at)
        self._watch_models()
        return before is not None

    def _close(self, live: LiveModel) -> None:
        live.close()
        self._replaced.discard(live)

    def _watch_models(self) -> None:
        """Let the store take records of the models that answer, and forget what was seen before."""
        self.recorder.watch([each.facts for each in [*self._replaced, self.served.live]])
        self._live: tuple[float, dict[str, Any]] = (0.0, {})

    async def reset(self) -> None:
        """Start the drift monitor again, for all workers."""
        await self.use_store(OpenStore.reset)
        self._watch_models()

    async def _reload_if_changed(self) -> None:
        if await asyncio.to_thread(self.served.has_changed):
            await self._reload_and_log()

    async def _reload_and_log(self) -> None:
        try:
            changed, reason = await self.reload(), None
        except OnsphereError as error:
            changed, reason = False, str(error)
        level, sha256 = logging.WARNING if reason else logging.INFO, self.served.facts.sha256
        log_event("reload", level=level, changed=changed, reason=reason, sha256=sha256)

    async def assess(self, scope: Any, body: bytes) -> Response:
        """Return the answer to `POST /v1/assess`."""
        state, options = scope["state"], _read_options(scope["query_string"])
        headers: dict[bytes, bytes] = state["headers"]
        media_type = answer_type = read_media_type(headers.get(b"content-type", b""))
        if b"accept" in headers:
            with suppress(RequestError):
                answer_type = read_media_type(headers[b"accept"].partition(b",")[0])
        if self._n_working >= self.settings.max_concurrent:
            raise RequestError(503, f"{self._n_working} requests are being worked on. Try again in a moment.")
        if media_type == JSON and len(body) > 2**20:  # in a thread, since so many bytes hold the event loop up
            await asyncio.to_thread(check_brackets, body, self.settings.max_rows)
        live, name = self.served.live, headers.get(b"idempotency-key")
        share, idempotency = options.coverage or live.facts.coverage, None
        if name is not None:
            if not _NAME.fullmatch(name):
                raise RequestError(
                    422,
                    f"Expected an Idempotency-Key of 1 to 200 visible characters. Got {repr(name)[2:60]}.",
                )
            whose = state["key"].name if state["key"] else ""  # two clients may use the same name
            code = hashlib.sha256(scope["query_string"] + b" " + body).hexdigest()
            idempotency = (f"{whose} {name.decode()}", code)
        arrived = (state["request"], state["started"])
        request = AssessRequest(
            body, media_type, answer_type, share, *arrived, options.record, idempotency, options.key
        )
        reply, recorded = None, False
        self._n_working += 1
        try:
            async with asyncio.timeout(self.settings.timeout):
                reply = await live.assess(request)
                recorded = options.record and await self.recorder.write(reply.record, live.facts.sha256)
        except TimeoutError:
            if reply is None:
                raise make_late_error(self.settings) from None
        finally:
            self._n_working -= 1
        facts = live.facts
        n_accepted = reply.n_accepted if facts.decides else None
        if options.record:
            self.metrics.count_rows(reply.n_rows, n_accepted)
        state["log_fields"].update(rows=reply.n_rows, accepted=n_accepted, recorded=recorded, **reply.logged)
        is_recorded, content = str(recorded).lower(), reply.body
        if answer_type == JSON:
            head = f'{{"model":"{facts.sha256}","coverage":{share},"recorded":{is_recorded},"rows":'
            content = head.encode() + content + b"}"
        return Response(content, headers={"x-recorded": is_recorded}, media_type=answer_type)

    async def take_labels(self, request: Request) -> dict[str, Any]:
        """Join the labels of a request to the answers in the store, and return what `POST /v1/labels` answers."""
        if read_media_type(request.headers.get("content-type", "").encode()) != JSON:
            raise RequestError(415, f"Expected labels of the type {JSON}. Got another.")
        body, live = await request.body(), self.served.live
        labels = await asyncio.to_thread(read_labels, body, live.facts, max_rows=self.settings.max_rows)
        number = f"{request.scope['state']['request']} {uuid.uuid4().hex}"  # a client may give each the same name
        matched: list[Any] = []
        async with self._labels_lock:  # so that single rows wait for those of one request at most
            for start in range(0, len(labels), LABELS_AT_ONCE):
                part = labels[start : start + LABELS_AT_ONCE]
                matched += await self.use_store(OpenStore.run, Store.match_labels, part)
            found = await self.use_store(OpenStore.run, Store.write_labels, matched, number)
        taken = found.pop("taken")
        if not taken:
            raise RequestError(
                422,
                f"Expected keys of rows that wait for a label. Got {len(found['unknown'])} unknown and "
                f"{len(found['labelled_already'])} labelled already. Pass key= when you assess rows.",
                [Problem("key", None, "one that waits for a label", show_value(label.key)) for label in labels[:20]],
            )
        self.metrics.labels.inc(len(taken))
        is_read = await self._catch_up(live)
        note = explain_no_update(live.facts, taken, is_skipped=number in live.skipped, is_read=is_read)
        return {"taken": len(taken), **found, "model_updated": note is None, "note": note}

    async def use_store(self, task: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a task on the store returns, or raise a RequestError."""
        try:
            return await self.recorder.do(task, *arguments)
        except StoreError as error:
            raise RequestError(503, f"The store does not work: {error}") from None

    async def get_live(self) -> dict[str, Any]:
        """Return what the page shows; many pages share one look at the store a second."""
        async with self._live_lock:
            at, found = self._live
            if not found or time.monotonic() - at > _LIVE_SECONDS:
                found = await self._read_live()
                self._live = (time.monotonic(), found)
            return found

    async def _read_live(self) -> dict[str, Any]:
        facts, reason = self.served.facts, None
        found: dict[str, Any] = {"minute": None, "points": [], "rejected": [], "drift": None, "labels": None}
        try:
            await self._read_slices()
            found = await self.recorder.do(OpenStore.read_live)
        except StoreError as error:
            reason = str(error)
        if found["minute"] and not facts.decides:
            found["minute"]["accepted"] = None
        store = {"working": reason is None, "reason": reason}
        return {"now": time.time(), "model": facts.sha256, "store": store, "process": self.trouble, **found}

    @property
    def trouble(self) -> str | None:
        """Why the model does not answer as it should at the moment."""
        late = None if self._has_followed else "The labels of earlier runs are still being followed."
        return self.served.live.trouble or late


async def _repeat(seconds: float, task: Callable[..., Any], *arguments: Any) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await task(*arguments)
        except Exception as error:  # whatever it is, the next look is taken
            log_event("fault", level=logging.ERROR, type=type(error).__name__, at=find_place(error))


def _read_options(query: bytes) -> schemas.Options:
    if not query:
        return schemas.NO_OPTIONS
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    given, names = dict(pairs), schemas.Options.model_fields
    if len(given) < len(pairs) or not given.keys() <= names.keys():
        wrong = next((show_value(name) for name in given if name not in names), "one several times")
        raise RequestError(422, f"Expected no options but {', '.join(names)}, each once. Got {wrong}.")
    try:
        return schemas.Options.model_validate(given)
    except ValidationError as error:
        found = [
            Problem(None, None, f"{'.'.join(map(str, one['loc']))}: {one['msg']}", str(one.get("input"))[:60])
            for one in error.errors()
        ]
        raise RequestError(422, f"Expected {found[0].expected}. Got {found[0].got}.", found) from None


def create_app(settings: Settings, *, served: ServedModel | None = None) -> FastAPI:
    """Create the application of a service.

    Parameters
    ----------
    settings : Settings
    served : ServedModel, optional
        The model, where it is loaded already.
    """
    instrument = start_tracing() if settings.telemetry else lambda app: None
    service, about = Service(settings, served), "An honest uncertainty for every prediction."
    none: Any = dict.fromkeys(("docs_url", "redoc_url", "openapi_url"))
    app = FastAPI(title="onsphere", description=about, lifespan=service.run, **none)
    app.state.service = service
    for status in (404, 405):
        app.add_exception_handler(status, _answer_unknown_address)
    # `Gate` checks the keys; these tell OpenAPI.
    shown = [HTTPBearer(auto_error=False), APIKeyHeader(name="X-API-Key", auto_error=False)] if service.keys else []
    routes = _build_routes(service)
    app.include_router(routes, dependencies=[*map(Depends, shown)])
    _add_pages(app, service)
    paths = frozenset(getattr(route, "path", "") for route in [*routes.routes, *app.routes])
    app.add_middleware(Gate, service=service, paths=paths)
    instrument(app)
    return app


def create_app_from_environment() -> FastAPI:
    """Create the application of a worker, which finds its settings in the environment."""
    return create_app(Settings())


async def _answer_unknown_address(request: Request, error: Any) -> Response:
    asked = f"{request.method} {request.url.path[:100]!r}"
    detail = f"Expected an address of this service. Got {asked}. /docs lists what there is."
    return RequestError(error.status_code, detail).to_response(error.headers)


def _is_known(service: Service, request: Request) -> bool:
    return not service.keys or request.scope["state"]["key"] is not None


def _answer_json(values: Any, status: int = 200) -> Response:
    return Response(encode_json(values), status, media_type=JSON)


def _build_routes(service: Service) -> APIRouter:
    """Build the addresses that need a key, if there are keys."""
    routes, errors = APIRouter(), schemas.describe_errors
    tables = {media_type: {"schema": {"type": "string"}} for media_type in (CSV, ARROW)}
    answers = {200: {"model": schemas.Answers, "content": tables}, **errors(408, 413, 415, 422, 503, 504)}

    @routes.post("/v1/assess", responses=answers, response_class=Response)
    async def assess_rows(
        options: Annotated[schemas.Options, Query()], idempotency_key: Annotated[str | None, _Named] = None
    ) -> None:
        """Assess rows: value, uncertainty, interval, confidence, and whether to accept each.

        JSON rows by column name (or in the order of the columns), or for batches CSV or an Arrow stream. The answer
        comes in the same format; its header X-Recorded says whether the assessment was stored.
        """

    @routes.post("/v1/labels", response_model=schemas.LabelsTaken, responses=errors(408, 413, 415, 422, 503))
    async def take_labels(request: Request) -> Any:
        """Take what turned out to be true of rows that were assessed with key=, each named by its key.

        Intervals or sets of a .onsphere model follow, and the page shows how many of the latest were covered. Keys that
        are unknown, or labelled already, are listed, and the others taken; if nothing can be taken, the status is 422.
        """
        return _answer_json(await service.take_labels(request))

    @routes.get("/v1/model", response_model=schemas.ModelFacts, responses=errors())
    async def describe_model() -> Response:
        """Describe the model: columns, targets, threshold, calibration."""
        served = service.served
        more = {"loaded_at": served.loaded_at, "reload_trouble": served.trouble}
        return _answer_json(served.facts.describe() | more)

    @routes.post("/v1/reload", responses=errors(409))
    async def reload() -> dict[str, bool | str]:
        """Load the model's file again; the old model answers until then, and goes on if that fails."""
        try:
            changed = await service.reload()
        except OnsphereError as error:
            raise RequestError(409, str(error)) from None
        return {"changed": changed, "sha256": service.served.facts.sha256}

    @routes.post("/v1/reset", responses=errors(503))
    async def reset() -> dict[str, bool]:
        """Start the drift monitor again, as if no row had been seen."""
        await service.reset()
        return {"reset": True}

    @routes.get("/v1/live", response_model=schemas.Live, responses=errors())
    async def live() -> Response:
        """Return what the page shows: throughput, times, uncertainties, drift, labels, rejected rows."""
        return _answer_json(await service.get_live())

    plain: Any = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @routes.get("/metrics", response_class=Response, responses=plain | errors())
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        text = service.metrics.write_text(await service.get_live())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def _add_pages(app: FastAPI, service: Service) -> None:
    """Add the addresses that need no key; those without one get no reasons and no columns."""
    unready: Any = {503: {"model": schemas.Readiness, "description": "Not ready."}}

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", responses=schemas.describe_errors())
    async def healthz() -> dict[str, str]:
        """Say that the process answers."""
        return {"status": "ok"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", response_model=schemas.Readiness, responses=schemas.describe_errors() | unready)
    async def readyz(request: Request) -> Any:
        """Say whether the store takes writes, and the model answers; with a key, also why not."""
        found = {
            "store": service.recorder.trouble,
            "process": service.trouble,
            "model": service.served.trouble,
        }
        is_ready = found["store"] is None and found["process"] is None
        details = found if _is_known(service, request) else {}
        return _answer_json({"ready": is_ready, **details}, 200 if is_ready else 503)

    async def page(request: Request) -> Response:
        return Response((_PAGE / _PAGES[request.url.path]).read_bytes(), media_type="text/html; charset=utf-8")

    @lru_cache(maxsize=2)  # it takes long for a model of many columns
    def build_openapi(facts: Facts | None) -> dict[str, Any]:
        schema, place = app.openapi(), "#/components/schemas/{model}"
        labels = schemas.Labels.model_json_schema(ref_template=place)
        rows: dict[str, Any] = {"type": "object"}
        if facts is not None:
            rows = schemas.build_body_model(facts, service.settings.max_rows).json_schema(ref_template=place)
        parts = schema["components"]["schemas"] | rows.pop("$defs", {}) | labels.pop("$defs")
        tables = {each: {"schema": {"type": "string", "format": "binary"}} for each in MEDIA_TYPES[1:]}
        bodies = {"/v1/assess": {JSON: {"schema": rows}, **tables}, "/v1/labels": {JSON: {"schema": labels}}}
        posts = {
            path: {"post": schema["paths"][path]["post"] | {"requestBody": {"required": True, "content": content}}}
            for path, content in bodies.items()
        }
        components = schema["components"] | {"schemas": parts}
        return schema | {"paths": schema["paths"] | posts, "components": components}

    async def openapi(request: Request) -> Response:
        facts = service.served.facts if _is_known(service, request) else None
        return _answer_json(await asyncio.to_thread(build_openapi, facts))

    for path in _PAGES:
        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)
    app.mount("/page", StaticFiles(directory=_PAGE), name="page")
    app.add_api_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False)
