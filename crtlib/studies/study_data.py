"""The data of a study: its corpus, with canaries, split, screened and tokenised."""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from crtlib.accounting.guarantees import BoundedRate
from crtlib.models import pretrained
from crtlib.screening import detection_recall, policy_names, tagger
from crtlib.screening.deduplication import TextCounts
from crtlib.screening.policy import Policy, check_text_alone
from crtlib.screening.policy_changes import union_policy, with_misses
from crtlib.screening.preparation import PreparedPoints, prepare_points
from crtlib.screening.rate_values import PolicyRates
from crtlib.screening.rates import RateCounter
from crtlib.screening.redaction import FlaggedSpans, redact
from crtlib.screening.regex_policies import everything_policy
from crtlib.studies.crt_study import DEFAULT_CORPUS, TUNING_SEED, CrtStudy, is_corpus
from crtlib.text import canaries, corpora, data_points, templates
from crtlib.text.canaries import CANARY_USER_PREFIX
from crtlib.text.records import MASK, Corpus, Dialogue, Point
from crtlib.text.templates import SPEAKER_TEMPLATE, Template
from crtlib.text.tokenizer import BpeTokenizer, adapt_tokenizer, train_bpe

HELDOUT_SHARE = 0.1
"""The share of the people held out for validation, and again for testing, if coins split them."""

_load_corpus_cached = functools.lru_cache(maxsize=1)(corpora.load_corpus)


# --------------------------------------------------------------------------- what a run reads
@dataclass(frozen=True)
class CorpusSplits:
    """Parts of one corpus that share no dialogue. A policy may learn from ``labelled``; no run
    reads ``others``, a source of secrets that are not in the training text."""

    train: Corpus
    valid: Corpus
    test: Corpus
    labelled: Corpus
    others: Corpus


@functools.lru_cache(maxsize=2)
def split_corpus(
    corpus: str,
    variety: str,
    dialogues: int,
    heldout_dialogues: int,
    seed: int,
    labelled: int = 0,
    split: Literal["order", "coin"] = "order",
    search_block: int = 0,
) -> CorpusSplits:
    """Split a corpus: simulate its parts, shuffle and cut it, or flip a coin for each person
    (:func:`split_by_coins`).

    Dialogues of one user stay together, so that nobody in the training text is also held out,
    except the person at a cut; in a simulated corpus some people recur in other parts.

    Args:
        corpus: A corpus, by name or path.
        variety: The variety of a simulated corpus.
        dialogues: How many are trained on.
        heldout_dialogues: How many are for validation, and as many others for testing; with coins,
            a tenth of the people each, or nobody if it is 0.
        seed: The seed of the parts; ``TUNING_SEED`` is that of the search.
        labelled: How many teach a policy. They are the same for every seed, so that one policy
            serves all runs; the rest differs with the seed.
        split: "order": shuffle and cut; "coin": flip coins. A simulated corpus is not split.
        search_block: How many dialogues of a named corpus the search alone reads; 0: as many as
            this run reads.

    Raises:
        ValueError: If the corpus is too small.
    """
    if draw := corpora.find_source(corpus).draw:
        if search_block:
            raise ValueError(
                f"search_block={search_block}: must be 0 where the corpus is simulated"
            )
        sizes = (dialogues, heldout_dialogues, heldout_dialogues)
        drawn = [draw(n, 3 * seed + k, variety) for k, n in enumerate(sizes)]
        taught = draw(labelled, 10**6, variety) if labelled else replace(drawn[0], dialogues=())
        return CorpusSplits(*drawn, taught, draw(dialogues, 2 * 10**6 + seed, variety))  # type: ignore[call-arg]
    whole = _load_corpus_cached(corpus)
    if split == "coin":
        if labelled:
            raise ValueError(f"labelled={labelled}: must be 0 where coins split the corpus")
        return split_by_coins(whole, seed, HELDOUT_SHARE if heldout_dialogues else 0.0)
    size = dialogues + 2 * heldout_dialogues
    reserved = (search_block or size) if is_corpus(corpus) else 0
    if reserved and seed == TUNING_SEED and size > reserved:
        raise ValueError(
            f"search_block={search_block}: must be at least {size}, which the search reads"
        )
    needed = size + labelled + reserved
    if len(whole) < needed:
        raise ValueError(
            f"dialogues={dialogues}: with {2 * heldout_dialogues} held out, {labelled} labelled "
            f"and {reserved} for the search, {corpus!r} must have {needed} dialogues, it has "
            f"{len(whole)}"
        )
    always_first = _shuffle_by_user(whole.dialogues, 0)
    search = always_first[labelled : labelled + reserved]
    free = always_first[labelled + reserved :]
    shuffled = _shuffle_by_user(search if reserved and seed == TUNING_SEED else free, seed + 1)
    cuts = np.cumsum([0, dialogues, heldout_dialogues, heldout_dialogues, 2 * dialogues])
    dialogues_of_part = [shuffled[start:end] for start, end in itertools.pairwise(cuts)]
    dialogues_of_part.insert(3, always_first[:labelled])
    return CorpusSplits(*(replace(whole, dialogues=part) for part in dialogues_of_part))


