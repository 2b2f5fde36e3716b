"""HUQ against its paper's formula, written out once more with loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import rankdata

from onsphere.baselines import KNN, MSP, Entropy, Mahalanobis
from onsphere.metrics import aurc
from reproduction.baselines import HUQ, huq

SCORES = arrays(float, 25, elements=st.floats(0, 1).map(lambda value: round(value, 2)))
SHARES = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0])


@given(SCORES, SCORES, SCORES, SCORES, SHARES, SHARES, SHARES)
def test_huq_is_the_formula_of_its_paper(
    epistemic, aleatoric, train_epistemic, train_aleatoric, delta_min, delta_max, alpha
):
    def rank(value, among):
        return sum(other < value for other in among) + sum(other == value for other in among) / 2

    n = len(train_epistemic)
    known = [
        a for e, a in zip(train_epistemic, train_aleatoric, strict=True) if rank(e, train_epistemic) / n <= delta_min
    ]
    expected = []
    for e, a in zip(epistemic, aleatoric, strict=True):
        strange, ambiguous = rank(e, train_epistemic) / n, rank(a, train_aleatoric) / n
        if strange > delta_min:
            expected.append((1 - alpha) * strange + alpha * ambiguous)
        elif ambiguous > delta_max:
            expected.append(ambiguous)
        else:
            expected.append(rank(a, known) / n)
    scores = huq(
        epistemic, aleatoric, train_epistemic, train_aleatoric, delta_min=delta_min, delta_max=delta_max, alpha=alpha
    )
    np.testing.assert_allclose(scores, expected, atol=1e-12)
    assert scores.min() >= 0.0
    assert scores.max() <= 1.0


def test_huq_orders_the_training_rows_themselves_as_the_paper_does():
    """There, ranks are those of the rows that are judged."""
    rng = np.random.default_rng(0)
    epistemic, aleatoric = rng.random(100), rng.random(100)
    rank_e, rank_a = rankdata(epistemic), rankdata(aleatoric)
    expected = 0.8 * rank_e + 0.2 * rank_a
    known = rank_e <= 30
    expected[known] = rankdata(aleatoric[known])
    expected[known & (rank_a > 70)] = rank_a[known & (rank_a > 70)]
    # Ranks here count a row itself by half, so both ends of a threshold lie half a row lower.
    ours = huq(epistemic, aleatoric, epistemic, aleatoric, delta_min=0.3, delta_max=0.7, alpha=0.2)
    np.testing.assert_allclose(100 * ours, expected - 0.5, atol=1e-9)


def test_huq_of_detectors(train, rows):
    parts = [KNN(k=5), Entropy()]
    train_scores = [part.fit(*train).score(*train[:2]) for part in parts]
    expected = huq(*(part.score(*rows[:2]) for part in parts), *train_scores, delta_min=0.4, alpha=0.3)
    hybrid = HUQ(KNN(k=5), Entropy(), delta_min=0.4, alpha=0.3)
    np.testing.assert_allclose(hybrid.fit(*train).score(*rows[:2]), expected, atol=1e-12)
    default = [Mahalanobis().fit(*train), MSP().fit(*train)]
    expected = huq(*(part.score(*rows[:2]) for part in default), *(part.score(*train[:2]) for part in default))
    np.testing.assert_allclose(HUQ().fit(*train).score(*rows[:2]), expected, atol=1e-12)


def test_huq_is_tuned_on_the_mistakes_of_held_out_rows(train, make_rows):
    features, logits, labels = make_rows(200, seed=3)
    hybrid = HUQ().fit(*train)
    assert (hybrid.delta_min_, hybrid.delta_max_, hybrid.alpha_) == (0.1, 0.9, 0.1)
    hybrid.tune(features, logits, labels)
    is_wrong = (logits.argmax(axis=1) != labels).astype(float)
    parts = [part.fit(*train).score(features, logits) for part in (Mahalanobis(), MSP())]
    areas = {
        (low, high, alpha): aurc(is_wrong, huq(*parts, *parts, delta_min=low, delta_max=high, alpha=alpha))
        for low in (0, 0.05, 0.1, 0.15)
        for high in (0.95, 1)
        for alpha in np.linspace(0, 1, 11)
    }
    found = hybrid.delta_min_, hybrid.delta_max_, hybrid.alpha_
    assert areas[found] == min(areas.values())
    # Ranks are now among these rows.
    expected = huq(*parts, *parts, delta_min=found[0], delta_max=found[1], alpha=found[2])
    np.testing.assert_allclose(hybrid.score(features, logits), expected, atol=1e-12)
