"""Black-box audits of real trainings: what each method's canaries show, and what was proved.

>>> row = audit_training("dpsgd", epsilon=3.0, canaries=200, epochs=1, seed=0)
>>> row["audited"] <= row["proved"], row["refuted_from"] <= row["guessed"]
(True, True)

Each row is one training by the library's own ``train``, on simulated dialogues and on canaries that
the redaction policy misses, and one run of its own ``audit``, which reads nothing but the model.
The attacker guesses for half of the canaries: a number that is fixed before anything is trained.

The noise that is added is ``noise`` times the declared noise: 1 is what was declared, 0 is none.
S-DP and JFT print an epsilon for a policy that misses nothing; for them this ``claim`` is tested.
"""

import functools
import itertools
import math
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from pandas import DataFrame

from confide.training import train_on_corpus
from crtbook import tables
from crtbook.tables import STUDIES
from crtlib.attacks import run_audit
from crtlib.text import customersim, jsonl
from crtlib.training import noise as noises
from crtlib.training import steps
from crtlib.training.methods import method_by_name

DIALOGUES = 12
CANARIES = 600
CLAIMS = ("selective", "jft")
"""Methods whose epsilon is for a policy that misses nothing."""


PARTS: dict[str, dict[str, Any]] = STUDIES["black_box"]
"""Groups of trainings: each method at each epsilon with each share of the noise, once for each
seed. A training without noise is the same at every epsilon, so one serves "tight" as well."""


def audit_training(
    method: str,
    *,
    epsilon: float,
    noise: float = 1.0,
    canaries: int = CANARIES,
    epochs: int = 30,
    seed: int,
) -> dict[str, Any]:
    """Train and audit once. ``audited`` is the least epsilon shown, ``proved`` the largest allowed;
    ``right`` the number of correct guesses, and ``refuted_from`` the number that refutes the proof.
    ``power`` bounds how often a training with half the noise would be refuted, whoever
    attacks; not for a claim."""
    options: dict[str, Any] = {"unit": "user" if method == "user_dpsgd" else "turn"}
    if "epsilon" in method_by_name(method).reads:
        options |= {"epsilon": epsilon}
    add_less_noise = functools.partial(_add_less_noise, noise)
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.object(steps, "add_noise", add_less_noise),
    ):
        corpus, run_folder = Path(home, "talk.jsonl"), Path(home, "run")
        jsonl.write_jsonl(customersim.simulate_corpus(DIALOGUES, seed, "paper"), corpus)
        train_on_corpus.train(
            corpus, method=method, canaries=canaries, copies=1, epochs=epochs, batch_size=32,
            private_learning_rate=2e-2, seed=seed, out=run_folder, odometer=Path(home, "odometer"),
            **options,
        )  # fmt: skip
        result = run_audit.audit_training(
            run_folder, corpus, Path(home, "audit"), guesses=canaries // 2, seed=seed,
            claim=epsilon if method in CLAIMS else None,
        )  # fmt: skip
    copied = ("proved", "right", "guessed", "refuted_from", "refuted", "confidence")
    return {
        "method": method, "label": method_by_name(method).label, "epsilon": epsilon, "noise": noise,
        "epochs": epochs, "audited": result.epsilon_lower, "canaries": canaries, "seed": seed,
        "power": result.strongest_attacker_power or 0.0,
        **{name: getattr(result, name) for name in copied},
    }  # fmt: skip


def _add_less_noise(
    share: float, parameters: Any, *, std: float, generator: noises.RandomSource
) -> None:
    noises.add_noise(parameters, std=share * std, generator=generator)


def audit_all_trainings() -> DataFrame:
    """Every training of :data:`PARTS` as a row, with its provenance."""
    rows = []
    for name, plan in PARTS.items():
        seeds, cells = range(plan["seeds"]), (plan[n] for n in ("methods", "epsilons", "noises"))
        for method, epsilon, noise, seed in itertools.product(*cells, seeds):
            options = {"epsilon": epsilon, "noise": noise, "epochs": plan["epochs"], "seed": seed}
            measure = functools.partial(audit_training, method, **options)
            row, origin = tables.measure_with_provenance(measure, profile="black_box")
            rows.append({"part": name, **row, **origin})
    return DataFrame(rows)


def format_rows(recorded: DataFrame) -> list[str]:
    """The rows of a page: what the trainings of each cell show, and how many were refuted."""
    lines = []
    for _, cell in recorded.groupby(["part", "method", "epsilon", "noise"], sort=False):
        first = cell.iloc[0]
        correct = " to ".join(str(x) for x in sorted({cell.right.min(), cell.right.max()}))
        audited = [
            f"{math.floor(100 * x) / 100:.2f}" for x in (cell.audited.min(), cell.audited.max())
        ]
        noise = {1.0: "all", 0.5: "half", 0.0: "none"}[first.noise]
        cells = [first.label, f"{first.epsilon:g}", noise, f"{first.epochs}", correct,
                 f"{first.refuted_from:.0f}", " to ".join(dict.fromkeys(audited)),
                 f"{cell.refuted.sum()} of {len(cell)}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines
