"""The schema of a request, made of the columns of the model that is served."""

from __future__ import annotations

from typing import Any

from onsphere.service.assessing import ARROW, CSV, JSON, MEDIA_TYPES
from onsphere.service.engine import Facts
from onsphere.service.rows import LARGEST, LONGEST_TEXT
from onsphere.service.schemas import ErrorAnswer
from onsphere.table.columns import Column

__all__ = ["answer_content", "body_schema", "errors"]

_REASONS = {
    401: "The API key is missing or unknown.",
    403: "The request comes from a page of another site.",
    408: "The request did not arrive in time.",
    413: "The body has too many bytes or rows.",
    415: "The body is of another type.",
    421: "The request names another machine.",
    422: "A column is unknown, missing or wrongly typed, or the body cannot be read.",
    429: "Too many requests of one client.",
    503: "Too much is being worked on; try again.",
    504: "The answer took too long.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What can go wrong, for OpenAPI."""
    return {
        status: {"model": ErrorAnswer, "description": _REASONS[status]} for status in (401, 403, 421, 429, *statuses)
    }


def answer_content() -> dict[str, Any]:
    """The further types of an answer."""
    return {media_type: {"schema": {"type": "string"}} for media_type in (CSV, ARROW)}


def body_schema(facts: Facts, max_rows: int) -> dict[str, Any]:
    """The body of `POST /v1/assess`."""
    features = {column.name: _schema(column) for column in facts.features}
    others = {
        column.name: _KEY if column.kind == "key" else _ANYTHING for column in facts.columns if not column.is_feature
    }
    if not facts.as_array:
        others |= {target: _ANYTHING for target in facts.targets if target not in features}
    by_name = {
        "type": "object",
        "properties": others | features,
        "required": list(features),
        "additionalProperties": False,
    }
    in_order = {
        "type": "array",
        "prefixItems": list(features.values()),
        "items": False,
        "minItems": len(features),
        "maxItems": len(features),
    }
    rows = {"type": "array", "items": {"anyOf": [by_name, in_order]}, "minItems": 1, "maxItems": max_rows}
    schema = {"type": "object", "properties": {"rows": rows}, "required": ["rows"], "additionalProperties": False}
    content: dict[str, Any] = {JSON: {"schema": schema}}
    for media_type in MEDIA_TYPES[1:]:
        content[media_type] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": True, "content": content}


_ANYTHING: dict[str, Any] = {"type": ["string", "number", "boolean", "null"]}
_KEY = _ANYTHING | {"maxLength": LONGEST_TEXT, "minimum": -LARGEST, "maximum": LARGEST}


def _schema(column: Column) -> dict[str, Any]:
    match column.kind:
        case "number":
            types = ["number", "null", *(["string"] if column.written_as_text else [])]
            return {"type": types, "minimum": -LARGEST, "maximum": LARGEST}
        case "boolean":
            return {"type": ["boolean", "null", *(["string"] if column.written_as_text else [])]}
        case "category":
            return {"type": ["string", "null"], "maxLength": LONGEST_TEXT}
        case _:
            schema: dict[str, Any] = {"type": ["string", "null"], "description": "A date or a date with a time."}
            return schema | ({"format": "date"} if column.date_format in (None, "ISO8601") else {})
