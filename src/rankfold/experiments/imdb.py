"""The sentiment task of section 5.3: IMDB reviews, a word table with LSTM layers above it, the table's foldings.

Only the table is tensorized, as in the paper, and the paper's numbers of parameters are the table's alone.

The halves are those of the data set. All 25,000 training reviews are trained on in either split. As in the
authors' code the test half is divided once, at random: one part, 12,500 reviews, is for choosing settings
(``validation``), the other is for reporting (``test``). The vocabulary is made of the training half alone.
A review longer than 400 words keeps its last ones: there the verdict stands, and on the validation part a
naive Bayes classifier of the last 400 words was better than one of the first 400 (83.7 against 83.4 %).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.data.imdb import Reviews, find_imdb, load_imdb
from rankfold.data.words import Corpus, End, sequences, vocabulary
from rankfold.experiments.evaluation import classification
from rankfold.experiments.spec import FormatName, Split
from rankfold.experiments.task import Data, Examples, Folding, Task
from rankfold.models.sentiment import VOCABULARY_SIZE, SentimentClassifier

LENGTH = 400
KEPT_END: End = "last"
_DIVISION_SEED = 12_500
Inputs = tuple[Tensor, ...]

_WORDS = {"embedding": ((5, 8, 25, 25), (4, 8, 8))}
FOLDINGS: dict[FormatName, Folding] = {
    # printed rank 50, which gives 4,150 parameters; rank 100 gives 8,300, printed as 8,276
    "cp": Folding(100, _WORDS),
    # printed [25, 25, 40, 16, 16]; these modes give the printed count of 78,540
    "tucker": Folding(5, _WORDS),
    "tt": Folding(20, _WORDS),
    # 30,000 rows, so 5,000 are padding
    "ttm": Folding(20, {"embedding": ((5, 5, 5, 5, 6, 8), (2, 2, 2, 2, 4, 4))}),
}


# Data -------------------------------------------------------------------------------------------------


def load(split: Split, device: torch.device, folder: Path | None = None, verify: bool = True) -> Data:
    """Word ids (N, 400), padded behind, and lengths (N,), on the device."""
    train, test = load_imdb(folder, verify=verify)
    corpus = Corpus.of(train.texts)
    ids = vocabulary(corpus, VOCABULARY_SIZE)

    def encode(corpus: Corpus) -> Inputs:
        words = torch.from_numpy(sequences(corpus, ids, LENGTH, KEPT_END))
        return words, torch.from_numpy(corpus.sizes(LENGTH))

    return encoded(train, corpus, part_of(test, split), encode, device)


def part_of(test: Reviews, split: Split) -> Reviews:
    """The part of the test half that a split looks at: the one half or the other of a fixed random order."""
    order = np.random.default_rng(_DIVISION_SEED).permutation(len(test))
    validation, rest = np.array_split(order, 2)
    return _chosen(test, rest if split == "test" else validation)


def encoded(
    train: Reviews, corpus: Corpus, evaluation: Reviews, encode: Callable[[Corpus], Inputs], device: torch.device
) -> Data:
    """Reviews as tensors on the device; ``corpus`` is that of the training reviews."""
    return Data(
        _examples(encode(corpus), train.labels, device),
        _examples(encode(Corpus.of(evaluation.texts)), evaluation.labels, device),
    )


def _chosen(reviews: Reviews, rows: NDArray[np.int64]) -> Reviews:
    return Reviews(tuple(reviews.texts[row] for row in rows), reviews.labels[rows])


def _examples(inputs: Inputs, labels: NDArray[np.int64], device: torch.device) -> Examples:
    return Examples(tuple(x.to(device) for x in inputs), torch.from_numpy(labels).to(device))


# in evaluation a batch takes no more memory than in training: LSTM layers keep 400 steps of every review
TASK = Task(
    SentimentClassifier,
    FOLDINGS,
    load,
    evaluate=partial(classification, batch_size=256),
    counted="layers",
    find=find_imdb,
)
