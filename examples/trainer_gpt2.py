"""A tiny GPT-2, built from its config, learns to count; a Trainer callback finds its ranks.

That "`loss_type=None` was set in the config" is what transformers says of every GPT-2; the loss is the right one.
"""

import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import rankfold as rf
from rankfold.integrations.transformers import RankDeterminationCallback

WORDS, LENGTH = 96, 12


class Counting(Dataset[dict[str, Tensor]]):
    """Sentences of numbers, each one more than the one before."""

    def __len__(self) -> int:
        """So many sentences."""
        return 512

    def __getitem__(self, n: int) -> dict[str, Tensor]:
        """The sentence that starts at ``n``."""
        sentence = (n + torch.arange(LENGTH)) % WORDS
        return {"input_ids": sentence, "labels": sentence}


def main() -> None:
    """Train, and print what is left."""
    set_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=1,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = rf.tensorize_(GPT2LMHeadModel(config), rf.TTM(max_rank=8), ["transformer.wte", "lm_head", "*.mlp.*"])
    optimizer = torch.optim.AdamW(rf.param_groups(model, lr=1e-2, weight_decay=0.01))
    callback = RankDeterminationCallback(kl_weight=0.5)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=4,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,
            logging_steps=24,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        data = Counting()
        trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[callback])
        callback.attach(trainer)
        trainer.train()
    print(rf.report(model))


if __name__ == "__main__":
    main()
