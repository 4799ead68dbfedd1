"""The tables of the pages that are made from result files: ``python tools/docs/generated.py`` writes them anew.

Every one stands between two marks in its page, so nobody types a number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmark_sections import (
    BENCHMARKS,
    ROOT,
    aims_of_speed,
    benchmark,
    cifar10_step,
    dlrm_on_a_cpu,
    formats_beside,
    layers_cpu,
    layers_gpu,
)
from result_sections import (
    LARGE_TABLES,
    WORD_TABLE,
    beside_planted,
    brief,
    kl_weights,
    memory_and_time,
    once_more,
    overview,
    progress,
    ranks_left,
    results,
    sample,
    section,
    settings,
    table,
    targets,
)

from rankfold.grids import write_between_markers

_RESNET18 = """\
## ResNet-18

A network that people know, with a 3×3 stem for small images: all convolutions but the stem are tensorized. Channels \
stay one mode, so the ranks are the widths of a chain of 1×1, 3×3 and 1×1 convolutions. One call of `tensorize_` \
does it. Again CP is the format to take: at the fixed rank it is close to the dense network, and the ranks that are \
found, at the KL weight of the other network, make it many times smaller for a loss of less than two percent. Tensor \
trains train worst from factors, as above: at the fixed rank they fall short of the dense network already, and the far \
smaller ranks that are found lose more.

```sh
rankfold reproduce cifar10-resnet18
rankfold table cifar10-resnet18
```"""
_EXTRA = """\
### More rows to train on

The same, with a second sample beside the first. Its rows are mostly of the first day and not in the order of time, \
so they are trained on and never looked at. The rows that are looked at are the same.

```sh
rankfold reproduce dlrm-extra
rankfold table dlrm-extra
```"""

_IMDB, _LARGE = "docs/results/imdb.md", "docs/results/large-tables.md"
SECTIONS: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "overview"): overview,
    ("README.md", "table mnist"): partial(brief, "mnist"),
    ("docs/index.md", "results"): results,
    ("docs/faq.md", "kl weights"): kl_weights,
    ("docs/results/mnist.md", "table mnist"): partial(table, "mnist"),
    ("docs/results/synthetic.md", "table synthetic"): partial(table, "synthetic"),
    ("docs/results/cifar10.md", "cifar10 settings"): partial(settings, "cifar10", "CIFAR-10"),
    ("docs/results/cifar10.md", "table cifar10"): partial(table, "cifar10"),
    ("docs/results/cifar10.md", "cifar10 step"): cifar10_step,
    ("docs/results/cifar10.md", "resnet-18"): partial(section, "cifar10-resnet18", _RESNET18),
    (_IMDB, "imdb rows"): partial(progress, "imdb"),
    (_IMDB, "imdb settings"): partial(settings, "imdb", "IMDB"),
    (_IMDB, "table imdb"): partial(table, "imdb"),
    (_IMDB, "imdb ranks"): partial(ranks_left, "imdb", WORD_TABLE),
    (_IMDB, "imdb memory"): partial(memory_and_time, "imdb"),
    (_LARGE, "ngram rows"): partial(progress, "ngram"),
    (_LARGE, "ngram settings"): partial(settings, "ngram", "n-grams"),
    (_LARGE, "table ngram"): partial(table, "ngram"),
    (_LARGE, "ngram ranks"): partial(ranks_left, "ngram", WORD_TABLE),
    (_LARGE, "ngram memory"): partial(memory_and_time, "ngram"),
    (_LARGE, "ngram memory on a GPU"): partial(once_more, "ngram", "ngram-gpu"),
    (_LARGE, "dlrm sample"): sample,
    (_LARGE, "dlrm rows"): partial(progress, "dlrm"),
    (_LARGE, "dlrm settings"): partial(settings, "dlrm", "DLRM"),
    (_LARGE, "table dlrm"): partial(table, "dlrm"),
    (_LARGE, "dlrm ranks"): partial(ranks_left, "dlrm", LARGE_TABLES),
    (_LARGE, "dlrm memory"): partial(memory_and_time, "dlrm"),
    (_LARGE, "dlrm-extra"): partial(section, "dlrm-extra", _EXTRA),
    (_LARGE, "dlrm-planted rows"): partial(progress, "dlrm-planted"),
    (_LARGE, "dlrm-planted settings"): partial(settings, "dlrm-planted", "made-up clicks"),
    (_LARGE, "dlrm-planted scores"): partial(beside_planted, "dlrm-planted"),
    (_LARGE, "dlrm-planted targets"): partial(targets, "dlrm-planted"),
    (_LARGE, "dlrm-planted ranks"): partial(ranks_left, "dlrm-planted", LARGE_TABLES),
    (_LARGE, "dlrm-planted memory"): partial(memory_and_time, "dlrm-planted"),
    ("docs/tutorials/dlrm-on-a-laptop.md", "memory on a CPU"): dlrm_on_a_cpu,
    ("docs/explanation/peers.md", "layers on a CPU"): layers_cpu,
    ("docs/explanation/peers.md", "layers on a GPU"): layers_gpu,
    ("docs/explanation/performance.md", "formats"): formats_beside,
    ("docs/explanation/performance.md", "aims"): aims_of_speed,
    **{("docs/explanation/performance.md", f"bench {name}"): partial(benchmark, name) for name in BENCHMARKS},
}


def main() -> None:
    """Write all sections into their pages."""
    for (page, name), make in SECTIONS.items():
        if write_between_markers(ROOT / page, name, make()):
            print(f"{page}: {name} written anew")


if __name__ == "__main__":
    main()
