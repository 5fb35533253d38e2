"""A tokenizer is learned from what is public, and from no word that a policy missed."""

import json

import pytest

from confide.release import released_folder
from crtlib.text import corpora, customersim, jsonl, templates
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT, TINY

RARE_WORD = "pheochromocytoma"


def write_texts_with_a_rare_word(folder):
    """A corpus with a rare word that one person says in one message, and its masked neighbour."""
    path = folder / "d.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(40, 0), path)
    whole = path.read_text()
    row = {
        "id": "x",
        "user": "x",
        "turns": [{"speaker": "USR", "text": " ".join([RARE_WORD] * 40)}],
    }
    masked = json.loads(json.dumps(row))
    masked["turns"][0]["text"] = "<MASK>"
    for name, extra in (("d", row), ("prime", masked)):
        (folder / f"{name}.jsonl").write_text(whole + json.dumps(extra) + "\n")
    return path, folder / "prime.jsonl"


@pytest.mark.parametrize("method", ["dpsgd", "user_dpsgd"])
def test_what_reads_raw_text_learns_no_vocabulary_from_it(tmp_path, method):
    """The word became a token of the public tokenizer, and "any one message" was printed."""
    one, other = write_texts_with_a_rare_word(tmp_path)
    for name in ("policy", "conservative"):
        with pytest.raises(ValueError, match=f"{name}: is not an option of method {method}"):
            trainings.train(one, method=method, **TINY, **{name: "regex:customersim"})
    for path in (one, other):
        trainings.train(path, out=tmp_path / path.stem, method=method, **TINY)
    words = [(tmp_path / p.stem / "tokenizer.json").read_text() for p in (one, other)]
    assert words[0] == words[1] and RARE_WORD not in words[0]


def test_a_plan_learns_no_vocabulary_from_what_its_policy_missed(tmp_path, run):
    """A name flagged once and missed thirty times was a token of the tokenizer."""
    path, name = tmp_path / "d.jsonl", "Wolframina"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), path)
    said = [f"my name is {name}", *[" ".join([f"regards , {name}"] * 20)] * 30]
    rows = [
        {"id": f"x{k}", "user": "x", "turns": [{"speaker": "USR", "text": text}]}
        for k, text in enumerate(said)
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "nm.toml").write_text("[name]\npattern = '(?<=my name is )[A-Z][a-z]{1,30}'\n")
    words = ["--from-policy", f"regex:{tmp_path}/nm.toml", "--posterior", 0.1, "--steps", 10]
    code, _, error = run("protect", path, *words, "--out", tmp_path / "plan")
    assert code == 0, error
    assert (
        run("train", path, "--plan", tmp_path / "plan", "--epochs", 1, "--out", tmp_path / "m")[0]
        == 0
    )
    assert name not in (tmp_path / "m" / "tokenizer.json").read_text()


def test_a_speakers_name_is_in_no_point_and_no_vocabulary(tmp_path):
    """What stands in the column of speakers no policy read as text: "Wolframina: hello" was public,
    and Wolframina a token."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    text.write_text(text.read_text().replace('"USR"', '"Wolframina"'))
    made = trainings.train(text, out=tmp_path / "m", **CRT, vocab_size=2000)
    assert "olframina" not in (tmp_path / "m" / "tokenizer.json").read_text()
    points = made.fitted.data.points
    assert {p.text.partition(":")[0] for p in points} == {"S1", "SYS"}
    own = "{% for m in messages %}{{ m.speaker }} {{ m.content }}{% endfor %}"
    cut = templates.render_points(
        corpora.read_corpus_at(text), "dialogue", templates.Template("own", own)
    )
    assert not any("Wolframina" in p.text for p in (*points, *cut))


@pytest.mark.parametrize("method", ["jft", "selective"])
def test_a_vocabulary_of_what_policies_let_pass_has_no_rate_of_zero(tmp_path, method):
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT | {"method": method})
    sources = released_folder.read_release(tmp_path / "m").sources
    assert not any(s.kind == "screened" and not s.screening.public for s in sources)
    assert any(s.kind == "raw" and "vocabulary" in s.of for s in sources)
