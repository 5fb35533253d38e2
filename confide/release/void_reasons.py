"""List the reasons why a certificate is void."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from confide import odometer_lines, spending, text_registry
from confide.release.certifiable_run import UNCOUNTED_REPEATS_NOTE, CertifiableRun
from confide.release.composed_promise import ComposedPromise
from crtlib.accounting import events
from crtlib.files import StrPath

STRIKE_UNSEEN = (
    "strike it if nobody ever saw its model: crtlib account --odometer FOLDER --strike ENTRY "
    "--because WHY."
)


MOST_OF_NOISE_END = 1e-3
"""The largest share of delta that the end of the noise may take, which no accountant charges."""

OTHER_TEXT_REASON = (
    "An earlier run on other text may have learned without noise what its search passed over, "
    "which may be exactly the secrets of this text: nothing measured there is a bound here. "
    "Screen and train on one text that holds both, or leave nothing without noise there "
    f"(--conservative everything, or dpsgd); {STRIKE_UNSEEN}"
)


def reason_before_training(corpus: StrPath, text: str) -> str | None:
    """Why the certificate of any further training on a corpus would be void, whatever is trained;
    None if no reason is known.

    Args:
        corpus: The corpus file or folder; its odometer is beside it, if it has one.
        text: The hash under which the registry knows the text.

    Guarantee:
        Nobody is asked to read turns for a certificate that an earlier model already voids. Test:
        ``tests/test_months.py::test_nobody_reads_where_an_earlier_model_voids_all``.
    """
    registry = text_registry.Registry(text_registry.registry_folder())
    spent = spending.read_history_beside_corpus(corpus, text, registry).spent()
    if any(e.delta2 > 0 for e in spent.runs_on_other_texts):
        return OTHER_TEXT_REASON
    return next(_reasons_in_the_ledger(spent), None)


def reason_before_plan(spent: spending.SpentBudget, *, keeps: bool) -> str | None:
    """Why the certificate of a training with a plan (Hush!) would be void, asked before its first
    step; None if no reason is known.

    Args:
        spent: What was spent before it.
        keeps: Whether its steps keep what the plan promised.

    Guarantee:
        Nothing is spent on a promise that an earlier training already voids. Test:
        ``tests/release/test_secret_plans.py::test_what_would_be_void_is_not_trained``.
    """
    reasons = _reasons_in_the_ledger(spent), _reasons_of_a_plan(spent, keeps=keeps, trials=1)
    return next(itertools.chain(*reasons), None)


def list_void_reasons(
    trained: CertifiableRun, promise: ComposedPromise, epsilon: float
) -> list[str]:
    """List the reasons why the certificate of a training is void.

    Args:
        trained: The training, with its record and the promise of its files alone.
        promise: What it promises together with the runs before it.
        epsilon: The epsilon of ``promise`` for a secret that the search passed over.

    Returns:
        A sentence for each reason, in the order in which a reader would ask. There are none for a
        method without noise, which promises nothing, unless reading the run found some.

    Guarantee:
        A certificate holds only where none of these applies. Test: ``tests/release/
        test_certify.py::test_each_reason_makes_it_void``.
    """
    if trained.files_promise.kind == "none" and not trained.void_reasons:
        return []
    spent, plan = trained.spent or spending.SpentBudget(()), trained.files_promise.plan
    return [
        *trained.void_reasons,
        *trained.files_promise.void,
        *_reasons_in_the_ledger(spent),
        *_reasons_in_what_was_read(trained.record),
        *(
            _reasons_of_a_plan(spent, keeps=plan.keeps, trials=trained.record["searched"]["trials"])
            if plan
            else _reasons_of_noise(trained, spent, promise, epsilon)
        ),
    ]


def _reasons_in_the_ledger(spent: spending.SpentBudget) -> Iterator[str]:
    """Reasons that follow from what the odometer and the registry say about this run and earlier
    ones."""
    if spent.run_is_struck:
        yield "Its run was struck from the odometer as one whose model nobody ever saw."
    if spent.base_unprotected:
        yield (
            "It started from a model that had learned this text, or text with some of the same "
            "people or messages, without protection or with a promise that is void."
        )
    if spent.leaving_out_repeats > 0:
        yield (f"An earlier run was made by crtlib 0.3, {UNCOUNTED_REPEATS_NOTE}; {STRIKE_UNSEEN}")


def _reasons_in_what_was_read(record: Mapping[str, Any]) -> Iterator[str]:
    """Reasons that follow from how text was read, and from what was learned without noise and
    without any bound."""
    if not record["protects_all"]:
        yield "What the policy passes over is learned without noise, so nothing bounds it."
    if record.get("settings", {}).get("precision") == "bfloat16":
        yield "Its steps were computed in bfloat16, in which one text moves what the others add."
    if record["oracle_on_real_text"]:
        yield "A policy read the labels themselves, which the rest of the text does not have."
    if record["rates"]["public"]["how"] == "unknown":
        yield (
            "No label shows a secret, so nothing is known about those that were learned without "
            "noise: label some, or more."
        )


def _reasons_of_a_plan(spent: spending.SpentBudget, *, keeps: bool, trials: int) -> Iterator[str]:
    """Reasons against a promise for each secret (Hush!), which covers only the one training that it
    was planned for."""
    if not keeps:
        yield "Some secrets exceed what the plan promised."
    earlier_runs = [e for e in spent.entries if e.spends_past_plans]
    if any(e.method != odometer_lines.PLAN_METHOD for e in earlier_runs):
        yield ("What earlier models spent was counted for messages, not for each secret.")
    elif earlier_runs:
        yield (
            "What an earlier plan spent was counted for the secrets of that plan, "
            "which may be others."
        )
    if trials > 1:
        yield "Several trainings were compared, but a plan's promise covers only one."


def _reasons_of_noise(
    trained: CertifiableRun, spent: spending.SpentBudget, promise: ComposedPromise, epsilon: float
) -> Iterator[str]:
    """Reasons against a promise with one epsilon and one delta for all."""
    if trained.files_promise.neighbouring_relation == "add_or_remove":
        yield (
            "The exact numbers of messages and people are treated as known, and one point more "
            "changes them: train with --neighbouring replace."
        )
    if math.isinf(epsilon):
        yield "The accountant shows no epsilon."
    relation = trained.files_promise.neighbouring_relation
    noise_end = events.delta_of_noise_end(promise.events, promise.groups, relation, epsilon)
    if noise_end > MOST_OF_NOISE_END * promise.delta:
        yield (
            f"Its noise is so small that where it ends ({events.NOISE_END} standard deviations) "
            "gives a message away more often than delta allows for: train with a smaller epsilon."
        )
    rate_is_known = trained.record["rates"]["public"]["how"] != "unknown"
    if rate_is_known and promise.delta + promise.delta2 >= 1:
        yield from _reasons_for_a_delta_of_one(trained, spent)


def _reasons_for_a_delta_of_one(
    trained: CertifiableRun, spent: spending.SpentBudget
) -> Iterator[str]:
    """Reasons for a delta of one: which runs leave what was learned without noise unbounded."""
    law = odometer_lines.draw_law(trained.record.get("labels"))
    is_of_other_text = any(e.delta2 > 0 for e in spent.runs_on_other_texts)
    is_of_another_law = any(
        e.delta2 > 0 for e in spent.of_another_law(trained.files_promise.screening, law)
    )
    if is_of_other_text:
        yield OTHER_TEXT_REASON
    if is_of_another_law:
        yield (
            "The labels that judged an earlier run on this text were drawn by another law than "
            "those that judged this run, or another one, so their rates do not add up: judge all "
            f"by labels from one draw; {STRIKE_UNSEEN}"
        )
    smaller = spent.of_smaller_points(trained.files_promise.unit, trained.files_promise.holds)
    is_of_smaller_points = any(e.delta2 > 0 and e not in spent.runs_on_other_texts for e in smaller)
    if is_of_smaller_points:
        yield (
            "The rates of an earlier run on this text are for smaller data points, such as "
            "messages where these are conversations: of the messages that say a secret, one may "
            "have been learned without noise, whoever said it, so those rates bound nothing here. "
            "Train with that unit, or leave nothing without noise there (--conservative "
            f"everything, or dpsgd); {STRIKE_UNSEEN}"
        )
    if not (is_of_other_text or is_of_another_law or is_of_smaller_points):
        yield "Delta is 1: nothing bounds what this run, or one before it, learned without noise."
