"""A BERT with a spherical head, trained by the Trainer of Hugging Face, then calibrated.

Needs: pip install transformers accelerate

The network is tiny and starts from random weights, so that nothing is downloaded. With real ones, only the line that
makes `bert` changes: BertForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2).
"""

import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from onsphere import AcceptShare, Novelty
from onsphere.torch import HCMLoss, attach, calibrate

N_WORDS, LENGTH = 50, 12


def sentences(n: int) -> list[dict[str, Any]]:
    """Make sequences of tokens; the class says whether token 7 is among them."""
    tokens = torch.randint(8, N_WORDS, (n, LENGTH))
    labels = torch.arange(n) % 2
    tokens[labels == 1, 3] = 7
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


class HCMTrainer(Trainer):
    """Only the loss is ours."""

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.hcm_loss = HCMLoss(model)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        labels = inputs.pop("labels")
        output = model(**inputs)
        loss = self.hcm_loss(output, labels)
        return (loss, {"direction": output.direction}) if return_outputs else loss


def main(n: int = 512, max_steps: int = 150) -> tuple[float, float, float]:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=N_WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    bert = BertForSequenceClassification(config)
    model = attach(bert, 2, embedding="onehot")
    print("replaced the layer", repr(model.layer))

    data = sentences(n)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=max_steps,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            remove_unused_columns=False,  # the Trainer would look for their names in the signature of our model
            use_cpu=True,
            seed=0,
        )
        trainer = HCMTrainer(model, args=arguments, train_dataset=data, eval_dataset=sentences(n))
        trainer.train()
        calibrated = calibrate(model, trainer.get_eval_dataloader())
        calibrated.set_threshold(AcceptShare(0.95), novelty=Novelty(false_alarm=0.02))

    fresh = sentences(200)
    tokens, labels = (torch.stack([row[name] for row in fresh]) for name in ("input_ids", "labels"))
    result = calibrated.assess({"input_ids": tokens})
    accuracy, accepted = float((result.value == labels.numpy()).mean()), float(result.accepted.mean())
    covered = float(result.prediction_set[range(len(fresh)), labels.numpy()].mean())
    print(f"accuracy {accuracy:.3f}, {accepted:.0%} accepted, {covered:.0%} of the labels in their sets")
    return accuracy, accepted, covered


if __name__ == "__main__":
    main()
