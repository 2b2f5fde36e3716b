"""What to do next follows from the findings, with Python or with the commands of the caller."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from onsphere import HCMRegressor
from onsphere.report.drivers import Drivers, Effect
from onsphere.report.group_coverage import LowGroup
from onsphere.report.measured_rows import Feature
from onsphere.report.next_steps import Findings, show_next_steps
from onsphere.report.over_time import measure_over_time
from onsphere.report.row_groups import rank_columns
from onsphere.sphere import Domain

N = 400
ALWAYS = "Use it on new rows"


def make_drivers(*real, n_rows=N):
    """Return drivers of the columns a and b, of which some do something."""
    return Drivers([["a"], ["b"]], {"noise": Effect("noise", np.array(real), np.ones(2))}, n_rows, 0, [])


@pytest.fixture
def good(rows):
    """Rows without a fault: far better than a guess, covered as promised, with a threshold."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(size=N)})
    target = rng.normal(size=(N, 1))
    covered = np.arange(N) % 10 > 0
    return rows(
        np.full(N, 0.01), rng.uniform(size=N), accepted=np.ones(N, bool), covered=covered, target=target, frame=frame
    )


def list_steps(rows, *, model=None, low=(), drivers=None, timeline=None, write_command=None):
    findings = Findings(low, rank_columns(rows), drivers or make_drivers(2.0, 2.0), timeline)
    section = show_next_steps(rows, model or HCMRegressor(), findings, write_command)
    return {} if section is None else {step.title: step for step in section.steps}


def test_a_model_without_faults_is_used(good):
    steps = list_steps(good)
    assert list(steps) == [ALWAYS]
    assert steps[ALWAYS].command == "result = model.assess(X_new)"


def test_rows_that_were_trained_on_say_nothing_but_to_measure_others(good):
    steps = list_steps(replace(good, share_seen=0.5), low=[LowGroup("a", "> 1", 0.2, 90)])
    assert list(steps) == ["Measure it on fresh rows"]
    assert "50\u202f% of these rows were trained on" in steps["Measure it on fresh rows"].why


def test_the_group_that_is_covered_worst_is_calibrated_by(good):
    low = [LowGroup("a", "> 1", 0.7, 90), LowGroup("predicted value", "> 3", 0.6, 80)]
    step = list_steps(good, low=low)["Calibrate by predicted value"]
    assert step.why.startswith("predicted value > 3 is covered in 60\u202f% of 80 rows, 90\u202f% promised.")
    assert "groups='prediction'" in step.command
    assert "groups='a'" in list_steps(good, low=low[:1])["Calibrate by a"].command
    by_class = list_steps(good, low=[LowGroup("true class", "yes", 0.1, 50)])
    assert "groups='class'" in by_class["Calibrate class by class"].command
    # Dates and single outputs are no groups to calibrate by, and a model that has groups is not told to get some.
    assert list(list_steps(good, low=[LowGroup("predicted mass", "> 3", 0.6, 80)])) == [ALWAYS]
    dated = replace(good, frame=good.frame.assign(a=pd.Timestamp("2024-01-01")))
    assert list(list_steps(dated, low=low[:1])) == [ALWAYS]
    assert list(list_steps(replace(good, groups=[]), low=low)) == [ALWAYS]


def test_a_group_too_small_to_be_calibrated_needs_more_rows(good):
    groups = [
        {"group": "no", "calibration rows": 200, "calibrated by": "its own rows"},
        {"group": "yes", "calibration rows": 30, "calibrated by": "all rows"},
    ]
    low = [LowGroup("true class", "yes", 0.2, 40)]
    step = list_steps(replace(good, groups=groups), low=low)["Collect more rows of yes"]
    assert step.why.startswith("Only 30 calibration rows are of yes, too few to calibrate it by itself")
    assert list(list_steps(replace(good, groups=groups[:1]), low=low)) == [ALWAYS]


def test_a_domain_is_advised_for_skewed_targets_and_bounds_below_zero(good):
    title = "Say that the target is never negative"
    fitted = HCMRegressor()
    fitted.domain_ = None
    skewed = replace(good, target=np.exp(np.linspace(0, 8, N))[:, None])
    assert skewed.is_skewed.tolist() == [True]
    below = list_steps(skewed, model=fitted)[title]
    assert "100\u202f% of the intervals reach below 0" in below.why
    assert "the values are skewed" in below.why
    above = replace(skewed, assessment=replace(skewed.assessment, lower=np.ones(N)))
    assert list_steps(above, model=fitted)[title].why.startswith("The values are skewed (median ")
    even = replace(above, target=np.linspace(5, 6, N)[:, None])
    assert title not in list_steps(even, model=fitted)
    assert title not in list_steps(good, model=fitted), "some targets are negative"
    assert title not in list_steps(skewed, model=object()), "only an HCMRegressor has a domain"
    fitted.domain_ = Domain(reason="some are negative")
    assert title in list_steps(skewed, model=fitted), "a domain without ends keeps no interval above 0"
    fitted.domain_ = Domain(low=0.0)
    assert title not in list_steps(skewed, model=fitted)


