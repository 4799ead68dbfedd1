import copy
import json
import os
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import rankfold as rf
from rankfold.bayesian_tensor import replace_data, tensors_of
from rankfold.checkpoint import MANIFEST_FILE, TENSORS_FILE, load, save
from rankfold.likelihood import GaussianLikelihood

INFERENCE = ("bayes", "map", "fixed")
FORMATS = (rf.CP, rf.Tucker, rf.TT, rf.TTM)


def network(config, seed=0, width=30):
    torch.manual_seed(seed)
    return nn.Sequential(
        rf.Linear(24, width, config=config), nn.BatchNorm1d(width), nn.ReLU(), rf.Linear(width, 6, config=config)
    )


def cut(tensor, ranks):
    """Keep the last ranks of every group."""
    keep = [torch.arange(size - rank, size) for size, rank in zip(tensor.format.ranks, ranks, strict=True)]
    for parameters in tensor.factors.parameter_lists():
        for parameter, data in zip(parameters, tensor.format.restrict(list(parameters), keep), strict=True):
            replace_data(parameter, data.detach().clone())
    parts = [v[k] for v, k in zip(tensor.variances(), keep, strict=True)] if tensor.has_prior else []
    tensor.set_ranks(tensor.format.with_ranks(ranks), torch.cat([tensor.variance[:0], *parts]))


def pruned_network(config, seed=0):
    model = network(config, seed)
    for tensor in tensors_of(model).values():
        tensor.update_variance(0.9)
        cut(tensor, [1 + n % 3 for n in range(len(tensor.format.ranks))])
    return model


def assert_same(model, other):
    """Same state, same ranks and priors, and bit-identical outputs: the mean's and a sample's."""
    assert model.state_dict().keys() == other.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    for a, b in zip(tensors_of(model).values(), tensors_of(other).values(), strict=True):
        assert (a.format, a.max_ranks, a.prior, a.weak_std, a.num_updates) == (
            b.format,
            b.max_ranks,
            b.prior,
            b.weak_std,
            b.num_updates,
        )
        assert torch.equal(a.count, b.count)
    x = torch.randn(7, 24)
    for mode in (False, True):
        outputs = []
        for net in (model, other):
            torch.manual_seed(1)
            with torch.no_grad():
                outputs.append(copy.deepcopy(net).train(mode)(x))
        assert torch.equal(*outputs)


def unchanged(model):
    """A function that asserts that ``model`` still is as it was."""
    before, formats = copy.deepcopy(model.state_dict()), [t.format for t in tensors_of(model).values()]

    def check():
        assert [t.format for t in tensors_of(model).values()] == formats
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name

    return check


# Round trips ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inference", INFERENCE)
@pytest.mark.parametrize("config", FORMATS)
def test_a_pruned_model_loads_into_fresh_code(tmp_path, config, inference):
    config = partial(config, 4, inference=inference)
    model = pruned_network(config(prior=rf.HalfCauchy(0.123456789012345), weak_std=3.0))
    save(model, tmp_path / "small")
    fresh = network(config(), seed=5)
    assert load(fresh, tmp_path / "small") is fresh
    assert_same(model, fresh)
    assert fresh[0].tensor.format.ranks != fresh[0].tensor.max_ranks
    assert {m.weak_std for m in (fresh[0].bias_vector, fresh[3].bias_vector)} == {3.0}


@pytest.mark.parametrize("config", FORMATS)
def test_an_unpruned_model_loads_into_a_pruned_one(tmp_path, config):
    model, smaller = network(config(4)), pruned_network(config(4), seed=5)
    save(model, tmp_path)
    assert_same(model, load(smaller, tmp_path))


