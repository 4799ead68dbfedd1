"""A task whose dense network is too large to keep: what is made, what is counted, what is left."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rankfold.experiments import memory_check, methods, registry
from rankfold.experiments.methods import Workshop, train
from rankfold.experiments.planning import Request, schedule
from rankfold.experiments.progress import Listener
from rankfold.experiments.results import Places
from rankfold.experiments.rows_in_use import rows_in_use
from rankfold.experiments.runner import execute
from rankfold.experiments.spec import Spec
from rankfold.experiments.task import Data, Examples, Folding, Task
from rankfold.experiments.training import Training
from rankfold.surgery.materialize import materialized

CPU = torch.device("cpu")
ROWS, COLUMNS = 60, 8


class Bag(nn.Module):
    """A table with a linear layer above it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(ROWS, COLUMNS, mode="mean")
        self.head = nn.Linear(COLUMNS, 2)

    def forward(self, words: Tensor, scale: Tensor) -> Tensor:
        return self.head(self.table(words) * scale[:, None])


def load(split: str, device: torch.device, folder: Path | None, verify: bool) -> Data:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(ROWS, (128, 5), generator=generator)
    examples = Examples((words, torch.ones(128)), (words[:, 0] < ROWS // 2).long())
    return Data(examples, examples)


LAYERS = {"table": ((4, 15), (8,))}
TASK = Task(
    Bag,
    {name: Folding({"table": 3}, LAYERS, init_std=0.5) for name in ("cp", "tucker", "tt")}
    | {"ttm": Folding((3), {"table": ((4, 15), (2, 4))})},
    load,
    counted="layers",
    too_large=True,
)
ROW = {
    "dense": 'method = "dense"',
    "tt-fr": 'method = "fr"\nformat = "tt"',
    "tt-ard-lu": 'method = "ard"\nformat = "tt"',
    "tt-tc-mr": 'method = "tc-mr"\nformat = "tt"',
    "tt-tc-or": 'method = "tc-or"\nformat = "tt"\noracle = "tt-ard-lu"',
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setitem(registry.TASKS, "bag", TASK)
    monkeypatch.setattr("rankfold.experiments.run.Architecture.of", lambda *args: Unwritten())
    folder = tmp_path / "experiments" / "bag"
    folder.mkdir(parents=True)
    (folder / "defaults.toml").write_text("epochs = 2\nfine_tune_epochs = 1\nbatch_size = 32\nlr = 0.02\n")
    for name, text in ROW.items():
        (folder / f"{name}.toml").write_text(text + "\n")
    places = Places(tmp_path / "experiments", tmp_path / "results", tmp_path / "runs", verify=False)
    plan = schedule(Request("bag", seeds=1), places)
    execute(plan, places, CPU, 1, lambda event: None)
    assert plan.failures == {}
    return places, {name: json.loads((places.results / "bag" / f"{name}-seed0.json").read_text()) for name in ROW}


class Unwritten:
    """Networks of tests are not part of the package."""

    def write(self, folder: Path) -> None:
        pass


def test_only_the_folded_layers_are_counted(results):
    _, found = results
    train_entries = 4 * 3 + 3 * 15 * 3 + 3 * 8
    for name, result in found.items():
        assert result["parameters"]["of"] == "layers"
        assert result["parameters"]["dense"] == ROWS * COLUMNS, name
    assert found["dense"]["parameters"]["final"] == ROWS * COLUMNS
    assert found["tt-fr"]["parameters"]["training"] == found["tt-fr"]["parameters"]["final"] == train_entries
    assert found["tt-ard-lu"]["parameters"]["training"] == 2 * train_entries + 6
    assert found["tt-tc-mr"]["parameters"]["final"] == train_entries
    assert found["tt-tc-or"]["ranks"]["after"] == found["tt-ard-lu"]["ranks"]["after"]


def test_the_dense_network_is_trained_and_never_saved(results):
    places, found = results
    first, last = found["dense"]["history"][0], found["dense"]["history"][-1]
    assert last["nll"] < first["nll"]
    assert not (places.runs / "bag" / "shared").exists()
    assert not (places.runs / "bag" / "dense-seed0").exists()
    assert (places.runs / "bag" / "tt-tc-mr-seed0" / "model").is_dir()
    assert [epoch["stage"] for epoch in found["tt-tc-mr"]["history"]] == ["dense", "dense", "fine-tune"]


def test_a_dense_network_that_is_not_saved_is_trained_once_in_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "_kept", {})
    epochs = []
    workshop = Workshop(TASK, load("test", CPU, None, False), tmp_path, tmp_path / "shared", Listener(epochs.append))
    spec = Spec("tc-mr", "tt", epochs=2, fine_tune_epochs=1, batch_size=32, lr=0.02)
    dense = {name: value.clone() for name, value in train(spec.dense(), workshop).model.state_dict().items()}
    tuned = train(spec, workshop).model.state_dict()
    again = train(spec.dense(), workshop).model.state_dict()
    assert [epoch.stage for epoch in epochs] == ["dense", "dense", "fine-tune"]
    assert not torch.equal(tuned["head.weight"], dense["head.weight"])  # tuned, and the kept one is not
    for name, value in dense.items():
        torch.testing.assert_close(again[name], value, rtol=0, atol=0)


class TwoTables(nn.Module):
    """A bag with padding and a table, of whose rows few are in the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, COLUMNS, mode="mean", padding_idx=7)
        self.table = nn.Embedding(ROWS, COLUMNS)
        self.head = nn.Linear(COLUMNS, 2)

    def forward(self, words: Tensor, one: Tensor) -> Tensor:
        return self.head(self.bag(words) + self.table(one))


def made_anew() -> TwoTables:
    """As a run makes it: on the meta device first."""
    with torch.device("meta"):
        model = TwoTables()
    torch.manual_seed(0)
    return materialized(model, CPU)


def two_tables_of(words: Tensor, one: Tensor) -> Examples:
    return Examples((words, one), (one % 2).long())


@pytest.mark.parametrize("first", [1, 2])
def test_training_the_rows_in_use_is_training_all_rows(tmp_path, first):
    """Adam leaves a row alone that never has a gradient; without this, nobody could tell how rows were trained."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, ROWS // 3, (128, 5), generator=generator) * 3 + first  # with 1 the padding is among them
    examples = two_tables_of(words.int(), torch.randint(20, (128,), generator=generator))
    spec = Spec("dense", epochs=3, batch_size=32, lr=0.02)
    task = Task(TwoTables, {}, load, too_large=True)
    seen = []
    workshop = Workshop(task, Data(examples, examples), tmp_path, tmp_path / "shared", Listener(seen.append))
    trained = train(spec, workshop)
    whole = made_anew()
    history = Training(whole, examples, spec, epochs=3, stage="dense", folder=None).run()
    initial = made_anew()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(trained.model.state_dict()[name], value)
        moved = (value != initial.state_dict()[name]).float().mean()
        assert (0.2 < moved < 0.5) if "bag" in name or "table" in name else moved == 1.0
    for epoch, expected, shown in zip(trained.history, history, seen, strict=True):
        assert epoch.nll == pytest.approx(expected.nll)
        assert epoch.parameters == shown.parameters == expected.parameters  # those of the whole network
    assert type(trained.model.bag) is nn.EmbeddingBag


def test_memory_is_asked_for_the_rows_in_use(monkeypatch):
    model = Bag()
    examples = Examples((torch.full((4, 5), 3), torch.ones(4)), torch.zeros(4))
    whole = sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(memory_check, "memory_of", lambda device: 4.0 * whole + 16 * (COLUMNS + 2 * COLUMNS + 2))
    with rows_in_use(model, examples):
        memory_check.check_memory_in_use(model, whole, CPU)
    with pytest.raises(ValueError, match="needs 0 GB for the 498 of its 498 parameters"):
        memory_check.check_memory_in_use(model, whole, CPU)


def test_the_initial_spread_is_the_folding_s():
    configs = TASK.tensor_configs(Spec("ard", "tt"), "bayes")
    assert configs["table"].init_std == 0.5
    assert configs["table"].max_rank == 3
    assert TASK.tensor_configs(Spec("ard", "ttm"), "bayes")["table"].init_std is None


def test_bfloat16_and_decay_are_settings_of_the_training(tmp_path):
    data = load("test", CPU, None, False)
    dtypes = []

    def loss(outputs, labels):
        dtypes.append(outputs.dtype)
        return nn.functional.cross_entropy(outputs, labels)

    losses = {}
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        model = Bag()
        seen = []
        model.head.register_forward_hook(lambda module, args, output, seen=seen: seen.append(output.dtype))
        spec = Spec("dense", epochs=2, batch_size=32, precision=precision, weight_decay=0.1)
        training = Training(model, data.train, spec, epochs=2, stage="dense", folder=None, loss=loss)
        assert {group["weight_decay"] for group in training.optimizer.param_groups} == {0.1}
        losses[precision] = [epoch.nll for epoch in training.run()]
        assert set(seen) == {torch.float32 if precision == "float32" else torch.bfloat16}
    assert set(dtypes) == {torch.float32}  # the loss is computed in full precision
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["bfloat16"] != losses["float32"]
