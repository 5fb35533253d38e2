"""Which studies a figure or table needs: from a profile's settings to a list of values.

>>> from crtbook import settings
>>> few = settings.load("crt", methods=["sgd"], ablations=[], models=["lstm"], seeds=1)
>>> [study.gamma for study in crt_grid(few)]
[0.0, 0.1, 0.5]
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from crtbook import runs, search
from crtbook.axis import ARMS, AxisStudy
from crtbook.carriers import CARRIERS, CarrierStudy
from crtbook.game import GameStudy
from crtbook.leakage import METHODS, TEXTS, LeakageStudy
from crtbook.runs import CrtStudy
from crtbook.screening import ScreeningStudy
from crtbook.secrets import ExtractionStudy, MaskedStudy, UnigramStudy, first_available
from crtbook.study import Study
from crtbook.tables import STUDIES
from crtlib.experiments import crt
from crtlib.text import corpora
from crtlib.training import methods

Settings = Any
"""A section of a profile: :mod:`crtbook.settings`."""


def _known(kind: type[Study], given: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are fields of a kind of study."""
    names = {f.name for f in fields(kind)}
    return {name: entry for name, entry in given.items() if name in names}


def at_hand(settings: Settings) -> tuple[Settings, dict[str, str]]:
    """The settings with the corpora that are here in the size that they ask for; of the others,
    what is lacking."""
    lacks = {
        corpus: need
        for corpus in settings.corpora
        for part in [settings.data[corpus]]
        if (need := runs.lacking(corpus, part.dialogues + 2 * part.heldout, part.labelled))
    }
    return settings.but(corpora=[c for c in settings.corpora if c not in lacks]), lacks


# --- CRT ------------------------------------------------------------------------------------------


def crt_grid(settings: Settings) -> list[CrtStudy]:
    """The runs of Figures 2 to 5: methods at ``gammas``, ablations at ``ablation_gammas``, all
    seeds, on each corpus, with what the recorded search chose from where the model starts."""
    return [
        study
        for corpus, model, main, ablations in _cells(settings)
        for names, gammas in ((main, settings.gammas), (ablations, settings.ablation_gammas))
        for method, gamma in itertools.product(names, gammas)
        for study in _runs(settings, corpus, method, model, {}, gamma=gamma)
    ]


def authors_grid(settings: Settings) -> list[CrtStudy]:
    """The runs of Figure 2 with the hyperparameters that the paper ends with, all seeds."""
    return [
        study
        for corpus, model, main, _ in _cells(settings)
        for method, chosen in STUDIES["authors"].get(model, {}).items()
        if method in main
        for study in _runs(settings, corpus, method, model, chosen)
    ]


def choices_grid(settings: Settings) -> dict[str, list[CrtStudy]]:
    """CRT at one gamma with each of its choices, a few seeds: LSTM on CustomerSim."""
    seeds = range(settings.choice_seeds)
    return {
        name: _runs(settings, crt.DEFAULT, "crt", "lstm", change, seeds=seeds)
        for name, change in STUDIES["choices"].items()
    }


STARTED = ("sgd", "dpsgd", "crt")
"""The methods that are also run from a public start."""


def public_start_grid(settings: Settings) -> list[CrtStudy]:
    """GPT-2 on CustomerSim from random weights, and from weights trained on public dialogues; each
    start has the hyperparameters of its own search."""
    return [
        study
        for method in STARTED
        for start in ({}, _start(settings))
        for study in _runs(settings, crt.DEFAULT, method, "gpt2", start)
    ]


def _start(settings: Settings) -> dict[str, Any]:
    return {"init": settings.public, "init_epochs": settings.public_epochs}


def tuning_grid(settings: Settings) -> list[CrtStudy]:
    """The recorded search: a corpus' ``trials`` draws for every method and model, the same for all.

    Each method reads of a draw only what it uses, at one gamma and on a seed of its own; the
    choice is by perplexity on validation texts (:func:`crtbook.search.tuned`).
    """
    cells = [
        (corpus, model, [*main, *ablations], settings.data[corpus].trials, {})
        for corpus, model, main, ablations in _cells(settings)
    ]
    if crt.DEFAULT in settings.corpora and "gpt2" in settings.models:
        start = _start(settings)
        cells.append((crt.DEFAULT, "gpt2", [*STARTED], settings.public_trials, start))
    studies = []
    for corpus, model, names, trials, start in cells:
        # learning rates as a share of those that random weights are searched with
        rates = search.GENTLY if start or model == "pretrained" else 1.0
        drawn = search.draws(trials, settings.data[corpus].pub_passes, rates=rates)
        for method, draw in itertools.product(names, drawn):
            chosen = {name: draw[name] for name in methods.by_name(method).searched} | start
            studies += _runs(
                settings, corpus, method, model, chosen, seeds=[crt.TUNING_SEED], tuned=False
            )
    return studies


