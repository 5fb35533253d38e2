"""Certificates that held on what nobody had said: what is assumed, declared, or meant by a number
stands on the page, and in every other file that says what is promised."""

import json
import re

import pytest

from confide.assumption_sentences import Assumption
from confide.release import (
    assumptions,
    certifiable_run,
    certificate_parts,
    certify,
    evidence,
    file_sources,
    limits,
    released_folder,
    seal,
    source_fold,
    verify,
    void_reasons,
)
from confide.reports import bands, certificate_pages, model_card
from confide.training import train_on_corpus
from crtlib.accounting import guess_bounds
from crtlib.accounting.events import SampledGaussian
from crtlib.intervals import round_up_to_figures, to_decimal
from crtlib.screening import policy_names
from crtlib.screening.policy import Policy
from crtlib.screening.policy_registry import REGISTERED_MAKERS, PolicyMaker
from crtlib.text import customersim, data_points, jsonl, records
from crtlib.text.records import Dialogue, Turn
from tests.trainings import SMALL_RECIPE

NAME = "Wolframina"


def corpus(path, blacked_out=()):
    """Messages of sixty people; every third says one name, unless it is ``blacked_out``."""
    talks = []
    for k in range(60):
        name = "<MASK>" if k in blacked_out else NAME if k % 3 == 0 else "nobody"
        turn = Turn("USR", f"the {k}th order came late, so please tell {name} about it")
        talks.append(Dialogue(f"d{k}", f"u{k}", (turn,)))
    jsonl.write_jsonl(talks, path)
    return path


def names_found_often(text, out, least):
    """What a tool of one's own may write: the names that it found so often in a text."""
    said = re.findall(r"(?<=please tell )[A-Z][a-z]+", text.read_text())
    out.write_text("\n".join(["Somebody", *(n for n in set(said) if said.count(n) >= least)]))
    return out


def certified(run, page, **more):
    """The certificate of a training, and the text of its page."""
    value = certify.write_certificate(run, page, secrets_per_person=(), force=True, **more)
    return value, " ".join(re.sub(r"<[^>]+>", "", page.read_text()).split())


def kinds_of_files(home):
    """A policy of each kind that reads a file, and what it is called."""
    (home / "r.toml").write_text("[name]\npattern = 'Wolf[a-z]+'\n")
    (home / "words.txt").write_text("the\norder\ncame\nlate\nplease\ntell\nabout\nit\n")
    (home / "found.txt").write_text("Somebody\n")
    return {
        f"list:{home}/found.txt": ["list:found.txt"],
        f"regex:{home}/r.toml": ["regex:r.toml"],
        f"cautious:{home}/words.txt+regex:customersim": ["cautious:words.txt"],
        f"regex:{home}/r.toml+list:{home}/found.txt": ["regex:r.toml", "list:found.txt"],
        "regex:customersim+cautious": [],
    }


def test_a_list_that_one_message_decides_changes_how_others_are_read(tmp_path):
    """Why the sentence must be said: one message is blacked out, and twenty are read otherwise."""
    read = []
    for name, hidden in (("d", ()), ("prime", (0,))):
        text = corpus(tmp_path / f"{name}.jsonl", hidden)
        rules = names_found_often(text, tmp_path / f"{name}.txt", 20)
        points = data_points.make_points(records.Corpus("", tuple(jsonl.read_jsonl(text))), "turn")
        flagged = policy_names.policy_by_name(f"list:{rules}")(points)
        read.append([p.id for p, spans in zip(points, flagged, strict=True) if spans])
    assert (len(read[0]), len(read[1])) == (20, 0)


