"""Policies: full recall and public turns left alone, and a dial that the theory can use."""

import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crtlib.intervals import clopper_pearson_upper
from crtlib.screening import (
    detection_recall,
    policy_changes,
    policy_digests,
    policy_names,
    rates,
    regex_policies,
)
from crtlib.screening.policy import as_policy
from crtlib.screening.redaction import redact
from crtlib.text import customersim, data_points
from crtlib.text.records import MASK, Point, Secret
from tests.text import original

DATA = Path(os.environ.get("CRTLIB_DATA", "")) / "customersim_shi2021"
CORPORA = {v: customersim.simulate_corpus(1_000, 2, v) for v in customersim.VARIETIES}
POINTS = {
    (v, unit): data_points.make_points(c, unit=unit)
    for v, c in CORPORA.items()
    for unit in data_points.POINT_UNITS
}
SECRET_POINTS = [p for points in POINTS.values() for p in points[:2_000] if p.secrets]


def spans(text, policy=None):
    labels = (policy or regex_policies.corpus_regex_policy())([Point("p", "u", text)])[0]
    return [(s.kind, text[s.start : s.end]) for s in labels]


@pytest.mark.parametrize(("variety", "unit"), POINTS)
def test_regex_finds_every_secret_and_nothing_else(variety, unit):
    points = POINTS[variety, unit]
    labels = regex_policies.corpus_regex_policy()(points)
    table = detection_recall.recall_by_kind(points, labels)
    assert (table["recall"] == 1).all() and (table["precision"] == 1).all()
    assert labels == regex_policies.oracle_policy(points)


@pytest.mark.skipif(
    not os.environ.get("CRTLIB_DATA") or not DATA.is_dir(),
    reason="CRTLIB_DATA is unset or has no folder customersim_shi2021 (the original corpus)",
)
def test_regex_on_the_original():
    """It has no labels, but the agenda says what each dialogue must hold."""
    corpus = original.read(DATA, "train")
    found = original.annotate(corpus, regex_policies.corpus_regex_policy())
    for d in found.dialogues:
        kinds = [s.kind for t in d.turns for s in t.secrets]
        assert kinds[0] == "name" and kinds[1] in ("phone", "order", "address"), d.id
        for before, turn in zip(d.turns, d.turns[1:], strict=False):
            if "tracking number" in turn.text:
                assert [s.kind for s in turn.secrets] == ["tracking"], d.id
                assert before.secrets, d.id
    free = [t.text for t in found.turns() if not t.secrets]
    assert len(set(free)) == 61 and not any(c.isdigit() for text in free for c in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("USR: My ID is: 341752", [("id", "341752")]),
        ("My ID is 341752.", [("id", "341752")]),
        ("USR: Hello Ada Lovelace!", [("name", "Ada Lovelace")]),
        ("USR: Yes, Connor O'Brien-Smith.", [("name", "Connor O'Brien-Smith")]),
        ("USR: Zoë Müller", [("name", "Zoë Müller")]),
        ("USR: call (555) 123-4567 or +1 555 123 4567", [("phone", "(555) 123-4567")] * 1
         + [("phone", "+1 555 123 4567")]),
        ("USR: 12 Oak St Apt. 9 Lakeview, TX 12345-6789. Ada Lovelace",
         [("address", "12 Oak St Apt. 9 Lakeview, TX 12345-6789"), ("name", "Ada Lovelace")]),
        ("USR: USS O'Hara FPO AE 12345", [("address", "USS O'Hara FPO AE 12345")]),
        ("SYS: On Monday. Good Morning! I am the shop's bot, ORDER 66.", []),
        (f"USR: {MASK}. {MASK}{MASK}", []),
        (f"USR: I am {MASK}, Ada Lovelace", [("name", "Ada Lovelace")]),
        ("", []),
    ],
)  # fmt: skip
def test_regex_shapes(text, expected):
    assert spans(text) == expected


