"""Two processes train as one does: the same weights, the same events, the same noise."""

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from crtlib.models.construction import build_model
from crtlib.training import parallel
from crtlib.training.loop import train_model
from crtlib.training.parallel import ProcessGroup, join_process_group
from tests.training.test_loop import PARTS, SPEC, flat, private, schedule
from tests.training.test_noise_of_a_step import PHASES, SPECS, moves

OWNERS = {"private": [0, 0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11]}
STEPS = 30
OTHER = {**PARTS, "private": PARTS["private"][::-1]}


def trained(file=None, **options):
    """A run of public and private phases, the last with users who own several points."""
    model = build_model(SPEC, 0)
    phases = [*schedule(2), private(epoch=3)]
    return train_model(model, phases, PARTS, seed=3, optimizer="sgd", checkpoint=file, **options)


def work(rank, folder):
    """What each of two processes does; the same calls in the same order."""
    store = f"file://{folder}/store"
    with join_process_group(
        init_method=store, rank=rank, world_size=2, timeout=timedelta(minutes=10)
    ) as crew:
        begun = []
        runs = [
            trained(folder / "state.pt", on_start=lambda *given: begun.append(given)),
            trained(owners=OWNERS),
            trained(secure=True),
        ]
        again = trained(folder / "state.pt")  # from the checkpoint of the first
        lstm = build_model(SPECS["lstm"], 0)
        noise = moves(PHASES["one probability"], lstm, secure=True, repeats=STEPS)
        with pytest.raises(ValueError, match="processes=2: must be given the same model, points"):
            train_model(
                build_model(SPEC, 0), [private()], PARTS if crew.is_leader else OTHER, seed=0
            )
        torch.save([flat(run.model) for run in runs], folder / f"{rank}.pt")
    return runs, again, noise, begun


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crew")
    code = f"import pathlib, {__name__} as t; t.work(1, pathlib.Path({str(folder)!r}))"
    other = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    try:
        done = work(0, folder)
        assert other.wait(600) == 0
    finally:
        other.kill()
    return *done, torch.load(folder / "1.pt")


@pytest.mark.parametrize("run", [0, 1])
def test_two_processes_train_what_one_does(together, run):
    runs, *_ = together
    alone = trained(owners=OWNERS if run else None)
    torch.testing.assert_close(flat(runs[run].model), flat(alone.model), rtol=1e-6, atol=1e-6)
    assert runs[run].events == alone.events  # what an accountant is told
    assert runs[run].updates == alone.updates
    assert (runs[run].processes, alone.processes) == (2, 1)


def test_both_end_with_the_same_bits_also_where_one_draws_in_secret(together):
    runs, *_, other = together
    for run, theirs in zip(runs, other, strict=True):
        assert torch.equal(flat(run.model), theirs)
    assert not torch.equal(other[0], other[2])


def test_the_noise_of_a_step_is_there_once(together):
    """Its variance is the accounted one in each tensor: not twice that, as where both processes
    draw, nor half of it."""
    for name, (square, _) in together[2].items():
        assert abs(square.mean() - 1) < 6 / (square.numel() * STEPS / 2) ** 0.5 < 0.15, name


def test_one_process_starts_and_all_go_on_from_its_checkpoint(together):
    runs, again, _, begun, _ = together
    assert [resumed for _, resumed in begun] == [False]
    assert torch.equal(flat(again.model), flat(runs[0].model))
    assert again.events == runs[0].events


def test_each_point_is_in_one_share():
    points = [[0] * (k % 5) for k in range(17)]
    shares = [
        list(ProcessGroup(rank, 3).share(range(17), key=lambda k: len(points[k])))
        for rank in (0, 1, 2)
    ]
    assert sorted(k for share in shares for k in share) == [*range(17)]
    tokens = [sum(len(points[k]) for k in share) for share in shares]
    assert max(tokens) - min(tokens) <= 4  # the longest point


def test_what_cannot_be_shared_is_refused(monkeypatch):
    monkeypatch.setattr(parallel, "_current_group", ProcessGroup(0, 2))
    flags = {"private": [[True] * len(p) for p in PARTS["private"]]}
    for name in ("masked", "selective"):
        phase = replace(PHASES[name], epoch=1)
        with pytest.raises(ValueError, match="processes=2: must be 1 for a "):
            train_model(build_model(SPEC, 0), [phase], PARTS, private_tokens=flags, seed=0)
