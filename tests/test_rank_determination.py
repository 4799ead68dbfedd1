"""The objective's KL, the warm-up, the closed-form half step, the schedule and its safeguards."""

import copy
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import rankfold as rf
from rankfold import health as health_module
from rankfold.bayesian_tensor import BayesianTensor, tensors_of
from rankfold.pruning.rules import PruningRule
from rankfold.schedule import Schedule

CONFIG = rf.CP(4, in_dims=(3, 4), out_dims=(5,))


def make_model(config: rf.TensorConfig = CONFIG) -> nn.Sequential:
    return nn.Sequential(rf.Linear(12, 5, config=config), nn.ReLU(), rf.Linear(5, 3, config=rf.TT(2)))


def make(model: nn.Module | None = None, total_steps: int = 20, **options) -> tuple[nn.Module, rf.RankDetermination]:
    model = model or make_model()
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=1e-2))
    return model, rf.RankDetermination(model, optimizer, num_data=1000, total_steps=total_steps, **options)


def train_step(model: nn.Module, ranks: rf.RankDetermination) -> Tensor:
    x = torch.randn(64, 12)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1)) + ranks.kl()
    loss.backward()
    ranks.optimizers[0].step()
    ranks.optimizers[0].zero_grad()
    ranks.step()
    return loss


def test_kl_is_scaled_by_beta_and_data() -> None:
    model, ranks = make(kl_weight=2.5)
    assert float(ranks.kl().detach()) == 0.0  # β starts at 0
    ranks.beta.fill_(0.4)
    parts = [m.kl() for layer in (model[0], model[2]) for m in (layer.tensor, layer.bias_vector)]
    nats = float(torch.stack(parts).sum().detach())
    assert float(ranks.kl().detach()) == pytest.approx(0.4 * nats / 1000, rel=1e-6)
    assert ranks.terms()["kl_nats"] == pytest.approx(nats, rel=1e-6)
    penalty = sum(float(layer.tensor.variance.log().sum() / 2) for layer in (model[0], model[2]))
    assert ranks.terms()["penalty_nats"] == pytest.approx(penalty, rel=1e-5)
    assert ranks.terms()["beta"] == pytest.approx(0.4)


@pytest.mark.parametrize(("weight", "last"), [(0.0, 0.0), (0.5, 0.25), (1.0, 0.5), (3.0, 0.5)])
def test_beta_rises_above_the_weight_and_falls_to_half_of_it(weight: float, last: float) -> None:
    model, ranks = make(total_steps=40, kl_weight=weight)
    betas = []
    for _ in range(40):
        betas.append(float(ranks.beta))
        train_step(model, ranks)
    # 12 steps up, at the top until 43 % of the 28 others, down at half of them
    steps, values = [0, 12, 24.04, 26, 40], [0.0, 1.5 * weight, 1.5 * weight, last, last]
    assert betas == pytest.approx(np.interp(range(40), steps, values).tolist(), abs=1e-5)


def test_half_step_two_is_the_incremental_closed_form() -> None:
    model, ranks = make(step_size=0.3)
    tensor = model[0].tensor
    before = tensor.variance.clone()
    train_step(model, ranks)
    best = tensor.prior.best_variance(tensor.second_moments(), tensor.count)
    torch.testing.assert_close(tensor.variance, 0.3 * best.detach() + 0.7 * before)
    assert tensor.num_updates == 1


def test_forward_never_writes() -> None:
    model, ranks = make()
    before = copy.deepcopy(model.state_dict())
    model(torch.randn(2, 12))
    ranks.kl()
    model(torch.randn(2, 12))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("inference", ["map", "fixed"])
def test_the_lighter_modes_train_through_the_same_lines(inference: str) -> None:
    model, ranks = make(make_model(replace(CONFIG, inference=inference)))
    for _ in range(20):
        train_step(model, ranks)
    if inference == "fixed":
        assert model[0].tensor.format.ranks == (4,)


def test_gradient_accumulation_and_clipping() -> None:
    model, ranks = make()
    optimizer = ranks.optimizers[0]
    for _ in range(3):
        for _ in range(2):
            loss = F.cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,))) + ranks.kl()
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()
    assert ranks.num_steps == 3


def test_accumulated_gradients_equal_those_of_the_whole_batch() -> None:
    model, ranks = make(make_model(replace(CONFIG, inference="map")))
    ranks.beta.fill_(1.0)
    x, y = torch.randn(8, 12), torch.randint(3, (8,))
    model[2].eval()
    (F.cross_entropy(model(x), y) + ranks.kl()).backward()
    whole = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for half in (slice(0, 4), slice(4, 8)):
        ((F.cross_entropy(model(x[half]), y[half]) + ranks.kl()) / 2).backward()
    for parameter, gradient in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


