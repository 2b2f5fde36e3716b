"""Shifted inputs side by side: an MLP with Lift and u + a against an ensemble of five plain MLPs, on the UCI sets."""

import functools

import numpy as np
import torch
from _record import record
from rich.progress import track
from scipy.stats import spearmanr

from onsphere import HCMRegressor
from onsphere.metrics import auroc
from onsphere.torch import TorchRegressor
from reproduction.data import UCI_NAMES, load_uci

N_SEEDS, N_MEMBERS, N_STEPS_PER_EPOCH = 3, 5, 32
# Standard deviation of the noise: the paper's strongest, N(0, 5²I), and N(0, 5I) taken at its word.
NOISES = {"": 5.0, " (variance 5)": 5**0.5}

torch.set_num_threads(1)  # the matrices are too small to share


def make_network(n_train, seed):
    """Return the paper's network; the paper's own training, at a rate of 1e-4, is too short for these sets."""
    return TorchRegressor(
        hidden_sizes=(20, 20, 20),
        max_epochs=200,
        batch_size=max(32, n_train // N_STEPS_PER_EPOCH),
        learning_rate=5e-3,
        weight_decay=1e-4,
        schedule="cosine",
        optimizer=functools.partial(torch.optim.Adam, fused=True),
        random_state=seed,
    )


def fit_hcm(X, y, seed):
    model = HCMRegressor(make_network(len(y), seed), frames="target", uncertainty_score="anchored").fit(X, y)
    return lambda rows: (model.predict(rows), model.predict_uncertainty(rows))


def fit_ensemble(X, y, seed):
    members = [make_network(len(y), 1000 + N_MEMBERS * seed + member).fit(X, y) for member in range(N_MEMBERS)]

    def answer(rows):
        values = np.array([member.predict(rows) for member in members])
        return values.mean(axis=0), values.std(axis=0)

    return answer


METHODS = {"HCM": fit_hcm, "ensemble": fit_ensemble}


def measure(name, seed):
    X, y = load_uci(name)
    rng = np.random.default_rng(seed)
    train, test = np.split(rng.permutation(len(y)), [int(0.8 * len(y))])
    Z = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
    noise = rng.normal(size=Z[test].shape)
    found = {}
    for method, fit in METHODS.items():
        answer = fit(Z[train], y[train], seed)
        value, clean = answer(Z[test])
        found[f"{method} RMSE"] = np.sqrt(np.mean((value - y[test]) ** 2)) / y.std()
        for label, size in NOISES.items():
            value, noised = answer(Z[test] + size * noise)
            found[f"{method} AUROC{label}"] = auroc(clean, noised)
            found[f"{method} Spearman{label}"] = spearmanr(noised, np.abs(value - y[test])).statistic
    return found


rows = []
for name in track(UCI_NAMES, "shift"):
    per_seed = [measure(name, seed) for seed in range(N_SEEDS)]
    columns = [f"{method} {what}" for what in ("AUROC", "Spearman", "RMSE") for method in METHODS]
    columns += [f"{method} {what} (variance 5)" for what in ("AUROC", "Spearman") for method in METHODS]
    rows.append({"set": name} | {column: float(np.mean([row[column] for row in per_seed])) for column in columns})
    print(rows[-1], flush=True)

means = {column: float(np.mean([row[column] for row in rows])) for column in rows[0] if column != "set"}
wins = {
    what: sum(row[f"HCM {what}"] > row[f"ensemble {what}"] for row in rows)
    for what in ("AUROC", "Spearman", "AUROC (variance 5)", "Spearman (variance 5)")
}
record(
    "shift",
    about="Clean against noised test rows of six UCI sets; noise N(0, 5²I) on standardised features (the paper's "
    f"σ = 5) and, in the last columns, of variance 5. Mean of {N_SEEDS} random 80/20 splits. AUROC is of the score of "
    "clean against noised rows, Spearman of the score with |error| on the noised rows, RMSE of the clean rows over "
    'std(y). HCM is one network, HCMRegressor(embedding="lift", uncertainty_score="anchored"); the ensemble is five '
    "plain ones, scored by the spread of their predictions. HCM is trained by HCMLoss, as it is by default, and the "
    "ensemble by the squared error; all have three hidden layers of 20 and 200 epochs of Adam, learning rate 5e-3 "
    "falling to 0 by a cosine, "
    "weight decay 1e-4, 32 batches per epoch or batches of 32. The paper's 1e-4 is too low for 200 epochs: in a pilot "
    "on two splits, both methods erred about four times as much with it on clean validation rows of yacht, and a "
    "constant 1e-3 was no better on yacht, concrete or energy (the other sets were not part of it). The goals are a "
    "mean AUROC of HCM of at least 0.95 and a mean Spearman above the ensemble's. They were set for noise N(0, 5I); "
    "taken at its word, that is variance 5.",
    rows=[*rows, {"set": "mean", **means}],
    **{f"sets where HCM is ahead in {what}": f"{n} of {len(rows)}" for what, n in wins.items()},
    goal_AUROC_met_at_sigma_5="yes" if means["HCM AUROC"] >= 0.95 else "NO",
    goal_Spearman_met_at_sigma_5="yes" if means["HCM Spearman"] > means["ensemble Spearman"] else "NO",
    goal_AUROC_met_at_variance_5="yes" if means["HCM AUROC (variance 5)"] >= 0.95 else "NO",
    goal_Spearman_met_at_variance_5="yes"
    if means["HCM Spearman (variance 5)"] > means["ensemble Spearman (variance 5)"]
    else "NO",
)
