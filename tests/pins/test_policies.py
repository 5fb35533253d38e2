"""A policy finds what it found: of each by name a count and a hash of all its spans.

The text: 2,000 simulated turns, and lines that a simulator does not write, in other scripts, with
digits, quotes and spaces of other kinds, accents in two forms, and signs outside the first plane.
Policies that need a package or a model that may not be there, and those that are taught on the way
with an optimiser (the tagger), are not pinned.
"""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crtlib.screening.policy_names import policy_by_name
from crtlib.text import customersim
from crtlib.text.data_points import make_points
from crtlib.text.records import Point
from tests import pins

TURNS = 2000
LINES = (
    "Меня зовут Иван Петров, мой номер +7 912 345-67-89.",
    "我叫王小明，电话是13812345678，住在北京市朝阳区建国路88号。",
    "私の名前は田中太郎です。電話番号は０３－１２３４－５６７８です。",
    "اسمي محمد علي ورقم هاتفي ٠٥٠١٢٣٤٥٦٧.",
    "שמי דוד כהן, הטלפון שלי 052-1234567.",
    "मेरा नाम राज शर्मा है, फ़ोन ९८७६५४३२१०।",
    "Ich heiße Jörg Müßig, jörg@büro.example, Straße 12a, 80331 München.",
    "Je m’appelle Renée L’Écuyer, 12, rue de l’Été, 75001 Paris; tél. 01 23 45 67 89.",
    "Rene\u0301e Cafe\u0301, 4111 1111 1111 1111, IBAN DE89 3704 0044 0532 0130 00",
    "My name is James Smith, my phone is (415) 555-0132, order 123456.",
    "MY NAME IS JAMES SMITH AND MY PHONE NUMBER IS 415.555.0132",
    "my name is o'brien-smith, tracking number 1Z999AA10123456784",
    "I live at 12 High Street, Flat 3, Cambridge CB2 1TN; call +44 (0)1223 765 432.",
    "mail a.b+c@example.co.uk or see https://example.org/u/4242?id=77 from 192.168.0.1",
    "at 19:30 on 2026-02-29, table for 4 at the Golden House, ref ABC12345",
    "😀 James 😀 415\u2011555\u20110132 😀 order\u00a0123\u00a0456 𝟏𝟐𝟑𝟒𝟓𝟔",
    "zero\u200bwidth 41\u200b5-555-0132, left\u202eright 2310-555-514",
    "tab\tnew\nline 415-555\n0132\r\nJames\r\nSmith",
    "",
    " ",
    "٪؟ ؛ — “quoted” ‘single’ «guillemets» 12,5 € 1.000,00 $3.50 №5 §7",
    "a" * 300 + " 1234567890" * 30,
)
LISTED = ("James Smith", "Иван Петров", "王小明", "Renée", "415-555-0132", "123456", "Golden House")
OWN = r"""
[number]
pattern = '\b\d[\d -]{4,30}\d\b'
not = ["4111 1111 1111 1111"]
[mail]
pattern = '(?:mail )?(?P<secret>[\w.+-]{1,64}@[\w.-]{1,64}\w)'
flags = "i"
"""
NAMED = (
    *("oracle", "none", "everything", "cautious", "regex:customersim", "regex:multiwoz"),
    *("regex:customersim+cautious", "regex:multiwoz+everything", "cautious:words.txt"),
    *("list:list.txt", "list:list.csv", "regex:own.toml", "list:list.txt+regex:own.toml"),
)


def texts() -> list[Point]:
    """The points that the policies read."""
    corpus = customersim.simulate_corpus(260, seed=5, variety="paper")
    lines = [Point(f"line-{k}", "u", text) for k, text in enumerate(LINES)]
    return [*make_points(corpus, "turn")[:TURNS], *lines]


def summary(spans: list[list[list[Any]]]) -> dict[str, Any]:
    """How many spans of the turns are of which kind, a hash of all, and those of the lines."""
    kinds = Counter(kind for each in spans[:TURNS] for kind, _, _ in each)
    digest = hashlib.sha256(json.dumps(spans[:TURNS]).encode()).hexdigest()
    return {"kinds": dict(sorted(kinds.items())), "turns": digest[:24], "lines": spans[TURNS:]}


def make() -> dict[str, Any]:
    read, out = texts(), {}
    assert len(read) == TURNS + len(LINES)
    with TemporaryDirectory() as home:
        for name, text in (
            ("list.txt", "\n".join(LISTED)),
            ("list.csv", "secret,kind,parts\n" + "".join(f"{x},own,yes\n" for x in LISTED)),
            ("own.toml", OWN),
            ("words.txt", "my\nname\nis\nphone\norder\n"),
        ):
            Path(home, name).write_text(text, encoding="utf-8")
        for name in NAMED:
            there = re.sub(r":(?=\w+\.)", f":{home}/", name)
            found = policy_by_name(there)(read)
            out[name] = summary([[[s.kind, s.start, s.end] for s in each] for each in found])
    return out


def test_a_policy_finds_the_spans_that_it_found():
    pins.same("policies")


def test_a_span_that_moves_by_one_character_shows():
    pinned = pins.read("policies")
    other = json.loads(json.dumps(pinned))
    next(lines for lines in other["cautious"]["lines"] if lines)[0][2] += 1
    assert len(list(pins.differences(pinned, other))) == 1
    assert pinned["oracle"]["kinds"] and pinned["none"]["kinds"] == {}
    assert {each["turns"] for each in pinned.values()} != {pinned["none"]["turns"]}
