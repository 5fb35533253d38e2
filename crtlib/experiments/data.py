"""What a run reads: the split corpus, screened and prepared, its tokenizer, the held-out texts.

>>> from crtlib.experiments.crt import CrtStudy
>>> d = data(CrtStudy(method="crt", model="lstm", gamma=0.0, seed=0, dialogues=20, heldout=10))
>>> len(d.canaries), d.misses("pi").misses, MASK in "".join(p.text for p in d.prepared.public)
(10, 0, False)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from crtlib.accounting.guarantees import MissRate
from crtlib.models import pretrained
from crtlib.screening import by_name, recall, tagger
from crtlib.screening.corpus import recorded
from crtlib.screening.policies import everything, miss, union
from crtlib.screening.policy import Labels, Policy
from crtlib.screening.prepare import Prepared, prepare
from crtlib.screening.rates import Rates, rates
from crtlib.screening.redact import redact
from crtlib.text import corpora, screened, templates, units
from crtlib.text.canaries import CARRIER, USER, insert, make, pairs
from crtlib.text.records import MASK, Corpus, Dialogue, Point
from crtlib.text.templates import Template
from crtlib.text.tokenizer import Bpe, adapt, train_bpe

DEFAULT = "customersim"
"""The corpus where none is named: it is simulated, so it is on every machine."""

TUNING_SEED = 1000
"""Corpus, canaries and initialisation of the search: a seed that no figure uses."""


Recipe = Any
"""What :func:`data` reads of a study: its fields, as :class:`crtlib.experiments.crt.CrtStudy` has
them."""


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
    if draw := corpora.source(corpus).draw:
        sizes = (dialogues, heldout, heldout)
        drawn = [draw(n, 3 * seed + k, variety) for k, n in enumerate(sizes)]
        taught = draw(labelled, 10**6, variety) if labelled else replace(drawn[0], dialogues=())
        return Splits(*drawn, taught, draw(dialogues, 2 * 10**6 + seed, variety))
    whole = _loaded(corpus)
    size = dialogues + 2 * heldout
    reserved = size if is_corpus(corpus) else 0
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


def is_corpus(name: str) -> bool:
    """Whether this names a corpus, and not a file, a folder or a hub's model."""
    return name in corpora.known()


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


def forget() -> None:
    """Read corpora anew from now on: a file may hold other text than when it was read."""
    for cached in (splits, _loaded, _tagger):
        cached.cache_clear()


@dataclass(frozen=True)
class Data:
    """What a run reads: the parts, the tokenizer and the held-out texts (perfectly redacted).

    ``points`` are raw, with the spans ``pi`` and ``pi_c`` flag in them; ``checked`` is where the
    policies are judged: points with labels, and the spans of both policies. ``read`` are the
    points as the method saw them without noise or with it, redacted where it redacts; ``others``
    are points of people whom no run read. ``template`` made texts of turns.
    """

    points: tuple[Point, ...]
    pi: Labels
    pi_c: Labels
    checked: tuple[Sequence[Point], Labels, Labels]
    policies: tuple[Policy, Policy]
    prepared: Prepared
    tokenizer: Bpe
    canaries: tuple[str, ...]
    valid: dict[Point, int]
    test: dict[Point, int]
    read: tuple[Point, ...]
    others: tuple[Point, ...]
    template: Template = templates.SPEAKER
    known: Rates | None = None  # as screening counted them, or labels that people made
    labels: Mapping[str, Any] | None = None  # what a certificate says of those labels

    @functools.cached_property
    def rates(self) -> Rates:
        """Miss, trace and public rate of the pair of policies, one secret of each user, on the
        training points or, for a policy that learned from labels, on held-out ones."""
        if self.known is not None:
            return self.known
        points, flags, cautious = self.checked
        return rates(points, *self.policies, flags=flags, cautious_flags=cautious)

    def misses(self, policy: Literal["pi", "pi_c"]) -> MissRate:
        """Miss rate of a policy, counted on labelled secrets: on the training points themselves,
        or for a policy that learned from labels on held-out ones.

        Canaries do not count: we planted them, and a policy is easily right about twenty copies.
        This is recall, for people: it never enters a guarantee (:attr:`rates` does). Where nothing
        is labelled nothing is known, and the rate is 1.
        """
        points, *labels = self.checked
        overall = recall.recall(points, labels[policy == "pi_c"]).loc["all"]
        n = int(overall["secrets"])
        if n == 0:
            return MissRate(1.0)
        return MissRate.measured(n - int(overall["caught"]), n, confidence=0.975)