# When ranks are cut ---------------------------------------------------------------------------------


def starve(model: nn.Module) -> None:
    """Rank 1 of the first layer holds nothing: its posterior is its prior."""
    tensor = model[0].tensor
    with torch.no_grad():
        for mean, log_std in zip(tensor.factors.mean, tensor.factors.log_std, strict=True):
            mean[:, 1] = 0.0
            log_std[:, 1] = 0.5 * tensor.variance[1].log()


def test_shapes_change_only_at_the_declared_moments() -> None:
    model, ranks = make(total_steps=100, pruning=rf.Pruning(at=(0.2, 0.8, 1.0), checks=10))
    changed = []
    for step in range(1, 101):
        starve(model)
        before = model[0].tensor.format.ranks
        train_step(model, ranks)
        if model[0].tensor.format.ranks != before:
            changed.append(step)
            break
    assert changed == [80]  # 20 lies within the warm-up
    assert ranks.history[0][0] == 80
    assert ranks.history[0][1].tensors[0].ranks_before == (4,)


class Named(PruningRule):
    """A rank of the first layer is dead as long as it is named."""

    def __init__(self, rank: int) -> None:
        self.rank: int | None = rank

    def dead(self, tensor: BayesianTensor, windows: object = None) -> list[Tensor]:
        return [torch.arange(n) == (self.rank if n == 4 else None) for n in tensor.format.ranks]

    def weight_of(self, tensor: BayesianTensor) -> list[Tensor]:
        return list(tensor.variances())


def test_patience_is_counted_in_checks_running() -> None:
    rule = Named(1)
    model, ranks = make(total_steps=100, pruning=rf.Pruning(checks=10, patience=3, at=(1.0,), rule=rule))
    streaks = []
    for step in range(1, 100):
        train_step(model, ranks)
        if ranks.schedule.checks_at(step):
            streaks.append(ranks._watch.streaks["0.tensor"][0].tolist())
            rule.rank = 1 if len(streaks) < 6 else 2
    # the first check closes the first of two windows; so does the next one if ranks were merged in between
    counted = streaks[streaks.index([0, 1, 0, 0]) :]
    named = 6 - len(streaks) + len(counted)
    assert named >= 4
    assert counted[:named] == [[0, n, 0, 0] for n in range(1, named + 1)]
    assert counted[named:] == [[0, 0, n, 0] for n in range(1, len(counted) - named + 1)]


def test_prune_on_demand() -> None:
    model, ranks = make()
    starve(model)
    result = ranks.prune()
    assert result is not None
    assert model[0].tensor.format.ranks == (3,)
    train_step(model, ranks)


@pytest.mark.parametrize("inference", ["bayes", "map"])
def test_ranks_that_something_else_has_cut_are_refused_wherever_training_goes_on(inference: str) -> None:
    message = r"ranks of 0\.tensor were \[4\] and are now \[1\], .* call ranks\.prune\(\) instead of rankfold\.prune_"
    model, ranks = make(make_model(replace(CONFIG, inference=inference)))
    train_step(model, ranks)
    ranks.kl().backward()
    model[0].tensor.variance[1:] = 1e-9
    assert rf.prune_(model, rule=rf.VarianceRule(1e-6)) is not None  # of the optimizer it was told nothing
    for going_on in (ranks.kl, ranks.kl_backward, ranks.step):
        with pytest.raises(RuntimeError, match=message):
            going_on()


def test_without_total_steps_nothing_is_cut_by_itself() -> None:
    model = make_model()
    optimizer = torch.optim.Adam(rf.param_groups(model))
    ranks = rf.RankDetermination(model, optimizer, num_data=100, warmup_steps=5)
    for _ in range(30):
        starve(model)
        train_step(model, ranks)
    assert model[0].tensor.format.ranks == (4,)


def test_without_total_steps_the_schedule_is_that_of_which_the_warm_up_is_the_usual_share() -> None:
    known, open_end = Schedule(100, None, rf.Pruning()), Schedule(None, 30, rf.Pruning())
    for step in range(101):
        assert open_end.beta(step) == pytest.approx(known.beta(step))
        assert open_end.simplifies_at(step) == known.simplifies_at(step) == (step in (20, 30))
        assert open_end.checks_at(step) == known.checks_at(step)
        assert not open_end.prunes_at(step)


