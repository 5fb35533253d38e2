"""Write the recorded runs that two toys of the chapters show: ``python book/toys.py``.

One small model reads simulated customers as they are, with every secret. ``toy-guess.js`` has ten
sentences, five of which the model has read, with its score for each (membership). ``toy-tab.js``
has its continuations, word by word, and who is the only person to have said them (leakage report).
The third toy, in the amplification chapter, computes in the page and needs no data.
"""

import datetime
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from crtbook import search
from crtlib.attacks import membership
from crtlib.models import generation, scoring
from crtlib.studies import crt_study, study_run

ASSETS = Path(__file__).resolve().parent / "_assets"
GUESS, TAB = ASSETS / "toy-guess.js", ASSETS / "toy-tab.js"
SENTENCES = 10
BEGINNINGS = 6
STUDY = crt_study.CrtStudy(
    method="sgd", model="lstm", gamma=1.0, seed=0, dialogues=100, epochs=40,
    **search.choose_trial("sgd", "lstm"),
)  # fmt: skip
"""All secrets are missed: the model reads the text as it was said."""


def score_sentences(model: Any, data: Any) -> list[dict[str, Any]]:
    """Five sentences that were read and five whose secret is fresh, with their mean log-probability
    per token, in random order."""
    probe = membership.build_probe(data.points, data.read, data.others, seed=0)
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(probe.members), SENTENCES, replace=False)
    own = rng.permutation(np.arange(SENTENCES) % 2 == 0)
    texts = [
        probe.members[i] if member else probe.nonmembers[i]
        for i, member in zip(chosen, own, strict=True)
    ]
    scores = [x.mean() for x in scoring.token_logprobs(model, data.tokenizer.encode(texts))]
    return [
        {"text": text, "read": bool(member), "score": round(float(score), 3)}
        for text, member, score in zip(texts, own, scores, strict=True)
    ]


def complete_greedily(model: Any, tokenizer: Any, beginning: str, most: int = 40) -> str:
    """Continue a text greedily: add the most likely token, again and again."""
    state, scores = generation.read_prefix(model, tokenizer.encode_prefix(beginning))
    ids: list[int] = []
    while len(ids) < most:
        token = scores[0].argmax().reshape(1)
        if int(token) == tokenizer.eos:
            break
        ids.append(int(token))
        state, scores = generation.extend_prefix(model, state, token)
    return str(tokenizer.decode(ids))


def complete_beginnings(model: Any, data: Any) -> list[dict[str, Any]]:
    """Beginnings of sentences in the text, cut inside or before somebody's secret, with the model's
    continuation, and how many people have said the whole. Those that identify one person, by the
    most letters, come first; two that do not follow."""
    speakers = defaultdict(set)
    for point in data.points:
        speakers[point.text].add(point.user)
    rows: dict[str, dict[str, Any]] = {}
    for point in data.points:
        if not point.secrets or not point.text.startswith("USR: "):
            continue
        span = point.secrets[0]
        cuts = [span.start + len(word) for word in point.text[span.start : span.end].split()[:1]]
        for cut in [span.start - 1, *cuts]:
            beginning = point.text[:cut]
            if len(beginning) < 8 or beginning in rows or cut >= span.end:
                continue
            rest = complete_greedily(model, data.tokenizer, beginning)
            rows[beginning] = {
                "typed": beginning.removeprefix("USR: "),
                "words": rest.split(),
                "people": len(speakers.get(beginning + rest, ())),
            }
    gives = [row for row in rows.values() if row["people"] == 1 and row["words"]]
    gives.sort(key=lambda row: -len(" ".join(row["words"])))
    others = [row for row in rows.values() if row["people"] != 1 and row["words"]]
    return [*gives[: BEGINNINGS - 2], *others[:2]]


def main() -> None:
    """Train the model, and write both files."""
    fitted = study_run.fit_study(STUDY)
    model, data = fitted.run.model, fitted.data
    provenance = (
        f"LSTM of {STUDY.hidden or 64} units, {STUDY.dialogues} simulated dialogues, "
        f"{STUDY.epochs} epochs, CPU, {datetime.date.today()}"
    )
    for path, name, rows in (
        (GUESS, "TOY_GUESS", score_sentences(model, data)),
        (TAB, "TOY_TAB", complete_beginnings(model, data)),
    ):
        held = json.dumps({"rows": rows, "made": provenance}, ensure_ascii=False, indent=1)
        path.write_text(f"const {name} = {held};\n", encoding="utf-8")
        print(path.relative_to(ASSETS.parent.parent))


if __name__ == "__main__":
    main()
