"""What a run reads: the split corpus, screened and prepared, its tokenizer, the held-out texts.

>>> from crtlib.experiments.crt import Experiment
>>> d = data(Experiment(method="crt", model="lstm", gamma=0.0, seed=0, dialogues=20, heldout=10))
>>> len(d.canaries), d.misses("pi").misses, MASK in "".join(p.text for p in d.prepared.public)
(10, 0, False)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from crtlib.experiments.crt import SIMULATED, Experiment
from crtlib.screening import by_name, recall
from crtlib.screening import policy as policy_module
from crtlib.screening.policies import everything, miss
from crtlib.screening.policy import Policy
from crtlib.screening.prepare import Prepared, prepare
from crtlib.screening.redact import redact
from crtlib.text import corpora, units
from crtlib.text.canaries import USER, insert, make
from crtlib.text.records import MASK, Corpus, Dialogue, Point, Secret
from crtlib.text.tokenizer import Bpe, adapt, train_bpe

if TYPE_CHECKING:
    from crtlib.accounting.guarantees import MissRate


Labels = list[tuple[Secret, ...]]
TUNING_SEED = 1000
"""Corpus, canaries and initialisation of the search: a seed that no figure uses."""


@dataclass(frozen=True)
class Splits:
    """Disjoint parts of one corpus. ``labelled`` is what a policy may learn from; ``others`` are
    people whom no run reads, a source of secrets that are not in the training text."""

    train: Corpus
    valid: Corpus
    test: Corpus
    labelled: Corpus
    others: Corpus


@functools.lru_cache(maxsize=2)
def splits(
    corpus: str, variety: str, dialogues: int, heldout: int, seed: int, labelled: int = 0
) -> Splits:
    """Simulated dialogues, or those of a corpus shuffled and cut.

    ``labelled`` dialogues are the same for every seed, so that one policy serves all runs; the
    rest differs with the seed. The search (``TUNING_SEED``) has a block of a named corpus to
    itself, which no other run reads. Dialogues of one user stay together, so that a person of the
    training text is not also held out (but for the one at a cut). Raises ``ValueError`` where the
    corpus is too small.
    """
    if corpus == SIMULATED:
        from crtlib.text import customersim

        sizes = (dialogues, heldout, heldout)
        parts = [customersim.simulate(n, 3 * seed + k, variety) for k, n in enumerate(sizes)]
        empty = replace(parts[0], dialogues=())
        taught = customersim.simulate(labelled, 10**6, variety) if labelled else empty
        return Splits(*parts, taught, customersim.simulate(dialogues, 2 * 10**6 + seed, variety))
    whole = _loaded(corpus)
    size = dialogues + 2 * heldout
    reserved = size if corpus in corpora.HOMES else 0
    needed = size + labelled + reserved
    if len(whole) < needed:
        raise ValueError(
            f"dialogues={dialogues}: with {2 * heldout} held out, {labelled} labelled and "
            f"{reserved} for the search, {corpus!r} must have {needed} dialogues, "
            f"it has {len(whole)}"
        )
    fixed = _shuffled(whole.dialogues, 0)
    search, free = fixed[labelled : labelled + reserved], fixed[labelled + reserved :]
    rest = _shuffled(search if reserved and seed == TUNING_SEED else free, seed + 1)
    cuts = np.cumsum([0, dialogues, heldout, heldout, 2 * dialogues])
    parts = [rest[a:b] for a, b in itertools.pairwise(cuts)]
    parts.insert(3, fixed[:labelled])
    return Splits(*(replace(whole, dialogues=part) for part in parts))


def available(corpus: str) -> bool:
    """Whether runs on this corpus can be made here: it is simulated, or its files are found."""
    return corpus == SIMULATED or corpora.available(corpus)


@functools.lru_cache(maxsize=1)
def _loaded(corpus: str) -> Corpus:
    return corpora.load(corpus)


def _shuffled(dialogues: Sequence[Dialogue], seed: int) -> tuple[Dialogue, ...]:
    """In random order of users, the dialogues of each together."""
    of: dict[str, list[Dialogue]] = {}
    for d in dialogues:
        of.setdefault(d.user, []).append(d)
    users = list(of.values())
    order = np.random.default_rng([seed, 5]).permutation(len(users))
    return tuple(d for k in order for d in users[k])


@dataclass(frozen=True)
class Data:
    """What a run reads: the parts, the tokenizer and the held-out texts (perfectly redacted).

    ``points`` are raw, with the spans ``pi`` and ``pi_c`` flag in them; ``checked`` is where the
    policies are judged: points with labels, and the spans of both policies. ``read`` are the
    points as the method saw them without noise or with it, redacted where it redacts; ``others``
    are points of people whom no run read.
    """

    points: tuple[Point, ...]
    pi: Labels
    pi_c: Labels
    checked: tuple[Sequence[Point], Labels, Labels]
    prepared: Prepared
    tokenizer: Bpe
    canaries: tuple[str, ...]
    valid: dict[Point, int]
    test: dict[Point, int]
    read: tuple[Point, ...]
    others: tuple[Point, ...]

    def misses(self, policy: Literal["pi", "pi_c"]) -> MissRate:
        """Miss rate of a policy, counted on labelled secrets: on the training points themselves,
        or for a policy that learned from labels on held-out ones.

        Canaries do not count: we planted them, and a policy is easily right about twenty copies.
        Bounds are at 97.5 %, so that those of two policies hold together with 95 %. Where nothing
        is labelled nothing is known, and the rate is 1.
        """
        from crtlib.accounting.guarantees import MissRate

        points, *labels = self.checked
        overall = recall.recall(points, labels[policy == "pi_c"]).loc["all"]
        n = int(overall["secrets"])
        if n == 0:
            return MissRate(1.0)
        return MissRate.measured(n - int(overall["caught"]), n, confidence=0.975)


def data(e: Experiment) -> Data:
    """Corpus with canaries, screened and split as the method asks; tokenizer; held-out texts.

    Raises ``ValueError`` for the policy "oracle" on a corpus without labels: it would find nothing.
    Every source of randomness (people, canaries, misses) follows from ``e.seed``, so that error
    bars over seeds cover all of them.
    """
    split = _splits(e)
    if "oracle" in (e.policy, e.conservative) and not any(t.secrets for t in split.train.turns()):
        raise ValueError("policy='oracle': needs labelled secrets, this corpus has none")
    secrets = make(e.canaries, seed=e.seed) if e.canaries else ()
    planted = insert(split.train, secrets, copies=e.copies, seed=e.seed)
    points = units.points(planted, unit=e.unit)
    redacting, conservative = policies(e)
    pi = miss(redacting, e.gamma, e.seed, per=e.per)
    flagged, cautious = pi(points), conservative(points)
    if e.learned:
        judged = units.points(split.valid, unit=e.unit)
        checked = (judged, pi(judged), conservative(judged))
    else:
        own = [k for k, p in enumerate(points) if not p.user.startswith(USER)]
        checked = tuple([part[k] for k in own] for part in (points, flagged, cautious))
    if e.reads_raw:  # raw text, all of it private
        prepared = prepare(points, None, everything(points), dedup="none")
    else:
        dedup = e.dedup if e.deduplicates else "none"
        prepared = prepare(points, flagged, cautious, dedup=dedup, duplicates=e.duplicates)
    read = prepared.all
    if e.method == "selective":  # what pi finds is read with noise only
        read = tuple(redact(p, spans) for p, spans in zip(points, flagged, strict=True))
    return Data(
        points=points,
        pi=flagged,
        pi_c=cautious,
        checked=checked,
        prepared=prepared,
        tokenizer=adapt(e.init)
        if e.brings_vocabulary
        else _tokenizer(planted, e.unit, cautious, conservative, e.vocab_size),
        canaries=secrets,
        valid=_heldout(split.valid, e),
        test=_heldout(split.test, e),
        read=read,
        others=units.points(split.others, unit=e.unit),
    )


def _splits(e: Experiment) -> Splits:
    return splits(e.corpus, e.variety, e.dialogues, e.heldout, e.seed, e.labelled)


def policies(e: Experiment) -> tuple[Policy, Policy]:
    """The policies pi (before the dial) and pi_c of an experiment."""
    named = e.corpus if e.corpus in corpora.HOMES else SIMULATED
    made = [
        _tagger(e.corpus, e.variety, e.labelled, e.unit)[k]
        if name == "tagger"
        else by_name.policy_by_name(name, named)
        for k, name in enumerate((e.policy, e.conservative))
    ]
    return made[0], made[1]


@functools.lru_cache(maxsize=2)
def _tagger(corpus: str, variety: str, labelled: int, unit: str):
    """The redacting and the conservative policy of a tagger that learned from labelled dialogues.

    Some of those say an ID, as some of the training dialogues do; the numbers are others.
    """
    from crtlib.screening import tagger

    taught = splits(corpus, variety, 1, 1, 0, labelled).labelled
    if not any(t.secrets for t in taught.turns()):
        raise ValueError(f"labelled={labelled}: no labelled secret that a tagger could learn from")
    taught = insert(taught, make(20, seed=10**6), copies=2, seed=10**6)
    learned = tagger.fit(units.points(taught, unit=unit), seed=0)
    return tagger.redacting(learned), tagger.conservative(learned)


def _tokenizer(
    corpus: Corpus, unit: str, cautious: policy_module.Labels, pi_c: Policy, vocab_size: int
) -> Bpe:
    """BPE on the turns that are public for every unit, gamma and neighbouring dataset: those on
    which ``pi_c`` is silent and which hold no ``<MASK>`` (one may stand for a secret).

    ``cautious``: what ``pi_c`` says of the data points. Where those are dialogues it has to be
    silent on a turn within its dialogue, as its misses are counted, and on the turn by itself."""
    turns = units.points(corpus, unit="turn")
    speaks = [bool(spans) for spans in (cautious if unit == "turn" else pi_c(turns))]
    if unit == "dialogue":
        k = 0
        for dialogue, spans in zip(corpus.dialogues, cautious, strict=True):
            at = 0
            for _ in dialogue.turns:
                end = at + len(turns[k].text)
                speaks[k] |= any(s.start < end and at < s.end for s in spans)
                at, k = end + 1, k + 1
    silent = [p.text for p, s in zip(turns, speaks, strict=True) if not s and MASK not in p.text]
    return train_bpe(silent, vocab_size=vocab_size)


def _heldout(corpus: Corpus, e: Experiment) -> dict[Point, int]:
    """Unique held-out points and how often each occurs: scored once, weighted.

    Perfectly redacted, as a model that trained on redacted text will be used; raw for a method
    that reads raw text and has never seen ``<MASK>``.
    """
    count: dict[Point, int] = {}
    for point in units.points(corpus, unit=e.unit):
        done = point if e.reads_raw else redact(point, point.secrets)
        done = replace(done, id="", user="")
        count[done] = count.get(done, 0) + 1
    return count