def test_training_can_be_resumed() -> None:
    model, ranks = make(total_steps=100)
    for _ in range(60):
        starve(model)
        train_step(model, ranks)
    other, resumed = make(copy.deepcopy(model), total_steps=100)
    resumed.load_state_dict(copy.deepcopy(ranks.state_dict()))
    assert resumed.num_steps == 60
    assert float(resumed.beta) == float(ranks.beta) == pytest.approx(1.5)
    assert all(
        torch.equal(a, b)
        for a, b in zip(resumed._watch.streaks["0.tensor"], ranks._watch.streaks["0.tensor"], strict=True)
    )
    train_step(other, resumed)
    assert ranks.history  # the first layer was cut at step 60
    with pytest.raises(ValueError, match="load the model first"):
        make(total_steps=100)[1].load_state_dict(ranks.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {"x": 1}, r"expected what ranks.state_dict\(\) returns, with .*'num_steps'.*, got \['x'\]"),
        (lambda state: 3, "got int"),
        (lambda state: {**state, "streaks": {}}, "of another model: 0.tensor is in only one of the two"),
        (lambda state: {**state, "eta": {"0.tensor": 0.1}}, "0.tensor is of training with the half-Cauchy prior, and"),
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(change: Callable, message: str) -> None:
    model, ranks = make(total_steps=100)
    train_step(model, ranks)
    with pytest.raises(ValueError, match=message):
        ranks.load_state_dict(change({**ranks.state_dict(), "num_steps": 7}))
    assert ranks.num_steps == 1


def test_a_scale_of_the_prior_that_is_none_is_refused_and_changes_nothing() -> None:
    model = nn.Sequential(rf.Linear(12, 5, config=rf.CP(4, prior=rf.HalfCauchy())))
    _, ranks = make(model)
    with pytest.raises(ValueError, match="eta must be positive and finite"):
        ranks.load_state_dict({**ranks.state_dict(), "num_steps": 7, "eta": {"0.tensor": -1.0}})
    assert ranks.num_steps == 0


def test_a_resumed_run_ends_as_an_uninterrupted_one() -> None:
    ends = []
    for interrupted in (False, True):
        torch.manual_seed(1)
        model, ranks = make(total_steps=60)
        for step in range(60):
            if interrupted and step == 45:  # between two checks, in the middle of a window
                optimizer_state, ranks_state = ranks.optimizers[0].state_dict(), ranks.state_dict()
                model, ranks = make(copy.deepcopy(model), total_steps=60)
                ranks.optimizers[0].load_state_dict(copy.deepcopy(optimizer_state))
                ranks.load_state_dict(ranks_state)
            train_step(model, ranks)
        windows = [a.state()["previous"] for a in ranks._watch.averages.values()]
        ends.append([*model.state_dict().values(), *(v for window in windows for v in window)])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_layers_of_several_dtypes_have_one_step() -> None:
    model = make_model()
    model[2].double()
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=1e-2))
    ranks = rf.RankDetermination(model, optimizer, num_data=1000, total_steps=20)
    before = [tensor.variance.clone() for tensor in tensors_of(model).values()]
    x = torch.randn(64, 12)
    loss = F.cross_entropy(model[2](model[1](model[0](x)).double()), x[:, :3].argmax(1)) + ranks.kl()
    loss.backward()
    optimizer.step()
    ranks.step()
    for was, tensor in zip(before, tensors_of(model).values(), strict=True):
        assert tensor.variance.dtype == was.dtype
        assert tensor.num_updates == 1
        assert not torch.equal(tensor.variance, was)


def test_beta_is_exact_whatever_the_default_dtype() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        _, ranks = make()
    finally:
        torch.set_default_dtype(torch.float32)
    assert ranks.beta.dtype == torch.float32


# Safeguards -----------------------------------------------------------------------------------------


def test_step_without_kl_is_refused() -> None:
    _, ranks = make()
    with pytest.raises(RuntimeError, match=r"without ranks.kl\(\)"):
        ranks.step()


def test_step_before_backward_is_refused() -> None:
    model, ranks = make()
    loss = model(torch.randn(2, 12)).sum() + ranks.kl()
    with pytest.raises(RuntimeError, match=r"no backward\(\) has reached ranks.kl\(\)"):
        ranks.step()
    loss.backward()
    ranks.step()


def test_training_in_eval_mode_is_refused() -> None:
    model, ranks = make()
    train_step(model, ranks)
    model.eval()
    with pytest.raises(RuntimeError, match=r"in eval mode.* call model.train\(\)"):
        train_step(model, ranks)


def test_a_frozen_layer_may_stay_in_eval_mode() -> None:
    model = make_model()
    model[0].requires_grad_(False).eval()
    optimizer = torch.optim.Adam(rf.param_groups(model[2]))
    ranks = rf.RankDetermination(model, optimizer, num_data=100, total_steps=20)
    train_step(model, ranks)


