"""The application: which address does what."""

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
from onsphere.service.assessing import JSON
from onsphere.service.engine import Served
from onsphere.service.limits import Limits, error_headers, given_key
from onsphere.service.logs import Watch
from onsphere.service.openapi import answer_content, body_schema, errors
from onsphere.service.problems import Problem, RequestError
from onsphere.service.replies import json_of
from onsphere.service.schemas import Answers, Health, Live, ModelFacts, Readiness, Reloaded, ResetDone
from onsphere.service.service import Service
from onsphere.service.settings import Settings

__all__ = ["create_app", "from_environment"]

_PAGE = Path(__file__).parent / "page"
_PATHS = frozenset(
    ["/", "/docs", "/healthz", "/readyz", "/metrics", "/v1/assess", "/v1/model", "/v1/live", "/v1/reload", "/v1/reset"]
)

# Looked at in `given_key`; here for OpenAPI.
_Bearer = Annotated[Any, Depends(HTTPBearer(auto_error=False))]
_Header = Annotated[Any, Depends(APIKeyHeader(name="X-API-Key", auto_error=False))]


def create_app(settings: Settings, *, served: Served | None = None) -> FastAPI:
    """The application of a service.

    Parameters
    ----------
    settings : Settings
    served : Served, optional
        The model, where it is loaded already.
    """
    service = Service(settings, served)
    app = FastAPI(
        title="onsphere",
        description="An honest uncertainty for every prediction.",
        lifespan=service.running,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    _add_errors(app)
    _add_watching(app, service)
    _add_model(app, service)
    _add_page(app)
    _describe_rows(app, service)
    app.add_middleware(Limits, settings=settings, keys=service.keys)
    app.add_middleware(Watch, metrics=service.metrics, paths=_PATHS, log_values=settings.log_values)
    return app


def from_environment() -> FastAPI:
    """The application of a worker, whose settings are in the environment."""
    return create_app(Settings.from_environment())


def _key_needed(service: Service) -> list[Any]:
    """That the request has a key, where there are any."""
    if not service.keys:
        return []

    async def check(request: Request, _: _Bearer, __: _Header) -> None:
        name = service.keys.name_of(given_key(request.headers))
        if name is None:
            raise RequestError(401, "Expected an API key that is known. Pass Authorization: Bearer KEY, or X-API-Key.")
        request.scope["state"]["told"]["key"] = name

    return [Depends(check)]


def _add_model(app: FastAPI, service: Service) -> None:
    key = _key_needed(service)

    @app.post(
        "/v1/assess",
        dependencies=key,
        responses={200: {"model": Answers, "content": answer_content()}, **errors(408, 413, 415, 422, 503, 504)},
        tags=["model"],
    )
    async def assess_rows(
        request: Request,
        coverage: Annotated[float | None, Query(gt=0, lt=1, description="Of intervals or sets.")] = None,
    ) -> Response:
        """Assess rows: value, uncertainty, interval, confidence, and whether to accept each.

        JSON rows by column name (or in the order of the columns), or for batches CSV or an Arrow stream, which are
        answered in kind; the header X-Recorded then says whether the assessment was stored.
        """
        assessed, recorded, answer_type = await service.assess(request, coverage)
        facts = assessed.record.facts
        body = assessed.body
        if assessed.rows is not None:
            share = coverage or facts.coverage
            body = json_of({"model": facts.sha256, "coverage": share, "recorded": recorded, "rows": assessed.rows})
        return Response(body, media_type=answer_type, headers={"x-recorded": str(recorded).lower()})

    @app.get("/v1/model", dependencies=key, response_model=ModelFacts, responses=errors(), tags=["model"])
    async def model() -> Any:
        """What is served: columns, targets, threshold, calibration."""
        return _json(service.described())

    @app.post(
        "/v1/reload",
        dependencies=key,
        response_model=Reloaded,
        responses={**errors(), 409: _conflict()},
        tags=["model"],
    )
    async def reload() -> Any:
        """Load the model's file anew; the model before it answers until then, and still does if that fails."""
        try:
            changed = await asyncio.get_running_loop().run_in_executor(None, service.reload)
        except OnsphereError as error:
            raise RequestError(409, str(error)) from None
        return _json({"changed": changed, "sha256": service.served.engine.facts.sha256})

    @app.post("/v1/reset", dependencies=key, response_model=ResetDone, responses=errors(503), tags=["model"])
    async def reset() -> Any:
        """Start the drift monitor again, as if no row had been seen."""
        await service.reset()
        return _json({"reset": True})


def _add_watching(app: FastAPI, service: Service) -> None:
    key = _key_needed(service)

    @app.get("/v1/live", dependencies=key, response_model=Live, responses=errors(), tags=["watching"])
    async def live() -> Any:
        """What the page shows: throughput, times, share accepted, uncertainties, drift, rejected rows."""
        return _json(await service.live())

    @app.get("/healthz", response_model=Health, tags=["watching"])
    async def healthz() -> Any:
        """Whether the process answers."""
        return _json({"status": "ok"})

    @app.get(
        "/readyz",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "Not."}},
        tags=["watching"],
    )
    async def readyz() -> Any:
        """Whether model and store work."""
        found = {"store": service.recorder.trouble, "model": service.served.trouble}
        return _json({"ready": found["store"] is None, **found}, 200 if found["store"] is None else 503)

    @app.get(
        "/metrics",
        dependencies=key,
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **errors()},
        tags=["watching"],
    )
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(await service.measured(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    pages = {"/": "index.html", "/docs": "docs.html"}

    async def page(request: Request) -> Response:
        return Response((_PAGE / pages[request.url.path]).read_bytes(), media_type="text/html; charset=utf-8")

    for path in pages:
        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)
    app.mount("/page", StaticFiles(directory=_PAGE), name="page")


def _describe_rows(app: FastAPI, service: Service) -> None:
    """OpenAPI with the columns of the model that is served now."""
    plain, made = app.openapi, {"for": ""}

    def openapi() -> dict[str, Any]:
        facts = service.served.engine.facts
        schema = plain()
        if made["for"] != facts.sha256:
            schema["paths"]["/v1/assess"]["post"]["requestBody"] = body_schema(facts, service.settings.max_rows)
            made["for"] = facts.sha256
        return schema

    app.openapi = openapi


def _conflict() -> dict[str, Any]:
    return errors(422)[422] | {"description": "The file cannot be loaded; the model before it still answers."}


def _json(values: Any, status: int = 200) -> Response:
    return Response(json_of(values), status, media_type=JSON)


def _add_errors(app: FastAPI) -> None:
    def answered(error: RequestError) -> Response:
        return Response(json_of(error.body()), error.status, headers=error_headers(error.status), media_type=JSON)

    async def ours(request: Request, error: Any) -> Response:
        return answered(error)

    async def of_http(request: Request, error: Any) -> Response:
        answer = answered(RequestError(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    async def of_parameters(request: Request, error: Any) -> Response:
        found = [
            Problem(None, None, f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}", str(one.get("input"))[:60])
            for one in error.errors()
        ]
        return answered(RequestError(422, f"Expected {found[0].expected}. Got {found[0].got}.", found))

    app.add_exception_handler(RequestError, ours)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_parameters)
