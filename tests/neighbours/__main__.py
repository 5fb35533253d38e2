"""Train on pairs of neighbouring corpora and look inside: ``python -m tests.neighbours``.

A pair is drawn: a method with its options, a small corpus, and the same corpus with one unit
changed, as the method's relation says. For the methods that know secrets a unit is changed in one
secret, at all its places there: it may be short, and stand several times, before and behind where
it is marked, in several turns, written so that no policy finds it. Others may say what it says, as
it was, as it becomes, masked, or what is like it in one respect (:data:`LIKE`), before it or after
it, next to it, the same person or another. Labels are none, those that the text brings, or of turns
that were drawn, where a reader marks each place of a value or one. In half of the pairs of crt a
value that pi finds stands once more where nobody finds it, and a reader marks one of its places: it
leaves a trace, and nothing else is drawn that would count as one. Both corpora are trained on by
the functions of ``crtlib train``, some of those of ``crt`` after ``crtlib screen``, with the same
batches, and the second training is led: after each private step it is given the noisy sum of the
first. So all that follows is a function of what may follow, and is compared:

- constant: settings, schedule, batches, the number of private units, the names, order and sizes of
  files, models as they are;
- screened: what is read without noise is equal whenever a policy flags the change;
- counted: where the product counts the secret neither as a trace nor as public, in both corpora,
  nothing differs at all: no unit, no sum;
- noised: of the private units at most one differs, in whatever order they come; the clipped sums of
  each step differ by at most the sensitivity that was accounted, only where the changed unit was
  drawn, and every number has the noise that was accounted;
- alone: the clipped sum of a step is that of its texts, each read alone;
- declared: of all files only the declared value differs.

Where messages repeat, a change may move others: of two copies the second is a mask, and becomes
the text itself when the first is changed. So units are paired by what they say: one that stands at
the same place in both stands for itself, then equal ones for each other, and the one that is left
for the one that is left. Paired units share the coins of Poisson sampling. Each unit is drawn by
itself and with the same probability, wherever it stands, so this changes the distribution of
neither run, and a sum knows no order: two runs so coupled differ in one unit of a step's batch.
Where probabilities are each unit's own (a plan), and where units follow each other in an order that
is told (S-DP), a unit stands for that at its place.

A pair is "refused" where a model is, in one line and in both corpora: positions of the models
:data:`LONG` follow the longest text of a batch. It is "void" where likeness decided what is a
copy and the release promises nothing, and "public" where a secret may be read without noise.

``--planted`` then plants leaks, one at a time, and counts the pairs until each is found.
"""

import argparse
import contextlib
import copy
import json
import multiprocessing
import os
import random
import re
import shutil
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import torch
import transformers

from confide import odometer, recipes
from confide.labels import drawing, imports, label_tasks
from confide.release import certify, released_folder, source_fold
from confide.reports import model_card, screening_page
from confide.screening.corpus_screening import ScreeningOptions
from confide.training import (
    secret_plans,
    study_of_text,
    train_on_corpus,
    training_record,
    training_with_plan,
)
from crtlib import outputs
from crtlib.options import InvalidOption, options_of
from crtlib.screening import policy_digests, policy_names
from crtlib.screening.rates import RateCounter
from crtlib.studies import crt_study, study_run
from crtlib.text.canaries import CANARY_USER_PREFIX
from crtlib.training import clipping, loop, phases, selective, steps
from tests.faults.__main__ import plant
from tests.models.test_pretrained import VOCABULARY, tiny
from tests.neighbours.leaks import LEAKS, OF_CRT

WORDS = ("a", "the", "of", "we", "you", "it", "is", "are", "was", "to", "order", "late", "box",
         "red", "blue", "when", "where", "please", "thank", "hello")  # fmt: skip
LETTERS, DIGITS = "QXZJVWKY", "0123456789"
LONG = ("longrope", "dynamic")
"""Models whose positions follow the longest text of a batch, beyond a length."""
ORIGINAL = 48
"""Tokens of that length: more than a message has, but for one that was made long."""
LISTED = [f"KA-{''.join(random.Random(k).choices(LETTERS, k=3 + k % 7))}" for k in range(60)]
"""Values that a list names, of the kind that pi finds."""
CERTIFIED = 50
"""Of so many pairs the last is certified as well: that takes ten times as long as to train."""
FIXED = {"method", "corpus", "out", "odometer", "device", "workers", "memory", "plan", "labels",
         "core_hours", "gradient_checkpointing", "repeatable_noise", "power"}  # fmt: skip
"""Options that the fuzzer sets itself, that change no result, or that void every promise."""
CHOICES = {
    "init": ["random"] * 10 + ["{home}/base", *(f"{{home}}/{name}" for name in LONG)],
    "seed": [0, 1, 2],
    "model": ["lstm", "lstm", "lstm", "gru", "gpt2"],
    "unit": ["turn", "turn", "dialogue", "user"],
    "template": [None, None, "speaker", "plain"],
    "context": [None, 12],
    "long": ["split", "cut"],
    "canaries": [0, 0, 0, 0, 1],
    "copies": [2],
    "layers": [1, 1, 2],
    "width": [4, 8],
    "lora": [0, 2],
    "lora_alpha": [None, 3.0],
    "lora_targets": ["all-linear"],
    "dtype": ["auto", "float32"],
    "epochs": [1, 1, 2],
    "batch_size": [4, 8, None],
    "trials": [1, 3],
    "clip_norm": [None, 0.05, 0.3],
    "delta": [None, 1e-3],
    "private_learning_rate": [None, 0.05],
    "learning_rate": [None, 0.03],
    "epsilon": [1.0, 8.0],
    "neighbouring": ["replace", "replace", "add_or_remove"],
    "accountant": ["rdp"] * 9 + ["pld"],
    "sampling_probability": [None, 0.2, 0.5],
    "vocab_size": [280, 400],
    "policy": ["regex:{home}/found.toml", "regex:{home}/found.toml", "list:{home}/found.txt"],
    "conservative": [
        None,
        "regex:{home}/wide.toml",
        "regex:{home}/other.toml",
        "everything",
        "cautious:{home}/words.txt",
    ],
    "gamma": [0.0, 0.0, 0.5, 0.5],
    "dedup": ["all", "all", "all", "flagged", "none"],
    "duplicates": ["mask_private", "mask"],
}
FOUND, MISSED, UNSEEN = KINDS = ("KA", "KB", "KC")
"""What a secret begins with that pi finds, one that is left to pi_c, and one that is seen by a pi_c
alone that reads words, or all. A short one is the last letter of that, and a digit."""
UNNOTICED = "?"
"""A secret before it is found by no expression."""
ALONE_STEPS = 2
"""Private steps of a training whose texts are read alone as well."""
ALONE_APART = 1e-4
"""Clip norms by which both sums may differ: rounding."""


