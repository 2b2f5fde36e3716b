"""News and foreign texts: the quick run, a tiny BERT fine-tuned, and claims about made-up runs."""

import numpy as np
import pytest

from onsphere import InvalidInputError
from reproduction import reproduce, text, text_networks
from reproduction.checkpoints import Checkpoints

PLACES = {"data": None, "device": "cpu", "on_progress": lambda done, total, what: None}


def write_sets(folder, n):
    """Every set as CSV files of short texts, each class and each foreign set with words of its own."""
    rng = np.random.default_rng(0)
    (folder / "text").mkdir()

    def lines(labels, first):
        words = rng.integers(3, size=(len(labels), 4)) + 3 * (labels[:, None] + first)
        return [
            ",".join([" ".join(f"word{word}" for word in row), str(label)])
            for row, label in zip(words, labels, strict=True)
        ]

    for split in ("train", "test"):
        rows = lines(np.arange(n) % 4, 0)
        (folder / "text" / f"ag_news_{split}.csv").write_text("\n".join(["text,label", *rows]))
    for place, name in enumerate(text.OUTSIDE):
        rows = lines(np.zeros(n, dtype=int), 4 + place)
        (folder / "text" / f"{name}_test.csv").write_text("\n".join(["text,label", *rows]))


SMALL = {
    "n_train": None,
    "n_validation": 20,
    "n_test": 40,
    "n_out": 40,
    "n_tokens": 16,
    "precision": "float32",
    "batch_size": 16,
    "softmax_epochs": 20,
    "softmax_rate": 3e-3,
    "share_softmax": True,
    "hcm_epochs": 2,
    "rate": 1e-4,
    "head_rate": 1e-2,
}


def run_small(folder, encoder, checkpoints, *, seed=0, **settings):
    places = {**PLACES, "data": folder, "checkpoints": checkpoints}
    return text.measure({**SMALL, "encoder": str(encoder), **settings}, seed, **places)


def test_quick(tmp_path):
    result = reproduce("text", out=tmp_path)
    assert {row["method"] for row in result.rows} >= {*text.METHODS, *text.BEYOND}
    assert result.runs[0]["accuracy"]["HCM"] > 0.9
    assert min(result.runs[0]["AUROC"]["HCM"]) > 0.55
    assert (tmp_path / "text-ood.png").stat().st_size > 10_000


def test_a_folder_with_bert_is_fine_tuned_with_a_softmax_and_then_with_the_spherical_head(tmp_path, encoder):
    write_sets(tmp_path, 120)
    run = run_small(tmp_path, encoder, Checkpoints(tmp_path / "checkpoints" / "seed-0"))
    assert run["accuracy"]["softmax"] > 0.5  # chance is a quarter
    assert run["accuracy"]["HCM"] > 0.5
    assert all(0 <= value <= 1 for metric in text.METRICS for row in run[metric].values() for value in row)
    assert set(run["AUROC"]) == {*text.METHODS, *text.BEYOND}


def test_seeds_share_the_softmax_network_and_not_the_spherical_one(tmp_path, encoder, monkeypatch):
    trained, train = [], text_networks.train
    monkeypatch.setattr(
        text_networks, "train", lambda *args, **options: trained.append(options) or train(*args, **options)
    )
    write_sets(tmp_path, 80)
    folder, one_epoch = tmp_path / "checkpoints", {"n_test": None, "softmax_epochs": 1}
    runs = [
        run_small(tmp_path, encoder, Checkpoints(folder / f"seed-{seed}"), seed=seed, **one_epoch) for seed in (0, 1)
    ]
    assert runs[0]["AUROC"]["HCM"] != runs[1]["AUROC"]["HCM"]
    assert runs[0]["accuracy"]["softmax"] == runs[1]["accuracy"]["softmax"]
    seeds = [(each["name"], each["seed"]) for each in trained]
    assert seeds == [("softmax", 0), ("hcm", 0), ("softmax", 0), ("hcm", 1)]
    assert trained[0]["checkpoints"].folder == trained[2]["checkpoints"].folder
    own = Checkpoints(folder / "seed-2")
    run_small(tmp_path, encoder, own, seed=2, share_softmax=False, softmax_epochs=1)
    assert trained[4]["seed"] == 2
    assert trained[4]["checkpoints"] is own


def test_missing_texts_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match="ag_news"):
        text.measure(text.PRESETS["cpu"], 0, **{**PLACES, "data": tmp_path, "checkpoints": Checkpoints(tmp_path)})


def test_the_paper_preset_asks_for_the_whole_sets_and_for_bert(tmp_path):
    places = {**PLACES, "data": tmp_path, "checkpoints": Checkpoints(tmp_path)}
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "ag_news_train_subset.csv").write_text("text,label\na,0\n")
    with pytest.raises(InvalidInputError, match="the whole split 'train' of 'ag_news'"):
        text.measure(text.PRESETS["paper"], 0, **places)
    (tmp_path / "text" / "ag_news_train_subset.csv").unlink()
    (tmp_path / "text").rmdir()
    write_sets(tmp_path, 8)
    with pytest.raises(InvalidInputError, match=r"weights/bert-base-uncased\. Got no such folder"):
        text.measure({**text.PRESETS["paper"], "n_validation": 2}, 0, **places)


def test_each_seed_draws_other_texts_from_the_same_pools(tmp_path):
    write_sets(tmp_path, 100)
    settings = {**SMALL, "encoder": "bert"}
    pools = text.load_pools(settings, tmp_path)
    assert {name: len(pool.texts) for name, pool in pools.items()} == {
        "train": 80,
        "validation": 20,
        "test": 50,
        **dict.fromkeys(text.OUTSIDE, 50),
    }
    first, second = (text.draw_rows(settings, seed, pools) for seed in (0, 1))
    assert all(len(set(rows)) == 40 for rows in (*first.values(), *second.values()))
    assert set(first["test"]) != set(second["test"])
    whole = text.load_pools({**settings, "n_test": None, "n_out": None}, tmp_path)
    assert len(whole["yelp"].texts) == 100


def make_run(**auroc):
    values = {method: [0.9] * 4 for method in (*text.METHODS, *text.BEYOND)} | auroc
    return {**dict.fromkeys(text.METRICS, values), "accuracy": {"softmax": 0.9}}


def test_claims_follow_the_figures():
    higher = make_run(HCM=[0.95] * 4, NUQ=[0.97] * 4, HUQ=[0.96] * 4, FrozenHead=[0.91] * 4)
    assert [claim.holds for claim in text.check_claims([higher])] == [True] * 5
    mixed = make_run(HCM=[0.95, 0.95, 0.95, 0.85])
    assert [claim.holds for claim in text.check_claims([mixed])] == [True, False, False, False, False]
    assert "dbpedia 0.850 against 0.900" in text.check_claims([mixed])[0].figures


def test_rows_have_the_published_figures():
    rows = text.tabulate([make_run(NUQ=[0.9695, 0.5, 0.5, 0.5])])
    found = next(row for row in rows if (row["metric"], row["set"], row["method"]) == ("AUROC", "yelp", "NUQ"))
    assert found["paper"] == 0.9695
    assert found["agrees?"] == "yes"
    assert next(row for row in rows if row["method"] == "KNN")["paper"] is None
    published = [
        row["paper"] for row in rows if "FPR" in row["metric"] and (row["set"], row["method"]) == ("imdb", "HCM")
    ]
    assert published == [0.3129, 0.3129]  # whichever convention the paper has