def test_training_past_total_steps_is_pointed_out_once() -> None:
    model, ranks = make(total_steps=5)
    for _ in range(5):
        train_step(model, ranks)
    with pytest.warns(UserWarning, match=r"step 6, but total_steps is 5: .*epochs \* len\(loader\)") as caught:
        train_step(model, ranks)
    assert caught[0].filename == __file__
    train_step(model, ranks)


def test_broken_numbers_are_found_at_the_last_step_too() -> None:
    model, ranks = make(total_steps=5, check_every=100, pruning=rf.Pruning(at=(1.0,), simplify_at=()))
    with torch.no_grad():
        model[0].tensor.factors.mean[1][0, 0] = float("nan")
    for _ in range(4):
        train_step(model, ranks)
    with pytest.raises(rf.NumericalFault, match="by step 5"):
        train_step(model, ranks)


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.LBFGS])
def test_an_optimizer_whose_state_cannot_be_cut_is_refused(kind: type[torch.optim.Optimizer]) -> None:
    model = make_model()
    with pytest.raises(TypeError, match=f"{kind.__name__} keeps state that is not shaped like its parameters"):
        rf.RankDetermination(model, kind(model.parameters()), num_data=100, total_steps=20)
    rf.RankDetermination(model, kind(model.parameters()), num_data=100, total_steps=20, pruning=rf.Pruning(at=()))


def test_it_is_accepted_for_what_stays_dense() -> None:
    model = nn.Sequential(make_model(), nn.Linear(2, 2))
    optimizers = [torch.optim.Adam(rf.param_groups(model[0])), torch.optim.LBFGS(model[1].parameters())]
    rf.RankDetermination(model, optimizers, num_data=100, total_steps=20)


def test_an_optimizer_with_unknown_state_is_refused_at_the_first_step() -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["history"] = torch.zeros(2, *parameter.shape)

    model = make_model()
    ranks = rf.RankDetermination(model, Odd(model.parameters()), num_data=100, total_steps=20)
    with pytest.raises(TypeError, match="Odd keeps a state 'history' that is not shaped like"):
        train_step(model, ranks)


