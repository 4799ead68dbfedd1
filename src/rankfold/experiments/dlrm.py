"""The DLRM task of section 5.4: clicks on real rows, with five tables of up to 10,131,227 rows tensorized.

Rows are in time order, seven days. To choose settings, five days train and the sixth is looked at; in the end
six days train and the last is looked at.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankfold.data.criteo import KAGGLE_SIZES, Criteo, Tables, find_files, prepare, seventh
from rankfold.data.criteo.progress_bar import ProgressBar
from rankfold.data.criteo.published import EXTRA, ROWS, SAMPLE, check_names, check_published, edition
from rankfold.data.errors import MissingData
from rankfold.experiments.clicks import click_loss, evaluate
from rankfold.experiments.spec import FormatName, Split
from rankfold.experiments.task import Data, Examples, Folding, Task
from rankfold.models.dlrm import DLRM

_Dims = tuple[int, ...]
# Of the rows of the tensorized tables: small, as usual for tables of millions of rows, most of them rarely seen.
INIT_STD = 0.01

# The five large tables by the numbers of their categories, from 0, and the modes of their rows.
MODES: Mapping[int, tuple[int, int, int]] = {
    2: (200, 220, 250),
    3: (125, 130, 136),
    11: (200, 200, 209),  # printed [200, 220, 250] for TTM; these modes give the printed count of 1,130,048
    15: (166, 175, 188),
    20: (200, 200, 200),
}


def _layers(out_dims: _Dims) -> dict[str, tuple[_Dims, _Dims]]:
    return {table_name(n): (dims, out_dims) for n, dims in MODES.items()}


def table_name(category: int) -> str:
    """The name of a table in the network."""
    return f"tables.{category}"


def _ranks(*ranks: int) -> dict[str, int]:
    return {table_name(n): rank for n, rank in zip(MODES, ranks, strict=True)}


FOLDINGS: dict[FormatName, Folding] = {
    "cp": Folding(_ranks(350, 306, 333, 326, 335), _layers((128,)), INIT_STD),
    # printed 20 for the first table; 22 gives the printed count of 1,131,212
    "tucker": Folding(_ranks(22, 20, 22, 21, 22), _layers((128,)), INIT_STD),
    "tt": Folding(24, _layers((128,)), INIT_STD),
    "ttm": Folding(16, _layers((4, 4, 8)), INIT_STD),
}


def network() -> nn.Module:
    """DLRM at full size, on the meta device: what is tensorized is never allocated."""
    with torch.device("meta"):
        return DLRM(KAGGLE_SIZES)


def load(
    split: Split, device: torch.device, folder: Path | None = None, verify: bool = True, *, extra: bool = False
) -> Data:
    """Real rows: on a CPU as memory-mapped files, on another device as a whole.

    Args:
        folder: the file itself, ``train.txt`` plain or packed, or a folder that has it.
        extra: train on the extra rows as well.
    """
    files = find_files_with_extra(folder) if extra else find_files(folder)
    if verify:
        check_names(files)
    data = _prepared(files)
    if verify:
        check_published(files, data.file_rows)
    looked_at = seventh(data.file_rows[0], 7 if split == "test" else 6)
    parts = [slice(0, looked_at.start)]
    if extra:
        parts.append(slice(data.file_rows[0], len(data)))
    return Data(_examples(data, parts, device), _examples(data, [looked_at], device), files=files)


def _prepared(files: Sequence[Path]) -> Criteo:
    """The arrays of the files; warnings go where the progress bar is, as lines of their own."""
    with warnings.catch_warnings(record=True) as caught:
        data = prepare(files, tables=Tables(KAGGLE_SIZES, hashing="large"), progress=ProgressBar())
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    return data


def find_files_with_extra(folder: Path | None = None) -> list[Path]:
    """Rows in time order, and the extra ones."""
    files = find_files(folder)
    if len(files) < 2:
        raise MissingData(
            f"there are no extra rows beside {files[0]}; name the folder that has {SAMPLE} and {EXTRA}, "
            f"plain, .gz or .xz, with --data"
        )
    return files


def _edition(folder: Path | None, verify: bool) -> str | None:
    return edition(find_files(folder), verify)


def _examples(data: Criteo, parts: list[slice], device: torch.device) -> Examples:
    """Rows of several parts; one part alone stays in its files while it is on the CPU."""
    numbers, categories, labels = (
        (array[parts[0]] if len(parts) == 1 else torch.cat([array[part] for part in parts])).to(device)
        for array in (data.numbers, data.categories, data.labels)
    )
    return Examples((numbers, categories), labels)


def _remark(about: Mapping[str, Any], more: str = "") -> str | None:
    """For results of the sample, which are known by how many rows a day of it has."""
    days = (seventh(ROWS[SAMPLE], day) for day in (6, 7))
    if about.get("num_evaluation") not in [day.stop - day.start for day in days]:
        return None
    return (
        "the published sample has 0.3 % of the paper's rows: compare what it trains with its dense row, not the "
        f"paper's{more}"
    )


TASK = Task(
    network,
    FOLDINGS,
    load,
    loss=click_loss,
    evaluate=evaluate,
    counted="layers",
    too_large=True,
    find=find_files,
    edition=_edition,
    remark=_remark,
)
EXTRA_TASK = replace(
    TASK,
    load=partial(load, extra=True),
    find=find_files_with_extra,
    remark=partial(_remark, more="; here there are half as many again"),
)
