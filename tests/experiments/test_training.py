"""The loop does what a plain loop does, and an interrupted run ends as an uninterrupted one."""

import re
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import rankfold as rf
from rankfold.data.errors import DamagedData
from rankfold.experiments import training as module
from rankfold.experiments.checkpoints import last_checkpoint
from rankfold.experiments.mnist import TASK, classifier
from rankfold.experiments.progress import Listener, StopAsked
from rankfold.experiments.spec import Spec
from rankfold.experiments.task import Examples
from rankfold.experiments.training import Training
from rankfold.health import NumericalFault

SPEC = Spec("ard", "ttm", max_rank=3, epochs=4, batch_size=32, lr=1e-2, log_std_lr=2.0, warmup=0.3)


def examples(size=150):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (size,), generator=generator)
    images = torch.randn(size, 784, generator=generator)
    images[:, :10] += 6 * F.one_hot(labels, 10)
    return Examples((images,), labels)


def make(spec=SPEC, *, inference="bayes"):
    torch.manual_seed(spec.seed)
    return rf.tensorize_(classifier(), None, overrides=TASK.tensor_configs(spec, inference))


def train(model, folder, spec=SPEC, **listening):
    training = Training(model, examples(), spec, epochs=spec.epochs, stage="train", folder=folder)
    return training.run(Listener(**listening))


def plain_loop(model, data, spec):
    """The same training written out with float learning rates and the README's five lines."""
    steps = len(data) // spec.batch_size
    total = spec.epochs * steps
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=spec.lr))
    ranks = rf.RankDetermination(model, optimizer, len(data), total, warmup_steps=round(spec.warmup * total))
    losses = []
    for epoch in range(spec.epochs):
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(data), generator=generator)
        for step in range(steps):
            batch = order[step * spec.batch_size : (step + 1) * spec.batch_size]
            for group in optimizer.param_groups:
                decay = min(1.0, (1.0 - (epoch * steps + step) / total) / 0.3)
                group["lr"] = spec.lr * decay * (2.0 if group["name"] == "log_std" else 1.0)
            nll = F.cross_entropy(model(data.inputs[0][batch]), data.labels[batch])
            (nll + ranks.kl()).backward()
            optimizer.step()
            optimizer.zero_grad()
            ranks.step()
            losses.append(nll.item())
    return [sum(losses[n * steps : (n + 1) * steps]) / steps for n in range(spec.epochs)]


def test_it_is_the_plain_loop(tmp_path):
    history = train(model := make(), tmp_path)
    reference = make()
    expected = plain_loop(reference, examples(), SPEC)
    assert [epoch.nll for epoch in history] == pytest.approx(expected, rel=1e-3)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)


def test_the_history_tells_the_whole_run(tmp_path):
    history = train(model := make(), tmp_path)
    assert [epoch.epoch for epoch in history] == [1, 2, 3, 4]
    assert history[-1].nll < history[0].nll
    assert history[-1].accuracy > history[0].accuracy
    assert [epoch.beta for epoch in history][1:] == pytest.approx([1.5, 0.5, 0.5])
    assert history[-1].kl_nats > 0
    assert history[-1].parameters == rf.accounting(model).total.final_parameters
    assert history[-1].ranks == {n: list(model.get_submodule(n).tensor.format.ranks) for n in ("layer1", "layer2")}