def split_by_coins(corpus: Corpus, seed: int, share: float) -> CorpusSplits:
    """Assign each person to validation, testing or training by a coin of their own.

    Args:
        corpus: Dialogues; their order is kept.
        seed: The seed of the coins.
        share: The expected share of the people for validation, and again for testing.

    Returns:
        The parts; ``labelled`` and ``others`` are empty. In a small corpus the coins may hold out
        nobody.

    Raises:
        ValueError: If everybody is held out, which may happen to a single person.

    Guarantee:
        Whether a person is held out depends on nobody else. So if two corpora differ in one
        message, one conversation or one person, their parts differ in nothing else. Test:
        ``tests/test_held_out.py::test_one_message_decides_about_nobody_else``.
    """
    dialogues_by_part: dict[str, list[Dialogue]] = {"valid": [], "test": [], "train": []}
    for dialogue in corpus.dialogues:
        person = dialogue.user or dialogue.id  # without a name, a conversation is a person
        digest = hashlib.blake2b(f"{seed}\0{person}".encode(), digest_size=8).digest()
        coin = int.from_bytes(digest, "big") / 2**64
        part = "valid" if coin < share else "test" if coin < 2 * share else "train"
        dialogues_by_part[part].append(dialogue)
    if not dialogues_by_part["train"]:
        of_one = ", which are all from one person" * (len({d.user for d in corpus.dialogues}) == 1)
        raise ValueError(
            f"seed={seed}: holds out all of {len(corpus)} dialogues{of_one}; take another seed"
        )
    corpora_by_part = {
        part: replace(corpus, dialogues=tuple(dialogues))
        for part, dialogues in dialogues_by_part.items()
    }
    nobody = replace(corpus, dialogues=())
    return CorpusSplits(**corpora_by_part, labelled=nobody, others=nobody)


def _shuffle_by_user(dialogues: Sequence[Dialogue], seed: int) -> tuple[Dialogue, ...]:
    """Shuffle the users, and keep the dialogues of each user together and in order. A dialogue
    without a user counts as a user of its own."""
    by_user: dict[tuple[str, str], list[Dialogue]] = {}
    for dialogue in dialogues:
        person = (dialogue.user, "" if dialogue.user else dialogue.id)
        by_user.setdefault(person, []).append(dialogue)
    groups = list(by_user.values())
    order = np.random.default_rng([seed, 5]).permutation(len(groups))
    return tuple(dialogue for k in order for dialogue in groups[k])


def clear_corpus_caches() -> None:
    """Clear the caches, so that corpora are read again: a file may have changed."""
    for cached in (split_corpus, _load_corpus_cached, _fit_tagger_policies):
        cached.cache_clear()