def carriers_grid(settings: Settings) -> list[CarrierStudy]:
    """A pre-trained model before it is fine-tuned: one seed, as there is nothing to train."""
    init = settings.shapes.pretrained.init
    return [CarrierStudy(seed=0, init=init, carrier=carrier) for carrier in CARRIERS]


def _cells(settings: Settings) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Corpus, model, methods, ablations: what the settings ask for and the corpus allows."""
    for corpus, model in itertools.product(settings.corpora, settings.models):
        allowed = settings.data[corpus]
        if model in allowed.models:
            main, ablations = (
                [m for m in names if m in known and model in (methods.by_name(m).models or [model])]
                for names, known in (
                    (settings.methods, allowed.methods), (settings.ablations, allowed.ablations)
                )
            )  # fmt: skip
            yield corpus, model, main, ablations


def _runs(
    settings: Settings,
    corpus: str,
    method: str,
    model: str,
    change: Mapping[str, Any],
    *,
    gamma: float | None = None,
    seeds: Iterable[int] | None = None,
    tuned: bool = True,
) -> list[CrtStudy]:
    """A cell at these seeds (all): the recorded search's choice for its start, then ``change``."""
    shape = settings.shapes[model]
    given = _known(CrtStudy, {**settings.data[corpus], **shape})
    given = {name: entry for name, entry in given.items() if name not in search.SEARCHED}
    given |= {"epochs": shape.epochs.get(method, shape.epochs["crt"])}
    if tuned:
        init = change.get("init", shape.get("init", "random"))
        recorded = search.of_profile(settings.profile)
        given |= search.tuned(method, model, corpus, init=init, table=recorded)
    return [
        CrtStudy(
            corpus=corpus,
            method=method,
            model=model,
            gamma=float(settings.gamma if gamma is None else gamma),
            seed=seed,
            epsilon=settings.epsilon,
            delta=settings.delta,
            **given | dict(change),
        )
        for seed in (range(settings.seeds) if seeds is None else seeds)
    ]


def axis_grid(settings: Settings) -> list[AxisStudy]:
    """Every arm of the axis on CustomerSim with an LSTM, all seeds, each with the hyperparameters
    of the recorded search, or those of the methods that it is like where no search has it."""
    tables = search.of_profile(settings.profile)
    given = _known(AxisStudy, {**settings, "embedding": settings.hidden})
    out = []
    for arm, seed in itertools.product(ARMS, range(settings.seeds)):
        chosen = {}
        for like in arm.like or (arm.method,):
            chosen |= search.tuned(like, "lstm", crt.DEFAULT, table=tables)
        gamma = settings.gamma if arm.gamma is None else arm.gamma
        run = {"method": arm.method, "model": "lstm", "gamma": gamma, "seed": seed}
        out.append(AxisStudy(**given | chosen | run))
    return out


# --- the leakage report ---------------------------------------------------------------------------


def shared(settings: Settings, shape: str, **changes: Any) -> dict[str, Any]:
    """The fields of a run that a profile's section, its sizes for the corpus, and one of its
    shapes give."""
    there = settings.data[changes.get("corpus", crt.DEFAULT)]
    return _known(LeakageStudy, {**settings, **there, **settings.shapes[shape], **changes})


def table_2(settings: Settings, corpus: str, seed: int) -> list[LeakageStudy]:
    """Rows of Table 2: private, DP from two starts, public; a point is all that a user said."""
    base = shared(settings, "table", corpus=corpus, unit="user", seed=seed) | {"gamma": 0.0}
    last = {"snapshots": (base["epochs"],)}
    return [
        LeakageStudy(method="sgd", **base | last, left_out=True),
        LeakageStudy(method="dpsgd", **base, left_out=True),
        LeakageStudy(method="dpsgd", init="public", **base, left_out=True),
        LeakageStudy(method="public", init="public", **base | last),
    ]


def one_table(settings: Settings, seed: int) -> dict[str, LeakageStudy]:
    """Non-private, DP-SGD, CRT and LP-weighted models of the same turns of CustomerSim."""
    base = shared(settings, "methods", unit="turn", seed=seed)
    unread = {"gamma": 0.0}  # without a policy
    return {
        name: LeakageStudy(
            dedup=change["method"] == "crt",
            **base | change | (unread if change["policy"] == "none" else {}),
        )
        for name, change in METHODS.items()
    }


