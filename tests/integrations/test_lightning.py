"""The Lightning callback trains, prunes, logs and resumes as the plain loop does."""

import copy
import csv
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import rankfold as rf

pytestmark = [
    # Lightning's own: jit scripts of its metrics, and advice about workers and logging
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
NUM_EXAMPLES, BATCH = 60, 10
KL_WEIGHT = 0.2  # what it takes for 60 examples to support some ranks and not others


@pytest.fixture(scope="module")
def lightning():
    import lightning

    return lightning


def data() -> TensorDataset:
    x = torch.randn(NUM_EXAMPLES, 12, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, (x[:, 0] > 0).long())


def make_module(lightning, lr: float = 2e-2) -> nn.Module:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            layers = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
            self.net = rf.tensorize_(layers, rf.CP(max_rank=6), "0")

        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def test_step(self, batch, index):
            return self.training_step(batch, index)

        def configure_optimizers(self):
            return torch.optim.Adam(rf.param_groups(self, lr=lr))

    torch.manual_seed(0)
    return Module()


def make_trainer(lightning, callbacks, folder, **options) -> object:
    settings = {
        "max_epochs": 10,
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": folder,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "log_every_n_steps": 5,
    }
    return lightning.Trainer(callbacks=callbacks, **settings | options)


def fit(lightning, module, callback, folder, ckpt_path=None, shuffle=False, **options):
    trainer = make_trainer(lightning, [callback], folder, **options)
    trainer.fit(module, DataLoader(data(), BATCH, shuffle=shuffle), ckpt_path=ckpt_path)
    return trainer


def plain_loop(module, *, epochs: int, accumulate: int, clip: float | None, half: bool) -> None:
    """The five lines, over the same batches."""
    optimizer = module.configure_optimizers()
    steps = epochs * -(-(NUM_EXAMPLES // BATCH) // accumulate)
    ranks = rf.RankDetermination(module, optimizer, NUM_EXAMPLES, steps, kl_weight=KL_WEIGHT)
    for _ in range(epochs):
        for n, batch in enumerate(DataLoader(data(), BATCH)):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                nll = module.training_step(batch, n)
            ((nll + ranks.kl()) / accumulate).backward()
            if (n + 1) % accumulate == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(module.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
                ranks.step()


@pytest.mark.parametrize(
    ("accumulate", "clip", "precision"), [(1, None, "32-true"), (2, 0.05, "32-true"), (2, 0.2, "bf16-mixed")]
)
def test_it_does_what_the_plain_loop_does(lightning, tmp_path, accumulate, clip, precision):
    from rankfold.integrations.lightning import RankDeterminationCallback

    module = make_module(lightning)
    twin = copy.deepcopy(module)
    callback = RankDeterminationCallback(kl_weight=KL_WEIGHT)
    torch.manual_seed(7)
    options = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip, "precision": precision}
    trainer = fit(lightning, module, callback, tmp_path, **options)
    torch.manual_seed(7)
    plain_loop(twin, epochs=10, accumulate=accumulate, clip=clip, half=precision == "bf16-mixed")
    assert callback.ranks.num_data == NUM_EXAMPLES
    assert callback.ranks.num_steps == trainer.global_step == callback.ranks.schedule.total_steps
    assert callback.ranks.history, "ranks are cut while it trains"
    assert module.net[0].tensor.format.ranks == twin.net[0].tensor.format.ranks
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_it_logs_nll_kl_beta_ranks_and_parameters(lightning, tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    from rankfold.integrations.lightning import RankDeterminationCallback

    module = make_module(lightning)
    logger = CSVLogger(tmp_path)
    fit(
        lightning,
        module,
        RankDeterminationCallback(kl_weight=KL_WEIGHT),
        tmp_path,
        logger=logger,
        accumulate_grad_batches=2,
    )
    with open(logger.experiment.metrics_file_path, newline="") as file:
        metrics = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert [row["step"] for row in metrics] == [4, 9, 14, 19, 24, 29]
    last = metrics[-1]
    assert last["rankfold/beta"] > 0
    assert last["rankfold/kl_nats"] > 0
    assert last["rankfold/ranks"] == last["rankfold/ranks/net.0"] == sum(module.net[0].tensor.format.ranks)
    assert last["rankfold/parameters"] == rf.accounting(module).total.final_parameters
    assert 0.1 < metrics[0]["rankfold/nll"] < 1.5  # about log 2, not half of it


def test_a_resumed_run_ends_as_an_uninterrupted_one(lightning, tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    from rankfold.integrations.lightning import RankDeterminationCallback

    callback = RankDeterminationCallback(kl_weight=KL_WEIGHT)
    module = make_module(lightning)
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=42, save_top_k=-1)  # of 60
    trainer = make_trainer(lightning, [keep, callback], tmp_path, enable_checkpointing=True)
    # the same noise at the same step, however often training was interrupted
    add_seeds(lightning, trainer)
    trainer.fit(module, DataLoader(data(), BATCH))
    assert callback.ranks.history[0][0] <= 42, "the checkpoint has fewer ranks"

    resumed, again = make_module(lightning), RankDeterminationCallback(kl_weight=KL_WEIGHT)
    trainer = make_trainer(lightning, [keep, again], tmp_path, enable_checkpointing=True)
    add_seeds(lightning, trainer)
    trainer.fit(resumed, DataLoader(data(), BATCH), ckpt_path=tmp_path / "step=42.ckpt")
    assert again.ranks.num_steps == 60
    assert resumed.net[0].tensor.format.ranks == module.net[0].tensor.format.ranks
    for name, value in module.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0, msg=name)


def assert_complete(ranks: rf.RankDetermination, num_steps: int) -> None:
    assert ranks.num_steps == ranks.schedule.total_steps == num_steps
    assert float(ranks.beta) == pytest.approx(0.5 * KL_WEIGHT), "the last value of β"


each_accumulation = pytest.mark.parametrize("accumulate", [1, 2])


def test_a_state_that_a_test_has_read_is_not_what_a_fit_goes_on_from(lightning, tmp_path):
    from rankfold.integrations.lightning import RankDeterminationCallback

    callback = RankDeterminationCallback(kl_weight=KL_WEIGHT)
    trainer = fit(lightning, make_module(lightning), callback, tmp_path)
    trainer.save_checkpoint(tmp_path / "trained.ckpt")
    trainer.test(copy.deepcopy(trainer.model), DataLoader(data(), BATCH), ckpt_path=tmp_path / "trained.ckpt")
    fit(lightning, make_module(lightning), callback, tmp_path, max_epochs=1)
    assert callback.ranks.num_steps == callback.ranks.schedule.total_steps == NUM_EXAMPLES // BATCH


@each_accumulation
def test_a_second_fit_finds_ranks_over_the_steps_that_are_left(lightning, tmp_path, accumulate):
    from rankfold.integrations.lightning import RankDeterminationCallback

    module, callback = make_module(lightning), RankDeterminationCallback(kl_weight=KL_WEIGHT)
    trainer = fit(lightning, module, callback, tmp_path, max_epochs=3, accumulate_grad_batches=accumulate)
    assert_complete(callback.ranks, 18 // accumulate)
    trainer.fit_loop.max_epochs = 5
    trainer.fit(module, DataLoader(data(), BATCH))
    assert trainer.global_step == 30 // accumulate
    assert_complete(callback.ranks, 12 // accumulate)


@each_accumulation
def test_a_checkpoint_of_a_training_without_the_callback_may_come_first(lightning, tmp_path, accumulate):
    from rankfold.integrations.lightning import RankDeterminationCallback

    first = make_trainer(lightning, [], tmp_path, max_epochs=1, accumulate_grad_batches=accumulate)
    first.fit(make_module(lightning), DataLoader(data(), BATCH))
    first.save_checkpoint(tmp_path / "first.ckpt")
    callback, options = RankDeterminationCallback(kl_weight=KL_WEIGHT), {"accumulate_grad_batches": accumulate}
    fit(lightning, make_module(lightning), callback, tmp_path, tmp_path / "first.ckpt", max_epochs=3, **options)
    assert_complete(callback.ranks, 12 // accumulate)


@each_accumulation
def test_a_resumed_second_fit_ends_as_an_uninterrupted_one(lightning, tmp_path, accumulate):
    from lightning.pytorch.callbacks import ModelCheckpoint

    from rankfold.integrations.lightning import RankDeterminationCallback

    def trainer_with(callback, max_epochs):
        keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=24 // accumulate, save_top_k=-1)
        options = {"enable_checkpointing": True, "accumulate_grad_batches": accumulate, "max_epochs": max_epochs}
        trainer = make_trainer(lightning, [keep, callback], tmp_path, **options)
        add_seeds(lightning, trainer)
        return trainer

    module, callback = make_module(lightning), RankDeterminationCallback(kl_weight=KL_WEIGHT)
    trainer = trainer_with(callback, max_epochs=3)
    trainer.fit(module, DataLoader(data(), BATCH))
    trainer.fit_loop.max_epochs = 5
    trainer.fit(module, DataLoader(data(), BATCH))

    resumed, again = make_module(lightning), RankDeterminationCallback(kl_weight=KL_WEIGHT)
    checkpoint = tmp_path / f"step={24 // accumulate}.ckpt"
    trainer_with(again, max_epochs=5).fit(resumed, DataLoader(data(), BATCH), ckpt_path=checkpoint)
    assert_complete(again.ranks, 12 // accumulate)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0, msg=name)


def add_seeds(lightning, trainer) -> None:
    class Seeds(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            torch.manual_seed(trainer.global_step)

    trainer.callbacks.append(Seeds())


def test_what_the_trainer_does_not_know_is_asked_for(lightning, tmp_path):
    from rankfold.integrations.lightning import RankDeterminationCallback

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data())

    def run(**options):
        trainer = make_trainer(lightning, [RankDeterminationCallback(**options)], tmp_path, max_epochs=1)
        trainer.fit(make_module(lightning), DataLoader(Stream(), BATCH))

    with pytest.raises(ValueError, match="the size of the training data is unknown; give num_data="):
        run()
    with pytest.raises(ValueError, match="the length of training is unknown; give total_steps="):
        run(num_data=60)
    run(num_data=60, total_steps=6)


def test_mistakes_are_named(lightning, tmp_path):
    from rankfold.integrations.lightning import RankDeterminationCallback

    with pytest.raises(
        TypeError, match=r"RankDeterminationCallback has no option 'klweight'; did you mean 'kl_weight'"
    ):
        RankDeterminationCallback(klweight=2.0)
    with pytest.raises(TypeError, match=r"no option 'model'; options are num_data, total_steps, .*process_group"):
        RankDeterminationCallback(model=None)
    module = make_module(lightning)
    module.net = nn.Sequential(nn.Linear(12, 2))
    with pytest.raises(ValueError, match=r"no tensorized layer; call rankfold.tensorize_"):
        fit(lightning, module, RankDeterminationCallback(), tmp_path)
    module = make_module(lightning)
    module.automatic_optimization = False
    with pytest.raises(RuntimeError, match="with manual optimization call the two half steps yourself"):
        fit(lightning, module, RankDeterminationCallback(), tmp_path)


def averaging(lightning, name: str) -> object:
    make = getattr(lightning.pytorch.callbacks, name)
    return make(1e-2) if name == "StochasticWeightAveraging" else make()


each_average = pytest.mark.parametrize("name", ["StochasticWeightAveraging", "WeightAveraging", "EMAWeightAveraging"])


@each_average
@pytest.mark.parametrize("pruning", [{}, {"at": (1.0,), "simplify_at": ()}, {"at": ()}], ids=str)
def test_averages_that_cannot_follow_a_cut_are_refused(lightning, tmp_path, name, pruning):
    from rankfold.integrations.lightning import RankDeterminationCallback

    callback = RankDeterminationCallback(pruning=rf.Pruning(**pruning))
    trainer = make_trainer(lightning, [callback, averaging(lightning, name)], tmp_path)
    with pytest.raises(
        ValueError, match=rf"(?s)^{name} averages a copy .*copies=.*Pruning\(at=\(\), simplify_at=\(\)\)"
    ):
        trainer.fit(make_module(lightning), DataLoader(data(), BATCH))


@each_average
def test_averages_work_where_nothing_is_cut_before_the_end(lightning, tmp_path, name):
    from rankfold.integrations.lightning import RankDeterminationCallback

    pruning = rf.Pruning(at=(), simplify_at=())
    callback = RankDeterminationCallback(kl_weight=KL_WEIGHT, pruning=pruning)
    trainer = make_trainer(lightning, [callback, averaging(lightning, name)], tmp_path)
    module = make_module(lightning)
    trainer.fit(module, DataLoader(data(), BATCH))
    assert_complete(callback.ranks, 60)
    module.net[0].tensor.factors.mean[0].data[:, 1] = 0.0
    assert rf.prune_(module, rule=rf.RelativeNormRule()) is not None
    assert module.net(torch.ones(2, 12)).isfinite().all()


def test_an_average_of_ones_own_follows_every_cut(lightning, tmp_path):
    from rankfold.integrations.lightning import RankDeterminationCallback

    class Average(lightning.Callback):
        def __init__(self, model: nn.Module) -> None:
            self.model = AveragedModel(model)

        def on_train_batch_end(self, trainer, module, *batch) -> None:
            self.model.update_parameters(module)

    module = make_module(lightning)
    average = Average(module)
    callback = RankDeterminationCallback(kl_weight=KL_WEIGHT, copies=average.model)
    make_trainer(lightning, [callback, average], tmp_path).fit(module, DataLoader(data(), BATCH))
    assert callback.ranks.history, "ranks were cut"
    assert average.model.module.net[0].tensor.format == module.net[0].tensor.format


CHECKS = """
import sys
import rankfold
assert not any(name.split(".")[0] in ("lightning", "pytorch_lightning", "transformers") for name in sys.modules)
for blocked in (["lightning", "pytorch_lightning"], ["transformers"]):
    for name in blocked:
        sys.modules[name] = None
    try:
        __import__("rankfold.integrations." + blocked[0])
    except ModuleNotFoundError as error:
        print(error)
"""


def test_the_core_does_without_and_a_missing_package_is_named():
    done = subprocess.run([sys.executable, "-c", CHECKS], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert "needs lightning or pytorch_lightning; install it with: pip install 'rankfold[lightning]'" in first
    assert "needs transformers and accelerate; install them with: pip install 'rankfold[transformers]'" in second
