"""The chapter on pitfalls: its assertions fail for each wrong pipeline and hold for ours.

The chapter's own code runs here on a small corpus, so what is tested is what readers see.
"""

import json
import re
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import myst_nb
import numpy as np
import pytest

from crtlib.accounting import confidentiality
from crtlib.accounting.guarantees import BoundedRate
from crtlib.screening import deduplication, regex_policies
from crtlib.screening.preparation import prepare_points
from crtlib.text import customersim, data_points
from crtlib.text.records import MASK
from crtlib.training import schedules

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "pitfalls.ipynb"
SMALL = {"dialogues": 20, "trials": 12}


@pytest.fixture(scope="module")
def chapter():
    """What the code cells define; they are run, with their assertions, in order."""
    names = {}
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(myst_nb, "glue", lambda *_, **__: None)
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
                if "parameters" in cell["metadata"].get("tags", []):
                    names |= SMALL
    return SimpleNamespace(**names)


@pytest.fixture(scope="module")
def some(chapter):
    """A few turns that hold secrets, from all over the corpus."""
    return chapter.secret_turns[::5]


def test_1_only_the_comparison_with_a_mask_is_amplified(chapter):
    gamma = 1 / len(chapter.pins)
    mixture = np.mean([chapter.law(x) for x in chapter.pins], axis=0)
    right = chapter.least_epsilon(mixture, chapter.law(MASK))
    found = [chapter.law(x) for x in chapter.pins[:-1]]
    assert right == pytest.approx(np.log1p(gamma * np.expm1(chapter.one)))
    assert chapter.amplified(right, gamma)
    exchanged = [chapter.least_epsilon(a, chapter.law(chapter.pins[-1])) for a in found]
    assert not any(chapter.amplified(wrong, gamma) for wrong in exchanged)
    assert max(chapter.least_epsilon(a, b) for a, b in permutations(found, 2)) == 0


