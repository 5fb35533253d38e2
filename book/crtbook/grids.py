"""Which studies a figure or table needs: from a profile's settings to a list of values.

>>> from crtbook import settings
>>> few = settings.load_settings("crt", methods=["sgd"], ablations=[], models=["lstm"], seeds=1)
>>> [study.gamma for study in crt_grid(few)]
[0.0, 0.1, 0.5]
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from pandas import DataFrame

from crtbook import runs, search
from crtbook.axis import ARMS, AxisStudy
from crtbook.carriers import CARRIERS, CarrierStudy
from crtbook.fine_tuning import FineTunedStudy, choose_rates
from crtbook.game import GameStudy
from crtbook.leakage import METHODS, TEXTS, LeakageStudy
from crtbook.runs import CrtStudy, ScreeningStudy
from crtbook.secrets import ExtractionStudy, MaskedStudy, UnigramStudy, first_available
from crtbook.study import Study
from crtbook.tables import STUDIES
from crtbook.word_plans import WordPlanStudy
from crtlib.studies import crt_study
from crtlib.text import corpora
from crtlib.training import methods

Settings = Any
"""A section of a profile: :mod:`crtbook.settings`."""


def _select_fields(kind: type[Study], entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are fields of a kind of study."""
    names = {f.name for f in fields(kind)}
    return {name: entry for name, entry in entries.items() if name in names}


def select_corpora_at_hand(settings: Settings) -> tuple[Settings, dict[str, str]]:
    """The settings with those corpora that are available here in the requested size, and for each
    of the others what is missing."""
    missing_by_corpus = {}
    for corpus in settings.corpora:
        sizes = settings.data[corpus]
        dialogues = sizes.dialogues + 2 * sizes.heldout
        missing = runs.describe_missing_data(corpus, dialogues, sizes.labelled, sizes.search_block)
        if missing:
            missing_by_corpus[corpus] = missing
    at_hand = [corpus for corpus in settings.corpora if corpus not in missing_by_corpus]
    return settings.but(corpora=at_hand), missing_by_corpus


# --- CRT ------------------------------------------------------------------------------------------


def crt_grid(settings: Settings, searched: DataFrame | None = None) -> list[CrtStudy]:
    """The runs of Figures 2 to 5: methods at ``gammas``, ablations at ``ablation_gammas``, all
    seeds, on each corpus. Hyperparameters are those that the recorded search chose for the same
    start, or a search that was just done (``searched``)."""
    return [
        study
        for corpus, model, main_methods, ablations in _list_cells(settings)
        for names, gammas in (
            (main_methods, settings.gammas),
            (ablations, settings.ablation_gammas),
        )
        for method, gamma in itertools.product(names, gammas)
        for study in _make_runs(settings, corpus, method, model, searched, gamma=gamma)
    ]


def authors_grid(settings: Settings) -> list[CrtStudy]:
    """The runs of Figure 2 with the paper's final hyperparameters, all seeds."""
    return [
        study
        for corpus, model, main_methods, _ in _list_cells(settings)
        for method, chosen in STUDIES["authors"].get(model, {}).items()
        if method in main_methods
        for study in _make_runs(settings, corpus, method, model, **chosen)
    ]


def choices_grid(settings: Settings) -> dict[str, list[CrtStudy]]:
    """CRT at one gamma with each of its choices, for a few seeds: LSTM on CustomerSim."""
    few_seeds = settings.but(seeds=settings.choice_seeds)
    return {
        name: _make_runs(few_seeds, crt_study.DEFAULT_CORPUS, "crt", "lstm", **change)
        for name, change in STUDIES["choices"].items()
    }


STARTED = ("sgd", "dpsgd", "crt")
"""The methods that are also run from a public start."""


