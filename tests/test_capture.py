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


class OnGPU(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


FULL, LAST = torch.ones(6), torch.ones(2)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([FULL] * 6, "beside beside beside capture graph graph graph"),
        ([FULL, FULL, FULL, LAST, FULL, LAST, FULL], "beside beside beside beside capture graph plain graph"),
        ([FULL] * 4 + [FULL.long(), FULL.double(), FULL], "beside beside beside capture graph plain plain graph"),
    ],
)
def test_the_graph_is_for_inputs_of_the_kind_that_was_there_often_enough(inputs, expected, monkeypatch) -> None:
    """Others simply run: a last, smaller batch, or another dtype, which the graph would convert."""
    seen: list[str] = []
    captured = rf.CapturedStep(lambda x: (seen.append("plain"), x)[1])

    def capture(inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append("capture")
        captured._graph, captured._inputs = object(), inputs

    def note(word: str):
        return lambda inputs: (seen.append(word), inputs[0])[1]

    for name, method in (("_run_beside", note("beside")), ("_capture", capture), ("_replay", note("graph"))):
        monkeypatch.setattr(captured, name, method)
    for x in inputs:
        captured(x.as_subclass(OnGPU))
    assert " ".join(seen) == expected
