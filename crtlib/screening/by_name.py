"""The one place that knows all policies by name.

>>> policy_by_name("everything").name
'everything'
>>> policy_by_name("regex:multiwoz+everything").name
'regex:multiwoz+everything'
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name

from crtlib.checks import MachineError
from crtlib.screening import policies
from crtlib.screening.policy import MAKERS, Maker, Policy, checked
from crtlib.text import screened, source

GROUP = "crtlib.policies"
"""The entry point group through which an installed package adds policies."""

_HOME = {  # imported when it is asked for: some need torch, or packages that may not be there
    "oracle": ("policies:oracle", ""),
    "none": ("policies:none", ""),
    "everything": ("policies:everything", ""),
    "whole_turns": ("policies:whole_turns", ""),
    "regex": ("policies:either", ":CORPUS or :FILE.toml"),
    "list": ("policies:listed", ":FILE"),
    "cautious": ("policies:cautious", "[:WORDS]"),
    "screened": ("corpus:private_part", ":FOLDER"),
    "tagger": ("tagger:by_folder", ":FOLDER"),
    "tagger_conservative": ("tagger:conservative_by_folder", ":FOLDER"),
    "ner": ("tagger:ner", ":MODEL"),
    "ner_conservative": ("tagger:ner_conservative", ":MODEL"),
    "presidio": ("policies:presidio", "[:SPACY_MODEL]"),
}
_LEARNED = ("tagger", "tagger_conservative", "ner", "ner_conservative", "presidio")


def known() -> dict[str, str]:
    """Each name a policy can have, and what it takes: ours, registered, of installed packages.

    >>> known()["list"]
    ':FILE'
    """
    names = {e.name: "[:...]" for e in entry_points(group=GROUP)}
    names |= {m.name: m.takes for m in MAKERS.values()}
    return names | {name: takes for name, (_, takes) in _HOME.items()}


def policy_by_name(name: str, corpus: str | None = None) -> Policy:
    """The policy called ``name``: parts joined by ``+``, each one of ``known()``.

    ``ValueError`` says in one line what is allowed. ``regex:CORPUS`` looks for the shapes of that
    corpus' secrets, ``regex`` alone for those of ``corpus`` where the caller names one. Names that
    end in ``_conservative`` also flag plain text with a score under 0.9 (A.4). A ``+`` inside a
    path is written ``%2B``, a ``%`` ``%25``. The part ``whole_turns`` is what is done with what the
    others flag (:func:`crtlib.screening.policies.whole_turns`).
    """
    whole = ("whole_turns", "")
    made = [_made(*part, name, corpus) for part in parts(name) if part != whole]
    joined = made[0] if len(made) == 1 else policies.union(*made or [policies.none])
    return policies.whole_turns(joined) if whole in parts(name) else joined


def parts(name: str) -> Iterator[tuple[str, str]]:
    """Of each part its kind and what it takes, as it was before it was written.

    >>> list(parts("cautious+list:a%2Bb.csv"))
    [('cautious', ''), ('list', 'a+b.csv')]
    """
    for part in name.split("+"):
        kind, _, written = part.partition(":")
        argument = written.replace("%2B", "+").replace("%25", "%")
        yield kind, argument


def _made(kind: str, argument: str, name: str, corpus: str | None) -> Policy:
    if kind == "regex" and not argument:
        if corpus is None:
            raise ValueError(
                f"policy={name!r}: regex must say whose; regex:customersim or regex:FILE.toml"
            )
        argument = corpus
    maker = _maker(kind)
    if maker is None or (argument and not maker.takes) or (not argument and maker.takes[:1] == ":"):
        allowed = ", ".join(f"{kind}{takes}" for kind, takes in known().items())
        near = difflib.get_close_matches(kind, known(), 1)
        told = f":{argument}" if argument else ""
        hint = f"; did you mean {near[0]}{told}?" if near and near[0] != kind else ""
        raise ValueError(f"policy={name!r}: must be one of {allowed}, joined by +{hint}")
    return checked(maker.make(argument))


def _maker(kind: str) -> Maker | None:
    if kind in _HOME:
        where, takes = _HOME[kind]
        made = resolve_name(f"crtlib.screening.{where}")
        make = (lambda _: made) if isinstance(made, Policy) else made
        return Maker(kind, takes, make, kind in _LEARNED)
    if kind not in MAKERS:
        for e in entry_points(group=GROUP, name=kind):
            return Maker(kind, "[:...]", e.load())
    return MAKERS.get(kind)


def learned(name: str) -> bool:
    """Whether a part of ``name`` is taught from labels, so that only other labels may judge it.

    >>> learned("regex:multiwoz+cautious"), learned("tagger")
    (False, True)
    """
    for kind, argument in parts(name):
        if kind == "screened" and argument:  # as the policies were that screened it
            before = screened.summary(argument)
            if learned(before["policy"]) or learned(before["conservative"]):
                return True
        maker = _maker(kind)
        if maker is not None and maker.learned:
            return True
    return False


def ours(part: str) -> bool:
    """Whether a part of a policy's name is this library's own, and not another package's."""
    return part.partition(":")[0] in _HOME


def plain(name: str) -> str:
    """``name`` without the folders of its files: what may be shown.

    >>> plain("list:/home/ann/customers.csv+cautious")
    'list:customers.csv+cautious'
    """
    split = [part.partition(":") for part in name.split("+")]
    return "+".join(kind + sign + argument.rpartition("/")[2] for kind, sign, argument in split)


def digest(name: str) -> str:
    """SHA-256 of a policy: of its name, and of what its files and folders hold.

    >>> digest("cautious") == digest("everything")
    False
    """
    hashes = []
    for kind, argument in parts(name):
        path = Path(argument)
        known = bool(argument) and path.exists()  # without one it would be the current folder
        if known:
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        made = "" if kind in _HOME else _code(kind)  # another package's is another in each version
        hashes.append(f"{kind}:{source.digest(files) if known else argument}{made}")
    return hashlib.sha256("+".join(hashes).encode()).hexdigest()


def _code(kind: str) -> str:
    """SHA-256 of all files of the package that makes policies, or of the one file that does."""
    maker = _maker(kind)
    source_file = maker and inspect.getsourcefile(inspect.unwrap(maker.make))
    file = Path(source_file or "nowhere")
    whole = (file.parent / "__init__.py").is_file()
    files = sorted(file.parent.rglob("*")) if whole else [file]
    return source.digest([p for p in files if p.is_file() and "__pycache__" not in p.parts])


def of_a_file(part: str) -> bool:
    """Whether a part of a policy is read from a file or folder of somebody's own, or is his code,
    that does not say what taught it, as a tagger does."""
    ((kind, argument),) = parts(part)
    known = kind in ("tagger", "tagger_conservative")
    own = bool(argument) and Path(argument).exists()
    return not known and (own or kind not in _HOME)


def check_same(names: Iterable[str], shas: Iterable[str]) -> None:
    """Raise :class:`MachineError` where a policy's files are not those whose hash was taken: all
    workers must flag alike."""
    for name, sha in zip(names, shas, strict=True):
        if digest(name) != sha:
            raise MachineError(
                f"policy={plain(name)!r}: is another one now, or where a worker reads it; what was "
                "finished is kept: give all workers the same files"
            )
