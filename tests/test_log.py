"""The log of a command: events, never text."""

import json

import pytest

from crtlib.__main__ import main

SAYS = "My ID is 431267"


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["crtlib", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_says_what_ran_and_how_it_ended_and_no_word_that_was_typed(monkeypatch, tmp_path):
    log = tmp_path / "path.log"
    good = ("simulate", "--dialogues", 2, "--out", tmp_path / "two.jsonl", "--log", log)
    bad = ("generate", tmp_path / "none", "--prompt", SAYS, "--log", log)
    assert (run(monkeypatch, *good), run(monkeypatch, *bad)) == (0, 2)
    told = lines(log)
    assert [(one["command"], one["event"], one.get("code")) for one in told] == [
        ("simulate", "started", None), ("simulate", "ended", 0),
        ("generate", "started", None), ("generate", "ended", 2),
    ]  # fmt: skip
    assert "prompt" in told[2]["options"]
    assert told[3]["error"] == "ValueError"
    assert "431267" not in log.read_text()


@pytest.mark.parametrize("held", [b'{"turns": []}\n', b"\xff\x00", b"[1]\n"])
def test_a_file_that_is_no_log_is_refused_and_left_as_it_is(monkeypatch, tmp_path, capsys, held):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(held)
    out = tmp_path / "two.jsonl"
    words = ("simulate", "--dialogues", 2, "--out", out, "--log", corpus)
    assert run(monkeypatch, *words) == 2
    assert "--log" in capsys.readouterr().err.splitlines()[0]
    assert corpus.read_bytes() == held
    assert not out.exists()
