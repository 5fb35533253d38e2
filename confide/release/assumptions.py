"""What a certificate assumes about outside models, earlier models and texts, and labels.

The sentence of each is one clause of the certificate's JSON, and so appears in every line and on
every page that states what it promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confide import spending
from confide.assumption_sentences import Assumption, read_assumption
from confide.odometer_lines import OdometerEntry
from confide.release.source_fold import FilesPromise
from crtlib.screening.policy_names import is_builtin


def assume_of_models_from_outside(fold: FilesPromise) -> list[Assumption]:
    """What is assumed about an outside model that was trained on with noise: that no text in a
    batch affects what another text adds (:func:`crtlib.training.probe.refuse_mixing` tests it)."""
    if not (fold.events or fold.plan):
        return []
    bases = [assumption for assumption in fold.assumed if assumption.kind == "base_unread"]
    return [Assumption("reads_alone", base.subject) for base in bases]


def assume_of_earlier_models(spent: spending.SpentBudget, corpus: str) -> list[Assumption]:
    """What is assumed about the earlier models that the promise covers. An assumption that this
    model makes too is repeated, since another file or model may have had the same name.

    Guarantee:
        A promise of several models together rests on the conditions of each. Test:
        ``tests/release/test_earlier_runs.py::test_the_conditions_of_earlier_runs_are_conditions_of_all``.
    """
    return list(dict.fromkeys(
        read_assumption(sentence).of_earlier_model(same_text=entry.corpus == corpus)
        for entry in spent.private
        for sentence in entry.assumed
    ))  # fmt: skip


def assume_of_earlier_texts(entries: Iterable[OdometerEntry], corpus: str) -> list[Assumption]:
    """What a promise for the text with the hash ``corpus`` assumes if it also covers the runs of
    these ``entries``: that each message of this text was one message of any other. One that
    occurred several times in another text was several messages there.

    Guarantee:
        The certificate, its page, ``guarantee.txt``, the model's card and the last line of
        ``train`` state it. Test: ``tests/release/test_what_is_assumed.py::
        test_every_word_of_a_promise_with_earlier_texts_carries_its_condition``.
    """
    covers_another_text = any(entry.corpus != corpus for entry in entries)
    return [Assumption("one_message")] if covers_another_text else []


def assume_of_labels(record: Mapping[str, Any]) -> list[Assumption]:
    """What the bounds of the rates in a ``record`` assume about the labels that were counted and
    the policies that they judged. A policy is recognized by the files of its own package, not by
    whatever else it is made of
    (:func:`crtlib.screening.policy_digests.check_policy_files_known`)."""
    assumed = []
    labels = record["labels"] or {}
    labels_are_given = labels.get("drawn") == "given"
    if labels_are_given:
        assumed.append(Assumption("labels_given"))
    if "again" in record["rates"]["trace"]:
        assumed.append(Assumption("two_readers"))
    if not labels_are_given:
        parts = [part for row in record["policies"].values() for part in row["name"].split("+")]
        packages = dict.fromkeys(part for part in parts if not is_builtin(part))
        assumed += [Assumption("package_unchanged", policy) for policy in packages]
    return assumed


def state_assumptions(assumed: Iterable[Assumption]) -> list[str]:
    """The sentences of assumptions, as a certificate lists them: each once, since two models may
    assume the same."""
    return list(dict.fromkeys(assumption.sentence() for assumption in assumed))
