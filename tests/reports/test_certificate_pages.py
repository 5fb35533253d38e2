"""The certificate: every sentence if and only if it is true, no number rounded down, valid JSON."""

import copy
import html
import json
import re
from decimal import Decimal

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from confide.assumption_sentences import Assumption
from confide.reports import certificate_pages, model_card, sentences
from confide.reports.html import format_bound, format_number

SHA = {letter: letter * 64 for letter in "abcdef0"}


def rate(count, of, upper, how="one_per_cluster"):
    return {
        "count": count,
        "of": of,
        "rate": count / of if of else None,
        "upper": upper,
        "how": how,
    }


PARTS = {
    "software": {"crtlib": "0.2.0", "python": "3.11.9", "torch": "2.13.0"},
    "verdict": "holds",
    "void_because": [],
    "model": {"name": "helpdesk", "sha256": SHA["a"], "parameters": 134_515_008,
              "trained_parameters": 1_000_000, "base": {"name": "smollm2", "sha256": SHA["b"]}},
    "corpus": {"name": "helpdesk.jsonl", "hmac": SHA["c"], "turns": 120_433, "users": 8_122,
               "users_are": "column", "from": "2025-01-01", "to": "2026-02-28"},
    "unit": "turn",
    "method": {"name": "crt", "label": "CRT"},
    "guarantee": {
        "kind": "bayesian_confidentiality",
        "secret": {"epsilon": 0.44, "delta": 0.009181},
        "missed": {"epsilon": 3.0, "delta": 1e-6},
        "relation": "replace", "accountant": "pld", "proved": True, "error_charged": 1e-9,
        "conjectured": None, "plan": None,
    },
    "right_guess": [
        {"who": "random", "copies": 1, "prior": 0.5, "at_most": 0.50999},
        {"who": "missed", "copies": 1, "prior": 0.5, "at_most": 0.5982},
        {"who": "user", "copies": 5, "prior": 0.5, "at_most": 0.5491},
        {"who": "user", "copies": 20, "prior": 0.5, "at_most": 0.6999},
    ],
    "value_guess": [{"prior": 1e-6, "at_most": 2.1086e-5}],
    "mechanism": {
        "randomness": "operating_system", "floating_point": "float32",
        "phases": [
            {"kind": "public", "points": 900, "steps": 120},
            {"kind": "private", "points": 46_080, "steps": 360, "noise_multiplier": 1.063,
             "sampling_probability": 1 / 90, "clip_norm": 1.0, "nonfinite": 0},
        ],
    },
    "rates": {"miss": rate(21, 400, 0.0752), "trace": rate(13, 400, 0.05494),
              "public": rate(0, 400, 0.00918), "by_kind": {"name": {"trace": rate(3, 90, 0.091)}}},
    "labels": {"hmac": SHA["d"], "drawn": "at_random", "cluster": "user", "turns": 1_310,
               "secrets": 520, "judged": 1, "alpha": 0.05, "agreement": None},
    "policies": {"pi": {"name": "tagger:T", "hmac": SHA["e"], "taught_by": None},
                 "pi_c": {"name": "cautious", "hmac": SHA["f"], "taught_by": None}},
    "treated_as_public": ["the number of messages"],
    "searched": {"trials": 1, "charged": False},
    "canaries": {"planted": 0, "copies": 0},
    "spent_before": {"alone": {"epsilon": 0.44, "delta": 0.009181}, "unprotected": 0, "runs": 0,
                     "entries": []},
    "not_promised": ["facts that many people state", "text that was no secret to the search"],
    "evidence": {"audit": None, "report": None},
}  # fmt: skip


def made(*changes):
    """A sealed certificate with some fields changed: (dotted path, value)."""
    parts = copy.deepcopy(PARTS)
    for path, value in copy.deepcopy(changes):
        *way, last = path.split(".")
        place = parts
        for name in way:
            place = place[int(name)] if name.isdigit() else place[name]
        place[int(last) if last.isdigit() else last] = value
    value = certificate_pages.assemble_certificate(parts, issued="2026-03-01T12:00:00Z")
    certificate_pages.certificate_validator().validate(value)
    return value


def said(*changes):
    return sentences.select_sentences(made(*changes))


