"""Profiles and parameters: what a notebook may be asked, and what is allowed.

A profile (``notebooks/profiles/*.yml``) changes sizes, never the method. A notebook's parameters
are the keys of its section; whatever is left ``None`` comes from the profile.

>>> settings = parameters({"profile": "quick", "gammas": "[0.05]"}, "amplification")
>>> settings.gammas, settings.delta
([0.05], 8e-05)
>>> parameters({"gammas": [7]}, "amplification")
Traceback (most recent call last):
...
crtlib.experiments.settings.ParameterError: gammas=[7]: must be a list of numbers in [0, 1]
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from types import SimpleNamespace

# Beside the package: the library is installed from a checkout (pip install -e).
FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "profiles"
METHODS = ("sgd", "dedup", "dpsgd", "selective", "crt", "crt_sigma0")
MODELS = ("lstm", "gpt2")
CORPORA = ("customersim", "schema_guided", "multiwoz", "wikitext2")


class ParameterError(ValueError):
    """A user's mistake; a notebook shows it as one line instead of a traceback."""

    def _render_traceback_(self) -> list[str]:  # read by IPython
        return [f"parameter refused: {self}"]


def _number(low: float, high: float, *, open_ends: bool = False) -> Callable[[object], bool]:
    def test(v: object) -> bool:
        if not isinstance(v, Real) or isinstance(v, bool):
            return False
        return low < v < high if open_ends else low <= v <= high

    return test


def _whole(low: int, high: int) -> Callable[[object], bool]:
    return lambda v: isinstance(v, Integral) and not isinstance(v, bool) and low <= int(v) <= high


def _some(test: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda v: isinstance(v, list | tuple) and len(v) > 0 and all(map(test, v))


def _one_of(*allowed: str) -> tuple[Callable[[object], bool], str]:
    return (lambda v: v in allowed, "one of " + ", ".join(allowed))


def _policy(v: object) -> bool:
    named = ("regex", "oracle", "everything", "tagger", "presidio")
    kinds = [k + end for k in ("tagger", "ner", "flair") for end in (":", "_conservative:")]
    kinds.append("regex:")
    return isinstance(v, str) and (v in named or v.startswith(tuple(kinds)))


POLICIES = (
    "one of regex, oracle, everything, tagger, presidio, regex:CORPUS, tagger:FOLDER, ner:NAME, "
    "flair:NAME (or tagger_conservative:FOLDER, ...)"
)
_unit, _positive = _number(0, 1), _number(0, float("inf"), open_ends=True)
ALLOWED: dict[str, tuple[Callable[[object], bool], str]] = {
    "gamma": (_unit, "a number in [0, 1]"),
    "gammas": (_some(_unit), "a list of numbers in [0, 1]"),
    "ablation_gammas": (_some(_unit), "a list of numbers in [0, 1]"),
    "delta": (_number(0, 1, open_ends=True), "a number in (0, 1)"),
    "epsilon": (_positive, "a positive number"),
    "epsilons": (_some(_positive), "a list of positive numbers"),
    "seed": (_whole(0, 2**31), "a whole number of at least 0"),
    "seeds": (_whole(1, 1000), "a whole number of at least 1: how many seeds"),
    "choice_seeds": (_whole(1, 1000), "a whole number of at least 1: how many seeds"),
    "public_trials": (_whole(1, 1000), "a whole number of at least 1"),
    "trials": (_whole(1, 10**6), "a whole number of at least 1"),
    "dialogues": (_whole(10, 10**7), "a whole number of at least 10"),
    "workers": (_whole(1, 1024), "a whole number of at least 1"),
    "epochs": (_whole(1, 10**5), "a whole number of at least 1"),
    "method": _one_of(*METHODS),
    "model": _one_of(*MODELS),
    "methods": (_some(lambda v: v in METHODS), "a list of some of " + ", ".join(METHODS)),
    "ablations": (
        lambda v: isinstance(v, list) and set(v) <= set(METHODS),
        "a list, perhaps empty, of some of " + ", ".join(METHODS),
    ),
    "models": (_some(lambda v: v in MODELS), "a list of some of " + ", ".join(MODELS)),
    "accountant": _one_of("pld", "rdp", "prv", "autodp"),
    "neighbouring_relation": _one_of("add_or_remove", "replace"),
    "unit": _one_of("turn", "dialogue"),
    "variety": _one_of("paper", "rich"),
    "heldout": (_whole(1, 10**7), "a whole number of at least 1"),
    "canaries": (_whole(0, 10**6), "a whole number of at least 0"),
    "copies": (_whole(0, 10**6), "a whole number of at least 0"),
    "bots": (_whole(0, 10**6), "a whole number of at least 0"),
    "min_users": (_whole(1, 10**9), "a whole number of at least 1"),
    "threshold": (_positive, "a positive number"),
    "thresholds": (_some(_positive), "a list of positive numbers"),
    "prior": (_number(0, 1, open_ends=True), "a number in (0, 1)"),
    "posterior": (_number(0, 1, open_ends=True), "a number in (0, 1)"),
    "policy": (_policy, POLICIES),
    "conservative": (_policy, POLICIES),
    "labelled": (_whole(0, 10**7), "a whole number of at least 0"),
    "init_epochs": (_whole(0, 10**5), "a whole number of at least 0"),
    "corpora": (_some(lambda v: v in CORPORA), "a list of some of " + ", ".join(CORPORA)),
    "texts": (
        _some(lambda v: v in CORPORA or (isinstance(v, str) and v.startswith("hub:"))),
        "a list of some of " + ", ".join(CORPORA) + ", hub:OWNER/NAME",
    ),
    "per": _one_of("occurrence", "value"),
    "dedup": _one_of("all", "flagged", "none"),
    "duplicates": _one_of("mask", "drop"),
    "public": _one_of(*CORPORA),
    "public_epochs": (_whole(1, 10**5), "a whole number of at least 1"),
    "device": _one_of("cpu", "cuda"),
    "store": (lambda v: isinstance(v, str) and bool(v), "a folder"),
}


def check(**values: object) -> None:
    """Raise :class:`ParameterError` for the first value outside what its name allows."""
    for name, value in values.items():
        test, allowed = ALLOWED[name]
        if not test(value):
            raise ParameterError(f"{name}={value!r}: must be {allowed}")


def profile_names() -> list[str]:
    """The profiles that exist, smallest first."""
    order = ["quick", "laptop", "paper"]
    names = [p.stem for p in FOLDER.glob("*.yml")]
    return sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n))