def public_start_grid(settings: Settings) -> list[CrtStudy]:
    """GPT-2 on CustomerSim from random weights, and from weights trained on public dialogues. Each
    start has the hyperparameters of its own search."""
    return [
        study
        for method, start in itertools.product(STARTED, ({}, _settings_of_public_start(settings)))
        for study in _make_runs(settings, crt_study.DEFAULT_CORPUS, method, "gpt2", **start)
    ]


def _settings_of_public_start(settings: Settings) -> dict[str, Any]:
    return {"init": settings.public, "init_epochs": settings.public_epochs}


def tuning_grid(settings: Settings) -> list[CrtStudy]:
    """The recorded search: ``trials`` draws on each corpus, the same for every method and model.

    A method uses only those values of a draw that it reads, at one gamma and on a seed of its own.
    The choice is by perplexity on validation texts (:func:`crtbook.search.choose_trial`).
    """
    cells = [
        (corpus, model, [*main_methods, *ablations], settings.data[corpus].trials, {})
        for corpus, model, main_methods, ablations in _list_cells(settings)
    ]
    if crt_study.DEFAULT_CORPUS in settings.corpora and "gpt2" in settings.models:
        start = _settings_of_public_start(settings)
        cells.append((crt_study.DEFAULT_CORPUS, "gpt2", [*STARTED], settings.public_trials, start))
    studies = []
    for corpus, model, names, trials, start in cells:
        # learning rates relative to those of the search for random weights
        rates = search.GENTLY if start or model == "pretrained" else 1.0
        draws = search.draw_hyperparameters(trials, settings.data[corpus].pub_passes, rates=rates)
        for method, draw in itertools.product(names, draws):
            chosen = {name: draw[name] for name in methods.method_by_name(method).searched}
            studies.append(_make_run(settings, corpus, method, model, **chosen | start))
    return [replace(study, seed=crt_study.TUNING_SEED) for study in studies]


def carriers_grid(settings: Settings) -> list[CarrierStudy]:
    """A pre-trained model before it is fine-tuned: one seed, as there is nothing to train."""
    init = settings.shapes.pretrained.init
    return [CarrierStudy(seed=0, init=init, carrier=carrier) for carrier in CARRIERS]


