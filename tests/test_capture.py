"""A captured step does what the step does. (The graph itself needs a GPU; here the CPU path.)"""

import pytest
import torch

import rankfold as rf


def test_on_the_cpu_a_captured_step_is_the_step() -> None:
    losses = []
    for wrap in (False, True):
        torch.manual_seed(0)
        model = rf.Linear(12, 5, config=rf.TT(4))
        optimizer = torch.optim.Adam(rf.param_groups(model))
        ranks = rf.RankDetermination(model, optimizer, num_data=100, total_steps=30)

        def step(x: torch.Tensor, model=model, optimizer=optimizer, ranks=ranks) -> torch.Tensor:
            loss = model(x).square().mean() + ranks.kl()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ranks.step()
            return loss.detach()

        run = rf.CapturedStep(step, ranks) if wrap else step
        losses.append([float(run(torch.randn(6, 12))) for _ in range(30)])
        assert ranks.num_steps == 30
    assert losses[0] == losses[1]


def test_what_is_no_step_or_rank_determination_is_named() -> None:
    with pytest.raises(TypeError, match="step must be a function that runs one training step, got 3"):
        rf.CapturedStep(3)
    with pytest.raises(TypeError, match=r"ranks must be a rankfold.RankDetermination, or None, got 4"):
        rf.CapturedStep(print, 4)


@pytest.mark.parametrize("other", [torch.ones(5), torch.ones(6).long()])
def test_inputs_that_the_graph_would_convert_are_not_for_it(other: torch.Tensor) -> None:
    captured = rf.CapturedStep(torch.sum)
    assert captured._fits((other,))
    captured._graph, captured._inputs = object(), (torch.ones(6),)  # as after a capture
    assert captured._fits((torch.zeros(6),))
    assert not captured._fits((other,))