def test_a_policy_of_a_file_was_not_made_from_the_text(tmp_path, run):
    """A6: the certificate held, ``assumed`` was empty, and nothing on the page said so."""
    text = corpus(tmp_path / "c.jsonl")
    rules = names_found_often(text, tmp_path / "found.txt", 13)
    assert NAME in rules.read_text()
    made = train_on_corpus.train_for_command(text, out=tmp_path / "m", policy=f"list:{rules}",
                     conservative="everything", **SMALL_RECIPE)  # fmt: skip
    value, page = certified(tmp_path / "m", tmp_path / "m.html")
    assert value["verdict"] == "holds"
    assert value["assumed"] == ["list:found.txt was not made from this text"]
    assert "It is assumed that list:found.txt was not made from this text." in page
    assert "would decide how any number of others is read" in page
    assert "; assumed: list:found.txt was not made from this text" in made.promise
    assert made.promise in (tmp_path / "m" / "guarantee.txt").read_text()
    assert str(tmp_path) not in json.dumps(value) + page + made.promise
    assert verify.find_certificate_fault(tmp_path / "m", value) is None
    assert certify.compare_certificate_with_run(tmp_path / "m", tmp_path / "m.html")[0] is None

    words = ["--policy", f"list:{rules}", "--conservative", "everything", "--out", tmp_path / "s"]
    code, out, error = run("screen", text, *words)
    assert code == 0, error
    assert "it is assumed that list:found.txt was not made from this text" in " ".join(
        (out + error).split()
    )
    train_on_corpus.train_for_command(tmp_path / "s", out=tmp_path / "two", **SMALL_RECIPE)
    value, page = certified(tmp_path / "two", tmp_path / "two.html")
    assert value["assumed"] == [
        "list:found.txt was not made from this text",
        "list:found.txt was not made from this text, which it screened for an earlier model",
    ]
    assert "The text was read as these say" in page


def test_every_policy_that_somebody_brought_is_named(tmp_path, monkeypatch):
    maker = PolicyMaker(
        "company", "[:FILE]", lambda _: Policy("company", lambda ps: [()] * len(ps))
    )
    monkeypatch.setitem(REGISTERED_MAKERS, "company", maker)
    expected = kinds_of_files(tmp_path) | {
        "company": ["company"], f"company:{tmp_path}/rules.csv": ["company:rules.csv"],
        "tagger:T": [], "ner:a/model": ["ner:model"], "oracle": [], "everything": [],
        "presidio": [], "presidio:en_core_web_sm": [], "presidio:of_our_own": [
            "presidio:of_our_own"],
        f"list:{tmp_path}/a%2Bb.csv+none": ["list:a%2Bb.csv"],
    }  # fmt: skip
    for name, brought in expected.items():
        assert list(policy_names.user_supplied_parts(name)) == brought, name
        # of a screened folder only the plain name is known
        assert policy_names.user_supplied_parts(
            policy_names.strip_paths(name)
        ) == policy_names.user_supplied_parts(name)


def test_a_plan_of_a_list_or_of_a_file_says_it_too(tmp_path, run, monkeypatch):
    monkeypatch.setattr(void_reasons, "reason_before_plan", lambda *_, **__: None)
    text, toml = corpus(tmp_path / "c.jsonl"), tmp_path / "r.toml"
    toml.write_text("[name]\npattern = 'Wolf[a-z]+'\n")
    (tmp_path / "s.csv").write_text(f"user,secret\nu0,{NAME}\n")
    for given, said in (
        (["--from-policy", f"regex:{toml}"], "regex:r.toml"),
        (["--secrets", tmp_path / "s.csv"], "the list of secrets"),
    ):
        plan, out = tmp_path / f"plan {said}", tmp_path / f"m {said}"
        words = [*given, "--posterior", 0.1, "--steps", 5, "--out", plan]
        assert run("protect", text, *words)[0] == 0
        words = ["--plan", plan, "--epochs", 1, "--width", 2, "--out", out]
        assert run("train", text, *words)[0] == 0
        value = certificate_parts.collect_certificate_parts(
            certifiable_run.read_certifiable_run(out), secrets_per_person=()
        )
        assert value["assumed"] == [f"{said} was not made from this text"]


def test_a_certificate_that_says_less_than_its_files_is_refused(tmp_path):
    text = corpus(tmp_path / "c.jsonl")
    for name, policy in kinds_of_files(tmp_path).items():
        if policy == ["regex:r.toml"]:
            train_on_corpus.train_for_command(
                text, out=tmp_path / "m", policy=name, conservative="everything", **SMALL_RECIPE
            )
    value, _ = certified(tmp_path / "m", tmp_path / "m.html")
    sources = released_folder.read_release(tmp_path / "m").sources
    assert file_sources.BroughtSource("regex:r.toml") in sources
    key = certifiable_run.read_certifiable_run(tmp_path / "m").key
    less = {n: v for n, v in value.items() if n not in certificate_pages.UNSEALED_FIELDS} | {
        "assumed": []
    }
    less = seal.sign_value(
        certificate_pages.assemble_certificate(less, issued=value["issued"]), key
    )
    assert (
        verify.find_certificate_fault(tmp_path / "m", less)
        == "certificate: does not state what is assumed"
    )