def _list_cells(settings: Settings) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Corpus, model, methods, ablations: what the settings request and the corpus allows."""
    for corpus, model in itertools.product(settings.corpora, settings.models):
        allowed = settings.data[corpus]
        if model in allowed.models:
            main_methods, ablations = (
                [m for m in settings[kind]
                 if m in allowed[kind] and model in (methods.method_by_name(m).models or [model])]
                for kind in ("methods", "ablations")
            )  # fmt: skip
            yield corpus, model, main_methods, ablations


def _make_runs(
    settings: Settings,
    corpus: str,
    method: str,
    model: str,
    searched: DataFrame | None = None,
    **change: Any,
) -> list[CrtStudy]:
    """The runs of a cell at all seeds, with the search's choice for its start and then ``change``.
    Where the search tried several numbers of epochs, they include the best trial with twice as
    many, which shows whether a longer training would be better."""
    recorded = search.list_search_tables(settings.profile)
    searched_by = {
        "table": recorded if searched is None else [searched],
        "init": change.get("init", settings.shapes[model].get("init", "random")),
    }
    chosen = [search.choose_trial(method, model, corpus, **searched_by)]
    if longer := search.choose_longer_trial(method, model, corpus, **searched_by):
        chosen.append(longer)
    runs = [_make_run(settings, corpus, method, model, **rates | change) for rates in chosen]
    return [replace(run, seed=seed) for run in runs for seed in range(settings.seeds)]


def _make_run(settings: Settings, corpus: str, method: str, model: str, **change: Any) -> CrtStudy:
    """A run of this size, with ``change``."""
    shape = settings.shapes[model]
    constants = _select_fields(CrtStudy, {**settings, **settings.data[corpus], **shape})
    constants = {name: entry for name, entry in constants.items() if name not in search.SEARCHED}
    constants |= {"epochs": shape.epochs.get(method, shape.epochs["crt"])}
    return CrtStudy(corpus=corpus, method=method, model=model, seed=0, **constants | change)


def axis_grid(settings: Settings) -> list[AxisStudy]:
    """Every arm of the axis on CustomerSim with an LSTM, all seeds. Each has the hyperparameters of
    the recorded search, or those of the methods that it is like where no search has its own."""
    tables = search.list_search_tables(settings.profile)
    constants = _select_fields(AxisStudy, {**settings, "embedding": settings.hidden})
    studies = []
    for arm, seed in itertools.product(ARMS, range(settings.seeds)):
        chosen = {}
        for like_method in arm.like or (arm.method,):
            chosen |= search.choose_trial(
                like_method, "lstm", crt_study.DEFAULT_CORPUS, table=tables
            )
        gamma = settings.gamma if arm.gamma is None else arm.gamma
        run = {"method": arm.method, "model": "lstm", "gamma": gamma, "seed": seed}
        studies.append(AxisStudy(**constants | chosen | run))
    return studies


# --- the leakage report ---------------------------------------------------------------------------


def _make_leakage_run(
    settings: Settings, shape: str, *, last: bool = False, **changes: Any
) -> LeakageStudy:
    """A run from a profile's section, its sizes for the corpus, and one of its shapes. It makes a
    report only at the ``last`` epoch, or at each snapshot."""
    sizes, corpus_sizes = (
        settings.shapes[shape],
        settings.data[changes.get("corpus", crt_study.DEFAULT_CORPUS)],
    )
    snapshot_option = {"snapshots": (sizes.epochs,)} if last else {}
    values = {**settings, **corpus_sizes, **sizes, **snapshot_option, **changes}
    return LeakageStudy(**_select_fields(LeakageStudy, values))


def runs_by_model(settings: Settings, corpus: str, seed: int) -> list[LeakageStudy]:
    """Rows of Table 2: private, DP from two starts, public. A point is all that one user said."""
    cell = {"corpus": corpus, "unit": "user", "seed": seed, "gamma": 0.0}
    return [
        _make_leakage_run(settings, "table", last=row["method"] != "dpsgd", **cell, **row)
        for row in STUDIES["table_2"]
    ]


def people_grid(settings: Settings) -> list[LeakageStudy]:
    """Table 2 for many people, on the first available corpus: the rows of ``people`` per seed."""
    constants = _select_fields(LeakageStudy, {**settings, **settings.shapes.table})
    constants |= {"corpus": first_available(settings.texts), "unit": "user"}
    first, last = constants["snapshots"][:1], constants["epochs"]
    runs = []
    for seed, row in itertools.product(range(settings.seeds), STUDIES["people"]):
        changes = {name: entry for name, entry in row.items() if name != "left_out_first"}
        if row.get("left_out_first"):
            changes["left_out_at"] = first
        if row["method"] != "dpsgd":  # the report shows snapshots only for noisy models
            changes["snapshots"] = (last,)
        elif row.get("init") == "public":
            changes["private_learning_rate"] = settings.shapes.table.public_start_learning_rate
        runs.append(LeakageStudy(seed=seed, **constants | changes))
    return runs


def runs_by_method(settings: Settings, seed: int) -> dict[str, LeakageStudy]:
    """Non-private, DP-SGD, CRT and LP-weighted models on the same turns of CustomerSim."""
    return {
        name: _make_leakage_run(settings, "methods", unit="turn", seed=seed, **change)
        for name, change in METHODS.items()
    }


def runs_by_text(settings: Settings, seed: int, corpus: str) -> dict[str, LeakageStudy]:
    """The run of Figure 5, and the same run with one change to its text each."""
    common = {"corpus": corpus, "unit": "turn", "seed": seed, "method": "sgd", "detail": True}
    return {
        text: _make_leakage_run(settings, "lstm", last=text != "as it is", **common, **change)
        for text, change in TEXTS.items()
    }


def leakage_chapters(report: Settings, training: Settings) -> list[LeakageStudy]:
    """All runs of both chapters. Figure 5's mitigations are those on simulated text."""
    runs = []
    for seed in range(report.seeds):
        for corpus in report.corpora:
            runs += runs_by_model(report, corpus, seed)
        runs += runs_by_method(report, seed).values()
    for seed, corpus in itertools.product(range(training.seeds), training.corpora):
        runs_of_texts = list(runs_by_text(training, seed, corpus).values())
        runs += runs_of_texts if corpora.find_source(corpus).draw else runs_of_texts[:1]
    return runs


