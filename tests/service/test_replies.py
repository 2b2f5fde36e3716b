"""Answers as a client gets them."""

import numpy as np
import pyarrow as pa

from onsphere.assessment import Assessment
from onsphere.service.replies import answer_rows, explain_rejection, write_arrow, write_csv


def test_keys_of_several_kinds_are_answered_as_text(facts):
    result = Assessment(value=np.array([1.0, 2.0, 3.0]), uncertainty=np.array([0.1, 0.1, 0.1]))
    for keys, expected in (([7, "b", None], ["7", "b", None]), ([10**30, 1, -1], [str(10**30), "1", "-1"])):
        answer = pa.ipc.open_stream(write_arrow(result, facts, {"id": keys})).read_all()
        assert answer["id"].to_pylist() == expected


def test_a_key_called_like_an_answer_is_renamed(facts):
    result = Assessment(value=np.array([1.0]), uncertainty=np.array([0.1]))
    assert write_csv(result, facts, {"value": [7]}).decode().splitlines()[0] == '"key_value","value","uncertainty"'


def test_rejections_are_explained(facts):
    def explain(uncertainty, norm):
        norms = None if norm is None else np.array([norm])
        result = Assessment(np.array([1.0]), np.array([uncertainty]), norms, accepted=np.array([False]))
        return explain_rejection(result, facts, 0)

    assert "too far" in explain(np.inf, 1.0)
    assert "different targets" in explain(9.0, 0.5)
    assert "extrapolates" in explain(9.0, 1.5)
    assert explain(9.0, None).endswith(f"threshold {facts.threshold:.4g}.")


def test_classes_without_a_set(facts):
    result = Assessment(np.array(["a"]), np.array([0.1]), probabilities=np.array([[0.9, 0.1]]), output_names=("a", "b"))
    (row,) = answer_rows(result, facts)
    assert row["probabilities"] == {"a": 0.9, "b": 0.1}
    assert "set" not in row
