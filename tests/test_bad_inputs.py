"""What is given wrongly is refused where it is given: the error names it, what was expected and what to do."""

import math
import warnings

import pytest
import torch
from torch import nn

import rankfold as rf
from rankfold import uncertainty
from rankfold.distributed import average_gradients, replicate_, tensorized_parameters
from rankfold.export import export_onnx, export_program
from rankfold.integrations.settings import Settings

X = torch.ones(2, 8)


def model():
    return nn.Sequential(rf.Linear(8, 6, config=rf.CP(3)), nn.ReLU(), nn.Linear(6, 2))


def dense():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def determination(network=None, **options):
    network = network or model()
    optimizer = torch.optim.Adam(rf.param_groups(network))
    return rf.RankDetermination(network, optimizer, **{"num_data": 10, "total_steps": 10} | options)


def draw(network):
    with rf.sampled(network):
        pass


# Models ------------------------------------------------------------------------------------------------

TAKE_A_MODEL = {
    "accounting": rf.accounting,
    "average_gradients": average_gradients,
    "export_onnx": lambda m: export_onnx(m, "unused.onnx", X),
    "export_program": lambda m: export_program(m, X),
    "load": lambda m: rf.load(m, "unused"),
    "param_groups": rf.param_groups,
    "plan": lambda m: rf.plan(m, rf.CP(2)),
    "predict": lambda m: rf.predict(m, X),
    "predictive_statistics": lambda m: uncertainty.predictive_statistics(m, X),
    "prune_": rf.prune_,
    "replicate_": replicate_,
    "report": rf.report,
    "rewrap": rf.rewrap,
    "sampled": draw,
    "save": lambda m: rf.save(m, "unused"),
    "tensorize_": lambda m: rf.tensorize_(m, rf.CP(2)),
    "tensorized_parameters": tensorized_parameters,
    "to_dense": rf.to_dense,
    "update_bn": lambda m: rf.update_bn(m, [X]),
}