def figure_5(settings: Settings, seed: int, corpus: str) -> dict[str, LeakageStudy]:
    """The run of Figure 5, and the same with one thing done to its text."""
    base = shared(settings, "lstm", unit="turn", seed=seed, corpus=corpus)
    last = {"snapshots": (base["epochs"],)}
    return {
        text: LeakageStudy(
            method="sgd", detail=True, **base | change | ({} if text == "as it is" else last)
        )
        for text, change in TEXTS.items()
    }


def leakage_chapters(report: Settings, training: Settings) -> list[LeakageStudy]:
    """All runs of both chapters. Of Figure 5's mitigations, those on simulated text."""
    runs = []
    for seed in range(report.seeds):
        for corpus in report.corpora:
            runs += table_2(report, corpus, seed)
        runs += one_table(report, seed).values()
    for seed, corpus in itertools.product(range(training.seeds), training.corpora):
        every = list(figure_5(training, seed, corpus).values())
        runs += every if corpora.source(corpus).draw else every[:1]
    return runs


# --- Hush! ----------------------------------------------------------------------------------------


def masked_base(settings: Settings) -> MaskedStudy:
    """The run that the others of Figure 1 change: seed 0, no preprocessing, noise."""
    given = {**settings.model, **settings.data, **settings.training, "prior": settings.prior}
    corpus = first_available(settings.texts)
    return MaskedStudy(seed=0, targets="linear", scale=None, noisy=True, corpus=corpus, **given)


def masked_grid(settings: Settings) -> list[MaskedStudy]:
    """The runs of Figure 1: both rules of the budget at every C, and no preprocessing, with and
    without noise, at every learning rate, all seeds."""
    arms = [(rule, scale) for rule in ("linear", "sqrt") for scale in settings.scales]
    return [
        run
        for (rule, scale), noisy in itertools.product([*arms, ("linear", None)], (False, True))
        for run in _masked(settings, targets=rule, scale=scale, noisy=noisy)
    ]


def beside_grid(settings: Settings) -> list[MaskedStudy]:
    """Two things of the paper beside Figure 1, seed 0, the paper's rule at the least C and no
    preprocessing: a tenth of the noise, as the paper trains (that of a batch and of data ten times
    as large, which are not there); and a predicate by which only the secret words may differ."""
    one = settings.but(seeds=1)
    return [
        run
        for scale in (min(settings.scales), None)
        for change in ({"simulated": 10}, {"predicate": "word"})
        for run in _masked(one, scale=scale, **change)
    ]


def unigram_grid(settings: Settings) -> list[UnigramStudy]:
    """Word counts of the text of Figure 1, all seeds."""
    base = masked_base(settings)
    text = {"dialogues": base.dialogues, "vocab_size": base.vocab_size, "corpus": base.corpus}
    return [UnigramStudy(seed=seed, **text) for seed in range(settings.seeds)]


def _masked(settings: Settings, **changes: Any) -> list[MaskedStudy]:
    """An arm at every learning rate, all seeds."""
    return [
        replace(masked_base(settings), learning_rate=rate, seed=seed, **changes)
        for rate in settings.learning_rates
        for seed in range(settings.seeds)
    ]


def games_grid(settings: Settings) -> list[GameStudy]:
    """Reconstruction games: no noise, half of it, all of it, ``trials`` each."""
    return [
        GameStudy(seed=seed, learns=learns, noise=noise)
        for learns in GameStudy.LEARNS
        for noise in (0.0, 0.5, 1.0)
        for seed in range(settings.trials)
    ]


def extraction_grid(settings: Settings) -> list[ExtractionStudy]:
    """The runs of Section 5.2: every width and noise, all seeds."""
    given = {**settings.model, **settings.data, **settings.training}
    corpus = first_available(settings.texts)
    return [
        ExtractionStudy(seed=seed, noise_multiplier=noise, hidden=hidden, corpus=corpus, **given)
        for hidden in settings.hidden
        for noise in settings.noise_multipliers
        for seed in range(settings.seeds)
    ]


# --- screening ------------------------------------------------------------------------------------


def screening_grid(settings: Settings) -> list[ScreeningStudy]:
    """Every pair of policies on every corpus that is here."""
    return [
        ScreeningStudy(
            **_known(ScreeningStudy, {**settings, **sizes})
            | {"corpus": corpus, "policy": pi, "conservative": pi_c}
        )
        for corpus, sizes in settings.data.items()
        if corpora.available(corpus)
        for pi, pi_c in STUDIES["policies"]
    ]


def unique(studies: Iterable[Study]) -> list[Study]:
    """Each run once, in order; also those that cannot run here, and so have no key."""
    return list({study.ready(): study for study in studies}.values())
