"""Each file of the tests is in one share."""

from types import SimpleNamespace

import pytest

from tests import shares


def left_out(share, root, files):
    config = SimpleNamespace(
        rootpath=root, getoption=lambda _: share, getini=lambda _: ["tests", "library"]
    )
    return [shares.pytest_ignore_collect(file, config) for file in files]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_file_is_in_one_share(tmp_path, count):
    for folder, sizes in (("tests", (5, 1, 9, 1)), ("library/deep", (7, 2, 3))):
        (tmp_path / folder).mkdir(parents=True)
        for number, size in enumerate(sizes):
            (tmp_path / folder / f"f{number}.py").write_text("#" * size)
    files = sorted(tmp_path.rglob("*.py"))
    others = [left_out(f"{k}/{count}", tmp_path, files) for k in range(1, count + 1)]
    for answers in zip(*others, strict=True):  # of a file, one by each share
        assert sorted(answers, key=str) == [None] + [True] * (count - 1)
    assert left_out(None, tmp_path, files) == [None] * len(files)
    folders = [tmp_path / "tests", tmp_path / "library"]
    assert left_out("1/1", tmp_path, folders) == [None, None]