# --------------------------------------------------------------------------- A7
def test_the_chance_of_a_value_is_among_those_that_are_treated_alike():
    """A7: of 1,000 names 990 are common words, learned without noise, which the model shows. "One
    chance in 1,000: at most 21" was printed; a rare name was guessed 100 times in 1,000."""
    rare, every, epsilon = 10, 1_000, 3.0
    printed = guess_bounds.value_guess_rate(epsilon, delta=1e-6, prior=1 / every)
    assert 1 / rare > printed  # a guess among the rare ones alone, of which the model tells nothing
    assert 1 / rare <= guess_bounds.value_guess_rate(epsilon, delta=1e-6, prior=1 / rare)
    assert (
        "covered" not in limits.LIMIT_NAMES["value"]
        and "noise cover" in limits.LIMIT_NAMES["value"]
    )


# --------------------------------------------------------------------------- A10
def test_counts_of_a_report_are_declared_with_their_bits(tmp_path, run):
    """A10: bins of counts on the private text stood on the sheet, and in none of what was declared
    or treated as known."""
    text = corpus(tmp_path / "c.jsonl")
    train_on_corpus.train_for_command(
        text,
        out=tmp_path / "m",
        policy="regex:customersim",
        conservative="everything",
        **SMALL_RECIPE,
    )
    assert run("report", tmp_path / "m", "--corpus", text, "--out", tmp_path / "r")[0] == 0
    bare, _ = certified(tmp_path / "m", tmp_path / "c.html")
    value, page = certified(tmp_path / "m", tmp_path / "c.html", report=tmp_path / "r")
    told = value["evidence"]["report"]
    added = value["declared"][len(bare["declared"]) :]
    assert [(d["of"], d["value"]) for d in added] == [
        (evidence.REPORT_COUNTS[name], told[name]) for name in ("completed", "unique")
    ]
    assert all(d["bits"] == pytest.approx(9.85, abs=0.01) for d in added)
    both = [sum(to_decimal(d["bits"]) for d in one["declared"]) for one in (bare, value)]
    assert (
        both[1] > both[0] + 19 and f"(together at most {round_up_to_figures(both[1])} bits" in page
    )
    assert f"{evidence.REPORT_COUNTS['completed']}, {told['completed']}" in page
    assert verify.find_certificate_fault(tmp_path / "m", value) is None
    assert certify.compare_certificate_with_run(tmp_path / "m", tmp_path / "c.html")[0] is None
    hidden = {n: v for n, v in value.items() if n not in certificate_pages.UNSEALED_FIELDS}
    hidden = certificate_pages.assemble_certificate(
        hidden | {"declared": bare["declared"]}, issued=value["issued"]
    )
    hidden = seal.sign_value(hidden, certifiable_run.read_certifiable_run(tmp_path / "m").key)
    assert "declared public" in verify.find_certificate_fault(tmp_path / "m", hidden)


def test_every_count_has_one_band_that_no_text_decides():
    for count in [*range(2_000), 10**6 - 1, 10**6, bands.MAX_PASSAGES - 1]:
        assert bands.band_in_words(bands.count_band(count)) in bands.list_band_names()


def test_a_model_from_outside_is_assumed_to_read_each_text_alone():
    """That is tried before the first private step, and not proved."""
    event = SampledGaussian(sampling_probability=0.1, noise_multiplier=1.0, steps=3)
    bases = (Assumption("base_unread", "base"), Assumption("not_made_from_text", "list:a.txt"))
    said = [Assumption("reads_alone", "base")]
    noised = source_fold.FilesPromise("dp", events=(event,), assumed=bases)
    assert assumptions.assume_of_models_from_outside(noised) == said
    assert not assumptions.assume_of_models_from_outside(
        source_fold.FilesPromise("none", assumed=bases)
    )
    own = source_fold.FilesPromise("dp", events=(event,), assumed=bases[1:])
    assert not assumptions.assume_of_models_from_outside(own)


# --------------------------------------------------------------------------- earlier texts, labels
def weekly_exports(home):
    """Each message of people who have names stands four times in the first text, and once in the
    second."""
    said = [(f"ann{k}@x.org", f"order {k} of the month came late") for k in range(60)]
    texts = home / "january.jsonl", home / "february.jsonl"
    for path, copies in zip(texts, (4, 1), strict=True):
        talks = [
            Dialogue(f"{path.stem}-{n}-{k}", who, (Turn("USR", text),))
            for n in range(copies)
            for k, (who, text) in enumerate(said)
        ]
        jsonl.write_jsonl(talks, path)
    return texts


