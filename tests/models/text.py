from torch import Tensor, nn


class TextClassifier(nn.Module):
    """An embedding, a bidirectional LSTM and a linear head, for tokens (N, L)."""

    def __init__(self, words: int = 200, classes: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 32, padding_idx=0)
        self.lstm = nn.LSTM(32, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(48, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states.mean(1))
