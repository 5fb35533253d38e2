"""What a certificate assumes about outside models, earlier models and texts, and labels.

Each assumption is one clause of the certificate's JSON, and so appears in every line and on every
page that states what it promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confide import spending
from confide.odometer_lines import OdometerEntry
from confide.release import file_sources
from confide.release.source_fold import FilesPromise
from crtlib.screening.policy_names import is_builtin

ONE_MESSAGE_ASSUMPTION = "a message of this text was one message of each earlier text"
GIVEN_LABELS_ASSUMPTION = (
    "the labels, which were not drawn for this purpose, are representative of the rest"
)
TWO_READERS_ASSUMPTION = (
    "of the secrets on which the search fails, two readers together find at least the share that "
    "either finds of all secrets"
)

PACKAGE_ASSUMPTION = (
    "whatever {policy} depends on outside its own package (what it imports from others, loose "
    "files, what it reads elsewhere) has not changed since the labels were drawn"
)


def assume_of_models_from_outside(fold: FilesPromise) -> list[str]:
    """What is assumed about an outside model that was trained on with noise: that no text in a
    batch affects what another text adds (:func:`crtlib.training.probe.refuse_mixing` tests it)."""
    ending = " had not read this text"
    apart = "apart from the earlier models that are counted, "
    names = [
        said.removesuffix(ending).removeprefix(apart)
        for said in fold.assumed
        if said.endswith(ending)
    ]
    if not (fold.events or fold.plan):
        return []
    return [f"{name} reads each text alone, as was tried on random texts" for name in names]


def assume_of_earlier_models(spent: spending.SpentBudget, corpus: str) -> list[str]:
    """What is assumed about the earlier models that the promise covers. An assumption that this
    model makes too is repeated, since another file or model may have had the same name.

    Guarantee:
        A promise of several models together rests on the conditions of each. Test:
        ``tests/release/test_earlier_runs.py::test_the_conditions_of_earlier_runs_are_conditions_of_all``.
    """
    return list(dict.fromkeys(
        file_sources.assumption_of_earlier(sentence, same_text=e.corpus == corpus)
        for e in spent.private
        for sentence in e.assumed
    ))  # fmt: skip


def assume_of_earlier_texts(entries: Iterable[OdometerEntry], corpus: str) -> list[str]:
    """What a promise for the text with the hash ``corpus`` assumes if it also covers the runs of
    these ``entries``: that each message of this text was one message of any other. One that
    occurred several times in another text was several messages there.

    Guarantee:
        The certificate, its page, ``guarantee.txt``, the model's card and the last line of
        ``train`` state it. Test: ``tests/release/test_what_is_assumed.py::
        test_every_word_of_a_promise_with_earlier_texts_carries_its_condition``.
    """
    return [ONE_MESSAGE_ASSUMPTION] * any(e.corpus != corpus for e in entries)


def assume_of_labels(record: Mapping[str, Any]) -> list[str]:
    """What the bounds of the rates in a ``record`` assume about the labels that were counted and
    the policies that they judged. A policy is recognized by the files of its own package, not by
    whatever else it is made of
    (:func:`crtlib.screening.policy_digests.check_policy_files_known`)."""
    labels = record["labels"] or {}
    given = labels.get("drawn") == "given"
    twice = "again" in record["rates"]["trace"]
    parts = [part for row in record["policies"].values() for part in row["name"].split("+")]
    packages = dict.fromkeys(part for part in parts if not is_builtin(part))
    return [
        *[GIVEN_LABELS_ASSUMPTION] * given,
        *[TWO_READERS_ASSUMPTION] * twice,
        *(PACKAGE_ASSUMPTION.format(policy=part) for part in packages if not given),
    ]