# --------------------------------------------------------------------------- what is drawn
@dataclass(frozen=True)
class Neighbours:
    """Two corpora as rows, the ``other`` with one unit changed: ``what`` was done. Of a secret that
    was changed: the names of the points that hold it, its ``values`` in both corpora, and in which
    turn it was picked, (conversation, number); ``seen``: whether a policy flags its point."""

    rows: list
    other: list
    what: str
    removed: bool = False
    points: frozenset = frozenset()
    values: tuple = ()
    picked: tuple | None = None
    seen: bool = True


def settings(coin, home):
    """A method and values of all its options."""
    method = coin.choice([*recipes.RECIPES, *["crt"] * 5, "dpsgd"])  # crt alone reads of repeats
    given = {}
    for option in options_of(recipes.recipe_for_method(method)):
        if option.name in CHOICES:
            value = coin.choice(CHOICES[option.name])
            given[option.name] = value.format(home=home) if isinstance(value, str) else value
        elif option.name not in FIXED:
            raise LookupError(f"--{option.name}: say in CHOICES or FIXED what a pair does with it")
    if method == "selective":
        given["model"], given["init"], given["layers"] = "lstm", "random", 1
        given["policy"] = CHOICES["policy"][0].format(home=home)
    if "other" in str(given.get("conservative")):
        given["gamma"] = 0.0  # nor does pi_c find it
    if method == "plan":
        given["context"] = None  # it refuses longer messages
    if given["init"] != "random":
        given["template"] = None  # its own, or what reads most easily
    if is_long(given):
        given |= {"context": None, "unit": "turn", "neighbouring": "replace"}  # by one that is long
    if method in ("sgd", "jft", "selective"):
        given["gamma"] = 0.0  # what the dial misses is read without noise
    while True:
        try:
            recipes.make_recipe(
                {"corpus": home / "c.jsonl", "method": method, "plan": home, **given}
                if method == "plan"
                else {"corpus": home / "c.jsonl", "method": method, **given}
            )
            return method, given
        except InvalidOption as refused:
            del given[refused.name]


def is_long(given):
    """Whether it starts from one of the models :data:`LONG`."""
    return Path(given.get("init", "")).name in LONG


def by_likeness(given):
    """Whether its text is screened so that likeness decides what is a copy."""
    return "screened" in given and given["screened"].dedup_by != "exact"


def letters(coin, least=3, most=9, of=LETTERS):
    return "".join(coin.choices(of, k=coin.randint(least, most)))


def value(coin, kind, given, least=3, most=9, of=LETTERS):
    """A secret of a kind, which the policy of ``given`` treats as its kind says."""
    if kind == FOUND and "list:" in str(given.get("policy")):
        return coin.choice(LISTED)
    return f"{kind}-{letters(coin, least, most, of)}"


def short_value(coin, kind):
    """A secret of two characters."""
    return f"{kind[-1]}{coin.choice(DIGITS)}"


def secret_pattern(kinds):
    """What finds secrets of some kinds, and their kind as its last letter."""
    last = "".join(kind[-1] for kind in kinds)
    return re.compile(rf"\b(?:K([{last}])-\w+|([{last}])\d\b)", re.IGNORECASE)


def said(coin, given, of, short):
    """A message of a few words, and perhaps a secret, often at its beginning; ``short``: it may be
    a short one."""
    words = coin.choices(WORDS, k=coin.randint(2, 7))
    if kind := coin.choice([*KINDS[:2] * 3, UNSEEN, *[None] * 3]):
        place = coin.choice([0, coin.randrange(len(words) + 1)])
        is_short = short and "list:" not in str(given.get("policy")) and coin.random() < 0.25
        words.insert(
            place, short_value(coin, kind) if is_short else value(coin, kind, given, of=of)
        )
    return " ".join(words)


def corpus(coin, method, given):
    """Rows of a corpus: 14 to 18 conversations, of as many people or of half as many."""
    of = DIGITS if method == "selective" else LETTERS
    few = unit_of(given) == "user" and "screened" in given  # it needs 12 points
    each = 1 if few else coin.choice([1, 2])
    rows = [
        {"id": f"d{k}", "user": f"u{k // each}", "turns": [
            {"speaker": coin.choice(["USR", "SYS"]), "text": said(coin, given, of, method == "crt")}
            for _ in range(coin.randint(2, 4))
        ]}
        for k in range(coin.randint(14, 18))
    ]  # fmt: skip
    turns = [t for row in rows for t in row["turns"]]
    for turn in coin.sample(turns, 5):
        turn["text"] = coin.choice(turns)["text"]  # said twice
    return rows


def wild(coin, rows):
    """Any message: a rare word said often, another script, a mask, two lines, what others said."""
    word = letters(coin, 8, 12).lower()
    return coin.choice([
        " ".join([word] * coin.randint(1, 30)), f"{word} ÄÖ 你好", f"{word} <MASK>",
        f"{word}\nUSR: {word}", coin.choice(coin.choice(rows)["turns"])["text"],
        coin.choice(WORDS), f"{word} 0123456789 {word}",
    ])  # fmt: skip


def long_message(coin):
    """One that is longer than all others."""
    return " ".join(coin.choices(WORDS, k=coin.randint(24, 28)))


def changed(coin, rows, method, given, labelled, *, hides=False):
    """Two neighbouring corpora: a unit of the rows is another, or a secret of it."""
    if method in ("dpsgd", "user_dpsgd"):
        return replaced(coin, rows, "user" if method == "user_dpsgd" else unit_of(given), given)
    return another_secret(coin, rows, method, given, labelled, hides=hides)


def unit_of(given):
    return given.get("unit") or "turn"


