"""Certificates that held and were false where a message stands twice, and what is said of them now.

Each text was certified by crtlib 0.3; what that said is told with the test."""

import json
from dataclasses import replace

import pytest

from confide.labels import drawing, imports, label_tasks, registry
from confide.release import certifiable_run, certify
from confide.reports import screening_page as folders_of_screening
from confide.screening import corpus_screening
from confide.screening.corpus_screening import ScreeningOptions
from confide.training import study_of_text, train_on_corpus
from crtlib.screening import redaction
from crtlib.screening.policy import Policy
from crtlib.screening.policy_digests import policy_digest
from crtlib.screening.policy_names import policy_by_name
from crtlib.screening.preparation import prepare_points
from crtlib.screening.teaching_digests import Teaching
from crtlib.text import corpora, jsonl
from crtlib.text.records import MASK, Corpus, Dialogue, Point, Secret, Turn

NUMBER = "regex:wikitext2"  # all digits
SMALL = {"width": 4, "epochs": 1, "sampling_probability": 1.0, "epsilon": 8.0}


def say(name, text):
    """A conversation of one message, whose digits are its secret."""
    digits = [i for i, c in enumerate(text) if c.isdigit()]
    secrets = (Secret("phone", digits[0], digits[-1] + 1),) if digits else ()
    return Dialogue(f"d-{name}", name, (Turn("USR", text, secrets),))


def write(path, dialogues):
    jsonl.write_jsonl(Corpus("", tuple(dialogues)), path)
    return path


def people(count, *, copies=0):
    """People with a number each, of whom some are quoted word for word by somebody else."""
    said = [say(f"u{k}", f"call me at {555_000 + 37 * k} please") for k in range(count)]
    thanks = [say(f"t{k}", f"thanks for that {word}") for k, word in enumerate("abcdefgh")]
    quoted = [say(f"q{k}", said[k].turns[0].text) for k in range(copies)]
    return [*said, *thanks, *quoted]


def blacked_out(dialogues, k):
    """The same, with the number of one message masked."""
    text = dialogues[k].turns[0].text
    secret = dialogues[k].turns[0].secrets[0]
    masked = text[: secret.start] + MASK + text[secret.end :]
    return [*dialogues[:k], say(dialogues[k].user, masked), *dialogues[k + 1 :]]


def test_dropping_copies_is_refused_wherever_something_is_certified(tmp_path, run):
    """0.3: one found secret changed how many points there were, hence the vocabulary and the cut;
    it printed "holds", right at most 51.2 of 100, where 100 of 100 were right."""
    path = write(tmp_path / "c.jsonl", people(60, copies=1))
    options = ("--policy", NUMBER, "--conservative", NUMBER)
    for command in (
        ("screen", path, *options, "--duplicates", "drop", "--out", tmp_path / "s"),
        ("train", path, *options, "--duplicates", "drop", "--out", tmp_path / "m"),
    ):
        code, _, error = run(*command)
        assert code == 2 and error.count("\n") == 1 and "drop" in error and "mask_private" in error
    with pytest.raises(ValueError, match="duplicates"):
        train_on_corpus.train(path, policy=NUMBER, study={"duplicates": "drop"}, **SMALL)
    assert not (tmp_path / "s").exists() and not (tmp_path / "m").exists()


def test_a_training_of_ones_own_takes_no_form_of_the_studies(tmp_path):
    path = write(tmp_path / "c.jsonl", people(60, copies=1))
    for settings in ({}, {"method": "dedup"}, {"gamma": 0.1}):
        study = study_of_text.build_study(path, policy=NUMBER, **settings)
        assert (study.duplicates, study.coin) == ("mask_private", "text")
    point = {"coin": "point"}
    given = SMALL | {"policy": NUMBER, "conservative": "everything", "gamma": 0.5}
    trained = train_on_corpus.train(path, out=tmp_path / "m", study=point, **given)
    assert not trained.holds and "void: What was missed on purpose was drawn" in trained.promise


