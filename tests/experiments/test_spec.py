"""Settings are what the files say, and the rows of MNIST are those of the paper."""

from pathlib import Path

import pytest

from rankfold.counts import accounting
from rankfold.experiments.mnist import TASK, classifier
from rankfold.experiments.spec import Spec, read_rows, read_spec, read_toml
from rankfold.surgery import tensorize_

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FORMATS = ("cp", "tucker", "tt", "ttm")


def test_a_file_lists_only_what_differs(tmp_path):
    file = tmp_path / "row.toml"
    file.write_text('method = "ard"\nformat = "tt"\nkl_weight = 2\n')
    assert read_spec(file) == Spec("ard", "tt", kl_weight=2.0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('method = "ard"\nformat = "tt"\nepoch = 3', "unknown key 'epoch'"),
        ('format = "tt"', "the key method is missing"),
        ('method = "svd"', "method must be one of dense, fr, tc-mr, tc-or, ard, got 'svd'"),
        ('method = "ard"', "format must be left out for method 'dense'"),
        ('method = "dense"\nformat = "cp"', "format must be left out for method 'dense'"),
        ('method = "ard"\nformat = "tt"\nepochs = "3"', "epochs must be a positive integer, got '3'"),
        ('method = "ard"\nformat = "tt"\nepochs = 0', "epochs must be a positive integer, got 0"),
        ('method = "ard"\nformat = "tt"\nepochs = true', "epochs must be a positive integer, got True"),
        ('method = "ard"\nformat = "tt"\nlr = -1.0', "lr must be a positive number, got -1.0"),
        ('method = "ard"\nformat = "tt"\nlr = nan', "lr must be a positive number, got nan"),
        ('method = "ard"\nformat = "tt"\nwarmup = 1.5', "warmup must be a number above 0 and at most 1"),
        ('method = "tc-or"\nformat = "tt"', "oracle must be the name of a row"),
        ('method = "ard"\nformat = "tt"\noracle = "x"', "oracle must be the name of a row"),
        ('method = "ard"\nformat = "tt"\nseed = 3', "seed is no setting of a row; the command gives it, by --seeds"),
        ('method = "ard', "not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_file(text, named, tmp_path):
    file = tmp_path / "row.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"row\.toml: ") as caught:
        read_spec(file)
    assert named in str(caught.value)


def test_an_oracle_must_find_ranks(tmp_path):
    folder = tmp_path / "table"
    folder.mkdir()
    (folder / "dense.toml").write_text('method = "dense"')
    (folder / "or.toml").write_text('method = "tc-or"\nformat = "cp"\noracle = "dense"')
    with pytest.raises(ValueError, match=r"or\.toml: oracle must be a row of method 'ard', got 'dense'"):
        read_rows(folder)


def test_an_unknown_table_is_named_with_those_there_are(tmp_path):
    (tmp_path / "mnist").mkdir()
    with pytest.raises(FileNotFoundError, match="the tables there are mnist"):
        read_rows(tmp_path / "mnits")


def test_mnist_has_the_21_methods_of_the_paper_and_8_map_rows():
    rows, paper = read_rows(EXPERIMENTS / "mnist"), read_toml(EXPERIMENTS / "mnist" / "paper.toml")
    assert len(rows) == 29
    assert len(paper) == 21
    assert {name for name, spec in rows.items() if spec.inference == "bayes"} == set(paper)
    kinds = {(s.method, s.format, s.prior, s.inference) for s in rows.values()}
    assert len(kinds) == 29
    assert {s.oracle for s in rows.values() if s.oracle} == {f"{name}-ard-lu" for name in FORMATS}


def test_all_rows_share_the_defaults():
    differing = ("method", "format", "prior", "inference", "oracle")
    for spec in read_rows(EXPERIMENTS / "mnist").values():
        shared = {key: value for key, value in spec.as_dict().items() if key not in differing}
        assert shared == {key: value for key, value in Spec("dense").as_dict().items() if key not in differing}


def test_the_curve_differs_from_the_table_in_the_kl_weight_alone():
    rows = read_rows(EXPERIMENTS / "mnist-curve")
    wanted = {f"{name}-w{w:g}": Spec("ard", name, kl_weight=w) for name in FORMATS for w in (0.5, 2.0, 4.0)}
    assert rows == wanted


@pytest.mark.parametrize("row", [f"{name}-{method}" for name in FORMATS for method in ("fr", "ard-lu", "ard-hc")])
def test_the_models_have_the_paper_s_parameter_counts(row):
    spec = read_rows(EXPERIMENTS / "mnist")[row]
    paper = read_toml(EXPERIMENTS / "mnist" / "paper.toml")
    inference = "fixed" if spec.method == "fr" else spec.inference
    total = accounting(tensorize_(classifier(), None, overrides=TASK.tensor_configs(spec, inference))).total
    assert total.training_parameters == paper[row]["training"]
    assert total.final_parameters == paper[f"{spec.format}-fr"]["final"]
    assert total.dense_parameters == paper["dense"]["final"] == 407_050


@pytest.mark.parametrize(("epochs", "quick"), [(1, 1), (100, 10)])
def test_quick_is_never_longer(epochs, quick):
    spec = Spec("ard", "tt", epochs=epochs, fine_tune_epochs=epochs).quick()
    assert (spec.epochs, spec.fine_tune_epochs) == (quick, min(2, quick))
