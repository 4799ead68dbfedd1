"""The sentiment and the n-gram network: sizes as in the paper, and texts that do not feel their padding."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from rankfold.models.ngram import NgramClassifier
from rankfold.models.sentiment import BidirectionalLSTM, SentimentClassifier, mean_of_words

LENGTHS = [5, 1, 3, 7]


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_those_of_the_paper():
    with torch.device("meta"):
        model = SentimentClassifier()
        reference = nn.LSTM(256, 128, num_layers=2, bidirectional=True)
    assert count(model.embedding) == 6_400_000
    assert count(model.lstm1) + count(model.lstm2) == count(reference)
    assert count(model) == 6_400_000 + count(reference) + 256 * 2 + 2


def test_the_ngram_table_would_have_more_than_a_billion():
    with torch.device("meta"):
        model = NgramClassifier()
    assert count(model.embedding) == 10_131_227 * 128
    assert count(model.head) == 128 * 2 + 2


def test_a_layer_equals_the_packed_lstm_of_torch():
    layer = BidirectionalLSTM(6, 4).double()
    twin = nn.LSTM(6, 4, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for name, parameter in layer.forwards.named_parameters():
            getattr(twin, name).copy_(parameter)
        for name, parameter in layer.backwards.named_parameters():
            getattr(twin, f"{name}_reverse").copy_(parameter)
    x, lengths = torch.randn(4, 7, 6, dtype=torch.float64), torch.tensor(LENGTHS)
    packed, _ = twin(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    truth, _ = pad_packed_sequence(packed, batch_first=True)
    found = layer(x, lengths)
    for n, length in enumerate(LENGTHS):
        torch.testing.assert_close(found[n, :length], truth[n, :length])


def test_the_mean_is_of_words_alone():
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    found = mean_of_words(x, torch.tensor([5, 1, 0, 7]))
    torch.testing.assert_close(found[0], x[0, :5].mean(0))
    torch.testing.assert_close(found[1], x[1, 0])
    assert torch.equal(found[2], torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(found[3], x[3].mean(0))


@pytest.mark.parametrize("extra", [1, 9])
def test_more_padding_changes_nothing(extra):
    model = SentimentClassifier(vocabulary_size=30, embedding_dim=6, hidden_size=4).double().eval()
    lengths = torch.tensor(LENGTHS)
    words = torch.randint(2, 30, (4, 7)) * (torch.arange(7) < lengths[:, None])
    wider = nn.functional.pad(words, (0, extra))
    torch.testing.assert_close(model(words, lengths), model(wider, lengths))


def test_an_empty_review_is_no_trouble():
    model = SentimentClassifier(vocabulary_size=30, embedding_dim=6, hidden_size=4)
    assert model(torch.zeros(2, 3, dtype=torch.int32), torch.tensor([0, 3])).isfinite().all()


def test_padding_counts_for_nothing_in_a_bag():
    model = NgramClassifier(num_rows=40, embedding_dim=5)
    torch.testing.assert_close(model(torch.tensor([[7, 9, 0, 0]])), model(torch.tensor([[9, 7]])))
