"""Two processes train one model: same gradients, same λ, same ranks, at the same steps."""

import os
import re
import traceback
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from processes import WORLD, run_in_processes
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rankfold as rf
from rankfold.bench.allreduce import bytes_reduced
from rankfold.distributed import agreed, average_gradients, replicate_, tensorized_parameters

BATCH, STEPS = 8, 30


def make_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    return rf.tensorize_(layers, rf.CP(max_rank=4), overrides={"2": rf.TT(max_rank=3), "4": None})


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The examples of one step, of all processes together."""
    x = torch.randn(WORLD * BATCH, 12, generator=torch.Generator().manual_seed(step))
    return x, (x[:, 0] + x[:, 1] > 0).long()


def share(values: Tensor, rank: int) -> Tensor:
    return values[rank * BATCH : (rank + 1) * BATCH]


def determination(model: nn.Module, optimizer: torch.optim.Optimizer) -> rf.RankDetermination:
    pruning = rf.Pruning(at=(0.6, 0.8, 1.0), checks=15, patience=1, rule=rf.VarianceRule(1e-6))
    return rf.RankDetermination(model, optimizer, num_data=200, total_steps=STEPS, pruning=pruning)


def starve(model: nn.Module, steps_done: int) -> None:
    """A rank of the first layer dies just before ranks may be cut."""
    tensor = rf.wrapping.unwrapped(model)[0].tensor
    if steps_done in (0.6 * STEPS - 1, 0.8 * STEPS - 1):
        tensor.variance[0] = 1e-9
        with torch.no_grad():
            for mean, log_std in zip(tensor.factors.mean, tensor.factors.log_std, strict=True):
                mean[:, 0] = 0.0
                log_std[:, 0] = -15.0


def train(model: nn.Module, rank: int | None, same_noise: bool, wrapped: nn.Module | None = None) -> dict:
    """Train, as process ``rank`` or with the joined batch; what came of it."""
    wrapped = wrapped or model
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=2e-2))
    ranks, steps, gradients = determination(model, optimizer), [], []
    for step in range(STEPS):
        x, y = batch(step) if rank is None else (share(v, rank) for v in batch(step))
        torch.manual_seed(step if same_noise else 1000 * step + rank)
        (F.cross_entropy(wrapped(x), y) + ranks.kl()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        starve(model, step)
        if ranks.step():
            steps.append((step, [list(t.format.ranks) for t in ranks.tensors.values()]))
            rf.rewrap(wrapped)
    return {"state": dict(model.state_dict()), "steps": steps, "gradients": gradients, "beta": ranks.beta}


def ddp_with_the_same_noise(rank: int) -> dict:
    model = make_model()
    return train(model, rank, same_noise=True, wrapped=DistributedDataParallel(model))


def ddp_with_noise_of_its_own(rank: int) -> dict:
    model = make_model(seed=rank)  # DDP starts from the model of the first process
    return train(model, rank, same_noise=False, wrapped=DistributedDataParallel(model, gradient_as_bucket_view=True))


def assert_equal(first: dict, second: dict) -> None:
    """Bit by bit."""
    assert first["steps"] == second["steps"]
    assert torch.equal(first["beta"], second["beta"])
    assert all(torch.equal(a, b) for a, b in zip(first["gradients"], second["gradients"], strict=True))
    assert all(torch.equal(value, second["state"][name]) for name, value in first["state"].items())


@pytest.mark.filterwarnings("ignore::rankfold.RankCollapseWarning")
def test_two_processes_do_what_one_does_with_the_joined_batch(results: list[dict]) -> None:
    first, second = (result["same noise"] for result in results)
    assert_equal(first, second)
    alone = train(make_model(), None, same_noise=True)
    assert len(alone["steps"]) >= 2, "ranks are cut during training"
    assert alone["steps"] == first["steps"]
    for ours, expected in zip(first["gradients"], alone["gradients"], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)
    for name, value in alone["state"].items():
        torch.testing.assert_close(first["state"][name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_with_noise_of_their_own_lambda_and_ranks_stay_identical(results: list[dict]) -> None:
    first, second = (result["own noise"] for result in results)
    assert_equal(first, second)
    assert first["steps"]


# What the processes check by themselves ---------------------------------------------------------------


def fsdp_gradients(rank: int) -> None:
    """Dense layers sharded, tensorized ones whole: the gradients are those of one process."""
    reference, model = make_model(), make_model(seed=0 if rank == 0 else 5)
    with torch.no_grad():
        for mine, theirs in zip(model[4].parameters(), reference[4].parameters(), strict=True):
            mine.copy_(theirs)
    replicate_(model)
    fully_shard(model, ignored_params=tensorized_parameters(model))
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=1e-2))
    alone = torch.optim.Adam(rf.param_groups(reference, lr=1e-2))
    ranks, expected = determination(model, optimizer), determination(reference, alone)
    for step in range(STEPS):
        x, y = batch(step)
        torch.manual_seed(step)
        (F.cross_entropy(reference(x), y) + expected.kl()).backward()
        torch.manual_seed(step)
        (F.cross_entropy(model(share(x, rank)), share(y, rank)) + ranks.kl()).backward()
        reduced = average_gradients(model)
        assert reduced == 4 * sum(p.numel() for p in tensorized_parameters(model))
        for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
            whole = ours.grad.full_tensor() if name.startswith("4.") else ours.grad
            torch.testing.assert_close(whole, theirs.grad, rtol=1e-3, atol=1e-5, msg=name)
        for one in (optimizer, alone):
            one.step()
            one.zero_grad()
        starve(model, step)
        starve(reference, step)
        cut, also_cut = ranks.step(), expected.step()
        assert (cut is None) == (also_cut is None)
    assert ranks.history


def processes_that_disagree(rank: int) -> None:
    """The first process decides; models of different ranks are refused before anything hangs."""
    verdict = {"layer": [torch.tensor([rank == 0, False, True]), torch.tensor([False])]}
    cpu, same = torch.device("cpu"), {"layer": torch.tensor([1.0, 2.0, 3.0, 4.0 + 1e-6 * rank])}
    decided = agreed(verdict, same, cpu)
    assert [group.tolist() for group in decided["layer"]] == [[True, False, True], [False]]
    with pytest.raises(RuntimeError, match="the processes hold models of different ranks"):
        agreed({"layer": [torch.zeros(3 + rank, dtype=torch.bool)]}, same, cpu)
    with pytest.raises(RuntimeError, match=r"different models: λ of layer.*average_gradients"):
        agreed(verdict, {"layer": torch.tensor([1.0, 2.0, 3.0, 4.0 + 0.1 * rank])}, cpu)
    itself, _ = dist.new_subgroups(1)
    alone = agreed({"layer": [torch.tensor([rank == 0])]}, {"layer": torch.tensor([1.0 + rank])}, cpu, itself)
    assert alone["layer"][0].tolist() == [rank == 0]


def models_that_nobody_averages(rank: int) -> None:
    """Processes that call the bare model are told at the first cut."""
    model = make_model()
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=2e-2))
    ranks = determination(model, optimizer)

    def train() -> None:
        for step in range(STEPS):
            x, y = (share(part, rank) for part in batch(step))
            (F.cross_entropy(model(x), y) + ranks.kl()).backward()
            optimizer.step()
            optimizer.zero_grad()
            starve(model, step)
            ranks.step()

    with pytest.raises(RuntimeError, match="the processes train different models"):
        train()


def sharded_factors(rank: int) -> None:
    model = make_model()
    fully_shard(model)
    model(torch.ones(2, 12)).sum().backward()
    with pytest.raises(RuntimeError, match=r"ignored_params=rankfold\.distributed\.tensorized_parameters"):
        average_gradients(model)


def accelerate_unchanged(rank: int) -> None:
    """The five lines under Accelerate, with accumulated gradients."""
    from accelerate import Accelerator

    # what torchrun would set
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == WORLD
    model = make_model()
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=2e-2))
    model, optimizer = accelerator.prepare(model, optimizer)
    ranks = determination(model, optimizer)
    for step in range(2 * STEPS):
        torch.manual_seed(1000 * step + rank)
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(share(batch(step)[0], rank)), share(batch(step)[1], rank)))
            if accelerator.sync_gradients:
                ranks.kl_backward()
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            starve(model, ranks.num_steps)
            if ranks.step():
                rf.rewrap(model)
    assert ranks.num_steps == STEPS
    assert ranks.history
    assert_same_everywhere(model)


def assert_same_everywhere(model: nn.Module) -> None:
    for value in model.state_dict().values():
        both = [torch.empty_like(value) for _ in range(WORLD)]
        dist.all_gather(both, value.contiguous())
        assert torch.equal(*both)


def rewrap_keeps_what_was_asked_for(rank: int) -> None:
    seen = []

    def count(state: list[int], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        state.append(bucket.buffer().numel())
        return dist.all_reduce(bucket.buffer().div_(WORLD), async_op=True).get_future().then(lambda f: f.value()[0])

    model = make_model()
    ddp = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=True, bucket_cap_mb=7)
    ddp.register_comm_hook(seen, count)
    handle = ddp.register_forward_hook(lambda *_: seen.append(-1))
    ddp.eval()
    assert rf.rewrap(ddp) is ddp
    assert not ddp.training
    assert ddp.find_unused_parameters
    assert ddp.gradient_as_bucket_view
    assert ddp.bucket_bytes_cap == 7 * 2**20
    ddp.train()(torch.ones(2, 12)).sum().backward()
    assert seen == [-1, sum(p.numel() for p in model.parameters())]
    handle.remove()
    assert rf.rewrap(nn.Sequential(ddp))[0] is ddp
    assert rf.rewrap(model) is model


def a_forgotten_rewrap_is_what_the_page_says_it_is(rank: int) -> None:
    model = make_model()
    ddp = DistributedDataParallel(model)
    with torch.no_grad():
        model[0].tensor.factors.mean[0].zero_()
    assert rf.prune_(model, rule=rf.RelativeNormRule()) is not None
    said = ""
    for _ in range(2):
        try:
            ddp(torch.ones(2, 12)).sum().backward()
        except RuntimeError as error:
            said = str(error)
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "distributed.md").read_text(encoding="utf-8")
    sentence = re.search(r"`(Expected to have[^`]*)`.*`rf\.rewrap\(ddp\)` was forgotten", page)
    assert sentence is not None
    assert said.startswith(sentence[1])


def every_byte_is_counted(rank: int) -> None:
    model = make_model()
    assert bytes_reduced(model, torch.ones(2, 12)) == 4 * sum(p.numel() for p in model.parameters())


CHECKS = [
    fsdp_gradients,
    processes_that_disagree,
    models_that_nobody_averages,
    sharded_factors,
    rewrap_keeps_what_was_asked_for,
    a_forgotten_rewrap_is_what_the_page_says_it_is,
    every_byte_is_counted,
    accelerate_unchanged,
]


def everything(rank: int) -> dict:
    """All of it in one start of the processes, which takes longer than the work."""
    warnings.simplefilter("ignore", rf.RankCollapseWarning)
    results: dict = {"same noise": ddp_with_the_same_noise(rank), "own noise": ddp_with_noise_of_its_own(rank)}
    for check in CHECKS:
        try:
            check(rank)
            results[check.__name__] = ""
        except Exception:
            results[check.__name__] = traceback.format_exc()
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return run_in_processes(everything, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_in_both_processes(results: list[dict], check: str) -> None:
    assert [result[check] for result in results] == ["", ""]
