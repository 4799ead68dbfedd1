"""A table of 10,131,227 rows in earnest: n-grams of IMDB reviews, classified in the manner of fastText.

Single words, pairs and triples of the last 400 words of a review are rows of a table of 128 columns: 1.3 billion
parameters if it were dense. It is folded into 338 lines of 30,000 rows. The 29,998 most frequent n-grams of the
training half have a column each; every other one stands in the column of its longest frequent ending, in the line of
what comes before. Reviews and their division are those of :mod:`rankfold.experiments.imdb`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rankfold.data.imdb import find_imdb, load_imdb
from rankfold.data.ngrams import Ngrams
from rankfold.data.words import Corpus
from rankfold.experiments.imdb import KEPT_END, LENGTH, encoded, part_of
from rankfold.experiments.spec import FormatName, Split
from rankfold.experiments.task import Data, Folding, Task
from rankfold.models.ngram import NUM_ROWS, NgramClassifier

LONGEST = 3
WIDTH = 30_000
_ROWS = (-(-NUM_ROWS // WIDTH), WIDTH)
_WHOLE = {"embedding": (_ROWS, (128,))}
FOLDINGS: dict[FormatName, Folding] = {
    "cp": Folding(8, _WHOLE),
    "tucker": Folding(8, _WHOLE),
    # two classes need few directions among the columns
    "tt": Folding({"embedding": (4, 2)}, _WHOLE),
    # the long mode of the rows stands alone, or its core would be the largest by far
    "ttm": Folding(4, {"embedding": (_ROWS, (128, 1))}),
}


def load(split: Split, device: torch.device, folder: Path | None = None, verify: bool = True) -> Data:
    """Rows (N, 1197), int32, on the device: 400 words, 399 pairs and 398 triples, each padded with 0."""
    train, test = load_imdb(folder, verify=verify)
    corpus = Corpus.of(train.texts)
    ngrams = Ngrams.of(corpus, NUM_ROWS, width=WIDTH, longest=LONGEST, length=LENGTH, end=KEPT_END)

    def encode(corpus: Corpus) -> tuple[Tensor]:
        return (torch.from_numpy(ngrams.rows(corpus)),)

    return encoded(train, corpus, part_of(test, split), encode, device)


TASK = Task(NgramClassifier, FOLDINGS, load, counted="layers", too_large=True, find=find_imdb)
