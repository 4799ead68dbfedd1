"""Event files read back record by record, by the format's own definition."""

import struct
import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from rankfold.reporting.events import folders_of, write_events
from rankfold.reporting.reading import read_run

RUN = read_run(Path(__file__).parents[2] / "results" / "mnist" / "ttm-ard-lu-seed0.json")


def read_scalars(folder):
    """(name, step) → value. A record is its length, a checksum, the event and a checksum."""
    (file,) = folder.glob("events.out.tfevents.*")
    content, found, at = file.read_bytes(), {}, 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        event = Event.FromString(content[at + 12 : at + 12 + length])
        found.update({(value.tag, event.step): value.simple_value for value in event.summary.value})
        at += 16 + length
    return found


def test_every_number_of_the_history_is_an_event(tmp_path):
    write_events(tmp_path, RUN)
    found = read_scalars(tmp_path)
    for step, epoch in enumerate(RUN.record["history"], start=1):
        assert found["objective/nll", step] == pytest.approx(epoch["nll"])
        assert found["objective/kl_nats", step] == pytest.approx(epoch["kl_nats"])
        assert found["objective/beta", step] == pytest.approx(epoch["beta"])
        assert found["size/parameters", step] == epoch["parameters"]
        assert [found[f"ranks/layer1/{n}", step] for n in (1, 2, 3)] == epoch["ranks"]["layer1"]
    ece = RUN.record["metrics"]["monte_carlo"]["ece"]
    assert found["evaluation/monte_carlo/ece", 100] == pytest.approx(ece)


def test_writing_again_replaces_ours_and_leaves_others(tmp_path):
    other = tmp_path / "events.out.tfevents.1.other"
    write_events(tmp_path, RUN)
    once = read_scalars(tmp_path)
    other.touch()
    write_events(tmp_path, RUN)
    assert len(list(tmp_path.iterdir())) == 2
    other.unlink()
    assert read_scalars(tmp_path) == once


def test_without_tensorboardx_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ModuleNotFoundError, match="tensorboardX"):
        write_events(tmp_path, RUN)


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        (["runs/a/run.json", "runs/b/run.json", "runs/demo/demo.json"], ["a", "b", "demo"]),
        (["results/mnist/x-seed0.json", "results/imdb/x-seed0.json"], ["mnist/x-seed0", "imdb/x-seed0"]),
        (["a/run.json", "a/demo.json"], ["run.json", "demo.json"]),
    ],
)
def test_every_run_has_a_folder_with_a_short_name(files, folders, tmp_path):
    assert [folder.as_posix() for folder in folders_of([tmp_path / file for file in files])] == folders
