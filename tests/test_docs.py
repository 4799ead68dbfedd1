"""The pages in docs are true: their code runs and prints what they show, their links and tables hold."""

import importlib.util
import re
import shlex
from pathlib import Path

import generated
import pytest
import result_sections
import torch
from typer.core import TyperGroup
from typer.main import get_command

import rankfold as rf
from rankfold.cli.main import app
from rankfold.experiments.clicks import pack_scores
from rankfold.experiments.planning import Request
from rankfold.experiments.results import Places, write_record
from rankfold.experiments.spec import read_rows

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())


def text_of(page):
    return page.read_text(encoding="utf-8")


def blocks(page, language):
    """Blocks of code by the line at which they begin."""
    text = text_of(page)
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return {text.count("\n", 0, match.start(1)): match[1] for match in found}


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")  # Lightning's own
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")  # Lightning's advice
@each_page
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    """One namespace per page, as a reader would run them; what stands in a text block was printed."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "page"}
    for line, block in blocks(page, "python").items():
        exec(compile("\n" * line + block, str(page), "exec"), names)  # errors name the line of the page
    printed = capsys.readouterr().out
    for shown in blocks(page, "text").values():
        assert shown in printed


# Links ------------------------------------------------------------------------------------------------


@each_page
def test_the_links_of_a_page_exist(page):
    """Pages, figures and files, and the headings that links name."""
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", prose):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not heading or heading in headings(linked), f"{target}#{heading}"


def headings(page):
    """The anchors that the site gives to the headings of a page."""
    found = re.findall(r"^#+ (.*)$", text_of(page), flags=re.MULTILINE)
    return {
        re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.encode("ascii", "ignore").decode()).strip().lower())
        for heading in found
    }


# Commands ---------------------------------------------------------------------------------------------


@each_page
def test_the_commands_of_a_page_and_their_options_exist(page):
    lines = "\n".join([*blocks(page, "sh").values(), *blocks(page, "").values()]).splitlines()
    for line in lines:
        if line.startswith("rankfold "):
            command, rest = get_command(app), shlex.split(line, comments=True)[1:]
            while isinstance(command, TyperGroup):
                assert rest, line
                assert rest[0] in command.commands, line
                command = command.commands[rest.pop(0)]
            known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            assert {word for word in rest if word.startswith("--")} <= known | {"--help"}, line


# What is generated ------------------------------------------------------------------------------------


def test_the_tables_of_the_pages_come_from_the_result_files():
    for (page, name), make in generated.SECTIONS.items():
        section = re.search(
            rf"<!-- {name}: begin, generated -->(.*)<!-- {name}: end -->", text_of(ROOT / page), re.DOTALL
        )
        assert section, f"{page} has no section {name!r}"
        assert section[1].strip() == make(), f"{name!r} in {page} is out of date; run: python tools/docs/generated.py"


def test_a_section_appears_with_its_first_result(tmp_path, monkeypatch):
    monkeypatch.setattr(result_sections, "PLACES", Places(ROOT / "experiments", tmp_path / "none"))
    make = generated.SECTIONS["docs/results/large-tables.md", "dlrm-extra"]
    assert make() == ""
    places = Places(ROOT / "experiments", tmp_path / "results")
    leave_result(places, "dlrm-extra", "tt-ard-lu")
    monkeypatch.setattr(result_sections, "PLACES", places)
    assert make().startswith("### More rows")
    assert "| TT     | ARD-LU |" in make()


def test_made_up_clicks_stand_beside_the_model_that_made_them(tmp_path, monkeypatch):
    places = Places(ROOT / "experiments", tmp_path)
    leave_result(places, "dlrm-planted", "tt-ard-lu", planted={"auc": 0.8123})
    monkeypatch.setattr(result_sections, "PLACES", places)
    scores, targets = (
        generated.SECTIONS["docs/results/large-tables.md", f"dlrm-planted {part}"]() for part in ("scores", "targets")
    )
    assert re.search(r"\| TT +\| ARD-LU \| .* \| 0\.7500 \| +0\.8123 \| 0\.5000 \|", scores)
    assert "AUC at most 0.003 below that of the planted model" in targets


def test_ranks_of_a_table_that_is_switched_off_are_called_empty(tmp_path, monkeypatch):
    places = Places(ROOT / "experiments", tmp_path)
    leave_result(places, "imdb", "tt-ard-lu", ranks={"before": {"embedding": [9, 9]}, "after": {"embedding": [1, 4]}})
    monkeypatch.setattr(result_sections, "PLACES", places)
    make = generated.SECTIONS["docs/results/imdb.md", "imdb ranks"]
    assert "9·9 |" in make()
    assert "1·4 |" in make()
    assert "empty" not in make().lower()
    result_sections._summary.cache_clear()
    (places.results / "imdb" / "tt-ard-lu-seed0.json").unlink()
    warnings = ["embedding.tensor, head.tensor collapsed: by InformationRule"]
    ranks = {"before": {"embedding": [9]}, "after": {"embedding": [1]}}
    leave_result(places, "imdb", "tt-ard-lu", ranks=ranks, warnings=warnings)
    assert "| empty |" in make()
    assert make().endswith("the table is switched off.")


def leave_result(places, table, row, *, ranks=None, warnings=(), planted=None):
    run = Request(table).run(row, read_rows(places.experiments / table)[row], 0)
    scores = {"accuracy": 0.7, "auc": 0.75, "nll_nats": 0.5}
    packed = pack_scores(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
    result = {
        "table": table,
        "row": row,
        "seed": 0,
        "spec": run.spec.as_dict(),
        "ranks": ranks or {"before": {}, "after": {}},
        "parameters": {"dense": 10**9, "training": 10**6, "final": 10**5},
        "metrics": {"posterior_mean": scores, "scores": packed, **({"planted": planted} if planted else {})},
        "warnings": list(warnings),
        "history": [],
    }
    write_record(run.file(places), result)


# The reference ----------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference():
    directives = "\n".join(text_of(page) for page in (DOCS / "reference").glob("*.md"))
    documented = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)$", directives, flags=re.MULTILINE)}
    assert documented >= set(rf.__all__)


def test_every_name_in_the_reference_exists():
    for page in (DOCS / "reference").glob("*.md"):
        for path in re.findall(r"^::: (\S+)$", text_of(page), flags=re.MULTILINE):
            parent, _, name = path.rpartition(".")
            try:
                importlib.import_module(path)
            except ModuleNotFoundError:
                assert name in vars(importlib.import_module(parent)), path


def test_every_public_name_has_a_docstring_with_an_example():
    without = [name for name in rf.__all__ if ">>>" not in (vars(rf)[name].__doc__ or "")]
    assert without == []