def replaced(coin, rows, unit, given):
    """One unit says something else, or is removed."""
    other = copy.deepcopy(rows)
    row = coin.choice(other)
    if unit == "turn" and given.get("neighbouring") == "add_or_remove":
        row["turns"].pop()
        return Neighbours(rows, other, f"last message of {row['id']} removed", removed=True)
    for one in [r for r in other if r["user"] == row["user"]] if unit == "user" else [row]:
        if unit == "turn":
            said = long_message(coin) if is_long(given) else wild(coin, rows)
            coin.choice(one["turns"])["text"] = said
        else:
            one["turns"] = [
                {"speaker": coin.choice(["USR", "SYS"]), "text": wild(coin, rows)}
                for _ in range(coin.randint(1, 6))
            ]
    return Neighbours(rows, other, f"{unit} of {row['id']}")


def another_secret(coin, rows, method, given, labelled, *, hides=False):
    """A secret of one point is another, or masked, wherever it stands there; of a plan, wherever it
    stands at all. What the point says, in either corpus or masked, may be what others say too.
    ``hides``: it stands there once more as nobody finds it, and others say at most what is like
    it."""
    kinds = [FOUND]
    if method == "crt" and not hides and coin.random() < 0.5 and given.get("conservative"):
        kinds.append(MISSED)  # pi_c finds it
    if method == "crt" and not hides and labelled and coin.random() < 0.15:
        kinds = [UNSEEN]
    rows, unit = copy.deepcopy(rows), unit_of(given)
    each = [
        (row, t, m) for row in rows for t in row["turns"]
        for m in secret_pattern(kinds).finditer(t["text"])
    ] or [planted_secret(coin, rows, kinds, given)]  # fmt: skip
    drawn = method == "crt" and labelled == "drawn"  # values are looked for in their points
    short = [one for one in each if len(one[2][0]) == 2] if drawn and coin.random() < 0.5 else []
    row, turn, m = coin.choice(short or each)
    old, new = m[0], "<MASK>"
    kind = next(k for k in KINDS if k[-1] in m.groups())
    while new in (old, "<MASK>"):
        new = value(coin, kind, given, 1, 12)
        if hides and len(old) == 2:
            new = short_value(coin, kind)
        if method == "selective":  # as many tokens, or the rows of its states are others
            new = value(coin, kind, given, len(old) - 3, len(old) - 3, of=DIGITS)
    if method == "crt" and coin.random() < 0.4:
        new = "<MASK>"
    own = point_of(rows, row, turn, unit)
    mine = [turn] if unit == "turn" else [t for one in own for t in one["turns"]]
    often = 0.9 if drawn else 0.3
    if hides:
        say_again(coin, mine, f"{old}{UNNOTICED}", coin.choice([1, 1, 2]), unnoticed=False)
    elif method != "selective" and coin.random() < often:
        times = 1 if method == "plan" else coin.choice([1, 1, 2, 3])  # it refuses long messages
        say_again(coin, mine, old, times, unnoticed=method in ("crt", "plan"))
    swap = partial(swapped, old=old, new=new)
    others = [value(coin, kind, given) for _ in range(3)]
    forms = {name: partial(in_form, form=form) for name, form in {
        "the same": str, "as it becomes": swap, "masked": partial(swapped, old=old, new="<MASK>"),
        "with another secret": partial(swapped, old=old, new=others[0]), **LIKE,
    }.items()} | {"in one message": in_one_message}  # fmt: skip
    told, times = [], [0, 0, 0, 1, 2] if drawn else [0, 0, 1, 2, 2, 3, 3]
    for _ in range(coin.choice([1, 2, 2, 3] if hides else times)):
        form = coin.choice([*forms, *["the same", "masked"] * 2])
        if method == "plan":
            form = "the same"
        elif hides:
            form = coin.choice([*LIKE])
        elif by_likeness(given):
            form = "nearly the same"
        told.append(form)
        repeat(coin, rows, (row, turn, own), unit, forms[form])
    other = [
        {**r, "turns": [
            {**t, "text": swap(t["text"])} if method == "plan" or any(t is u for u in mine) else t
            for t in r["turns"]]}
        for r in rows
    ]  # fmt: skip
    number = next(k for k, t in enumerate(row["turns"]) if t is turn)
    name = {"turn": f"{row['id']}/{number}", "dialogue": row["id"], "user": row["user"]}[unit]
    reads_words = str(given.get("conservative")).startswith(("cautious", "everything"))
    also = f", also said: {', '.join(told)}" if told else ""
    return Neighbours(
        rows, other, f"{old} of {turn['text']!r} is {new}{also}", points=frozenset({name}),
        values=(old, new), picked=(row["id"], number), seen=kind != UNSEEN or reads_words,
    )  # fmt: skip


def planted_secret(coin, rows, kinds, given):
    """A conversation, a message of it, and the secret that it says from now on."""
    row = coin.choice(rows)
    turn = coin.choice(row["turns"])
    turn["text"] += f" {value(coin, kinds[0], given)}"
    return row, turn, [*secret_pattern(kinds[:1]).finditer(turn["text"])][-1]


def say_again(coin, turns, old, times, *, unnoticed):
    """A secret is said again so many ``times``, before or behind, perhaps as no policy finds it: in
    another writing, which a short one has not, or followed by what hides it."""
    for _ in range(times):
        hidden = f"{old}{UNNOTICED}"
        writing = coin.choice([old, old.lower() if len(old) > 2 else hidden, hidden])
        turn = coin.choice(turns)
        both = [turn["text"], writing if unnoticed else old]
        turn["text"] = " ".join(both if coin.random() < 0.5 else both[::-1])


def point_of(rows, row, turn, unit):
    """The conversations of a point, of which a turn is told otherwise."""
    return [r for r in rows if r["user"] == row["user"]] if unit == "user" else [row]


def swapped(text, old, new):
    """The text with another secret, however it is written."""

    def other(m):
        return new if new == "<MASK>" or m[0] == old else new.lower()

    return re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", other, text, flags=re.IGNORECASE)


def with_a_space_elsewhere(text):
    """The text, of which one word gives its last letter to the next."""
    return re.sub(r"\b([a-z]+)([a-z]) ([a-z])", r"\1 \2\3", text, count=1)


LIKE = {
    "in lower case": str.lower,
    "nearly the same": lambda text: f"{text}s",
    "with other spaces": lambda text: text.replace(" ", "  "),
    "with a space elsewhere": with_a_space_elsewhere,
    "with another end": lambda text: f"{text} {WORDS[len(text) % len(WORDS)]}",
    "with another beginning": lambda text: f"{WORDS[len(text) % len(WORDS)]} {text}",
    "in another order": lambda text: " ".join(text.split(" ")[::-1]),
    "as long": lambda text: text[::-1],
    "with a sign": lambda text: f"{text}.",
}
"""What is like a text in one respect: letters, nearly all, words, letters without spaces,
beginning, end, set of words, length, words without signs."""


