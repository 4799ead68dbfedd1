"""``rankfold bench``: measure, print, and keep the figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import torch
import typer
from rich.text import Text

from rankfold.bench.cases import Sizes, all_cases, conv_case, embedding_cases, linear_cases, with_formats
from rankfold.bench.contender import Case
from rankfold.bench.fresh_process import ProcessFailed
from rankfold.bench.inference import all_settings, networks, run_inference
from rankfold.bench.layers import run_case
from rankfold.bench.memory import embedding_memory_cases, run_dlrm, run_embedding
from rankfold.bench.networks import NETWORKS, found_ranks
from rankfold.bench.step import run_steps
from rankfold.bench.tensorly_peer import MISSING, installed_version
from rankfold.cli.bench_run import CORES, Job, Session, check_threads, chosen_formats, chosen_numbers
from rankfold.cli.bench_table import summary_table
from rankfold.cli.reading import failure

bench = typer.Typer(
    help="Time and weigh rankfold beside torch.nn and tensorly-torch, on the same work in one run.",
    no_args_is_help=True,
)

_FEW_THREADS = "1,2" if CORES > 1 else "1"

_T = TypeVar("_T")
_Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
_Threads = Annotated[int | None, typer.Option(help="CPU threads, no more than cores; torch's own choice if left out.")]
_Repeat = Annotated[
    int, typer.Option(min=3, help="Rounds, a turn of each contender; who has taken 15 s sits out the rest.")
]
_Only = Annotated[str, typer.Option(help="Run the cases with this in their name, such as 784 or MNIST.")]
_Formats = Annotated[str | None, typer.Option(help="Such as TTM,CP; all four if left out.")]
_Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        dir_okay=False,
        help="Write all figures to this file, in place of what it held; if left out, to runs/bench/…, or with --json "
        "to none.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print all figures as JSON, and nothing else.")]
_Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Batch of the large linear layers, also beside --full; 512 on a CPU, 4096 on CUDA."),
]
_Full = Annotated[bool, typer.Option("--full", help="On a CPU too, use the large batches of the GPU.")]
_DenseTable = Annotated[
    bool, typer.Option("--dense-table", help="On a CPU too, take the dense 5 GB embedding table into the comparison.")
]


@bench.command()
def embedding(
    device: _Device = "cpu",
    threads: _Threads = None,
    repeat: _Repeat = 15,
    only: _Only = "",
    formats: _Formats = None,
    dense_table: _DenseTable = False,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """Fetch 2,048 and 65,536 rows of a table of 10,131,227 × 128, uniform and skewed (Zipf).

    *forward* is inference: eval mode, no gradients. *forward + backward* is a training step without the optimizer;
    only the dense table takes its sparse SGD step as well, since nothing else can be done with a sparse gradient.
    On CUDA both are timed once more as CUDA graphs, where no time is lost between kernels.
    *memory* is the peak of forward + backward beyond parameters, indices and the output's gradient. *over floor*
    divides the fastest forward + backward by the *floor*, the time that its bytes and operations take at the speed of
    a large copy and of a large matrix product, measured first. It can be below 1×: what stays in a cache counts as
    moved, but moves faster than a copy. On an H200 the fastest of other libraries stands beside it.
    """
    session = Session.start("embedding", device, out, as_json=as_json, repeat=repeat, threads=threads)
    cases = embedding_cases(dense_table or session.device.type == "cuda")
    _run_layers(session, cases, only, formats)


@bench.command()
def linear(
    device: _Device = "cpu",
    threads: _Threads = None,
    repeat: _Repeat = 15,
    only: _Only = "",
    formats: _Formats = None,
    batch: _Batch = None,
    full: _Full = False,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """Linear layers 784 → 512, 1024 → 4096 and 4096 → 4096; on CUDA the large ones with TF32 as well.

    The columns are those of `rankfold bench embedding`.
    """
    session = Session.start("linear", device, out, as_json=as_json, repeat=repeat, threads=threads)
    sizes = Sizes.for_device(session.device, batch, full)
    _run_layers(session, linear_cases(sizes, tf32=session.device.type == "cuda"), only, formats)


@bench.command()
def conv(
    device: _Device = "cpu",
    threads: _Threads = None,
    repeat: _Repeat = 15,
    formats: _Formats = None,
    full: _Full = False,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """A 3×3 convolution of 128 channels.

    The columns are those of `rankfold bench embedding`.
    """
    session = Session.start("conv", device, out, as_json=as_json, repeat=repeat, threads=threads)
    _run_layers(session, [conv_case(Sizes.for_device(session.device, full=full).images)], "", formats)


@bench.command()
def layers(
    device: _Device = "cpu",
    threads: _Threads = None,
    repeat: _Repeat = 15,
    only: _Only = "",
    formats: _Formats = None,
    batch: _Batch = None,
    full: _Full = False,
    dense_table: _DenseTable = False,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """The cases of `linear`, `embedding` and `conv` in one run.

    The columns are those of `rankfold bench embedding`.
    tensorly-torch takes part if it is installed: pip install 'rankfold[bench]'.
    """
    session = Session.start("layers", device, out, as_json=as_json, repeat=repeat, threads=threads)
    sizes = Sizes.for_device(session.device, batch, full)
    _run_layers(session, all_cases(sizes, dense_table or session.device.type == "cuda"), only, formats)


@bench.command()
def step(
    device: _Device = "cpu",
    threads: _Threads = None,
    repeat: _Repeat = 25,
    only: _Only = "",
    formats: _Formats = None,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """Whole training steps of the paper's MNIST and CIFAR-10 networks: dense, at fixed rank, and Bayesian.

    A Bayesian step draws the factors, runs forward and backward, adds the KL, steps Adam and sets λ.
    *over fixed rank* is what that costs beside training the same factors without a prior. On CUDA the step is timed
    as it is and as one graph (`rankfold.CapturedStep`), and the kernels that it starts are counted and timed.
    *memory* is then that of parameters, optimizer and the peak of a step. *epoch* is the fastest step, once for every
    batch of the training set; images are not augmented. *over floor* is explained by `rankfold bench embedding --help`.
    """
    session = Session.start("step", device, out, as_json=as_json, repeat=repeat, threads=threads)
    chosen = chosen_formats(formats)
    named = _with(only, [(f"{name} training steps", name) for name in NETWORKS])
    ceilings = session.find_ceilings()
    session.run([(job, partial(run_steps, name, chosen, session.device, repeat, ceilings)) for job, name in named])


@bench.command()
def memory(
    device: _Device = "cpu",
    threads: _Threads = None,
    only: Annotated[str, typer.Option(help="Embedding or DLRM; both if left out.")] = "",
    formats: _Formats = None,
    dense_table: _DenseTable = False,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """Peak memory: of fetching rows of a large table, and of training a whole DLRM.

    For rows, *peak* is what forward + backward holds at most beyond parameters, indices and the output's gradient,
    and *least* is output and gradients. For DLRM, *peak* is everything, from nothing to the second training step, and
    *least* is what its optimizer keeps. *how*: `allocator` is the count of CUDA's allocator, `profiler` adds up every
    allocation that torch made on the CPU, `resident set` is the largest that a Python process of its own was, with all
    libraries in it, and `modelled` was computed and not run. *With snapshots* a state to return to is kept after every
    step. DLRM takes 3 GB on the CPU; dense and on CUDA, 18 GB.
    """
    session = Session.start("memory", device, out, as_json=as_json, threads=threads)
    chosen, on_cuda = chosen_formats(formats), session.device.type == "cuda"
    jobs: list[Job] = [
        (case.name, partial(run_embedding, case, session.device))
        for case in embedding_memory_cases(chosen, dense_table or on_cuda)
    ]
    jobs.append(("DLRM", lambda: run_dlrm(chosen, session.device, dense=on_cuda)))
    try:
        session.run(_with(only, jobs))
    except ProcessFailed as error:
        raise failure(error) from error


@bench.command()
def inference(
    device: _Device = "cpu",
    repeat: _Repeat = 15,
    formats: _Formats = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,128",
    threads: Annotated[str, typer.Option(help="Numbers of CPU threads, no more than cores.")] = _FEW_THREADS,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="torch.compile needs a C++ compiler and takes minutes.")
    ] = True,
    results: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of MNIST's results, from which the found ranks are read.")
    ] = Path("results/mnist"),
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """Answers of the pruned MNIST network beside the dense one.

    Every network is run by onnxruntime (on the CPU), by torch as it is and through torch.compile; as factors, and with
    each linear layer multiplied out to two halves, which TTM does not have. *faster than dense* compares with the
    dense network run in the same way. The ranks are those that training has found, the weights random: they take as
    long as trained ones.
    """
    session = Session.start("inference", device, out, as_json=as_json, repeat=repeat)
    batches, counts = chosen_numbers(batch, "--batch"), chosen_numbers(threads, "--threads")
    for count in counts:
        check_threads(count)
    torch.set_num_threads(max(counts))  # so many are asked whether they get their cores
    try:
        ranks = {format: found_ranks(format, results) for format in chosen_formats(formats)}
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error), param_hint="--results") from error
    models = networks(ranks)
    settings = all_settings(batches, counts, session.device, compiled)
    session.run([(setting.case, partial(run_inference, models, setting, repeat)) for setting in settings])


def _run_layers(session: Session, cases: Sequence[Case], only: str, formats: str | None) -> None:
    chosen = chosen_formats(formats)
    kept = _with(only, [(case.name, case) for case in cases])
    assert session.repeat is not None
    measure = partial(run_case, device=session.device, repeat=session.repeat, ceilings=session.find_ceilings())
    jobs = [(name, partial(measure, with_formats(case, chosen))) for name, case in kept]
    session.run(jobs, lambda: Text(MISSING) if installed_version() is None else summary_table(session.rows))


def _with(only: str, named: Sequence[tuple[str, _T]]) -> list[tuple[str, _T]]:
    """Those with ``only`` in their name."""
    kept = [(name, value) for name, value in named if only.lower() in name.lower()]
    if not kept:
        names = "; ".join(name for name, _ in named)
        raise typer.BadParameter(f"no case has {only!r} in its name; the cases are: {names}", param_hint="--only")
    return kept
