"""What two days' reading buys: how many secrets the policies of the first day miss, and what their
labels certify, against the truth of a corpus whose every secret is known.

    python benchmarks/label_hours.py schema_guided:dev --pool 8000
    python benchmarks/label_hours.py simulated --pool 8000

Half of the people judge, two turns each; of the turns of the others some are read to teach: a third
at random, then in two rounds those that the tagger scores highest. The reader overlooks a tenth of
the secrets. The threshold is the lowest at which no more of the unread turns are flagged than hold
a secret and may be flagged in error: it needs no label. Truth is counted on all secrets of the
people who judge, and on 1,000 turns without one; a bound is for a secret of a turn that is drawn,
which weighs those of a turn with many less. What the labels certify depends on which turns are
drawn and what the reader overlooks: of 300 draws the median and the 5th and 95th percentile.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from faker.providers.address.en_US import Provider as Place
from faker.providers.person.en_US import Provider as Person

from crtlib.screening import rates, tagger
from crtlib.screening.deduplication import TextCounts
from crtlib.screening.policy import Policy
from crtlib.screening.policy_changes import union_policy, whole_turns_policy
from crtlib.screening.policy_names import policy_by_name
from crtlib.screening.secret_outcomes import draw_order
from crtlib.text import corpora, data_points
from crtlib.text.records import Corpus, Dialogue, Point, Secret, Turn

SLIPS = 0.1
"""Of the secrets a reader passes over."""
WRONG = 0.09
"""Of all turns may be flagged beyond those with a secret."""
TEACH, ROUNDS, JUDGE, CLEAN, DRAWS, SEED = 1300, 3, 2000, 1000, 300, 0
"""Turns that teach, and in how many rounds; turns that judge; turns without a secret; draws."""
THRESHOLDS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001)


# --------------------------------------------------------------------------- simulated text
BANK = (
    "I would like to send {amount} to {name} from my savings account.",
    "Please transfer {amount} to the account of {name}.",
    "My name is {name} and my number is {phone}, call me any time.",
    "The card should go to {address}.",
    "Could you tell me the balance of my account?|What are the fees of a transfer to another bank?",
    "The Checking account was opened in March.|Is the branch open on Saturday?",
    "Thank you, that is all I need.|Yes, that is right.|No, please leave it as it is.",
    "I did not get the code, please send it again.|How long does it take until it arrives?",
)
CLINIC = (
    "Good morning, this is {name}. I need an appointment with {doctor}.",
    "You can reach me under {phone} after four.",
    "We have moved; the new address is {address}.",
    "{doctor} has seen my daughter {name} last week, the bill was {amount}.",
    "Do I have to bring the results of the last test?|Is parking free at the clinic?",
    "My back has been hurting since Monday.|The pills that I was given make me tired.",
    "Tuesday at ten would suit us best.|We take most plans, please bring your card.",
    "See you then.|Many thanks for the quick answer.|Could we make it a week later?",
)
COURIER = (
    "hi its {lower}, parcel never came to {address}",
    "ok call {phone} when u r outside",
    "i paid {amount} extra for this!!",
    "give it to my neighbour {lower} pls",
    "where is my stuff|been waiting all day|the app says delivered but nothing here",
    "sorry to hear that, let me check|the driver is two stops away|can you wait until noon",
    "lol ok|thx|no worries|great, have a good one",
    "the box was wet and one corner is torn|do you guys come on sundays",
)


def simulated(dialogues: int) -> Corpus:
    """Conversations of three kinds; of each the first four lines hold secrets."""
    rng = random.Random(SEED)
    firsts, lasts, streets, ends = (
        sorted(x)
        for x in (Person.first_names, Person.last_names, Place.city_suffixes, Place.street_suffixes)
    )

    def value(slot: str) -> str:
        first, last = rng.choice(firsts), rng.choice(lasts)
        name = rng.choice((first, f"{first} {last}", f"{first} {last}"))
        n = rng.randrange
        street = f"{n(1, 9999)} {rng.choice(lasts)}{rng.choice((' ', rng.choice(streets) + ' '))}"
        return {
            "name": name,
            "doctor": f"Dr. {last}",
            "lower": name.lower(),
            "phone": rng.choice(("{}-{}-{}", "({}) {}-{}", "{} {} {}", "{}{}{}")).format(
                n(200, 999), n(200, 999), n(1000, 9999)
            ),
            "amount": rng.choice(("${:,}", "{} dollars", "${}.50", "{:,} bucks")).format(
                n(5, 4000)
            ),
            "address": street + rng.choice(ends) + rng.choice(("", f", Apt. {n(99)}")),
        }[slot]

    def said(line: str) -> Turn:
        text, secrets = "", []
        for piece in rng.choice(line.split("|")).replace("}", "{").split("{"):
            if piece in ("name", "doctor", "lower", "phone", "amount", "address"):
                piece, kind = value(piece), {"doctor": "name", "lower": "name"}.get(piece, piece)
                secrets.append(Secret(kind, len(text), len(text) + len(piece)))
            text += piece
        return Turn(rng.choice(("USR", "SYS")), text, tuple(secrets))

    made = []
    for k in range(dialogues):
        kind = rng.choice((BANK, CLINIC, COURIER))
        lines = [rng.choice(kind[:4] if rng.random() < 0.08 else kind[4:]) for _ in range(18)]
        made.append(Dialogue(f"s{k}", f"s{k}", tuple(map(said, lines))))
    return Corpus("simulated", tuple(made))


# --------------------------------------------------------------------------- reading and teaching
def read(points: Sequence[Point], rng: random.Random) -> list[Point]:
    """The points as a reader labels them."""
    return [
        replace(p, secrets=tuple(s for s in p.secrets if rng.random() >= SLIPS)) for p in points
    ]


def taught(pool: list[Point], rng: random.Random, say: Callable[..., None]) -> tagger.Tagger:
    """A tagger after ``TEACH`` turns in ``ROUNDS`` rounds."""
    known, rest, made = list[Point](), pool, None
    for k in range(ROUNDS):
        some = TEACH // ROUNDS + (k < TEACH % ROUNDS)
        if made:
            doubt = dict(zip((p.id for p in rest), made.doubt(rest), strict=True))
            rest = sorted(rest, key=lambda p: -doubt[p.id])
        known, rest = known + read(rest[:some], rng), rest[some:]
        made = replace(tagger.train_tagger(known, seed=SEED, backbone="minilm"), known={})
        held = sum(bool(p.secrets) for p in known)
        say(f"round {k + 1}: {len(known)} turns, {held} with a secret")
    return made


def first_day(folder: Path) -> tuple[Policy, Policy]:
    """The expressions that a new project begins with, and the names of the United States."""
    home = resources.files("confide.commands") / "project" / "policies" / "ours.toml"
    (folder / "ours.toml").write_text(home.read_text(encoding="utf-8"), encoding="utf-8")
    names = sorted({*Person.first_names, *Person.last_names})
    (folder / "names.txt").write_text("\n".join(n for n in names if len(n) > 2), encoding="utf-8")
    shapes, listed = f"regex:{folder}/ours.toml", f"list:{folder}/names.txt"
    return policy_by_name(shapes), policy_by_name(listed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", help="NAME:SPLIT, or simulated")
    parser.add_argument("--pool", type=int, default=3000, help="turns that may be read to teach")
    o = parser.parse_args()
    rng, start = random.Random(SEED), time.process_time()

    def say(*what: Any) -> None:
        print(f"{time.process_time() - start:7.0f} CPU s ", *what, flush=True)

    name, _, split = o.corpus.partition(":")
    corpus = simulated(2000) if name == "simulated" else corpora.load_corpus(name, split or "train")
    by: dict[str, list[Point]] = {}
    every_turn = data_points.make_points(corpus, "turn")
    texts = TextCounts(every_turn)
    for p in every_turn:
        by.setdefault(p.user, []).append(p)
    people = rng.sample(sorted(by), len(by))
    judges, others = people[: JUDGE // 2], people[JUDGE // 2 :]
    every = [p for u in judges for p in by[u]]
    truth, clean = [p for p in every if p.secrets], [p for p in every if not p.secrets]
    clean = rng.sample(clean, min(len(clean), CLEAN))

    def draw() -> list[Point]:
        """Turns with a secret that a reader noticed, two of each who judges; no other judges."""
        turns = read([p for u in judges for p in rng.sample(by[u], min(2, len(by[u])))], rng)
        return [p for p in turns if p.secrets]

    draws = [draw() for _ in range(DRAWS)]
    rate = sum(map(len, draws)) / DRAWS / sum(min(2, len(by[u])) for u in judges)
    pool = [p for u in others for p in by[u]]
    pool = rng.sample(pool, len(pool))
    pool, unread = pool[: o.pool], pool[o.pool : o.pool + CLEAN]
    say(
        f"{len(people)} people, {len(draws[0])} turns to judge, truth on {len(truth)} with a secret"
    )
    made = taught(pool, random.Random(SEED), say)
    with tempfile.TemporaryDirectory() as folder:
        shapes, listed = first_day(Path(folder))

        def joined(threshold: float) -> Policy:
            return union_policy(tagger.tagger_policy(replace(made, threshold=threshold)), shapes)

        flagged = {t: sum(map(bool, joined(t)(unread))) / len(unread) for t in THRESHOLDS}
        threshold = min(t for t in THRESHOLDS if t == THRESHOLDS[0] or flagged[t] <= rate + WRONG)
        say(f"threshold {threshold}; unread turns flagged {flagged}")
        backbone = tagger.tagger_policy(replace(made, threshold=threshold))
        policies = {"expressions": shapes, "expressions, names": union_policy(shapes, listed)}
        both, every = union_policy(backbone, shapes), union_policy(backbone, shapes, listed)
        policies |= {"backbone": backbone, "backbone, expressions": both}
        policies |= {
            "both, whole turns": whole_turns_policy(both),
            "all, whole turns": whole_turns_policy(every),
        }
        for which, pi in policies.items():
            conservative_policy = policy_by_name("cautious")
            counter = rates.RateCounter(pi, conservative_policy, cluster="dialogue", texts=texts)
            told = {j.order: j for j in counter.add(truth)}
            real = counter.rates()
            miss = real.miss.labelled_counts or (0, 1)
            trace = real.trace.labelled_counts or (0, 1)
            judged = []
            for turns in draws:
                noticed = (draw_order(0, p.id, s.start) for p in turns for s in p.secrets)
                judged.append(counter.rates(outcomes=[told[k] for k in noticed if k in told]).trace)
            drawn = sum(r.failures for r in judged) / sum(r.judged_secrets for r in judged)
            row = {
                "true miss": miss[0] / miss[1],
                "true trace": trace[0] / trace[1],
                "judged": np.median(
                    [(r.failures, r.judged_secrets) for r in judged], axis=0
                ).tolist(),
                "bound": np.percentile([r.upper_bound for r in judged], (50, 5, 95)).tolist(),
                "of a turn drawn": drawn,
                "bound holds": float(np.mean([r.upper_bound >= drawn for r in judged])),
                "clean flagged": sum(map(bool, pi(clean))) / len(clean),
                "miss by kind": {
                    kind: (n := some["miss"].all or (0, 1))[0] / n[1]
                    for kind, some in real.by_kind.items()
                },
            }
            say(which, json.dumps(row))


if __name__ == "__main__":
    main()
