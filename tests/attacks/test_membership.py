"""One half is chance, and only chance is one half."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from crtlib.attacks import membership, membership_measures
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.screening import policy_changes, preparation, regex_policies
from crtlib.text import canaries, customersim, data_points, tokenizer
from crtlib.text.records import MASK, Point, Secret


def corpus(dialogues=300, gamma=0.3, seed=0):
    """Training points with canaries, what a non-private method reads of them, and a pool."""
    base = customersim.simulate_corpus(dialogues, seed)
    planted = canaries.insert_canaries(
        base, canaries.make_canaries(2, seed=seed), copies=5, seed=seed
    )
    points = data_points.make_points(planted, unit="turn")
    oracle = regex_policies.oracle_policy
    pi = policy_changes.with_misses(oracle, gamma, seed)
    done = preparation.prepare_points(points, pi(points), oracle(points), dedup="none")
    pool = data_points.make_points(customersim.simulate_corpus(dialogues, -1 - seed), unit="turn")
    return points, done.all, pool


def values(points):
    return [p.text[s.start : s.end] for p in points for s in p.secrets]


# --------------------------------------------------------------------------- the probe
def test_both_sides_wear_the_same_carriers_and_no_value_is_on_both():
    """Without it the templates alone would give members away, as the last lines show."""
    points, trained, pool = corpus()
    made = membership.build_probe(points, trained, pool, seed=0)
    inside, outside = set(values(points)), set(values(pool))
    clear = {p.text: p for p in points}
    for member, other in zip(made.members, made.nonmembers, strict=True):
        point = clear[member]
        assert not point.user.startswith(canaries.CANARY_USER_PREFIX)
        worn = [  # the secret that was exchanged: the text around it is the same
            s
            for s in point.secrets
            if other.startswith(member[: s.start]) and other.endswith(member[s.end :])
        ]
        fresh = [other[s.start : len(other) - len(member) + s.end] for s in worn]
        old = [member[s.start : s.end] for s in worn]
        hits = [k for k, v in enumerate(fresh) if v in outside - inside]
        assert len(hits) == 1
        assert values(points).count(old[hits[0]]) == 1 and old[hits[0]] not in outside
    assert len(set(made.nonmembers)) == len(set(made.members)) == len(made.members) > 500
    assert made.members[0] not in repr(made)

    made = membership.build_probe(points, trained, pool, seed=0, kinds=("tracking",))
    lengths = [np.array([len(t) for t in side]) for side in (made.members, made.nonmembers)]
    assert membership_measures.accuracy(*lengths) == 0.5
    names = np.array([len(p.text) for p in pool if [s.kind for s in p.secrets] == ["name"]])
    assert (
        abs(membership_measures.accuracy(lengths[0], names) - 0.5) > 0.4
    )  # fresh, but other templates


def test_missed_is_what_the_trained_points_still_hold():
    points, trained, pool = corpus(gamma=0.3)
    made = membership.build_probe(points, trained, pool, seed=0, kinds=("tracking",))
    read = "\n".join(p.text for p in trained)
    for text, missed in zip(made.members, made.missed, strict=True):
        assert (text in read) == missed
    assert 0.2 < np.mean(made.missed) < 0.4
    raw = membership.build_probe(points, points, pool, seed=0, kinds=("tracking",))  # DP-SGD's text
    assert raw.members == made.members and all(raw.missed)


def test_values_on_either_side_are_as_likely_common():
    """A popular value must not mark a member: sizes differ, the law of the kept values does not."""
    rng = np.random.default_rng(0)

    def draw(n, start):
        drawn = (400 * rng.random(n) ** 3).astype(int)  # the smaller the commoner
        text = [f"USR: {v:03d}" for v in drawn]
        return [Point(f"{start}{i}", "u", t, (Secret("id", 5, 8),)) for i, t in enumerate(text)]

    means, naive = [], []
    for seed in range(60):
        train, pool = draw(200, "a"), draw(60, "b")
        made = membership.build_probe(train, train, pool, seed=seed)
        means.append([np.mean([int(t[5:]) for t in x]) for x in (made.members, made.nonmembers)])
        inside, outside = set(values(train)), set(values(pool))
        naive.append([np.mean([int(v) for v in x]) for x in (inside, outside - inside)])
    error = np.std(np.diff(means)) / np.sqrt(60)
    assert abs(np.mean(np.diff(means))) < 3 * error
    assert np.mean(np.diff(naive)) > 5 * error  # all values, less those that were read, differ


def test_small_corpora_and_wrong_sizes():
    points, trained, pool = corpus(20)
    assert len(membership.build_probe(points, trained, pool, sequences=10, seed=0).members) == 5
    assert len(membership.build_probe(points, trained, pool[:9], seed=0).members) <= 9
    bare = [replace(p, secrets=()) for p in points]
    empty = membership.build_probe(bare, bare, pool, seed=0)
    assert membership.measure_membership(None, None, empty, seed=0) == [
        ("n_members", 0.0),
        ("n_missed", 0.0),
    ]
    with pytest.raises(ValueError, match="sequences=3: must be even"):
        membership.build_probe(points, trained, pool, sequences=3, seed=0)


# --------------------------------------------------------------------------- the attacks
def test_accuracy_with_ties_and_unequal_sizes():
    low, high = np.zeros(3), np.ones(7)
    assert (
        membership_measures.accuracy(low, high) == 1
        and membership_measures.accuracy(high, low) == 0
    )
    assert membership_measures.accuracy(low, np.zeros(9)) == 0.5
    assert membership_measures.auc(low, np.array([0.0, 1.0])) == 0.75
    rng = np.random.default_rng(0)
    m, n = rng.normal(0, 1, 200), rng.normal(0.7, 1, 200)
    median = np.median(np.concatenate([m, n]))
    assert np.isclose(
        membership_measures.accuracy(m, n), (np.sum(m < median) + np.sum(n > median)) / 400
    )
    tripled = membership_measures.accuracy(
        m, np.repeat(n, 3)
    )  # a larger other side changes nothing
    assert abs(tripled - membership_measures.accuracy(m, n)) < 0.01
    wins = np.mean(m[:, None] < n) + 0.5 * np.mean(m[:, None] == n)
    assert np.isclose(membership_measures.auc(m, n), wins)
    assert np.isclose(membership_measures.accuracy(m, n) + membership_measures.accuracy(n, m), 1)
    with pytest.raises(ValueError, match="0 members and 3"):
        membership_measures.accuracy(np.empty(0), low)
    with pytest.raises(ValueError, match="finite"):
        membership_measures.accuracy(np.array([np.nan]), low)


def test_true_positives_where_false_ones_are_rare():
    members, others = np.array([1.0, 2, 3, 9]), np.arange(2.5, 102.5)
    assert membership_measures.tpr_at_fpr(0.001, members, others) == 0.5  # 1 and 2 beat all of them
    assert (
        membership_measures.tpr_at_fpr(0.01, members, others) == 0.75
    )  # one of a hundred may be wrong
    assert membership_measures.tpr_at_fpr(0.0, members, np.ones(5)) == 0.0  # a tie is not a win


def test_ceiling_is_what_a_perfect_memoriser_reaches():
    rng = np.random.default_rng(0)
    m, n = rng.normal(size=20_000), rng.normal(size=20_000)
    for share in (0.1, 0.3, 0.5, 1.0):
        learned = m.copy()
        learned[: int(share * len(m))] -= 100
        assert (
            abs(
                membership_measures.accuracy(learned, n)
                - membership_measures.best_possible_accuracy(share)
            )
            < 0.01
        )


def test_calibration_removes_what_is_hard_for_every_model():
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 10, (2, 500))
    own = hard + rng.normal(0, 0.1, (2, 500)) - [[1.0], [0.0]]  # members are 1 nat likelier
    assert membership_measures.accuracy(*own) < 0.6
    assert membership_measures.accuracy(*membership.subtract_reference_scores(own, hard)) > 0.99


# --------------------------------------------------------------------------- chance
def test_null_deviation_is_that_of_the_known_laws():
    rng = np.random.default_rng(1)
    sides = rng.normal(size=(2, 1000))
    assert abs(membership_measures.null_std(*sides) - 0.0112) < 0.0016  # 1 / sqrt(8 n)
    group = partial(membership_measures.group_accuracy, seed=0)
    assert abs(membership_measures.null_std(*sides, statistic=group) - 0.041) < 0.006
    shared = sides + 3 * rng.normal(size=1000)  # carriers that differ: less is left to luck
    mixed = (rng.permutation(shared.ravel()).reshape(2, 1000) for _ in range(400))
    unpaired = np.sqrt(
        np.mean([(membership_measures.accuracy(*pair) - 0.5) ** 2 for pair in mixed])
    )
    assert membership_measures.null_std(*shared) < 0.7 * unpaired
    with pytest.raises(ValueError, match="as many members as non-members, not 1000 and 3"):
        membership_measures.null_std(sides[0], sides[1][:3])


@pytest.mark.parametrize("decimals", [9, 1])  # 1: many ties
@pytest.mark.parametrize("sizes", [(1, 1), (40, 40), (30, 70)])
def test_many_draws_at_once_are_scored_as_one_by_one(decimals, sizes):
    rng = np.random.default_rng(3)
    sides = [rng.normal(size=(25, n)).round(decimals) for n in sizes]
    group = partial(membership_measures.group_accuracy, groups=50, size=3, seed=0)
    for statistic in (membership_measures.accuracy, membership_measures.auc, group):
        alone = [statistic(*pair) for pair in zip(*sides, strict=True)]
        assert np.allclose(statistic(*sides), alone, rtol=0, atol=1e-12)
    draws = (
        membership_measures.NULL_DRAWS_AT_ONCE + 7
    )  # the second block goes on where the first one ended
    if sizes[0] != sizes[1]:
        return
    once = membership_measures.null_std(sides[0][0], sides[1][0], draws=draws)
    rng, total = np.random.default_rng(0), 0.0
    for _ in range(draws):
        a, b = sides[0][0], sides[1][0]
        swap = rng.random(len(a)) < 0.5
        a, b = np.where(swap, b, a), np.where(swap, a, b)
        total += (membership_measures.accuracy(a, b) - 0.5) ** 2
    assert once == pytest.approx(np.sqrt(total / draws), abs=1e-12)


def test_group_band_covers_chance_as_often_as_it_says():
    """120 times nothing was learned: heavy-tailed scores on shared carriers, 200 pairs each."""
    rng = np.random.default_rng(0)
    group = partial(membership_measures.group_accuracy, groups=400, seed=0)
    inside, too_narrow = 0, 0
    for _ in range(120):
        sides = np.exp(rng.normal(size=200) + rng.normal(size=(2, 200)))
        found = group(*sides)
        sd = membership_measures.null_std(*sides, statistic=group, draws=60)
        band = membership_measures.accuracy_chance_band(sd, level=0.9)
        inside += band.low <= found <= band.high
        too_narrow += abs(found - 0.5) > 1.645 / np.sqrt(8 * 200)  # as if groups were independent
    assert 98 <= inside <= 117  # 108 expected, standard deviation 3.3
    assert too_narrow > 40


def test_band_narrows_with_seeds_and_widens_with_points():
    one = membership_measures.accuracy_chance_band(0.01)
    assert np.isclose(one.high - 0.5, 0.0196, atol=1e-4)
    assert membership_measures.accuracy_chance_band(0.01, seeds=4).high - 0.5 == pytest.approx(
        (one.high - 0.5) / 2
    )
    assert membership_measures.accuracy_chance_band(0.01, points=20).high > one.high
    assert membership_measures.accuracy_chance_band(9.0).low == 0
    with pytest.raises(ValueError, match="level=2: must be in"):
        membership_measures.accuracy_chance_band(0.01, level=2)


def test_members_of_the_kind_that_the_paper_names():
    points, trained, pool = corpus(100)
    made = membership.build_probe(points, trained, pool, seed=0)
    alone = membership.build_probe(points, trained, pool, seed=0, kinds=("address",))
    addresses = membership.paper_kind_mask(made)
    assert 0 < addresses.sum() < len(made.members) and set(alone.kinds) == {"address"}
    assert set(np.array(made.members)[addresses]) <= set(alone.members)
    losses = np.where(addresses, 0.0, 1.0)  # the model knows the addresses, and nothing else
    told = dict(membership.membership_metrics(made, losses, np.ones_like(losses), seed=0))
    assert told["mia_address_accuracy"] == told["group_address_accuracy"] == 1
    assert told["mia_accuracy"] < 0.8
    numbers = replace(made, kinds=("reference", *made.kinds[1:]))  # as in MultiWOZ
    assert membership.paper_kind_mask(numbers).tolist() == [True] + [False] * (len(losses) - 1)


# --------------------------------------------------------------------------- a trained model
def test_a_memoriser_is_found_and_only_on_what_it_read():
    """A small LSTM, trained long on text from which half of the secrets were redacted."""
    points, trained, pool = corpus(60, gamma=0.5)
    made = membership.build_probe(points, trained, pool, seed=0, kinds=("name",))
    bpe = tokenizer.train_bpe([p.text for p in points if not p.secrets], vocab_size=400)
    spec = ModelSpec("lstm", vocab_size=bpe.vocab_size, embedding=32, hidden=64)
    model = build_model(spec, seed=0)
    before = dict(membership.measure_membership(model, bpe, made, seed=0))
    assert "mia_address_accuracy" not in before  # all of them are names
    for name in (m.name for m in membership.ACCURACY_METRICS if "address" not in m.name):
        assert abs(before[name] - 0.5) < 3.5 * before[f"{name}_null"], name

    texts = bpe.encode(sorted({p.text for p in trained if p.secrets or MASK in p.text}))
    texts = [torch.tensor(text) for text in texts if len(text) < 32]  # the names are short
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=-1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(35):
        for rows in torch.randperm(len(ids), generator=generator).split(8):
            logits = model(ids[rows, :-1].clamp_min(0)).flatten(0, 1)
            optimizer.zero_grad()
            F.cross_entropy(logits, ids[rows, 1:].flatten(), ignore_index=-1).backward()
            optimizer.step()
    after = dict(membership.measure_membership(model, bpe, made, seed=0))
    assert after["n_members"] == len(made.members) > 40 and after["n_missed"] == sum(made.missed)
    assert after["mia_missed_accuracy"] > 0.9
    redacted = after["mia_redacted_accuracy"]
    assert abs(redacted - 0.5) < 3.5 * after["mia_redacted_accuracy_null"]
    assert (
        abs(
            after["mia_accuracy"] - membership_measures.best_possible_accuracy(np.mean(made.missed))
        )
        < 0.08
    )
    assert after["group_accuracy"] > 0.8 and after["mia_auc"] > 0.65


def test_summary_judges_against_the_band():
    def rows(method, gamma, seed, accuracy):
        keys = {"run": f"{method}{gamma}{seed}", "model": "lstm", "method": method, "item": 0}
        pairs = [("mia_accuracy", accuracy), ("mia_accuracy_null", 0.02), ("n_missed", 9.0)]
        return [
            {**keys, "gamma": gamma, "seed": seed, "metric": m, "value": v}
            for m, v in [*pairs, ("test_ppl", 3.0)]
        ]

    table = pd.DataFrame(
        [
            row
            for seed in range(4)
            for row in rows("sgd", 0.0, seed, 0.51)
            + rows("sgd", 0.5, seed, 0.6 + 0.01 * seed)
            + rows("dpsgd", 0.0, seed, 0.44)
        ]
    )
    out = membership.summarise_membership(table)
    assert set(out.metric) == {"mia_accuracy", "n_missed"}
    found = out[out.metric == "mia_accuracy"].set_index(["method", "gamma"])
    assert list(found.verdict.loc["sgd"]) == ["inside", "above"]
    assert list(found.verdict.loc["dpsgd"]) == ["below", "below"]  # at every gamma
    assert found.loc[("sgd", 0.5), "mean"] == pytest.approx(0.615)
    assert set(found.seeds) == {4}
    expected = membership_measures.accuracy_chance_band(0.02, seeds=4, points=3)
    assert np.allclose(found.high, expected.high) and np.allclose(found.low, expected.low)
    assert out[out.metric == "n_missed"].high.isna().all()