def in_form(turns, form):
    """The turns, each with its text in another form."""
    return [{**t, "text": form(t["text"])} for t in turns]


def in_one_message(turns):
    """The turns as one, which reads as they do together, and is written by nobody."""
    return [{"speaker": "", "text": "\n".join(f"{t['speaker']}: {t['text']}" for t in turns)}]


def repeat(coin, rows, point, unit, form):
    """Somebody, perhaps the same person, says what the point says, in some ``form``."""
    row, turn, own = point
    if unit == "turn":
        near = coin.choice(["next", "same person", "anywhere", "anywhere"])
        same = [r for r in rows if near != "same person" or r["user"] == row["user"]]
        turns = [t for r in same for t in r["turns"]]
        if near == "next":
            k = next(k for k, t in enumerate(turns) if t is turn)
            turns = turns[max(0, k - 1) : k + 2]
        place = coin.choice([t for t in turns if t is not turn])
        (made,) = form([turn])
        if coin.random() < 0.2 and made["speaker"]:
            made["speaker"] = place["speaker"]
        place |= made
        return
    number = len(rows)
    user = row["user"] if unit == "dialogue" and coin.random() < 0.3 else f"v{number}"
    near = coin.random() < 0.3
    for k, one in enumerate(own):
        place = rows.index(one) + coin.choice([0, 1]) if near else coin.randrange(len(rows) + 1)
        rows.insert(place, {"id": f"c{number}-{k}", "user": user, "turns": form(one["turns"])})