def test_a_trained_and_pruned_model_loads_and_goes_on_training(tmp_path):
    model = network(rf.TT(5))
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=1e-2))
    never = rf.Pruning(at=(), simplify_at=())
    ranks = rf.RankDetermination(model, optimizer, num_data=64, total_steps=30, pruning=never)
    x, y = torch.randn(64, 24), torch.randint(6, (64,))
    for _ in range(30):
        (F.cross_entropy(model(x), y) + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()
    middle = float(model[0].tensor.variance.median())
    assert rf.prune_(model, optimizer, rule=rf.VarianceRule(middle)) is not None
    save(model, tmp_path)
    fresh = load(network(rf.TT(5), seed=5), tmp_path)
    assert_same(model, fresh)
    assert fresh[0].tensor.num_updates == 30
    optimizer = torch.optim.Adam(rf.param_groups(fresh))
    ranks = rf.RankDetermination(fresh, optimizer, num_data=64, total_steps=2)
    (F.cross_entropy(fresh(x), y) + ranks.kl()).backward()
    optimizer.step()
    ranks.step()
    assert not torch.equal(fresh[0].tensor.variance, model[0].tensor.variance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes_are_kept(tmp_path, dtype):
    model = pruned_network(rf.TTM(4)).to(dtype).eval()
    save(model, tmp_path)
    fresh = load(network(rf.TTM(4), seed=5).to(dtype), tmp_path, device="cpu").eval()
    x = torch.randn(3, 24, dtype=dtype)
    assert torch.equal(model(x), fresh(x))
    assert load_file(tmp_path / TENSORS_FILE)["0.tensor.factors.mean.0"].dtype == dtype


def test_layers_that_stay_dense_and_the_noise_travel_along(tmp_path):
    def make():
        return nn.ModuleDict({"net": nn.Linear(3, 2), "noise": GaussianLikelihood(2, initial_std=0.5)})

    model, fresh = make(), make()
    with torch.no_grad():
        model["noise"].log_std.add_(1.0)
    save(model, tmp_path)
    load(fresh, tmp_path)
    assert torch.equal(fresh["noise"].log_std, model["noise"].log_std)
    assert torch.equal(fresh["net"].weight, model["net"].weight)


def tied(seed=0, tie=True):
    torch.manual_seed(seed)
    first, second = (rf.Linear(12, 12, config=rf.CP(4, in_dims=(3, 4), out_dims=(3, 4))) for _ in range(2))
    dense = nn.Linear(12, 12), nn.Linear(12, 12)
    if tie:
        second.tie_(first.tensor, transposed=False)
        dense[1].weight = dense[0].weight
    return nn.Sequential(first, second, *dense)


def test_shared_tensors_are_stored_once_and_stay_shared(tmp_path):
    model = tied()
    cut(model[0].tensor, (2,))
    save(model, tmp_path)
    stored = load_file(tmp_path / TENSORS_FILE)
    assert sum(name.endswith("tensor.variance") for name in stored) == 1
    assert "3.weight" not in stored
    fresh = load(tied(seed=5), tmp_path).eval()
    assert fresh[1].tensor is fresh[0].tensor
    x = torch.randn(3, 12)
    assert torch.equal(fresh(x), model.eval()(x))


@pytest.mark.parametrize("saved_tied", [True, False])
def test_tied_and_untied_models_are_not_confused(tmp_path, saved_tied):
    save(tied(tie=saved_tied), tmp_path)
    other = tied(seed=5, tie=not saved_tied)
    check = unchanged(other)
    with pytest.raises(ValueError, match="does not fit this model"):
        load(other, tmp_path)
    check()


def test_untied_dense_weights_are_not_loaded_into_tied_ones(tmp_path):
    save(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), tmp_path)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    other[1].weight = other[0].weight
    with pytest.raises(ValueError, match=r"0\.weight, 1\.weight are one tensor in the model only"):
        load(other, tmp_path)


def test_tensors_that_are_parts_of_one_memory_are_saved(tmp_path):
    model = nn.Linear(4, 3)
    memory = torch.randn(20)
    model.weight.data, model.bias.data = memory[:12].view(3, 4), memory[10:13]  # they even overlap
    save(model, tmp_path)
    fresh = load(nn.Linear(4, 3), tmp_path)
    assert torch.equal(fresh.weight, memory[:12].view(3, 4))
    assert torch.equal(fresh.bias, memory[10:13])


def test_the_manifest_is_readable_json(tmp_path):
    model = pruned_network(rf.TTM(4, prior=rf.HalfCauchy(0.01)))
    save(model, tmp_path)
    content = json.loads((tmp_path / MANIFEST_FILE).read_text())
    first = content["tensors"][0]
    assert content["format_version"] == 1
    assert content["rankfold_version"] == rf.__version__
    assert content["torch_version"] == torch.__version__
    assert (first["name"], first["format"], first["inference"]) == ("0.tensor", "TTM", "bayes")
    assert first["ranks"] == list(model[0].tensor.format.ranks)
    assert first["max_ranks"] == list(model[0].tensor.max_ranks)
    assert first["prior"] == {"name": "HalfCauchy", "eta": 0.01}
    assert sorted(os.listdir(tmp_path)) == sorted([MANIFEST_FILE, TENSORS_FILE])


# A save that is interrupted -------------------------------------------------------------------------


@pytest.mark.parametrize(("completed", "survivor"), [(0, "old"), (1, "new")])
def test_an_interrupted_save_leaves_a_whole_checkpoint(tmp_path, monkeypatch, completed, survivor):
    models = {"old": pruned_network(rf.CP(4)), "new": network(rf.CP(4), seed=3)}
    models["new"][0].tensor.num_updates = 17
    save(models["old"], tmp_path)
    (tmp_path / "notes.txt").write_text("keep me")
    done, replace = [], os.replace

    def failing(source, target):
        if len(done) == completed:
            raise KeyboardInterrupt
        done.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(KeyboardInterrupt):
        save(models["new"], tmp_path)
    monkeypatch.undo()
    assert_same(models[survivor], load(network(rf.CP(4), seed=5), tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted([MANIFEST_FILE, TENSORS_FILE, "notes.txt"])
    save(models["new"], tmp_path)
    assert_same(models["new"], load(network(rf.CP(4), seed=5), tmp_path))


def test_what_cannot_be_saved_leaves_the_old_checkpoint_alone(tmp_path):
    model = network(rf.CP(4))
    save(model, tmp_path)
    with pytest.raises(ValueError, match=r"cannot save a model on the meta device: 0\.tensor"):
        save(network(rf.CP(4)).to("meta"), tmp_path)
    with pytest.raises(TypeError, match="_extra_state is dict, not a tensor, and rankfold never pickles"):
        save(Stateful(), tmp_path)
    assert_same(model, load(network(rf.CP(4), seed=5), tmp_path))


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "model.pt").write_text("keep me")
    with pytest.raises(NotADirectoryError, match=r"model\.pt is a file; give a folder"):
        save(network(rf.CP(4)), tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_text() == "keep me"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_broken_parameters_are_saved_and_loaded_with_a_warning_that_names_them(tmp_path, value):
    model = network(rf.CP(4))
    model[1].running_mean.fill_(value)  # a buffer may hold what it likes, such as a mask of -inf
    with torch.no_grad():
        model[3].tensor.factors.mean[1][0] = value
    with pytest.warns(UserWarning, match=r"that hold NaN or infinity: 3\.tensor\.factors\.mean\.1$") as caught:
        save(model, tmp_path)
    assert caught[0].filename == __file__
    assert not load_file(tmp_path / TENSORS_FILE)["3.tensor.factors.mean.1"].isfinite().all()
    with pytest.warns(
        UserWarning, match=r"^loading param.* hold NaN or infinity: 3\.tensor\.factors\.mean\.1$"
    ) as caught:
        loaded = load(network(rf.CP(4), seed=1), tmp_path)
    assert caught[0].filename == __file__
    assert torch.equal(loaded[3].tensor.factors.mean[1], model[3].tensor.factors.mean[1]) == (value == torch.inf)


def test_numbers_that_the_dtype_cannot_hold_are_named(tmp_path):
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias.fill_(1e30)
    save(model, tmp_path)
    with pytest.warns(UserWarning, match="^loading parameters that hold NaN or infinity: bias$"):
        load(nn.Linear(2, 2).half(), tmp_path)


def test_numbers_of_one_byte_are_saved(tmp_path):
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn))
    save(model, tmp_path)
    assert load_file(tmp_path / TENSORS_FILE)["weight"].float().eq(1.0).all()


class Stateful(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)

    def get_extra_state(self):
        return {"anything": 1}


# Checkpoints that do not fit, or are damaged --------------------------------------------------------

OTHERS = {
    "dims": (rf.TTM(4, in_dims=(4, 6)), 30, r"in_dims is \(3, 8\) in the checkpoint, \(4, 6\) in the model"),
    "format": (rf.CP(4, in_dims=(3, 8)), 30, r"format is TTM in the checkpoint, CP in the model"),
    "size": (rf.TTM(4, in_dims=(3, 8)), 32, r"out_size is 30 in the checkpoint, 32 in the model"),
    "inference": (rf.TTM(4, in_dims=(3, 8), inference="map"), 30, r"inference is bayes in the checkpoint, map in the"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_architecture_is_refused_and_left_alone(tmp_path, case):
    config, width, message = OTHERS[case]
    save(nn.Sequential(rf.Linear(24, 30, config=rf.TTM(4, in_dims=(3, 8)))), tmp_path)
    other = nn.Sequential(rf.Linear(24, width, config=config))
    check = unchanged(other)
    with pytest.raises(ValueError, match=r"does not fit this model, which is unchanged:\n  0\.tensor: " + message):
        load(other, tmp_path)
    check()


def test_missing_and_additional_layers_are_named(tmp_path):
    save(network(rf.TTM(4)), tmp_path)
    fewer, more = network(rf.TTM(4))[:3], nn.Sequential(*network(rf.TTM(4)), rf.Linear(6, 4, config=rf.CP(2)))
    with pytest.raises(ValueError, match=r"3\.tensor: TTM in the checkpoint, missing in the model"):
        load(fewer, tmp_path)
    with pytest.raises(ValueError, match=r"4\.tensor: CP .* in the model, missing in the checkpoint"):
        load(more, tmp_path)
    wider = network(rf.TTM(4))
    wider[1] = nn.BatchNorm1d(31)
    check = unchanged(wider)
    with pytest.raises(ValueError, match=r"1\.weight: shape \[30\] in the checkpoint, \[31\] expected"):
        load(wider, tmp_path)
    check()
    save(nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))), tmp_path)
    with pytest.raises(ValueError, match="and 3 more"):
        load(nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))), tmp_path)