VOID = (("verdict", "void"), ("void_because", ["The randomness was a seed."]))
NONE = (
    ("verdict", "none"), ("guarantee.kind", "none"), ("method", {"name": "sgd", "label": "SGD"}),
    ("guarantee.secret", {"epsilon": "inf", "delta": 1}),
    ("guarantee.missed", {"epsilon": "inf", "delta": 1}),
)  # fmt: skip
DP = (("guarantee.kind", "dp"), ("labels", None))
PLAN = (
    ("guarantee.kind", "secret_protection"), ("guarantee.plan", SHA["0"]),
    ("guarantee.secret", {"epsilon": "inf", "delta": 1}), ("labels", None),
    ("guarantee.missed", {"epsilon": "inf", "delta": 1}), ("right_guess", []),
    ("value_guess", [{"prior": 0.001, "at_most": 0.05}]),
    ("rates.public", rate(0, 0, 0.0, "policy")),
)  # fmt: skip
AUDIT = (("evidence.audit", {"lower": 0.4, "epsilon": 3.0, "strongest_attacker_power": 0.613}),)
DECLARED = (("declared", [{"of": "perplexity", "value": "8 to 16", "bits": 3.71}]),)
OTHER = (
    ("right_guess.3", {"who": "other", "copies": 1, "prior": 0.5, "at_most": 0.5091}),
    ("labels.others", 398),
)
REPORT = (("evidence.report", {"completed": "2,300 to 2,399", "unique": "380 to 389"}),)

FILES = (("assumed", ["list:a.txt was not made from this text"]),)
NAMES = (("assumed", [Assumption("one_name").sentence()]),)
EARLIER = "gpt2, from which an earlier model started, had not read this text"
EARLIER_BASE = (("assumed", ["smollm2 had not read this text", EARLIER]),)

# Of each sentence: changes under which it must be said, and under which it must not.
LIMITS = (("limits", [{"limit": "guess <= 55", "certified": 52.4, "met": True},
                      {"limit": "public <= 1%", "certified": 0.0377, "met": False}]),)  # fmt: skip
TAUGHT = (("assumed", [Assumption("people_taught", people=280).sentence()]),)
SCRIPT = (
    ("assumed", [Assumption("script", "run.py").sentence()]),
)  # fmt: skip
OUTSIDE = (("assumed", ["smollm2 had not read this text", "smollm2 reads each text alone, as was "
                         "tried on random texts"]),)  # fmt: skip
