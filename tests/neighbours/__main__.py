"""Train on pairs of neighbouring corpora and look inside: ``python -m tests.neighbours``.

A pair is drawn: a method with its options, a small corpus, and the same corpus with one unit
changed, as the method's relation says. Both are trained on by the functions of ``crtlib train``,
with the same batches, and the second one is led: after each private step it is given the noisy sum
of the first. So all that follows is a function of what may follow, and is compared:

- constant: settings, schedule, batches, the names, order and sizes of files, models as they are;
- screened: what is read without noise is equal whenever a policy flags the change;
- noised: the clipped sums of each step differ by at most the sensitivity that was accounted, only
  where the changed unit was drawn, and every number has the noise that was accounted;
- declared: of all files only the declared value differs.

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
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from unittest import mock

import pandas as pd
import torch
import transformers

from crtlib import outputs
from crtlib import recipe as recipes
from crtlib.accounting import odometer
from crtlib.experiments import crt, own, plans, record
from crtlib.options import Refused, options_of
from crtlib.release import certify, gate
from crtlib.reports import pages, screening
from crtlib.screening.corpus import How
from crtlib.screening.rates import RateCounter
from crtlib.training import loop, phases
from tests.faults.__main__ import plant
from tests.faults.table import Fault
from tests.models.test_pretrained import tiny

WORDS = ("a", "the", "of", "we", "you", "it", "is", "are", "was", "to", "order", "late", "box",
         "red", "blue", "when", "where", "please", "thank", "hello")  # fmt: skip
LETTERS, DIGITS = "QXZJVWKY", "0123456789"
CERTIFIED = 50
"""Of so many pairs the last is certified as well: that takes ten times as long as to train."""
FIXED = {"method", "corpus", "out", "odometer", "device", "workers", "memory", "plan", "labels",
         "core_hours", "gradient_checkpointing", "repeatable_noise", "power"}  # fmt: skip
"""Options that the fuzzer sets itself, that change no result, or that void every promise."""
CHOICES = {
    "init": ["random"] * 9 + ["{home}/base"],
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
    "dtype": ["auto", "auto", "auto", "bfloat16"],
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
    "policy": ["regex:{home}/found.toml"],
    "conservative": [None, "regex:{home}/wide.toml", "regex:{home}/other.toml", "everything"],
    "gamma": [0.0, 0.0, 0.4],
    "dedup": ["all", "flagged", "none"],
}
FOUND, MISSED = "KA", "KB"
"""What a secret begins with that pi finds, and one that is left to pi_c."""


# --------------------------------------------------------------------------- what is drawn
def settings(coin, home):
    """A method and values of all its options."""
    method = coin.choice([*recipes.RECIPES])
    given = {}
    for option in options_of(recipes.recipe_of(method)):
        if option.name in CHOICES:
            value = coin.choice(CHOICES[option.name])
            given[option.name] = value.format(home=home) if isinstance(value, str) else value
        elif option.name not in FIXED:
            raise LookupError(f"--{option.name}: say in CHOICES or FIXED what a pair does with it")
    if method == "selective":
        given["model"], given["init"], given["layers"] = "lstm", "random", 1
    if "other" in str(given.get("conservative")):
        given["gamma"] = 0.0  # nor does pi_c find it
    if method == "plan":
        given["context"] = None  # it refuses longer messages
    if given["init"] != "random":
        given["template"] = None  # its own, or what reads most easily
    if method in ("sgd", "jft", "selective"):
        given["gamma"] = 0.0  # what the dial misses is read without noise
    while True:
        try:
            recipes.make({"corpus": home / "c.jsonl", "method": method, "plan": home, **given}
                         if method == "plan" else
                         {"corpus": home / "c.jsonl", "method": method, **given})  # fmt: skip
            return method, given
        except Refused as refused:
            del given[refused.name]


def letters(coin, least=3, most=9, of=LETTERS):
    return "".join(coin.choices(of, k=coin.randint(least, most)))


def said(coin, of=LETTERS):
    """A message of a few words, and perhaps a secret."""
    words = coin.choices(WORDS, k=coin.randint(2, 7))
    if kind := coin.choice([FOUND, MISSED, None]):
        words.insert(coin.randrange(len(words) + 1), f"{kind}-{letters(coin, of=of)}")
    return " ".join(words)


def corpus(coin, of):
    """Rows of a corpus: 14 to 18 conversations of half as many people; secrets ``of`` letters."""
    rows = [
        {"id": f"d{k}", "user": f"u{k // 2}", "turns": [
            {"speaker": coin.choice(["USR", "SYS"]), "text": said(coin, of)}
            for _ in range(coin.randint(2, 4))
        ]}
        for k in range(coin.randint(14, 18))
    ]  # fmt: skip
    turns = [t for row in rows for t in row["turns"]]
    for turn in coin.sample(turns, 4):
        turn["text"] = coin.choice(turns)["text"]  # said twice
    return rows


def wild(coin):
    """Any message: a rare word said often, another script, a mask, two lines."""
    word = letters(coin, 8, 12).lower()
    return coin.choice([
        " ".join([word] * coin.randint(1, 30)), f"{word} ÄÖ 你好", f"{word} <MASK>",
        f"{word}\nUSR: {word}", said(coin), coin.choice(WORDS), f"{word} 0123456789 {word}",
    ])  # fmt: skip


def changed(coin, rows, method, given):
    """The rows with one unit changed, what was done, and whether it was removed."""
    rows = copy.deepcopy(rows)
    if method in ("dpsgd", "user_dpsgd"):
        unit = "user" if method == "user_dpsgd" else given.get("unit") or "turn"
        row = coin.choice(rows)
        if unit == "turn" and given.get("neighbouring") == "add_or_remove":
            row["turns"].pop()
            return rows, f"last message of {row['id']} removed", True
        those = [r for r in rows if r["user"] == row["user"]] if unit == "user" else [row]
        for one in those:
            if unit == "turn":
                coin.choice(one["turns"])["text"] = wild(coin)
            else:
                one["turns"] = [
                    {"speaker": coin.choice(["USR", "SYS"]), "text": wild(coin)}
                    for _ in range(coin.randint(1, 6))
                ]
        return rows, f"{unit} of {row['id']}", False
    kinds = [FOUND]
    if method == "crt" and given.get("conservative"):
        kinds.append(MISSED)  # pi_c finds it
    texts = [t["text"] for row in rows for t in row["turns"]]
    once = [(t, m) for row in rows for t in row["turns"] if texts.count(t["text"]) == 1
            for m in re.finditer(rf"({'|'.join(kinds)})-\w+", t["text"])]  # fmt: skip
    turn, m = coin.choice(once)
    new = m[1] + "-" + letters(coin, 1, 12)
    if method == "selective":  # as many tokens, or the rows of its states are in another order
        new = m[1] + "-" + letters(coin, len(m[0]) - 3, len(m[0]) - 3, of=DIGITS)
    if method == "crt" and coin.random() < 0.2:
        new = "<MASK>"
    before = turn["text"]
    for row in rows:
        for t in row["turns"]:
            if t is turn or method == "plan":  # one value, wherever it stands
                t["text"] = t["text"].replace(m[0], new)
    return rows, f"{m[0]} of {before!r} is {new}", False


# --------------------------------------------------------------------------- what is watched
@dataclass
class Watch:
    """What one training does; with ``first`` it is led where that one went."""

    first: "Watch | None" = None
    removed: bool = False
    holders: int | None = None  # how many points hold the value that is another, of a plan
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
    found: list = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self):
        with contextlib.ExitStack() as stack:
            for owner, name, new in (
                (phases, "add_noise", self.add_noise),
                (own, "sized", partial(self.size, own.sized)),
                (crt, "train", partial(self.train, crt.train)),
                (crt.ledger, "noise_multiplier", sigma),
                (loop, "train", partial(self.train, loop.train)), (phases, "uniform", self.uniform),
                (phases, "normals", self.normals),
                (phases.SelectivePhase, "released", self.released(
                    phases.SelectivePhase.released)), (crt.attacks, "known", dict),
                (RateCounter, "rates", self.judged(RateCounter.rates)),
                *((kind, "batches", self.batched(kind.batches)) for kind in
                  (phases.PublicPhase, phases.PrivatePhase, phases.SelectivePhase)),
            ):  # fmt: skip
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

    def judged(self, real):
        """What is counted on labels is treated as known."""

        def rates(counter, **named):
            self.rates = self.first.rates if self.first else real(counter, **named)
            return self.rates

        return rates

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

    def differing(self, part):
        """The numbers of the units that are others than in the first run, by its count."""
        one, other = self.first.units(part), self.units(part)
        places = [k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
        if self.removed and len(other) == len(one) - 1:
            gone = places[0] if places else len(other)
            return {gone} if one[:gone] + one[gone + 1 :] == other else set(range(len(one)))
        return set(places) | set(range(len(other), len(one))) | set(range(len(one), len(other)))

    @property
    def gone(self):
        """The unit that the second corpus lacks, if it lacks one."""
        lacks = self.removed and self.first and len(self.units("private")) + 1 == len(
            self.first.units("private"))  # fmt: skip
        return min(self.differing("private")) if lacks else None

    def uniform(self, n, generator):
        gone = self.gone
        numbers = torch.rand(n + (gone is not None), generator=self.coin, dtype=torch.float64)
        return numbers if gone is None else torch.cat([numbers[:gone], numbers[gone + 1 :]])

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

    def led(self, parameters, sums):
        k = len(self.sums) - 1
        theirs = self.first.sums[k] if k < len(self.first.sums) else []
        if [s.shape for s in sums] != [s.shape for s in theirs]:
            self.found.append(f"step {k}: the first run has no such step")
            return
        self.far.append(sum(float((a - b).double().square().sum())
                            for a, b in zip(sums, theirs, strict=True)) ** 0.5)  # fmt: skip
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


ADD_NOISE = phases.add_noise


def sigma(*arguments, **named):
    """In place of a calibration, which takes seconds: another number for other arguments."""
    told = repr((arguments, sorted(named.items())))
    return 0.7 + (sum(map(ord, told)) * len(told) % 997) / 997


def ran(given, method, home, watch, certified):
    """Train on ``home / "c.jsonl"`` as the command does; what it left for others, by name."""
    os.environ["CRTLIB_REGISTRY"] = str(home / "registry")
    text, given = home / "c.jsonl", dict(given)
    if method == "plan":
        plans.make(text, home / "plan", policy=f"regex:{home.parents[1]}/found.toml", posterior=0.1,
                   steps=4, batch_size=4, scales=(5.0,))  # fmt: skip
        given["plan"] = home / "plan"
    if given.pop("screened", False):
        how = How(
            given.pop("policy"), given.pop("conservative", None) or "everything",
            given.pop("unit", None) or "turn", dedup=given.pop("dedup"),
        )  # fmt: skip
        with mock.patch.object(outputs.secrets, "token_bytes", lambda n: bytes(n)):
            screening.make(text, home / "screened", how)  # one key, by which it is shuffled
        text = home / "screened"
    with watch.watching():
        recipe = recipes.make(
            {"corpus": text, "method": method, "out": home / "model", "device": "cpu", **given}
        )
        trained = own.train(recipe, card=pages.of_training)
    events = trained.run.events
    shown = {f"{folder}/{p.relative_to(home / folder)}": p for folder in ("model", "plan")
             for p in sorted((home / folder).rglob("*")) if p.name not in PRIVATE}  # fmt: skip
    if certified:
        certify.write(home / "model", home / "certificate.html")
        shown |= {name: home / name for name in ("certificate.html", "certificate.json")}
    (ledger,) = home.glob("*.odometer")
    line = odometer.read(ledger)[-1]
    names = ("unit", "method", "relation", "events", "gamma", "delta2", "holds")
    told = {n: getattr(line, n) for n in names} | {"events": str(line.events)}
    kept = json.loads((home / "model.work" / record.NAME).read_text())
    del kept["odometer"]
    kept = json.loads(json.dumps(kept).replace(str(home), "HOME"))
    declared = [s for s in gate.read(home / "model").sources if s.kind == "declared"]
    return events, {name: content(p) for name, p in shown.items()}, {
        "odometer": plain(told), "record": plain(kept)}, declared  # fmt: skip


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
def findings(one, other, first, second):
    """What tells the two runs apart and should not; each is what ``ran`` returns, and a Watch."""
    events, files, told, _ = one
    found = [*first.found, *second.found]
    if repr(first.schedule) != repr(second.schedule):
        found.append("schedule: differs")
    if first.units("public") != second.units("public"):
        found.append("public: what is read without noise differs")
    noisy = (
        "all" if any(isinstance(p, phases.SelectivePhase) for p in first.schedule) else "private"
    )
    differing = second.differing(noisy)
    holders = second.holders if second.holders is not None else 1
    if len(differing) > holders:
        found.append(f"{noisy}: {len(differing)} units differ, not {holders}")
    if differing and not events:
        found.append(f"{noisy}: what is read without noise differs")
    theirs = first.batches
    if second.gone is not None:
        gone = second.gone
        moved = [[k - (k > gone) for k in batch if k != gone] for _, batch in theirs]
        theirs = [(p, m if p == "private" else b) for (p, b), m in zip(theirs, moved, strict=True)]
    if theirs != second.batches:
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
        if far > most * (1 + 1e-4) + 1e-5:
            found.append(f"step {k}: sums are {far:.3g} apart, accounted are {most:.3g}")
            break
    if [*files] != [*other[1]]:
        found.append(f"files: {sorted(set(files) ^ set(other[1]))} differ in name or order")
    numbers = set()
    if second.removed or told["odometer"]["unit"] != "turn":
        # How many points there are is known, and how many messages one of them holds.
        numbers = {n for x in (one, other) for n in x[2]["odometer"]["holds"].values()}
        numbers |= {x[2]["record"]["corpus"]["turns"] for x in (one, other)}
        if first.sized:  # canaries are points as well
            numbers |= {n + first.sized.canaries * first.sized.copies for n in numbers}
        numbers |= {p["points"] for x in (one, other) for p in x[2]["record"]["phases"]}
    for name in {**files, **told}:
        a, b = (undeclared({**x[1], **x[2]}.get(name), x[3], numbers) for x in (one, other))
        if a != b:
            found.append(f"{name}: {apart(a, b)}")
    return found


def apart(one, other):
    """Where two contents part."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        return "differs"
    k = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return f"{one[max(0, k - 40) : k + 40]!r}, and {other[max(0, k - 40) : k + 40]!r}"