def test_regex_is_fast():
    points = POINTS["rich", "turn"] * 2
    started = time.process_time()
    regex_policies.corpus_regex_policy()(points)
    assert (time.process_time() - started) / len(points) < 30 / 100_000  # 2 s per 100,000 alone


def masked(point, secret):
    """The neighbour D' of Definition 2: one secret replaced by the mask, the labels moved along."""
    return redact(point, [secret])


def moved(labels, secret):
    """``labels`` outside ``secret``, where they stand after it is masked."""
    shift = len(MASK) - (secret.end - secret.start)
    return tuple(
        Secret(s.kind, s.start + shift, s.end + shift) if s.start >= secret.end else s
        for s in labels
        if s.end <= secret.start or s.start >= secret.end
    )


@settings(max_examples=300)
@given(
    st.sampled_from(SECRET_POINTS),
    st.data(),
    st.sampled_from(["regex", "oracle"]),
    st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    st.integers(0, 5),
    st.sampled_from(["occurrence", "value"]),
)
def test_masking_one_secret_changes_no_other_label(point, data, name, gamma, seed, per):
    """Proposition 5 needs this of a policy; coins of a sequential generator would break it."""
    secret = data.draw(st.sampled_from(point.secrets))
    policy = policy_changes.with_misses(
        policy_names.policy_by_name(name, "customersim"), gamma, seed, per
    )
    before, after = policy([point])[0], policy([masked(point, secret)])[0]
    assert after == moved(before, secret)


@given(st.sampled_from(["occurrence", "value"]), st.floats(0, 1), st.floats(0, 1), st.integers())
@settings(max_examples=20)
def test_coins_are_nested_and_do_not_depend_on_company(per, one, other, seed):
    low, high = sorted((one, other))
    points = POINTS["paper", "turn"][:300]
    kept = {
        g: policy_changes.with_misses(regex_policies.oracle_policy, g, seed, per)(points)
        for g in (low, high)
    }
    for few, more in zip(kept[high], kept[low], strict=True):
        assert set(few) <= set(more)
    alone = [
        policy_changes.with_misses(regex_policies.oracle_policy, low, seed, per)([p])[0]
        for p in reversed(points)
    ]
    assert alone[::-1] == kept[low]


def test_the_dial_misses_a_share_gamma():
    points = POINTS["paper", "turn"]
    for gamma in (0.0, 0.01, 0.1, 0.5, 1.0):
        labels = policy_changes.with_misses(regex_policies.corpus_regex_policy(), gamma, seed=1)(
            points
        )
        rate = 1 - detection_recall.recall_by_kind(points, labels).loc["all", "recall"]
        spread = 4 * (gamma * (1 - gamma) / 3_000) ** 0.5
        assert rate == pytest.approx(gamma, abs=spread + 1e-12)
    seeds = [
        policy_changes.with_misses(regex_policies.oracle_policy, 0.5, seed=s)(points)
        for s in (1, 2)
    ]
    assert seeds[0] != seeds[1]


def test_per_value_is_all_or_nothing_and_per_occurrence_is_not():
    copies = [Point(str(i), "u", "USR: 123456", (Secret("id", 5, 11),)) for i in range(200)]
    found = {
        per: [
            sum(
                map(
                    len,
                    policy_changes.with_misses(
                        regex_policies.oracle_policy, 0.5, seed, per, coin="point"
                    )(copies),
                )
            )
            for seed in range(20)
        ]
        for per in ("occurrence", "value")
    }
    assert set(found["value"]) == {0, 200}
    assert all(60 < n < 140 for n in found["occurrence"])


