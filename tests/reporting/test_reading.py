import json
from pathlib import Path

import pytest

from rankfold.reporting.checking import UnreadableRun
from rankfold.reporting.reading import find_files, read_run

RESULTS = Path(__file__).parents[2] / "results"
RESULT = RESULTS / "mnist" / "ttm-ard-lu-seed0.json"


def test_the_dense_run_beside_it_is_what_a_run_is_compared_with():
    dense = json.loads((RESULTS / "mnist" / "dense-seed0.json").read_text())
    assert read_run(RESULT).dense_accuracy == dense["metrics"]["posterior_mean"]["accuracy"]
    assert read_run(RESULTS / "synthetic" / "cp-ard-lu-seed0.json").dense_accuracy is None


def test_cuts_lead_from_the_first_ranks_to_the_last():
    run = read_run(RESULT)
    for layer, before in run.ranks_before.items():
        now = tuple(before)
        for cut in (cut for cut in run.cuts if cut.layer == layer):
            assert cut.before == now
            assert tuple(run.record["history"][cut.epoch - 1]["ranks"][layer]) == cut.after
            now = cut.after
        assert list(now) == list(run.ranks_after[layer])


def test_folders_hold_one_run_or_a_table(tmp_path):
    assert find_files(RESULT) == [RESULT]
    assert RESULT in find_files(RESULTS / "mnist")
    for name in ("demo.json", "run.json"):
        (tmp_path / name).write_text("{}")
        assert find_files(tmp_path) == [tmp_path / name]


def _without(key):
    return lambda record: record.pop(key)


def _set(*path_and_value):
    *path, last, value = path_and_value

    def change(record):
        for key in path:
            record = record[key]
        record[last] = value

    return change


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (_without("ranks"), "it has no ranks"),
        (_set("parameters", "final", 0), "parameters.final must be a positive integer, got 0"),
        (_set("ranks", "after", "layer1", [6, "x"]), "ranks.after must be lists of integers"),
        (_set("ranks", "after", {}), "must name the same layers"),
        (_set("history", 2, "nll", "small"), "history, entry 3: nll must be a finite number or null, got 'small'"),
        (_set("history", 0, 7), "history, entry 1 must be an object"),
        (_set("metrics", []), "metrics must be a dict, got list"),
        (_set("metrics", "hard_image", "label", 10), "label must be from 0 to 9, got 10"),
        (_set("metrics", "hard_image", "std", [0.1]), "a number is needed for each of 10 labels"),
        (_set("history", 4, "variances", {"layer1": [["a"]]}), "entry 5: variances of layer1 must be lists of numbers"),
        (_set("layers", [{"name": "layer1"}]), "layers must have counts, format"),
        (_set("timing", 3), "timing must be a dict, got 3"),
        (_set("metrics", "posterior_mean", 3), "metrics.posterior_mean must hold named scores"),
    ],
)
def test_a_damaged_record_is_named_with_what_is_wrong(tmp_path, damage, complaint):
    record = json.loads(RESULT.read_text())
    damage(record)
    file = tmp_path / "a.json"
    file.write_text(json.dumps(record))
    with pytest.raises(UnreadableRun, match=r"a\.json") as caught:
        read_run(file)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds a list"),
        ('{"settings": {}, "after": {}, "dense": {}}', "is no whole demonstration run"),
    ],
)
def test_other_files_are_refused(tmp_path, content, complaint):
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(UnreadableRun, match=complaint):
        read_run(file)


def test_an_empty_folder_and_a_missing_one_are_named(tmp_path):
    with pytest.raises(UnreadableRun, match=r"holds no run\.json"):
        find_files(tmp_path)
    with pytest.raises(UnreadableRun, match=r"there is no .*nowhere"):
        find_files(tmp_path / "nowhere")
