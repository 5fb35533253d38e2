"""A detector's card: how often it is wrong on labelled text, by what a secret is; a page, a badge
and JSON, without a word of the text.

>>> 'width="' in badge("presidio", "at most 7.1 %")
True
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from crtlib import outputs
from crtlib.checks import check
from crtlib.files import Named
from crtlib.reports import pages
from crtlib.screening import corpus as screening
from crtlib.screening import rates
from crtlib.screening.by_name import digest, plain, policy_by_name
from crtlib.screening.policies import union
from crtlib.screening.policy import Policy
from crtlib.text import screened

FILES = ("card.html", "card.json", "badge.svg")
LEAST = 5
"""People with a secret of a group; of fewer nothing is shown."""
THRESHOLDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)


def make(
    corpus: Named,
    policy: str,
    out: Named,
    *,
    labels: Named,
    wanted: float | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Judge a policy as pi and as its own pi_c on the judging part of ``labels``, and write its
    card into the folder ``out``; what it says, as ``card.json`` does.

    ``wanted``: also the largest threshold of the taggers in ``policy`` at which the trace rate is
    bounded by it. They are tried from the smallest on until one fails, so that its bound needs no
    charge for the others; it holds for itself. Raises ``ValueError`` where the labels may not judge
    the policy, and for ``wanted`` without a tagger.
    """
    if wanted is not None:
        check("wanted", wanted, 0 < wanted < 1, "in (0, 1)")
    recipe: dict[str, Any] = {"command": "card", "inputs": {"corpus": corpus, "labels": labels}}
    recipe["key"] = screened.KEY  # what is shown holds no hash of a text or a list
    recipe["options"] = {"policy": plain(policy), "sha256": digest(policy), "wanted": wanted}

    def judged(pi: Policy) -> tuple[rates.Counter, dict[str, Any]]:
        return screening.judge(corpus, labels, screening.Pair((pi, pi), (policy, policy)))

    with outputs.staged(out, **recipe, public=FILES, force=force) as part:
        counter, about = judged(policy_by_name(policy))
        found = counter.rates(judged=about["judged"])
        groups = {
            trait: {name: some for name, some in counter.by(trait, judged=about["judged"]).items()
                    if some["trace"].of >= LEAST}
            for trait in rates.TRAITS
        }  # fmt: skip
        by = {
            trait: {name: {n: rate.to_json() for n, rate in some.items()}
                    for name, some in rows.items()}
            for trait, rows in groups.items()
        }  # fmt: skip
        facts: dict[str, Any] = {"schema": "crtlib/card/1", "policy": plain(policy)}
        facts |= {"rates": found.to_json() | {"by_kind": {}}, "by": by}
        facts |= {"labels": found.labels_json() | {"drawn": about["drawn"]}}
        if wanted is not None:
            facts["threshold"] = {"wanted": wanted, "is": None}
            for threshold, pi in _at_thresholds(policy):
                counter, about = judged(pi)
                if counter.rates(judged=about["judged"]).trace.upper > wanted:
                    break
                facts["threshold"]["is"] = threshold
        (part / "card.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        said = f"traces {str(found.trace).rpartition(', ')[2]}"
        (part / "badge.svg").write_text(badge(facts["policy"], said), encoding="utf-8")
        page = pages.page("card.html.j2", f=facts, found=found, groups=groups, least=LEAST)
        (part / "card.html").write_text(page, encoding="utf-8")
    return facts


def _at_thresholds(policy: str) -> list[tuple[float, Policy]]:
    """The policy with other thresholds of its taggers, each of which reads a text once."""
    from crtlib.screening import tagger

    taggers, others = [], []
    for part in policy.split("+"):
        kind, _, folder = part.partition(":")
        if kind == "tagger":
            taggers.append(replace(tagger.load(folder), known={}))
        else:
            others.append(policy_by_name(part))
    if not taggers:
        raise ValueError(f"--wanted: policy={plain(policy)!r}: holds no tagger:FOLDER")
    return [
        (t, union(*(tagger.redacting(replace(x, threshold=t)) for x in taggers), *others))
        for t in THRESHOLDS
    ]


def badge(name: str, said: str) -> str:
    """An SVG of two fields, for the page of a repository."""
    wide = [7 * len(text) + 14 for text in (name, said)]
    return pages.page("badge.svg.j2", name=name, said=said, wide=wide)


def text(facts: dict[str, Any]) -> str:
    """What ``crtlib card`` prints."""
    lines = [rates.from_json(facts["rates"], judged=facts["labels"]["judged"]).table()]
    if at := facts.get("threshold"):
        found = "none that was tried" if at["is"] is None else f"{at['is']:g} at most"
        lines.append(f"threshold for a trace rate of {100 * at['wanted']:g} %: {found}")
    return "\n".join(lines)
