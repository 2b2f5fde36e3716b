"""Check that the figures quoted in the documentation round the committed results."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
tables = SimpleNamespace(**run_path(str(DOCS / "tables.py")))
NUMBER = re.compile(r"−?(?:\d+(?:\.\d+)?|\.\d+)")
CODE = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)


def load_result(name: str) -> Any:
    benchmark = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads((benchmark if benchmark.is_file() else DOCS / "results" / f"{name}.json").read_text())


def pick(name: str, column: str = "ours", *, scale: float = 1, **where: object) -> list[float]:
    """Return a column of the rows that match, in the order of the file."""
    rows = [row for row in load_result(name)["rows"] if all(row[key] == value for key, value in where.items())]
    assert rows, (name, where)
    return [scale * row[column] for row in rows]


def pick_range(name: str, column: str, **where: Any) -> list[float]:
    values = pick(name, column, **where)
    return [min(values), max(values)]


def pick_methods(name: str, *methods: str, **where: Any) -> list[float]:
    return [value for method in methods for value in pick(name, method=method, **where)]


def pick_shift(column: str, *methods: str) -> list[float]:
    return [pick("shift", f"{method} {column}", set="mean")[0] for method in methods]


def pick_claim(name: str, start: str, *labels: str, scale: float = 1, ours: bool | None = None) -> list[float]:
    """Return the numbers that follow these labels in the figures of the conclusion that begins like this."""
    found = [claim for claim in load_result(name)["claims"] if claim["text"].startswith(start)]
    (figures,) = (claim["figures"] for claim in found if ours in (None, claim["ours"]))
    return [scale * float(re.search(rf"{re.escape(label)}(\d+\.?\d*)", figures)[1]) for label in labels]


def pick_wafers(figure: str, method: str) -> list[float]:
    return [pick("wafers", figure, method=each)[0] for each in (method, "ensemble of five")]


def pick_frames(figure: str, *methods: str, name: str = "mean") -> list[float]:
    return [pick("frames", figure, method=method, set=name)[0] for method in methods]


def pick_active(start: str, choice: str) -> list[float]:
    return pick("active", "ratio", start=start, **{"chosen by": choice})


def pick_yacht(n_rows: str, choice: str) -> float:
    (error,) = pick("active", n_rows, start="one half", set="yacht", **{"chosen by": choice})
    return error


def average_clean(name: str, *methods: str) -> list[float]:
    """Return the mean Spearman correlation on clean rows of a UCI set, which is in the runs only."""
    runs = [json.loads((DOCS / "results" / path).read_text()) for path in load_result("uci")["runs"]]
    found = [[run["sets"][name]["methods"][method]["noises"]["0"]["Spearman"] for run in runs] for method in methods]
    return [sum(values) / len(values) for values in found]


def average_texts(method: str) -> float:
    values = pick("text", method=method, metric="AUROC")
    return sum(values) / len(values)


def pick_frozen(column: str, *methods: str, network: str = "ResNet-20") -> list[float]:
    return [pick("frozen", column, network=network, method=method)[0] for method in methods]


def collect_figures() -> dict[str, list[tuple[str, list[float]]]]:
    """Return, for each page, the words before some figures and the results that these figures must round."""
    both, shifted = ("HCM", "HCM Lift"), ("HCM, y + 100", "HCM Lift, y + 100")
    error = "mean |σ̂ − sigma| / mean sigma on [−2, 2]"
    n_best, n_best_of_all, n_best_lift = (
        pick_claim("uci", f"{name} has the best", "", ours=ours)
        for name, ours in (("HCM", False), ("HCM", True), ("HCM Lift", True))
    )
    depth = ("HCM", "Ensemble", "EDL", "MC Dropout", "HCM Lift")
    pearson, spearman, new_spearman = (
        pick_methods("depth", *depth, metric=metric) for metric in ("Pearson", "Spearman", "new scenes: Spearman")
    )
    ranks, scaled = ("Pearson", "Spearman"), ("Ensemble standardised", "MC Dropout standardised")
    wafers = pick_methods("industrial", *scaled, "HCM Lift", metric="Spearman")
    images = {
        (method, mixing): pick("cifar10", method=method, mixing=mixing, metric="AUROC", set="average")[0]
        for method, mixing in [("MSP", "no mixing"), ("KNN", "no mixing"), ("FrozenHead", "no mixing")]
        + [("HCM", mixing) for mixing in ("no mixing", "pairs mixed", "20 mixed")]
    }
    mixed = [images["HCM", mixing] for mixing in ("no mixing", "pairs mixed", "20 mixed")]
    held, beyond = "coverage, noise 1", ("extrapolation novelty AUROC", "extrapolation AUROC")
    hcm = {"column": "ratio to softmax", "method": "HCM", "mode": "eager"}
    mlp = {
        batch: [pick("inference", network=f"MLP of {n} inputs", batch=batch, **hcm)[0] for n in (400, 100)]
        for batch in (1, 64)
    }
    return {
        "index.md": [
            ("| Spearman |", pick("spearman", "spearman")),
            ("| Winkler, HCM |", pick("winkler", "HCM Winkler")),
            ("| Winkler, quantile forest |", pick("winkler", "quantile forest Winkler")),
            (
                "| ratio (geometric mean",
                [load_result("winkler")["geometric_mean_of_ratios"], *pick("winkler", "ratio")],
            ),
            (
                "of the forest still hold",
                pick_frames(held, "forest", "forest, target frame", "quantile forest", "ensemble"),
            ),
            ("clean ones with an AUROC of", pick_frames("novelty AUROC, noise 1", "forest")),
        ],
        "guide/choose.md": [
            ("clean ones with an AUROC of", pick_frames("AUROC, noise 1", "forest", "network")),
            ("90 % intervals still hold", pick_frames(held, "forest", "network")),
            ("correlation of uncertainty and error is", pick_frames("mixed Spearman", "forest", "network")),
            ("error: network, Lift, u + a |", pick("uci", metric="Spearman", method="HCM Lift")),
            ("error: ExtraTrees, Lift, u |", pick("uci", metric="Spearman", method="HCM ExtraTrees")),
            ("deviations): network |", pick("uci", metric="RMSE", method="HCM Lift")),
            ("deviations): ExtraTrees |", pick("uci", metric="RMSE", method="HCM ExtraTrees")),
            ("(../benchmarks/spearman.md)) |", pick("spearman", "spearman")),
            ("(../benchmarks/winkler.md)) |", pick("winkler", "ratio")),
            ("forest, one output, target frame |", pick_range("overhead", "ratio, target frame", outputs=1)),
            ("forest, one output, all frames |", pick_range("overhead", "ratio, all frames", outputs=1)),
            ("forest, 25 outputs, target frame |", pick_range("overhead", "ratio, target frame", outputs=25)),
            ("forest, 25 outputs, all frames |", pick_range("overhead", "ratio, all frames", outputs=25)),
            ("ResNet-18, batch of 64 |", pick("inference", network="ResNet-18", batch=64, **hcm)),
            ("small MLP, batch of 64 |", mlp[64]),
            ("small MLP, one row |", mlp[1]),
            ("ensemble of five, for comparison |", pick_range("inference", "ratio to softmax", method="ensemble of 5")),
            (
                "50 passes, for comparison |",
                pick_range("inference", "ratio to softmax", method="MC dropout, 50 passes"),
            ),
            ("noise up to 20 |", pick_methods("toy", *both, measure=error, scale=100)),
            ("100 added to the target |", pick_methods("toy", *shifted, measure=error, scale=100)),
            ("four kinds of noise |", pick_claim("noise-1d", "σ̂ of Lift", "HCM ", "HCM Lift ")),
            ("twelve correlations under noise |", n_best_of_all + n_best_lift),
            ("simulated wafers |", pick_methods("industrial", *both, metric="Spearman")),
            ("RMSE there |", pick_methods("industrial", *both, metric="RMSE")),
            ("reaches a Spearman of", pick_methods("industrial", "Ensemble standardised", metric="Spearman")),
        ],
        "guide/compare.md": [
            ("ensemble of five: AUROC", pick_shift("AUROC", "ensemble", "HCM")),
            ("(noise of σ = 5),", pick_shift("AUROC (variance 5)", "ensemble", "HCM")),
            ("is ahead: [wafers](../benchmarks/wafers.md)) | ensemble (Spearman", wafers),
            ("their error | EDL (Spearman", [spearman[place] for place in (2, 4, 0, 1, 3)]),
            (
                "quantile forest, Winkler",
                [pick("winkler", f"{name} Winkler", set="wine")[0] for name in ("quantile forest", "HCM")],
            ),
            ("trained briefly with HCM's loss | softmax (", [images["MSP", "no mixing"]]),
            ("mean AUROC), KNN (", [images["KNN", "no mixing"], mixed[0], mixed[2]]),
            ("MC dropout (Spearman", pick_methods("uci", "MC Dropout", "HCM Lift", metric="Spearman", set="yacht")),
            ("power plant: Spearman", average_clean("power_plant", "EDL", "HCM Lift")),
            ("noisy rows, UCI, networks | Spearman", pick_shift("Spearman", "HCM", "ensemble")),
            ("standard deviation | forest", pick_frames(held, "forest", "quantile forest", "network", "ensemble")),
        ],
        "guide/method.md": [("wafers it was", pick_claim("industrial", "This bound", "is "))],
        "guide/calibration.md": [
            ("measures a coverage of", pick_range("winkler", "HCM coverage", scale=100)),
            ("(../results/uci.md) measures", pick_claim("uci", "90 % intervals of HCM Lift", "", scale=100)),
            ("at once hold", pick_claim("industrial", "90 % boxes of HCM Lift", "", scale=100)),
        ],
        "guide/faq.md": [
            ("missed the noise by", pick_methods("toy", *shifted, measure=error, scale=100)),
            ("clean ones with an AUROC of", pick_frames("AUROC, noise 1", "network", "ensemble")),
            ("and 90 % intervals hold", pick_frames(held, "network", "ensemble")),
            ("an ensemble finds them better: AUROC", pick_shift("AUROC", "ensemble", "HCM")),
            ("with strong noise,", pick_shift("AUROC (variance 5)", "ensemble", "HCM")),
            ("worse (Spearman", pick_shift("Spearman", "ensemble", "HCM")),
            ("yacht with noise (Spearman", pick_frames("mixed Spearman", "ensemble", "network", name="yacht")),
            ("clean energy rows (Spearman", pick_frames("Spearman", "ensemble", "network", name="energy")),
            ("these rows with an AUROC of", [pick_frames(each, "forest")[0] for each in beyond]),
            ("On kin8nm the two have", [pick_frames(each, "forest", name="kin8nm")[0] for each in beyond]),
            ("than HCM Lift (Spearman", wafers[:1] + wafers[2:]),
            ("over eight seeds its Spearman is", pick_wafers("Spearman", "one network, all frames")),
            ("anomalies with an AUROC of", pick_wafers("anomaly AUROC", "its novelty alone")),
            (
                "anomalies best (AUROC",
                pick_claim("industrial", "HCM Lift tells", "Ensemble standardised ", "HCM Lift "),
            ),
            ("its RMSE is", pick_shift("RMSE", "ensemble", "HCM")),
        ],
        "guide/active-learning.md": [
            *(
                (f"| {start} | {choice} |", pick_active(start, choice))
                for start in ("all rows", "one half")
                for choice in ("novelty", "disagreement", "noise")
            ),
            (
                "first 25 rows bring the error from",
                [pick_yacht("50", "chance"), pick_yacht("75", "novelty"), 25, pick_yacht("75", "chance")],
            ),
        ],
        "quickstart/text.md": [
            (f"| {name} |", pick_methods("text", "MSP", "HCM", "FrozenHead", "KNN", metric="AUROC", set=name.lower()))
            for name in ("Yelp", "IMDB", "Emotion", "DBPedia")
        ],
        "quickstart/frozen.md": [
            *(
                (
                    f"| {title}, {network} |",
                    pick_frozen(column, "MSP", "Energy", "KNN 50", "joint", "joint and novelty", network=network),
                )
                for title, column in (("AUROC", "mean"), ("FPR@95", "mean FPR"))
                for network in ("ResNet-20", "ResNet-56")
            ),
            ("far sets (SVHN", pick_frozen("SVHN", "joint", "joint and novelty")),
            ("textures", pick_frozen("DTD", "joint", "joint and novelty")),
            ("near ones (CIFAR-100", pick_frozen("CIFAR-100", "novelty")),
            ("about as they were:", pick_frozen("CIFAR-100", "joint", "joint and novelty")),
            (
                "half as much (",
                [
                    row[f"{network} mean"]
                    for row in load_result("frozen")["novelty_tried"]
                    if row["tried"] == "last stage"
                    for network in ("ResNet-20", "ResNet-56")
                ],
            ),
            ("It takes", [load_result("frozen")["time_novelty_over_resnet18_pass"]]),
        ],
        "quickstart/pytorch.md": [
            ("plain softmax is", pick("inference", network="ResNet-18", batch=64, **hcm)),
            ("1 within noise, and", sorted(mlp[64])),
        ],
        "quickstart/depth.md": [("Spearman is", spearman), ("new scenes it is", new_spearman)],
        "results/index.md": [
            ("(AUROC", pick_methods("industrial", *both, metric="real spectra: AUROC of seen against unseen")),
            ("less than half as large:", pick_claim("noise-1d", "σ̂ of Lift", "HCM Lift ", "HCM ")),
            ("the softmax (mean AUROC", [average_texts("HCM"), average_texts("MSP")]),
            ("ahead of both (", [average_texts("NUQ")]),
            ("the same HCM has", [average_texts(name) for name in ("HCM signed", "FrozenHead", "KNN")]),
            ("HCM has a Pearson correlation of", pick_methods("industrial", "HCM", metric="Pearson")),
            ("and a Spearman of", pick_methods("industrial", "HCM", metric="Spearman")),
            (
                "coverages at 2σ and 3σ are",
                pick_methods("industrial", "HCM", metric="cov@2σ") + pick_methods("industrial", "HCM", metric="cov@3σ"),
            ),
            (
                "the lowest of a rival",
                [min(pick_methods("industrial", "EDL", "MC Dropout", "Ensemble", metric=f"cov@{k}σ")) for k in (2, 3)],
            ),
            ("the given network has", pick("cifar10", method="given network", metric="accuracy")),
            (
                "on the tested images, HCM",
                [
                    pick("cifar10", method="HCM", metric="accuracy", mixing=mixing)[0]
                    for mixing in ("no mixing", "pairs mixed", "20 mixed")
                ],
            ),
            ("trained alike (ensemble", [pick_methods("industrial", "Ensemble", metric=each)[0] for each in ranks]),
            ("its error is", pick_methods("industrial", "HCM", metric="RMSE")),
            ("rank better (ensemble", [pick_methods("industrial", scaled[0], metric=each)[0] for each in ranks]),
            ("best of four methods in", n_best),
            ("(paper 9), and in", n_best_of_all),
            ("HCM Lift is best in", n_best_lift),
            ("clean rows cover", pick_claim("uci", "90 % intervals of HCM Lift", "", scale=100)),
            ("the mean AUROC of HCM is", mixed[:1]),
            ("mixed images raises it to", mixed[1:2]),
            ("mixtures of twenty to", mixed[2:]),
            ("KNN stays ahead by", [images["KNN", "no mixing"] - images["HCM", "20 mixed"]]),
            ("every method of the table (", [images["FrozenHead", "no mixing"]]),
            ("U-Net, Pearson is", pearson[:4]),
            ("Spearman is", spearman[:4]),
            ("HCM Lift has", [pearson[4], spearman[4]]),
            ("new scenes, Spearman comes to", new_spearman),
            ("error with the noise is", pick_range("depth", "ours", metric="Spearman of error and noise")),
            ("raises HCM's Spearman from", pick_methods("depth", "HCM", "HCM, error frame", metric="Spearman")),
        ],
    }


FIGURES = collect_figures()
# Figures that are not results: a bound in advice, one of a difference, two figures of the paper, and a standard error.
NOT_RESULTS = {
    "guide/faq.md": [".3"],
    "quickstart/frozen.md": [".1"],
    "results/index.md": [".84", ".76", ".87", ".92", ".06"],
}


@pytest.mark.parametrize("page", FIGURES)
def test_figures_round_the_committed_results(page):
    text = " ".join(CODE.sub("", (DOCS / page).read_text()).split())
    for words, values in FIGURES[page]:
        assert text.count(words) == 1, words
        start = text.index(words)
        found = list(islice(NUMBER.finditer(text, start + len(words)), len(values)))
        for match, value in zip(found, values, strict=True):
            n_digits = len(match[0].partition(".")[2])
            assert float(match[0].replace("−", "-")) == round(value, n_digits), f"{words} {match[0]}: {value}"
        text = text[:start] + text[found[-1].end() :]
    assert re.findall(r"(?<![\w.])−?\.\d+", text) == NOT_RESULTS.get(page, [])


@pytest.mark.parametrize("page", tables.PAGES)
def test_tables_of_the_guide_are_those_of_the_results(page):
    assert tables.fill_tables(page) == (DOCS / page).read_text(), "Run python docs/tables.py."


def test_a_table_shows_every_method_and_the_means():
    row = {"set": "wine", "HCM crps": 0.4, "forest crps": 0.5, "HCM winkler": 3.0, "forest winkler": 4.0}
    means = {f"geometric_mean_of_{figure}_ratios": 0.8 for figure in ("crps", "winkler")}
    rivals = {f"best_rival_by_{figure}": "forest" for figure in ("crps", "winkler")}
    wins = {f"best_or_within_one_standard_error_by_{figure}": 1 for figure in ("crps", "winkler")}
    text = tables.make_distribution_table(
        {"rows": [row | {"ratio crps": 0.8}], "n_splits": 3, **means, **rivals, **wins}
    )
    assert "| wine | 0.400 / 3.00 | 0.500 / 4.00 |" in text
    assert "0.80 times as large (forest)" in text
    assert "random splits: 3" in text
    assert "within one standard error" in text