@pytest.mark.parametrize(
    "name",
    [
        "\u0928\u0930\u0947\u0928\u094d\u0926\u094d\u0930",
        "\u0e17\u0e35\u0e48\u0e23\u0e31\u0e01",
        "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd",
        "O\u0301lu\u0323\u0301\u1e63e\u0323\u0301gun",
        "\u06a9\u062a\u0627\u0628\u200c\u0647\u0627",
        "4\ufe0f\u20e32\ufe0f\u20e3",
    ],
    ids=["Devanagari", "Thai", "Tamil", "Yoruba", "Persian", "keys of emoji"],
)  # fmt: skip
def test_cautious_masks_a_word_with_its_vowel_signs_and_accents(name):
    """Fault: only its letters were masked, so that all its vowels stood in the public text."""
    point = Point("0", "u", f"hello {name}, well")
    (spans,) = policy_names.policy_by_name("cautious")([point])
    assert redact(point, spans).text == f"hello {MASK}, well"


def test_everything_and_names():
    point = Point("p", "u", "USR: hi")
    assert regex_policies.everything_policy([point, Point("q", "u", "")]) == [
        (Secret("text", 0, 7),),
        (Secret("text", 0, 0),),
    ]
    for name in ("oracle", "everything", "none", "cautious", "regex:multiwoz"):
        policy = policy_names.policy_by_name(name)
        assert policy.name == name and not policy.learned
    assert (
        policy_changes.with_misses(regex_policies.oracle_policy, 0.1, 0).name
        == "oracle (misses 0.1 per occurrence)"
    )
    assert (
        regex_policies.corpus_regex_policy()
        is regex_policies.corpus_regex_policy()
        != regex_policies.corpus_regex_policy("multiwoz")
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: policy_changes.with_misses(regex_policies.oracle_policy, 7, 0),
            r"gamma=7: must be in \[0, 1\]",
        ),
        (
            lambda: policy_changes.with_misses(regex_policies.oracle_policy, float("nan"), 0),
            "gamma=nan",
        ),
        (
            lambda: policy_changes.with_misses(regex_policies.oracle_policy, 0.1, 0, "turn"),
            "per='turn': must be one of",
        ),
        (lambda: policy_names.policy_by_name("ner"), "policy=.ner.: must name what it reads"),
        (
            lambda: regex_policies.corpus_regex_policy("sgd"),
            "corpus='sgd': must be one of customersim, schema_guided",
        ),
        (lambda: policy_names.policy_by_name("tagger:"), "policy='tagger:': must name what"),
        (
            lambda: policy_names.policy_by_name("regex", "sgd"),
            "policy='regex:sgd': must be regex:FILE.toml, or regex: with one of customersim",
        ),
        (lambda: clopper_pearson_upper(3, 2), r"count=3: must be in \[0, 2\]"),
        (lambda: clopper_pearson_upper(0, 9, confidence=1.0), "confidence=1.0"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_miss_rate_bound():
    assert clopper_pearson_upper(0, 200) == pytest.approx(0.01487, abs=5e-6)
    assert clopper_pearson_upper(0, 200) == pytest.approx(1 - 0.05 ** (1 / 200), rel=1e-9)
    assert clopper_pearson_upper(20, 200) == pytest.approx(0.14199, abs=5e-6)
    assert clopper_pearson_upper(0, 37_446) <= 8e-5 < clopper_pearson_upper(0, 37_445)
    assert clopper_pearson_upper(0, 0) == clopper_pearson_upper(5, 5) == 1.0


def test_recall_counts_whole_secrets():
    points = [Point("p", "u", "abcdefghij", (Secret("a", 0, 4), Secret("b", 6, 9)))]
    labels = [(Secret("a", 0, 2), Secret("a", 2, 4), Secret("b", 5, 8), Secret("c", 9, 10))]
    table = detection_recall.recall_by_kind(points, labels)
    assert list(table.index) == ["a", "b", "c", "all"]
    assert table["caught"].tolist() == [1, 0, 0, 1]
    assert table["flagged"].tolist() == [2, 1, 1, 4]
    assert table["precision"].tolist() == [1, 1, 0, 0.75]
    assert table.loc["all", "recall"] == 0.5 and table["recall"].isna()["c"]
    assert table.loc["c", "miss_upper"] == 1
    assert table.loc["all", "precision_lower"] == pytest.approx(1 - clopper_pearson_upper(1, 4))
    assert table.loc["c", "precision_lower"] == 0


def test_half_a_secret_in_clear_is_missed():
    """Also where a mask covers the other half, or two masks leave a gap."""
    point = Point("p", "u", "call 555 1234", (Secret("phone", 5, 13),))
    for spans in ((), (Secret("x", 5, 8),), (Secret("x", 5, 8), Secret("x", 9, 13))):
        assert detection_recall.find_missed_secrets(point, spans) == point.secrets
        left = redact(point, spans)
        assert any(c.isdigit() for c in left.text) or left.text.count(MASK) == 2
    for spans in ((Secret("x", 5, 9), Secret("x", 9, 13)), (Secret("x", 0, 13),)):
        assert detection_recall.find_missed_secrets(point, spans) == ()
        assert redact(point, spans).text.count(MASK) == 1


SHAPES = {
    "schema_guided": [
        ("SYS: It's at 7277 Valjean Avenue, Van Nuys. Call 408-971-8523.",
         [("address", "7277 Valjean Avenue, Van Nuys"), ("phone", "408-971-8523")]),
        ("SYS: +44 20 8563 8692 or +1 562-599-5555",
         [("phone", "+44 20 8563 8692"), ("phone", "+1 562-599-5555")]),
        ("USR: Send $1,630.50 to Amir from my savings.",
         [("amount", "$1,630.50"), ("name", "Amir")]),
        ("USR: one thousand and twenty bucks", [("amount", "one thousand and twenty bucks")]),
        ("SYS: Dr. Andrew Doan or Lance Gibson, MD",
         [("name", "Dr. Andrew Doan"), ("name", "Lance Gibson, MD")]),
        ("SYS: At 7:30 pm at the Plaza, 4 tickets.", []),
        (f"SYS: {MASK} and {MASK}.", []),
    ],
    "multiwoz": [
        ("SYS: It is on 106 Regent Street City Centre, cb21dp.",
         [("address", "106 Regent Street City Centre"), ("postcode", "cb21dp")]),
        ("SYS: 01223 351880, reference F1NTKWZO.",
         [("phone", "01223 351880"), ("reference", "F1NTKWZO")]),
        ("USR: My ID is: 341752 at 19:45", [("id", "341752")]),
    ],
    "wikitext2": [(": In 1999 , 4 @.@ 5 km", [("number", n) for n in ("1999", "4", "5")])],
}  # fmt: skip


@pytest.mark.parametrize(
    ("corpus", "text", "expected"), [(c, *case) for c, cases in SHAPES.items() for case in cases]
)
def test_shapes_of_other_corpora(corpus, text, expected):
    assert spans(text, regex_policies.corpus_regex_policy(corpus)) == expected


@pytest.mark.parametrize("corpus", ["customersim", *SHAPES])
def test_no_text_makes_the_expressions_slow(corpus):
    """A pattern that backtracks exponentially takes hours on each of these, any other 0.1 s."""
    worst = [
        "Internationalisationisms" * 3,
        "Aa " * 300,
        "1 " * 300,
        "one hundred " * 100,
        "A" * 900,
    ]
    started = time.process_time()
    regex_policies.corpus_regex_policy(corpus)(
        [Point(str(i), "u", f"USR: {t}!") for i, t in enumerate(worst)]
    )
    assert time.process_time() - started < 60


@dataclass(frozen=True)
class Broken:
    """A policy that makes the mistake it is told."""

    answer: object
    name: str = "broken"

    def __call__(self, points):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (RuntimeError("Ada Lovelace"), "policy='broken': failed with RuntimeError"),
        (ValueError("Ada Lovelace"), "policy='broken': failed with ValueError"),
        (None, "policy='broken': failed with TypeError"),
        ([()], "policy='broken': 1 answers for 2 points"),
        ([(), (Secret("name", 5, 99),)], "policy='broken': point 2: secret at"),
        ([(Secret("a", 5, 8), Secret("b", 2, 4)), ()], "point 1: .* must be sorted"),
        ([(Secret("a", 5, 8), Secret("b", 6, 9)), ()], "point 1: .* must not overlap"),
        ([((5, 8),), ()], "point 1: its spans are not Secrets"),
    ],
)
def test_a_broken_policy_is_named_and_no_secret_shown(answer, message):
    points = [Point(str(i), "u", "USR: Ada Lovelace") for i in range(2)]
    with pytest.raises(ValueError, match=message) as error:
        replace(as_policy(Broken(answer)), batched=True)(points)
    assert "Ada" not in str(error.value) and "\n" not in str(error.value)
    assert error.value.__suppress_context__ or error.value.__context__ is None
    with pytest.raises(ValueError, match="policy='broken'"):
        original.annotate(CORPORA["paper"], replace(as_policy(Broken(answer)), batched=True))


