"""The one place that knows all policies by name.

>>> policy_by_name("everything").name
'everything'
>>> policy_by_name("regex:multiwoz+everything").name
'regex:multiwoz+everything'
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from crtlib.plugins import load_plugin
from crtlib.screening.cautious import cautious_policy
from crtlib.screening.expression_files import regex_policy
from crtlib.screening.listed_names import names_policy
from crtlib.screening.policy import Policy, as_policy
from crtlib.screening.policy_changes import union_policy, whole_turns_policy
from crtlib.screening.policy_registry import REGISTERED_MAKERS, PolicyMaker
from crtlib.screening.presidio import SPACY_MODELS, presidio_policy
from crtlib.screening.redaction import Spans
from crtlib.screening.regex_policies import (
    REGEX_CORPORA,
    everything_policy,
    none_policy,
    oracle_policy,
)
from crtlib.screening.value_lists import LIST_SUFFIXES, list_policy
from crtlib.text import screened_folder
from crtlib.text.records import Point, Secret

POLICY_ENTRY_POINTS = "crtlib.policies"
"""The entry point group through which an installed package adds policies."""

TAGGER_KINDS = ("tagger", "tagger_conservative")
"""The kinds of policies that state themselves what taught them."""


# --------------------------------------------------------------------------- of a screened folder
def screened_folder_policy(folder: str) -> Policy:
    """A policy that flags the private points of a screened folder: as pi_c there, it keeps the
    folder's split.

    The rows of the folder are read as dialogues of one turn, each with the id of its row. Where
    people are the unit, a point is recognised by its user."""
    is_by_user = screened_folder.read_screening_summary(folder)["unit"] == "user"
    private = frozenset(
        row["user" if is_by_user else "id"]
        for row in screened_folder.read_screened_rows(folder, "private")
    )

    def flag_private(p: Point) -> Spans:
        is_private = (p.user if is_by_user else p.dialogue_id) in private
        return (Secret("private", 0, len(p.text)),) if is_private else ()

    return Policy(f"screened:{Path(folder).name}", partial(map, flag_private), reads_ids=True)


# --------------------------------------------------------------------------- by name
def _make_tagger_policy(folder: str) -> Policy:
    from crtlib.screening import tagger  # needs torch, as do the three below

    return tagger.load_tagger_policy(folder)


def _make_conservative_tagger_policy(folder: str) -> Policy:
    from crtlib.screening import tagger

    return tagger.load_conservative_tagger_policy(folder)


def _make_ner_policy(model: str) -> Policy:
    from crtlib.screening import ner

    return ner.ner_policy(model)


def _make_conservative_ner_policy(model: str) -> Policy:
    from crtlib.screening import ner

    return ner.conservative_ner_policy(model)


BUILTIN_MAKERS = {
    maker.name: maker
    for maker in (
        PolicyMaker("oracle", "", lambda _: oracle_policy),
        PolicyMaker("none", "", lambda _: none_policy),
        PolicyMaker("everything", "", lambda _: everything_policy),
        PolicyMaker("whole_turns", "", lambda _: whole_turns_policy(none_policy)),
        PolicyMaker("regex", ":CORPUS or :FILE.toml", regex_policy),
        PolicyMaker("list", ":FILE", list_policy),
        PolicyMaker("cautious", "[:WORDS]", cautious_policy),
        PolicyMaker("names", "", lambda _: names_policy),
        PolicyMaker("screened", ":FOLDER", screened_folder_policy),
        PolicyMaker("tagger", ":FOLDER", _make_tagger_policy, learned=True),
        PolicyMaker(
            "tagger_conservative", ":FOLDER", _make_conservative_tagger_policy, learned=True
        ),
        PolicyMaker("ner", ":MODEL", _make_ner_policy, learned=True),
        PolicyMaker("ner_conservative", ":MODEL", _make_conservative_ner_policy, learned=True),
        PolicyMaker("presidio", "[:SPACY_MODEL]", presidio_policy, learned=True),
    )
}
"""The policies that the library itself makes, by name; no other package can take these names."""


def available_policies() -> dict[str, str]:
    """Each available policy's name and what follows it: of our own policies, of registered ones,
    and of those from installed packages.

    >>> available_policies()["list"]
    ':FILE'
    """
    names = {e.name: "[:...]" for e in entry_points(group=POLICY_ENTRY_POINTS)}
    names |= {m.name: m.takes for m in REGISTERED_MAKERS.values()}
    return names | {name: maker.takes for name, maker in BUILTIN_MAKERS.items()}


def policy_by_name(name: str, corpus: str | None = None) -> Policy:
    """The policy called ``name``: parts joined by ``+``, each one of ``available_policies()``.

    ``regex:CORPUS`` looks for the shapes of that corpus' secrets. Policies whose names end in
    ``_conservative`` also flag words whose score for plain text is under 0.9 (CRT, A.4). A ``+``
    inside a path is written ``%2B``, and a ``%`` is written ``%25``. The part ``whole_turns``
    flags nothing itself; it extends what the other parts flag
    (:func:`crtlib.screening.policy_changes.whole_turns_policy`).

    Args:
        name: As written on a command line.
        corpus: The corpus whose shapes ``regex`` looks for if it names none.

    Returns:
        The policy, named after its parts.

    Raises:
        ValueError: In one line that states what is allowed. Also where a policy that reads labels,
            such as ``oracle``, is joined with others.

    Guarantee:
        It flags whatever any of its parts flags. Test: ``tests/screening/test_own_policies.py::
        test_a_union_flags_what_its_parts_flag_and_has_the_kind_of_the_first``.
    """
    parts = list(parse_policy_name(name))
    whole_turns = ("whole_turns", "")
    policies = [_make_part(*part, name, corpus) for part in parts if part != whole_turns]
    if len(policies) > 1 and any(policy.reads_labels for policy in policies):
        raise ValueError(
            f"policy={name!r}: a policy that reads labels finds all that they mark, so others add "
            "nothing to it; must be oracle alone, or with whole_turns"
        )
    joined = policies[0] if len(policies) == 1 else union_policy(*policies or [none_policy])
    return whole_turns_policy(joined) if whole_turns in parts else joined


def conservative_policy_by_name(name: str, corpus: str | None = None) -> Policy:
    """The conservative policy, by :func:`policy_by_name`; errors name the option of that policy."""
    try:
        return policy_by_name(name, corpus)
    except ValueError as error:
        message = str(error)
        if type(error) is not ValueError or not message.startswith("policy="):
            raise
        raise ValueError(f"conservative={message.removeprefix('policy=')}") from None


def parse_policy_name(name: str) -> Iterator[tuple[str, str]]:
    """The kind and the argument of each part of a policy's name, with ``%2B`` and ``%25`` decoded.

    >>> list(parse_policy_name("cautious+list:a%2Bb.csv"))
    [('cautious', ''), ('list', 'a+b.csv')]
    """
    for part in name.split("+"):
        kind, _, written = part.partition(":")
        argument = written.replace("%2B", "+").replace("%25", "%")
        yield kind, argument


def _make_part(kind: str, argument: str, name: str, corpus: str | None) -> Policy:
    if kind == "regex" and not argument:
        if corpus is None:
            raise ValueError(
                f"policy={name!r}: regex needs a corpus or a file; "
                "regex:customersim or regex:FILE.toml"
            )
        argument = corpus
    maker = find_maker(kind)
    if maker is None:
        allowed = ", ".join(f"{kind}{takes}" for kind, takes in available_policies().items())
        suggestion = _guess_meant_name(kind, argument, name)
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        raise ValueError(f"policy={name!r}: must be one of {allowed}, joined by +{hint}")
    if argument and not maker.takes:
        raise ValueError(f"policy={name!r}: {kind} takes nothing after it; must be {kind} alone")
    if not argument and maker.takes[:1] == ":":
        raise ValueError(f"policy={name!r}: must name what it reads; {kind}{maker.takes}")
    try:
        return as_policy(maker.make(argument))
    except ValueError as error:
        if type(error) is not ValueError or str(error).startswith("policy="):
            raise
        raise ValueError(f"policy={name!r}: {error}") from None


def _guess_meant_name(kind: str, argument: str, name: str) -> str:
    """The name that was probably meant by an unknown one: its parts were separated by commas, or it
    is a file or folder without its kind, or its kind is similar to a known one. Empty where no name
    is similar."""
    names, path = available_policies(), Path(name)
    if "," in name and all(part.partition(":")[0].strip() in names for part in name.split(",")):
        return "+".join(part.strip() for part in name.split(","))
    if path.suffix == ".toml" and path.is_file():
        return f"regex:{name}"
    if path.suffix in LIST_SUFFIXES and path.is_file():
        return f"list:{name}"
    if (path / "tagger.json").is_file():
        return f"tagger:{name}"
    similar_names = difflib.get_close_matches(kind, names, 1)
    if similar_names and argument:
        return f"{similar_names[0]}:{argument}"
    return "".join(similar_names)


def find_maker(kind: str) -> PolicyMaker | None:
    """What makes policies of a kind; that of an installed package is loaded first."""
    if kind in BUILTIN_MAKERS:
        return BUILTIN_MAKERS[kind]
    for entry in entry_points(group=POLICY_ENTRY_POINTS, name=kind):
        if kind not in REGISTERED_MAKERS:
            announced = PolicyMaker(kind, "[:...]", load_plugin(entry))
            REGISTERED_MAKERS.setdefault(kind, announced)  # unless loading it registered its own
    return REGISTERED_MAKERS.get(kind)


def is_learned(name: str) -> bool:
    """Whether a part of ``name`` was taught from labels, so that only other labels may judge it.

    >>> is_learned("regex:multiwoz+cautious"), is_learned("tagger")
    (False, True)
    """
    for kind, argument in parse_policy_name(name):
        if kind == "screened" and argument:  # learned if a policy that screened it is
            summary = screened_folder.read_screening_summary(argument)
            if is_learned(summary["policy"]) or is_learned(summary["conservative"]):
                return True
        maker = find_maker(kind)
        if maker is not None and maker.learned:
            return True
    return False


def is_builtin(part: str) -> bool:
    """Whether a part of a policy's name is this library's own rather than another package's."""
    return part.partition(":")[0] in BUILTIN_MAKERS