# --------------------------------------------------------------------------- what is watched
@dataclass
class Watch:
    """What one training does; with ``first`` it is led where that one went."""

    first: "Watch | None" = None
    removed: bool = False
    holders: int = 1  # how many units may differ: of a plan, those that hold the value
    pair: Neighbours | None = None
    sums: list = field(default_factory=list)  # of each private step: of all clipped gradients
    noisy: list = field(default_factory=list)
    stds: list = field(default_factory=list)
    hidden: list = field(default_factory=list)  # states that left a private segment (S-DP)
    batches: list = field(default_factory=list)
    of_batch: list = field(default_factory=list)  # of each private step: its batch
    far: list = field(default_factory=list)  # how far its sums are from those of the first
    schedule: list = field(default_factory=list)
    parts: dict = field(default_factory=dict)
    owners: dict = field(default_factory=dict)
    sized: object = None
    rates: object = None
    asked: list = field(default_factory=list)  # of a step: what clips each unit alone
    judged: list = field(default_factory=list)  # (counter, the rows of the secret) of each count
    found: list = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self):
        with contextlib.ExitStack() as stack:
            for owner, name, new in (
                (steps, "add_noise", self.add_noise),
                (steps, "clipping", self.asking()),
                (
                    study_of_text,
                    "choose_hyperparameters_by_size",
                    partial(self.size, study_of_text.choose_hyperparameters_by_size),
                ),
                (study_run, "Training", partial(self.train, loop.Training)),
                (crt_study.privacy_cost, "noise_multiplier", sigma),
                (training_with_plan, "Training", partial(self.train, loop.Training)),
                (phases, "draw_uniforms", self.uniform),
                (selective, "draw_normals", self.normals),
                (
                    selective.SelectivePhase,
                    "released",
                    self.released(selective.SelectivePhase.released),
                ),
                (study_run.attack_registry, "all_attacks", dict),
                (RateCounter, "rates", self.as_first(RateCounter.rates)),
                (RateCounter, "add", self.judging(RateCounter.add)),
                *(
                    (kind, "batches", self.batched(kind.batches))
                    for kind in (phases.PublicPhase, phases.PrivatePhase, selective.SelectivePhase)
                ),
            ):
                stack.enter_context(mock.patch.object(owner, name, new))
            self.coin = torch.Generator().manual_seed(0)
            yield self

    def size(self, real, study, prepared, given):
        """The number of private points is known: what follows from it is so, where one is gone."""
        self.sized = real(study, prepared, given)
        if self.removed and self.first:
            names = ("epochs", "delta", "clip_norm", "pub_passes", "batch_size", "learning_rate",
                     "sampling_probability", "normaliser", "private_learning_rate")  # fmt: skip
            self.sized = replace(self.sized, **{n: getattr(self.first.sized, n) for n in names})
        return self.sized

    def as_first(self, real):
        """What is counted on labels is treated as known."""

        def rates(counter, **named):
            self.rates = self.first.rates if self.first else real(counter, **named)
            return self.rates

        return rates

    def judging(self, real):
        """Which of the secrets that are judged are the one that is another in both corpora."""

        def add(counter, points, **named):
            before = len(counter.outcomes)
            rows = real(counter, points, **named)
            teachers = [*counter.policy.taught_by, *counter.conservative_policy.taught_by]
            assert not teachers  # of whom points would be left out
            each = [
                (p, s)
                for p in points
                if not p.user.startswith(CANARY_USER_PREFIX)
                for s in p.secrets
            ]
            values = [value.lower() for value in self.pair.values]
            ours = [
                before + k
                for k, (p, s) in enumerate(each)
                if p.id in self.pair.points and p.text[s.start : s.end].lower() in values
            ]
            self.judged.append((counter, ours))
            return rows

        return add

    def counted(self):
        """The rows of the secret that is another, as the product judges them."""
        return [counter.outcomes[k] for counter, ours in self.judged for k in ours]

    def train(self, real, model, schedule, parts, **options):
        self.schedule, self.parts = list(schedule), {k: list(v) for k, v in parts.items()}
        self.owners = options.get("owners") or {}
        return real(model, schedule, parts, **options)

    def units(self, part):
        """The texts of each unit of a part, as tokens."""
        parts = ("public", "private") if part == "all" else (part,)
        points = [point for name in parts for point in self.parts.get(name, [])]
        units = {}
        for point, owner in zip(points, self.owners.get(part, range(len(points))), strict=True):
            units.setdefault(owner, []).append(tuple(point))
        return [units[k] for k in sorted(units)]

    def paired(self, part):
        """Of each unit of a part the number of the one in the first run that it stands for: that
        with the same content, at the same place if it can be. None: there is none."""
        one, other = self.first.units(part), self.units(part)
        if self.removed and len(other) == len(one) - 1:
            gone = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                        len(other))  # fmt: skip
            return [k + (k >= gone) for k in range(len(other))]
        if part != "private" or any(isinstance(getattr(p, "sampling_probability", 0), tuple)
                                    for p in self.schedule):  # fmt: skip
            return [k if k < len(one) else None for k in range(len(other))]
        places = [k if one[k : k + 1] == [unit] else None for k, unit in enumerate(other)]
        left = [k for k in range(len(one)) if k not in {*places}]
        for k, unit in enumerate(other):
            if places[k] is None:
                places[k] = next((j for j in left if one[j] == unit), None)
                left = [j for j in left if j != places[k]]
        return [left.pop(0) if k is None and left else k for k in places]

    def differing(self, part):
        """The numbers, as in the first run, of the units that have another content in this one, or
        are missing; and -1, -2 ... for each that only this one has."""
        one, other, places = self.first.units(part), self.units(part), self.paired(part)
        new = {-1 - k for k in range(places.count(None))}
        others = {j for j, unit in zip(places, other, strict=True) if j is not None and
                  one[j] != unit}  # fmt: skip
        return {*range(len(one))} - {*places} | others | new

    def uniform(self, n, generator):
        """As many numbers as there are units; a unit has that of the one it stands for."""
        if not self.first:
            return torch.rand(n, generator=self.coin, dtype=torch.float64)
        places = self.paired("private")
        numbers = torch.rand(len(self.first.units("private")), generator=self.coin,
                             dtype=torch.float64)  # fmt: skip
        return torch.tensor([1.0 if k is None else numbers[k] for k in places], dtype=torch.float64)

    def batched(self, real):
        def batches(phase, lengths, generator):
            for batch in real(phase, lengths, generator):
                self.batches.append((phase.part, sorted(batch.tolist())))
                yield batch

        return batches

    def add_noise(self, parameters, *, std, generator):
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        sums = [p.grad.clone() for p in parameters]
        self.read_alone(parameters, sums)
        ADD_NOISE(parameters, std=std, generator=generator)
        noise = torch.cat([(p.grad - s).flatten() for p, s in zip(parameters, sums, strict=True)])
        rms, slack = float(noise.square().mean().sqrt()), 6 / (2 * len(noise)) ** 0.5
        if std and (abs(rms / std - 1) > slack or float((noise == 0).float().mean()) > 0.01):
            self.found.append(f"noise: {rms:.3g} was added where {std:.3g} was to be")
        self.sums.append(sums)
        self.noisy.append([p.grad.clone() for p in parameters])
        self.stds.append(std)
        self.of_batch.append(len(self.batches) - 1)
        if self.first:
            self.led(parameters, sums)

    def asking(self):
        """The functions that clip, which keep in ``asked`` what clips each text alone."""

        def clipped(model, tokens, lengths, *, clip_norm, targets=None):
            more = () if targets is None else (targets,)
            for alone in texts_alone(tokens, lengths, *more):
                how = {"clip_norm": clip_norm, "targets": alone[2] if more else None}
                self.asked.append(partial(clip, model, *alone[:2], **how))
            return clip(model, tokens, lengths, clip_norm=clip_norm, targets=targets)

        def unit_clipped(model, pieces, *, clip_norm):
            pieces = [*pieces]
            alone = [text for piece in pieces for text in texts_alone(*piece)]
            self.asked.append(partial(clip_unit, model, alone, clip_norm=clip_norm))
            return clip_unit(model, pieces, clip_norm=clip_norm)

        clip, clip_unit = clipping.add_clipped_gradients, clipping.add_clipped_unit_gradient
        ours = {"add_clipped_gradients": clipped, "add_clipped_unit_gradient": unit_clipped}
        return SimpleNamespace(**vars(clipping) | ours)

    def read_alone(self, parameters, sums):
        """Whether the clipped sum of a step is that of its texts, each alone, the last one first;
        of the first steps, where numbers are float32 and no state has noise of its own."""
        asked, self.asked = self.asked[::-1], []
        states = any(isinstance(p, selective.SelectivePhase) for p in self.schedule)
        if self.first or states or not asked or len(self.sums) >= ALONE_STEPS:
            return
        clip_norm = asked[0].keywords["clip_norm"]
        total = [torch.zeros_like(s) for s in sums]
        for clip_alone in asked:
            for p in parameters:
                p.grad = None
            clip_alone()
            for t, p in zip(total, parameters, strict=True):
                t += p.grad
        far = norm_of_difference(sums, total) / clip_norm
        if far > ALONE_APART:
            self.found.append(f"step {len(self.sums)}: is {far:.2g} clip norms from texts alone")
        for p, s in zip(parameters, sums, strict=True):
            p.grad = s.clone()

    def led(self, parameters, sums):
        k = len(self.sums) - 1
        theirs = self.first.sums[k] if k < len(self.first.sums) else []
        if [s.shape for s in sums] != [s.shape for s in theirs]:
            self.found.append(f"step {k}: the first run has no such step")
            return
        self.far.append(norm_of_difference(sums, theirs))
        for p, grad in zip(parameters, self.first.noisy[k], strict=True):
            p.grad.copy_(grad)

    def normals(self, like, generator):
        return torch.empty_like(like).normal_(generator=self.coin)

    def released(self, real):
        """States that leave a private segment (S-DP): with the noise fixed, two norms apart at the
        most, and of one unit."""

        def released(phase, x, noise):
            before = self.coin.get_state()
            out, k = real(phase, x, noise), len(self.hidden)
            if phase.noise_multiplier and torch.equal(before, self.coin.get_state()):
                self.found.append(f"state {k}: has no noise")
            self.hidden.append(out)
            if not self.first:
                return out
            theirs = self.first.hidden[k] if k < len(self.first.hidden) else out[:0]
            if theirs.shape != out.shape:
                self.found.append(f"state {k}: the first run has no such state")
                return out
            rows = (out - theirs).norm(dim=1)
            if rows.max() > 2.001 * phase.hidden_clip or (rows > 0).sum() > 1:
                self.found.append(f"state {k}: rows are {rows.max():.3g} apart")
            return theirs

        return released


ADD_NOISE = steps.add_noise


