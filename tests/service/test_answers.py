"""Answers as a client gets them."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa

from onsphere.assessment import Assessment
from onsphere.service.answers import answer_rows, encode_json, write_arrow, write_csv


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
        return answer_rows(result, facts)[0]["reason"]

    assert "too far" in explain(np.inf, 1.0)
    assert "different targets" in explain(9.0, 0.5)
    assert "extrapolates" in explain(9.0, 1.5)
    assert explain(9.0, None).endswith(f"threshold {facts.threshold:.4g}.")


def test_rejections_by_novelty_are_explained(facts):
    def explain(reason, novelty, p_value, missed=None, **more):
        share, missed = (None if each is None else np.array([each]) for each in (p_value, missed))
        parts = {"novelty": np.array([novelty]), "novelty_p_value": share, "reason": np.array([reason])}
        parts["missed"] = missed
        result = Assessment(np.array([1.0]), np.array([9.0]), np.array([0.9]), **parts, accepted=np.array([False]))
        return answer_rows(result, replace(facts, **more))[0]["reason"]

    limit = f"The uncertainty 9 is above the threshold {facts.threshold:.4g}"
    unlike = "The row is unlike those that the model has learned from."
    novel = "The row is too unlike those that the model has learned from"
    share = "; 0.4% of the calibration rows were at least as novel."
    assert explain("novel", 0.9, 0.004) == novel + share
    assert explain("novel", 0.9, 0.004, threshold=None) == novel + share
    assert explain("novel", 0.9, None) == f"{novel}."
    # A row may be rejected though its novelty is 0, which is no reason to tell.
    why = ": its shortfall 0.03 is above the threshold 0.02."
    assert explain("novel", 0.0, None, missed=0.03, novelty_threshold=0.02) == novel + why
    assert explain("uncertain", 0.9, 0.004) == f"{limit}. {unlike}"
    assert (
        explain("uncertain", 0.1, 0.4) == f"{limit}. Rows like this one had different targets, or were predicted badly."
    )
    assert explain("uncertain and novel", 0.9, 0.004) == f"{limit}. {novel}{share}"
    assert explain("uncertain", 0.9, 0.004, threshold=None) is None


def test_answers_have_noise_and_novelty(facts):
    parts = {"noise": np.array([0.2, np.nan]), "novelty": np.array([0.0, 1.0]), "novelty_p_value": np.array([1.0, 0.1])}
    result = Assessment(np.array([1.0, 2.0]), np.array([0.1, 0.2]), **parts)
    first, second = answer_rows(result, facts)
    assert (first["noise"], first["novelty"], first["novelty_p_value"]) == (0.2, 0.0, 1.0)
    assert second["novelty"] == 1.0
    assert json.loads(encode_json(second))["noise"] is None
    header, *rows = write_csv(result, facts, {}).decode().splitlines()
    assert header == '"value","uncertainty","noise","novelty","novelty_p_value"'
    assert rows[0] == "1,0.1,0.2,0,1"


def test_classes_without_a_set(facts):
    result = Assessment(np.array(["a"]), np.array([0.1]), probabilities=np.array([[0.9, 0.1]]), output_names=("a", "b"))
    (row,) = answer_rows(result, facts)
    assert row["probabilities"] == {"a": 0.9, "b": 0.1}
    assert "set" not in row