@pytest.mark.parametrize(
    "kind",
    ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop", "Rprop", "ASGD"],
)
def test_optimizers_whose_state_is_cut_along(kind: str) -> None:
    model = make_model()
    optimizer = getattr(torch.optim, kind)(rf.param_groups(model, lr=1e-3))
    ranks = rf.RankDetermination(model, optimizer, 100, 20, pruning=rf.Pruning(at=(1.0,)))
    train_step(model, ranks)
    ranks.prune(rf.VarianceRule(float(ranks.tensors["0.tensor"].variance.median())))
    train_step(model, ranks)
    assert len(ranks.history) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_data": 0}, "num_data must be a positive integer, the number of training examples, got 0"),
        ({"num_data": -5}, "got -5"),
        ({"num_data": 10.5}, "got 10.5"),
        ({"total_steps": 0}, "total_steps must be a positive integer, got 0"),
        ({"total_steps": None}, "give total_steps"),
        ({"warmup_steps": 30}, r"warmup_steps \(30\) cannot exceed total_steps \(20\)"),
        ({"kl_weight": -1.0}, "kl_weight must be at least 0 and finite, got -1.0"),
        ({"kl_weight": float("nan")}, "kl_weight must be at least 0 and finite, got nan"),
        ({"kl_weight": float("inf")}, "kl_weight must be at least 0 and finite, got inf"),
        ({"step_size": 0.0}, r"step_size must be in \(0, 1\], got 0.0"),
        ({"check_every": 0}, "check_every must be a positive integer, got 0"),
    ],
)
def test_bad_numbers_are_named(options: dict, message: str) -> None:
    model = make_model()
    settings = {"num_data": 100, "total_steps": 20} | options
    with pytest.raises(ValueError, match=message):
        rf.RankDetermination(model, torch.optim.Adam(rf.param_groups(model)), **settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": (0.0,)}, r"at must hold fractions of total_steps in \(0, 1\], got \(0.0,\)"),
        ({"checks": 0}, "checks must be a positive integer, got 0"),
        ({"checks": 2, "patience": 3}, r"patience \(3\) cannot exceed the number of checks \(2\)"),
        ({"at": 0.5}, r"at must be a tuple .* got 0.5"),
        ({"rule": "information"}, "rule must be a rule such as .* got 'information'"),
    ],
)
def test_bad_pruning_options_are_named(options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        rf.Pruning(**options)


def test_pruning_that_would_never_happen_is_refused() -> None:
    with pytest.raises(ValueError, match=r"all moments of pruning .* lie before the warm-up ends, at 0.3"):
        make(pruning=rf.Pruning(at=(0.1, 0.2)))
    for wrong in (0.5, None):
        with pytest.raises(TypeError, match=rf"pruning must be .* Pruning\(at=\(\)\) to cut nothing, got {wrong}"):
            make(pruning=wrong)


def test_what_is_no_model_or_optimizer_is_named() -> None:
    model = make_model()
    optimizer = torch.optim.Adam(rf.param_groups(model))
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got Adam"):
        rf.RankDetermination(optimizer, model, 100, 20)
    with pytest.raises(TypeError, match=r"expected a torch.optim optimizer, or a sequence of them, got NoneType"):
        rf.RankDetermination(model, None, 100, 20)


def test_unknown_options_are_refused() -> None:
    model = make_model()
    with pytest.raises(TypeError, match="klweight"):
        rf.RankDetermination(model, torch.optim.Adam(rf.param_groups(model)), 100, 20, klweight=2)


@pytest.mark.parametrize(
    ("move", "now"), [(nn.Module.double, "float64 on cpu"), (lambda model: model.to("meta"), "float32 on meta")]
)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_model_that_is_moved_afterwards_is_refused(move: Callable[[nn.Module], object], now: str, steps: int) -> None:
    model, ranks = make()
    for _ in range(steps):
        train_step(model, ranks)
    move(model)
    message = rf"λ of 0\.tensor was float32 on cpu when RankDetermination was made, and is now {now}"
    for call in (ranks.kl, ranks.kl_backward):
        with pytest.raises(RuntimeError, match=message):
            call()


def test_lower_precision_and_a_way_there_and_back_are_no_moves() -> None:
    """λ stays in float32, so what is known of it holds."""
    model, ranks = make()
    model.double().float().bfloat16()
    x = torch.randn(64, 12, dtype=torch.bfloat16)
    (F.cross_entropy(model(x).float(), torch.randint(3, (64,))) + ranks.kl()).backward()
    ranks.optimizers[0].step()
    ranks.step()
    assert ranks.num_steps == 1


def mixed(total_steps: int = 20) -> tuple[nn.Sequential, torch.optim.Optimizer, rf.RankDetermination]:
    """A tensorized layer, and one that is still dense."""
    model = nn.Sequential(rf.Linear(12, 5, config=CONFIG), nn.Linear(5, 3))
    optimizer = torch.optim.Adam(rf.param_groups(model))
    return model, optimizer, rf.RankDetermination(model, optimizer, num_data=1000, total_steps=total_steps)


@pytest.mark.parametrize("resumed", [False, True])
def test_layers_that_are_tensorized_afterwards_are_refused_at_the_first_step(resumed: bool) -> None:
    model, _, ranks = mixed()
    if resumed:
        ranks.load_state_dict(ranks.state_dict() | {"num_steps": 7})
    rf.tensorize_(model, rf.TT(2), "1")
    message = r"the model has 1\.tensor, which it had not when RankDetermination was made; tensorize"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message):
            train_step(model, ranks)
    assert ranks.num_steps == (7 if resumed else 0)


def test_layers_that_are_gone_afterwards_are_refused_at_the_first_step() -> None:
    model, _, ranks = mixed()
    model[0] = nn.Linear(12, 5)
    with pytest.raises(RuntimeError, match=r"the model no longer has 0\.tensor, which it had when RankDetermination"):
        train_step(model, ranks)


def test_layers_that_are_wrapped_afterwards_are_refused_at_the_first_step() -> None:
    """Ranks are cut by the names of their tensors."""
    model, _, ranks = mixed()
    model[0] = nn.Sequential(model[0], nn.Dropout())
    with pytest.raises(RuntimeError, match=r"the model has 0\.0\.tensor, which it had not when RankDetermination"):
        train_step(model, ranks)


def test_layers_that_stay_dense_may_be_replaced_afterwards() -> None:
    model, _, ranks = mixed()
    model[1] = nn.Sequential(model[1], nn.Dropout())
    train_step(model, ranks)
    assert ranks.num_steps == 1


def test_a_model_without_tensorized_layers_is_refused() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="no tensorized layer"):
        rf.RankDetermination(model, torch.optim.Adam(model.parameters()), 100, 20)


def test_an_optimizer_that_misses_parameters_is_refused() -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model[0].parameters())
    with pytest.raises(ValueError, match=r"misses \d+ parameters of the model, such as '2.tensor"):
        rf.RankDetermination(model, optimizer, 100, 20)
    model[2].requires_grad_(False)
    rf.RankDetermination(model, optimizer, 100, 20)


