"""Policies whose points are flagged elsewhere."""

import pickle
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor

import pytest

from crtlib.checks import MachineError
from crtlib.screening import by_name, tagger, teach
from crtlib.screening.by_name import digest, policy_by_name
from crtlib.text import customersim, units

CORPUS = customersim.simulate(30, 0)
POINTS = units.points(CORPUS, unit="turn")


class Elsewhere(ThreadPoolExecutor):
    """Workers to whom all must be sent."""

    sent = 0

    def submit(self, call, *args):
        self.sent += 1
        future = Future()
        call, args = pickle.loads(pickle.dumps((call, args)))
        future.set_result(pickle.loads(pickle.dumps(call(*args))))
        return future


class Broken(ThreadPoolExecutor):
    def submit(self, call, *args):
        raise BrokenExecutor


@pytest.fixture
def executor(monkeypatch):
    monkeypatch.setattr(by_name, "LOT", 100)
    with Elsewhere(1) as executor:
        yield executor


def test_a_policy_says_the_same_wherever_it_is_asked(executor):
    for name in ("regex:customersim+cautious", "everything"):
        policy = by_name.spread(name, executor)
        assert policy(POINTS) == policy_by_name(name)(POINTS)
    assert executor.sent == 2 * -(-len(POINTS) // 100)


def test_a_tagger_is_judged_elsewhere_as_here(executor):
    here, there = (teach.teach(CORPUS, epochs=1, executor=one) for one in (None, executor))
    assert there.summary == here.summary and there.rates == here.rates and executor.sent > 4
    pi = tagger.redacting(here.tagger)
    assert by_name.spread(pi, executor)(POINTS) == pi(POINTS)


def test_another_policy_on_a_worker_is_refused(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("Ann\n")
    name = f"list:{path}"
    sha = digest(name)
    path.write_text("Ann\nBob\n")
    with pytest.raises(MachineError, match=r"policy='list:names.txt': is another one now"):
        by_name._flag(name, sha, POINTS[:1])


def test_a_worker_that_died_is_no_fault_of_the_policy():
    with pytest.raises(BrokenExecutor), Broken(1) as executor:
        by_name.spread("cautious", executor)(POINTS)
