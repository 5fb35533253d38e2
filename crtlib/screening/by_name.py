"""The one place that knows all policies by name.

>>> policy_by_name("everything").name
'everything'
"""

from __future__ import annotations

from dataclasses import replace

from crtlib.screening.policies import everything, oracle, regex
from crtlib.screening.policy import Policy, checked
from crtlib.text import units
from crtlib.text.records import Corpus, Secret

POLICIES = {"regex": regex, "oracle": oracle, "everything": everything}
"""The policies that need no folder, package or model."""

_LOADED = {"tagger": "FOLDER", "ner": "NAME", "flair": "NAME"}
NAMES = (
    *POLICIES,
    "regex:CORPUS",
    "presidio",
    *(f"{kind}{c}:{what}" for kind, what in _LOADED.items() for c in ("", "_conservative")),
)
"""What a command line can say; NAME is that of a model on the hub, or its folder."""


def policy_by_name(name: str, corpus: str = "customersim") -> Policy:
    """The policy called ``name``, one of ``NAMES``; ``ValueError`` with what is allowed otherwise.

    "regex:CORPUS" looks for the shapes of that corpus' secrets, "regex" for those of ``corpus``.
    Names that end in ``_conservative`` also flag plain text with a score under 0.9 (A.4).
    """
    kind, _, where = name.partition(":")
    of, careful = kind.removesuffix("_conservative"), kind.endswith("_conservative")
    if kind == "regex":
        return regex(where or corpus)
    if name in POLICIES:
        return POLICIES[name]()
    if name == "presidio":
        from crtlib.screening import detectors

        return checked(detectors.presidio())
    if where and of == "tagger":
        from crtlib.screening import tagger

        made = tagger.load(where)
        return checked(tagger.conservative(made) if careful else tagger.redacting(made))
    if where and of in _LOADED:
        pass

        make = detectors.transformers_ner if of == "ner" else detectors.flair
        return checked(make(where, plain=0.9 if careful else 0.0))
    raise ValueError(f"policy={name!r}: must be one of {', '.join(NAMES)}")


def annotate(corpus: Corpus, policy: Policy) -> Corpus:
    """``corpus`` with the policy's spans, turn by turn, in place of its labels."""
    labels = iter(checked(policy)(units.points(corpus, unit="turn")))
    dialogues = []
    for d in corpus.dialogues:
        turns = []
        for turn in d.turns:
            shift = len(units.prefix(turn))  # the spans are those of the point "USR: text"
            moved = [Secret(s.kind, max(s.start - shift, 0), s.end - shift) for s in next(labels)]
            turns.append(replace(turn, secrets=tuple(s for s in moved if s.end > 0)))
        dialogues.append(replace(d, turns=tuple(turns)))
    return replace(corpus, dialogues=tuple(dialogues))
