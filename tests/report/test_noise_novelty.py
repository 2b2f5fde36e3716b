"""Noise against novelty: the picture, its corners, and why rows were rejected."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from onsphere import AcceptShare, Assessment, HCMRegressor, Novelty
from onsphere.report import noise_novelty, write_report
from onsphere.report.noise_novelty import describe_reasons, show_noise_and_novelty


def list_corners(noise, novelty, limit=0.0):
    is_noisy, is_novel = noise > np.quantile(noise, 0.8), novelty > limit
    return [~is_noisy & ~is_novel, is_noisy & ~is_novel, ~is_noisy & is_novel, is_noisy & is_novel]


@pytest.fixture(scope="module")
def limited(regression, tmp_path_factory, read):
    """Return a report on rows of which some are novel, and a model that rejects these."""
    model = copy.deepcopy(regression.model).set_threshold(AcceptShare(0.85), novelty=Novelty(max=0.2))
    X, y = regression.X.copy(), regression.y
    X.loc[X.index[:20], "bmi"] += 40
    path = write_report(model, X, y, tmp_path_factory.mktemp("limited") / "report.html")
    return read(path, model, X, y)


def test_every_corner_has_its_rows_its_error_and_a_sentence(limited):
    result, error = limited.measure()
    table = limited.table("corners.csv")
    members = list_corners(result.noise, result.novelty, limit=0.2)
    assert table["rows"].tolist() == [each.sum() for each in members]
    assert table["rows"].min() > 0
    np.testing.assert_allclose(table["mean error"], [error[each].mean() for each in members])
    np.testing.assert_allclose(table["accepted"], [result.accepted[each].mean() for each in members])
    for words in ("Trust it", "Measure better, or measure again", "Collect rows like it", "Both: collect"):
        assert words in limited.text


def test_the_picture_has_every_row_and_whether_it_was_rejected(limited):
    result, _ = limited.measure()
    table = limited.table("noise-and-novelty.csv")
    for name in ("noise", "novelty"):
        np.testing.assert_allclose(np.sort(table[name]), np.sort(getattr(result, name)), rtol=1e-7)
    assert sorted(table["reason"]) == sorted(result.reason)
    assert "above the limit of 0.2" in limited.text


def test_the_report_says_how_many_rows_were_rejected_for_which_reason(limited):
    reasons = limited.model.assess(limited.X).reason.tolist()
    uncertain, novel, both = (reasons.count(name) for name in ("uncertain", "novel", "uncertain and novel"))
    n_rejected = uncertain + novel + both
    assert (
        f"Of the {n_rejected} rejected rows, {uncertain} are uncertain, {novel} novel, and {both} both." in limited.text
    )
    assert f"{n_rejected} rows rejected, {novel + both} of them as novel" in limited.text
    assert "AcceptShare(share=0.85) and Novelty(max=0.2, false_alarm=None)" in limited.text
    assert set(limited.table("best-rejected.csv")["reason"]) <= {"uncertain", "novel", "uncertain and novel"}


def test_without_a_limit_on_novelty_rows_are_rejected_as_uncertain(regression):
    n_rejected = int(np.sum(~regression.model.assess(regression.X).accepted))
    assert f"The {n_rejected} rejected rows are too uncertain; novelty has no limit of its own here." in regression.text
    assert "reason" not in regression.table("best-rejected.csv")
    # The second table of that report has moved.
    novel = [np.mean(regression.model.predict_novelty(rows) > 0) for rows in (regression.shifted, regression.X)]
    first, second = (f"{100 * share:.1f}\u202f%" for share in novel)
    assert (
        f"{first} of them are unlike the training rows (novel), and {second} of those of this report" in regression.text
    )


def test_classes_and_several_outputs_have_one_noise_for_each_row(classification, several):
    result = classification.model.assess(classification.X)
    table = classification.table("corners.csv")
    assert table["rows"].tolist() == [each.sum() for each in list_corners(result.noise, result.novelty)]
    assert np.nanmax(table["share of wrong classes"]) <= 1
    noise = np.sqrt(np.mean(several.model.assess(several.X).noise ** 2, axis=1))
    np.testing.assert_allclose(np.sort(several.table("noise-and-novelty.csv")["noise"]), np.sort(noise), rtol=1e-7)
    # Without a threshold no row is accepted or rejected.
    assert "accepted" not in several.table("corners.csv")
    assert "Crosses" not in several.text


def test_a_model_without_an_input_frame_has_no_such_section(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    model = HCMRegressor(Ridge(), frames="target").fit(X[:200], y[:200]).calibrate(X[200:300], y[200:300])
    html = write_report(model, X[300:], y[300:], tmp_path / "r.html", X_shifted=X[300:]).read_text()
    assert "noise-and-novelty" not in html
    assert "ovel" not in html


def test_an_empty_corner_has_no_figures_and_a_long_table_keeps_some_rows(rows, monkeypatch):
    n = 50
    measured = rows(np.arange(n), np.arange(n))
    result = replace(measured.assessment, noise=np.arange(float(n)), novelty=np.zeros(n))
    monkeypatch.setattr(noise_novelty, "MOST_POINTS", 20)
    section = show_noise_and_novelty(replace(measured, assessment=result))
    assert [row[1:3] for row in section.tables[0].rows] == [["40", "19.5"], ["10", "44.5"], ["0", "–"], ["0", "–"]]
    assert section.pictures[0].reading.endswith("20 of 50 rows are in the file, evenly spread.")


def test_nothing_is_said_of_reasons_where_no_row_was_rejected(rows):
    measured = rows([1.0, 2.0], [1.0, 2.0])
    assert describe_reasons(measured) == ""
    accepted = Assessment(np.zeros(2), np.zeros(2), accepted=np.ones(2, bool), reason=np.array(["", ""]))
    assert describe_reasons(replace(measured, assessment=accepted)) == ""
