"""Runs of CRT and of what it is compared with: what is read, one training, its measurements.

>>> study = CrtStudy(method="sgd", model="lstm", gamma=0.0, seed=0, dialogues=20, heldout=10,
...                  epochs=1, canaries=0, embedding=8, hidden=8)
>>> sorted(m for m, epoch, item, value in measure(study, fit(study)) if m.startswith("test_"))
['test_acc', 'test_acc_words', 'test_ppl', 'test_ppl_words']
>>> replace(study, noise_multiplier=2.0).ready() == study.ready()  # it adds no noise
True
>>> d = data(replace(study, method="crt", canaries=10))
>>> len(d.canaries), d.misses("pi").misses, MASK in "".join(p.text for p in d.prepared.public)
(10, 0, False)
>>> pieces([[1, 2, 3, 4, 5, 6], [7, 8]], [0, 1], 2, "split")
([[1, 2, 3], [3, 4, 5], [5, 6], [7, 8]], [0, 0, 0, 1])
>>> pieces([[1, 2, 3, 4]], [0], 2, "cut")
([[1, 2, 3]], [0])
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from crtlib.accounting import ledger
from crtlib.accounting.guarantees import Guarantee, MissRate
from crtlib.attacks import by_name as attacks
from crtlib.attacks.attack import Subject
from crtlib.models import networks, pretrained, scoring
from crtlib.models.networks import ModelSpec, build
from crtlib.options import Count, NotNegative, Open, Positive, Share, Whole, Word, value
from crtlib.screening import policies, rates, tagger
from crtlib.screening.policies import everything, miss, union
from crtlib.screening.policy import Policy, check_text_alone
from crtlib.screening.rates import NAMES, RateCounter, Rates
from crtlib.screening.redaction import Labels, Prepared, TextCounts, prepare, redact
from crtlib.text import canaries, corpora, folders, records
from crtlib.text.canaries import SPEAKER, USER, Template
from crtlib.text.records import MASK, Corpus, Dialogue, Point
from crtlib.text.tokenizer import Bpe, adapt, train_bpe
from crtlib.training import methods
from crtlib.training.bookkeeping import refuse_unfit
from crtlib.training.loop import Run, train
from crtlib.training.methods import Constants, Method, Terms
from crtlib.training.phases import Phase

DEFAULT = "customersim"
"""The corpus where none is named: it is simulated, so it is on every machine."""

TUNING_SEED = 1000
"""Corpus, canaries and initialisation of the search: a seed that no figure uses."""

PRIVATE_SEGMENTS = {"turn": 8, "dialogue": 128, "user": 128}
"""The most private segments that a point may have (S-DP)."""

PUBLIC_DIALOGUES = 1000
"""At most so many dialogues of a public corpus initialise a model."""

Tokens = list[list[int]]
Mask = NDArray[np.bool_]
Row = tuple[str, int, int, float]
"""``(metric, epoch, item, value)``; ``item`` numbers canaries, 0 where there is but one."""

UTILITY = ("ppl", "ppl_words", "acc", "acc_words")


@value
class CrtStudy:
    """One training run and its measurements.

    ``gamma`` is the miss rate given to the redaction policy ``policy``; ``conservative`` decides
    what else is private. ``epsilon`` and ``delta`` are the target of DP-SGD (epsilon' of the
    paper), from which ``noise_multiplier`` is calibrated before the run (:meth:`ready`).
    ``sampling_probability``, ``epochs`` and ``normaliser`` are public constants.

    ``dialogues`` are trained on, ``heldout`` more validate and as many test; ``labelled`` others
    teach the policy "tagger". ``context`` is in tokens, ``normaliser`` in points. ``init`` is
    "random"; the name of a public corpus on which the model is trained first, ``init_epochs``
    times; or a pre-trained causal model, by hub id or folder or "smollm2", which brings its own
    shape and vocabulary (``model`` is then "pretrained"). ``lora`` is the rank of adapters, which
    alone learn (0: everything does), ``lora_alpha`` their scale (0: twice the rank).
    ``precision`` is that of products; weights, norms and sums stay in float32. A text of more than
    ``context`` tokens is read in pieces that are clipped together (``long`` "split"), or cut.
    ``template`` says how turns become text (:mod:`crtlib.text.canaries`). ``audited``: the
    canaries are those of an audit (:mod:`crtlib.attacks.run_audit`), which pi passes over.
    ``coin``: what the dial of ``gamma`` draws its coins from (:func:`crtlib.screening.policies.
    miss`). ``duplicates`` "drop" and ``coin`` "point" are those of the recorded studies, and of
    none that is certified: :func:`confide.experiments.own.study_of` takes others.
    """

    seed: Whole
    method: Word
    model: Literal["lstm", "gru", "gpt2", "gemma2", "pretrained"]
    gamma: Share
    # data
    corpus: Word = DEFAULT
    variety: Literal["paper", "rich"] = "paper"
    dialogues: Count = 300
    heldout: Count = 200
    unit: Literal["turn", "dialogue", "user"] = "turn"
    policy: Word = "regex"
    conservative: Word = "regex"
    labelled: Whole = 0
    per: Literal["occurrence", "value"] = "occurrence"
    coin: Literal["text", "point"] = "point"
    duplicates: Literal["mask_private", "mask", "drop"] = "drop"
    dedup: Literal["all", "flagged", "none"] = "all"
    canaries: Whole = 10
    copies: Whole = 20
    audited: bool = False
    vocab_size: Count = 512
    template: Word = "speaker"
    # model
    embedding: Count = 64
    hidden: Count = 64
    layers: Count = 1
    heads: Count = 4
    context: Count = 256
    long: Literal["split", "cut"] = "split"
    init: Word = "random"
    init_epochs: Whole = 0
    lora: Whole = 0
    lora_alpha: NotNegative = 0.0
    lora_targets: Word = "all-linear"
    precision: Literal["float32", "bfloat16"] = "float32"
    # training
    epochs: Count = 8
    batch_size: Count = 32
    learning_rate: Positive = 1e-2
    pub_passes: Count = 10
    private_learning_rate: Positive = 5e-3
    sampling_probability: Share = 0.1
    clip_norm: Positive = 0.1
    normaliser: Positive = 256.0
    optimizer: Literal["adam", "sgd"] = "adam"
    # guarantee
    epsilon: Positive = 3.0
    delta: Open = 8e-5
    accountant: Literal["pld", "rdp", "prv", "autodp"] = "pld"
    neighbouring_relation: Literal["add_or_remove", "replace"] = "add_or_remove"
    noise_multiplier: NotNegative | None = None

    def __post_init__(self) -> None:
        method, init, template = self.how, self.init, self.template
        brings, able = self.brings_vocabulary, method.models or ()
        refused = (
            (method.weighs or not method.trains,
             f"method={self.method!r}: is no method of these runs"),
            (able and self.model not in able,
             f"model={self.model!r}: {method.label} protects the state of an {' or '.join(able)}, "
             "only"),
            (self.audited and self.copies != 1,
             f"copies={self.copies}: must be 1 where canaries are audited"),
            (init == self.corpus, f"init={init!r}: is the private corpus itself, must be public"),
            (init != "random" and not brings and self.init_epochs < 1,
             f"init={init!r}: a corpus; needs init_epochs of at least 1"),
            (self.model == "pretrained" and not brings,
             "model='pretrained': init must name a pre-trained model"),
            (self.recurrent and template not in canaries.CANDIDATES,
             f"template={template!r}: is kept with a transformer only"),
            (template != "speaker" and folders.is_screened(self.corpus),
             f"template={template!r}: {self.corpus} is text already"),
            (self.lora and not brings,
             f"lora={self.lora}: adapters need a pre-trained model (init)"),
        )  # fmt: skip
        for wrong, why in refused:
            if wrong:
                raise ValueError(why)

    @property
    def recurrent(self) -> bool:
        """Whether the model is one of ours that reads token by token."""
        return self.model in ("lstm", "gru")

    @property
    def how(self) -> Method:
        """Its method."""
        return methods.by_name(self.method)

    @property
    def repeats_are_hidden(self) -> bool:
        """Whether second occurrences of a text are masked or left out before training."""
        return self.how.deduplicates and self.dedup != "none"

    @property
    def learned(self) -> bool:
        """True where a policy learned from labels: it is judged on held-out ones."""
        return any(policies.learned(name) for name in (self.policy, self.conservative))

    @property
    def brings_vocabulary(self) -> bool:
        """True where ``init`` is a pre-trained model, which comes with its tokenizer."""
        return self.init != "random" and not is_corpus(self.init)

    @property
    def screening(self) -> dict[str, Any] | None:
        """What screening said of its corpus, where that was screened before."""
        return folders.summary(self.corpus) if folders.is_screened(self.corpus) else None

    def ready(self) -> Self:
        """The same run with the fields that it does not read set to fixed values, and
        ``noise_multiplier`` calibrated.

        So DP-SGD, which trains on raw text and knows no gamma, is one study for all gammas.
        """
        method = self.how
        every = frozenset[str]().union(*(m.reads for m in methods.METHODS.values()))
        fixed: dict[str, Any] = {f.name: f.default for f in fields(self)}
        fixed |= {"gamma": 0.0, "dedup": "none"}
        unread = {n: fixed[n] for n in every - method.reads if n in fixed}
        if self.learned:
            unread.pop("policy", None)  # who taught it is held out, whatever the method reads
        else:
            unread["labelled"] = 0
        if self.init == "random":
            unread["init_epochs"] = 0
        study = replace(self, **unread)
        if study.noise_multiplier is None or method.noise == 0:
            study = replace(study, noise_multiplier=_noise(study))
        return study

    def shape(self) -> ModelSpec:
        """The model's shape, without its vocabulary."""
        names = ("embedding", "hidden", "layers", "heads", "context", "vocab_size")
        return ModelSpec(kind=self.model, **{n: getattr(self, n) for n in names})