def pair(number, seed, home, say=print):
    """The findings of one pair."""
    coin = random.Random(f"{seed} {number}")
    method, given = settings(coin, home)
    rows = corpus(coin, DIGITS if method == "selective" else LETTERS)
    others, what, removed = changed(coin, rows, method, given)
    labelled = coin.random() < 0.5
    read = any(given.get(name) for name in ("canaries", "gamma", "template"))
    read |= given.get("unit") == "user"  # it has too few points then
    given["screened"] = method == "crt" and not read and coin.random() < 0.3
    runs, watches = [], []
    with tempfile.TemporaryDirectory(dir=home) as place:
        for name, these in (("one", rows), ("other", others)):
            folder = Path(place) / name
            folder.mkdir()
            with (folder / "c.jsonl").open("w") as file:
                for row in these:
                    file.write(
                        json.dumps(row | {"turns": [turn(t, labelled) for t in row["turns"]]})
                    )
                    file.write("\n")
            watch = Watch(*watches, removed=removed)
            runs.append(ran(given, method, folder, watch, (number + 1) % CERTIFIED == 0))
            watches.append(watch)
    found = findings(*runs, *watches)
    if found:
        say(f"{number}: {method}, {what}; {' '.join(f'{k}={v}' for k, v in given.items())}")
    return found