@dataclass(frozen=True, repr=False)
class JudgedPoints:
    """The labelled points on which the policies are judged, and what each policy flags there."""

    points: Sequence[Point]
    flags: FlaggedSpans
    conservative_flags: FlaggedSpans


@dataclass(frozen=True, repr=False)
class PreparedData:
    """The data of a run: the parts, the tokenizer and the held-out texts."""

    corpus: Corpus
    """The training text, without canaries."""
    points: tuple[Point, ...]
    """All training points, raw, with canaries."""
    flags: FlaggedSpans
    """What ``policy`` flags in these points."""
    judged: JudgedPoints
    """Labelled points: the training points or, for a policy that learned from labels, held-out
    ones."""
    policy: Policy
    """The policy pi, with its deliberate misses."""
    conservative_policy: Policy
    """The policy pi_c."""
    prepared: PreparedPoints
    """The public and the private part, as the method reads them."""
    tokenizer: BpeTokenizer
    canaries: tuple[str, ...] = field(repr=False)
    """The secrets that were planted."""
    valid: dict[Point, int]
    """Validation texts, and how often each occurs; perfectly redacted, unless the method reads raw
    text."""
    test: dict[Point, int]
    """Test texts, like ``valid``."""
    read: tuple[Point, ...]
    """The points as the method reads them, with or without noise, redacted if it redacts."""
    others: tuple[Point, ...]
    """Points of dialogues that no run reads."""
    template: Template = SPEAKER_TEMPLATE
    """How turns become text."""
    texts: TextCounts | None = None
    """How often each text occurs, for deduplication; None: nothing is deduplicated."""
    find_values_in_whole_point: bool = False
    """Whether a labelled value is searched for in its whole point."""
    known: PolicyRates | None = None
    """Rates that screening counted, or that were counted on labels that people made."""
    labels: Mapping[str, Any] | None = None
    """Facts about those labels, to be printed with the rates."""

    @functools.cached_property
    def counter(self) -> RateCounter:
        """A count of what became of each labelled secret in the ``judged`` points."""
        counter = RateCounter(
            self.policy,
            self.conservative_policy,
            texts=self.texts,
            find_values_in_whole_point=self.find_values_in_whole_point,
        )
        counter.add(
            self.judged.points,
            flags=self.judged.flags,
            conservative_flags=self.judged.conservative_flags,
        )
        return counter

    @functools.cached_property
    def rates(self) -> PolicyRates:
        """Miss, trace and public rate of the pair of policies, for one secret of each user."""
        return self.counter.rates() if self.known is None else self.known

    def misses(self, policy: Literal["pi", "pi_c"]) -> BoundedRate:
        """The miss rate of a policy, counted on the labelled secrets of the ``judged`` points.

        Canaries do not count: they were planted, and a policy is easily right about twenty copies.
        This is recall, for human readers: it never enters a guarantee (:attr:`rates` does). If
        nothing is labelled, nothing is known, and the rate is 1.
        """
        flags = self.judged.flags if policy == "pi" else self.judged.conservative_flags
        overall = detection_recall.recall_by_kind(self.judged.points, flags).loc["all"]
        secrets = int(overall["secrets"])  # type: ignore[arg-type]
        if secrets == 0:
            return BoundedRate(1.0)
        missed = secrets - int(overall["caught"])  # type: ignore[arg-type]
        return BoundedRate.measured(missed, secrets, confidence=0.975)