def test_weight_decay_on_log_stds_is_refused() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="decays log standard deviations"):
        rf.RankDetermination(model, torch.optim.AdamW(model.parameters()), 100, 20)
    optimizer = torch.optim.AdamW(rf.param_groups(model, weight_decay=0.01))
    rf.RankDetermination(model, optimizer, 100, 20)


def test_param_groups_hold_every_parameter_once() -> None:
    model = nn.Sequential(make_model(), nn.Linear(3, 3))
    groups = rf.param_groups(model, lr=0.5, weight_decay=0.1)
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in groups] == [
        ("dense", 0.5, 0.1),
        ("mean", 0.5, 0.0),
        ("log_std", 0.5, 0.0),
    ]


# Numbers that are not finite --------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_factor_stops_training_and_the_last_good_state_is_there(bad: float) -> None:
    model, ranks = make(total_steps=100, check_every=5)
    for _ in range(7):
        train_step(model, ranks)
    with torch.no_grad():
        model[0].tensor.factors.mean[1][0, 0] = bad
    train_step(model, ranks)
    train_step(model, ranks)
    with pytest.raises(rf.NumericalFault, match=r"by step 10\. ranks\.restore\(\) returns to the good state of step 5"):
        train_step(model, ranks)
    assert ranks.restore() == 5
    assert ranks.num_steps == 5
    assert float(ranks.beta) == pytest.approx(0.25)
    for _ in range(10):
        assert torch.isfinite(train_step(model, ranks).detach())


def test_the_fault_is_named() -> None:
    model, ranks = make(check_every=1)
    with torch.no_grad():
        model[2].tensor.factors.log_std[0].fill_(float("nan"))
    loss = model(torch.randn(2, 12)).sum() + ranks.kl()
    loss.backward()
    with pytest.raises(rf.NumericalFault, match=r"2\.tensor\.factors\.log_std\.0 became NaN or infinite by step 1"):
        ranks.step()


def test_a_nan_gradient_is_found_through_the_parameters_it_breaks() -> None:
    model, ranks = make(check_every=1)
    (model(torch.full((2, 12), float("nan"))).sum() + ranks.kl()).backward()
    ranks.optimizers[0].step()
    with pytest.raises(rf.NumericalFault, match="became NaN or infinite"):
        ranks.step()


def test_all_that_is_trained_comes_back_together() -> None:
    """A likelihood beside the model, and an averaged copy of it, are broken by the same NaN."""
    model, likelihood = make_model(), rf.GaussianLikelihood()
    optimizer = torch.optim.Adam([*rf.param_groups(model), {"params": likelihood.parameters()}], lr=0.01)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    ranks = rf.RankDetermination(model, optimizer, num_data=100, total_steps=20, copies=average, check_every=1)

    def step(target: float) -> None:
        loss = likelihood(model(torch.randn(8, 12)), torch.full((8, 3), target)) + ranks.kl()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        ranks.step()

    step(1.0)
    good = copy.deepcopy([*likelihood.parameters(), *average.parameters()])
    with pytest.raises(rf.NumericalFault):
        step(float("nan"))
    assert not all(bool(p.isfinite().all()) for p in (*likelihood.parameters(), *average.parameters()))
    assert ranks.restore() == 1
    for parameter, before in zip((*likelihood.parameters(), *average.parameters()), good, strict=True):
        assert torch.equal(parameter, before)
    step(1.0)


def test_a_broken_parameter_outside_of_the_model_is_named() -> None:
    model, likelihood = make_model(), rf.GaussianLikelihood()
    optimizer = torch.optim.SGD([*rf.param_groups(model), {"params": likelihood.parameters()}], lr=0.01)
    ranks = rf.RankDetermination(model, optimizer, num_data=100, total_steps=20, check_every=1)
    with torch.no_grad():
        next(likelihood.parameters()).fill_(float("nan"))
    (model(torch.randn(2, 12)).sum() + ranks.kl()).backward()
    number = len(list(model.parameters()))
    with pytest.raises(rf.NumericalFault, match=f"^a parameter outside of the model, {number} in optimizer 0 became"):
        ranks.step()


def test_without_snapshots_there_is_nothing_to_restore() -> None:
    _, ranks = make(snapshots=False)
    with pytest.raises(RuntimeError, match="no snapshot to return to"):
        ranks.restore()


