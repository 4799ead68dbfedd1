"""Models on the meta device: what stays dense is initialised, and what cannot be is named."""

import subprocess
import sys
import textwrap

import pytest
import torch
from models import CASES
from torch import nn

from rankfold.config import CP, TTM
from rankfold.surgery.tensorize import tensorize_


def on_meta(build) -> nn.Module:
    with torch.device("meta"):
        return build()


@pytest.mark.parametrize("name", [name for name in CASES if name != "bert"])
def test_models_on_meta_come_alive(name):
    case = CASES[name]
    model = tensorize_(on_meta(case.build), TTM(4), case.filter_fn)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert case.call(model).isfinite().all()
    case.loss(model).backward()


def dense_rest() -> nn.Module:
    return nn.Sequential(
        nn.Linear(40, 40),
        nn.Linear(3, 3),
        nn.BatchNorm1d(5),
        nn.LayerNorm(5),
        nn.GroupNorm(1, 5),
        nn.PReLU(),
        nn.LSTM(3, 3),
        nn.MultiheadAttention(4, 2),
        nn.Bilinear(2, 3, 4),
    )


def test_the_dense_rest_is_initialised_as_by_its_constructors():
    torch.manual_seed(0)
    fresh, model = dense_rest(), tensorize_(on_meta(dense_rest), CP(2), "0")
    for (name, expected), (_, tensor) in zip(
        fresh[1:].state_dict().items(), model[1:].state_dict().items(), strict=True
    ):
        assert tensor.shape == expected.shape, name
        assert tensor.dtype == expected.dtype, name
        # constants are the same; random values have the same spread and are not the same numbers
        if expected.unique().numel() <= 1:
            torch.testing.assert_close(tensor, expected)
        else:
            assert tensor.abs().max() <= 2 * expected.abs().max(), name
            assert tensor.std() > 0, name


def test_a_recurrent_layer_that_stays_dense_works():
    model = tensorize_(on_meta(dense_rest), CP(2), "0")
    output, _ = model[6](torch.randn(4, 2, 3))
    output.sum().backward()
    assert all(p.grad is not None for p in model[6].parameters())


def test_tied_dense_weights_stay_tied():
    def build():
        first, second = nn.Linear(6, 6), nn.Linear(6, 6)
        second.weight = first.weight
        return nn.Sequential(first, second, nn.Linear(40, 40))

    model = tensorize_(on_meta(build), CP(2), "2")
    assert model[0].weight is model[1].weight
    assert not model[0].weight.is_meta


def test_a_shared_bias_stays_shared():
    def build():
        chosen, kept = nn.Linear(40, 40), nn.Linear(3, 40)
        kept.bias = chosen.bias
        return nn.ModuleList([chosen, kept])

    model = tensorize_(on_meta(build), CP(2), "0")
    assert model[1].bias is model[0].bias_vector.entries.mean[0]
    assert not model[1].bias.is_meta


def test_flags_and_dtype_of_the_rest_are_kept():
    model = on_meta(dense_rest).to(torch.bfloat16).eval()
    model[1].weight.requires_grad_(False)
    tensorize_(model, CP(2), "0")
    assert not model[1].weight.requires_grad
    assert model[1].bias.requires_grad
    assert model[1].weight.dtype == model[0].tensor.factors.mean[0].dtype == torch.bfloat16
    assert not any(module.training for module in model.modules())


def test_values_that_are_real_already_are_kept():
    model = nn.Sequential(nn.Linear(40, 40, device="meta"), nn.Linear(3, 3))
    before = model[1].weight.detach().clone()
    tensorize_(model, CP(2), "0")
    torch.testing.assert_close(model[1].weight.detach(), before, rtol=0, atol=0)


class Positions(nn.Module):
    """A buffer that only the constructor fills."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.arange(5.0))


class HalfReset(Positions):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.arange(5))
        self.scale = nn.Parameter(torch.empty(3))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)


class FullReset(HalfReset):
    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.angles = torch.arange(5.0)
        self.steps.copy_(torch.arange(5))


class PlainTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(5.0)


class OwnParameter(nn.Sequential):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.token = nn.Parameter(torch.zeros(3))


def test_buffers_that_reset_parameters_fills_are_recovered():
    model = tensorize_(on_meta(lambda: nn.Sequential(nn.Linear(40, 40), FullReset())), CP(2))
    for name in ("angles", "steps"):
        torch.testing.assert_close(getattr(model[1], name), torch.arange(5).to(getattr(model[1], name).dtype))
    torch.testing.assert_close(model[1].scale.detach(), torch.ones(3))
    assert dict(model.named_buffers(recurse=True)).keys() >= {"1.angles", "1.steps"}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(40, 40), Positions()), r"1 \(Positions\) owns angles and has no reset_param"),
        (lambda: nn.Sequential(nn.Linear(40, 40), PlainTensor()), r"1 \(PlainTensor\) owns table and has no"),
        (
            lambda: nn.Sequential(nn.Linear(40, 40), HalfReset()),
            r"1 \(HalfReset\) has a reset_parameters that does not fill angles, steps",
        ),
        (
            lambda: nn.Sequential(nn.Linear(40, 40), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))),
            r"initialised:\n  1 \(ParametrizedLinear\) has parametrizations\nBuild",
        ),
        (
            lambda: nn.Sequential(
                nn.Linear(40, 40), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4, bias=False))
            ),
            r"initialised:\n  1 \(ParametrizedLinear\) has parametrizations\nBuild",
        ),
        (lambda: OwnParameter(nn.Linear(40, 40)), r"the model itself \(OwnParameter\) owns token and has no"),
        (CASES["bert"].build, r"bert.embeddings \(BertEmbeddings\) owns .*\n.*BertLMPredictionHead"),
    ],
)
def test_what_cannot_be_initialised_is_named_and_nothing_changes(build, message):
    model = on_meta(build)
    modules = dict(model.named_modules())
    with pytest.raises(ValueError, match=message) as error:
        tensorize_(model, CP(2))
    assert "Build them on a real device" in str(error.value)
    assert dict(model.named_modules()) == modules
    assert all(parameter.is_meta for parameter in model.parameters())


def test_trained_weights_cannot_come_from_meta():
    model = on_meta(lambda: nn.Sequential(nn.Linear(40, 40)))
    with pytest.raises(ValueError, match="trained=True needs the weights, but 0 are on the meta device"):
        tensorize_(model, CP(2), trained=True)


SEVENTEEN_GIGABYTES = """
    import resource
    import torch
    from torch import nn
    from rankfold.config import TTM
    from rankfold.surgery.tensorize import tensorize_

    tensorize_(nn.Sequential(nn.Linear(64, 64)), TTM(4))  # what any use loads
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.device("meta"):
        tables = [nn.Embedding(n, 128) for n in (10131227, 2202608, 8351593, 5461306, 7046547)]
        mlp = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
    model = nn.ModuleDict({"tables": nn.ModuleList(tables), "mlp": mlp})
    assert sum(p.numel() * p.element_size() for p in model.parameters()) > 16.9e9
    tensorize_(model, TTM(16))
    rows = torch.cat([table(torch.tensor([0, table.num_embeddings - 1])) for table in model["tables"]])
    model["mlp"](rows[:8].reshape(2, 512)).sum().backward()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_seventeen_gigabytes_are_never_allocated():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SEVENTEEN_GIGABYTES)], capture_output=True, text=True, check=True
    )
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    assert int(done.stdout) * unit < 300 * 2**20