def prepare_data(
    study: CrtStudy,
    *,
    public_words: bool = False,
    known: PolicyRates | None = None,
    evaluation: Corpus | None = None,
) -> PreparedData:
    """Prepare a run's data: the corpus with canaries, screened and split as the method requires,
    the tokenizer, and the held-out texts.

    Every source of randomness (people, canaries, misses) follows from ``study.seed``, so that error
    bars over seeds cover all of them.

    Args:
        study: The run.
        public_words: If points are longer than turns, the vocabulary is learned from public points
            only: an unflagged turn of a private point may hold a secret that no rate counts as
            public.
        known: The rates counted earlier, for text that was screened. Without them, rates are
            counted on the labels in the text, and nothing is known if it has none.
        evaluation: The texts for validation and testing, if the study holds none out.

    Raises:
        ValueError: For the policy "oracle" on a corpus without labels, where it would find nothing,
            and for a study with nothing to measure on.
    """
    sizes = study.dialogues, study.heldout, study.seed, study.labelled
    split = split_corpus(study.corpus, study.variety, *sizes, study.split, study.search_block)
    _refuse_nothing_to_measure_on(study, evaluation)
    reads_labels = "oracle" in (study.policy, study.conservative)
    if reads_labels and not any(t.secrets for t in split.train.turns()):
        raise ValueError("policy='oracle': needs labelled secrets, this corpus has none")

    secrets, carrier = _draw_canaries(study)
    planted = canaries.insert_canaries(
        split.train, secrets, copies=study.copies, seed=study.seed, carrier=carrier
    )
    brought_tokenizer, template = _load_tokenizer_and_template(study)
    points = templates.render_points(planted, study.unit, template)

    policy_without_misses, conservative_policy = study_policies(study)
    if study.repeats_are_hidden:
        check_text_alone(policy_without_misses, conservative_policy)
    policy = with_misses(
        policy_without_misses, study.gamma, study.seed, per=study.per, coin=study.coin
    )
    flags = _override_audit_canaries(study, points, policy(points), found=False)
    conservative_flags = _override_audit_canaries(
        study, points, conservative_policy(points), found=True
    )
    if study.learned:
        heldout = templates.render_points(split.valid, study.unit, template)
        judged = JudgedPoints(heldout, policy(heldout), conservative_policy(heldout))
    else:
        judged = _judge_without_canaries(points, flags, conservative_flags)

    private_flags, private_policy = conservative_flags, conservative_policy
    # What only pi finds is redacted, so the vocabulary must not learn it either. If both have the
    # same name, they are one policy or come from one tagger, and pi_c flags all that pi flags. A
    # method without a policy has no pi.
    if study.policy != study.conservative and "policy" in study.training_method.reads:
        private_policy = union_policy(policy_without_misses, conservative_policy)
        private_flags = _override_audit_canaries(study, points, private_policy(points), found=True)

    prepared = _prepare_parts(study, points, flags, conservative_flags)
    if brought_tokenizer is not None:
        tokenizer = brought_tokenizer
    elif public_words and study.unit != "turn" and not study.training_method.reads_raw:
        tokenizer = train_bpe([p.text for p in prepared.public], vocab_size=study.vocab_size)
    else:
        tokenizer = _train_tokenizer(
            planted, study, template, points, private_flags, private_policy
        )
    read = prepared.private if study.training_method.reads_redacted else prepared.all
    if study.training_method.flags_tokens:  # what pi finds is read with noise only
        read = tuple(redact(p, spans) for p, spans in zip(points, flags, strict=True))
    text_counts = None
    if study.repeats_are_hidden:
        text_counts = TextCounts(points)
        for heldout_part in (split.valid, split.test):
            text_counts.add(templates.render_points(heldout_part, study.unit, template))
    valid, test = (split.valid, split.test) if evaluation is None else (evaluation, evaluation)
    return PreparedData(
        corpus=split.train,
        points=points,
        flags=flags,
        judged=judged,
        policy=policy,
        conservative_policy=conservative_policy,
        prepared=prepared,
        tokenizer=tokenizer,
        canaries=secrets,
        valid=_count_heldout_points(valid, study, template),
        test=_count_heldout_points(test, study, template),
        read=read,
        others=templates.render_points(split.others, study.unit, template),
        template=template,
        texts=text_counts,
        find_values_in_whole_point=not is_corpus(study.corpus),
        known=known,
    )


