"""Connect each address to what it does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from onsphere.errors import OnsphereError
from onsphere.service.batching import JSON
from onsphere.service.engine import ServedModel
from onsphere.service.limits import Limits, read_key
from onsphere.service.logs import RequestLogger
from onsphere.service.operations import Service
from onsphere.service.replies import RequestError, encode_json
from onsphere.service.schemas import (
    LABELS_BODY,
    Answers,
    Health,
    LabelsTaken,
    Live,
    ModelFacts,
    Readiness,
    Reloaded,
    ResetDone,
    build_body_schema,
    describe_batch_answers,
    describe_errors,
)
from onsphere.service.settings import Settings
from onsphere.table.cells import LONGEST_TEXT, Problem

__all__ = ["create_app", "create_app_from_environment"]

_PAGE = Path(__file__).parent / "page"
_PATHS = frozenset(["/", "/docs", "/healthz", "/readyz", "/metrics"]) | {
    f"/v1/{name}" for name in ("assess", "labels", "model", "live", "reload", "reset")
}

# Only for OpenAPI; the key itself is read by `read_key`.
_Bearer = Annotated[Any, Depends(HTTPBearer(auto_error=False))]
_Header = Annotated[Any, Depends(APIKeyHeader(name="X-API-Key", auto_error=False))]


def create_app(settings: Settings, *, served: ServedModel | None = None) -> FastAPI:
    """Create the application of a service.

    Parameters
    ----------
    settings : Settings
    served : ServedModel, optional
        The model, where it is loaded already.
    """
    service = Service(settings, served)
    app = FastAPI(
        title="onsphere",
        description="An honest uncertainty for every prediction.",
        lifespan=service.run,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    _add_error_handlers(app)
    _add_watching(app, service)
    _add_model(app, service)
    _add_pages(app)
    _describe_rows(app, service)
    app.add_middleware(Limits, settings=settings, keys=service.keys)
    app.add_middleware(RequestLogger, metrics=service.metrics, paths=_PATHS, log_values=settings.log_values)
    return app


def create_app_from_environment() -> FastAPI:
    """Create the application of a worker, which finds its settings in the environment."""
    return create_app(Settings.from_environment())


def _require_key(service: Service) -> list[Any]:
    """Return the dependency that checks the key of a request, where the service has keys."""
    if not service.keys:
        return []

    async def check_key(request: Request, _: _Bearer, __: _Header) -> None:
        name = service.keys.find_name(read_key(request.headers))
        if name is None:
            raise RequestError(401, "Expected a known API key. Pass Authorization: Bearer KEY, or X-API-Key.")
        request.scope["state"]["log_fields"]["key"] = name

    return [Depends(check_key)]


def _add_model(app: FastAPI, service: Service) -> None:
    key = _require_key(service)

    @app.post(
        "/v1/assess",
        dependencies=key,
        responses={
            200: {"model": Answers, "content": describe_batch_answers()},
            **describe_errors(408, 413, 415, 422, 503, 504),
        },
        tags=["model"],
    )
    async def assess_rows(
        request: Request,
        coverage: Annotated[float | None, Query(gt=0, lt=1, description="Of intervals or sets.")] = None,
        key: Annotated[
            str | None, Query(max_length=LONGEST_TEXT, description="The column that names rows, for POST /v1/labels.")
        ] = None,
    ) -> Response:
        """Assess rows: value, uncertainty, interval, confidence, and whether to accept each.

        JSON rows by column name (or in the order of the columns), or for batches CSV or an Arrow stream. The answer
        comes in the same format; its header X-Recorded says whether the assessment was stored.
        """
        reply, recorded, answer_type = await service.assess(request, coverage, key)
        facts = reply.record.facts
        body = reply.body
        if reply.rows is not None:
            share = coverage or facts.coverage
            body = encode_json({"model": facts.sha256, "coverage": share, "recorded": recorded, "rows": reply.rows})
        return Response(body, media_type=answer_type, headers={"x-recorded": str(recorded).lower()})

    @app.post(
        "/v1/labels",
        dependencies=key,
        response_model=LabelsTaken,
        responses=describe_errors(408, 413, 415, 422, 503),
        openapi_extra={"requestBody": LABELS_BODY},
        tags=["model"],
    )
    async def take_labels(request: Request) -> Any:
        """Take what turned out to be true of rows that were assessed with key=, each named by its key.

        Intervals or sets of a .onsphere model follow, and the page shows how many of the latest were covered. Keys that
        are unknown, or labelled already, are listed, and the others taken; if nothing can be taken, the status is 422.
        """
        return _answer_json(await service.take_labels(request))

    @app.get("/v1/model", dependencies=key, response_model=ModelFacts, responses=describe_errors(), tags=["model"])
    async def model() -> Any:
        """Describe the model: columns, targets, threshold, calibration."""
        return _answer_json(service.describe_model())

    @app.post(
        "/v1/reload",
        dependencies=key,
        response_model=Reloaded,
        responses=describe_errors(409),
        tags=["model"],
    )
    async def reload() -> Any:
        """Load the model's file again; the old model answers until then, and goes on if that fails."""
        try:
            changed = await asyncio.get_running_loop().run_in_executor(None, service.reload)
        except OnsphereError as error:
            raise RequestError(409, str(error)) from None
        return _answer_json({"changed": changed, "sha256": service.served.engine.facts.sha256})

    @app.post("/v1/reset", dependencies=key, response_model=ResetDone, responses=describe_errors(503), tags=["model"])
    async def reset() -> Any:
        """Start the drift monitor again, as if no row had been seen."""
        await service.reset()
        return _answer_json({"reset": True})