def test_there_are_never_two_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ranks = make(check_every=1)
    train_step(model, ranks)
    health, copies = ranks._health, []
    kept = [weakref.ref(tensor) for tensor in health._model_states[0].values()]

    def deepcopy(state: object, *memo: dict[int, object]) -> object:
        copies.append(state)
        assert not any(tensor() is not None for tensor in kept)
        return copy.deepcopy(state, *memo)

    monkeypatch.setattr(health_module, "copy", SimpleNamespace(deepcopy=deepcopy))
    train_step(model, ranks)
    assert len(copies) >= 2  # of the model and of its optimizer
    assert health.last_good_step == 2


def test_a_snapshot_has_the_parameters_and_half_the_digits_of_the_moments() -> None:
    model, ranks = make(check_every=1)
    train_step(model, ranks)
    weights = copy.deepcopy(model.state_dict())
    moments = copy.deepcopy(ranks.optimizers[0].state_dict()["state"])
    with torch.no_grad():
        model[0].tensor.factors.mean[0].fill_(float("nan"))
    with pytest.raises(rf.NumericalFault):
        train_step(model, ranks)
    ranks.restore()
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    for number, restored in ranks.optimizers[0].state_dict()["state"].items():
        assert torch.equal(restored["step"], moments[number]["step"])
        for name in ("exp_avg", "exp_avg_sq"):
            assert restored[name].dtype == torch.float32
            torch.testing.assert_close(restored[name], moments[number][name], rtol=2**-8, atol=0)


def test_a_snapshot_has_all_digits_of_averaged_weights() -> None:
    model = nn.Sequential(rf.Linear(12, 3, config=rf.CP(2)))
    optimizer = torch.optim.ASGD(rf.param_groups(model), t0=0)  # its state has averages of the weights
    ranks = rf.RankDetermination(model, optimizer, num_data=8, total_steps=9, check_every=1)
    train_step(model, ranks)
    kept = copy.deepcopy(optimizer.state_dict()["state"])
    ranks.restore()
    for number, restored in optimizer.state_dict()["state"].items():
        assert torch.equal(restored["ax"], kept[number]["ax"])


def test_infinite_gradients_under_a_grad_scaler_are_not_faults() -> None:
    model, ranks = make(total_steps=40, check_every=1)
    optimizer = ranks.optimizers[0]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # the first gradients overflow
    skipped = 0
    for _ in range(40):
        loss = F.cross_entropy(1e3 * model(torch.randn(8, 12)), torch.randint(3, (8,))) + ranks.kl()
        scaler.scale(loss).backward()
        before = copy.deepcopy(model[0].tensor.factors.mean[0].data)
        scaler.step(optimizer)
        skipped += bool(torch.equal(before, model[0].tensor.factors.mean[0].data))
        scaler.update()
        optimizer.zero_grad()
        ranks.step()
    assert 0 < skipped < 40


def test_a_snapshot_taken_before_pruning_is_replaced() -> None:
    model, ranks = make(total_steps=100, check_every=50)
    starve(model)
    ranks.prune()
    with torch.no_grad():
        model[0].tensor.factors.mean[0].fill_(float("nan"))
    ranks.restore()
    assert tensors_of(model)["0.tensor"].format.ranks == (3,)
    assert torch.isfinite(model(torch.randn(2, 12))).all()


@pytest.mark.parametrize("prior", [rf.LogUniform(), rf.HalfCauchy()], ids=lambda p: type(p).__name__)
def test_states_are_loaded_into_what_was_made_before(prior: rf.LogUniform | rf.HalfCauchy) -> None:
    """Model, optimizer, ranks, at ranks that the fresh model does not have; and η, which depends on the first draw."""
    config = replace(CONFIG, prior=prior)
    model, ranks = make(make_model(config), total_steps=20, pruning=rf.Pruning(at=(0.5, 1.0), patience=1))
    for _ in range(12):
        starve(model)
        train_step(model, ranks)
    assert ranks.history
    parts = (model, ranks.optimizers[0], ranks)
    states = copy.deepcopy([part.state_dict() for part in parts])
    fresh, again = make(make_model(config), total_steps=20, pruning=rf.Pruning(at=(0.5, 1.0), patience=1))
    for part, state in zip((fresh, again.optimizers[0], again), states, strict=True):
        part.load_state_dict(state)
    for each, its in ((model, ranks), (fresh, again)):
        for step in range(8):
            torch.manual_seed(step)
            train_step(each, its)
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]), name


def test_the_state_to_return_to_is_the_simplified_one() -> None:
    model, ranks = make(total_steps=20, check_every=100)
    moments = [step for step in range(1, 21) if ranks.schedule.simplifies_at(step)]
    assert moments
    for _ in range(moments[0]):
        train_step(model, ranks)
    simplified = copy.deepcopy(model.state_dict())
    train_step(model, ranks)
    assert ranks.restore() == moments[0]
    for name, value in model.state_dict().items():
        assert torch.equal(value, simplified[name]), name


