"""What is kept of work that is not done."""

import pytest

from crtlib.checks import DamagedError
from crtlib.text import shards

RECIPE = {"command": "screen"}


def left(out, error, recipe=RECIPE):
    """The shard that is there after one was written and this ended the work."""
    with pytest.raises(type(error)), shards.resume_shards(out, recipe) as some:
        some.write("0", ["a"])
        raise error
    if not shards.shard_folder(out).exists():
        return None
    with shards.resume_shards(out, recipe) as some:
        return some.read("0")


def test_a_kill_and_a_fault_of_the_machine_leave_what_is_finished_a_mistake_nothing(tmp_path):
    for error in (KeyboardInterrupt(), OSError(28, "full"), DamagedError("c.jsonl: is damaged")):
        assert left(tmp_path / "out", error) == ["a"]
    assert left(tmp_path / "out", ValueError("row 3: is empty")) is None
    assert not list(tmp_path.iterdir())


def test_a_damaged_shard_and_one_of_other_work_are_done_anew(tmp_path):
    with pytest.raises(KeyboardInterrupt), shards.resume_shards(tmp_path / "out", RECIPE) as some:
        some.write("0", {"spans": 12})
        some.of("b").write("0", None)
        file = some.folder / "0.json"
        assert file.stat().st_mode & 0o777 == 0o600
        assert some.folder.stat().st_mode & 0o777 == 0o700
        whole = file.read_text()
        file.write_text(whole.replace("12", "13"))
        assert some.read("0") is None
        file.write_text(whole)
        assert some.read("0") == {"spans": 12} and some.read("1") is None
        raise KeyboardInterrupt
    with shards.resume_shards(tmp_path / "out", {"command": "report"}) as other:
        assert other.read("0") is None


@pytest.mark.parametrize("error", [FileNotFoundError(2, "no such file"), MemoryError()])
def test_what_ends_before_the_first_shard_leaves_nothing(tmp_path, error):
    with pytest.raises(type(error)), shards.resume_shards(tmp_path / "out", RECIPE):
        raise error
    assert not list(tmp_path.iterdir())