@pytest.mark.parametrize("form", ["mask_private", "mask"])
def test_sizes_cuts_and_vocabulary_are_those_of_the_neighbour(tmp_path, form):
    """The same text and the one with the secret masked: all that is learned without noise, and all
    that says how much text there is, is equal."""
    worlds = people(60, copies=1)
    made = []
    for name, dialogues in (("with", worlds), ("without", blacked_out(worlds, 0))):
        path = write(tmp_path / f"{name}.jsonl", dialogues)
        how = ScreeningOptions(NUMBER, NUMBER, duplicates=form, keep_ids=True)
        folders_of_screening.screen_into_folder(path, tmp_path / name, how)
        study = study_of_text.build_study(tmp_path / name, unit="turn")
        out = tmp_path / f"{name}.model"
        train_on_corpus.train(tmp_path / name, out=out, repeatable_noise=True, **SMALL)
        public = [d.turns[0].text for d in corpora.read_dialogues(tmp_path / name) if "thanks" in
                  d.turns[0].text]  # fmt: skip
        words = (out / "tokenizer.json").read_text()
        settings = json.loads((out / "experiment.json").read_text())
        settings = {n: v for n, v in settings.items() if n not in ("corpus", "conservative")}
        made.append((study.dialogues, study.heldout, public, words, settings))
    assert made[0] == made[1]


@pytest.mark.parametrize("likeness", ["near", "bloom"])
def test_what_is_screened_by_likeness_has_no_certificate(tmp_path, likeness):
    """0.3: blacking one message out let fourteen others be read; the sums were 8.27 clip norms
    apart where 2 are accounted, and "any one message ... right at most 68.6 times in 100" was
    printed, where 96 of 100 were right."""
    common = "we would like to know when the order of last week will be sent to us again please"
    words = common.split()
    variants = [" ".join([*words[:k], f"w{k}", *words[k + 1 :]]) for k in range(1, len(words))]
    said = [*people(30), *(say(f"v{k}", text) for k, text in enumerate([common, *variants]))]
    path = write(tmp_path / "c.jsonl", said)
    how = ScreeningOptions("everything", "everything", dedup_by=likeness)
    outcome = folders_of_screening.screen_into_folder(path, tmp_path / "s", how)
    assert any("nothing trained on this folder has a certificate" in note for note in outcome.notes)
    trained = train_on_corpus.train(tmp_path / "s", out=tmp_path / "m", **SMALL)
    assert not trained.holds and "void: What is a duplicate was decided by likeness" in (
        trained.promise
    )
    value = certify.write_certificate(tmp_path / "m", tmp_path / "c.html")
    assert value["verdict"] == "void" and "likeness" in " ".join(value["void_because"])


@pytest.mark.parametrize("way", ["train", "screen"])
@pytest.mark.parametrize("labelled", ["by the text", "drawn"])
def test_a_found_secret_in_a_repeated_message_is_a_trace(tmp_path, way, labelled):
    """0.3: "trace 0 of 60", holds, a secret at random right at most 51.2 of 100 at epsilon 8. In
    every way of counting, each of these secrets leaves a trace now."""
    path = write(tmp_path / "c.jsonl", people(60, copies=60))
    judges = drawn_and_read(path, tmp_path / "labels") if labelled == "drawn" else None
    both = {"policy": NUMBER, "conservative": "everything"}
    if way == "screen":
        folders_of_screening.screen_into_folder(
            path, tmp_path / "s", ScreeningOptions(**both), labels=judges
        )
        train_on_corpus.train(tmp_path / "s", out=tmp_path / "m", **SMALL)
    else:
        train_on_corpus.train(path, out=tmp_path / "m", labels=judges, **both, **SMALL)
    value = certify.write_certificate(tmp_path / "m", tmp_path / "c.html")
    trace = value["rates"]["trace"]
    assert trace["count"] == trace["of"] >= 60 and trace["upper"] == 1.0
    assert value["rates"]["miss"]["count"] == 0  # all of them are found
    assert value["verdict"] == "holds"
    assert value["guarantee"]["secret"] == value["guarantee"]["missed"]
    assert "second occurrences" not in " ".join(value["treated_as_public"])


def drawn_and_read(path, folder, *policies):
    """Labels of one message a person, drawn at random, as an honest reader marks them; the policies
    were sealed before."""
    seals = [policy_digest(policy) for policy in policies]
    drawing.draw_label_tasks(path, folder, turns=1_000, seed=0, forms=["jsonl"], sealed=seals)
    lines = []
    for line in (folder / "tasks.jsonl").read_text().splitlines():
        task = json.loads(line)
        digits = [i for i, c in enumerate(task["text"]) if c.isdigit()]
        marks = [{"kind": "phone", "start": digits[0], "end": digits[-1] + 1}] if digits else []
        lines.append(json.dumps(task | {"done": True, "secrets": marks}) + "\n")
    (folder.parent / "read.jsonl").write_text("".join(lines))
    imports.import_labels(path, folder.parent / "read.jsonl", folder)
    return folder


@pytest.mark.parametrize("unit", ["dialogue", "user"])
@pytest.mark.parametrize("places", [2, 9])
def test_a_value_is_masked_wherever_it_stands_in_the_point_of_a_drawn_turn(tmp_path, unit, places):
    """0.3: everybody says the number once without dashes, which the policy misses, and otherwise
    with. Of drawn labels 210 of 400 were traces (at most 57.5 of 100 printed) with two places, with
    nine at most 13.6 of 100; all of them are."""
    said = []
    for k in range(80):
        number = str(555_000 + 37 * k)
        dashed = [f"that is {number[:3]}-{number[3:]}, yes, for the {j}th time" for j in "abcdefgh"]
        turns = [Turn("USR", f"my number is {number}"), *(Turn("USR", text) for text in dashed)]
        said.append(Dialogue(f"d{k}", f"u{k}", tuple(turns[:places])))
    path = write(tmp_path / "c.jsonl", said)
    (tmp_path / "dashes.toml").write_text("[phone]\npattern = '\\d{3}-\\d{3}'\n")
    policy = f"regex:{tmp_path}/dashes.toml"
    judges = drawn_and_read(path, tmp_path / "labels", policy)
    outcome = folders_of_screening.screen_into_folder(
        path, tmp_path / "s", ScreeningOptions(policy, "everything", unit), labels=judges
    )
    trace, miss = outcome.rates.trace, outcome.rates.miss
    assert (trace.failures, miss.failures, trace.judged_secrets) == (80, 80, 80)


def test_a_short_value_is_looked_for_as_it_is_written(tmp_path):
    said = [
        Dialogue(f"d{k}", f"u{k}", (Turn("USR", f"room 1{k % 9}"), Turn("USR", f"yes, 1{k % 9}.")))
        for k in range(60)
    ]
    path = write(tmp_path / "c.jsonl", said)
    (tmp_path / "room.toml").write_text("[room]\npattern = '(?<=room )\\d+'\n")
    policy = f"regex:{tmp_path}/room.toml"
    judges = drawn_and_read(path, tmp_path / "labels", policy)
    how = ScreeningOptions(policy, "everything", "dialogue", dedup="none")
    outcome = folders_of_screening.screen_into_folder(path, tmp_path / "s", how, labels=judges)
    assert outcome.rates.trace.failures == outcome.rates.trace.judged_secrets == 60


@pytest.mark.parametrize("why", ["late", "taught"])
def test_what_was_read_before_fails_whether_copies_are_hidden_or_not(tmp_path, monkeypatch, why):
    """Turns that may not judge are known by their text, so it is the repeated ones that were left
    out: trace 0 of 137 was printed where half of the secrets stand in a repeated message."""
    unique = [say(f"u{k}", f"call me at {555_000 + 37 * k} please") for k in range(60)]
    quoted = [say(f"q{k}", f"the office has {444_000 + k % 4}") for k in range(60)]
    path = write(tmp_path / "c.jsonl", [*unique, *quoted])
    (tmp_path / "digits.toml").write_text("[phone]\npattern = '\\d{6}'\n")
    policy = f"regex:{tmp_path}/digits.toml"
    before = {d.turns[0].text for d in quoted}
    judges = drawn_and_read(path, tmp_path / "labels", policy)
    if why == "late":
        late = {t.task for t in label_tasks.read_tasks(judges) if t.text in before}
        early = registry.ReadBeforeSeal(frozenset(late), frozenset())
        monkeypatch.setattr(registry, "read_before_seal", lambda *_: early)
    else:
        monkeypatch.setattr(
            Teaching,
            "repeats_taught_words",
            lambda _, point: point.text.removeprefix("USR: ") in before,
        )
        taught = replace(policy_by_name(policy), taught_by=(Teaching(*[frozenset()] * 3),))
        monkeypatch.setattr(corpus_screening, "policy_by_name", lambda name: taught)
    outcome = folders_of_screening.screen_into_folder(
        path, tmp_path / "s", ScreeningOptions(policy, "everything"), labels=judges
    )
    trace = outcome.rates.trace
    assert (trace.failures, trace.judged_secrets, outcome.rates.points) == (60, 120, 120)
    alone = folders_of_screening.screen_into_folder(
        path,
        tmp_path / "alone",
        ScreeningOptions(policy, "everything", dedup="none"),
        labels=judges,
    )
    assert (alone.rates.trace.failures, alone.rates.trace.judged_secrets) == (60, 120)


def test_messages_are_equal_where_policies_are_shown_the_same(tmp_path):
    """A pasted line "USR: 123456" by nobody and a message "123456" are one text; what reads a
    turn's own words flags the second alone, and masking it put the first into the public part."""
    text = "USR: 123456"
    message = Point("0", "ann", text, (Secret("id", 5, 11),), spoken_spans=((5, 11),))
    pasted = Point("1", "bob", text, (Secret("id", 5, 11),))
    alone = Policy(
        "a number and nothing else",
        lambda points: [[Secret("id", 0, 6)] if p.text == "123456" else [] for p in points],
        own_words=True,
    )
    worlds = [message, pasted], [redaction.redact(message, message.secrets), pasted]
    public = [
        [p.text for p in prepare_points(w, alone(w), alone(w), duplicates="mask_private").public]
        for w in worlds
    ]
    assert public == [[text], [text]]


def test_messages_of_one_template_that_are_masked_together(tmp_path):
    """Each of five messages of a person leaves no trace alone; masked together they are copies of
    each other, and four private points change: 51.2 of 100 was printed for them, and 74 were
    right. So no trace rate is counted on for several messages, but where copies are kept."""
    said = [
        Dialogue(f"d{k}-{j}", f"u{k}", say("", f"my code is {100_000 + 5 * k + j}").turns)
        for k in range(60)
        for j in range(5)
    ]
    path = write(tmp_path / "c.jsonl", said)
    first = [say("", f"my code is {MASK}").turns[0] if d.user == "u0" else d.turns[0] for d in said]
    private = []
    for turns in ([d.turns[0] for d in said], first):
        points = [Point(str(k), "u", turn.text) for k, turn in enumerate(turns)]
        pi = policy_by_name(NUMBER)
        made = prepare_points(points, pi(points), pi(points), duplicates="mask_private")
        private.append(sum(p.text == MASK for p in made.private))
    assert private == [0, 4]
    train_on_corpus.train(
        path, out=tmp_path / "m", policy=NUMBER, conservative="everything", **SMALL
    )
    value = certify.write_certificate(
        tmp_path / "m", tmp_path / "c.html", secrets_per_person=(1, 5)
    )
    rows = {(r["who"], r["copies"]): r["at_most"] for r in value["right_guess"]}
    promise = certifiable_run.read_certifiable_run(tmp_path / "m").promise()
    assert (
        rows["user", 5]
        >= promise.right_guess_chance(5, 1.0, 0.0)
        > promise.right_guess_chance(5, promise.gamma, 0.0)
    )
    assert rows["user", 1] == rows["random", 1] < rows["missed", 1]
    kept = replace(promise, counts_masked_copies=False)  # as with --dedup none
    assert kept.right_guesses((5,))[-1][2] == promise.right_guess_chance(5, promise.gamma, 0.0)
