"""Lines of a training step that are in the wrong place are noticed."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rankfold as rf


def make(total_steps: int = 40) -> tuple[nn.Module, torch.optim.Optimizer, rf.RankDetermination]:
    model = nn.Sequential(rf.Linear(12, 5, config=rf.CP(4)), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(rf.param_groups(model, lr=1e-3))
    return model, optimizer, rf.RankDetermination(model, optimizer, num_data=1000, total_steps=total_steps)


def nll(model: nn.Module) -> torch.Tensor:
    return F.cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,)))


def test_a_kl_counted_for_every_accumulated_batch_is_pointed_out_once() -> None:
    model, optimizer, ranks = make()

    def step() -> None:
        for _ in range(3):
            (nll(model) / 3 + ranks.kl()).backward()
        optimizer.step()
        ranks.step()

    with pytest.warns(UserWarning, match=r"the KL entered this step 3 times.*ranks.kl_backward\(\) once") as caught:
        step()
    assert caught[0].filename == __file__
    step()


@pytest.mark.parametrize("way", ["divided", "kl_backward first", "kl_backward last", "once in the loss"])
def test_a_kl_that_counts_once_is_not(way: str) -> None:
    model, optimizer, ranks = make()
    for _ in range(3):
        if way == "kl_backward first":
            ranks.kl_backward()
        for batch in range(3):
            kl = ranks.kl() / 3 if way == "divided" else ranks.kl() if way == "once in the loss" and batch == 2 else 0.0
            (nll(model) / 3 + kl).backward()
        if way == "kl_backward last":
            ranks.kl_backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()


def test_kl_backward_adds_the_gradient_of_kl() -> None:
    model, _, ranks = make()
    ranks.beta.fill_(0.7)
    torch.manual_seed(1)
    (nll(model) + ranks.kl()).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    for first in (True, False):
        model.zero_grad()
        torch.manual_seed(1)
        if first:
            value = ranks.kl_backward()
        nll(model).backward()
        if not first:
            value = ranks.kl_backward()
        assert float(value) == pytest.approx(0.7 * ranks.terms()["kl_nats"] / 1000, rel=1e-5)
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("inference", ["bayes", "map"])
def test_kl_backward_scales_gradients_and_leaves_frozen_parameters_alone(inference: str) -> None:
    model = nn.Sequential(
        rf.Linear(12, 5, config=rf.CP(4, inference=inference)), rf.Linear(5, 3, config=rf.TT(2, order=2)).double()
    )
    optimizer = torch.optim.SGD(rf.param_groups(model, lr=1e-3))
    ranks = rf.RankDetermination(model, optimizer, num_data=10, total_steps=40)
    ranks.beta.fill_(0.7)
    model[0].tensor.factors.mean[1].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    kl = ranks.kl()
    expected = torch.autograd.grad(8.0 * kl, trained)
    value = ranks.kl_backward(torch.amp.GradScaler("cpu", init_scale=8.0))
    torch.testing.assert_close(value, kl.detach())
    assert model[0].tensor.factors.mean[1].grad is None
    for parameter, gradient in zip(trained, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_kl_backward_without_anything_to_train_is_no_fault() -> None:
    model = rf.Linear(12, 5, config=rf.CP(4, inference="fixed"))
    optimizer = torch.optim.SGD(rf.param_groups(model))
    assert float(rf.RankDetermination(model, optimizer, 100, 10).kl_backward()) == 0.0


def test_a_step_once_per_epoch_is_pointed_out() -> None:
    model, optimizer, ranks = make()
    for _ in range(5):
        (nll(model) + ranks.kl()).backward()
        optimizer.step()
    with pytest.warns(
        UserWarning, match=r"optimizer.step\(\) was called 5 times since the last ranks.step\(\)"
    ) as caught:
        ranks.step()
    assert caught[0].filename == __file__


def test_optimizer_steps_without_a_step_of_ranks_are_pointed_out_once_whatever_their_number() -> None:
    model, optimizer, ranks = make()

    def steps(times: int) -> None:
        for _ in range(times):
            (nll(model) + ranks.kl()).backward()
            optimizer.step()
        ranks.step()

    with pytest.warns(UserWarning, match="called 2 times since"):
        steps(2)
    steps(3)
    steps(12)


def test_optimizer_steps_before_the_kl_joins_are_no_concern() -> None:
    model, optimizer, ranks = make()
    for _ in range(5):
        nll(model).backward()
        optimizer.step()
    (nll(model) + ranks.kl()).backward()
    optimizer.step()
    ranks.step()


def test_a_step_between_backward_and_optimizer_is_pointed_out_once() -> None:
    model, optimizer, ranks = make()

    def step() -> None:
        (nll(model) + ranks.kl()).backward()
        ranks.step()
        optimizer.step()

    with pytest.warns(UserWarning, match=r"ranks.step\(\) came between backward\(\) and optimizer.step\(\)") as caught:
        step()
    assert caught[0].filename == __file__
    step()


def test_a_step_that_a_grad_scaler_skips_is_no_fault() -> None:
    model, optimizer, ranks = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for skipped in (True, False, True, True, False, False):
            (nll(model) + ranks.kl()).backward()
            if not skipped:
                optimizer.step()
            ranks.step()


def test_two_optimizers_step_once_each() -> None:
    model = nn.Sequential(rf.Linear(12, 5, config=rf.CP(4)), nn.Linear(5, 3))
    optimizers = [torch.optim.SGD(part.parameters(), lr=1e-3) for part in model]
    ranks = rf.RankDetermination(model, optimizers, num_data=1000, total_steps=40)
    for _ in range(3):
        (nll(model) + ranks.kl()).backward()
        for optimizer in optimizers:
            optimizer.step()
        ranks.step()


def test_a_loop_that_never_calls_step_is_pointed_out_while_it_trains() -> None:
    model, optimizer, ranks = make()

    def without_ranks_step(times: int) -> None:
        for _ in range(times):
            (nll(model) + ranks.kl()).backward()
            optimizer.step()
            optimizer.zero_grad()

    without_ranks_step(50)
    with pytest.warns(UserWarning, match=r"called 50 times and ranks.step\(\) never since") as caught:
        without_ranks_step(1)
    assert caught[0].filename == __file__
    without_ranks_step(20)  # said once


def test_the_kl_may_be_looked_at_after_backward() -> None:
    model, optimizer, ranks = make()
    for _ in range(2):
        (nll(model) + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert ranks.kl().item() >= 0.0
        ranks.step()
    ranks.kl()
    with pytest.raises(RuntimeError, match="no backward"):
        ranks.step()


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_kl_without_gradient_is_none_for_the_loss(without: Callable[[], AbstractContextManager[None]]) -> None:
    model, optimizer, ranks = make()
    for _ in range(2):  # the proper call of one step is none of the next
        with without():
            kl = ranks.kl().clone()
        (nll(model) + kl.item()).backward()
        optimizer.step()
        with pytest.raises(RuntimeError, match=r"ranks.kl\(\) was computed under torch.no_grad\(\) only"):
            ranks.step()
        (nll(model) + ranks.kl()).backward()
        optimizer.step()
        ranks.step()
    assert ranks.num_steps == 2


@pytest.mark.parametrize("way", ["before", "after", "kl_backward"])
def test_the_kl_may_be_logged_without_gradient(way: str) -> None:
    model, optimizer, ranks = make()
    for _ in range(2):
        if way != "after":
            with torch.no_grad():
                ranks.kl()
        (nll(model) + (0.0 if way == "kl_backward" else ranks.kl())).backward()
        if way == "kl_backward":
            ranks.kl_backward()
        optimizer.step()
        if way == "after":
            with torch.no_grad():
                ranks.kl()
        ranks.step()
    assert ranks.num_steps == 2


def test_frozen_layers_have_no_gradient_to_lose() -> None:
    model, _, _ = make()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=1e-3)
    ranks = rf.RankDetermination(model, optimizer, num_data=1000, total_steps=40)
    with torch.no_grad():
        ranks.kl()
    ranks.step()
    (nll(model) + ranks.kl()).backward()
    ranks.step()


@pytest.mark.filterwarnings("ignore")  # torch's own, when it compiles
def test_a_compiled_kl_is_one_graph_and_its_gradient_is_looked_for_too() -> None:
    torch.compiler.reset()
    model, optimizer, ranks = make()
    kl = torch.compile(ranks.kl, fullgraph=True, backend="eager")
    with torch.no_grad():
        kl()
    with pytest.raises(RuntimeError, match="no_grad"):
        ranks.step()
    with torch.no_grad():
        kl()
    (nll(model) + kl()).backward()
    optimizer.step()
    ranks.step()


def test_an_optimizer_may_ask_for_the_loss_several_times() -> None:
    model, _, _ = make()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    ranks = rf.RankDetermination(model, optimizer, num_data=1000, total_steps=40, pruning=rf.Pruning(at=()))

    def closure() -> torch.Tensor:
        torch.manual_seed(0)
        optimizer.zero_grad()
        loss = nll(model) + ranks.kl()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        ranks.step()


def test_a_kl_counted_for_every_batch_of_a_closure_is_pointed_out_too() -> None:
    model, _, _ = make()
    optimizer = torch.optim.Adam(model.parameters())
    ranks = rf.RankDetermination(model, optimizer, num_data=1000, total_steps=40)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.zeros(())
        for _ in range(2):
            loss = nll(model) / 2 + ranks.kl()
            loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.warns(UserWarning, match="the KL entered this step 2 times"):
        ranks.step()


def test_backwards_before_a_closure_count_as_well() -> None:
    """As Lightning accumulates: the last batch alone is within the optimizer's step."""
    model, optimizer, ranks = make()

    def closure() -> torch.Tensor:
        loss = nll(model) / 2 + ranks.kl()
        loss.backward()
        return loss

    closure()
    optimizer.step(closure=closure)
    with pytest.warns(UserWarning, match="the KL entered this step 2 times"):
        ranks.step()


def test_after_a_fault_the_order_starts_anew() -> None:
    model, optimizer, ranks = make()
    (nll(model) + ranks.kl()).backward()
    optimizer.step()
    optimizer.zero_grad()
    ranks.restore()
    (nll(model) + ranks.kl()).backward()
    optimizer.step()
    ranks.step()  # a step before restore() is none of this one's