@pytest.mark.parametrize("inference", ["fixed", "map"])
def test_without_a_posterior_it_is_the_same_loop(inference, tmp_path):
    history = train(make(inference=inference), tmp_path)
    assert history[-1].nll < history[0].nll
    assert (history[-1].beta > 0) == (inference == "map")


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("inference", ["bayes", "map", "fixed"])
@pytest.mark.parametrize("last_epoch", [4, 9])  # before and after ranks are cut
@pytest.mark.filterwarnings("ignore:.*collapsed")
def test_an_interrupted_run_ends_as_an_uninterrupted_one(inference, last_epoch, tmp_path):
    spec = replace(SPEC, epochs=10, batch_size=16, lr=3e-2, kl_weight=20.0)
    whole = train(uninterrupted := make(spec, inference=inference), tmp_path / "whole", spec)

    def stop(epoch):
        if epoch.epoch == last_epoch:
            raise StopAsked

    with pytest.raises(StopAsked):
        train(make(spec, inference=inference), tmp_path / "parts", spec, epoch=stop)
    torch.manual_seed(99)  # the state of the generator comes from the checkpoint
    seen = []
    resumed = make(replace(spec, seed=3), inference=inference)
    parts = train(resumed, tmp_path / "parts", spec, epoch=seen.append)
    assert [epoch.epoch for epoch in seen] == list(range(last_epoch + 1, 11))
    assert [replace(epoch, seconds=0.0) for epoch in parts] == [replace(epoch, seconds=0.0) for epoch in whole]
    for a, b in zip(resumed.state_dict().values(), uninterrupted.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["epoch-0010"]
    if inference == "bayes":
        assert whole[8].parameters < whole[3].parameters


@pytest.mark.parametrize("inference", ["bayes", "map", "fixed"])
@pytest.mark.parametrize("at", [(1, 1), (4, 3), (9, 7)])  # in the first epoch, before and after ranks are cut
@pytest.mark.filterwarnings("ignore:.*collapsed")
def test_a_run_stopped_within_an_epoch_ends_as_an_uninterrupted_one(inference, at, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOMENT_SECONDS", 0.0)
    spec = replace(SPEC, epochs=10, batch_size=16, lr=3e-2, kl_weight=20.0)
    whole = train(uninterrupted := make(spec, inference=inference), tmp_path / "whole", spec)

    def stop(moment):
        if (moment.epoch, moment.step) == at:
            raise StopAsked

    with pytest.raises(StopAsked):
        train(make(spec, inference=inference), tmp_path / "parts", spec, moment=stop)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [f"epoch-{at[0] - 1:04d}-step-{at[1]:09d}"]
    torch.manual_seed(99)  # the state of the generator comes from the checkpoint
    seen = []
    parts = train(
        resumed := make(replace(spec, seed=3), inference=inference), tmp_path / "parts", spec, moment=seen.append
    )
    assert (seen[0].epoch, seen[0].step, seen[0].steps, seen[0].before) == (at[0], at[1] + 1, 9, at[1])
    assert [moment.before for moment in seen if moment.epoch > at[0]] == [0] * (8 * (10 - at[0]))
    assert [replace(epoch, seconds=0.0) for epoch in parts] == [replace(epoch, seconds=0.0) for epoch in whole]
    assert all(epoch.seconds > 0 for epoch in parts)
    for a, b in zip(resumed.state_dict().values(), uninterrupted.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["epoch-0010"]


def test_what_was_warned_of_before_an_interruption_is_not_forgotten(tmp_path):
    def watch(epoch):
        if epoch.epoch in (2, 4):
            warnings.warn(f"epoch {epoch.epoch} was odd", RuntimeWarning, stacklevel=1)
        if epoch.epoch == 3:
            raise StopAsked

    with pytest.raises(StopAsked):
        train(make(), tmp_path, epoch=watch)
    with pytest.warns(UserWarning, match="epoch 2 was odd"), pytest.warns(RuntimeWarning, match="epoch 4 was odd"):
        train(make(), tmp_path, epoch=watch)
    # of a run that was stopped after its last epoch too
    with pytest.warns(UserWarning, match="epoch 2 was odd"), pytest.warns(UserWarning, match="epoch 4 was odd"):
        train(make(), tmp_path, epoch=watch)


def test_a_long_epoch_has_checkpoints_within(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOMENT_SECONDS", 0.0)
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS_WITHIN", 0.0)

    def die(moment):
        if moment.step == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(make(), tmp_path, moment=die)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-0000-step-000000003"]


@pytest.mark.parametrize("exception", [Interrupted, KeyboardInterrupt])
def test_an_epoch_has_no_checkpoint_before_the_listener_knows_of_it(exception, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)

    def die(epoch):
        if epoch.epoch == 3:
            raise exception

    with pytest.raises(exception):
        train(make(), tmp_path, epoch=die)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-0002"]


def test_an_interruption_while_a_checkpoint_is_written_does_not_begin_it_again(tmp_path, monkeypatch):
    written = []

    def stop(epoch):
        raise StopAsked

    def write(*arguments):
        written.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_checkpoint", write)
    with pytest.raises(KeyboardInterrupt):
        train(make(), tmp_path, epoch=stop)
    assert len(written) == 1


@pytest.mark.parametrize("has_folder", [True, False])
def test_who_asked_to_stop_is_told_whether_there_is_a_checkpoint(has_folder, tmp_path):
    def stop(epoch):
        raise StopAsked

    with pytest.raises(StopAsked) as stopped:
        train(make(), tmp_path if has_folder else None, epoch=stop)
    assert stopped.value.is_kept == has_folder


def test_a_model_that_broke_within_an_epoch_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOMENT_SECONDS", 0.0)
    model = make()

    def spoil(moment):
        with torch.no_grad():
            next(model.parameters()).fill_(torch.nan)
        raise StopAsked

    with pytest.raises(NumericalFault, match="a parameter became NaN or infinite by step 1"):
        train(model, tmp_path, moment=spoil)
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_checkpoint_is_not_searched_for_one(monkeypatch):
    """A dense network that is too large for a checkpoint leaves no room for that either."""
    monkeypatch.setattr(module, "MOMENT_SECONDS", 0.0)
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS_WITHIN", 0.0)
    monkeypatch.setattr(module, "not_finite", pytest.fail)
    assert len(train(make(), None)) == SPEC.epochs


@pytest.mark.parametrize("part", ["settings", "steps", "sums", "seconds", "warned", "optimizer", "ranks", "history"])
def test_a_checkpoint_of_another_version_is_named_with_a_remedy(part, tmp_path):
    def stop(epoch):
        raise StopAsked

    with pytest.raises(StopAsked):
        train(make(), tmp_path, epoch=stop)
    file = tmp_path / "epoch-0001" / "state.pt"
    state = torch.load(file, weights_only=True)
    del state[part]
    torch.save(state, file)
    remedy = f"{file.parent} was written by another version; delete {file.parent} to begin again at epoch 1"
    with pytest.raises(DamagedData, match=f"^{re.escape(remedy)}$"):
        train(make(), tmp_path)


def test_after_epoch_9999_the_last_checkpoint_is_still_the_last(tmp_path):
    for name in ("epoch-10000", "epoch-9999-step-000000007", "epoch-9999"):
        (tmp_path / name).mkdir()
    assert last_checkpoint(tmp_path) == (10000, 0)


def test_a_checkpoint_of_other_settings_is_not_taken(tmp_path):
    def stop(epoch):
        raise StopAsked

    with pytest.raises(StopAsked):
        train(make(), tmp_path, epoch=stop)
    changed = replace(SPEC, lr=1e-3)
    assert Training(make(), examples(), changed, epochs=4, stage="train", folder=tmp_path).history == []
    assert not list(tmp_path.glob("epoch-*"))


def test_too_few_images_for_a_batch_are_refused(tmp_path):
    with pytest.raises(ValueError, match="batch_size must be at most the number of examples, 20, got 32"):
        Training(make(), examples(20), SPEC, epochs=1, stage="train", folder=tmp_path)