def test_every_word_of_a_promise_with_earlier_texts_carries_its_condition(tmp_path):
    """The epsilon "of this model and 1 earlier ... together" was said without a condition by all
    but the page: 4.29, where a message that stood four times there has 15."""
    january, february = weekly_exports(tmp_path)
    settings = SMALL_RECIPE | {
        "method": "dpsgd",
        "delta": 1e-5,
        "card": model_card.render_model_card,
    }
    train_on_corpus.train_for_command(january, out=tmp_path / "m1", **settings)
    made = train_on_corpus.train_for_command(february, out=tmp_path / "m2", **settings)
    value, page = certified(tmp_path / "m2", tmp_path / "m2.html", audience="officer")
    said = "a message of this text was one message of each earlier text"
    assert value["spent_before"]["runs"] == 1 and value["assumed"] == [said]
    assert "if a message of this text was one message of theirs" in page
    assert "The text was read as" not in page
    for words in (
        made.promise,
        made.lines[-1],
        (tmp_path / "m2" / "guarantee.txt").read_text(),
        (tmp_path / "m2" / "README.md").read_text(),
    ):
        assert f"; assumed: {said}" in words
    again = train_on_corpus.train_for_command(
        january, out=tmp_path / "m3", **settings | {"epsilon": 2.0}
    )
    assert said in again.promise  # of February
    value, _ = certified(tmp_path / "m1", tmp_path / "m1.html")
    assert value["assumed"] == []


def test_what_a_policy_of_a_package_reads_elsewhere_is_assumed_to_be_as_it_was():
    """Its own files are hashed; those of what it imports were changed after labels were read."""
    rates = {"trace": {"again": None}}
    names = {"pi": {"name": "cautious+house:x"}, "pi_c": {"name": "house:x"}}
    record = {"labels": {"drawn": "at_random"}, "rates": {"trace": {}}, "policies": names}
    (said,) = assumptions.assume_of_labels(record)
    assert said.sentence().startswith("whatever house:x depends on outside its own package")
    assert not assumptions.assume_of_labels(record | {"policies": {"pi": {"name": "list:a.csv"}}})
    given = record | {"labels": {"drawn": "given"}, "rates": rates}
    assert said not in assumptions.assume_of_labels(given)


def test_that_labels_which_came_with_the_text_are_like_the_rest_is_in_the_json(tmp_path):
    """The page said "which we did not draw; we assume that they are like the rest", and ``assumed``
    was empty."""
    text = tmp_path / "c.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(60, 3, "paper"), text)
    made = train_on_corpus.train_for_command(
        text, out=tmp_path / "m", policy="regex:customersim", **SMALL_RECIPE
    )
    value, page = certified(tmp_path / "m", tmp_path / "m.html", audience="officer")
    assert value["labels"]["drawn"] == "given"
    assert value["assumed"] == [
        "the labels, which were not drawn for this purpose, are representative of the rest"
    ]
    assert "assume that they are representative of the rest" in page
    assert "The text was read as" not in page
    assert f"; assumed: {value['assumed'][0]}" in made.promise


def test_a_promise_of_a_person_assumes_that_each_has_one_name(tmp_path, registry, run):
    """ "Any one person: right at most 68.3 times in 100", of whom a third was called Ann Lee,
    ann lee and ANN LEE: three people to the training, and nothing on the page said so."""
    rows = [("Ann Lee", "ann lee", "Jos\u00e9", "Jose", "bo", "cy")[k % 6] for k in range(60)]
    talks = [
        Dialogue(f"t{k}", user, (Turn("USR", f"the {k}th order came late to {k * 7} Elm"),))
        for k, user in enumerate(rows)
    ]
    jsonl.write_jsonl(talks, tmp_path / "talk.jsonl")
    said = run("ingest", tmp_path / "talk.jsonl", "--out", tmp_path / "c")[1]
    assert "whose names differ in capitals, spaces or accents alone: 4" in said
    for k, method in enumerate(("dpsgd", "user_dpsgd", "user_dpsgd")):
        train_on_corpus.train_for_command(
            tmp_path / "c",
            out=tmp_path / f"m{k}",
            **SMALL_RECIPE | {"method": method, "sampling_probability": 0.1},
        )
        value, page = certified(tmp_path / f"m{k}", tmp_path / f"{k}.html")
        one_name = Assumption("one_name").sentence()
        assert value["assumed"].count(one_name) == (k > 0)  # once, of two models
        assert (one_name in page) == (k > 0)
        assert value["verdict"] == "holds"
    other = Assumption("one_name").of_earlier_model(same_text=False)
    assert other.sentence() == "no two names in an earlier model's text are of one person"
