"""Small models of many kinds that the tests perform surgery on, each with a batch for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.resnet import ResNet
from models.text import TextClassifier


@dataclass(frozen=True)
class Case:
    """How to build a model, call it and turn its output into a loss."""

    build: Callable[[], nn.Module]
    call: Callable[[nn.Module], Tensor]
    filter_fn: Any = None

    def loss(self, model: nn.Module) -> Tensor:
        return self.call(model).square().mean()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=2)


class Attention(nn.Module):
    """Self-attention, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 101, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLMLoss"))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"vocab_size": 101, "max_position_embeddings": 16, "hidden_size": 32, "intermediate_size": 64}
    return BertForMaskedLM(BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=4))


def tokens(vocabulary: int = 101) -> Tensor:
    return torch.randint(1, vocabulary, (2, 8), generator=torch.Generator().manual_seed(1))


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


CASES: dict[str, Case] = {
    "mlp": Case(mlp, lambda model: model(noise(5, 8, 8))),
    "text": Case(TextClassifier, lambda model: model(tokens(200))),
    "text with LSTM": Case(TextClassifier, lambda model: model(tokens(200)), filter_fn=(nn.Embedding, nn.LSTM)),
    "resnet": Case(ResNet, lambda model: model(noise(2, 3, 8, 8))),
    "attention": Case(Attention, lambda model: model(noise(2, 5, 32))),
    "encoder": Case(encoder, lambda model: model(noise(2, 5, 32))),
    "gpt2": Case(gpt2, lambda model: F.log_softmax(model(tokens()).logits, -1)),
    "bert": Case(bert, lambda model: F.log_softmax(model(tokens()).logits, -1)),
}