def test_models_that_share_an_optimizer_are_restored_one_by_one() -> None:
    models = [make_model(), make_model()]
    optimizer = torch.optim.Adam([group for model in models for group in rf.param_groups(model, lr=1e-2)])
    both = [rf.RankDetermination(model, optimizer, num_data=1000, total_steps=20) for model in models]
    x = torch.randn(64, 12)
    (sum(model(x).square().mean() for model in models) + sum(ranks.kl() for ranks in both)).backward()
    optimizer.step()
    for model, ranks in zip(models, both, strict=True):
        ranks.step()
        starve(model)
        assert ranks.prune() is not None  # the first one's snapshot has the second one's factors as they were
    shapes = [[p.shape for p in model.parameters()] for model in models]
    models[0][0].tensor.factors.mean[0].data.fill_(float("nan"))
    for ranks in both:
        ranks.restore()
        for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            assert optimizer.state_dict()["state"][number]["exp_avg"].shape == parameter.shape
    assert shapes == [[p.shape for p in model.parameters()] for model in models]
    assert all(torch.isfinite(p).all() for model in models for p in model.parameters())


def test_a_model_that_was_cut_is_left_alone_as_a_whole_when_another_is_restored() -> None:
    cut, other = rf.Linear(27, 8, config=rf.TTM(3, order=3)), rf.Linear(8, 6, config=rf.CP(2))
    optimizer = torch.optim.Adam(rf.param_groups(nn.ModuleList([cut, other]), lr=1e-2))
    both = [rf.RankDetermination(model, optimizer, num_data=1000, total_steps=20) for model in (cut, other)]
    (other(cut(torch.randn(64, 27))).square().mean() + sum(ranks.kl() for ranks in both)).backward()
    optimizer.step()
    for ranks in both:
        ranks.step()
    with torch.no_grad():
        cut.tensor.factors.mean[0][..., 0] = 0.0
        cut.tensor.factors.log_std[0][..., 0] = -12.0
        cut.tensor.variance[0] = 1e-12
    assert both[0].prune(rf.VarianceRule(1e-9)) is not None  # of three cores the last keeps its shape
    kept = [parameter.detach().clone() for parameter in cut.parameters()]
    assert both[1].restore() == 0
    assert all(torch.equal(parameter, value) for parameter, value in zip(cut.parameters(), kept, strict=True))


def test_a_parameter_of_the_user_called_log_std_is_the_user_s() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = rf.Linear(12, 5, config=CONFIG)
            self.log_std = nn.Parameter(torch.zeros(5))

    model = Policy()
    groups = {group["name"]: group for group in rf.param_groups(model, weight_decay=0.1)}
    assert any(p is model.log_std for p in groups["dense"]["params"])
    assert not any(p is model.log_std for p in groups["log_std"]["params"])
    rf.RankDetermination(model, torch.optim.AdamW(groups.values()), num_data=10, total_steps=10)


def test_a_broken_likelihood_is_restored_though_another_model_was_cut() -> None:
    one, cut, likelihood = rf.Linear(8, 6, config=rf.CP(3)), rf.Linear(8, 6, config=rf.CP(3)), rf.GaussianLikelihood()
    optimizer = torch.optim.Adam(rf.param_groups(nn.ModuleList([one, cut, likelihood])))
    ranks, others = (rf.RankDetermination(m, optimizer, num_data=10, warmup_steps=100) for m in (one, cut))
    cut.tensor.variance[0] = 1e-12
    assert others.prune(rf.VarianceRule(1e-9)) is not None
    kept = [parameter.detach().clone() for parameter in cut.parameters()]
    with torch.no_grad():
        for parameter in (*one.parameters(), *likelihood.parameters()):
            parameter.fill_(torch.nan)
    assert ranks.restore() == 0
    assert all(torch.isfinite(p).all() for p in (*one.parameters(), *likelihood.parameters()))
    assert all(torch.equal(p, value) for p, value in zip(cut.parameters(), kept, strict=True))


def test_a_factor_of_two_tensors_gets_both_gradients_of_kl_backward() -> None:
    model = nn.Sequential(*[rf.Linear(12, 12, config=rf.CP(3)) for _ in range(2)])
    model[1].tensor.factors.mean[0] = model[0].tensor.factors.mean[0]
    ranks = rf.RankDetermination(model, torch.optim.SGD(model.parameters(), lr=0.1), num_data=10, warmup_steps=10)
    ranks.beta.fill_(1.0)
    ranks.kl().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    ranks.kl_backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)
