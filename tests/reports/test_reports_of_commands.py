"""A report by its command: what it knows of the text, and what it leaves out of its files."""

import re

from tests import trainings
from tests.modes import list_readable_files
from tests.texts import write_simulated_text, write_talks
from tests.trainings import CRT, SGD_GPT2


def test_the_kind_of_a_label_leaves_a_report_only_by_a_known_name(tmp_path, run):
    text = write_simulated_text(tmp_path / "c.jsonl")
    text.write_text(text.read_text().replace('"kind": "phone"', '"kind": "phone of Lovelace"'))
    trainings.train(text, out=tmp_path / "m", **CRT)
    assert run("report", tmp_path / "m", "--corpus", text, "--out", tmp_path / "r")[0] == 0
    assert list_readable_files(tmp_path / "r", "Lovelace") == []


def test_a_report_on_a_screened_text_knows_that_nobody_is_named(tmp_path, run):
    """The raw text is refused; the screened one had "users 1", the pseudonym of nobody."""
    path = write_talks(tmp_path / "c.jsonl", [f"hello number {k} there" for k in range(30)])
    path.write_text(re.sub(r'"user": "\w+"', '"user": ""', path.read_text()))
    words = ["--policy", "regex:customersim", "--out", tmp_path / "s"]
    assert run("screen", path, *words)[0] == 0
    trainings.train(tmp_path / "s", out=tmp_path / "m", method="crt", epochs=1, width=4)
    report = ["report", tmp_path / "m", "--out", tmp_path / "r", "--corpus"]
    assert run(*report, path)[0] == 2
    assert run(*report, tmp_path / "s")[0] == 2


def test_a_redacted_report_has_no_path_of_this_machine(tmp_path, run):
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **SGD_GPT2)
    (tmp_path / "t.j2").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    words = ["report", tmp_path / "m", "--corpus", text, "--template", tmp_path / "t.j2"]
    assert run(*words, "--out", tmp_path / "r")[0] == 0
    assert list_readable_files(tmp_path / "r", str(tmp_path)) == []
