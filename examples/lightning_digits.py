"""Handwritten digits with Lightning: one callback finds the ranks.

The digits are those of scikit-learn: ``pip install '.[lightning,cli]'`` brings both.
"""

import tempfile

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rankfold as rf
from rankfold.integrations.lightning import RankDeterminationCallback


class Digits(lightning.LightningModule):
    """A classifier of 8×8 images; its training step knows nothing of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        rf.tensorize_(self.net, rf.TTM(max_rank=10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """The mean NLL alone."""
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Groups that leave log standard deviations without decay."""
        return torch.optim.Adam(rf.param_groups(self, lr=1e-2))


def main() -> None:
    """Train, and print what is left."""
    lightning.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    loader = DataLoader(TensorDataset(x[:1437], y[:1437]), batch_size=64, shuffle=True)
    model = Digits()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=10,
            accelerator="cpu",
            default_root_dir=folder,
            callbacks=[RankDeterminationCallback(kl_weight=0.5)],
            gradient_clip_val=1.0,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(model, loader)
    accuracy = (model.eval().net(x[1437:]).argmax(1) == y[1437:]).float().mean()
    print(rf.report(model))
    print(f"accuracy {accuracy:.3f}; logged last: KL of {trainer.callback_metrics['rankfold/kl_nats']:.0f} nats")


if __name__ == "__main__":
    main()