def _noise(study: CrtStudy) -> float:
    """The noise multiplier of its method: fixed, or the least that keeps epsilon and delta."""
    noise = study.how.noise
    if noise != "calibrated":
        return noise
    event = methods.events(schedule(replace(study, noise_multiplier=1.0)))
    assert event is not None
    sigma = ledger.noise_multiplier(
        epsilon=study.epsilon,
        delta=study.delta,
        sampling_probability=study.sampling_probability,
        steps=event.steps,
        accountant=study.accountant,
        neighbouring_relation=study.neighbouring_relation,
    )
    # Rounded up: a little more noise than needed, and a name that survives a finer accountant.
    return math.ceil(sigma * 1e4) / 1e4


def schedule(study: CrtStudy, *, has_public: bool = True) -> list[Phase]:
    """The phases of a run: public constants only."""
    segments = PRIVATE_SEGMENTS[study.unit]
    return study.how.phases(Constants.of(study, private_segments=segments, has_public=has_public))


# --------------------------------------------------------------------------- what a run reads
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
        return Splits(*drawn, taught, draw(dialogues, 2 * 10**6 + seed, variety))  # type: ignore[call-arg]
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


_loaded = functools.lru_cache(maxsize=1)(corpora.load)


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


@dataclass(frozen=True, repr=False)
class Data:
    """What a run reads: the parts, the tokenizer and the held-out texts (perfectly redacted).

    ``corpus`` is what was read, without canaries. ``points`` are raw, with the spans that ``pi``
    flags in them; ``checked`` is where the policies are judged: points with labels, and the spans
    of both. ``read`` are the points as the method saw them without noise or with it, redacted where
    it redacts; ``others`` are points of people whom no run read. ``template`` made texts of turns.
    """

    corpus: Corpus
    points: tuple[Point, ...]
    pi: Labels
    checked: tuple[Sequence[Point], Labels, Labels]
    policies: tuple[Policy, Policy]
    prepared: Prepared
    tokenizer: Bpe
    canaries: tuple[str, ...]
    valid: dict[Point, int]
    test: dict[Point, int]
    read: tuple[Point, ...]
    others: tuple[Point, ...]
    template: Template = SPEAKER
    texts: TextCounts | None = None  # of all that may repeat; None: it is not deduplicated
    find_values: bool = False  # that are labelled, in the whole of their points
    known: Rates | None = None  # as screening counted them, or labels that people made
    labels: Mapping[str, Any] | None = None  # what a certificate says of those labels

    @functools.cached_property
    def counter(self) -> RateCounter:
        """What befell each labelled secret, on the training points or, for a policy that learned
        from labels, on held-out ones."""
        points, flags, cautious = self.checked
        counter = RateCounter(*self.policies, texts=self.texts, find_values=self.find_values)
        counter.add(points, flags=flags, cautious_flags=cautious)
        return counter

    @functools.cached_property
    def rates(self) -> Rates:
        """Miss, trace and public rate of the pair of policies, one secret of each user."""
        return self.counter.rates() if self.known is None else self.known

    def misses(self, policy: Literal["pi", "pi_c"]) -> MissRate:
        """Miss rate of a policy, counted on labelled secrets: on the training points themselves,
        or for a policy that learned from labels on held-out ones.

        Canaries do not count: we planted them, and a policy is easily right about twenty copies.
        This is recall, for people: it never enters a guarantee (:attr:`rates` does). Where nothing
        is labelled nothing is known, and the rate is 1.
        """
        points, *labels = self.checked
        overall = rates.recall(points, labels[policy == "pi_c"]).loc["all"]
        n = int(overall["secrets"])  # type: ignore[arg-type]
        if n == 0:
            return MissRate(1.0)
        return MissRate.measured(n - int(overall["caught"]), n, confidence=0.975)  # type: ignore[arg-type]