def data(study: Recipe) -> Data:
    """Corpus with canaries, screened and split as the method asks; tokenizer; held-out texts.

    Raises ``ValueError`` for the policy "oracle" on a corpus without labels: it would find nothing.
    Every source of randomness (people, canaries, misses) follows from ``study.seed``, so that error
    bars over seeds cover all of them.
    """
    sizes = study.dialogues, study.heldout, study.seed, study.labelled
    split = splits(study.corpus, study.variety, *sizes)
    oracle = "oracle" in (study.policy, study.conservative)
    if oracle and not any(t.secrets for t in split.train.turns()):
        raise ValueError("policy='oracle': needs labelled secrets, this corpus has none")
    secrets, carrier = make(study.canaries, seed=study.seed) if study.canaries else (), CARRIER
    if study.audited:
        secrets, carrier = tuple(v for v, _ in pairs(study.canaries, seed=study.seed)), ""
    planted = insert(split.train, secrets, copies=study.copies, seed=study.seed, carrier=carrier)
    tokenizer = adapt(pretrained.place(study.init)) if study.brings_vocabulary else None
    if study.template == "chat" and tokenizer is not None:  # as the pre-trained model says
        form = templates.of_model(pretrained.place(study.init), tokenizer)
    else:
        form = templates.by_name(study.template, tokenizer)
    points = templates.points(planted, study.unit, form)
    redacting, conservative = policies(study)
    pi = miss(redacting, study.gamma, study.seed, per=study.per)
    flagged = _audited(study, points, pi(points), found=False)
    cautious = _audited(study, points, conservative(points), found=True)
    if study.learned:
        judged = templates.points(split.valid, study.unit, form)
        checked = (judged, pi(judged), conservative(judged))
    else:
        own = [k for k, p in enumerate(points) if not p.user.startswith(USER)]
        checked = tuple([part[k] for k in own] for part in (points, flagged, cautious))
    prepared = _prepared(study, points, flagged, cautious)
    read = prepared.private if study.how.reads_redacted else prepared.all
    if study.how.flags_tokens:  # what pi finds is read with noise only
        read = tuple(redact(p, spans) for p, spans in zip(points, flagged, strict=True))
    return Data(
        points=points,
        pi=flagged,
        pi_c=cautious,
        checked=checked,
        policies=(pi, conservative),
        prepared=prepared,
        tokenizer=tokenizer
        or _tokenizer(planted, study, form, points, *_loud(study, points, cautious)),
        canaries=secrets,
        valid=_heldout(split.valid, study, form),
        test=_heldout(split.test, study, form),
        read=read,
        others=templates.points(split.others, study.unit, form),
        template=form,
        known=recorded(study.corpus) if screened.is_screened(study.corpus) else None,
    )


def _audited(study: Recipe, points: Sequence[Point], labels: Labels, *, found: bool) -> Labels:
    """The labels, but that the canaries of an audit are all found, or all passed over."""
    if not study.audited:
        return labels
    return [
        (p.secrets if found else ()) if p.user.startswith(USER) else spans
        for p, spans in zip(points, labels, strict=True)
    ]


def _prepared(
    study: Recipe, points: Sequence[Point], flagged: Labels, cautious: Labels
) -> Prepared:
    """The public and the private part, as the method reads them."""
    if study.how.reads_raw:  # raw text, all of it private
        raw = prepare(points, None, everything(points), dedup="none")
        if study.how.reads_redacted:
            clean = prepare(points, flagged, cautious, dedup="none")
            return replace(clean, public=clean.all, private=raw.private)
        return raw
    dedup = study.dedup if study.how.deduplicates else "none"
    return prepare(points, flagged, cautious, dedup=dedup, duplicates=study.duplicates)