def load(profile: str) -> dict:
    """A profile as ``{notebook: {parameter: value}}``."""
    import yaml

    if profile not in profile_names():
        raise ParameterError(f"profile={profile!r}: must be one of {', '.join(profile_names())}")
    return yaml.safe_load((FOLDER / f"{profile}.yml").read_text(encoding="utf-8"))


def parameters(namespace: Mapping[str, object], notebook: str) -> SimpleNamespace:
    """The settings of a notebook: its profile's section with the parameters of ``namespace``.

    ``namespace`` is the notebook's ``globals()`` after its parameters cell. Papermill passes lists
    as strings, so a string is read as JSON where the profile has no string. An unknown name is
    refused: papermill itself would only warn.
    """
    hidden = {"In", "Out", "get_ipython", "exit", "quit", "open"}
    given = {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_")
        and name not in hidden
        and not isinstance(value, types.ModuleType)
        and not callable(value)
        and value is not None
    }
    profile = given.pop("profile", "quick")
    section = load(str(profile)).get(notebook)
    if section is None:
        raise ParameterError(f"notebook={notebook!r}: has no section in profile {profile!r}")
    settings = {"store": "store", "workers": 2, "device": "cpu", **section}
    for name, value in given.items():
        if name not in settings or isinstance(settings[name], dict):
            plain = sorted(k for k, v in settings.items() if not isinstance(v, dict))
            raise ParameterError(f"{name}: unknown; allowed are profile, {', '.join(plain)}")
        if isinstance(value, str) and not isinstance(settings[name], str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError:
                check(**{name: value})
                raise
        settings[name] = value
    check(**{name: value for name, value in settings.items() if name in ALLOWED})
    known = settings.get("data", settings.get("corpora", []))
    if unknown := set(settings.get("corpora", ())) - set(known):
        raise ParameterError(
            f"corpora={sorted(unknown)}: profile {profile!r} has sizes for {', '.join(known)} only"
        )
    return SimpleNamespace(profile=profile, **settings)