def _refuse_nothing_to_measure_on(study: CrtStudy, evaluation: Corpus | None) -> None:
    """Raise ``ValueError`` unless a study is measured on what it holds out or on given texts, and
    not on both. A policy that it learns can be judged only on what it holds out."""
    if not study.heldout:
        if evaluation is None or study.learned:
            why = (
                "a policy that learns here is judged on them" if study.learned else "none is given"
            )
            raise ValueError(
                f"heldout=0: must be positive unless texts to measure on are given; {why}"
            )
    elif evaluation is not None:
        raise ValueError(f"heldout={study.heldout}: must be 0 where texts to measure on are given")


def _draw_canaries(study: CrtStudy) -> tuple[tuple[str, ...], str]:
    """The canaries of a study, and the words that carry them. An audit plants whole messages: the
    first of each pair."""
    if study.audited:
        pairs = canaries.make_canary_pairs(study.canaries, seed=study.seed)
        return tuple(value for value, _ in pairs), ""
    if study.canaries:
        secrets = canaries.make_canaries(study.canaries, seed=study.seed)
        return secrets, canaries.CANARY_CARRIER
    return (), canaries.CANARY_CARRIER


def _load_tokenizer_and_template(study: CrtStudy) -> tuple[BpeTokenizer | None, Template]:
    """The tokenizer of the model that a study starts from, if it brings its vocabulary, and the
    template by which turns become text."""
    if not study.brings_vocabulary:
        return None, templates.template_by_name(study.template, None)
    path = pretrained.resolve_model_path(study.init)
    tokenizer = adapt_tokenizer(path)
    if study.template == "chat":  # the pre-trained model's own
        return tokenizer, templates.template_of_model(path, tokenizer)
    return tokenizer, templates.template_by_name(study.template, tokenizer)


def _override_audit_canaries(
    study: CrtStudy, points: Sequence[Point], flags: FlaggedSpans, *, found: bool
) -> FlaggedSpans:
    """Return the flags, with the canaries of an audit either all found or all passed over."""
    if not study.audited:
        return flags
    return [
        (p.secrets if found else ()) if p.user.startswith(CANARY_USER_PREFIX) else spans
        for p, spans in zip(points, flags, strict=True)
    ]


def _judge_without_canaries(
    points: Sequence[Point], flags: FlaggedSpans, conservative_flags: FlaggedSpans
) -> JudgedPoints:
    """The training points as those on which policies are judged, without the planted canaries."""
    places = [k for k, p in enumerate(points) if not p.user.startswith(CANARY_USER_PREFIX)]
    return JudgedPoints(
        [points[k] for k in places],
        [flags[k] for k in places],
        [conservative_flags[k] for k in places],
    )


def _prepare_parts(
    study: CrtStudy,
    points: Sequence[Point],
    flags: FlaggedSpans,
    conservative_flags: FlaggedSpans,
) -> PreparedPoints:
    """The public and the private part, as the method reads them."""
    if study.training_method.reads_raw:  # raw text, all of it private
        raw = prepare_points(points, None, everything_policy(points), dedup="none")
        if study.training_method.reads_redacted:
            clean = prepare_points(points, flags, conservative_flags, dedup="none")
            return replace(clean, public=clean.all, private=raw.private)
        return raw
    dedup = study.dedup if study.repeats_are_hidden else "none"
    return prepare_points(
        points, flags, conservative_flags, dedup=dedup, duplicates=study.duplicates
    )


def study_policies(study: CrtStudy) -> tuple[Policy, Policy]:
    """The policies pi (before ``gamma`` adds misses) and pi_c of a study; they never read what a
    template adds."""
    named_corpus = study.corpus if is_corpus(study.corpus) else DEFAULT_CORPUS
    if "tagger" in (study.policy, study.conservative):
        taught, conservative_taught = _fit_tagger_policies(
            study.corpus, study.variety, study.labelled, study.unit
        )
    if study.policy == "tagger":
        policy = taught
    else:
        policy = policy_names.policy_by_name(study.policy, named_corpus)
    if study.conservative == "tagger":
        conservative_policy = conservative_taught
    else:
        conservative_policy = policy_names.conservative_policy_by_name(
            study.conservative, named_corpus
        )
    if study.template == "speaker":
        return policy, conservative_policy
    return _of_own_words(policy), _of_own_words(conservative_policy)