def norm_of_difference(one, other):
    """The norm of the difference of two lists of tensors."""
    return sum(float((a - b).double().square().sum())
               for a, b in zip(one, other, strict=True)) ** 0.5  # fmt: skip


def texts_alone(tokens, lengths, *targets):
    """The texts of a micro-batch, each as one of its own, without padding."""
    return [
        (tokens[k : k + 1, :n], lengths[k : k + 1], *(t[k : k + 1, :n] for t in targets))
        for k, n in enumerate(lengths.tolist())
    ]


def sigma(*arguments, **named):
    """In place of a calibration, which takes seconds: another number for other arguments."""
    told = repr((arguments, sorted(named.items())))
    return 0.7 + (sum(map(ord, told)) * len(told) % 997) / 997


def take_steps(recipe, **options):
    """Train as a script does that takes each step of a session itself."""
    with train_on_corpus.Session(recipe, **options) as session:
        for step in session:
            step()
        return session.close()


def ran(given, method, home, watch, certified):
    """Train on ``home / "c.jsonl"`` as the command does; what it left for others, by name."""
    likeness = by_likeness(given)
    os.environ["CRTLIB_REGISTRY"] = str(home / "registry")
    text, given = home / "c.jsonl", dict(given)
    by_session = given.pop("by_session", False)
    if method == "plan":
        policy = f"regex:{home.parents[1]}/found.toml"
        secret_plans.make_secret_plan(
            text,
            home / "plan",
            policy=policy,
            posterior=0.1,
            steps=4,
            batch_size=4,
            scales=(5.0,),
            neighbouring_relation="reference",
        )
        given["plan"] = home / "plan"
    judges = given.pop("labels", None)
    if judges is not None:
        judges = read_labels(text, home / "labels", given, *judges)
    with watch.watching():
        if how := given.pop("screened", None):
            for name in ("policy", "conservative", "unit", "dedup", "duplicates", "gamma"):
                if (chosen := given.pop(name, None)) is not None:
                    how = replace(how, **{name: chosen})
            with mock.patch.object(outputs.secrets, "token_bytes", lambda n: bytes(n)):
                screening_page.screen_into_folder(
                    text, home / "screened", how, labels=judges
                )  # one key: one order
            text = home / "screened"
        elif judges:
            given["labels"] = judges
        recipe = recipes.make_recipe(
            {"corpus": text, "method": method, "out": home / "model", "device": "cpu", **given}
        )
        trained = (take_steps if by_session else train_on_corpus.train)(
            recipe, card=model_card.render_model_card
        )
    events = trained.run.events
    folders = ("model", "plan", "screened/public")
    shown = {f"{folder}/{p.relative_to(home / folder)}": p for folder in folders
             for p in sorted((home / folder).rglob("*")) if p.name not in PRIVATE}  # fmt: skip
    if certified:
        certify.write_certificate(home / "model", home / "certificate.html")
        shown |= {name: home / name for name in ("certificate.html", "certificate.json")}
    (ledger,) = home.glob("*.odometer")
    line = odometer.read_entries(ledger)[-1]
    names = ("unit", "method", "relation", "events", "gamma", "delta2", "holds")
    told = {n: getattr(line, n) for n in names} | {"events": str(line.events)}
    kept = json.loads((home / "model.work" / training_record.SIGNED_RECORD_FILE).read_text())
    del kept["odometer"]
    kept = json.loads(json.dumps(kept).replace(str(home), "HOME"))
    sources = released_folder.read_release(home / "model").sources
    return Ran(
        events, {name: content(p) for name, p in shown.items()},
        {"odometer": plain(told), "record": plain(kept)},
        [s for s in sources if s.kind == "declared"],
        void=likeness and bool(source_fold.combine_sources(sources).void),
    )  # fmt: skip


def read_labels(text, folder, given, seed, places):
    """A folder of labels: turns that were drawn, and what a reader marked in them
    (:func:`marked`)."""
    names = [name for key in ("policy", "conservative")
             if (name := given.get(key)) and policy_names.is_from_file(name)]  # fmt: skip
    drawing.draw_label_tasks(text, folder, turns=10**6, seed=seed, kinds=KINDS, forms=["jsonl"],
                  sealed=[policy_digests.policy_digest(name) for name in names])  # fmt: skip
    answers = folder.with_suffix(".jsonl")
    with answers.open("w") as file:
        for task in label_tasks.read_tasks(folder):
            told = {"task": task.task, "text": task.text, "done": True}
            told["secrets"] = marked(task.text, places)
            file.write(json.dumps(told) + "\n")
    imports.import_labels(text, answers, folder)
    return folder


def seed_that_draws(text, turn):
    """A seed by which a turn, (conversation, number), is among those that are drawn; None: of so
    many there is none."""
    for seed in range(60):
        drawn, _ = drawing._draw_turn_per_user(text, "user", np.random.default_rng(seed))
        if turn in drawn:
            return seed
    return None


@dataclass
class Ran:
    """What a training left for others: ``files`` and what is ``told`` by name, what is ``declared``
    of them; ``void``: it promises nothing, as its text was screened by likeness."""

    events: list
    files: dict
    told: dict
    declared: list
    void: bool = False


PRIVATE = {"key", "holders.parquet", "names.parquet", "secrets.parquet"}
KEYED = re.compile(
    r"\b[0-9a-f]{16,}\b|\b[ps][0-9a-f]{16}\b|\bid [0-9a-f]{12}\b|\d{4}-\d\d-\d\dT[\d:]+Z?"
)
"""What differs from run to run: hashes with a key, signatures, times."""


def plain(value):
    """A value without hashes and times; of what a file is made of, without sizes: they follow."""
    if isinstance(value, dict):
        if {"of", "value"} <= value.keys():
            value = value | {"value": "declared"}
        return {KEYED.sub("#", k): plain(v) for k, v in value.items()
                if not (k == "size" and "sha256" in value)}  # fmt: skip
    if isinstance(value, list):
        return [plain(v) for v in value]
    return KEYED.sub("#", value) if isinstance(value, str) else value


def content(path):
    """A file as it is compared."""
    if path.is_dir():
        return "a folder"
    if path.suffix == ".json":
        return plain(json.loads(path.read_bytes()))
    if path.suffix == ".parquet":
        return sorted(map(str, plain(pd.read_parquet(path).to_dict("records"))))
    raw = path.read_bytes()
    return raw if path.suffix == ".safetensors" else KEYED.sub("#", raw.decode())


