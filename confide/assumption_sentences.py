"""What a promise assumes: the kind of each assumption, whom it is about, and its sentence.

Certificates and odometer lines hold sentences. Whatever is decided by an assumption is decided by
its kind, so a sentence is made, and is read from a file, by one table, :data:`SENTENCES`.

>>> unread = Assumption("base_unread", "gpt2")
>>> unread.sentence()
'gpt2 had not read this text'
>>> read_assumption(unread.sentence()) == unread
True
>>> unread.of_earlier_model(same_text=False).sentence()
'gpt2, from which an earlier model started, had not read its text'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

AssumptionKind = Literal[
    "base_unread",
    "reads_alone",
    "not_made_from_text",
    "script",
    "nobody_taught",
    "people_taught",
    "one_name",
    "one_message",
    "labels_given",
    "two_readers",
    "package_unchanged",
    "unknown",
]
"""``base_unread``: a model from which training started had not read the text. ``reads_alone``: such
a model lets no text decide what another adds. ``not_made_from_text``: something that the releaser
supplied. ``script``: what took the steps in place of the command. ``nobody_taught``,
``people_taught``: who of the text taught a policy. ``one_name``: each person has one.
``one_message``: a message of this text was not several of an earlier one. ``labels_given``,
``two_readers``: what the labels find. ``package_unchanged``: what a policy imports.
``unknown``: a sentence that this version of crtlib does not write."""

AssumingModel = Literal["this", "earlier_same_text", "earlier_other_text"]
"""Which model assumes it: this one, or an earlier one that the promise covers, by the text that it
was trained on."""

_PEOPLE_TAUGHT = (
    "for the people of TEXT who taught a policy{people} masking one of their secrets would change "
    "no label elsewhere, the policy passes over no larger share of their secrets, and nobody else "
    "of TEXT taught one"
)
_NOBODY_TAUGHT = "nobody of TEXT taught a policy under another name"
_SCRIPT_OF_EARLIER = (
    "{subject}{sha256}, which took the steps of an earlier model, taught it nothing of TEXT beside "
    "them, kept nothing of one text for the loss of another, let no text choose a learning rate, "
    "and did not change how the model reads"
)
_BASE_OF_EARLIER = (
    "{beside_counted}{subject}, from which an earlier model started, had not read TEXT"
)
_BESIDE_COUNTED = "apart from the earlier models that are counted, "

SENTENCES: Mapping[AssumptionKind, Mapping[AssumingModel, str]] = {
    "base_unread": {
        "this": "{beside_counted}{subject} had not read this text",
        "earlier_same_text": _BASE_OF_EARLIER.replace("TEXT", "this text"),
        "earlier_other_text": _BASE_OF_EARLIER.replace("TEXT", "its text"),
    },
    "reads_alone": {"this": "{subject} reads each text alone, as was tried on random texts"},
    "not_made_from_text": {
        "this": "{subject} was not made from this text",
        "earlier_same_text": "{subject} was not made from this text, which it screened for an "
        "earlier model",
        "earlier_other_text": "{subject} was not made from the text of an earlier model that it "
        "screened",
    },
    "script": {
        "this": "{subject}{sha256}, which took the steps, taught the model nothing of this text "
        "beside them, kept nothing of one text for the loss of another, let no text choose a "
        "learning rate, and did not change how the model reads",
        "earlier_same_text": _SCRIPT_OF_EARLIER.replace("TEXT", "this text"),
        "earlier_other_text": _SCRIPT_OF_EARLIER.replace("TEXT", "its text"),
    },
    "nobody_taught": {
        "this": _NOBODY_TAUGHT.replace("TEXT", "this text"),
        "earlier_same_text": _NOBODY_TAUGHT.replace("TEXT", "this text") + " (of an earlier model)",
        "earlier_other_text": _NOBODY_TAUGHT.replace("TEXT", "its text") + " (of an earlier model)",
    },
    "people_taught": {
        "this": _PEOPLE_TAUGHT.replace("TEXT", "this text"),
        "earlier_same_text": _PEOPLE_TAUGHT.replace("TEXT", "this text") + " (of an earlier model)",
        "earlier_other_text": _PEOPLE_TAUGHT.replace("TEXT", "its text") + " (of an earlier model)",
    },
    "one_name": {
        "this": "no two names in this text are of one person",
        "earlier_other_text": "no two names in an earlier model's text are of one person",
    },
    "one_message": {"this": "a message of this text was one message of each earlier text"},
    "labels_given": {
        "this": "the labels, which were not drawn for this purpose, are representative of the rest"
    },
    "two_readers": {
        "this": "of the secrets on which the search fails, two readers together find at least the "
        "share that either finds of all secrets"
    },
    "package_unchanged": {
        "this": "whatever {subject} depends on outside its own package (what it imports from "
        "others, loose files, what it reads elsewhere) has not changed since the labels were drawn"
    },
    "unknown": {
        "this": "{subject}",
        "earlier_same_text": "of an earlier model of this text: {subject}",
        "earlier_other_text": "of an earlier model of another text: {subject}",
    },
}
"""The sentence of each kind, by whose it is. A kind without one for an earlier model of the same
text says the same of that as of this model. Whoever rewords a sentence adds the wording that files
already hold to :data:`EARLIER_WORDINGS`."""

_SHA256 = r"(?: \(SHA-256 (?P<sha256>[0-9a-f]{64})\))?"
SLOT_PATTERNS = {
    "subject": "(?P<subject>.+?)",
    "beside_counted": f"(?P<beside_counted>{re.escape(_BESIDE_COUNTED)})?",
    "sha256": _SHA256,
    "people": r"(?:, at most (?P<people>[\d,]+),)?",
}
"""What may stand in each slot of a sentence."""
EARLIER_WORDINGS: tuple[tuple[AssumptionKind, AssumingModel, str], ...] = (
    (
        "people_taught",
        "earlier_other_text",
        r"for the (?:(?P<people>[\d,]+) )?people of .* taught a policy .* \(of an earlier model\)",
    ),
    (
        "people_taught",
        "this",
        r"for the (?:(?P<people>[\d,]+) )?people of this text who taught a policy .*",
    ),
    (
        "script",
        "this",
        rf"(?P<subject>.+?){_SHA256}, which took the steps, taught the model nothing of this text "
        r"beside them(?:, (?:and )?kept nothing of one text for the loss of another"
        r"(?:, and let no text choose a learning rate)?)?",
    ),
)
"""Regular expressions of sentences that crtlib wrote until November 2026: a count of all who taught
a policy, and scripts of which less was assumed."""


@dataclass(frozen=True)
class Assumption:
    """One condition of a promise, which is void if it is false.

    ``subject`` names what it is about: a model, a file, a script or a policy. A script has the hash
    of its file, ``sha256``. ``people``: how many people taught a policy at most; None if unknown.
    ``beside_counted``: the model started from others, which are counted and not assumed."""

    kind: AssumptionKind
    subject: str = ""
    sha256: str = ""
    people: int | None = None
    beside_counted: bool = False
    model: AssumingModel = "this"

    def sentence(self) -> str:
        """The assumption as certificates, cards and odometer lines state it."""
        wordings = SENTENCES[self.kind]
        return wordings.get(self.model, wordings["this"]).format(
            subject=self.subject,
            beside_counted=_BESIDE_COUNTED if self.beside_counted else "",
            sha256=f" (SHA-256 {self.sha256})" if self.sha256 else "",
            people="" if self.people is None else f", at most {self.people:,},",
        )

    def of_earlier_model(self, *, same_text: bool) -> Assumption:
        """The assumption of an earlier model, for a later one on the ``same_text`` or on
        another."""
        return replace(self, model="earlier_same_text" if same_text else "earlier_other_text")


def read_assumption(sentence: str) -> Assumption:
    """The assumption that a file states in a sentence.

    Guarantee:
        What is decided by an assumption does not depend on how it is worded. Tests:
        ``tests/release/test_assumption_sentences.py::test_rewording_changes_no_decision``,
        ``tests/release/test_assumption_sentences.py::test_what_files_hold_is_read_as_it_was_meant``.

    >>> read_assumption("nobody is mentioned")
    Assumption(kind='unknown', subject='nobody is mentioned', sha256='', people=None, \
beside_counted=False, model='this')
    """
    for kind, model, pattern in (*_current_patterns(), *EARLIER_WORDINGS):
        if match := re.fullmatch(pattern, sentence):
            slots = match.groupdict()
            return Assumption(
                kind,
                slots.get("subject") or "",
                slots.get("sha256") or "",
                int(slots["people"].replace(",", "")) if slots.get("people") else None,
                bool(slots.get("beside_counted")),
                model,
            )
    return Assumption("unknown", sentence)


def _current_patterns() -> Iterator[tuple[AssumptionKind, AssumingModel, str]]:
    """A regular expression of each sentence. Those of earlier models are first: they say more than
    the same one of this model, which a subject could swallow."""
    models: tuple[AssumingModel, ...] = ("earlier_same_text", "earlier_other_text", "this")
    for model in models:
        for kind, wordings in SENTENCES.items():
            if model in wordings and kind != "unknown":
                literal_and_slots = re.split(r"\{(\w+)\}", wordings[model])
                yield (
                    kind,
                    model,
                    "".join(
                        SLOT_PATTERNS[part] if place % 2 else re.escape(part)
                        for place, part in enumerate(literal_and_slots)
                    ),
                )


def states_kind(sentence: str, *kinds: AssumptionKind) -> bool:
    """Whether a sentence states an assumption of one of these kinds, of whichever model."""
    return read_assumption(sentence).kind in kinds


def is_of_earlier_model(sentence: str) -> bool:
    """Whether a sentence states an assumption of an earlier model."""
    return read_assumption(sentence).model != "this"