def _of_own_words(policy: Policy) -> Policy:
    is_screened_folder = policy.name.startswith("screened:")  # it knows points, not words
    return policy if is_screened_folder else replace(policy, own_words=True)


@functools.lru_cache(maxsize=2)
def _fit_tagger_policies(
    corpus: str, variety: str, labelled: int, unit: Literal["turn", "dialogue", "user"]
) -> tuple[Policy, Policy]:
    """The redacting and the conservative policy of a tagger that learned from labelled dialogues.

    Some of these state an ID, as some of the training dialogues do, but the numbers are different.
    """
    teaching = split_corpus(corpus, variety, 1, 1, 0, labelled).labelled
    if not any(t.secrets for t in teaching.turns()):
        raise ValueError(
            f"policy='tagger': {labelled} labelled dialogues hold no secret that it could learn "
            "from; train one with 'crtlib tagger' and name it tagger:FOLDER"
        )
    teaching = canaries.insert_canaries(
        teaching, canaries.make_canaries(20, seed=10**6), copies=2, seed=10**6
    )
    trained = tagger.train_tagger(data_points.make_points(teaching, unit=unit), seed=0)
    return tagger.tagger_policy(trained), tagger.conservative_tagger_policy(trained)


def _train_tokenizer(
    corpus: Corpus,
    study: CrtStudy,
    template: Template,
    points: Sequence[Point],
    private_flags: FlaggedSpans,
    private_policy: Policy,
) -> BpeTokenizer:
    """Train BPE on the turns that are public for every gamma and neighbouring dataset: those in
    which ``private_policy`` flags nothing and which hold no ``<MASK>`` (it may hide a secret). If
    points are longer than turns, it must flag nothing in a turn read within its point, which is how
    its misses are counted, and nothing in the turn read by itself.

    Args:
        corpus: The training text, with canaries.
        study: The run.
        template: How turns become text.
        points: The training points.
        private_flags: What ``private_policy`` flags in the points.
        private_policy: Flags what the vocabulary must not learn.
    """
    by_turn = study.unit == "turn"
    corpus = data_points.merge_by_user(corpus) if study.unit == "user" else corpus
    turns = points if by_turn else templates.render_points(corpus, "turn", template)
    is_flagged = [bool(spans) for spans in (private_flags if by_turn else private_policy(turns))]
    if not by_turn:
        is_flagged_within = [
            any(s.start < end and before < s.end - 1 for s in spans)
            for p, spans in zip(points, private_flags, strict=True)
            for before, end in itertools.pairwise([-1, *(end for _, end in p.spoken_spans)])
        ]
        is_flagged = [a or b for a, b in zip(is_flagged, is_flagged_within, strict=True)]
    public_texts = [
        turn.text
        for turn, flagged in zip(turns, is_flagged, strict=True)
        if not flagged and MASK not in turn.text
    ]
    return train_bpe(public_texts, vocab_size=study.vocab_size)


def _count_heldout_points(corpus: Corpus, study: CrtStudy, template: Template) -> dict[Point, int]:
    """Return the unique held-out points and how often each occurs, to be scored once and weighted.

    They are perfectly redacted, which is how a model trained on redacted text will be used; or raw,
    for a method that reads raw text and has never seen ``<MASK>``.
    """
    texts = (
        point if study.training_method.reads_raw else redact(point, point.secrets)
        for point in templates.render_points(corpus, study.unit, template)
    )  # fmt: skip
    return collections.Counter(replace(text, id="", user="") for text in texts)
