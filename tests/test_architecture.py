"""A checkpoint becomes a network again: the function it names, and the factors it holds."""

import json

import pytest
import torch
from models.resnet import ResNet
from models.text import TextClassifier
from torch import nn

import rankfold as rf
from rankfold.architecture import Architecture, Input, find_network, rebuild
from rankfold.bayesian_tensor import tensors_of
from rankfold.demo import classifier
from rankfold.pruning.cutting import cut_dead_ranks

FORMATS = {"cp": rf.CP(6), "tucker": rf.Tucker(3), "tt": rf.TT(5), "ttm": rf.TTM(5)}


def trained(model, config, **options):
    """Tensorized, with one rank of each group cut."""
    rf.tensorize_(model, config, **options)
    dead = {n: [torch.arange(g.size) == 0 for g in t.format.rank_groups] for n, t in tensors_of(model).items()}
    cut_dead_ranks(model, dead)
    return model.eval()


@pytest.mark.parametrize("format", FORMATS)
def test_convolutions_and_linear_layers_are_rebuilt_at_their_ranks(format, tmp_path):
    model = trained(ResNet(), FORMATS[format])
    rf.save(model, tmp_path)
    again = rebuild(ResNet(), tmp_path).eval()
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(again(x), model(x))
    assert {n: t.format for n, t in tensors_of(again).items()} == {n: t.format for n, t in tensors_of(model).items()}


def test_foldings_and_priors_of_ones_own_are_rebuilt(tmp_path):
    own = rf.CP(5, in_dims=(8, 8), out_dims=(2, 8, 16), prior=rf.HalfCauchy(0.1), inference="map")
    model = trained(classifier(), None, overrides={"layer1": own})
    rf.save(model, tmp_path)
    again = rebuild(classifier(), tmp_path).eval()
    x = torch.randn(2, 64)
    assert torch.equal(again(x), model(x))
    assert again.layer1.tensor.prior == rf.HalfCauchy(0.1)
    assert again.layer1.tensor.max_ranks == (5,)
    assert isinstance(again.layer2, nn.Linear)


def test_recurrent_layers_and_embeddings_are_rebuilt(tmp_path):
    model = trained(TextClassifier(), rf.TTM(4), filter_fn=(nn.Embedding, nn.LSTM))
    rf.save(model, tmp_path)
    again = rebuild(TextClassifier(), tmp_path).eval()
    tokens = torch.randint(200, (2, 8))
    assert torch.equal(again(tokens), model(tokens))


class Tied(nn.Module):
    """A table of words that also reads the words off."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(120, 32)
        self.head = nn.Linear(32, 120, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(self.words(tokens))


def test_tied_layers_are_rebuilt_tied(tmp_path):
    model = trained(Tied(), rf.TTM(4))
    rf.save(model, tmp_path)
    again = rebuild(Tied(), tmp_path).eval()
    tokens = torch.randint(120, (2, 8))
    assert torch.equal(again(tokens), model(tokens))
    assert again.head.tensor is again.words.tensor


def test_networks_that_are_dense_or_tensorized_already_are_loaded(tmp_path):
    x = torch.randn(2, 64)
    dense, factored = classifier(), trained(classifier(), rf.TT(4))
    rf.save(dense, tmp_path / "dense")
    rf.save(factored, tmp_path / "factored")
    assert torch.equal(rebuild(classifier(), tmp_path / "dense")(x), dense(x))
    again = rebuild(rf.tensorize_(classifier(), rf.TT(4)), tmp_path / "factored").eval()
    assert torch.equal(again(x), factored(x))


def test_another_network_is_refused(tmp_path):
    rf.save(trained(classifier(), rf.TT(4)), tmp_path)
    with pytest.raises(ValueError, match="factors of the layer layer1, which this Sequential does not have"):
        rebuild(nn.Sequential(nn.Linear(64, 10)), tmp_path)


# The file ----------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    written = Architecture.of(classifier, [torch.zeros(5, 64), torch.zeros(5, 3, dtype=torch.int64)])
    assert written.network == "rankfold.demo:classifier"
    assert written.inputs == (Input((64,)), Input((3,), "int64"))
    written.write(tmp_path)
    assert Architecture.read(tmp_path) == written
    assert find_network(written.network) is classifier


def test_a_folder_may_say_nothing(tmp_path):
    assert Architecture.read(tmp_path) is None


def test_code_that_a_file_names_is_not_run(tmp_path):
    (tmp_path / "architecture.json").write_text(json.dumps({"network": "os:abort", "inputs": []}))
    with pytest.raises(ValueError, match=r"architecture\.json names os:abort, which is no part of rankfold"):
        Architecture.read(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"network": "rankfold.demo:classifier"}', '{"network": "rankfold.x:y", "inputs": [{"a": 1}]}']
)
def test_a_damaged_file_is_named(text, tmp_path):
    (tmp_path / "architecture.json").write_text(text)
    with pytest.raises(ValueError, match=r"architecture\.json is damaged"):
        Architecture.read(tmp_path)


def test_a_function_without_a_name_of_its_own_is_refused():
    with pytest.raises(ValueError, match="no function"):
        Architecture.of(lambda: classifier(), [torch.zeros(1, 64)])


@pytest.mark.parametrize("name", ["", "nowhere:net", "rankfold.demo:absent", "rankfold.demo", ":net"])
def test_a_function_that_is_not_there_is_named(name):
    with pytest.raises(ValueError, match=r"there is no function.*package.module:function"):
        find_network(name)


def test_something_that_is_no_function_is_refused():
    with pytest.raises(ValueError, match="must be a function that makes the network, got int"):
        find_network("rankfold.demo:HIDDEN")


@pytest.mark.parametrize("text", ["", "x", "3x", "0x3", "-1", "3:float64", "3:", "1,2"])
def test_inputs_that_mean_nothing_are_refused(text):
    with pytest.raises(ValueError, match="input must"):
        Input.parse(text)


def test_examples_have_a_batch_and_valid_indices():
    assert Input.parse("3x4").example(5).shape == (5, 3, 4)
    assert Input.parse("3x4:int32").example(5).dtype == torch.int32
    assert not Input.parse("7:int64").example(2).any()
