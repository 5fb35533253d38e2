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
    label_facts = label_tasks.read_label_facts(labels)
    recipe: dict[str, Any] = {"command": "card", "inputs": {"corpus": corpus, "labels": labels}}
    recipe["key"] = screened_folder.KEY_FILE  # so no plain hash of a text or a list is shown
    recipe["options"] = {"policy": strip_paths(policy), "sha256": policy_digest(policy)}
    with outputs.staged_folder(out, **recipe, public=CARD_FILES, force=force) as temporary_folder:
        pi = policy_by_name(policy)
        pair = judged_policies.PolicyPair((pi, pi), (policy, policy))
        texts = dialogue_batches.count_texts(corpus, pair.unit)
        counter, label_counts = judged_policies.judge_policies(corpus, labels, pair, texts=texts)
        rates = counter.rates(policy_pairs=label_counts["judged"])
        groups, rows_by_trait = {}, {}
        for trait in SECRET_TRAITS:
            rates_by_value = counter.rates_by_trait(trait, policy_pairs=label_counts["judged"])
            rows = {name: {n: rate.to_json() for n, rate in rates_of_value.items()}
                    for name, rates_of_value in rates_by_value.items()}  # fmt: skip
            people = {name: small_groups.count_judged_people(row, label_counts.get("unread", 0))
                      for name, row in rows.items()}  # fmt: skip
            groups[trait] = small_groups.leave_out_small_groups(rates_by_value, people)
            rows_by_trait[trait] = small_groups.leave_out_small_groups(rows, people)
        content: dict[str, Any] = {"schema": "crtlib/card/1", "policy": strip_paths(policy)}
        content |= {"rates": rates.to_json() | {"by_kind": {}}, "by": rows_by_trait}
        content |= {"labels": rates.labels_json() | {"drawn": label_counts["drawn"]}}
        content["labels"] |= {k: label_counts[k] for k in LABEL_FACTS if k in label_counts}
        content["labels"]["readers"] = sum(role in label_facts for role in label_tasks.READER_ROLES)
        content_json = json.dumps(content, indent=1) + "\n"
        (temporary_folder / "card.json").write_text(content_json, encoding="utf-8")
        bound_text = f"traces {str(rates.trace).rpartition(', ')[2]}"
        widths = [7 * len(text) + 14 for text in (content["policy"], bound_text)]
        readers = describe_readers(content["labels"])
        badge = html.render_template(
            "badge.svg.j2", name=content["policy"], said=bound_text, wide=widths, readers=readers
        )
        (temporary_folder / "badge.svg").write_text(badge, encoding="utf-8")
        page = html.render_template(
            "card.html.j2",
            f=content,
            found=rates,
            groups=groups,
            small=small_groups.SMALL_GROUPS_NOTE.format(
                small_groups.LEAST_PEOPLE, f"{rates.cluster}s"
            ),
            notes=screening_notes.describe_all_secrets(rates),
            readers=readers,
        )
        (temporary_folder / "card.html").write_text(page, encoding="utf-8")
    return content


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
    if (reread := labels.get("read_twice")) is None:
        once_each, determiner = ", each turn once", "a"
        if labels["readers"] == 1:
            once_each, determiner = "", "that"
        return (
            f"{people} read them{once_each}; what {determiner} reader overlooked, or marked by "
            f"mistake, is not allowed for.{replaced}"
        )
    decided_text = ""
    if "decided" in reread:
        decided_text = (
            f", except in {reread['decided']:,} on which they differed and somebody decided: in "
            f"{reread['dropped']:,} of these a mark by one of them counts nowhere"
        )
    return (
        f"{people} read them: a second one {reread['turns']:,} of them again, without seeing what "
        "was marked. What only one of the two marked counts where the detector fails on it, and "
        f"nowhere else{decided_text}; what the first overlooked is in the bounds.{replaced}"
    )


def format_card(facts: dict[str, Any]) -> str:
    """The text that ``crtlib card`` prints."""
    rates = rates_from_json(facts["rates"], policy_pairs=facts["labels"]["judged"])
    notes = screening_notes.describe_all_secrets(rates)
    notes = [describe_readers(facts["labels"]), *notes]
    return "\n".join([rates.table(), *(f"note: {note}" for note in notes)])
