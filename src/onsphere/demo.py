"""`make demo`: two bundled data sets, and how far to trust each prediction on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split

from onsphere import AcceptShare, HCMClassifier, HCMRegressor
from onsphere._internal.validation import missing_extra_error
from onsphere.assessment import Assessment
from onsphere.metrics import interval_coverage

try:
    from rich.console import Console
    from rich.table import Table
except ImportError:
    raise missing_extra_error("onsphere.demo", "rich", "cli") from None

KEPT = (1.0, 0.9, 0.8, 0.6, 0.4, 0.2)


def main() -> None:
    """Fit, assess and print, for regression and classification."""
    console = Console(width=100)
    with console.status("Fitting disease progression of 442 patients ..."):
        X, y = load_diabetes(return_X_y=True)
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
        model = HCMRegressor(calibration="cv", random_state=0).fit(X_train, y_train).set_threshold(AcceptShare(0.9))
        progression = model.assess(X_test)
        inside = interval_coverage(y_test, progression.lower, progression.upper)
        error = np.abs(progression.value - y_test)
    console.rule("Diabetes: progression of the disease one year on (regression)")
    console.print(
        f"Predictions are off by {error.mean():.0f} on average; the target lies between 25 and 346. "
        f"{inside:.0%} of the {len(error)} test rows lie inside their 90 % interval. "
        f"{progression.accepted.mean():.0%} are accepted, by a rule that trusts nine in ten."
    )
    console.print(make_error_table(error, progression.uncertainty, "mean error", "{:.1f}"))
    console.print(make_least_trusted_table(progression, y_test, "{:.0f}"))

    with console.status("Fitting 1,797 handwritten digits ..."):
        X, y = load_digits(return_X_y=True)
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
        digits = HCMClassifier(calibration="cv", random_state=0).fit(X_train, y_train).assess(X_test)
        wrong = (digits.value != y_test).astype(float)
    console.rule("Digits: 8 by 8 pixels of handwriting (classification)")
    held = digits.prediction_set[np.arange(len(y_test)), y_test].mean()
    console.print(
        f"{wrong.mean():.1%} of {len(wrong)} test images are read wrongly. "
        f"Sets of {digits.prediction_set.sum(axis=1).mean():.2f} digits on average, asked to hold the true one "
        f"for 90 % of the images, hold it for {held:.0%}."
    )
    console.print(make_error_table(wrong, digits.uncertainty, "read wrongly", "{:.2%}"))
    console.print(make_least_trusted_table(digits, y_test, "{}"))


def make_error_table(error: NDArray[np.float64], uncertainty: NDArray[np.float64], name: str, form: str) -> Table:
    """Show how the error falls if only the most trusted rows are kept."""
    table = Table(title="Keep only the rows that the model trusts most", title_justify="left")
    table.add_column("kept", justify="right")
    table.add_column("rows", justify="right")
    table.add_column(name, justify="right")
    table.add_column("")
    by_trust = error[np.argsort(uncertainty, kind="stable")]
    for share in KEPT:
        kept = by_trust[: int(share * len(by_trust))]
        bar = "█" * round(40 * kept.mean() / error.mean())
        table.add_row(f"{share:.0%}", str(len(kept)), form.format(kept.mean()), bar)
    return table


def make_least_trusted_table(result: Assessment, truth: NDArray[np.float64], form: str) -> Table:
    """Show the five rows with the highest uncertainty."""
    table = Table(title="The five least trusted predictions", title_justify="left")
    interval_column = [] if result.lower is None else ["90 % interval"]
    for name in ("row", "predicted", *interval_column, "truth", "uncertainty", "noise", "novelty"):
        table.add_column(name, justify="right")
    for row in np.argsort(-result.uncertainty, kind="stable")[:5]:
        ends = [] if result.lower is None else [f"{form} to {form}".format(result.lower[row], result.upper[row])]
        table.add_row(
            str(row),
            form.format(result.value[row]),
            *ends,
            form.format(truth[row]),
            *(f"{values[row]:.2f}" for values in (result.uncertainty, result.noise, result.novelty)),
        )
    return table


if __name__ == "__main__":
    main()
