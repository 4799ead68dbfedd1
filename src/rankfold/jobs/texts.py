"""Labelled lines of text: words and pairs of words as rows of a table, in the manner of fastText."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import torch

from rankfold.data.errors import DamagedData
from rankfold.data.lines import Lines, read_lines
from rankfold.data.words import Corpus, ngram_rows, vocabulary
from rankfold.jobs.preparation import DataOptions, Encoded, Learned, ModelName, Network, Preparation, divide
from rankfold.jobs.targets import Classes
from rankfold.models.ngram import NgramClassifier

LONGEST_TEXT = 400
MOST_WORDS = 25_000
EMBEDDING_DIM = 64
# Pairs of words are hashed into so many times the rows of the words.
_PAIRS_PER_WORD = 3


@final
@dataclass(frozen=True)
class Texts(Preparation):
    """The most frequent words of the training part; texts are cut to the length of the longest of its texts.

    Attributes:
        words: in the order of their rows, the first of which is row 2.
        length: of texts, in words; longer ones keep their last words.
    """

    kind: ClassVar[str] = "lines"
    described_as: ClassVar[str] = "a text file of labelled lines"
    models: ClassVar[tuple[ModelName, ...]] = ("text",)
    name_of_examples: ClassVar[str] = "line"

    target: Classes
    words: tuple[str, ...]
    length: int

    @classmethod
    def learn(cls, path: Path, options: DataOptions) -> Learned:
        lines = read_lines(path)
        if lines.labels is None:
            raise DamagedData(
                f"{path}, line {lines.numbers[0]} has no tab, and neither has any other: expected a label, a tab and "
                f"a text; if this is a table, name the column to predict with --target"
            )
        target = Classes.of(lines.labels, path)
        train, validation = divide(np.array(lines.labels), len(lines), options.validation_share, path)
        corpus = Corpus.of([lines.texts[n] for n in train])
        if not corpus.words:
            raise DamagedData(f"{path}: there are no words in the texts; words are made of letters and digits")
        ids = vocabulary(corpus, MOST_WORDS)
        preparation = cls(target, tuple(ids), int(max(2, corpus.sizes(LONGEST_TEXT).max())))
        return Learned(preparation, preparation._encode(lines), train, validation)

    def read(self, path: Path) -> Encoded:
        return self._encode(read_lines(path))

    @property
    def num_rows(self) -> int:
        return (1 + _PAIRS_PER_WORD) * (len(self.words) + 2)

    def network(self, model: ModelName) -> Network:
        sizes = {"num_rows": self.num_rows, "embedding_dim": EMBEDDING_DIM, "num_classes": len(self.target.names)}
        return Network(NgramClassifier, sizes)

    def as_dict(self) -> dict[str, Any]:
        target = {"names": list(self.target.names)}
        return {"kind": self.kind, "target": target, "length": self.length, "words": list(self.words)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        return cls(Classes(tuple(content["target"]["names"])), tuple(content["words"]), content["length"])

    def _encode(self, lines: Lines) -> Encoded:
        ids = {word: n for n, word in enumerate(self.words, start=2)}
        corpus = Corpus.of(lines.texts)
        rows = ngram_rows(corpus, ids, self.num_rows, longest=2, length=self.length, end="last")
        labels = None
        if lines.labels is not None:
            labels = self.target.encode(lines.labels, lambda n: f"{lines.path}, line {lines.numbers[n]}")
        return Encoded((torch.from_numpy(rows),), labels, tuple(map(str, lines.numbers)))