def data(study: CrtStudy, *, public_words: bool = False, known: Rates | None = None) -> Data:
    """Corpus with canaries, screened and split as the method asks; tokenizer; held-out texts.

    ``public_words``: where points are more than turns the vocabulary is that of the public points:
    a silent turn of a private one may hold a secret that no rate counts as public.
    ``known``: the rates as they were counted before, of a text that was screened; without them
    they are counted on the labels that the text has, and nothing is known where it has none.
    Raises ``ValueError`` for the policy "oracle" on a corpus without labels: it would find nothing.
    Every source of randomness (people, canaries, misses) follows from ``study.seed``, so that error
    bars over seeds cover all of them.
    """
    sizes = study.dialogues, study.heldout, study.seed, study.labelled
    split = splits(study.corpus, study.variety, *sizes)
    oracle = "oracle" in (study.policy, study.conservative)
    if oracle and not any(t.secrets for t in split.train.turns()):
        raise ValueError("policy='oracle': needs labelled secrets, this corpus has none")
    seed, carrier, secrets = study.seed, canaries.CARRIER, tuple[str, ...]()
    if study.audited:
        secrets, carrier = tuple(v for v, _ in canaries.pairs(study.canaries, seed=seed)), ""
    elif study.canaries:
        secrets = canaries.make(study.canaries, seed=seed)
    planted = canaries.insert(split.train, secrets, copies=study.copies, seed=seed, carrier=carrier)
    tokenizer = adapt(pretrained.place(study.init)) if study.brings_vocabulary else None
    if study.template == "chat" and tokenizer is not None:  # as the pre-trained model says
        form = canaries.of_model(pretrained.place(study.init), tokenizer)
    else:
        form = canaries.by_name(study.template, tokenizer)
    points = canaries.points(planted, study.unit, form)
    redacting, conservative = pair_of(study)
    if study.repeats_are_hidden:
        check_text_alone(redacting, conservative)
    pi = miss(redacting, study.gamma, study.seed, per=study.per, coin=study.coin)
    flagged = _audited(study, points, pi(points), found=False)
    cautious = _audited(study, points, conservative(points), found=True)
    if study.learned:
        judged = canaries.points(split.valid, study.unit, form)
        checked = (judged, pi(judged), conservative(judged))
    else:
        own = [k for k, p in enumerate(points) if not p.user.startswith(USER)]
        checked = tuple([part[k] for k in own] for part in (points, flagged, cautious))  # type: ignore[assignment]
    loud, speaks = cautious, conservative
    # What pi alone finds is redacted, so the vocabulary may not learn it either. Of one name they
    # are one tagger's, of which pi_c says all that pi says; a method without a policy has no pi.
    if study.policy != study.conservative and "policy" in study.how.reads:
        speaks = union(redacting, conservative)
        loud = _audited(study, points, speaks(points), found=True)
    prepared = _prepared(study, points, flagged, cautious)
    if tokenizer is None and public_words and study.unit != "turn" and not study.how.reads_raw:
        texts = [p.text for p in prepared.public]
        tokenizer = train_bpe(texts, vocab_size=study.vocab_size)
    tokenizer = tokenizer or _tokenizer(planted, study, form, points, loud, speaks)
    read = prepared.private if study.how.reads_redacted else prepared.all
    if study.how.flags_tokens:  # what pi finds is read with noise only
        read = tuple(redact(p, spans) for p, spans in zip(points, flagged, strict=True))
    counts = None
    if study.repeats_are_hidden:
        counts = TextCounts(points)
        for part in (split.valid, split.test):
            counts.add(canaries.points(part, study.unit, form))
    return Data(
        corpus=split.train,
        points=points,
        pi=flagged,
        checked=checked,
        policies=(pi, conservative),
        prepared=prepared,
        tokenizer=tokenizer,
        canaries=secrets,
        valid=_heldout(split.valid, study, form),
        test=_heldout(split.test, study, form),
        read=read,
        others=canaries.points(split.others, study.unit, form),
        template=form,
        texts=counts,
        find_values=not is_corpus(study.corpus),
        known=known,
    )