CASES = {
    "limits": ([LIMITS, (*VOID, *LIMITS)], [(), (("limits", []),)]),
    "no_promise": ([VOID, NONE], [(), DP, PLAN]),
    "training_text": ([(), VOID, NONE, DP, PLAN], []),
    "random_secret": ([()], [VOID, NONE, DP, PLAN]),
    "secret_of_unread_people": ([OTHER], [(), DP, PLAN, (*VOID, *OTHER)]),
    "no_earlier_run": (
        [(), DP],
        [
            (("spent_before.runs", 1),),
            (("spent_before.unprotected", 1),),
            (("spent_before.struck", 1),),
            (("spent_before.forgotten", 1),),
            VOID,
            NONE,
        ],
    ),
    "treated_as_public": ([(), DP], [(("treated_as_public", []),), VOID, NONE]),
    "missed_secret": ([(), DP], [VOID, NONE, PLAN]),
    "learned_without_noise": (
        [(), (("rates.public", rate(0, 0, 0.0, "unknown")),)],
        [VOID, NONE, PLAN, (("rates.public", rate(0, 0, 0.0, "policy")),)],
    ),
    "several_secrets": ([()], [VOID, NONE, PLAN, (("right_guess", PARTS["right_guess"][:2]),)]),
    "guessed_value": ([(), DP, PLAN], [VOID, NONE]),
    "labels_drawn_at_random": ([()], [VOID, NONE, DP, (("labels.drawn", "given"),)]),
    "labels_given": ([(("labels.drawn", "given"),)], [(), DP, (*VOID, ("labels.drawn", "given"))]),
    "shares_of_earlier_searches": (
        [(("labels", None), ("spent_before.delta2", 0.5))],
        [
            (),
            (("labels", None),),
            (("spent_before.delta2", 0.5),),
            (*VOID, ("labels", None), ("spent_before.delta2", 0.5)),
            (*DP, ("labels", None), ("spent_before.gamma", 1.0)),
        ],
    ),
    "earlier_runs": ([(("spent_before.runs", 1),), (*VOID, ("spent_before.runs", 2))], [(), VOID]),
    "unprotected_runs": (
        [(("spent_before.unprotected", 1),), (*NONE, ("spent_before.unprotected", 2))],
        [(), (("spent_before.runs", 3),)],
    ),
    "runs_on_other_text": (
        [(("spent_before.elsewhere", 1),)],
        [(), (*VOID, ("spent_before.elsewhere", 1)), (*DP, ("spent_before.elsewhere", 2))],
    ),
    "struck_runs": (
        [(("spent_before.struck", 1),), (*NONE, ("spent_before.struck", 2))],
        [(), (("spent_before.runs", 3),)],
    ),
    "forgotten_texts": (
        [(("spent_before.forgotten", 1),), (*DP, ("spent_before.forgotten", 2))],
        [(), VOID, NONE, (("spent_before.struck", 3),)],
    ),
    "trials": ([(("searched.trials", 2),), (*VOID, ("searched.trials", 9))], [(), VOID]),
    "canaries": ([(("canaries", {"planted": 1, "copies": 3}),)], [(), NONE]),
    "base_model": ([(), NONE], [(("model.base", None),)]),
    "bases_of_earlier_runs": (
        [EARLIER_BASE, (*DP, *EARLIER_BASE, ("model.base", None))],
        [(), FILES, (*VOID, *EARLIER_BASE), (("assumed", ["smollm2 had not read this text"]),)],
    ),
    "model_reads_texts_alone": ([OUTSIDE, (*DP, *OUTSIDE)], [(), FILES, (*VOID, *OUTSIDE)]),
    "script": ([SCRIPT, (*DP, *SCRIPT)], [(), FILES, (*VOID, *SCRIPT), OUTSIDE]),
    "teaching": ([TAUGHT, (*DP, *TAUGHT)], [(), FILES, (*VOID, *TAUGHT), OUTSIDE]),
    "files_that_decided": (
        [FILES, (*DP, *FILES)],
        [
            (),
            (("assumed", ["smollm2 had not read this text"]),),
            (*VOID, *FILES),
            NONE,
            EARLIER_BASE,
            OUTSIDE,
            SCRIPT,
        ],
    ),
    "names": (
        [NAMES, (*DP, *NAMES), (*PLAN, *NAMES)],
        [(), DP, PLAN, FILES, (*VOID, *NAMES)],
    ),
    "attacks": ([AUDIT, REPORT, (*VOID, *AUDIT)], [(), VOID, (("evidence", {}),)]),
    "not_promised": ([(), VOID, NONE, DP, PLAN], []),
    "declared": ([DECLARED], [(), (*VOID, *DECLARED), (("declared", []),)]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sentence_is_said_if_and_only_if_its_condition_holds(name):
    yes, no = CASES[name]
    assert all(name in said(*changes) for changes in yes)
    assert not [changes for changes in no if name in said(*changes)]


def test_every_sentence_has_its_cases():
    assert set(CASES) == set(sentences.load_sentences())


def test_the_words_of_the_worked_example():
    words = {name: " ".join(texts) for name, texts in said().items()}
    assert words["training_text"] == (
        "Model “helpdesk” was trained on a text of 120,433 messages of 8,122 "
        "people, taken from a corpus of 2025-01-01 to 2026-02-28."
    )
    assert "right at most **51.0 times in 100**" in words["random_secret"]
    assert (
        "(at most 5.50 of 100 drawn in this way): at most 59.9 times in 100."
        in words["missed_secret"]
    )
    # Of 302 people two said 600 of 900 secrets, and all 600 were learned without noise, where "at
    # most 2.86 of 100 secrets" was printed: it is the share of a draw.
    assert words["learned_without_noise"].startswith(
        "**Without any protection**: of 100 secrets drawn in this way, at most "
        "0.918 may have been learned word for word from that message"
    )
    assert (
        "Of all secrets it may be more: one that is said elsewhere"
        in words["learned_without_noise"]
    )
    assert (
        "A person with 5 secrets, each said in one message, or a secret said in 5 messages: at "
        "most 55.0" in words["several_secrets"]
    )
    assert (
        "said in 20 messages: at most 70.0 times in 100, if their secrets"
        in words["several_secrets"]
    )
    assert words["guessed_value"] == (
        "Guessing the value of a passed-over secret, said in one message and learned with noise, "
        "that has one chance in 1,000,000 among the values that the search would pass over and "
        "noise would cover: at most 22 in 1,000,000."
    )
    assert (
        "read 1,310 messages of as many persons drawn at random; 400 had a secret"
        in words["labels_drawn_at_random"]
    )
    assert (
        "with 95 % confidence" in words["labels_drawn_at_random"]
        and "judged" not in words["labels_drawn_at_random"]
    )
    assert (
        words["base_model"] == "It started from smollm2; nothing is said about other text that "
        "smollm2 had read."
    )
    assert list(words) == [
        "training_text",
        "random_secret",
        "missed_secret",
        "learned_without_noise",
        "several_secrets",
        "guessed_value",
        "labels_drawn_at_random",
        "no_earlier_run",
        "base_model",
        "treated_as_public",
        "not_promised",
    ]


@pytest.mark.parametrize("changes, of_whom", [
    ([], "A person with 5 secrets, each said in one message, or a secret said in 5 messages:"),
    ([("unit", "dialogue")], "5 secrets, each said in one message, or a secret said in 5 messages"),
    ([("unit", "user")], "A person with 5 secrets, or a secret that 5 people say: at most"),
    ([*DP, ("unit", "user")], "What 5 people say, or a secret that as many people say: at most"),
])  # fmt: skip
def test_a_bound_of_several_secrets_says_what_is_counted(changes, of_whom):
    """ "A person with 5 secrets: at most 96.7 times in 100" stood below "any one person: at most
    68.3"; and a person whose 5 secrets stand in 40 messages has no such bound."""
    assert of_whom in said(*changes)["several_secrets"][0]


def test_who_is_one_person_decided_nothing_of_how_the_text_was_read():
    """ "It is assumed that no two names in this text are of one person. The text was read as it
    says: a message that decided what is said there would decide how any number is read"."""
    words = said(*DP, *NAMES)
    assert "files_that_decided" not in words
    assert "**: somebody with two names counts as two people" in words["names"][0]
    assert (
        "value, or all that one person has together, that"
        in said(*PLAN, *NAMES)["guessed_value"][0]
    )


@pytest.mark.parametrize("changes, how", [
    ([], "(a person, then one of their messages, until it holds one)"),
    ([("labels.cluster", "dialogue")], "(a conversation, then one of its messages, until"),
    ([("labels.drawn", "given")], "(a person, then one of their secrets)"),
    ([("labels", None)], "(as were those by which the searches were judged)"),
])  # fmt: skip
def test_a_secret_is_drawn_as_the_labels_were(changes, how):
    assert how in said(*changes)["random_secret"][0]


def test_what_holds_without_a_confidence_level_says_over_what_it_averages():
    words = said(*OTHER)["secret_of_unread_people"][0]
    assert "at most 398 people), of whom nobody read a message" in words
    assert "50.9" not in words and "at most **51.0 times in 100 on average over whom" in words
    assert (
        "at most 398 conversations"
        in said(*OTHER, ("labels.cluster", "dialogue"))["secret_of_unread_people"][0]
    )


def test_what_an_earlier_search_adds_to_a_share_is_not_said_of_these_labels():
    assert said()["labels_drawn_at_random"][0].startswith("These shares were measured")
    words = said(("spent_before.gamma", 0.1))["labels_drawn_at_random"][0]
    assert words.startswith("Of these shares, those of this model's own search, at most 5.50 and ")
    assert words.endswith("Those of earlier searches are added, each with a confidence of its own.")


EVERY = {"share": 0.31, "upper": 0.4001, "cap": 4, "alpha": 0.025}


def test_a_certificate_names_what_its_shares_are_of():
    every = ("rates.trace.all_secrets", EVERY), ("rates.public.all_secrets", {**EVERY, "share": 0})
    (text,) = said(*every)["labels_drawn_at_random"]  # which validates it too
    assert (
        "Both are per 100 **messages** that hold a secret. Of 100 **secrets** in messages" in text
    )
    assert "counts as 4), at most 40.1 leave a trace and at most 40.1 may be learned" in text
    assert "(each with 97.5 % confidence on its own). **A larger share of secrets fails" in text
    (alike,) = said(("rates.trace.all_secrets", {**EVERY, "share": 0.04}))["labels_drawn_at_random"]
    assert "**secrets**" in alike and "larger share" not in alike
    (fewer,) = said(("rates.trace.all_secrets", {**EVERY, "share": 0.01, "upper": 0.02}))[
        "labels_drawn_at_random"
    ]
    assert "A smaller share of secrets fails than of messages, by more than the error." in fewer
    (two,) = said(("rates.trace.again", [1, 80]))["labels_drawn_at_random"]
    assert "There is no number for all secrets, as a second person read" in two


def test_words_that_depend_on_the_case():
    one = said(("corpus.users_are", "thread"))["training_text"][0]
    assert one.endswith("Where no person was known, each conversation counts as a person.")
    assert "people" not in said(("corpus.users_are", "unknown"))["training_text"][0]
    assert "**Any one conversation**" in said(*DP, ("unit", "dialogue"))["missed_secret"][0]
    assert (
        "drawn in this way, at most 100 may"
        in said(("rates.public", rate(0, 0, 0.1, "unknown")))["learned_without_noise"][0]
    )
    assert (
        "20 messages: no promise." in said(("right_guess.3.at_most", 0.995))["several_secrets"][1]
    )
    assert (
        "20 messages: at most 99.5"
        in said(("right_guess.3.at_most", 0.99499))["several_secrets"][1]
    )
    assert said(*PLAN)["guessed_value"] == [
        "A protected value that has a chance of 0.001 without the model "
        "is guessed with a chance of at most 0.05, if it appears nowhere in the text except where "
        "our search found it."
    ]
    assert (
        "one conversation and learned with noise, that"
        in said(("unit", "dialogue"))["guessed_value"][0]
    )
    certain = said(("rates.public", rate(0, 400, 0.0, "policy")))
    assert (
        "our search passed over** (" in certain["missed_secret"][0]
        and "noise" not in certain["guessed_value"][0]
    )
    assert (
        "1,000,000 among the values that the search would pass over: at"
        in certain["guessed_value"][0]
    )
    assert "secret, said in one message, that has one chance in 1,000,000: at" in said(
        *DP, ("rates.public", rate(0, 0, 0.0, "policy"))
    )["guessed_value"][0]  # fmt: skip
    files = ("assumed", ["smollm2 had not read this text", "list:a.txt was not made from this text",
                         "regex:b.toml was not made from this text"])  # fmt: skip
    assert said(files)["base_model"][0].endswith(
        "**It is assumed that smollm2 had not read this text.**"
    )
    assert said(("assumed", files[1][1:]))["base_model"] == said()["base_model"]
    assert said(files)["files_that_decided"][0].startswith(
        "**It is assumed that list:a.txt was not made from this text; that regex:b.toml was not "
        "made from this text.** The text was read as these say: a message that"
    )
    assert "passed over, but learned with noise** (at most" in said()["missed_secret"][0]
    of_teaching = said(*TAUGHT, ("policies.pi.people", 280))
    assert (
        "**A secret of somebody who taught no policy (at most 280 people did) that"
        in of_teaching["missed_secret"][0]
    )
    alone = "of somebody who taught no policy (at most 280 people did)"
    values = "guessed_value"
    assert f"the value of a passed-over secret {alone}, said in" in of_teaching[values][0]
    for kind, spared in (
        (DP, f"the value of a secret {alone}"),
        (PLAN, f"protected value {alone}"),
    ):
        assert spared in said(*kind, *TAUGHT, ("policies.pi.people", 280))[values][0]
        assert "taught" not in said(*kind)[values][0]
    some = "none of these people taught a policy"
    assert f"as often as others' and {some}." in of_teaching["several_secrets"][0]
    assert f"times in 100, if {some}." in said(*DP, *TAUGHT)["several_secrets"][0]
    assert "taught" not in said()["several_secrets"][0] + said(*DP)["several_secrets"][0]
    told = TAUGHT[0][1][0]
    of_earlier = Assumption("people_taught", people=25).of_earlier_model(same_text=False)
    both = [told, of_earlier.sentence()]
    of_months = said(("assumed", both), ("policies.pi.people", 280))
    assert (
        "who taught no policy (at most 280 people did for this model) that"
        in of_months["missed_secret"][0]
    )  # "280 people did", and 25 of the month before
    assert (
        "files_that_decided" not in of_teaching
        and "for the people of this text who taught a policy, at most 280,"
        in of_teaching["teaching"][0]
    )
    once = said()["labels_drawn_at_random"][0]
    assert "13 labels decide this certificate: the search leaves a trace of what" in once
    assert "No second reading of them was imported: secrets that a reader overlooked" in once
    twice = ("labels.read_twice", {"turns": 600, "doubted": 2}), ("rates.trace.again", [1, 80])
    (text,) = said(*twice)["labels_drawn_at_random"]
    assert "A second person read 600 of these messages again" in text and "Nobody" not in text
    assert "of 80 secrets that the second found in messages drawn at random, 1 left a trace" in text
    assert "counts where the search fails on it, and nowhere else. What the first" in text
    decided = twice[0][0], twice[0][1] | {"decided": 118, "dropped": 117}
    (text,) = said(decided, twice[1])["labels_drawn_at_random"]
    assert (
        "nowhere else, except in 118 on which they differed and a third person decided: in 117 of "
        "these a mark by one of them counts nowhere. What the first" in text
    )
    (text,) = said(("labels.replaced", 122))["labels_drawn_at_random"]
    assert "No second reading of them counts: secrets" in text and "was imported" not in text
    assert "Another reading of 122 of these messages had been imported and is" in text
    assert (
        "Labels judged policies 2 other times"
        in said(("labels.judged", 3))["labels_drawn_at_random"][0]
    )
    assert "with 97.5 %" in said(("labels.alpha", 0.025))["labels_drawn_at_random"][0]
    assert "1 earlier one on" in said(("spent_before.runs", 1))["earlier_runs"][0]
    # A void certificate has no promise, so it must not say what its promise covers.
    assert "promise" not in said(*VOID, ("spent_before.runs", 1))["earlier_runs"][0]
    # What is counted may be of another text, of some of the same people.
    for name, changes in (("earlier_runs", (*VOID, ("spent_before.runs", 1))),
                          ("earlier_runs", (("spent_before.runs", 1),)),
                          ("unprotected_runs", (("spent_before.unprotected", 1),)),
                          ("struck_runs", (("spent_before.struck", 1),))):  # fmt: skip
        assert "or on text with some of the same people or messages" in said(*changes)[name][0]
    assert (
        "All are charged, as if" in said(("searched", {"trials": 3, "charged": True}))["trials"][0]
    )
    assert (
        "several times larger" in said(("searched", {"trials": 3, "charged": False}))["trials"][0]
    )
    assert (
        "0.4 (95 % confidence) against the 3.0 that was proved of this training alone, and the "
        "strongest attacker would notice half" in said(*AUDIT)["attacks"][0]
    )
    # What earlier trainings add to the promise is no proof of the one that was audited.
    both = said(*AUDIT, ("guarantee.missed.epsilon", 9.0), ("evidence.audit.lower", 4.0))
    assert "the 3.0 that was proved" in both["attacks"][0]
    assert "**which is more than was proved**" in both["attacks"][0]
    assert "at most 61.3 of 100 trainings" in said(*AUDIT)["attacks"][0]
    blind = {"lower": 0.0, "epsilon": 3.0, "guessed": 10, "right": 8}
    (text,) = said(("evidence.audit", blind | {"strongest_attacker_power": 0.613}))["attacks"]
    assert "an audit says nothing, as 8 of 10 guesses of its attacker were right, which a" in text
    assert said(*LIMITS)["limits"] == [
        "**This model does not meet the limits that were set**: "
        "public <= 1% (3.77 % is certified). It meets: guess <= 55 (52.4 is certified)."
    ]
    rows = LIMITS[0][1]
    for met, says in ((True, "meets"), (False, "does not meet")):
        (text,) = said(("limits", [row | {"met": met} for row in rows]))["limits"]
        both = "guess <= 55 (52.4 is certified); public <= 1% (3.77 % is certified)."
        assert text == f"**This model {says} the limits that were set**: {both}"
    assert "found" not in said(*AUDIT)["attacks"][0] and "audit" not in said(*REPORT)["attacks"][0]
    worthless = ("verdict", "none"), ("void_because", [sentences.NOTHING_PROMISED])
    assert said(*worthless)["no_promise"] == [
        "**This model carries no promise.** Every bound on a right guess is 99.5 of 100 or more: "
        "that promises nothing."
    ]
    assert said(*VOID)["no_promise"] == [
        "**This model carries no promise.** The randomness was a seed."
    ]


@given(st.floats(min_value=0, max_value=1))
def test_a_printed_chance_is_never_below_the_true_one(chance):
    printed = Decimal(sentences.times_in_hundred(chance))
    exact = 100 * Decimal(repr(chance))
    assert exact <= printed <= max(exact * Decimal("1.0101"), exact)
    assert 0 <= printed <= 100


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_a_printed_count_is_never_below_the_true_one(number):
    printed = Decimal(sentences.round_count_up(number).replace(",", ""))
    assert Decimal(repr(number)) <= printed <= Decimal(repr(number)) * Decimal("1.101")


def test_the_id_seals_everything_but_the_time():
    value = made()
    assert (
        certificate_pages.assemble_certificate(PARTS, issued="2027-01-01T00:00:00Z")["id"]
        == value["id"]
    )
    assert json.loads(json.dumps(value)) == value
    shuffled = dict(reversed(value.items()))
    assert certificate_pages.hash_certificate(shuffled) == value["id"]
    assert made(("guarantee.missed.epsilon", 3.01))["id"] != value["id"]
    with pytest.raises(ValueError, match='infinite is written "inf"'):
        made(("guarantee.secret.epsilon", float("inf")))


@pytest.mark.parametrize("change", [
    ("verdict", "fine"), ("model.sha256", "x"), ("guarantee.secret.epsilon", -1),
    ("right_guess.0.at_most", 1.2), ("not_promised", []), ("labels.alpha", 0.2), ("extra", 1),
])  # fmt: skip
def test_the_schema_refuses_what_is_no_certificate(change):
    with pytest.raises(jsonschema.ValidationError):
        made(change)
    with pytest.raises(jsonschema.ValidationError):
        made(("verdict", "void"))  # without a reason


def text_of(page):
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", body)))


def test_the_officers_page_says_the_sentences_and_no_more():
    for changes in ((), VOID, NONE, DP, PLAN, (*AUDIT, ("canaries.planted", 2))):
        value = made(*changes)
        page = text_of(certificate_pages.render_certificate_pages(value, "officer"))
        plain = [
            re.sub(r"[*`]", "", t)
            for texts in sentences.select_sentences(value).values()
            for t in texts
        ]
        body = page.split("What this model may give away")[2]
        for sentence in plain:
            assert sentence in page
            body = body.replace(sentence, "", 1)
        assert body.split() == ["Model", "“helpdesk”"], "nothing stands on it that is no sentence"


def test_the_engineers_page_has_every_field():
    value = made(*AUDIT)
    curve = [(0.0, 1.0), (0.5, 0.2), (1.0, 0.0)]
    curves = {"curves": {"secret": curve, "missed": curve}}
    profile = curves | {"delta_at": [{"epsilon": 0.0, "add_or_remove": 0.09, "replace": 0.19}],
               "epsilon_at": [{"delta": 1e-6, "add_or_remove": 1.34, "replace": 3.0}]}  # fmt: skip
    page = certificate_pages.render_certificate_pages(
        value, "engineer", profile=profile, command="crtlib certify RUN"
    )
    text = text_of(page)
    for path, shown in model_card.flatten_fields(value):
        rounded = {shown, format_bound(float(shown))} if "at_most" in path else {shown}
        rounded |= {format_number(float(shown))} if path.endswith(".rate") else set()
        assert any(s in text for s in rounded), path
    assert "46,080" in text and "1.063" in text and "1e-06" in text and "1.34" in text
    assert "crtlib certify RUN" in text and page.count("<polyline") == 3
    assert (
        certificate_pages.render_certificate_pages(made(*VOID), "engineer", profile=curves).count(
            "<polyline"
        )
        == 0
    )
    dp = certificate_pages.render_certificate_pages(
        made(*DP), "engineer", profile={"curves": {"missed": curve}}
    )
    assert dp.count("<polyline") == 2  # any one, and the diagonal


def test_an_engineers_page_says_on_what_its_promise_rests():
    """Of a plan, and of differential privacy, no promise rests on rates, and a plan's points are
    no rounded number; a void one says why."""
    rests, rounded = "The trace rate enters the guarantee as γ", "its points are rounded down"
    for changes, both in (((), (True, True)), (DP, (False, True)), (PLAN, (False, False))):
        text = text_of(certificate_pages.render_certificate_pages(made(*changes), "engineer"))
        assert (rests in text, rounded in text) == both
        assert ("No promise rests on them" in text) == (not both[0])
    void = certificate_pages.render_certificate_pages(made(*VOID), "engineer")
    assert "The randomness was a seed." in text_of(void)


@pytest.mark.parametrize(
    "changes", [(), DP, PLAN, (("spent_before.runs", 1), ("spent_before.forgotten", 2))]
)
def test_an_engineers_page_alone_has_the_conditions_of_its_numbers(changes):
    """Of a plan "value guess .01: .2" stood without "if it stands nowhere in the text but where our
    search found it", and "user 5: .917" without "if their secrets are passed over as often"."""
    value = made(*changes)
    said = sentences.select_sentences(value)
    alone, both = (
        text_of(certificate_pages.render_certificate_pages(value, audience))
        for audience in ("engineer", "both")
    )
    beside = [name for names in certificate_pages.SENTENCES_BESIDE.values() for name in names]
    told = [re.sub(r"[*`]", "", text) for name in beside for text in said.get(name, ())]
    assert told and "guessed_value" in said
    for text in told:
        assert text in alone and both.count(text) == 1


def test_pages_need_no_network_and_escape_what_they_show():
    bad = '</style><script>alert(1)</script>"'
    value = made(("not_promised", [bad]), ("corpus.name", bad))
    for page in (
        certificate_pages.render_certificate_pages(value, "officer"),
        certificate_pages.render_certificate_pages(value, "engineer", command=bad),
    ):
        assert "<script>" not in page and "&lt;script&gt;" in page
        assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|src=", page)


def front(card):
    return yaml.safe_load(card.split("---\n")[1])


FACTS = {
    "name": "m", "parameters": 7, "trained_parameters": 5, "base": "HuggingFaceTB/SmolLM2-135M",
    "kind": "bayesian_confidentiality", "method": {"name": "crt", "label": "CRT"},
    "corpus": {"name": "c.jsonl", "points": 12}, "settings": {"epochs": 3, "policy": "a|b\nc"},
    "promise": "(1, 1e-06) ...", "perplexity": "8 to 16", "held_out": True, "adapters": True,
    "recurrent": False,
}  # fmt: skip


def test_the_model_card_has_its_front_matter_and_the_promise_verbatim():
    card = model_card.render_model_card(FACTS)
    head = front(card)
    assert head["library_name"] == "transformers" and head["pipeline_tag"] == "text-generation"
    assert head["base_model"] == "HuggingFaceTB/SmolLM2-135M" and head["license"] == "other"
    assert head["tags"] == ["crtlib", "confidential", "crt"]
    any_one = model_card.render_model_card(FACTS | {"kind": "dp"})
    assert front(any_one)["tags"] == ["crtlib", "differential-privacy", "crt"]
    metric = head["model-index"][0]["results"][0]["metrics"][0]
    assert metric == {"type": "perplexity", "value": "8 to 16"}
    assert "| policy | a\\|b c |" in card and "\n\n(1, 1e-06) ...\n" in card and "adapter/" in card
    for title in ("What it is", "How to use it", "What it was trained on", "Training",
                  "What it may give away", "Limits", "How to repeat it"):  # fmt: skip
        assert f"\n## {title}\n" in card


@pytest.mark.parametrize(
    ("held_out", "name"), [(True, "held-out text of the same corpus"), (False, "other text")]
)
def test_a_card_says_on_what_text_it_was_measured(held_out, name):
    head = front(model_card.render_model_card(FACTS | {"held_out": held_out}))
    assert head["model-index"][0]["results"][0]["dataset"]["name"] == name


def test_a_card_without_base_or_kind_says_so():
    card = model_card.render_model_card(FACTS | {"base": None, "kind": None, "perplexity": None})
    assert front(card)["tags"] == ["crtlib", "crt"]
    assert "base_model" not in front(card) and "model-index" not in front(card)
    own = model_card.render_model_card(FACTS | {"recurrent": True})
    assert front(own)["library_name"] == "crtlib" and "`transformers` cannot load" in own


def test_a_hostile_name_cannot_leave_the_front_matter():
    hostile = {"name": "x\n---\nevil: yes", "label": "X"}
    card = model_card.render_model_card(FACTS | {"method": hostile})
    assert "evil" not in front(card) and front(card)["tags"][2] == "x\n---\nevil: yes"
