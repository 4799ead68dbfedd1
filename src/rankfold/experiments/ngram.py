"""A table of 10,131,227 rows in earnest: n-grams of IMDB reviews, classified in the manner of fastText.

Single words, pairs and triples of the last 400 words of a review are rows of a table of 128 columns: 1.3 billion
parameters if it were dense. As in fastText, words have rows of their own, the most frequent first. The table is folded
into 3,183 lines of 3,183 rows: one index of a pair or triple is its last word, the other what comes before it.
Reviews and their division are those of :mod:`rankfold.experiments.imdb`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rankfold.data.imdb import load_imdb
from rankfold.data.words import Corpus, ngram_rows, vocabulary
from rankfold.experiments.imdb import KEPT_END, LENGTH, encoded, part_of
from rankfold.experiments.spec import FormatName, Split
from rankfold.experiments.task import Data, Folding, Task
from rankfold.models.ngram import NUM_ROWS, NgramClassifier

LONGEST = 3
NUM_WORDS = 55_000

WIDTH = 3_183
_ROWS = (3_183, WIDTH)
_WHOLE = {"embedding": (_ROWS, (128,))}
FOLDINGS: dict[FormatName, Folding] = {
    "cp": Folding(42, _WHOLE),
    "tucker": Folding(20, _WHOLE),
    # two classes need few directions among the columns
    "tt": Folding({"embedding": (20, 3)}, _WHOLE),
    "ttm": Folding(4, {"embedding": (_ROWS, (8, 16))}),
}


def load(split: Split, device: torch.device, folder: Path | None = None, verify: bool = True) -> Data:
    """Rows (N, 1197), int32, on the device: 400 words, 399 pairs and 398 triples, each padded with 0."""
    train, test = load_imdb(folder, verify=verify)
    corpus = Corpus.of(train.texts)
    ids = vocabulary(corpus, NUM_WORDS)

    def encode(corpus: Corpus) -> tuple[Tensor]:
        rows = ngram_rows(corpus, ids, NUM_ROWS, width=WIDTH, longest=LONGEST, length=LENGTH, end=KEPT_END)
        return (torch.from_numpy(rows),)

    return encoded(train, corpus, part_of(test, split), encode, device)


TASK = Task(NgramClassifier, FOLDINGS, load, counted="layers", too_large=True)
