"""Write a fitted model to an ONNX file that runs without onsphere, and open such a file again.

What the graph takes and returns is in its metadata, as JSON under one key, and is checked when a file is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from onsphere import persistence
from onsphere._internal.atomic_files import write_atomically
from onsphere._internal.manifests import find_wrong_parts, is_count, is_list_of, is_text
from onsphere._internal.validation import Floats, check_number, check_option, is_number
from onsphere.calibration import TAILS, RegressionCalibration
from onsphere.calibration.distribution import check_levels
from onsphere.errors import InvalidInputError
from onsphere.export.graph_builder import GraphBuilder, open_session
from onsphere.export.graph_inputs import draw_rows
from onsphere.export.group_graphs import find_known_groups
from onsphere.export.model_graphs import Asked, check_exportable, convert_model, list_outputs
from onsphere.export.network_graphs import compare_network, convert_network, is_network_module, read_network_inputs
from onsphere.export.parity import DRAWN, GIVEN, Parity, compare_answers
from onsphere.table.columns import parse_column

__all__ = ["N_SCORES", "export_onnx", "list_calibration_scores", "open_graph"]

N_SCORES = 100_000  # calibration scores in a graph, at most: two megabytes of text

_KEY = "onsphere"
_SCORES = ("calibration", "calibration_missed")  # in the metadata; older files do not have them
_OPTIONAL = (*_SCORES, "tails", "quantiles")
# Of the inputs of networks.
_TENSOR_TYPES = {
    "float32": "tensor(float)",
    **{name: f"tensor({name})" for name in ("bool", "uint8", "int8", "int16", "int32", "int64")},
}


def export_onnx(
    model: Any,
    path: str | Path,
    *,
    X: Any = None,
    coverage: float | None = None,
    tails: str = "symmetric",
    quantiles: ArrayLike | None = None,
    summary: dict[str, Any] | None = None,
) -> Parity:
    """Write a fitted model to one ONNX file: preprocessing, backbone, decoding, calibration and threshold.

    The file runs in any onnxruntime since 1.20, without onsphere. Its outputs are value, uncertainty and sigma (for
    classes label, probabilities and uncertainty); with a calibration lower and upper (for classes set) and confidence;
    with a threshold accepted; with `quantiles` these. A model with frames has noise, novelty and the shortfall behind
    it (missed) too, with a calibration novelty_p_value, and with a threshold reason, a text as in `Assessment`. The
    input is one table "X" of float64, or for a model of `fit_table` each column of the table, of shape (n, 1): numbers
    and booleans as float64 with NaN for missing, categories as text with "" for missing, dates as seconds since 1970 in
    float64. The metadata under "onsphere" hold all this in JSON.

    Intervals are as wide as labels that `update` took in call for. Those of groups by the prediction, by novelty or by
    a column are in the graph too; a group without calibration rows gives NaN.

    Nothing is written unless the graph answers as the model does, on the rows X or on drawn ones.

    Parameters
    ----------
    model : HCMRegressor, HCMClassifier, FrozenHead, or a NetworkModule of `onsphere.torch.to_torch`
        Fitted. Backbones: forests, histogram gradient boosting, decision trees, TorchRegressor, pipelines of imputers,
        scalers and Nystroem, and what skl2onnx can do in double precision (MLPs, linear models). Of a NetworkModule the
        network is part of the graph, in float32, and the inputs are those of the network; it needs X, some inputs. For
        maps the outputs are maps, as in `assess`, of the size of those in X; texts may have any length.
    path : path
        Its name usually ends in ".onnx".
    X : array or DataFrame of shape (n, p), optional
        Rows to compare the graph and the model on, preferably real ones; of a NetworkModule inputs of the network, a
        tensor or a mapping of named ones. Without them 1,000 rows are drawn from the
        summary of `fit_table`, column by column, with some values missing or unknown.
    coverage : float in (0, 1), optional
        The coverage of intervals or sets, which is fixed in the graph: 0.9 by default, and that of a NetworkModule.
    tails : {"symmetric", "equal", "shortest"}
        Where the misses of intervals lie, fixed too; see `PredictiveDistribution.interval`.
    quantiles : numbers in (0, 1), optional
        Levels at which the graph gives quantiles, as an output "quantiles" of shape (n, Q) or (n, D, Q); of a
        calibrated model that predicts numbers.
    summary : dict, optional
        Plain JSON values to keep in the metadata.

    Returns
    -------
    Parity
        How far the graph and the model differ, on which rows, and why.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from onsphere import HCMRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HCMRegressor(Ridge(), calibration="split", random_state=0).fit(X[:300], y[:300])
    >>> parity = export_onnx(model, tempfile.mkdtemp() + "/model.onnx", X=X[300:])
    >>> parity.n_rows, max(parity.relative.values()) < 1e-6
    (142, True)
    """
    if coverage is not None:
        check_number("export_onnx", "coverage", coverage, above=0, below=1)
    check_option("export_onnx", "tails", tails, TAILS)
    if is_network_module(model):
        if coverage not in (None, model.head.coverage):
            raise InvalidInputError(
                f"Expected the coverage that the module was made with, {model.head.coverage:g}. Got {coverage:g}. "
                "Leave it out, or choose it in to_torch."
            )
        if quantiles is not None or tails != "symmetric":
            raise InvalidInputError(
                "Expected symmetric intervals and no quantiles, for the graph of a network. Got others. Leave tails "
                "and quantiles out, or export the head alone."
            )
        return _export_network(model, path, X, summary)
    check_exportable(model)
    coverage = 0.9 if coverage is None else coverage
    asked = Asked(coverage, tails, _check_quantiles(model, quantiles))
    graph = GraphBuilder(list_outputs(model, asked))
    outputs, inputs = convert_model(graph, model, asked)
    names = [name for name in list_outputs(model, asked) if name in outputs]
    for name in names:
        graph.add_output(name, outputs[name].name, outputs[name].dtype, list(outputs[name].shape[1:]))
    metadata: dict[str, Any] = {
        "manifest": persistence.make_manifest(model, summary),
        "coverage": coverage,
        "inputs": inputs,
        "outputs": names,
        **({"tails": tails} if tails != "symmetric" else {}),
        **({"quantiles": list(asked.levels)} if asked.levels else {}),
        **list_calibration_scores(model),
    }
    persistence.to_json(metadata)  # fails before the comparison, which takes longer
    rows, source = (find_known_groups(model, draw_rows(inputs, summary)), DRAWN) if X is None else (X, GIVEN)
    session = open_session(graph.build({}).SerializeToString())
    parity = compare_answers(model, session, inputs, rows, asked, source=source)
    content = graph.build({_KEY: persistence.to_json(metadata | {"parity": parity.to_dict()})}).SerializeToString()
    with write_atomically(path) as part:
        part.write_bytes(content)
    return parity


def _check_quantiles(model: Any, quantiles: ArrayLike | None) -> tuple[float, ...]:
    if quantiles is None:
        return ()
    levels = check_levels("export_onnx", quantiles)
    if not isinstance(model.calibration_, RegressionCalibration):
        raise InvalidInputError(
            "Expected a calibrated model that predicts numbers, for quantiles in the graph. Got one that "
            f"{'is not calibrated' if model.calibration_ is None else 'predicts classes'}. Calibrate it, or leave "
            "quantiles out."
        )
    model.calibration_.check_signs()
    return tuple(float(level) for level in levels)


def _export_network(module: Any, path: str | Path, X: Any, summary: dict[str, Any] | None) -> Parity:
    model = module.head.model
    manifest = persistence.make_manifest(model, summary)
    plain = read_network_inputs(module, X)
    rows = plain.read_rows()
    graph, names, inputs = convert_network(module, plain)
    session = open_session(graph.build({}).SerializeToString())
    parity = compare_network(module, session, names, inputs, plain, rows)
    metadata: dict[str, Any] = {
        "manifest": manifest,
        "coverage": module.head.coverage,
        "inputs": inputs,
        "outputs": names,
        "parity": parity.to_dict(),
        **list_calibration_scores(model),
    }
    content = graph.build({_KEY: persistence.to_json(metadata)}).SerializeToString()
    with write_atomically(path) as part:
        part.write_bytes(content)
    return parity


def list_calibration_scores(model: Any) -> dict[str, list[float] | None]:
    """Return the uncertainties and the shortfalls of the calibration rows, each sorted, for a drift alarm.

    If there are more than N_SCORES, that many are drawn at random: new rows are exchangeable with these as with all, so
    the promise of the alarm stays exact. It would not with scores picked by rank.
    """
    rows = model.calibration_
    scores = (None, None) if rows is None else (rows.uncertainty, rows.missed)
    return {
        name: None if values is None else _draw_scores(values) for name, values in zip(_SCORES, scores, strict=True)
    }


def _draw_scores(scores: Floats) -> list[float]:
    if len(scores) > N_SCORES:
        scores = np.random.default_rng(0).choice(scores, N_SCORES, replace=False)
    return np.sort(scores).tolist()


def open_graph(path: str | Path, *, content: bytes | None = None) -> tuple[Any, dict[str, Any]]:
    """Open a file of `export_onnx`: a session of onnxruntime, and the metadata.

    Parameters
    ----------
    path : path
    content : bytes, optional
        What was read from the file, if it was.

    Returns
    -------
    session : onnxruntime.InferenceSession
    metadata : dict
        manifest, coverage, inputs, outputs, parity, and calibration and calibration_missed: the uncertainties and (for
        a model with an input frame) the shortfalls of the calibration rows, sorted (100,000 of them at random if there
        are more). `session.run` takes `prepare_inputs(metadata["inputs"], X)`; a graph of a network takes tensors.
    """
    path = Path(path)
    if content is None and not path.is_file():
        raise InvalidInputError(f"Expected a file written by export_onnx. Got {path}, which is not a file.")
    try:
        session = open_session(str(path) if content is None else content)
    except ImportError:
        raise
    except Exception as error:  # onnxruntime raises many kinds
        raise InvalidInputError(
            f"Expected a file written by export_onnx. Got {path}, which onnxruntime cannot read: "
            f"{' '.join(str(error).split())} Check that it is the right file and was copied whole."
        ) from None
    return session, _read_metadata(path, session)


def _read_metadata(path: Path, session: Any) -> dict[str, Any]:
    """Return the metadata of a graph, which anybody may have written."""
    try:
        metadata: Any = json.loads(session.get_modelmeta().custom_metadata_map.get(_KEY) or "null")
    except (ValueError, RecursionError):
        metadata = None
    if not (isinstance(metadata, dict) and all(name in metadata for name in _CHECKS if name not in _OPTIONAL)):
        raise InvalidInputError(
            f"Expected a graph with the metadata of onsphere. Got {path}, an ONNX graph without them, so that its "
            "inputs and outputs are unknown. Write it with export_onnx."
        )
    manifest = metadata["manifest"]
    version: Any = manifest.get("format") if isinstance(manifest, dict) else None
    if isinstance(version, int | float) and version > persistence.FORMAT:
        raise InvalidInputError(
            f"Expected a graph of format {persistence.FORMAT} or older. Got {path} of format {version}. Install a "
            "newer onsphere."
        )
    wrong = [name for name, is_right in _CHECKS.items() if not is_right(metadata.get(name))]
    wrong = wrong or [name for name, is_right in _FITS.items() if not is_right(session, metadata)]
    if wrong:
        raise InvalidInputError(
            f"Expected a graph whose metadata fit it, as export_onnx writes them. Got {path}, where these do not: "
            f"{', '.join(wrong)}. Write it again with export_onnx."
        )
    return metadata


def _is_input(value: Any) -> bool:
    match value:
        case {"name": str(), "kind": "table", "columns": columns}:
            return columns is None or is_list_of(columns, is_text)
        case {"name": str(), "kind": str(kind), "column": dict(column)}:
            parsed = parse_column(column)
            return parsed is not None and parsed.is_feature and parsed.kind == kind
        case {"name": str(), "kind": "tensor", "shape": list(shape), "dtype": str(dtype)}:
            return dtype in _TENSOR_TYPES and all(each is None or is_count(each) for each in shape)
        case _:
            return False


def _takes_input(given: Any, described: dict[str, Any]) -> bool:
    """Return whether an input of a graph has the name, the type and the shape of its description."""
    if described["kind"] == "tensor":
        lengths = [each if isinstance(each, int) else None for each in given.shape[1:]]
        return (given.name, given.type, lengths) == (
            described["name"],
            _TENSOR_TYPES[described["dtype"]],
            described["shape"],
        )
    kind = "tensor(string)" if described["kind"] == "category" else "tensor(double)"
    columns = described["columns"] if described["kind"] == "table" else [described["column"]]
    return (given.name, given.type, len(given.shape)) == (described["name"], kind, 2) and (
        columns is None or len(columns) == given.shape[1]
    )


# What the metadata that are used must be, by themselves and for this graph.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "manifest": lambda value: not find_wrong_parts(value),
    "coverage": lambda value: is_number(value) and 0 < value < 1,
    "inputs": lambda value: (
        is_list_of(value, _is_input)
        and (len(value) == 1 or all(each["kind"] != "table" for each in value))
        and len({each["kind"] == "tensor" for each in value}) == 1
    ),
    "outputs": lambda value: is_list_of(value, is_text),
    "parity": lambda value: isinstance(value, dict),
    "tails": lambda value: value is None or value in TAILS,
    "quantiles": lambda value: value is None or is_list_of(value, lambda each: is_number(each) and 0 < each < 1),
    **{name: lambda value: value is None or is_list_of(value, is_number) for name in _SCORES},
}
_FITS: dict[str, Callable[[Any, Any], bool]] = {
    "inputs": lambda session, metadata: (
        len(metadata["inputs"]) == len(session.get_inputs())
        and all(map(_takes_input, session.get_inputs(), metadata["inputs"]))
    ),
    "outputs": lambda session, metadata: metadata["outputs"] == [each.name for each in session.get_outputs()],
    "manifest": lambda session, metadata: (
        metadata["inputs"][0]["kind"] != "table"
        or metadata["manifest"]["n_features"] == session.get_inputs()[0].shape[1]
    ),
}
