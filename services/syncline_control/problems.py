"""Errors on the way out: every one is application/problem+json (RFC 9457), in one sentence.

The one place where our errors meet HTTP. `code` is what programs go by; docs/protocol.md lists
the codes.
"""

from __future__ import annotations

import http
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from syncline_control import examples
from syncline_proto.errors import Forbidden, InvalidRequest, SynclineError
from syncline_proto.rest import Problem
from syncline_proto.words import finding

MEDIA_TYPE = "application/problem+json"

RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {"model": Problem, "description": "What went wrong, and what to do about it."}
}
"""For routers: documents that every error is a Problem."""

PROBLEM = {"schema": {"$ref": "#/components/schemas/Problem"}}


class Unauthorized(Forbidden):
    """No token, or a wrong one; on the wire it is FORBIDDEN with status 401."""

    http_status = 401


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the response for an error of this status."""
    try:
        title = http.HTTPStatus(status).phrase
    except ValueError:
        title = "Error"
    body = Problem(title=title, status=status, detail=detail, code=code)
    return JSONResponse(body.model_dump(), status, headers, MEDIA_TYPE)


def of_error(error: SynclineError) -> JSONResponse:
    """Return the response for one of our errors."""
    headers = {"WWW-Authenticate": "Bearer"} if error.http_status == 401 else None
    return problem(error.http_status, error.code, error.message, headers)


def install(app: FastAPI) -> None:
    """Let every error of the app leave as a problem, and be documented as one."""

    async def ours(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, SynclineError)
        return of_error(error)

    async def invalid(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return of_error(InvalidRequest(sentence(error.errors())))

    async def http_error(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = InvalidRequest.code if error.status_code < 500 else SynclineError.code
        says = f"{error.detail}; /docs lists what there is."
        return problem(error.status_code, code, says, error.headers)

    async def fault(_request: Request, _error: Exception) -> JSONResponse:
        return problem(500, SynclineError.code, "The control plane has a fault; its log says more.")

    app.add_exception_handler(SynclineError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, fault)
    _document(app)


def sentence(errors: Sequence[Any]) -> str:
    """Say in one sentence what is wrong with a request: the first error and its field."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"The body is not valid JSON: {first['ctx']['error']}."
    where, *loc = first["loc"]  # "body", "query" or "path"
    return finding(first | {"loc": tuple(loc)}, whole=f"The {where}")


def _document(app: FastAPI) -> None:
    """Say in OpenAPI that problems are application/problem+json, and show what comes back."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            for path in generate()["paths"].values():
                for operation in path.values():
                    if "default" in operation["responses"]:
                        operation["responses"]["default"]["content"] = {MEDIA_TYPE: {**PROBLEM}}
                    examples.show(operation["responses"])
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi
