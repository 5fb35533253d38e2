"""One number, one computation: what is said of a model in ``guarantee.txt``, on its card, in the
last line of ``train`` and with ``--json`` are the numbers of its certificate, whatever they stand
on."""

import json
import re
from dataclasses import asdict, replace

import pytest

from confide.labels import adjudication, drawing, imports, judged_turns, label_tasks
from confide.release import certify
from confide.reports import model_card, sentences
from crtlib.accounting.guarantees import BoundedRate
from crtlib.screening.rate_values import rate_upper_bound
from crtlib.text import customersim, jsonl
from tests import trainings

TINY = {
    "unit": "turn", "epochs": 1, "embedding": 4, "hidden": 4, "noise_multiplier": 2.0,
    "delta": 8e-5, "sampling_probability": 0.1,
    "card": model_card.render_model_card,
}  # fmt: skip
FINDS, OTHER = "regex:customersim", "regex:schema_guided"  # the second leaves some in clear
PEOPLE = 40


def corpus_in(home, *, bare=False):
    """A text of :data:`PEOPLE` people; ``bare``: without the labels that it comes with."""
    made = customersim.simulate_corpus(PEOPLE, 3, "paper")
    if bare:
        made = replace(made, dialogues=tuple(
            replace(d, turns=tuple(replace(t, secrets=()) for t in d.turns))
            for d in made.dialogues
        ))  # fmt: skip
    jsonl.write_jsonl(made, home / "talk.jsonl")
    return home / "talk.jsonl"


def crt(corpus, out, **more):
    how = {**TINY, "policy": FINDS, "conservative": FINDS, **more}
    return trainings.train(corpus, out=out, method="crt", **how)


def read_by_people(home, readers):
    """A text without labels, and those of so many readers: of all people a turn each. The first one
    overlooks two secrets; a third one decides for the second."""
    corpus, folder = corpus_in(home, bare=True), home / "labels"
    known = {d.id: d.turns for d in customersim.simulate_corpus(PEOPLE, 3, "paper").dialogues}
    kinds = sorted({s.kind for turns in known.values() for t in turns for s in t.secrets})
    drawing.draw_label_tasks(corpus, folder, turns=PEOPLE, seed=1, kinds=kinds, forms=["jsonl"])
    tasks = [
        {"task": t.task, "done": True,
         "secrets": [asdict(s) for s in known[t.id][t.turn].secrets]}
        for t in label_tasks.read_tasks(folder)
    ]  # fmt: skip
    overlooked = [t for t in tasks if t["secrets"]][:2] if readers > 1 else []
    first = [t | {"secrets": []} if t in overlooked else t for t in tasks]
    about = label_tasks.read_label_facts(folder)
    for role, name, marked in [("first", "ann", first), ("second", "bob", tasks),
                               ("decides", "eve", overlooked)][:readers]:  # fmt: skip
        done = home / f"{role}.json"
        page = {"schema": "crtlib/labels/1", "labels": label_tasks.name_label_page(about, role)}
        done.write_text(json.dumps({**page, "annotator": name, "tasks": marked}))
        imports.import_labels(corpus, done, folder, role=role)
        if readers > 1 and role != "decides":
            adjudication.write_adjudication(corpus, folder, home / f"after {role}", share=1)
    return corpus, folder


# --------------------------------------------------------------------------- the ways to a rate
def labels_of_the_text(home, run):
    return crt(corpus_in(home), home / "m")


def one_reader(home, run):
    corpus, folder = read_by_people(home, 1)
    return crt(corpus, home / "m", labels=folder, policy=OTHER, conservative=OTHER)


def two_readers(home, run):
    corpus, folder = read_by_people(home, 2)
    return crt(corpus, home / "m", labels=folder)


def a_third_reader_decides(home, run):
    corpus, folder = read_by_people(home, 3)
    return crt(corpus, home / "m", labels=folder, policy=OTHER)


def several_pairs_judged(home, run):
    corpus, folder = read_by_people(home, 2)
    told = label_tasks.read_label_facts(folder)
    for name in ("p", "q"):
        judged_turns.record_judged_pair(folder, pi=name, pi_c=name, corpus_sha256=told["corpus"])
    return crt(corpus, home / "m", labels=folder)


def certain_from_the_policy(home, run):
    return crt(corpus_in(home), home / "m", policy=OTHER, conservative="everything")


