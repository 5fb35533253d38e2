"""From a DataFrame of your own messages to a certificate, with the library.

    python examples/own_messages.py

`golden_path` is what a practitioner writes. A `datasets.Dataset` is accepted like a DataFrame, and
screened text is Parquet, which both can read. People read the turns that are drawn, on
`labels/page.html`; here the simulator, which knows its secrets, does that in their place.
"""

import json
import os
import re
import tempfile

import datasets
import pandas as pd

import confide
import crtlib


def golden_path(messages: pd.DataFrame | datasets.Dataset) -> tuple[datasets.Dataset, str]:
    names = {"user": "person", "thread": "talk", "speaker": "who", "text": "body"}
    confide.ingest(messages, "corpus", columns=names)
    seals = [crtlib.policy_digest("codes")]  # it was not made from what will judge it
    confide.label_sample("corpus", "labels", turns=200, sealed=seals, forms=["jsonl"])
    people_read("labels/tasks.jsonl")
    confide.label_import("corpus", "labels/tasks.jsonl", "labels")
    policies = {"policy": "codes+regex:customersim", "conservative": "cautious"}
    confide.screen("corpus", "screened", labels="labels", **policies)
    trained = confide.train("screened", epsilon=3, epochs=1, out="model")
    value = confide.certify("model", "certificate.html", require=["public <= 10%"])
    print(trained.promise, value["limits"], sep="\n")
    return datasets.load_dataset("screened/public", split="train"), value["verdict"]


@crtlib.register_policy("codes")
def codes(_: str) -> crtlib.Policy:
    """A policy is a function from points to spans: sorted, disjoint, inside their texts."""
    shape = re.compile(r"\b[A-Z0-9]*\d[A-Z0-9]*\b")
    return crtlib.Policy(
        "codes",
        lambda points: [
            [crtlib.Secret("number", *m.span()) for m in shape.finditer(p.text)] for p in points
        ],
    )


def people_read(file: str) -> None:
    """Mark the secrets of each turn, as its simulator does."""
    with open(file, encoding="utf-8") as lines:
        tasks = [json.loads(line) for line in lines]
    for task in tasks:
        spans = [{"kind": "other", "start": s.start, "end": s.end} for s in said[task["text"]]]
        task |= {"done": True, "secrets": spans}
    with open(file, "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(task) + "\n" for task in tasks)


if __name__ == "__main__":
    talks = crtlib.simulate(300, seed=0).dialogues
    said = {turn.text: turn.secrets for talk in talks for turn in talk.turns}
    rows = [
        {"person": talk.user, "talk": talk.id, "who": turn.speaker, "body": turn.text}
        for talk in talks
        for turn in talk.turns
    ]
    os.chdir(tempfile.mkdtemp())
    public, verdict = golden_path(pd.DataFrame(rows))
    print(public.to_pandas().head(3), verdict, sep="\n")
