"""Write a detector's card: how often it misses on labelled text, by traits of the secret.

The card is a page, a badge and JSON, without a word of the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from confide.labels import label_tasks
from confide.reports import html, small_groups
from confide.screening import dialogue_batches, judged_policies, screening_notes
from crtlib import outputs
from crtlib.files import StrPath
from crtlib.screening.policy_digests import policy_digest
from crtlib.screening.policy_names import policy_by_name, strip_paths
from crtlib.screening.rate_values import rates_from_json
from crtlib.screening.secret_outcomes import SECRET_TRAITS
from crtlib.text import screened_folder

CARD_FILES = ("card.html", "card.json", "badge.svg")
LABEL_FACTS = ("unread", "read_twice", "replaced")
"""Facts about the readings that a card states beside the counts."""


def write_detector_card(
    corpus: StrPath,
    policy: str,
    out: StrPath,
    *,
    labels: StrPath,
    force: bool = False,
) -> dict[str, Any]:
    """Judge a policy, as pi and as its own pi_c, on the judging part of ``labels``, and write its
    card into the folder ``out``. Returns the content of ``card.json``. Raises ``ValueError`` if the
    labels may not judge the policy.
    """
    told = label_tasks.read_label_facts(labels)
    recipe: dict[str, Any] = {"command": "card", "inputs": {"corpus": corpus, "labels": labels}}
    recipe["key"] = screened_folder.KEY_FILE  # so no plain hash of a text or a list is shown
    recipe["options"] = {"policy": strip_paths(policy), "sha256": policy_digest(policy)}
    with outputs.staged_folder(out, **recipe, public=CARD_FILES, force=force) as part:
        pi = policy_by_name(policy)
        pair = judged_policies.PolicyPair((pi, pi), (policy, policy))
        texts = dialogue_batches.count_texts(corpus, pair.unit)
        counter, about = judged_policies.judge_policies(corpus, labels, pair, texts=texts)
        found = counter.rates(policy_pairs=about["judged"])
        groups, by = {}, {}
        for trait in SECRET_TRAITS:
            every = counter.rates_by_trait(trait, policy_pairs=about["judged"])
            rows = {name: {n: rate.to_json() for n, rate in some.items()}
                    for name, some in every.items()}  # fmt: skip
            people = {name: small_groups.count_judged_people(row, about.get("unread", 0))
                      for name, row in rows.items()}  # fmt: skip
            groups[trait] = small_groups.leave_out_small_groups(every, people)
            by[trait] = small_groups.leave_out_small_groups(rows, people)
        facts: dict[str, Any] = {"schema": "crtlib/card/1", "policy": strip_paths(policy)}
        facts |= {"rates": found.to_json() | {"by_kind": {}}, "by": by}
        facts |= {"labels": found.labels_json() | {"drawn": about["drawn"]}}
        facts["labels"] |= {k: about[k] for k in LABEL_FACTS if k in about}
        facts["labels"]["readers"] = sum(role in told for role in label_tasks.READER_ROLES)
        (part / "card.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        said = f"traces {str(found.trace).rpartition(', ')[2]}"
        wide = [7 * len(text) + 14 for text in (facts["policy"], said)]
        readers = describe_readers(facts["labels"])
        badge = html.render_template(
            "badge.svg.j2", name=facts["policy"], said=said, wide=wide, readers=readers
        )
        (part / "badge.svg").write_text(badge, encoding="utf-8")
        page = html.render_template(
            "card.html.j2",
            f=facts,
            found=found,
            groups=groups,
            small=small_groups.SMALL_GROUPS_NOTE.format(
                small_groups.LEAST_PEOPLE, f"{found.cluster}s"
            ),
            notes=screening_notes.describe_all_secrets(found),
            readers=readers,
        )
        (part / "card.html").write_text(page, encoding="utf-8")
    return facts


def describe_readers(labels: Mapping[str, Any]) -> str:
    """How many people read the turns of a card, and how their mistakes affect its rates.

    >>> describe_readers({"readers": 1})
    'One person read them; what that reader overlooked, or marked by mistake, is not allowed for.'
    """
    replaced = ""
    if n := labels.get("replaced"):
        replaced = (
            f" Another reading of {n:,} of them had been imported and is not counted: what that "
            "one marked, and this one did not, counts nowhere."
        )
    people = ("One person", "Two people", "Three people", "Four people")[labels["readers"] - 1]
    if (twice := labels.get("read_twice")) is None:
        once, whose = ("", "that") if labels["readers"] == 1 else (", each turn once", "a")
        return (
            f"{people} read them{once}; what {whose} reader overlooked, or marked by mistake, is "
            f"not allowed for.{replaced}"
        )
    decided = ""
    if "decided" in twice:
        decided = (
            f", except in {twice['decided']:,} on which they differed and somebody decided: in "
            f"{twice['dropped']:,} of these a mark by one of them counts nowhere"
        )
    return (
        f"{people} read them: a second one {twice['turns']:,} of them again, without seeing what "
        "was marked. What only one of the two marked counts where the detector fails on it, and "
        f"nowhere else{decided}; what the first overlooked is in the bounds.{replaced}"
    )


def format_card(facts: dict[str, Any]) -> str:
    """The text that ``crtlib card`` prints."""
    found = rates_from_json(facts["rates"], policy_pairs=facts["labels"]["judged"])
    notes = screening_notes.describe_all_secrets(found)
    notes = [describe_readers(facts["labels"]), *notes]
    return "\n".join([found.table(), *(f"note: {note}" for note in notes)])