def abstracts_grid(settings: Settings) -> list[LeakageStudy]:
    """Figure 5's runs on the first available corpus: for each change of the text, all seeds."""
    constants = _select_fields(LeakageStudy, {**settings, **settings.shapes.lstm})
    constants |= {"corpus": first_available(settings.texts), "unit": "turn", "detail": True}
    rare = {"min_users": constants.pop("min_users")}
    return [
        LeakageStudy(
            method="sgd", seed=seed, **constants | text | (rare if text["policy"] == "rare" else {})
        )
        for text in (TEXTS[change] for change in settings.changes)
        for seed in range(settings.seeds)
    ]


# --- Hush! ----------------------------------------------------------------------------------------


def _settings_of_hush(settings: Settings) -> dict[str, Any]:
    """The groups of a section, and its first available corpus."""
    corpus = first_available(settings.texts)
    return {**settings.model, **settings.data, **settings.training, "corpus": corpus}


def masked_base(settings: Settings) -> MaskedStudy:
    """The run from which the others of Figure 1 differ: seed 0, no preprocessing, with noise."""
    constants = _settings_of_hush(settings) | {"prior": settings.prior}
    return MaskedStudy(seed=0, targets="linear", scale=None, noisy=True, **constants)


def masked_grid(settings: Settings) -> list[MaskedStudy]:
    """The runs of Figure 1: both rules of the budget at every C, and no preprocessing. Each with
    and without noise, at every learning rate, all seeds."""
    arms = [*itertools.product(("linear", "sqrt"), settings.scales), ("linear", None)]
    return [
        run
        for (rule, scale), noisy in itertools.product(arms, (False, True))
        for run in _make_masked_runs(settings, targets=rule, scale=scale, noisy=noisy)
    ]


def beside_grid(settings: Settings) -> list[MaskedStudy]:
    """Two things of the paper beside Figure 1: seed 0, the paper's rule at the least C and no
    preprocessing. One is a tenth of the noise, as the paper trains (the noise for a batch and data
    ten times as large as those used). The other is a predicate by which only secret words differ.
    """
    arms = itertools.product(
        (min(settings.scales), None), ({"simulated": 10}, {"predicate": "word"})
    )
    one_seed = settings.but(seeds=1)
    return [
        run for scale, change in arms for run in _make_masked_runs(one_seed, scale=scale, **change)
    ]


def word_plan_grid(settings: Settings) -> list[WordPlanStudy]:
    """What both rules of the budget keep at every C, and no preprocessing, for every kind of word
    and band of secrets, all seeds, on the first available corpus, or else the first of all."""
    kinds = itertools.product(settings.words, settings.bands, range(settings.seeds))
    arms = [("linear", None), *itertools.product(("linear", "sqrt"), settings.scales)]
    available = (c for c in settings.texts if corpora.is_corpus_available(c))
    constants = {**settings.data, **settings.training, "corpus": next(available, settings.texts[0])}
    return [
        WordPlanStudy(
            seed=seed, targets=rule, scale=scale, words=words, band=band, prior=settings.prior,
            **constants,
        )
        for words, band, seed in kinds
        for rule, scale in arms
    ]  # fmt: skip


