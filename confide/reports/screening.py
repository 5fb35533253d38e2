"""Pages of screening: of a screened folder, and of a detector's errors.

A screened folder and its page: how often the policies are wrong, and what would be public.

The page is public and holds no text, only counts; what ``reveal`` shows is a private page.

>>> import pathlib, tempfile
>>> from crtlib.text import customersim, records
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> records.write_jsonl(customersim.simulate(30, 0), home / "c.jsonl")
>>> outcome = make(home / "c.jsonl", home / "s", How("regex:customersim"), reveal=1)
>>> print(text(outcome).splitlines()[0])
turns 252 · duplicates 115 · private 252 · public 0 (0.0 %)
>>> sorted(p.name for p in (home / "s").iterdir())
['crtlib.json', 'private', 'public', 'screening.html', 'summary.json']
>>> make(home / "c.jsonl", home / "s", How("regex:customersim"), reveal=1) is None
True

A detector's card: how often it is wrong on labelled text, by what a secret is; a page, a badge
and JSON, without a word of the text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from confide.reports import pages
from confide.screening import corpus as screening
from confide.screening.corpus import How, Outcome, fitting
from crtlib import outputs
from crtlib.files import Named
from crtlib.screening import rates
from crtlib.screening.policies import digest, plain, policy_by_name
from crtlib.text import folders

PUBLIC = ("summary.json", "screening.html", "public/*")
LEAST = 5
"""A count below it is not shown on the page."""


def make(
    corpus: Named,
    out: Named,
    how: How | None = None,
    *,
    labels: Named | None = None,
    reveal: int = 0,
    force: bool = False,
    executor: Executor | None = None,
    progress: bool = False,
    **names: Any,
) -> Outcome | None:
    """Screen a corpus into the folder ``out``; None where it is there already, made of the same.

    ``how`` may be given by the ``names`` of its fields; the policy is then the corpus' own if it
    is not among them.

    The parts that may be shown are ``summary.json``, ``screening.html`` and ``public/``, all else
    is private. ``labels``: a folder of ``crtlib label``, whose judging part judges the policies.
    ``reveal``: examples of each kind, in clear, in ``private/examples.html``. What the policies
    flag is kept beside ``out`` until all is done (:mod:`crtlib.text.folders`): what is killed
    goes on. Raises ``ValueError`` for what does not fit; then nothing is written.
    """
    if folders.is_screened(corpus):
        raise ValueError(f"{corpus}: is screened already")
    how = how or How(**{"policy": names.get("policy") or fitting(corpus), **names})
    how.pair()  # a policy that is none is said before anything is read
    inputs = {"corpus": corpus} | ({"labels": labels} if labels else {})
    recipe: dict[str, Any] = {"command": "screen", "inputs": inputs, "key": folders.KEY,
                              "options": how.recorded() | {"reveal": reveal}}  # fmt: skip
    if outputs.up_to_date(out, **recipe):
        return None
    flagged = {"corpus": outputs.content(corpus), **how.recorded()}
    with (
        outputs.staged(out, **recipe, public=PUBLIC, force=force) as part,
        folders.beside(out, flagged) as kept,
    ):
        key = outputs.key_in(part / folders.KEY)
        outcome = screening.screen(
            corpus,
            part,
            how,
            key=None if how.keep_ids else key,
            judges=labels,
            reveal=reveal,
            executor=executor,
            shards=kept,
            progress=progress,
        )
        shown = replace(outcome, summary=outputs.keyed(outcome.summary, key))
        for name, facts in (
            ("private/", outcome.summary | outcome.private),
            ("", shown.summary),
        ):
            text = json.dumps(facts, indent=1) + "\n"
            (part / f"{name}summary.json").write_text(text, encoding="utf-8")
        (part / "screening.html").write_text(page(shown), encoding="utf-8")
        if reveal:
            clear = pages.page("examples.html.j2", examples=outcome.examples)
            (part / "private" / "examples.html").write_text(clear, encoding="utf-8")
    return shown


def page(outcome: Outcome) -> str:
    """The public page."""
    return pages.page(
        "screening.html.j2", s=outcome.summary, found=outcome.rates, notes=outcome.notes,
        names=rates.NAMES, least=LEAST,
    )  # fmt: skip


def text(outcome: Outcome, notes: Sequence[str] = ()) -> str:
    """What ``crtlib screen`` prints."""
    s = outcome.summary
    points = "turns" if s["unit"] == "turn" else f"{s['unit']}s"
    gone = s["copies_left_out"]
    left_out = f" ({gone:,} of public {points} left out)" if gone else ""
    lines = [
        f"{points} {s['points']:,} · duplicates {s['duplicates']:,}{left_out} · "
        f"private {s['private']:,} · public {s['public']:,} ({100 * s['public_share']:.1f} %)",
        outcome.rates.table(),
    ]
    if len(outcome.rates.by_kind) > 1:
        lines += ["by kind (each bound for itself)"]
        lines += [
            f"  {kind:<20} miss {some['miss']} · trace {some['trace'].count} of {some['trace'].of}"
            for kind, some in outcome.rates.by_kind.items()
        ]
    return "\n".join([*lines, *(f"note: {note}" for note in (*outcome.notes, *notes))])


FILES = ("card.html", "card.json", "badge.svg")
LEAST_PEOPLE = 5
"""People with a secret of a group; of fewer nothing is shown."""


def card(
    corpus: Named,
    policy: str,
    out: Named,
    *,
    labels: Named,
    force: bool = False,
) -> dict[str, Any]:
    """Judge a policy as pi and as its own pi_c on the judging part of ``labels``, and write its
    card into the folder ``out``; what it says, as ``card.json`` does. Raises ``ValueError`` where
    the labels may not judge the policy.
    """
    recipe: dict[str, Any] = {"command": "card", "inputs": {"corpus": corpus, "labels": labels}}
    recipe["key"] = folders.KEY  # what is shown holds no hash of a text or a list
    recipe["options"] = {"policy": plain(policy), "sha256": digest(policy)}
    with outputs.staged(out, **recipe, public=FILES, force=force) as part:
        pi = policy_by_name(policy)
        pair = screening.Pair((pi, pi), (policy, policy))
        texts = screening.count_texts(corpus, pair.unit)
        counter, about = screening.judge(corpus, labels, pair, texts=texts)
        found = counter.rates(judged=about["judged"])
        groups = {
            trait: {name: some for name, some in counter.by(trait, judged=about["judged"]).items()
                    if some["trace"].of >= LEAST_PEOPLE}
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
        facts["labels"] |= {"unread": about["unread"]} if "unread" in about else {}
        (part / "card.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        said = f"traces {str(found.trace).rpartition(', ')[2]}"
        wide = [7 * len(text) + 14 for text in (facts["policy"], said)]
        badge = pages.page("badge.svg.j2", name=facts["policy"], said=said, wide=wide)
        (part / "badge.svg").write_text(badge, encoding="utf-8")
        page = pages.page("card.html.j2", f=facts, found=found, groups=groups, least=LEAST_PEOPLE)
        (part / "card.html").write_text(page, encoding="utf-8")
    return facts


def card_text(facts: dict[str, Any]) -> str:
    """What ``crtlib card`` prints."""
    return rates.from_json(facts["rates"], judged=facts["labels"]["judged"]).table()