def undeclared(value, declared, numbers):
    """A file's content without the values that its release declares, and ``numbers`` that are
    treated as known."""
    if isinstance(value, bytes):
        return value
    for source in declared if isinstance(value, str) else ():
        value = value.replace(source.value, source.of)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return re.sub(rf"\b({'|'.join(map(str, numbers))})\b", "n", text) if numbers else text


# --------------------------------------------------------------------------- what is compared
def outcome(one, other, first, second):
    """What may follow of the change, by the product's own account: "void" where nothing is promised
    of a text that was screened by likeness; "untraced" where the secret counts neither as a trace
    nor as public, so nothing may differ; "public" where it may be read without noise; else
    "private"."""
    if one.void and other.void:
        return "void"
    rows = [*first.counted(), *second.counted()]
    if first.counted() and not any(row.public or row.trace is not False for row in rows):
        return "untraced"
    return "private" if second.pair.seen else "public"


def findings(one, other, first, second, method):
    """What tells the two runs apart and should not: of each what :func:`ran` returns, and a Watch;
    and the :func:`outcome`."""
    events, files, told = one.events, one.files, one.told
    found = [*first.found, *second.found]
    kind = outcome(one, other, first, second)
    if kind in ("void", "public"):
        return [], kind
    if repr(first.schedule) != repr(second.schedule):
        found.append("schedule: differs")
    if first.units("public") != second.units("public"):
        found.append("public: what is read without noise differs")
    noisy = (
        "all" if any(isinstance(p, selective.SelectivePhase) for p in first.schedule) else "private"
    )
    sizes = [len(watch.units("private")) for watch in (first, second)]
    if sizes[0] - sizes[1] not in {0, int(second.removed)}:  # what is removed may be held out
        found.append(f"private: {sizes[0]} units, and {sizes[1]}")
    differing = second.differing(noisy)
    if len(differing) > second.holders:
        found.append(f"{noisy}: {len(differing)} units differ, not {second.holders}")
    if differing and not events:
        found.append(f"{noisy}: what is read without noise differs")
    if kind == "untraced" and method == "crt" and first.units(noisy) != second.units(noisy):
        found.append(f"{noisy}: differs, and the secret counts neither as a trace nor as public")
    places = second.paired("private")
    theirs = [(p, [k for k in b if p != "private" or k in places]) for p, b in first.batches]
    ours = [(p, sorted(places[k] for k in b) if p == "private" else b) for p, b in second.batches]
    if theirs != ours:
        found.append("batches: differ")
    counted = sum(e.steps for e in events)
    if noisy == "private" and events and len(first.sums) != counted:
        found.append(f"noise: {len(first.sums)} steps had some, {counted} are accounted")
    if len(first.sums) != len(second.sums):
        found.append(f"steps: {len(first.sums)}, and {len(second.sums)}")
    for k, far in enumerate(second.far):
        multiplier = min(e.noise_multiplier for e in events)
        here = len(differing & set(first.batches[first.of_batch[k]][1]))
        most = here * (1 if second.removed else 2) * first.stds[k] / multiplier
        most = 0.0 if kind == "untraced" and method == "crt" else most
        if far > most * (1 + 1e-4) + 1e-5:
            found.append(f"step {k}: sums are {far:.3g} apart, accounted are {most:.3g}")
            break
    if [*files] != [*other.files]:
        found.append(f"files: {sorted(set(files) ^ set(other.files))} differ in name or order")
    numbers = set()
    if second.removed or (method in ("dpsgd", "user_dpsgd") and told["odometer"]["unit"] != "turn"):
        # How many points there are is known, and how many messages one of them holds.
        numbers = {n for x in (one, other) for n in x.told["odometer"]["holds"].values()}
        numbers |= {x.told["record"]["corpus"]["turns"] for x in (one, other)}
        if first.sized:  # canaries are points as well
            numbers |= {n + first.sized.canaries * first.sized.copies for n in numbers}
        numbers |= {p["points"] for x in (one, other) for p in x.told["record"]["phases"]}
    for name in {**files, **told}:
        a, b = (
            undeclared({**x.files, **x.told}.get(name), x.declared, numbers) for x in (one, other)
        )
        if a != b:
            found.append(f"{name}: {apart(a, b)}")
    return found, kind


