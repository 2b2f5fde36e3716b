"""Join labels to answers: read them, compare each with its answer, follow the coverage, and update the model.

Labels are in the order in which the store took them, and each request's are one call of `update`. So every worker,
and a service that starts again, comes to the same model as anyone who repeats these calls.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from onsphere.assessment import Assessment
from onsphere.calibration.online import compute_rolling_share
from onsphere.errors import InvalidInputError
from onsphere.service.answers import RequestError, reject_problems
from onsphere.service.engine import Engine, Facts, ModelEngine
from onsphere.service.metrics import log_event
from onsphere.service.rows import Batch, find_wrong_keys, parse_json
from onsphere.table.cells import LARGEST, Problem, show_value

MAX_KEYS = 1_000  # of one request, rows or labels
LABELS_AT_ONCE = 100  # that are compared with answers while the answers of others wait for the store
ROLLING = 500  # labels that a rolling coverage is the share of
_FEWEST = 20  # labels before the first share that is shown
_POINTS = 200  # of the rolling coverage on the page


class Label(NamedTuple):
    """A label: the key as it was sent and as it is stored, and its value: a class, or a number for each target."""

    key: Any
    name: str
    value: Any


def name_key(key: Any) -> str:
    """Return a key as the store writes it.

    Examples
    --------
    >>> name_key(7) == name_key(7.0) == name_key("7")
    True
    """
    return json.dumps(str(int(key) if isinstance(key, float) and key.is_integer() else key))


def name_rows(batch: Batch, column: str) -> list[str]:
    """Return the keys of all rows of a request, as the store writes them, or raise if one is missing or comes twice."""
    keys = batch.keys.get(column, [None] * len(batch))
    names = [name_key(key) for key in keys]
    first = {name: row for row, name in reversed(list(enumerate(names)))}
    reject_problems(
        [
            Problem(column, row, "a key for each row, to join its label to", "none")
            if key is None
            else Problem(column, row, "each key once", f"the one of row {first[names[row]]} again")
            for row, key in enumerate(keys)
            if key is None or first[names[row]] != row
        ]
    )
    return names


def dump_answers(result: Assessment, facts: Facts) -> list[str]:
    """Return what labels are compared with: the value of each row, and its interval or set if it has one."""
    if facts.task == "regression":
        ends = [result.value, *([] if result.lower is None else [result.lower, result.upper])]
        parts: list[Any] = [np.asarray(values, dtype=np.float64).reshape(len(result), -1).tolist() for values in ends]
    else:
        names, sets = result.output_names or (), result.prediction_set
        parts = [[str(label) for label in np.asarray(result.value).tolist()]]
        parts += [] if sets is None else [[[names[place] for place in np.flatnonzero(row)] for row in sets]]
    return [json.dumps(answer) for answer in zip(*parts, strict=True)]


def judge_label(answer: str, value: Any) -> tuple[int | None, float | None] | None:
    """Return 1 if the interval or set of an answer holds a label, and the error; None if it is for another target."""
    predicted, *bounds = json.loads(answer)
    if isinstance(predicted, list):
        if not isinstance(value, list) or len(value) != len(predicted):
            return None
        inside = [low <= one <= high for one, low, high in zip(value, *bounds, strict=True)] if bounds else None
        error = math.dist(predicted, value) / math.sqrt(len(value))
        return None if inside is None else int(all(inside)), error if math.isfinite(error) else None
    if isinstance(value, list):
        return None
    return int(str(value) in bounds[0]) if bounds else None, float(str(value) != predicted)


def read_labels(body: bytes, engine: Engine, *, max_rows: int) -> list[Label]:
    """Read {"labels": [{"key": "a17", "value": 1.5}, …]}; if anything is wrong with one of them, none is read."""
    problems: list[Problem] = []
    labels: list[Label] = []
    for row, label in enumerate(parse_json(body, "labels", min(max_rows, MAX_KEYS))):
        if not isinstance(label, dict) or set(label) != {"key", "value"}:
            problems.append(Problem(None, row, 'an object with "key" and "value"', show_value(label)))
        elif type(label["key"]) not in (int, float, str):
            problems.append(Problem("key", row, "text or a number", show_value(label["key"])))
        elif (value := _read_value(label["value"], engine.facts)) is None:
            problems.append(Problem("value", row, _describe_value(engine.facts), show_value(label["value"])))
        else:
            labels.append(Label(label["key"], name_key(label["key"]), value))
    reject_problems(problems or find_wrong_keys({"key": [label.key for label in labels]}))
    if len({label.name for label in labels}) < len(labels):
        raise RequestError(422, "Expected each key once. Got one twice. Send one label for each row.")
    if isinstance(engine, ModelEngine) and engine.facts.task == "regression" and engine.model.domain_ is not None:
        try:
            engine.model.domain_.check(np.array([label.value for label in labels]))
        except InvalidInputError as error:
            raise RequestError(422, str(error)) from None
    return labels


def _read_value(value: Any, facts: Facts) -> Any:
    """Return the class, or a number for each target; None if it is neither."""
    classes = facts.more["classes"]
    if classes is not None:
        return next((one for one in classes if one == value and isinstance(one, bool) == isinstance(value, bool)), None)
    by_name: dict[str, Any] = value if isinstance(value, dict) else dict.fromkeys(facts.targets[:1], value)
    if set(by_name) != set(facts.targets):
        return None
    numbers = [by_name[name] for name in facts.targets]
    if not all(type(number) in (int, float) and abs(number) <= LARGEST for number in numbers):
        return None
    return [float(number) for number in numbers]


def _describe_value(facts: Facts) -> str:
    classes = facts.more["classes"]
    if classes is not None:
        shown = ", ".join(repr(one) for one in classes[:5])
        return f"one of the classes {shown}{' and others' if len(classes) > 5 else ''}"
    size = f"of size {LARGEST:g} at most"
    return f"a number {size}" if len(facts.targets) == 1 else f"an object with a number {size} for each target"


def summarize_labels(rows: Sequence[Any], promised: float) -> dict[str, Any] | None:
    """Summarize labels, twice ROLLING at most, by whether each was covered and its error; the latest come first."""
    if not rows:
        return None
    covered, error = np.array(rows[::-1], dtype=np.float64).T
    known = error[-ROLLING:][~np.isnan(error[-ROLLING:])]
    shares: list[float] = []
    if not np.isnan(covered).any():
        n_first = ROLLING if len(rows) == 2 * ROLLING else _FEWEST
        found = compute_rolling_share(covered, ROLLING, n_first=n_first)
        shares = found[:: -math.ceil(len(found) / _POINTS)][::-1].tolist()
    return {
        "n_labels": min(len(rows), ROLLING),
        "promised": promised,
        "coverage": shares[-1] if shares else None,
        "mean_error": float(known.mean()) if len(known) else None,
        "rolling": shares,
    }


def update_model(engine: ModelEngine, labels: Sequence[Any]) -> None:
    """Update a model with labels of the store: number, request, value and features of each, in their order.

    Requests in flight go on with the model as it was.
    """
    with engine.lock:
        unread = [label for label in labels if label[0] > engine.last_label]
        for request, group in groupby(unread, key=lambda label: label[1]):
            numbers, _, values, features = zip(*group, strict=True)
            try:
                engine.model = _update_copy(engine, features, [json.loads(value) for value in values])
            except Exception as error:  # whatever it is, all workers skip these labels, and the service goes on
                kind, n_skipped = type(error).__name__, len(numbers)
                log_event("labels", level=logging.ERROR, request=request, skipped=n_skipped, type=kind)
                engine.skipped.append(request)
            engine.last_label = numbers[-1]


def _update_copy(engine: ModelEngine, features: Sequence[str], values: list[Any]) -> Any:
    model: Any = object.__new__(type(engine.model))  # not copy.copy, which would copy a network
    vars(model).update(vars(engine.model), calibration_=engine.copy_calibration())
    X, y = engine.build_rows(Batch.from_json(engine.facts, features).values), np.array(values)
    with np.errstate(all="ignore"):  # as in `ModelEngine.assess`
        model.update(X, y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y)
    # The level of a coverage follows all labels from when it is first looked at.
    model.calibration_.online.find_level(engine.facts.coverage)
    return model


def explain_no_update(engine: Engine, models: list[str | None], request: str, *, is_read: bool) -> str | None:
    """Say why intervals do not follow labels that were taken for answers of these models; None if they do."""
    only = "Labels give coverage and error only"
    if not isinstance(engine, ModelEngine):
        return f"{only}, because an ONNX graph is fixed. Serve the .onsphere file, whose intervals and sets follow."
    if engine.facts.calibration is None:
        return f"{only}, because the model was not calibrated."
    if engine.facts.sha256 in models:
        if not is_read:
            return "The store does not work. Intervals and sets follow these labels once it does."
        return f"{only}, because the model cannot take them. The logs say more." if request in engine.skipped else None
    reason = "their rows were not kept" if set(models) == {None} else "an earlier model answered these rows"
    return f"{only}, because {reason}."