def policies(study: Recipe) -> tuple[Policy, Policy]:
    """The policies pi (before the dial) and pi_c of a study; they never read a template."""
    named = study.corpus if is_corpus(study.corpus) else DEFAULT
    made = [
        _tagger(study.corpus, study.variety, study.labelled, study.unit)[k]
        if name == "tagger"
        else by_name.policy_by_name(name, named)
        for k, name in enumerate((study.policy, study.conservative))
    ]
    if study.template != "speaker":
        made = [replace(policy, own_words=True) for policy in made]
    return made[0], made[1]


@functools.lru_cache(maxsize=2)
def _tagger(
    corpus: str, variety: str, labelled: int, unit: Literal["turn", "dialogue", "user"]
) -> tuple[Policy, Policy]:
    """The redacting and the conservative policy of a tagger that learned from labelled dialogues.

    Some of those say an ID, as some of the training dialogues do; the numbers are others.
    """
    taught = splits(corpus, variety, 1, 1, 0, labelled).labelled
    if not any(t.secrets for t in taught.turns()):
        raise ValueError(
            f"policy='tagger': {labelled} labelled dialogues hold no secret that it could learn "
            "from; teach one by 'crtlib tagger' and name it tagger:FOLDER"
        )
    taught = insert(taught, make(20, seed=10**6), copies=2, seed=10**6)
    made = tagger.fit(units.points(taught, unit=unit), seed=0)
    return tagger.redacting(made), tagger.conservative(made)


def _loud(study: Recipe, points: Sequence[Point], cautious: Labels) -> tuple[Labels, Policy]:
    """Where a policy speaks, whichever: what pi alone finds is redacted, so the vocabulary may not
    learn it either. Of one name they are one tagger's, of which pi_c says all that pi says; a
    method without a policy has no pi."""
    redacting, conservative = policies(study)
    if study.policy == study.conservative or "policy" not in study.how.reads:
        return cautious, conservative
    either = union(redacting, conservative)
    return _audited(study, points, either(points), found=True), either


def _tokenizer(
    corpus: Corpus, study: Recipe, form: Template, points: Sequence[Point], cautious: Labels,
    pi_c: Policy,
) -> Bpe:  # fmt: skip
    """BPE on the turns that are public for every gamma and neighbouring dataset: those on which
    ``pi_c`` is silent and which hold no ``<MASK>`` (one may stand for a secret).

    ``cautious``: what ``pi_c`` says of the ``points``. Where those are dialogues it has to be
    silent on a turn within its dialogue, as its misses are counted, and on the turn by itself."""
    by_turn = study.unit == "turn"
    corpus = units.people(corpus) if study.unit == "user" else corpus
    turns = points if by_turn else templates.points(corpus, "turn", form)
    speaks = [bool(spans) for spans in (cautious if by_turn else pi_c(turns))]
    if not by_turn:
        within = [
            any(s.start < end and before < s.end - 1 for s in spans)
            for p, spans in zip(points, cautious, strict=True)
            for before, end in itertools.pairwise([-1, *(end for _, end in p.spoken)])
        ]
        speaks = [a or b for a, b in zip(speaks, within, strict=True)]
    silent = [p.text for p, s in zip(turns, speaks, strict=True) if not s and MASK not in p.text]
    return train_bpe(silent, vocab_size=study.vocab_size)


def _heldout(corpus: Corpus, study: Recipe, form: Template) -> dict[Point, int]:
    """Unique held-out points and how often each occurs: scored once, weighted.

    Perfectly redacted, as a model that trained on redacted text will be used; raw for a method
    that reads raw text and has never seen ``<MASK>``.
    """
    count: dict[Point, int] = {}
    for point in templates.points(corpus, study.unit, form):
        done = point if study.how.reads_raw else redact(point, point.secrets)
        done = replace(done, id="", user="")
        count[done] = count.get(done, 0) + 1
    return count