def unknown(home, run):
    return crt(corpus_in(home, bare=True), home / "m", conservative="everything")


def assumed(home, run):
    return trainings.train(corpus_in(home), out=home / "m", method="dpsgd", **TINY)


def of_a_person(home, run):
    return trainings.train(corpus_in(home), out=home / "m", method="user_dpsgd", **TINY)


def screened_folder(home, run):
    words = ["--policy", OTHER, "--out", home / "s"]
    assert run("screen", corpus_in(home), *words)[0] == 0
    how = {n: v for n, v in TINY.items() if n != "unit"}
    return trainings.train(home / "s", out=home / "m", method="crt", **how)


def earlier_runs(home, run):
    """One of the same screening, one of another, and one without protection."""
    corpus = corpus_in(home)
    crt(corpus, home / "same")
    crt(corpus, home / "other", conservative="cautious")
    trainings.train(corpus, out=home / "plain", method="sgd", epochs=1)
    return crt(corpus, home / "m")


def raw_after_screened(home, run):
    """The labels that bound the earlier run have judged another pair since."""
    corpus = corpus_in(home)
    crt(corpus, home / "before")
    assert run("screen", corpus, "--policy", OTHER, "--out", home / "s")[0] == 0
    return trainings.train(corpus, out=home / "m", method="dpsgd", **TINY)


def of_several_trials(home, run):
    corpus = corpus_in(home)
    crt(corpus, home / "before", trials=2)
    return crt(corpus, home / "m", trials=3)


def a_plan(home, run):
    from confide.training import train_on_corpus

    words = ["--from-policy", FINDS, "--posterior", 0.1, "--steps", 5, "--out", home / "plan"]
    assert run("protect", corpus_in(home), *words)[0] == 0
    return train_on_corpus.train(
        home / "talk.jsonl", plan=home / "plan", out=home / "m", epochs=1, width=4
    )


def void(home, run):
    path = corpus_in(home)
    path.write_text(path.read_text().replace('"s3-d0"', '"somebody\'s"'))  # so it is no simulation
    return crt(path, home / "m", policy="oracle", conservative="oracle")


def no_noise(home, run):
    return trainings.train(corpus_in(home), out=home / "m", method="sgd", epochs=1)


WAYS = [
    labels_of_the_text, one_reader, two_readers, a_third_reader_decides, several_pairs_judged,
    certain_from_the_policy, unknown, assumed, of_a_person, screened_folder, earlier_runs,
    raw_after_screened, of_several_trials, a_plan, void, no_noise,
]  # fmt: skip


# --------------------------------------------------------------------------- what is said
def pair(text):
    """The two numbers of "(epsilon, delta)", at the beginning of a text."""
    return tuple(float(x) for x in re.match(r"\((\S+), (\S+?)\)", text).groups())


def told(certificate_pair):
    return float(certificate_pair["epsilon"]), certificate_pair["delta"]


def rounded_up(said, exact):
    """A number of at most four figures, as text, that is not below the bound."""
    return exact <= float(said) <= exact * 1.001