def fine_tuning_grid(settings: Settings, searched: DataFrame | None = None) -> list[FineTunedStudy]:
    """The losses of Figure 1 on a whole corpus, with words between blanks, by rank. The arms are
    both rules of the budget at every C, and no preprocessing, first with noise and then without.
    At the first seed they run with every learning rate. With the table of these runs
    (``searched``) all other seeds are added, at the rate that validation chose
    (:func:`crtbook.fine_tuning.choose_rates`)."""
    arms = [("linear", None), *itertools.product(("linear", "sqrt"), settings.scales)]
    available = (c for c in settings.texts if corpora.is_corpus_available(c))
    constants = {**settings.data, **settings.model, **settings.training, "words": "blanks"}
    constants |= {"prior": settings.prior, "corpus": next(available, settings.texts[0])}
    first = [
        FineTunedStudy(
            seed=0, targets=rule, scale=scale, noisy=noisy, learning_rate=rate, **constants
        )
        for noisy, (rule, scale), rate in itertools.product(
            (True, False), arms, settings.learning_rates
        )
    ]  # fmt: skip
    if searched is None:
        return first
    best_arms = {*map(tuple, choose_rates(searched).to_numpy().tolist())}
    runs_at_best = [
        run
        for run in first
        if (run.targets, run.scale or math.inf, run.noisy, run.learning_rate) in best_arms
    ]
    further_seeds = itertools.product(range(1, settings.seeds), runs_at_best)
    return [*first, *(replace(run, seed=seed) for seed, run in further_seeds)]


def unigram_grid(settings: Settings) -> list[UnigramStudy]:
    """Word counts on the text of Figure 1, all seeds."""
    text = _select_fields(UnigramStudy, _settings_of_hush(settings))
    return [UnigramStudy(seed=seed, **text) for seed in range(settings.seeds)]


def _make_masked_runs(settings: Settings, **changes: Any) -> list[MaskedStudy]:
    """An arm at every learning rate, all seeds."""
    arms = itertools.product(settings.learning_rates, range(settings.seeds))
    base = masked_base(settings)
    return [replace(base, learning_rate=rate, seed=seed, **changes) for rate, seed in arms]


def games_grid(settings: Settings) -> list[GameStudy]:
    """Reconstruction games: no noise, half of it, all of it, ``trials`` each."""
    arms = itertools.product(GameStudy.LEARNS, (0.0, 0.5, 1.0), range(settings.trials))
    return [GameStudy(learns=learns, noise=noise, seed=seed) for learns, noise, seed in arms]


def extraction_grid(settings: Settings) -> list[ExtractionStudy]:
    """The runs of Section 5.2: every width and noise, all seeds."""
    constants, noises = _settings_of_hush(settings), settings.noise_multipliers
    return [
        ExtractionStudy(hidden=hidden, noise_multiplier=noise, seed=seed, **constants)
        for hidden, noise, seed in itertools.product(settings.hidden, noises, range(settings.seeds))
    ]


def secrets_grid(protection: Settings, extraction: Settings) -> list[Study]:
    """All runs of both chapters."""
    masked = [*masked_grid(protection), *beside_grid(protection)]
    return [*masked, *unigram_grid(protection), *extraction_grid(extraction)]


# --- screening ------------------------------------------------------------------------------------


def screening_grid(settings: Settings) -> list[ScreeningStudy]:
    """Every pair of policies on every available corpus."""
    return [
        ScreeningStudy(
            **_select_fields(ScreeningStudy, {**settings, **sizes})
            | {"corpus": corpus, "policy": pi, "conservative": pi_c}
        )
        for corpus, sizes in settings.data.items()
        if corpora.is_corpus_available(corpus)
        for pi, pi_c in STUDIES["policies"]
    ]


def drop_repeats(studies: Iterable[Study]) -> list[Study]:
    """Each run once, in order, including those that cannot run here and so have no key."""
    return list({study.ready(): study for study in studies}.values())
