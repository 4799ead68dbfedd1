"""A tiny BERT, built from its config, fills in masked words; a Trainer callback finds its ranks."""

import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments, set_seed

import rankfold as rf
from rankfold.integrations.transformers import RankDeterminationCallback

WORDS, LENGTH, MASK = 96, 12, 96


class Masked(Dataset[dict[str, Tensor]]):
    """Sentences of numbers that count up, with every fourth one masked; only those are asked for."""

    def __len__(self) -> int:
        """So many sentences."""
        return 512

    def __getitem__(self, n: int) -> dict[str, Tensor]:
        """The sentence that starts at ``n``."""
        sentence = (n + torch.arange(LENGTH)) % WORDS
        hidden = (torch.arange(LENGTH) + n) % 4 == 0
        return {"input_ids": sentence.where(~hidden, MASK), "labels": sentence.where(hidden, -100)}


def main() -> None:
    """Train, and print what is left."""
    set_seed(0)
    config = BertConfig(
        vocab_size=WORDS + 1,
        max_position_embeddings=LENGTH,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    layers = ["*.word_embeddings", "cls.predictions.decoder", "cls.predictions.transform.dense"]
    model = rf.tensorize_(BertForMaskedLM(config), rf.TTM(max_rank=10), layers)
    optimizer = torch.optim.AdamW(rf.param_groups(model, lr=1e-2, weight_decay=0.01))
    callback = RankDeterminationCallback(kl_weight=0.5)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=4,
            per_device_train_batch_size=32,
            logging_steps=24,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model, arguments, train_dataset=Masked(), optimizers=(optimizer, None), callbacks=[callback])
        trainer.train()
    print(rf.report(model))


if __name__ == "__main__":
    main()