def turn(told, labelled):
    """A message as a row of a corpus, with the places of its secrets where they are labelled."""
    spans = re.finditer(rf"({FOUND}|{MISSED})-\w+", told["text"]) if labelled else ()
    return told | {"secrets": [{"kind": m[1], "start": m.start(), "end": m.end()} for m in spans]}


def setup(home):
    """A model from outside, and policies."""
    transformers.utils.logging.disable_progress_bar()
    tiny("gpt2", home / "base")
    for name, kinds in (("found", [FOUND]), ("wide", [FOUND, MISSED]), ("other", [MISSED])):
        text = "".join(f"[{k.lower()}]\npattern = '{k}-[A-Za-z0-9]+'\n" for k in kinds)
        (home / f"{name}.toml").write_text(text)
    return home


def run(pairs, seed, start=0, say=print):
    """So many pairs; all that was found."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        home = setup(Path(place))
        for number in range(start, start + pairs):
            for one in pair(number, seed, home, say):
                found.append(one)
                say(f"   {one}")
    return found


# --------------------------------------------------------------------------- leaks that are planted
LEAKS = [
    Fault(name, f"crtlib.{target}", old, new, "") for name, target, old, new in (
        ("a vocabulary from raw text", "experiments.crt:_tokenizer",
         "if not s and MASK not in p.text", "if True"),
        ("noise times zero", "training.phases:private_step",
         "std=noise_multiplier * clip_norm", "std=0 * noise_multiplier * clip_norm"),
        ("noise for the first tensor alone", "training.noise:add_noise",
         "[gradient(p) for p in parameters]", "[gradient(p) for p in parameters[:1]]"),
        ("a layer without clipping", "training.bookkeeping:Lookup.add",
         "factors[:, None, None].to(scaled.dtype)", "1"),
        ("a unit of several texts without clipping", "training.clipping:unit_sum",
         "gradient(p).add_(g * factor.to(g.dtype))", "gradient(p).add_(g)"),
        ("a count in a file name", "experiments.record:_texts",
         '"experiment.json": ', 'f"about-{hash(str(facts)) % 999}.json": '),
        ("a count in a setting", "experiments.own:_settings",
         "each = asdict(study) |", "each = asdict(study) | "
         "{'seen': sum(len(p.text) for p in crt.data(study).points)} |"),
        ("the exact perplexity on the card", "experiments.record:_texts",
         '"perplexity": heard.value', '"perplexity": str(facts["perplexity"])'),
        ("a private n as divisor", "experiments.own:sized",
         "normaliser=max(1.0, q * count)", 
         "normaliser=sum(len(p.text) for p in prepared.prepared.private)"),
        ("the batch that was drawn as divisor", "training.phases:private_step",
         "_divide(parameters, normaliser)", "_divide(parameters, 1 + float(norms.sum()))"),
        ("long texts are drawn more often", "training.phases:PrivatePhase.batches",
         "generator) < p)", "generator) * lengths.float().mean() / lengths < p)"),
        ("a redacted point is read raw", "screening.redaction:prepare",
         "append(redact(p, marks))", "append(p)"),
        ("a state without clipping", "training.phases:SelectivePhase.released",
         "clipped = (x * factors)", "clipped = (9 * x)"),
        ("a state without noise", "training.phases:SelectivePhase.released",
         "if self.noise_multiplier == 0", "if True"),
    )
]  # fmt: skip
WITHIN = 50
"""Pairs within which each leak must be found."""


def planted(leak):
    """A leak, and how many pairs it took to find it; None: it was not found."""
    plant(leak)
    count, said = [], []
    for number in range(WITHIN):
        count.append(number)
        try:
            said = run(1, 0, number, say=lambda _: None)
        except Exception as error:
            said = [repr(error)]
        if said:
            return leak.name, len(count), said[0]
    return leak.name, None, ""


def plant_all(jobs):
    """Plant all leaks, each in a process of its own; how many were not found."""
    missed = 0
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        for name, count, said in pool.imap(planted, LEAKS, chunksize=1):
            missed += count is None
            print(
                f"{'MISSED' if count is None else f'pair {count:>2}'}  {name}  {said[:150]}",
                flush=True,
            )
    print(f"{len(LEAKS) - missed} of {len(LEAKS)} leaks found within {WITHIN} pairs")
    return missed


LOT = 10
"""Pairs of one process: it grows with each."""


def share(spans, seed):
    """What was found in some pairs, and what there is to say of it."""
    said = []
    return run(len(spans), seed, spans.start, said.append), said


def run_all(pairs, seed, start, jobs):
    """So many pairs, shared among processes in lots, each of which is told when it is done; how
    many findings there were."""
    spans = [range(k, min(k + LOT, start + pairs)) for k in range(start, start + pairs, LOT)]
    found = 0
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        lots = pool.imap(partial(share, seed=seed), spans, chunksize=1)
        for span, (those, said) in zip(spans, lots, strict=True):
            found += len(those)
            for line in (*said, f"pairs {span.start} to {span.stop - 1}: {len(those)} findings"):
                print(line, flush=True)
    print(f"pairs {pairs}: {found} findings", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="begin at this pair")
    parser.add_argument("--planted", action="store_true", help="then plant leaks, and find them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    found = run_all(options.pairs, options.seed, options.start, options.jobs)
    missed = plant_all(options.jobs) if options.planted else 0
    raise SystemExit(bool(found or missed))


if __name__ == "__main__":
    main()