def _add_watching(app: FastAPI, service: Service) -> None:
    key = _require_key(service)

    @app.get("/v1/live", dependencies=key, response_model=Live, responses=describe_errors(), tags=["watching"])
    async def live() -> Any:
        """Return what the page shows: throughput, times, share accepted, uncertainties, drift, rejected rows."""
        return _answer_json(await service.get_live())

    @app.get("/healthz", response_model=Health, tags=["watching"])
    async def healthz() -> Any:
        """Say that the process answers."""
        return _answer_json({"status": "ok"})

    @app.get(
        "/readyz",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "Not ready."}},
        tags=["watching"],
    )
    async def readyz() -> Any:
        """Say whether model and store work."""
        found = {"store": service.recorder.trouble, "model": service.served.trouble}
        return _answer_json({"ready": found["store"] is None, **found}, 200 if found["store"] is None else 503)

    @app.get(
        "/metrics",
        dependencies=key,
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **describe_errors()},
        tags=["watching"],
    )
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        return Response(await service.write_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_pages(app: FastAPI) -> None:
    pages = {"/": "index.html", "/docs": "docs.html"}

    async def page(request: Request) -> Response:
        return Response((_PAGE / pages[request.url.path]).read_bytes(), media_type="text/html; charset=utf-8")

    for path in pages:
        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)
    app.mount("/page", StaticFiles(directory=_PAGE), name="page")


def _describe_rows(app: FastAPI, service: Service) -> None:
    """Keep the columns of the model that is served now in the OpenAPI schema."""
    plain, described = app.openapi, {"model": ""}

    def openapi() -> dict[str, Any]:
        facts = service.served.engine.facts
        schema = plain()
        if described["model"] != facts.sha256:
            schema["paths"]["/v1/assess"]["post"]["requestBody"] = build_body_schema(facts, service.settings.max_rows)
            described["model"] = facts.sha256
        return schema

    app.openapi = openapi


def _answer_json(values: Any, status: int = 200) -> Response:
    return Response(encode_json(values), status, media_type=JSON)


def _add_error_handlers(app: FastAPI) -> None:
    def answer(error: RequestError) -> Response:
        return Response(error.to_json(), error.status, headers=error.headers, media_type=JSON)

    async def answer_request_error(request: Request, error: Any) -> Response:
        return answer(error)

    async def answer_http_error(request: Request, error: Any) -> Response:
        response = answer(RequestError(error.status_code, str(error.detail)))
        response.headers.update(error.headers or {})
        return response

    async def answer_parameter_error(request: Request, error: Any) -> Response:
        found = [
            Problem(None, None, f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}", str(one.get("input"))[:60])
            for one in error.errors()
        ]
        return answer(RequestError(422, f"Expected {found[0].expected}. Got {found[0].got}.", found))

    app.add_exception_handler(RequestError, answer_request_error)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(RequestValidationError, answer_parameter_error)
