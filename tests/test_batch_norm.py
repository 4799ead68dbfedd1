"""Running statistics of the posterior mean, and of every draw."""

import pytest
import torch
from torch import nn

import rankfold as rf
from rankfold.predictive import draws
from rankfold.uncertainty import predictive_statistics


def network():
    torch.manual_seed(0)
    conv = rf.Conv2d(4, 6, 3, config=rf.CP(5))
    return nn.Sequential(conv, nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.BatchNorm1d(54))


def images(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3.0 + 2.0 * torch.randn(count, 4, 5, 5, generator=generator)


def buffers(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers() if "num" not in name}


@pytest.mark.parametrize("batch", [lambda x: x, lambda x: (x,)], ids=["tensor", "tuple"])
def test_statistics_of_the_posterior_mean(batch):
    model, x = network(), images(64)
    model(x)  # statistics of one draw, blended with 0 and 1
    rf.update_bn(model, [batch(x)])
    assert model.training
    assert [norm.momentum for norm in (model[1], model[5])] == [0.1, 0.1]
    truth = model[0].to_dense()(x)
    torch.testing.assert_close(model[1].running_mean, truth.mean((0, 2, 3)))
    torch.testing.assert_close(model[1].running_var, truth.var((0, 2, 3)))
    inner = nn.functional.batch_norm(truth, None, None, model[1].weight, model[1].bias, training=True)
    torch.testing.assert_close(model[5].running_mean, inner.relu().flatten(1).mean(0))  # dropout is off


def test_weights_modes_and_the_generator_stay_as_they_are():
    model, x = network(), images(16)
    model[3].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: p.clone() for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    rf.update_bn(model, [x])
    rf.predict(model, x, samples=2, seed=0, bn_batches=[x])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_a_model_without_batch_norm_is_not_run():
    calls = []
    model = nn.Sequential(nn.Conv2d(4, 6, 3))
    model.register_forward_hook(lambda *_: calls.append(1))
    rf.update_bn(model, [images(16)])
    assert calls == []


def test_every_draw_is_normalised_by_its_own_statistics():
    """On the very batch they come from, eval mode gives what training mode gives with the same weights."""
    model, x = network(), images(40)
    outputs, seen = [], []
    hook = model[0].register_forward_hook(lambda *call: seen.append(call[-1]))
    for draw in draws(model, 3, [x], seed=1):
        found = draw(x)
        y = nn.functional.batch_norm(seen[-1], None, None, model[1].weight, model[1].bias, training=True)
        y = nn.functional.batch_norm(y.relu().flatten(1), None, None, model[5].weight, model[5].bias, training=True)
        # running variances are divided by n − 1, those of a batch by n
        torch.testing.assert_close(found, y, rtol=0.03, atol=0.01)
        torch.testing.assert_close(draw(x[:4]), found[:4])  # the same weights again
        outputs.append(found)
    hook.remove()
    assert not torch.allclose(outputs[0], outputs[1], atol=0.05)


def test_the_models_own_statistics_come_back():
    model, x = network(), images(30)
    rf.update_bn(model, [x])
    before = buffers(model)
    rf.predict(model, x, samples=2, bn_batches=[x + 5.0])
    predictive_statistics(model, x, samples=2, bn_batches=[x + 5.0])
    assert all(torch.equal(value, before[name]) for name, value in buffers(model).items())


@pytest.mark.parametrize("ask", [rf.predict, predictive_statistics], ids=["predict", "predictive_statistics"])
def test_modes_and_statistics_come_back_at_once_after_an_error(ask):
    """While it is handled, and so its traceback holds all that was going on."""
    model, x = network(), images(30)
    before = buffers(model)
    with pytest.raises(RuntimeError) as raised:
        ask(model, x[:, :3], samples=2, bn_batches=[x])
    assert raised.value is not None
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in buffers(model).items())


def test_predictions_are_repeatable_and_average_over_the_draws():
    model, x = network(), images(30)
    mean, std = rf.predict(model, x, samples=5, seed=3, bn_batches=[x])
    torch.testing.assert_close(rf.predict(model, x, samples=5, seed=3, bn_batches=[x])[0], mean)
    with torch.no_grad():
        each = torch.stack([draw(x) for draw in draws(model, 5, [x], seed=3)])
    torch.testing.assert_close(mean, each.mean(0))
    torch.testing.assert_close(std, each.std(0))


def test_statistics_of_predictions_take_every_draw_through_all_examples():
    model, x = network(), images(30)
    torch.manual_seed(2)
    found = predictive_statistics(model, x, samples=4, batch_size=7, bn_batches=[x])
    torch.manual_seed(2)
    with torch.no_grad():
        each = torch.stack([draw(x).double().softmax(1) for draw in draws(model, 4, [x])])
    torch.testing.assert_close(found.probabilities, each.mean(0))
    entropies = -(each * each.log()).sum(2).mean(0)
    torch.testing.assert_close(found.entropy - found.mutual_information, entropies)


@pytest.mark.parametrize("ask", [rf.predict, predictive_statistics], ids=["predict", "predictive_statistics"])
def test_borrowed_statistics_are_named(ask):
    with pytest.warns(UserWarning, match="bn_batches=") as caught:
        ask(network(), images(8), samples=2)
    assert caught[0].filename == __file__
    ask(network(), images(8), samples=0)  # the posterior mean needs no draws


def test_batches_may_come_from_a_generator():
    model, x = network(), images(40)
    whole = rf.predict(model, x, samples=3, seed=0, bn_batches=[x[:20], x[20:]])[0]
    one_by_one = rf.predict(model, x, samples=3, seed=0, bn_batches=(part for part in x.split(20)))[0]
    torch.testing.assert_close(one_by_one, whole)


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "there is no batch"),
        (iter(()), ValueError, "there is no batch"),
        ([images(4), images(4)[:0]], ValueError, r"no examples.*\(0, 4, 5, 5\)"),
        ([(images(4), torch.zeros(4))], TypeError, r"a batch of 2 entries.*\(x for x, y in loader\)"),
        ([images(4)[0]], TypeError, r"one tensor of shape \(4, 5, 5\)"),
        ([{"x": images(4)}], TypeError, "1 entries in a dict"),
        ([images(4), images(4)[:, :2]], RuntimeError, "channels"),
        ([images(4), images(4).log()], ValueError, "batch 1 holds NaN"),
        (3, TypeError, "batches must be an iterable of inputs"),
        (images(4), TypeError, r"a single batch x as \[x\]"),
    ],
    ids=[
        "none",
        "used up",
        "no examples",
        "labels",
        "one image",
        "dict",
        "channels",
        "NaN",
        "a number",
        "a batch itself",
    ],
)
def test_bad_batches_leave_the_statistics_alone(batches, error, message):
    model, x = network(), images(30)
    rf.update_bn(model, [x])
    before = buffers(model)
    batches = batches if isinstance(batches, int) else list(batches)
    with pytest.raises(error, match=message):
        rf.update_bn(model, batches)
    with pytest.raises(error, match=message):
        rf.predict(model, x, samples=2, bn_batches=batches)
    assert all(torch.equal(value, before[name]) for name, value in buffers(model).items())