def user_supplied_parts(name: str) -> tuple[str, ...]:
    """The parts of ``name`` that depend on what their user supplied: a file or folder, a model, or
    code of another package. They are shown as by :func:`strip_paths`.

    Nothing here can tell whether what was supplied was made from the text to be screened; if so,
    one message may decide how others are read. What comes with this library was not made from that
    text, and a tagger states itself what taught it.

    >>> user_supplied_parts("list:/home/ann/names.txt+regex:customersim+cautious+tagger:T")
    ('list:names.txt',)
    """
    shipped = {"regex": REGEX_CORPORA, "presidio": SPACY_MODELS}
    return tuple(
        dict.fromkeys(
            strip_paths(part)
            for part in name.split("+")
            for kind, argument in parse_policy_name(part)
            if kind not in TAGGER_KINDS
            and (kind not in BUILTIN_MAKERS or (argument and argument not in shipped.get(kind, ())))
        )
    )


def strip_paths(name: str) -> str:
    """``name`` without the folders of its files, so that it may be shown.

    >>> strip_paths("list:/home/ann/customers.csv+cautious")
    'list:customers.csv+cautious'
    """
    split = [part.partition(":") for part in name.split("+")]
    return "+".join(kind + sign + argument.rpartition("/")[2] for kind, sign, argument in split)


def is_from_file(part: str) -> bool:
    """Whether a part of a policy comes from somebody's own file, folder or code, which does not
    state what taught it. A tagger does state that."""
    ((kind, argument),) = parse_policy_name(part)
    reads_file = bool(argument) and Path(argument).exists()
    return kind not in TAGGER_KINDS and (reads_file or kind not in BUILTIN_MAKERS)