def test_2_points_come_before_redaction(chapter, some):
    for i in some:
        worlds = chapter.turns, chapter.masked(chapter.turns, i)
        pi = chapter.all_but(chapter.turns[i].id)
        for way, policy, differ in (
            (chapter.points_first, pi, 1),
            (chapter.points_first, regex_policies.oracle_policy, 0),
            (
                chapter.redact_then_cut,
                regex_policies.oracle_policy,
                0,
            ),  # harmless only if nothing is missed
        ):
            assert chapter.differing(*(way(d, policy) for d in worlds)) == differ
    wrong = [
        chapter.differing(
            *(
                chapter.redact_then_cut(d, chapter.all_but(chapter.turns[i].id))
                for d in (chapter.turns, chapter.masked(chapter.turns, i))
            )
        )
        for i in some[: len(some) // 2]
    ]
    assert np.mean(wrong) > chapter.blocks / 3


def test_3_no_secret_stands_in_two_points(chapter):
    for unit in data_points.POINT_UNITS:
        made = data_points.make_points(chapter.corpus, unit=unit)
        assert chapter.cut_in_two(made, chapter.secrets) == 0
    for size in (50, 200, 1000):
        cut = chapter.windows(chapter.turns, size)
        assert "".join(p.text for p in cut) == "\n".join(p.text for p in chapter.turns)
        assert chapter.cut_in_two(cut, chapter.secrets) > 0
    missed = chapter.recall["missed"]
    assert missed["windows"] > 0 == missed["whole turns"]


def test_4_duplicates_and_secrets_share_one_mask(chapter):
    D = chapter.points("[7351]", "hello", "[7351]", "[7351]")
    for which in (0, 1, 2, 3):
        worlds = D, chapter.masked(D, which)
        assert (
            chapter.differing(*(chapter.one_mask(d, regex_policies.oracle_policy) for d in worlds))
            == 0
        )
        wrong = chapter.differing(
            *(chapter.two_masks(d, regex_policies.oracle_policy) for d in worlds)
        )
        assert (wrong > 0) == (which != 1)


def test_4_a_fixed_pattern_makes_two_masks_harmless(chapter, monkeypatch):
    D = chapter.points("[7351]", "hello", "[7351]")
    fixed = deduplication.mark_repeats(D)
    monkeypatch.setattr(deduplication, "mark_repeats", lambda points: fixed)
    worlds = D, chapter.masked(D, 2)
    assert (
        chapter.differing(*(chapter.two_masks(d, regex_policies.oracle_policy) for d in worlds))
        == 0
    )


def test_5_a_mask_is_private(chapter):
    wrong, right = chapter.parts[chapter.masks_are_public], chapter.parts[chapter.masks_are_private]
    assert chapter.public_differs(wrong) and not chapter.public_differs(right)
    caught, kept = (chapter.success(worlds) for worlds in (wrong, right))
    assert caught == 1 and chapter.refuted(caught)
    assert kept < 1 and not chapter.refuted(kept)


def test_5_nor_does_a_preparation_of_a_corpus_show_it_in_the_public_part(chapter, some):
    for i in some:
        D, neighbour = chapter.turns, chapter.masked(chapter.turns, i)
        pi = chapter.all_but(D[i].id)
        made = [
            prepare_points(
                d, pi(d), regex_policies.oracle_policy(d), pattern=deduplication.mark_repeats(D)
            )
            for d in (D, neighbour)
        ]
        assert [p.text for p in made[0].public] == [p.text for p in made[1].public]


def test_6_no_phase_reads_private_points_without_noise(chapter):
    private = {"sampling_probability": 0.1, "clip_norm": 1.0, "normaliser": 1.0}
    noisy, bare = (
        schedules.DpSgdConstants(noise_multiplier=sigma, learning_rate=0.1, **private)
        for sigma in (2.0, 0)
    )
    public = {"pub_passes": 1, "public_batch_size": 8, "public_learning_rate": 0.1}
    assert chapter.unprotected(schedules.sgd_phases(epochs=1, batch_size=8, learning_rate=0.1))
    assert chapter.unprotected(schedules.crt_phases(epochs=1, private=bare, **public))
    assert not chapter.unprotected(schedules.crt_phases(epochs=2, private=noisy, **public))
    assert not chapter.unprotected(schedules.dpsgd_phases(epochs=2, private=noisy))
    apart, *mixed = chapter.benefit["without noise"]
    assert apart > 0 and set(mixed) == {0}
    ppl = chapter.benefit["perplexity"]
    assert ppl[0] < ppl[1:].min()


def test_7_the_pattern_of_duplicates_is_computed_once(chapter):
    assert (
        chapter.group_of_all(None)
        > 0
        == chapter.group_of_all(deduplication.mark_repeats(chapter.turns))
    )
    D = chapter.points("my pin is [7351]", "my pin is [0042]")
    pi = chapter.all_but("0")
    other = [chapter.redact_then_dedup(d, pi) for d in (D, chapter.masked(D, 0))]
    assert chapter.differing(*other) == 2  # the exercise: the other order is no repair


def test_8_a_replacement_is_paid_for(chapter):
    assert chapter.paid(chapter.run) and not chapter.paid(chapter.cheap)
    assert chapter.printed < chapter.ruled_out <= chapter.honest
    assert chapter.refuted_epsilon(chapter.sigma) <= chapter.settings.epsilon


def test_9_delta_covers_what_labels_leave_possible(chapter):
    assert chapter.certified(chapter.promise["measured"])
    assert not chapter.certified(chapter.promise["assumed"])
    enough = confidentiality.crt_guarantee(
        chapter.run,
        gamma=BoundedRate(0.1),
        delta2=BoundedRate.measured(0, chapter.needed),
        noise_delta=chapter.settings.delta,
        unit="turn",
        neighbouring_relation="replace",
    )
    assert chapter.settings.delta < enough.delta <= 2 * chapter.settings.delta


def test_10_masking_a_secret_changes_no_other_label(chapter):
    plain, contextual = chapter.plain, chapter.contextual
    D = chapter.points("I am [Ada], pin 7351")

    def differ(pi):
        return chapter.differing(
            *(chapter.seen(prepare_points(d, pi(d), pi(d))) for d in (D, chapter.masked(D)))
        )

    assert (differ(contextual), differ(plain)) == (1, 0)
    for variety in ("paper", "rich"):
        turns = data_points.make_points(customersim.simulate_corpus(15, 3, variety), unit="turn")
        for i in [i for i, p in enumerate(turns) if p.secrets]:
            worlds = [turns[i]], chapter.masked([turns[i]])
            labels = map(regex_policies.corpus_regex_policy(), worlds)
            ours = [
                chapter.seen(prepare_points(d, f, f)) for d, f in zip(worlds, labels, strict=True)
            ]
            assert chapter.differing(*ours) == 0


def test_the_table_has_a_row_for_each_pitfall(chapter):
    assert [int(re.match(r"\d+", row)[0]) for row in chapter.table.index] == list(range(1, 11))
    assert (chapter.table["the wrong way"] != chapter.table["the right way"]).all()
