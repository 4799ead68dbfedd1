"""``rankfold plan`` says what ``rankfold train`` then does."""

import json

import pytest
from jobs.made_up import clicks, images, lines, planted_clicks, table
from typer.testing import CliRunner

from rankfold.cli.main import app

KINDS = {
    "images": (lambda folder: images(folder / "photos"), ()),
    "pixels": (lambda folder: images(folder / "photos"), ("--model", "mlp", "--image-size", 12)),
    "classes": (lambda folder: table(folder / "t.csv"), ("--target", "kind", "--ignore", "price")),
    "quantity": (lambda folder: table(folder / "t.csv"), ("--target", "price", "--format", "cp")),
    "text": (lambda folder: lines(folder / "l.txt"), ("--prior", "half-cauchy")),
    "clicks": (lambda folder: clicks(folder / "c.txt"), ("--max-rank", 4)),
}


def run(*arguments):
    wide = {"COLUMNS": "500", "TERMINAL_WIDTH": "500"}
    return CliRunner(env=wide).invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("kind", KINDS)
def test_training_does_what_was_planned(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, options = KINDS[kind]
    command = (make(tmp_path), *options, "--epochs", 1)
    result = run("plan", *command, "--json")
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "runs").exists()
    planned = json.loads(result.output)
    assert run("train", *command, "--out", tmp_path / "run").exit_code == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    for key in ("spec", "model", "network"):
        assert planned[key] == record[key]
    assert planned["data"].items() <= record["data"].items()
    rows = [row for row in planned["plan"]["rows"] if row["action"] == "tensorize"]
    assert {row["name"]: row["ranks"] for row in rows} == record["ranks"]["before"]
    assert planned["plan"]["totals"]["dense_parameters"] == record["parameters"]["dense"]
    assert planned["plan"]["totals"]["training_parameters"] == record["parameters"]["training"]
    assert planned["steps"] == record["data"]["num_train"] // record["spec"]["batch_size"]


def test_the_table_and_the_settings_are_shown(tmp_path):
    data = table(tmp_path / "t.csv", size=200)
    options = ("--target", "price", "--max-rank", 6, "--lr", 0.01)
    shown, planned = run("plan", data, *options).output, json.loads(run("plan", data, *options, "--json").output)
    assert "t.csv: a table, regression of 'price' (guessed from the target's numbers; --task" in shown
    assert "180 examples to train, 20 held back" in shown
    rows = {line.split()[0]: line for line in shown.splitlines() if line}
    for row in planned["plan"]["rows"]:
        assert f"{row['training_parameters']:,}" in rows[row["name"]]
    assert f"{planned['plan']['totals']['factor_parameters']:,}" in rows["total"]
    assert (
        "273 epochs of 11 steps, 3,003 in all; batches of 16; learning rate 0.01; log-uniform prior; KL weight 0.13"
        in (shown)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [80, 70])
def test_the_table_fits_the_terminal(kind, columns, tmp_path):
    make, options = KINDS[kind]
    command = ["plan", *map(str, (make(tmp_path), *options, "--max-rank", 4))]
    lines = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, command).output.splitlines()
    first, last = (n for n, line in enumerate(lines) if line.startswith("---"))
    assert max(map(len, lines[first - 1 : last + 2])) <= columns
    for column in ("layer", "format", "ranks", "dense", "final"):
        assert column in lines[first - 1].split()
    assert ("padding" in lines[first - 1]) >= any("%" in line and "0.0%" not in line for line in lines[first:last])


def test_layers_of_which_the_same_is_to_be_said_share_a_note(tmp_path):
    shown = run("plan", planted_clicks(tmp_path / "c.tsv", 100)).output
    (note,) = (line for line in shown.splitlines() if line.startswith("note: tables.1,"))
    assert "tables.2, tables.3" in note
    assert shown.count("note: ") < 8


def test_a_wrong_request_is_refused_as_in_training(tmp_path):
    data = table(tmp_path / "t.csv")
    for options in ((), ("--target", "size"), ("--target", "kind", "--model", "cnn"), ("--target", "kind", "--lr", -1)):
        planned, trained = (run(name, data, *options) for name in ("plan", "train"))
        assert planned.exit_code == trained.exit_code == 2
        assert planned.output.replace("rankfold plan", "rankfold train").replace("root plan", "root train") == (
            trained.output
        )


def test_where_the_rank_makes_no_layer_smaller_half_of_it_does(tmp_path):
    data = tmp_path / "reviews.txt"
    texts = [" ".join(f"word{(n + k) % 24}" for k in range(8)) for n in range(120)]
    data.write_text("".join(f"{'good' if n % 2 else 'bad'}\t{text}\n" for n, text in enumerate(texts)))
    command = ("plan", data, "--format", "tt")
    assert json.loads(run(*command, "--json").output)["spec"]["max_rank"] == 10
    assert "--max-rank 20 makes no layer smaller than it is dense; 10 does" in run(*command, "--max-rank", 20).output
    assert "If that makes no layer smaller, half of it, and so on." in run("plan", "--help").output


def test_columns_are_named_with_what_they_are_taken_for(tmp_path):
    """Ids by their names or their values; prices, grids and what is called a category are none."""
    data = tmp_path / "t.csv"
    names = ["id", "user_id", "town", "price", "grid", "code", "city", "same", "secret", "y"]
    rows = [
        [n, n % 7, (70173, 10115, 20095)[n % 3], 10_000 * (n % 4), n % 5, n % 6, "ab"[n % 2], 1, n, n / 7]
        for n in range(40)
    ]
    data.write_text("\n".join(",".join(map(str, row)) for row in [names, *rows]) + "\n")
    command = ("plan", data, "--target", "y", "--categorical", "code", "--ignore", "secret")
    columns = json.loads(run(*command, "--json").output)["data"]["columns"]
    assert columns == {
        "numbers": ["id", "user_id", "town", "price", "grid"],
        "categories": {"code": 6, "city": 2},
        "ignored": ["secret"],
        "left_out": ["same"],
        "ids": {"id": "--ignore id", "user_id": "--categorical user_id", "town": "--categorical town"},
    }
    planned, trained = run(*command), run("train", *command[1:], "--epochs", 1, "--out", tmp_path / "run")
    for output in (planned.output, trained.output):
        assert (
            "\nnumbers: id, user_id, town, price, grid; categories: code (6 values), city (2 values); "
            "ignored: secret\n"
            "note: id is taken for a number, but looks like an id; --ignore id?\n"
            "note: user_id is taken for a number, but looks like an id; --categorical user_id?\n"
        ) in output
    assert "'same'" in planned.output
