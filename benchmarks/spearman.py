"""How well the default's uncertainty ranks its own errors: Spearman correlation on the UCI sets."""

import numpy as np
from _record import record
from rich.progress import track
from scipy.stats import spearmanr
from sklearn.model_selection import train_test_split

from onsphere import HCMRegressor
from reproduction.data import UCI_NAMES, load_uci

GOALS = {"concrete": 0.38, "energy": 0.50, "yacht": 0.70}

rows = []
for name in track(UCI_NAMES, "Spearman"):
    X, y = load_uci(name)
    correlations = []
    for seed in range(5):
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=seed)
        result = HCMRegressor(random_state=seed).fit(X_train, y_train).assess(X_test)
        correlations.append(spearmanr(result.uncertainty, np.abs(result.value - y_test)).statistic)
    mean, goal = float(np.mean(correlations)), GOALS.get(name)
    rows.append(
        {
            "set": name,
            "rows": len(y),
            "spearman": mean,
            "lowest": float(min(correlations)),
            "highest": float(max(correlations)),
            "goal": goal or "none",
            "met": "no goal" if goal is None else "yes" if mean >= goal else "NO",
        }
    )

record(
    "spearman",
    about="Spearman correlation of uncertainty with |error| on test rows, HCMRegressor() as it comes, mean of 5 random "
    "80/20 splits.",
    rows=rows,
)