@pytest.mark.parametrize("given", [None, "model.pt", [nn.Linear(2, 2)], {}], ids=["None", "path", "list", "dict"])
@pytest.mark.parametrize("name", sorted(TAKE_A_MODEL))
def test_what_is_no_model_is_named(name, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "load":
        rf.save(nn.Linear(2, 2), "unused")
    with pytest.raises(TypeError, match=rf"model must be a torch\.nn\.Module, got {type(given).__name__}"):
        TAKE_A_MODEL[name](given)
    assert not list(tmp_path.glob("*.onnx"))


@pytest.mark.parametrize(
    ("use", "action"),
    [
        (lambda m: determination(m), "train"),
        (lambda m: export_program(m, X), "export"),
        (lambda m: rf.save(m, "unused"), "save"),
    ],
)
def test_a_model_without_values_is_refused(use, action, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=rf"cannot {action} a model on the meta device: 0\.tensor.* give it some first"
    ):
        use(model().to("meta"))
    assert not list(tmp_path.iterdir())


# Numbers -----------------------------------------------------------------------------------------------

NUMBERS = {
    "check_every": lambda n: determination(check_every=n),
    "eta": lambda n: rf.HalfCauchy(n) if n is not None else rf.HalfCauchy("None"),
    "init_std": lambda n: rf.CP(2, init_std="None" if n is None else n),
    "initial_std": lambda n: rf.GaussianLikelihood(initial_std=n),
    "kl_weight": lambda n: determination(kl_weight=n),
    "lr": lambda n: rf.param_groups(model(), lr=n),
    "max_padding": lambda n: rf.CP(2, max_padding=n),
    "num_data": lambda n: determination(num_data=n),
    "patience": lambda n: rf.Pruning(patience=n),
    "checks": lambda n: rf.Pruning(checks=n),
    "step_size": lambda n: determination(step_size=n),
    "weak_std": lambda n: rf.CP(2, weak_std=n),
    "weight_decay": lambda n: rf.param_groups(model(), weight_decay=n),
    "in_features": lambda n: rf.Linear(n, 6, config=rf.CP(2)),
    "out_features": lambda n: rf.Linear(8, n, config=rf.CP(2)),
    "num_embeddings": lambda n: rf.Embedding(n, 6, config=rf.CP(2)),
    "embedding_dim": lambda n: rf.EmbeddingBag(8, n, config=rf.CP(2)),
    "in_channels": lambda n: rf.Conv1d(n, 6, 3, config=rf.CP(2)),
    "out_channels": lambda n: rf.Conv2d(4, n, 3, config=rf.CP(2)),
    "groups": lambda n: rf.Conv2d(4, 6, 3, groups=n, config=rf.CP(2)),
    "kernel_size": lambda n: rf.Conv2d(4, 6, n, config=rf.CP(2)),
    "stride": lambda n: rf.Conv2d(4, 6, 3, stride=n, config=rf.CP(2)),
    "dilation": lambda n: rf.Conv1d(4, 6, 3, dilation=n, config=rf.CP(2)),
    "padding": lambda n: rf.Conv2d(4, 6, 3, padding=(n, 1), config=rf.CP(2)),
    "padding_idx": lambda n: rf.Embedding(8, 6, padding_idx="None" if n is None else n, config=rf.CP(2)),
}


@pytest.mark.parametrize("number", [None, "a", math.nan, math.inf, -9, [], (2, 2, 2)], ids=repr)
@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_numbers_are_refused_by_their_name(name, number):
    with pytest.raises(ValueError, match=rf"{name} must .*got "):
        NUMBERS[name](number)


@pytest.mark.parametrize("dtype", ["float32", torch.int64, torch.complex64, 3], ids=str)
def test_dtypes_are_floating_point(dtype):
    with pytest.raises(TypeError, match=r"dtype must be a floating-point one such as torch\.float32, got"):
        rf.Linear(8, 6, config=rf.CP(2), dtype=dtype)


# Everything else ---------------------------------------------------------------------------------------

LINEAR = rf.Linear(8, 6, config=rf.TTM(2))
EVEN, LABELS = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])
NAN = torch.full((8, 6), math.nan)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LINEAR(None), TypeError, "expected a tensor as input, got NoneType"),
        (lambda: LINEAR([1.0] * 8), TypeError, "expected a tensor as input, got list"),
        (lambda: LINEAR(torch.tensor(1.0)), ValueError, r"expected 8 input features.*got shape \(\)"),
        (lambda: LINEAR(X.long()), TypeError, r"expected floating-point .*got torch.int64; convert .*\.float\(\)"),
        (lambda: rf.Conv2d(4, 6, 3, config=rf.CP(2))(None), TypeError, "expected a tensor as input"),
        (lambda: rf.Recurrent(nn.GRU(8, 6), rf.CP(2))(None), TypeError, "expected a tensor as input"),
        (lambda: rf.Embedding(9, 6, config=rf.CP(2))([1]), TypeError, "indices must be a tensor of int32 or int64"),
        (lambda: rf.Linear(8, 6, config=rf.CP(2), matrix=NAN), ValueError, "start from holds NaN or infinity; load"),
        (lambda: rf.Linear(8, 6, config=rf.CP(2), matrix=NAN.to("meta")), ValueError, "no values, on the meta device"),
        (lambda: rf.tensorize_(dense(), rf.CP(2), overrides="0"), TypeError, "overrides must be a dictionary.*'0'"),
        (lambda: rf.prune_(model(), rule="x"), TypeError, "rule must be a rule such as .*got 'x'"),
        (lambda: determination().prune(rf.VarianceRule), TypeError, "rule must be a rule such as"),
        (lambda: rf.Pruning(at=("a",)), ValueError, r"at must hold fractions of total_steps in \(0, 1\]"),
        (lambda: rf.predict(model(), X, transform=3), TypeError, "transform must be a function .*got 3"),
        (
            lambda: rf.predict(model(), X, transform=lambda y: None),
            TypeError,
            "transform must return a tensor",
        ),
        (lambda: rf.predict(model(), X, seed=True), TypeError, "seed must be an integer or None, got True"),
        (lambda: rf.update_bn(nn.BatchNorm1d(8), [None]), TypeError, "batch 0 must be a tensor, .*got None"),
        (lambda: rf.GaussianLikelihood()(X, None), TypeError, "target must be a tensor, got NoneType"),
        (lambda: rf.CapturedStep(lambda: X)(), TypeError, r"a step is called with tensors, got \[\]"),
        (lambda: uncertainty.score(EVEN.tolist(), LABELS), TypeError, "probabilities must be a tensor, got list"),
        (lambda: uncertainty.score(EVEN, LABELS.tolist()), TypeError, "labels must be a tensor, got list"),
        (lambda: uncertainty.calibration_bins(2 * EVEN, LABELS), ValueError, "sum to 1; apply a softmax"),
        (lambda: uncertainty.calibration_bins(EVEN, LABELS[:2]), ValueError, r"got \(4, 3\) and \(2,\)"),
        (lambda: uncertainty.ood_auroc([1], [2]), TypeError, "must be a tensor of scores, got list"),
        (lambda: uncertainty.predictive_statistics(model()), ValueError, r"inputs must be tensors .*got \[\]"),
        (lambda: uncertainty.predictive_statistics(model(), None), ValueError, "got \\['NoneType'\\]"),
        (lambda: export_program(model(), 3), TypeError, "example_inputs must be a tensor or several, got int"),
    ],
)
def test_it_is_said_what_was_expected(call, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        call()


@pytest.mark.parametrize("steps", [-1, "a", 1.5])
def test_a_damaged_state_leaves_the_determination_as_it_was(steps):
    ranks = determination()
    with pytest.raises(ValueError, match="num_steps of the saved state must be 0 or a positive integer"):
        ranks.load_state_dict(ranks.state_dict() | {"num_steps": steps})
    assert ranks.num_steps == 0


def test_a_state_from_beyond_the_last_step():
    ranks = determination(total_steps=10)
    ranks.load_state_dict(ranks.state_dict() | {"num_steps": 11})  # training may go on past the end
    assert ranks.num_steps == 11


def test_numbers_that_changed_since_a_state_was_saved_are_pointed_out():
    state = determination(total_steps=300).state_dict() | {"num_steps": 40}
    ranks = determination(total_steps=600, kl_weight=3)
    found = (
        r"with total_steps=300, warmup_steps=90, kl_weight=1.0, and goes on with total_steps=600, warmup_steps=180, "
    )
    with pytest.warns(UserWarning, match=found):
        ranks.load_state_dict(state)
    assert ranks.num_steps == 40


def test_a_state_of_an_earlier_version_without_numbers_and_scales_is_taken():
    ranks = determination(total_steps=300)
    old = {key: value for key, value in ranks.state_dict().items() if key not in ("numbers", "eta")}
    ranks.load_state_dict(old | {"num_steps": 40})
    assert ranks.num_steps == 40


# Found by trying ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_is_broken_before_training(value):
    network = model()
    with torch.no_grad():
        network[2].bias[0] = value
    broken = r"a model that holds NaN or infinity, in 2\.bias; make it anew, or load a good one"
    with pytest.raises(ValueError, match=f"cannot train {broken}"):
        determination(network)
    with pytest.raises(ValueError, match=f"cannot prune {broken}"):
        rf.prune_(network)
    with pytest.raises(ValueError, match=f"cannot update the statistics of {broken}"):
        rf.update_bn(nn.Sequential(*network, nn.BatchNorm1d(2)), [X])


def test_a_matrix_that_is_no_tensor():
    with pytest.raises(TypeError, match="the matrix to start from must be a tensor, got list"):
        rf.Linear(8, 6, config=rf.CP(3), matrix=[[1.0]])


def test_progress_that_cannot_be_called():
    with pytest.raises(TypeError, match="progress must be a function of a name, a number and a total, got 3"):
        rf.tensorize_(dense(), rf.CP(2), progress=3)


def test_an_optimizer_of_another_model_has_nothing_to_cut():
    other = torch.optim.SGD(model().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="the optimizer has no parameter of this model; give the one that trains it"):
        rf.prune_(model(), other)


PATHS = {
    "save": (lambda path: rf.save(model(), path), "a folder, or '.' for the current one"),
    "load": (lambda path: rf.load(model(), path), "a folder, or '.' for the current one"),
    "export_onnx": (lambda path: export_onnx(model(), path, X), "a file, such as model.onnx"),
}


@pytest.mark.parametrize("name", sorted(PATHS))
def test_a_path_that_is_none(name):
    use, remedy = PATHS[name]
    with pytest.raises(ValueError, match=f"^the path is empty; name {remedy}$"):
        use("")
    for path in (None, 3, b"x"):
        kind = type(path).__name__
        with pytest.raises(TypeError, match=rf"path must be a string or a pathlib\.Path, got {kind}; name {remedy}"):
            use(path)


@pytest.mark.parametrize("scaler", ["x", 2.0, torch.ones(())], ids=["str", "float", "Tensor"])
def test_what_scales_no_gradients(scaler):
    ranks = determination()
    kind = type(scaler).__name__
    with pytest.raises(TypeError, match=rf"scaler must be a torch\.amp\.GradScaler, got {kind}; leave it out"):
        ranks.kl_backward(scaler)
    ranks.kl_backward(torch.amp.GradScaler("cpu", enabled=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the KL was counted once
        ranks.optimizers[0].step()
        ranks.step()


def test_a_folder_in_the_place_of_a_file_of_a_checkpoint(tmp_path):
    rf.save(model(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ValueError, match=r"model\.safetensors is no file; save the model again"):
        rf.load(model(), tmp_path)


@pytest.mark.parametrize("numbers", [{"total_steps": -1}, {"num_data": 0}, {"total_steps": 1.5}])
def test_a_callback_refuses_numbers_when_it_is_made(numbers):
    (name,) = numbers
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got {numbers[name]}"):
        Settings(**{"num_data": None, "total_steps": None} | numbers, options={})