def rates_agree(words, value):
    """What is said of the two rates is what the certificate has, counts included."""
    for symbol, name in (("gamma", "trace"), ("delta2", "public")):
        rate, clause = (
            value["rates"][name],
            re.search(rf"{symbol} = ([^;]*(; of [^;]*)?)", words)[1],
        )
        together = value["spent_before"][symbol]
        if rate["how"] == "one_per_cluster":
            alpha = value["labels"]["alpha"] / (2 * value["labels"]["judged"])
            bound = rate_upper_bound(rate["count"], rate["of"], rate.get("again"), alpha=alpha)
            assert rate["upper"] == bound
            counts = re.search(r"measured: (\d+) of (\d+)"
                               r"(?:; of (\d+) that a second reader found, (\d+))?",
                               clause).groups()  # fmt: skip
            again = rate.get("again") or (None, None)
            assert counts == tuple(
                None if n is None else str(n)
                for n in (rate["count"], rate["of"], again[1], again[0])
            )
            held, upper = re.search(r"(\S+) % upper bound (\S+?)\)", clause).groups()
            assert float(held) / 100 <= 1 - alpha and rounded_up(upper, rate["upper"])
        else:
            assert rounded_up(clause.split()[0], rate["upper"]) and "upper bound" not in clause
        added = re.search(r"with earlier models at most (\S+)", clause)
        assert bool(added) == (together != rate["upper"])
        assert not added or rounded_up(added[1], together)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_is_said_of_a_model_is_what_its_certificate_says(tmp_path, run, way):
    """With two readers, ``guarantee.txt``, the card and the last line forgot what the first one had
    overlooked: (1.69, 0.0147) where the certificate said (1.96, 0.0789)."""
    made = way(tmp_path, run)
    value = certify.write_certificate(
        tmp_path / "m", tmp_path / "m.html", audience="officer", secrets_per_person=()
    )
    words = (tmp_path / "m" / "guarantee.txt").read_text().removesuffix("\n")
    assert (
        words
        == made.promise
        == made.facts["promise"]
        == made.lines[-1]
        == model_card.describe_promise(value)
    )
    if (card := tmp_path / "m" / "README.md").exists():
        text = card.read_text()
        assert text.partition("## What it may give away\n\n")[2].partition("\n")[0] == words
    assert made.holds == (value["verdict"] == "holds") == bool(made.facts["kind"])
    assert made.holds == (way not in (void, no_noise)), value["void_because"]
    if not made.holds:
        assert words.startswith("no guarantee") and "(" not in words
        assert words.partition("; void: ")[2] == " ".join(value["void_because"])
        assert (way is void) == (value["verdict"] == "void")
        return
    page, g, before = sentences.select_sentences(value), value["guarantee"], value["spent_before"]
    if way is a_plan:
        said = re.findall(r"chance of (\S+) without .*? chance of at most (\S+) with", words)
        exact = [(row["prior"], row["at_most"]) for row in value["value_guess"]]
        assert [(float(p), float(q)) for p, q in said] == exact
        assert all(f"at most {q}" in " ".join(page["guessed_value"]) for _, q in said)
        return
    assert pair(words) == told(g["secret"])
    assert (
        f"({g['secret']['epsilon']}, " in certify.summarise_certificate(value) or g["kind"] == "dp"
    )
    # Which it is: of this model alone, or with what was spent before; counted as the page counts.
    runs, trials = before["runs"], value["searched"]["trials"]
    assert re.findall(r"(\d+) earlier on this text", words) == [str(runs)] * (runs > 0)
    assert re.findall(r"(\d+) that were compared", words) == [str(trials - 1)] * (trials > 1)
    alone = re.findall(r"alone: (\(\S+, \S+\))", words)
    assert [pair(a) for a in alone] == [told(before["alone"])] * (runs > 0)
    assert runs > 0 or g["secret"] == before["alone"]
    unprotected = re.findall(
        r"not counted: (\d+) trained on this text or .* without protection", words
    )
    assert unprotected == [str(before["unprotected"])] * (before["unprotected"] > 0)
    assert ("earlier_runs" in page, "unprotected_runs" in page) == (
        runs > 0,
        before["unprotected"] > 0,
    )
    assert runs == 0 or f"this model and {runs} earlier one" in page["earlier_runs"][0]
    assert all(x in words for x in (*value["treated_as_public"], *value["assumed"]))
    if g["kind"] == "dp":
        assert "gamma" not in words and "whatever a search for secrets finds" in words
        return
    passed = re.search(r"passed over(, but that was learned with noise)?: (\(\S+, \S+\))", words)
    assert pair(passed[2]) == told(g["missed"]) and bool(passed[1]) == (before["delta2"] > 0)
    rates_agree(words, value)
    trace = value["rates"]["trace"]
    assert ("again" in trace) == (
        way in (two_readers, a_third_reader_decides, several_pairs_judged)
    )
    if "again" in trace:  # what the first overlooked counts: one reader alone had a smaller bound
        one = BoundedRate.measured(trace["count"], trace["of"], confidence=0.975)
        assert trace["again"][1] > 5 and trace["upper"] > one.bound
    # The page says both shares of 100, rounded upwards.
    for sentence, share in (
        ("missed_secret", before["gamma"]),
        ("learned_without_noise", before["delta2"]),
    ):
        if sentence in page:
            of_100 = re.search(r"at most (\S+) (?:of 100|may)", page[sentence][0])[1]
            assert share <= float(of_100) / 100 <= max(1.01 * share, 1e-9)