def apart(one, other):
    """Where two contents part."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        return "differs"
    k = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return f"{one[max(0, k - 40) : k + 40]!r}, and {other[max(0, k - 40) : k + 40]!r}"


def coin_of(number, seed):
    """What a pair is drawn with."""
    return random.Random(f"{seed} {number}")


def pair(number, seed, home, say=print, without=frozenset()):
    """The findings of one pair, and its :func:`outcome` or "refused". ``without`` these options,
    which have no effect on one of the two texts and are refused for it."""
    coin = coin_of(number, seed)
    method, given = settings(coin, home)
    labelled = coin.choice([None, "as the text brings them", "drawn"])
    if hides := method == "crt" and random.Random(f"{seed} {number} hides").random() < 0.5:
        labelled, given["gamma"] = "drawn", 0.0
        given["policy"] = CHOICES["policy"][0].format(home=home)  # a list knows what is hidden
        if is_long(given):
            given["init"] = str(home / "base")
    if method == "crt" and labelled == "drawn" and not is_long(given):
        given["unit"] = coin.choice(["turn", "dialogue", "user"])
    if method == "crt" and coin.random() < 0.4:
        for name in ("canaries", "copies"):
            given.pop(name, None)  # a screened text has none
        likeness = "exact" if hides else coin.choice(["exact"] * 7 + ["near", "near", "bloom"])
        given["screened"] = ScreeningOptions(
            "none", dedup_by=likeness, keep_ids=coin.random() < 0.3
        )
    for name in without:
        del given[name]
    made = changed(coin, corpus(coin, method, given), method, given, labelled, hides=hides)
    if number % 3 == 2:
        given["by_session"] = True
    runs, watches = [], []
    with tempfile.TemporaryDirectory(dir=home) as place:
        for name, rows in (("one", made.rows), ("other", made.other)):
            folder = Path(place) / name
            folder.mkdir()
            text = folder / "c.jsonl"
            with text.open("w") as file:
                for row in rows:
                    told = {**row, "turns": [
                        {**t, "secrets": marked(t["text"]) if labelled else []}
                        for t in row["turns"]
                    ]}  # fmt: skip
                    file.write(json.dumps(told) + "\n")
            if not runs and labelled == "drawn" and method in ("crt", "sgd"):
                places = coin.choice(["all", "first", "last"]) if method == "crt" else "all"
                places = coin.choice(["first", "first", "last"]) if hides else places
                given["labels"] = seed_that_draws(text, made.picked), places
            watch = Watch(*watches, removed=made.removed, pair=made)
            if method == "plan":
                said = [t["text"].lower() for row in rows for t in row["turns"]]
                watch.holders = sum(made.values[len(runs)].lower() in text for text in said)
            certified = (number + 1) % CERTIFIED == 0
            try:
                runs.append(refused_or(ran, given, method, folder, watch, certified))
            except InvalidOption as refused:
                return pair(number, seed, home, say, without | {refused.name})
            watches.append(watch)
    if isinstance(runs[0], str) or isinstance(runs[1], str):
        found, kind = ["refused: in one of two corpora"] * (runs[0] != runs[1]), "refused"
    else:
        found, kind = findings(*runs, *watches, method)
    if found:
        say(f"{number}: {method}, {made.what}; {' '.join(f'{k}={v}' for k, v in given.items())}")
    return found, kind


def refused_or(ran, given, *others):
    """What was trained, or the line with which a model whose positions follow the batch was
    refused."""
    try:
        return ran(given, *others)
    except InvalidOption:
        raise
    except ValueError as refused:
        if not is_long(given) or "\n" in str(refused):
            raise
        return str(refused)


def marked(text, places="all"):
    """Where secrets stand in a text, however they are written, as rows of a corpus; of one that
    stands there several times ``places`` says which: all, the first or the last."""
    found = [*secret_pattern(KINDS).finditer(text)]
    if places != "all":
        found = [*{m[0].lower(): m for m in found[:: 1 if places == "last" else -1]}.values()]
    return [{"kind": f"K{m[1] or m[2]}".upper(), "start": m.start(), "end": m.end()}
            for m in sorted(found, key=re.Match.start)]  # fmt: skip


@contextlib.contextmanager
def a_home():
    """A folder with models from outside, and policies that were made of no text."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", ".*found.txt, row")  # a value stands in so many turns
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        tiny("gpt2", home / "base")
        for name in LONG:
            long(name, home / name)
        for name, kinds in (("found", [FOUND]), ("wide", [FOUND, MISSED]), ("other", [MISSED])):
            noticed = rf"(?!\{UNNOTICED})"
            text = "".join(
                f"[{k.lower()}]\npattern = '\\b(?:{k}-[A-Za-z0-9]++|{k[-1]}\\d\\b){noticed}'\n"
                for k in kinds
            )
            (home / f"{name}.toml").write_text(text)
        (home / "found.txt").write_text("\n".join(LISTED))
        (home / "words.txt").write_text("\n".join(WORDS))
        yield home


def long(name, folder):
    """A tiny model whose positions are others where a text of the batch is longer than ORIGINAL."""
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24,
        "initializer_range": 0.5, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    if name == "longrope":
        rope = {"type": "longrope", "short_factor": [1.0] * 2, "long_factor": [40.0] * 2}
        config = transformers.Phi3Config(
            **shape, max_position_embeddings=256, rope_scaling=rope,
            original_max_position_embeddings=ORIGINAL,
        )  # fmt: skip
    else:
        rope = {"type": "dynamic", "factor": 8.0}
        config = transformers.LlamaConfig(
            **shape, max_position_embeddings=ORIGINAL, rope_scaling=rope
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for path in (folder.parent / "base").glob("*token*"):
        shutil.copy(path, folder)


def run(home, pairs, seed, start=0, say=print):
    """So many pairs; all that was found, and how often each :func:`outcome` came."""
    found, kinds = [], Counter()
    for number in range(start, start + pairs):
        some, kind = pair(number, seed, home, say)
        kinds[kind] += 1
        for one in some:
            found.append(one)
            say(f"   {one}")
    return found, kinds


# --------------------------------------------------------------------------- leaks that are planted
WITHIN = 800
"""Pairs within which each leak must be found."""


def planted(leak, home):
    """A leak, and how many pairs it took to find it; None: it was not found."""
    plant(leak)
    for number in range(WITHIN):
        if leak.name in OF_CRT and settings(coin_of(number, 0), home)[0] != "crt":
            continue  # nothing that it changes is asked there
        try:
            found, _ = run(home, 1, 0, number, say=lambda _: None)
        except Exception as error:
            found = [repr(error)]
        if found:
            return leak.name, number + 1, found[0]
    return leak.name, None, ""


def plant_all(home, jobs):
    """Plant all leaks, each in a process of its own; how many were not found."""
    missed = 0
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        for name, count, said in pool.imap(partial(planted, home=home), LEAKS, chunksize=1):
            missed += count is None
            print(
                f"{'MISSED' if count is None else f'pair {count:>3}'}  {name}  {said[:150]}",
                flush=True,
            )
    print(f"{len(LEAKS) - missed} of {len(LEAKS)} leaks found within {WITHIN} pairs")
    return missed


LOT = 10
"""Pairs of one process: it grows with each."""


def share(spans, home, seed):
    """What was found in some pairs, and what there is to say of it."""
    said = []
    return *run(home, len(spans), seed, spans.start, said.append), said


def run_all(home, pairs, seed, start, jobs):
    """So many pairs, shared among processes in lots, each of which is told when it is done; how
    many findings there were."""
    spans = [range(k, min(k + LOT, start + pairs)) for k in range(start, start + pairs, LOT)]
    found, kinds = 0, Counter()
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        lots = pool.imap(partial(share, home=home, seed=seed), spans, chunksize=1)
        for span, (those, some, said) in zip(spans, lots, strict=True):
            found, kinds = found + len(those), kinds + some
            for line in (*said, f"pairs {span.start} to {span.stop - 1}: {len(those)} findings"):
                print(line, flush=True)
    each = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    print(f"pairs {pairs}: {found} findings ({each})", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="begin at this pair")
    parser.add_argument("--planted", action="store_true", help="then plant leaks, and find them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    with a_home() as home:
        found = run_all(home, options.pairs, options.seed, options.start, options.jobs)
        missed = plant_all(home, options.jobs) if options.planted else 0
    raise SystemExit(bool(found or missed))


if __name__ == "__main__":
    main()