def test_annotate_gives_the_gold_spans_back():
    for corpus in CORPORA.values():
        bare = original.annotate(corpus, lambda points: [()] * len(points))
        assert not any(t.secrets for t in bare.turns())
        assert original.annotate(bare, regex_policies.corpus_regex_policy()) == corpus
    whole = original.annotate(CORPORA["paper"], regex_policies.everything_policy)
    assert all(t.values() == (t.text,) for t in whole.turns())


def test_a_secret_leaves_a_trace_of_a_whole_turn_only_where_nothing_in_it_is_flagged():
    """Also where the policy flags a neighbour beside the value and not beside its mask."""

    def beside(points):  # the name, and the word after it unless a mask stands before that word
        found = [re.search(r"Ada( \w+)?|Bob", p.text) for p in points]
        return [[Secret("name", *m.span())] if m else [] for m in found]

    pi = policy_names.Policy("beside", beside)
    texts = {"USR: I am Ada so far.": 0, "USR: I am Bob again.": 0, "USR: I am Kurt here.": 1}
    points = [
        Point(
            str(k),
            "",
            t,
            (Secret("name", 10, t.index(" ", 10)),),
            spoken_spans=((5, len(t)),),
            dialogue_id=t,
        )
        for k, t in enumerate(texts)
    ]
    assert rates.measure_rates(
        points, pi, regex_policies.none_policy, cluster="dialogue"
    ).trace.labelled_counts == (2, 3)
    whole = policy_changes.whole_turns_policy(pi)
    assert rates.measure_rates(
        points, whole, regex_policies.none_policy, cluster="dialogue"
    ).trace.labelled_counts == (1, 3)
    assert [redact(p, s).text for p, s in zip(points, whole(points), strict=True)] == [
        "USR: <MASK>", "USR: <MASK>", "USR: I am Kurt here."
    ]  # fmt: skip
    two = Point("d", "", "USR: Ada? SYS: yes", spoken_spans=((5, 9), (15, 18)))
    assert redact(two, whole([two])[0]).text == "USR: <MASK> SYS: yes"


@pytest.mark.parametrize("name", ["regex:customersim+whole_turns", "whole_turns+cautious+none"])
def test_whole_turns_are_a_part_of_a_policys_name(name):
    others = "+".join(part for part in name.split("+") if part != "whole_turns")
    found = policy_names.policy_by_name(name)(SECRET_POINTS[:200])
    first = policy_names.policy_by_name(others)(SECRET_POINTS[:200])
    assert [bool(spans) for spans in found] == [bool(spans) for spans in first]
    assert policy_digests.policy_digest(name) != policy_digests.policy_digest(others)
    masked = Point("m", "u", "I am <MASK>.")
    assert policy_names.policy_by_name("whole_turns")([SECRET_POINTS[0], masked])[0] == ()
    with pytest.raises(ValueError, match="whole_turns takes nothing after it"):
        policy_names.policy_by_name("whole_turns:10+none")