def rewrite_tensors(folder, change):
    file = folder / TENSORS_FILE
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def test_a_missing_tensor_is_named(tmp_path):
    save(network(rf.TTM(4)), tmp_path)
    rewrite_tensors(tmp_path, lambda tensors: tensors.pop("3.tensor.factors.log_std.1"))
    other = pruned_network(rf.TTM(4))
    check = unchanged(other)
    with pytest.raises(ValueError, match=r"3\.tensor\.factors\.log_std\.1: .* missing in the checkpoint"):
        load(other, tmp_path)
    check()


def test_a_tensor_that_does_not_fit_the_ranks_is_named(tmp_path):
    save(pruned_network(rf.CP(4)), tmp_path)
    rewrite_tensors(tmp_path, lambda tensors: tensors.update({"0.tensor.variance": torch.ones(4)}))
    other = network(rf.CP(4))
    check = unchanged(other)
    with pytest.raises(ValueError, match=r"0\.tensor\.variance: shape \[4\] in the checkpoint, \[1\] expected"):
        load(other, tmp_path)
    check()


@pytest.mark.parametrize("kept", [0, 5, 8, 200, -1])
def test_a_truncated_file_is_refused(tmp_path, kept):
    save(network(rf.CP(4)), tmp_path)
    content = (tmp_path / TENSORS_FILE).read_bytes()
    (tmp_path / TENSORS_FILE).write_bytes(content[:kept])
    other = network(rf.CP(4))
    check = unchanged(other)
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or damaged \("):
        load(other, tmp_path)
    check()


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def write_zip(file):
    torch.save({"weight": torch.ones(2), "bomb": Bomb()}, file)


def write_legacy(file):
    torch.save({"bomb": Bomb()}, file, _use_new_zipfile_serialization=False)


def write_pickle(file, protocol):
    file.write_bytes(pickle.dumps({"bomb": Bomb()}, protocol=protocol))


PICKLES = {"zip": write_zip, "legacy": write_legacy} | {
    f"protocol {n}": partial(write_pickle, protocol=n) for n in range(2, pickle.HIGHEST_PROTOCOL + 1)
}


@pytest.mark.parametrize("kind", PICKLES)
@pytest.mark.parametrize("inside", [True, False])
def test_a_pickle_is_named_and_never_loaded(tmp_path, kind, inside):
    save(network(rf.CP(4)), tmp_path)
    file = tmp_path / TENSORS_FILE
    PICKLES[kind](file)
    with pytest.raises(ValueError, match=r"model\.safetensors is a .*pickle.*, and rankfold never loads one"):
        load(network(rf.CP(4)), tmp_path if inside else file)


def test_a_header_that_starts_like_a_pickle_is_no_pickle(tmp_path):
    """A header of 0x0380 bytes makes the file begin with the bytes of pickle protocol 3."""
    header = b'{"__metadata__":{"format":"pt"}}'.ljust(0x0380)
    save(nn.Sequential(), tmp_path)
    (tmp_path / TENSORS_FILE).write_bytes(len(header).to_bytes(8, "little") + header)
    load(nn.Sequential(), tmp_path)


def test_a_missing_folder_or_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no rankfold checkpoint at .*nowhere: .*nowhere does not exist"):
        load(network(rf.CP(4)), tmp_path / "nowhere")
    for file in (MANIFEST_FILE, TENSORS_FILE):
        save(network(rf.CP(4)), tmp_path / file)
        (tmp_path / file / file).unlink()
        with pytest.raises(FileNotFoundError, match=f"{file} does not exist"):
            load(network(rf.CP(4)), tmp_path / file)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(NotADirectoryError, match="is a file; a rankfold checkpoint is the folder"):
        load(network(rf.CP(4)), tmp_path / "text")


def edit(folder, change):
    file = folder / MANIFEST_FILE
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_a_newer_format_is_refused(tmp_path):
    save(network(rf.CP(4)), tmp_path)
    edit(tmp_path, lambda content: content.update(format_version=2, something_new=[1]))
    with pytest.raises(ValueError, match=r"rankfold\.json has format version 2, .* up to 1; update rankfold"):
        load(network(rf.CP(4)), tmp_path)


DAMAGE = {
    "no version": lambda c: c.pop("format_version"),
    "no tensors": lambda c: c.pop("tensors"),
    "a version that is text": lambda c: c.update(format_version="one"),
    "tensors that are a number": lambda c: c.update(tensors=3),
    "a tensor without ranks": lambda c: c["tensors"][0].pop("ranks"),
    "a rank of 0": lambda c: c["tensors"][0].update(ranks=[0]),
    "ranks that are text": lambda c: c["tensors"][0].update(ranks="3"),
    "too few ranks": lambda c: c["tensors"][0].update(ranks=[]),
    "an unknown field": lambda c: c["tensors"][0].update(colour="red"),
    "an unknown prior": lambda c: c["tensors"][0].update(prior={"name": "Gamma"}),
    "a prior that is text": lambda c: c["tensors"][0].update(prior="LogUniform"),
    "a negative eta": lambda c: c["tensors"][0].update(prior={"name": "HalfCauchy", "eta": -1.0}),
    "a weak_std of 0": lambda c: c["tensors"][0].update(weak_std=0),
    "updates that are text": lambda c: c["tensors"][0].update(num_updates="3"),
    "a name that is a number": lambda c: c["tensors"][0].update(name=3),
    "shared that is a list": lambda c: c.update(shared=["a"]),
    "a bias std of -1": lambda c: c.update(weak_stds={"0.bias_vector": -1}),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_manifest_is_refused(tmp_path, kind):
    save(network(rf.CP(4)), tmp_path)
    edit(tmp_path, DAMAGE[kind])
    with pytest.raises(ValueError, match=r"rankfold\.json is damaged \("):
        load(network(rf.CP(4)), tmp_path)


@pytest.mark.parametrize("text", [b"", b'{"format_version": 1', b"[]", b"\xff\xfe", b"[" * 100_000, b"\x80\x04K\x01."])
def test_text_that_is_no_manifest_is_refused(tmp_path, text):
    save(network(rf.CP(4)), tmp_path)
    (tmp_path / MANIFEST_FILE).write_bytes(text)
    with pytest.raises(ValueError, match=r"rankfold\.json is damaged \("):
        load(network(rf.CP(4)), tmp_path)


def test_a_model_without_values_is_not_loaded_into(tmp_path):
    save(network(rf.CP(4)), tmp_path)
    with pytest.raises(ValueError, match="cannot load into a model on the meta device"):
        load(network(rf.CP(4)).to("meta"), tmp_path)


def test_a_checkpoint_can_be_moved_and_given_as_text(tmp_path):
    model = network(rf.CP(4))
    save(model, str(tmp_path / "a" / "b"))
    shutil.move(tmp_path / "a" / "b", tmp_path / "c")
    assert_same(model, load(network(rf.CP(4), seed=5), str(tmp_path / "c")))


# Plain state dicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("inference", INFERENCE)
@pytest.mark.parametrize("config", FORMATS)
def test_a_plain_state_dict_brings_its_ranks(config, inference):
    config = partial(config, 4, inference=inference)
    small, large = pruned_network(config()), network(config(), seed=5)
    x = torch.randn(5, 24)
    for source, target in ((small, network(config(), seed=6)), (large, pruned_network(config(), seed=7))):
        parameters = list(target.parameters())
        target.load_state_dict(source.state_dict())
        assert [id(p) for p in target.parameters()] == [id(p) for p in parameters]
        assert torch.equal(source.eval()(x), target.eval()(x))
        assert torch.equal(source[0].tensor.count, target[0].tensor.count)
        target.train()(x).sum().backward()
        assert all(p.grad.shape == p.shape for p in target.parameters())


def test_a_state_dict_can_be_assigned():
    small, target = pruned_network(rf.TT(4)), network(rf.TT(4), seed=5)
    target.load_state_dict(small.state_dict(), assign=True)
    x = torch.randn(5, 24)
    assert torch.equal(small.eval()(x), target.eval()(x))


def drop(name):
    return lambda state: state.pop(name)


def put(name, value):
    return lambda state: state.update({name: value})


WRONG = {
    "a mean of another size": (put("0.tensor.factors.mean.0", torch.ones(7, 2)), "size mismatch for 0.tensor.factors"),
    "a mean without ranks": (put("0.tensor.factors.mean.0", torch.ones(3, 0)), "size mismatch for 0.tensor.factors"),
    "a mean missing": (drop("0.tensor.factors.mean.1"), "Missing key.*0.tensor.factors.mean.1"),
    "a log-std missing": (drop("0.tensor.factors.log_std.0"), "Missing key.*0.tensor.factors.log_std.0"),
    "a log-std of other ranks": (put("0.tensor.factors.log_std.0", torch.ones(3, 3)), "size mismatch for 0.tensor"),
    "λ of other ranks": (put("0.tensor.variance", torch.ones(3)), "size mismatch for 0.tensor.variance"),
    "no tensor at all": (put("0.tensor.factors.mean.0", "text"), "expected torch.Tensor"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_state_gives_torchs_error_and_resizes_nothing(kind):
    change, message = WRONG[kind]
    state = dict(pruned_network(rf.CP(4)).state_dict())
    change(state)
    model = network(rf.CP(4), seed=5)
    tensor = model[0].tensor
    before = tensor.format
    with pytest.raises(RuntimeError, match=f"(?s){message}"):
        model.load_state_dict(state)
    assert tensor.format == before
    shapes = {name: tuple(value.shape) for name, value in tensor.state_dict().items()}
    assert shapes == tensor.state_shapes(before)
    model(torch.randn(5, 24)).sum().backward()


def test_means_of_a_bayesian_state_load_into_a_map_model_when_asked():
    bayes, point = pruned_network(rf.TT(4)), network(rf.TT(4, inference="map"), seed=5)
    result = point.load_state_dict(bayes.state_dict(), strict=False)
    assert result.missing_keys == []
    assert all("log_std" in name for name in result.unexpected_keys)
    x = torch.randn(5, 24)
    assert torch.equal(bayes.eval()(x), point.eval()(x))


@pytest.mark.parametrize("make", [torch.optim.Adam, partial(torch.optim.SGD, lr=0.1, momentum=0.9)])
@pytest.mark.parametrize("shrinking", [True, False])
def test_an_optimizer_with_state_of_other_ranks_fails_until_its_state_is_loaded_too(make, shrinking):
    """As ``load`` says: a step with state of the old shapes is an error of torch's, never a silent broadcast."""

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.randn(5, 24)).square().sum().backward()
        optimizer.step()

    models = [pruned_network(rf.CP(4)), network(rf.CP(4), seed=5)]
    source, target = models if shrinking else models[::-1]
    optimizers = [make(model.parameters()) for model in (source, target)]
    for model, optimizer in zip((source, target), optimizers, strict=True):
        step(model, optimizer)
    target.load_state_dict(source.state_dict())
    with pytest.raises(RuntimeError, match=r"size of tensor|shape"):
        step(target, optimizers[1])
    target.load_state_dict(source.state_dict())
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    step(target, optimizers[1])


def test_a_tensor_by_itself_can_be_saved(tmp_path):
    tensor, fresh = (network(rf.Tucker(3), seed)[0].tensor for seed in (0, 1))
    cut(tensor, (1, 2, 2, 1)[: len(tensor.format.ranks)])
    save(tensor, tmp_path)
    assert torch.equal(load(fresh, tmp_path).eval().matrix(), tensor.eval().matrix())


@pytest.mark.parametrize("way", ["to_empty", "assign"])
def test_what_no_state_holds_is_filled_in(way, tmp_path):
    """How many entries each λ governs: wrong, and λ would be off by any factor."""
    config = rf.TTM(max_rank=4)
    trained = nn.Sequential(rf.Linear(64, 32, config=config))
    save(trained, tmp_path)
    blank = nn.Sequential(rf.Linear(64, 32, config=config, device="meta"))
    if way == "to_empty":
        blank = blank.to_empty(device="cpu")
        blank[0].tensor.count.fill_(float("nan"))
        load(blank, tmp_path)
    else:
        blank.load_state_dict(trained.state_dict(), assign=True)
    torch.testing.assert_close(blank[0].tensor.count, trained[0].tensor.count)
    for model in (blank, trained):
        model[0].tensor.update_variance(1.0)
    torch.testing.assert_close(blank[0].tensor.variance, trained[0].tensor.variance)


def test_settings_that_are_numbers_of_numpy_can_be_saved(tmp_path) -> None:
    config = rf.CP(3, prior=rf.HalfCauchy(np.float32(0.1)), weak_std=np.float32(1.5), init_std=np.float64(0.2))
    rf.save(nn.Sequential(rf.Linear(12, 5, config=config)), tmp_path)
    again = rf.load(nn.Sequential(rf.Linear(12, 5, config=rf.CP(3, prior=rf.HalfCauchy()))), tmp_path)
    assert again[0].tensor.prior.eta == pytest.approx(0.1)
    assert type(config.weak_std) is type(config.prior.eta) is float