def test_time_is_advised_for_dates_and_updates_for_rows_that_changed(good):
    dated = replace(good, times=Feature("day", "number", np.arange(float(N))))
    step = list_steps(dated)["Measure it on later rows than it learned from"]
    assert "have dates (day), and were drawn at random" in step.why
    late = replace(dated, is_ordered=True, is_covered=good.is_covered & ((np.arange(N) < 380) | (np.arange(N) % 2 > 0)))
    timeline = measure_over_time(late)
    steps = list_steps(late, timeline=timeline)
    assert list(steps) == ["Let it catch up with the present", ALWAYS]
    assert "of the latest rows are covered" in steps["Let it catch up with the present"].why
    assert steps["Let it catch up with the present"].command == "model.update(X_latest, y_latest)"
    poor = replace(good, is_covered=np.arange(N) % 2 > 0)
    assert "Only 50\u202f% of these rows are covered" in list_steps(poor)["Let it catch up with the present"].why


def test_backbones_thresholds_and_columns(good):
    guess = replace(good, error=np.abs(good.target[:, 0]))
    assert '("auto")' in list_steps(guess)["Try other backbones"].command
    free = replace(good, assessment=replace(good.assessment, accepted=None))
    assert "AcceptShare" in list_steps(free)["Set a threshold"].command
    steps = list_steps(good, drivers=make_drivers(2.0, 0.0))
    assert steps["Leave out columns that do nothing"].command == "X.drop(columns=['b'])"
    assert "Leave out columns that do nothing" not in list_steps(good, drivers=make_drivers(0.0, 0.0))
    # Few rows do not show that a column does nothing, nor is one left out by which the page tells rows apart.
    few = make_drivers(2.0, 0.0, n_rows=60)
    assert "Leave out columns that do nothing" not in list_steps(good, drivers=few)
    low = [LowGroup("b", "> 1", 0.7, 90)]
    assert "Leave out columns that do nothing" not in list_steps(good, drivers=make_drivers(2.0, 0.0), low=low)
    confidence = np.where(good.frame["b"] > 1, 0.1, 0.6)
    doubted = replace(good, assessment=replace(good.assessment, confidence=confidence))
    assert "Leave out columns that do nothing" not in list_steps(doubted, drivers=make_drivers(2.0, 0.0))
    many = make_drivers(2.0, 0.0)._replace(columns=[["a"], [f"b{place}" for place in range(12)]])
    assert "b9 and 2 more." in list_steps(good, drivers=many)["Leave out columns that do nothing"].why


def test_novel_rows_are_looked_at_and_rows_of_bad_groups_collected(good):
    novelty = np.where(np.arange(N) < 40, 0.5, 0.0)
    strange = replace(good, assessment=replace(good.assessment, novelty=novelty), share_novel_before=0.02)
    step = list_steps(strange)["Look at the novel rows"]
    assert step.why.startswith("10.0\u202f% of these rows are unlike the training rows, and 2.0\u202f% of")
    usual = replace(strange, share_novel_before=0.08)
    assert list(list_steps(usual)) == [ALWAYS]
    is_high = good.frame["a"].to_numpy() > np.quantile(good.frame["a"], 0.75, method="inverted_cdf")
    worse = replace(good, error=np.where(is_high, 0.1, 0.01))
    worse.assessment.confidence[:] = np.where(is_high, 0.1, 0.6)
    (title,) = [title for title in list_steps(worse) if title != ALWAYS]
    assert title.startswith("Collect more rows where a is > ")


def test_the_caller_writes_the_commands_and_drops_steps(good):
    asked = []

    def write_command(action, options):
        asked.append((action, options))
        return None if options == {"refit": True} else f"{action} {dict(options)}"

    steps = list_steps(good, low=[LowGroup("a", "> 1", 0.7, 90)], write_command=write_command)
    assert [step.command for step in steps.values()] == ["fit {'groups': 'a'}", "predict {}"]
    assert asked == [("fit", {"groups": "a"}), ("fit", {"refit": True}), ("predict", {})]
    assert list_steps(good, write_command=lambda *_: None) == {}
