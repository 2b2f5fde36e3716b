"""What several tests of the experiments share."""

import pytest


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """Return the folder of a BERT with two narrow layers that knows thirty words."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{k}" for k in range(30))]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    return folder
