"""``rankfold figures``: draw the paper's figures from our results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankfold.cli.reading import refusing
from rankfold.cli.writing import check_folder, writing
from rankfold.experiments.results import Places

NOTHING_DRAWN = 1


def figures(
    names: Annotated[list[str] | None, typer.Argument(help="Figures such as fig5-priors; all if none.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = Places.results,
    experiments: Annotated[Path, typer.Option(help="Folder of the tables.")] = Places.experiments,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("docs/figures"),
) -> None:
    """Draw the figures of the paper from the results there are, as PNG files.

    A figure whose results are missing is named and left out. Fig. 5 needs no results; those of Fig. 6 are measured
    here, in about a minute, if there are none.

    Exit codes: 0 something was drawn, 1 nothing could be, 2 the request is wrong.
    """
    from rankfold.figures.found import MissingResults
    from rankfold.figures.gallery import FIGURES
    from rankfold.figures.style import save

    unknown = [name for name in names or [] if name not in FIGURES]
    if unknown:
        raise typer.BadParameter(f"there is no figure {', '.join(unknown)}; the figures are {', '.join(FIGURES)}")
    check_folder(out)
    drawn = 0
    for name in names or FIGURES:
        file = out / f"{name}.png"
        try:
            with refusing():
                figure = FIGURES[name](Places(experiments, results))
        except MissingResults as missing:
            typer.echo(f"– {name} left out: {missing}")
            continue
        with writing(file):
            save(figure, file)
        typer.echo(f"✓ {file}")
        drawn += 1
    if not drawn:
        raise typer.Exit(NOTHING_DRAWN)