def _audited(study: CrtStudy, points: Sequence[Point], labels: Labels, *, found: bool) -> Labels:
    """The labels, but that the canaries of an audit are all found, or all passed over."""
    if not study.audited:
        return labels
    return [
        (p.secrets if found else ()) if p.user.startswith(USER) else spans
        for p, spans in zip(points, labels, strict=True)
    ]


def _prepared(
    study: CrtStudy, points: Sequence[Point], flagged: Labels, cautious: Labels
) -> Prepared:
    """The public and the private part, as the method reads them."""
    if study.how.reads_raw:  # raw text, all of it private
        raw = prepare(points, None, everything(points), dedup="none")
        if study.how.reads_redacted:
            clean = prepare(points, flagged, cautious, dedup="none")
            return replace(clean, public=clean.all, private=raw.private)
        return raw
    dedup = study.dedup if study.repeats_are_hidden else "none"
    return prepare(points, flagged, cautious, dedup=dedup, duplicates=study.duplicates)


def pair_of(study: CrtStudy) -> tuple[Policy, Policy]:
    """The policies pi (before the dial) and pi_c of a study; they never read a template."""
    named = study.corpus if is_corpus(study.corpus) else DEFAULT
    made = [
        _tagger(study.corpus, study.variety, study.labelled, study.unit)[k]
        if name == "tagger"
        else policies.policy_by_name(name, named)
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
    taught = canaries.insert(taught, canaries.make(20, seed=10**6), copies=2, seed=10**6)
    made = tagger.fit(records.points(taught, unit=unit), seed=0)
    return tagger.redacting(made), tagger.conservative(made)


def _tokenizer(
    corpus: Corpus, study: CrtStudy, form: Template, points: Sequence[Point], cautious: Labels,
    pi_c: Policy,
) -> Bpe:  # fmt: skip
    """BPE on the turns that are public for every gamma and neighbouring dataset: those on which
    ``pi_c`` is silent and which hold no ``<MASK>`` (one may stand for a secret).

    ``cautious``: what ``pi_c`` says of the ``points``. Where those are dialogues it has to be
    silent on a turn within its dialogue, as its misses are counted, and on the turn by itself."""
    by_turn = study.unit == "turn"
    corpus = records.people(corpus) if study.unit == "user" else corpus
    turns = points if by_turn else canaries.points(corpus, "turn", form)
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


def _heldout(corpus: Corpus, study: CrtStudy, form: Template) -> dict[Point, int]:
    """Unique held-out points and how often each occurs: scored once, weighted.

    Perfectly redacted, as a model that trained on redacted text will be used; raw for a method
    that reads raw text and has never seen ``<MASK>``.
    """
    texts = (
        point if study.how.reads_raw else redact(point, point.secrets)
        for point in canaries.points(corpus, study.unit, form)
    )  # fmt: skip
    return collections.Counter(replace(text, id="", user="") for text in texts)


# --------------------------------------------------------------------------- training
@dataclass(frozen=True)
class Fitted:
    """A trained model with what it read and what was done; ``spec`` is its shape, None for one that
    was pre-trained elsewhere, which may have a utility ``before`` training."""

    run: Run
    data: Data
    schedule: list[Phase]
    spec: ModelSpec | None
    before: Mapping[str, float] = field(default_factory=dict)

    def guarantee(self, study: CrtStudy) -> Guarantee | None:
        """What the study's method promises of what ran, or None without noise.

        gamma is the trace rate and delta2 the public rate, counted on labels, as upper bounds of
        what was measured, not the rates that were hoped for.
        """
        events = self.run.events  # what ran: a secure phase that was run again counts twice
        counted = self.data.rates
        if not events or not all(event.noise_multiplier for event in events):
            return None
        return study.how.promise(
            events,  # type: ignore[arg-type]
            Terms(
                gamma=MissRate.counted(counted.trace.to_json(), alpha=counted.alpha),
                delta2=MissRate.counted(counted.public.to_json(), alpha=counted.alpha),
                delta=study.delta,
                unit=study.unit,
                accountant=study.accountant,
                neighbouring_relation=study.neighbouring_relation,
                public=_public(study),
            ),
        )


def _public(study: CrtStudy) -> str:
    """What the guarantee treats as known to everybody."""
    known = "the rounded number of private points"
    if study.how.reads_raw:
        bytes_only = study.conservative == "everything" or study.brings_vocabulary
        learned = ", and the vocabulary, learned from turns that screening let pass"
        return known + ("" if bytes_only else learned)
    names = study.screening or vars(study)
    others = [part for key in ("policy", "conservative") for part in names[key].split("+")
              if not policies.ours(part)]  # fmt: skip
    if others:
        listed = ", ".join(policies.plain(part) for part in dict.fromkeys(others))
        known += f"; assumed: {listed}, of another package, answers each point by itself"
    if study.learned:
        known += (
            "; besides, the text that taught the policies; assumed: masking a secret changes "
            "no label elsewhere (recall.label_stability counts how often it does)"
        )
    return known


def fit(
    study: CrtStudy,
    *,
    prepared: Data | None = None,
    device: str = "cpu",
    before: bool = False,
    gradient_checkpointing: bool = False,
    **training: Any,
) -> Fitted:
    """Prepare the data and train; perplexity on the validation texts after each epoch, and on the
    test texts ``before`` the first where that is asked of a pre-trained model.

    ``prepared`` is ``data(study)`` where the caller has it already;
    ``gradient_checkpointing`` as :func:`crtlib.models.pretrained.checkpointed`, which changes no
    result. ``training``: ``checkpoint``, ``secure``, ``memory``, ``on_start`` and ``progress`` of
    :func:`crtlib.training.loop.train`. Raises ``ValueError`` where no point is private and the
    method trains with noise.
    """
    study = study.ready()
    d = prepared or data(study)
    flags = None
    if study.how.flags_tokens:  # what pi finds is private, token by token; the text stays raw
        marked = [replace(p, secrets=spans) for p, spans in zip(d.points, d.pi, strict=True)]
        flags = {"private": d.tokenizer.encode_marked(marked)[1]}
    model, spec = _initial(study, d.tokenizer)
    if gradient_checkpointing:
        pretrained.checkpointed(model)
    if study.how.private:
        refuse_unfit(model.train())
    parts, owners = _parts(study, d, model)
    phases = schedule(study, has_public=bool(parts["public"]))
    how: dict[str, Any] = {"tokenizer": d.tokenizer, "own_words": study.template != "speaker"}
    model.to(device)
    start = utility(model, points=d.test, **how) if before and spec is None else {}
    run = train(
        model,
        phases,
        parts,
        flags=flags,
        owners=owners,
        precision=study.precision,
        seed=study.seed,
        optimizer=study.optimizer,
        longest=_context(study, model),
        on_epoch=lambda _, m: utility(m, points=d.valid, **how),
        **training,
    )
    return Fitted(run, d, phases, spec, start)


def utility(
    model: nn.Module, tokenizer: Bpe, points: dict[Point, int], *, own_words: bool = False
) -> dict[str, float]:
    """Perplexity and top-1 accuracy per token of weighted points: over all tokens (``ppl``,
    ``acc``), and over those that are neither ``<MASK>`` nor part of a labelled secret
    (``ppl_words``, ``acc_words``). ``own_words``: what a template puts around a text is no token.

    Only the second kind compares a model of raw text with one of redacted text: each reads the
    text in the form that it was trained on, and both are scored on the same words.
    """
    sequences, secret = tokenizer.encode_marked(points)
    logprobs, ranks = map(np.concatenate, scoring.token_scores(model, sequences))
    own = np.concatenate(predicted([*points], sequences, tokenizer, own_words=own_words))
    hidden = np.array([flag for flags in secret for flag in flags[1:]], dtype=bool)
    weights = np.repeat([*points.values()], [len(ids) - 1 for ids in sequences])

    def mean(values: NDArray[Any], counted: Mask) -> float:
        return float(weights[counted] @ values[counted] / weights[counted].sum())

    kinds = {"": own, "_words": own & ~hidden}
    ppl = {f"ppl{kind}": float(np.exp(mean(-logprobs, c))) for kind, c in kinds.items()}
    return ppl | {f"acc{kind}": mean(ranks == 0, c) for kind, c in kinds.items()}


def predicted(
    points: Sequence[Point], sequences: Tokens, tokenizer: Bpe, *, own_words: bool
) -> list[Mask]:
    """Of each text, which of the tokens that are predicted count in :func:`utility`."""
    if own_words:
        return [np.append(x, False) for x in canaries.own_tokens(points, tokenizer)]
    return [np.ones(len(ids) - 1, dtype=bool) for ids in sequences]


def measure(study: CrtStudy, fitted: Fitted) -> list[Row]:
    """Utility, sizes and what every registered attack finds: rows of the long table."""
    d, model = fitted.data, fitted.run.model
    rows: list[Row] = [
        (f"valid_{name}", int(h["epoch"]), 0, h[name])
        for h in fitted.run.history
        for name in UTILITY
    ]
    found = utility(model, d.tokenizer, d.test, own_words=study.template != "speaker")
    facts = {
        **{f"test_{k}": v for k, v in found.items()},
        "n_public": len(d.prepared.public),
        "n_private": len(d.prepared.private),
        "duplicates": d.prepared.duplicates,
        "missed_secrets": d.prepared.missed_secrets,
        "steps": sum(event.steps for event in fitted.run.events),
        "private_updates": fitted.run.updates["private"],
    }
    for name in NAMES:  # what the theorem needs, one secret of each user
        rate = getattr(d.rates, name)
        facts |= {f"{name}_count": rate.count, f"{name}_of": rate.of}
    for policy in ("pi", "pi_c"):
        missed = d.misses(policy)
        facts |= {f"{policy}_misses": missed.misses or 0}
        facts |= {f"{policy}_labelled": missed.labelled or 0}
    rows += [(name, study.epochs, 0, float(number)) for name, number in facts.items()]
    if not np.isfinite(facts["test_ppl"]):
        return rows  # it diverged: no attack has anything to ask
    subject = Subject(
        model=model,
        tokenizer=d.tokenizer,
        points=d.points,
        read=d.read,
        others=d.others,
        canaries=() if study.audited else d.canaries,
        seed=study.seed,
        carrier=canaries.carrier(d.template),
    )
    for attack in attacks.known().values():
        rows += [(name, study.epochs, item, x) for name, item, x in attack.measure(subject)]
    return rows


# What a model begins with, and the texts as it reads them.
def _initial(study: CrtStudy, tokenizer: Bpe) -> tuple[nn.Module, ModelSpec | None]:
    """The model before it reads the corpus: random weights, those of a pre-trained model, or
    weights that were trained here on public text."""
    if study.brings_vocabulary:
        model: Any = pretrained.pretrained(pretrained.place(study.init), tokenizer)
        kind = model.config.model_type
        if study.model not in ("pretrained", kind):
            raise ValueError(f"model={study.model!r}: init={study.init!r} is a {kind}")
        if study.lora:
            model = pretrained.with_lora(
                model,
                study.lora,
                seed=study.seed,
                alpha=study.lora_alpha,
                targets=study.lora_targets,
            )
        return model, None
    spec = replace(study.shape(), vocab_size=tokenizer.vocab_size)
    model = build(spec, study.seed)
    if study.init != "random":
        start = _public_start(study.init, study.init_epochs, spec, study.seed, tokenizer)
        model.load_state_dict(start)
    return model, spec


@functools.lru_cache(maxsize=4)
def _public_start(
    corpus: str, epochs: int, spec: ModelSpec, seed: int, tokenizer: Bpe
) -> dict[str, object]:
    """Weights after ordinary training on a public corpus, read with the run's own vocabulary."""
    public = corpora.load(corpus, limit=PUBLIC_DIALOGUES)
    texts = (p.text for p in records.points(public, unit="turn"))
    sequences = [ids[: spec.context] for ids in tokenizer.encode(texts)]
    rate = {"gpt2": 3e-3}.get(spec.kind, 1e-2)
    phases = methods.sgd(epochs=epochs, batch_size=32, learning_rate=rate)
    return train(build(spec, seed), phases, {"public": sequences}, seed=seed).model.state_dict()


def _parts(
    study: CrtStudy, d: Data, model: nn.Module
) -> tuple[dict[str, Tokens], dict[str, list[int]] | None]:
    """The public and the private part as tokens, and the owners of the private ones, where a unit
    owns several: a user, or a point longer than the model's context.

    Raises ``ValueError`` where no point is private and the method trains with noise.
    """
    public = d.tokenizer.encode(p.text for p in d.prepared.public)
    private = d.tokenizer.encode(p.text for p in d.prepared.private)
    if study.how.private and not private:
        raise ValueError(
            f"policy={study.policy!r}: no point is private, "
            "so there is nothing to train on with noise"
        )
    owners = users(d.prepared.private) if study.how.by_user else [*range(len(private))]
    whole, limit = len(private), _context(study, model)
    if limit is not None:
        public, _ = pieces(public, range(len(public)), limit, study.long)
        private, owners = pieces(private, owners, limit, study.long)
    together = study.how.by_user or len(private) > whole
    return {"public": public, "private": private}, {"private": owners} if together else None


def _context(study: CrtStudy, model: nn.Module) -> int | None:
    """Tokens that are read at once, a public constant; None: as many as a text has."""
    limit = networks.context(model)
    if isinstance(model, networks.RecurrentLM) or not study.brings_vocabulary:
        return limit
    return study.context if limit is None else min(limit, study.context)


def pieces(
    rows: Sequence[list[int]], owners: Iterable[int], limit: int, long: str
) -> tuple[Tokens, list[int]]:
    """Each text in pieces of ``limit`` tokens to read and one more to predict, and whose each
    piece is; "cut" keeps the first piece. Every token but the first is predicted once."""
    cut, whose = [], []
    for row, owner in zip(rows, owners, strict=True):
        starts = range(0, max(1, len(row) - 1), limit) if long == "split" else (0,)
        cut += [row[a : a + limit + 1] for a in starts]
        whose += [owner] * len(starts)
    return cut, whose


def users(points: Sequence[Point]) -> list[int]:
    """Whose each point is, users counted from 0. Raises ``ValueError`` where a point has none."""
    if any(not p.user for p in points):
        raise ValueError("method='user_dpsgd': a point has no user; say whose each dialogue is")
    number: dict[str, int] = {}
    return [number.setdefault(p.user, len(number)) for p in points]
