"""`export_onnx`: a fitted model as one graph that runs without onsphere; and how such a file is opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onsphere import persistence
from onsphere._internal.atomic_files import write_atomically
from onsphere._internal.validation import check_number
from onsphere.errors import InvalidInputError
from onsphere.export.graph import Graph, session_of
from onsphere.export.metadata import KEY, calibration_scores, read_facts
from onsphere.export.outputs import OUTPUTS, answers, check_exportable
from onsphere.export.parity import Parity, compared
from onsphere.export.sample_rows import DRAWN, drawn_rows

__all__ = ["export_onnx", "open_graph"]


def export_onnx(
    model: Any, path: str | Path, *, X: Any = None, coverage: float = 0.9, summary: dict[str, Any] | None = None
) -> Parity:
    """Write a fitted model to one ONNX file: preprocessing, backbone, decoding, calibration and threshold.

    The file runs in any onnxruntime since 1.20, with no onsphere installed. Its outputs are value, uncertainty and
    sigma (for classes label, probabilities and uncertainty); with a calibration lower and upper (for classes set) and
    confidence; with a threshold accepted. Its input is one table "X" of float64, or for a model of `fit_table` each
    column of the table, of shape (n, 1): numbers and booleans as float64 with NaN for missing, categories as text with
    "" for missing, dates as seconds since 1970 in float64. The metadata under "onsphere" say all this in JSON.

    Nothing is written unless the graph answers as the model does, on the rows X or on drawn ones.

    Parameters
    ----------
    model : HCMRegressor, HCMClassifier or FrozenHead
        Fitted. Backbones: forests, histogram gradient boosting, decision trees, TorchRegressor, pipelines of imputers,
        scalers and Nystroem, and what skl2onnx can do in double precision (MLPs, linear models).
    path : path
        By custom it ends in ".onnx".
    X : array or DataFrame of shape (n, p), optional
        Real rows to compare the graph and the model on, which are the best to compare on. Without them, and with the
        summary of `fit_table`, 1,000 rows are drawn from what it says of each column, some values missing or unknown.
    coverage : float in (0, 1), default 0.9
        Of intervals or sets; the graph knows this one alone.
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
    check_exportable(model)
    check_number("export_onnx", "coverage", coverage, above=0, below=1)
    graph = Graph(OUTPUTS)
    found, described = answers(graph, model, coverage)
    for name in OUTPUTS:
        if name in found:
            graph.output(name, found[name].name, found[name].dtype, list(found[name].shape[1:]))
    facts: dict[str, Any] = {
        "manifest": persistence.manifest_of(model, summary),
        "coverage": coverage,
        "inputs": described,
        "outputs": [name for name in OUTPUTS if name in found],
        "calibration": calibration_scores(model),
    }
    persistence.to_json(facts)  # before the work of comparing
    given, rows = (drawn_rows(described, summary), DRAWN) if X is None else (X, "given rows")
    parity = compared(model, session_of(graph.model({}).SerializeToString()), described, given, coverage, rows=rows)
    content = graph.model({KEY: persistence.to_json(facts | {"parity": parity.to_dict()})}).SerializeToString()
    with write_atomically(path) as part:
        part.write_bytes(content)
    return parity


def open_graph(path: str | Path) -> tuple[Any, dict[str, Any]]:
    """A session of onnxruntime for a file of `export_onnx`, and what its metadata say.

    Returns
    -------
    session : onnxruntime.InferenceSession
    facts : dict
        manifest, coverage, inputs, outputs, parity, and calibration: the uncertainties of the calibration rows, sorted
        (of very many, 100,000 at random). `graph_inputs(facts["inputs"], X)` is what to feed the session.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidInputError(f"Expected a file written by export_onnx. Got {path}, which is none.")
    try:
        session = session_of(str(path))
    except ImportError:
        raise
    except Exception as error:  # onnxruntime has many
        raise InvalidInputError(
            f"Expected a file written by export_onnx. Got {path}, which onnxruntime cannot read: "
            f"{' '.join(str(error).split())} Check that it is the right file and was copied whole."
        ) from None
    return session, read_facts(path, session)
