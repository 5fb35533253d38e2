"""From limits to a plan: its bounds are those of its certificate; what no plan meets."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from confide import odometer, spending
from confide.labels import drawing, label_tasks
from confide.recipes import make_recipe
from confide.release import certificate_parts, certify
from confide.training import advise, study_of_text
from confide.training.advise import Advice, AdviceRow, advise_on_limits
from crtlib.intervals import clopper_pearson_upper
from crtlib.screening.rate_values import PolicyRates, Rate
from crtlib.text import customersim
from tests import trainings
from tests.release.test_certify import read_by_people
from tests.texts import bring_known_labels, write_sayings, write_simulated_text
from tests.trainings import CRT, SGD_GPT2

FINDS, LEAVES = "regex:customersim", "regex:schema_guided"


@pytest.fixture
def corpus(tmp_path):
    return read_by_people(tmp_path, people=80)[0]


@pytest.fixture
def ask(corpus):
    def call(*limits, policies=(FINDS,), **how):
        return advise_on_limits(
            corpus, corpus.parent / "labels", limits, policies=policies, epochs=1, **how
        )

    return call


def carried_out(corpus, row, out):
    """The certificate of a row."""
    trainings.train(
        corpus, out=out, method="crt", policy=row.policy, conservative=row.conservative,
        labels=corpus.parent / "labels", epsilon=row.epsilon, unit=row.unit,
        epochs=1, width=4,
    )  # fmt: skip
    limits = [judged["limit"] for judged in row.judged_limits]
    return certify.write_certificate(
        out, out.with_suffix(".html"), secrets_per_person=(), require=limits
    )


LIMITS = ("guess <= 56", "epsilon_missed <= 5", "public <= 1%", "miss <= 50%", "value <= 30",
          "missed <= 95", "delta <= 1e-3", "trace <= 50%", "epsilon <= 3")  # fmt: skip


def test_a_plan_is_certified_with_the_bounds_that_were_said(corpus, ask, tmp_path):
    advice = ask(*LIMITS)
    best = advice.rows[advice.best]
    assert (best.policy, best.conservative, best.epsilon) == (FINDS, "everything", 4.0)
    assert advice.pairs == 2 and not odometer.find_odometer(corpus, "x").exists()
    made = carried_out(corpus, best, tmp_path / "best")
    assert made["limits"] == best.judged_limits and all(row["met"] for row in made["limits"])
    assert made["mechanism"]["phases"][-1]["noise_multiplier"] == best.noise_multiplier
    assert made["rates"]["trace"]["upper"] == best.rates["trace"]["upper"]


def test_what_was_spent_before_counts(corpus, ask, tmp_path):
    """And a row that is not advised has the bounds of its certificate as well."""
    first = ask(*LIMITS, policies=(FINDS, LEAVES))
    other = first.rows[-1]
    assert other.policy == LEAVES and not other.meets_limits
    made = carried_out(corpus, other, tmp_path / "other")
    assert made["limits"] == other.judged_limits and not all(row["met"] for row in made["limits"])
    again = ask(*LIMITS, policies=(FINDS, LEAVES), conservative=("everything",))
    assert again.pairs == first.pairs == 4, "the same pairs are no new choice"
    later = again.rows[0]
    assert later.judged_limits != first.rows[1].judged_limits
    assert carried_out(corpus, later, tmp_path / "later")["limits"] == later.judged_limits


def test_the_least_noise_that_meets_them_is_taken(ask):
    (row,) = ask("epsilon_missed <= 2.5", conservative=("everything",)).rows
    assert row.meets_limits and row.epsilon == 2.0
    (row,) = ask("epsilon_missed <= 2.5", "missed <= 53", conservative=("everything",)).rows
    assert row.meets_limits and row.epsilon < 2.0


def test_every_pair_that_was_tried_is_charged(ask):
    alone = ask("trace <= 50%", conservative=("everything",))
    both = ask("trace <= 50%", conservative=("everything", "cautious"))
    assert (alone.pairs, both.pairs) == (1, 2)
    bounds = [advice.rows[0].rates["trace"]["upper"] for advice in (alone, both)]
    assert bounds[0] < bounds[1] == both.rows[1].rates["trace"]["upper"]


def test_what_labels_would_do_and_what_they_would_not(corpus, ask):
    """Nothing was missed: more labels help, as far as there are people to draw. A policy that
    leaves some: no labels do."""
    more = ask("trace <= 16%")
    (needed,) = {row.turns_to_read for row in more.rows}
    read = label_tasks.read_label_facts(corpus.parent / "labels")["judge"]
    assert more.best is None and read == more.turns < needed <= more.people
    assert "needs" in more.why
    for limit, policy in (("trace <= 2%", FINDS), ("trace <= 2%", LEAVES)):
        never = ask(limit, policies=(policy,))
        assert never.best is None and never.commands == ()
        assert {row.turns_to_read for row in never.rows} == {None}, (
            "more than can be drawn is no advice"
        )
        assert f"of each of the {never.people} people were read" in never.why
        assert "better policies, or more people" in never.why


def test_a_draw_reaches_people_who_taught_the_policy(ask, monkeypatch):
    """ "needs a separate draw of 112 turns", of which a quarter were of people who had taught the
    tagger: its bound was 9.56 % where 8 had been asked for."""
    attach = advise.training_of_study.attach_label_rates
    (alone,) = {row.turns_to_read for row in ask("trace <= 20%").rows}

    def attach_as_if_a_quarter_had_taught(*given):
        prepared = attach(*given)
        return replace(prepared, known=replace(prepared.known, left_out_clusters=20))

    name = "attach_label_rates"
    monkeypatch.setattr(advise.training_of_study, name, attach_as_if_a_quarter_had_taught)
    (needed,) = {row.turns_to_read for row in ask("trace <= 20%").rows}
    assert 0.95 < 0.75 * needed / alone < 1.1


def test_hours_that_are_left_make_a_draw_of_it(ask):
    limit = "trace <= 16%"
    short, enough = ask(limit), ask(limit, hours=1)
    assert short.best is None and "hours allows 0" in short.why and not short.commands
    assert enough.best is None and "label sample" in enough.commands[0]
    turns = min(row.turns_to_read for row in enough.rows)
    assert f"--turns {turns} " in enough.commands[0]
    assert f"needs a separate draw of {turns} turns, " in short.why
    # All of them are read anew: "0 more than were read", of what nobody had read.
    needed = turns * label_tasks.SECONDS_PER_TURN / 3600
    assert not ask(limit, hours=0.99 * needed).commands and ask(limit, hours=needed).commands


def test_a_draw_of_its_own_is_read_anew():
    """ "0 more than were read", of what nobody had read: the turns of an earlier draw save none."""
    judged = {"limit": "trace <= 16%", "met": False, "certified": 0.3}
    row, about = (
        SimpleNamespace(void_reasons=(), turns_to_read=100, judged_limits=[judged]),
        {"judge": 60},
    )
    needed = 100 * label_tasks.SECONDS_PER_TURN / 3600
    assert advise._explain_unmet([row], about, 0.99 * needed)[1] is None
    why, turns = advise._explain_unmet([row], about, needed)
    assert turns == 100 and "at least 30 % here): needs a separate draw of 100 turns" in why


def test_the_draw_that_is_advised_judges_the_plans_that_asked_for_it(tmp_path, run):
    """ "needs a separate draw of 52 turns", of 120 conversations: the command that it printed
    drew 20 people, and sealed nothing, so no rules of one's own could be judged by its labels."""
    texts = [f"order {k} is late, my number is 0{300_000_000 + k}, thanks" for k in range(120)]
    people = [f"u{k % 20}" for k in range(120)]
    talk, spans = write_sayings(tmp_path / "talk.jsonl", people, texts, "03[0-9]{8}")
    (tmp_path / "rules.toml").write_text('[phone]\npattern = "0[0-9]{9}"\n')
    rules = f"regex:{tmp_path / 'rules.toml'}"
    drawn = ["--turns", 20, "--by", "dialogue", "--kinds", "phone,name", "--seal", rules]
    run("label", "sample", talk, "--out", tmp_path / "labels", *drawn)
    bring_known_labels(talk, tmp_path / "labels", lambda t: spans[t.id])
    how = {"policies": [rules], "conservative": ["everything"], "epochs": 1, "hours": 1}
    advice = advise_on_limits(talk, tmp_path / "labels", ["trace <= 12%"], **how)
    command = [*shlex.split(advice.commands[0])[1:-1], tmp_path / "more"]
    assert run(*command)[0] == 0
    facts = [label_tasks.read_label_facts(tmp_path / name) for name in ("labels", "more")]
    assert facts[1]["judge"] == min(row.turns_to_read for row in advice.rows) > 20
    assert all(facts[0][name] == facts[1][name] for name in ("by", "kinds", "sealed"))
    bring_known_labels(talk, tmp_path / "more", lambda t: spans[t.id])
    assert advise_on_limits(talk, tmp_path / "more", ["trace <= 12%"], **how).best == 0


def test_a_plan_names_the_model_that_it_is_of(ask, monkeypatch):
    """On a machine with a GPU the command took SmolLM2, whose steps are others, and so its noise
    and every number that had been said."""
    words = shlex.split(ask("guess <= 99").commands[0])
    given = dict(zip(words[3:-1:2], words[4::2], strict=True))
    names = {name.lstrip("-"): value for name, value in given.items()}
    recipe = make_recipe({"corpus": words[2], **names})
    monkeypatch.setattr(study_of_text.smollm2, "missing_smollm2_packages", list)
    assert study_of_text.resolve_model(recipe, "cuda") == recipe and recipe.init == "random"


def test_more_labels_at_the_same_rate():
    rates = PolicyRates(*(Rate(count, 40, 0.5, "one_per_cluster") for count in (0, 3)),
                  Rate(0, 40, 0.0, "policy"))  # fmt: skip
    after = advise._rates_after_labels(rates, 2.5)
    assert (after.miss.failures, after.miss.judged_secrets, after.trace.failures) == (0, 100, 8)
    assert after.miss.upper_bound < 0.5 and after.public == rates.public
    assert advise._rates_after_labels(replace(rates), 1000).trace.upper_bound > 3 / 40


def test_a_choice_that_reads_the_text_is_treated_as_known():
    """One secret in one message decided which of two lists was advised, so whoever read the name of
    the policy was right 100 times in 100, where "declared public (together at most 10.6 bits)"
    counted no choice. So is a rank of adapters, or a number of epochs, that a script has chosen."""
    record = {"treated_as_public": ["the text of others"], "corpus": {"sha256": "c"}}
    promise = SimpleNamespace(groups=())
    known = certificate_parts._list_treated_as_public(record, spending.SpentBudget(()), promise)
    assert known[1:] == [*certificate_parts.ALWAYS_KNOWN] and "settings" in known[2]
    assert "'crtlib advise'" in known[2]
    advice = advise.Advice((), 0, "plan 1", ("crtlib train",), 4, 8, 2)
    assert advise.CHOICE_NOTE in advice.text()
    assert advise.CHOICE_NOTE not in replace(advice, best=None).text()


def test_the_command(corpus, run):
    words = ["advise", corpus, "--labels", corpus.parent / "labels", "--policy", FINDS,
             "--conservative", "everything", "--epochs", 1]  # fmt: skip
    code, said, _ = run(*words, "--require", "guess <= 60", "--require", "public <= 1%")
    assert code == 0 and "crtlib train" in said and "--require 'guess <= 60'" in said
    assert max(map(len, said.split("\nplan")[0].splitlines())) <= 80
    code, said, _ = run(*words, "--require", "trace <= 16%", "--json")
    value = json.loads(said)
    assert code == 4 and value["ok"] is False and value["best"] is None and value["rows"][0]["read"]
    for wrong, says in ((["--require", "x"], "must be NAME <= NUMBER"), ([], "is missing"),
                        (["--require", "guess <= 60", "--hours", "-1"], "hours"),
                        (["--require", "guess <= 60", "--unit", "word"], "unit")):  # fmt: skip
        code, _, error = run(*words, *wrong)
        assert code == 2 and says in error and len(error.splitlines()) == 1


def test_the_page_has_the_frontier_and_is_never_overwritten(corpus, run, tmp_path):
    out = tmp_path / "advice.html"
    words = ["advise", corpus, "--labels", corpus.parent / "labels", "--policy", FINDS,
             "--epochs", 1, "--require", "public <= 1%", "--json"]  # fmt: skip
    code, said, _ = run(*words, "--require", "guess <= 60", "--out", out)
    page, value = out.read_text(), json.loads(said)
    assert code == 0 and out.stat().st_mode & 0o777 == 0o600
    head = ["schema", "ok", "rows", "best", "why", "commands", "turns", "people", "pairs", "owners"]
    keys = ["policy", "conservative", "unit", "meets", "epsilon", "noise", "private", "redacted",
            "rates", "judged", "guess", "read", "void"]  # fmt: skip
    assert list(value) == head
    for row in value["rows"]:
        tried = row.pop("tried")
        assert list(row) == keys
        assert tuple(t["epsilon"] for t in tried) == advise.TRIED_EPSILONS
        (taken,) = (t for t in tried if t["epsilon"] == row["epsilon"])
        assert all(taken[name] == row[name] for name in ("noise", "guess", "judged"))
        assert taken["met"] == row["meets"]
        assert f"{row['policy']}, then {row['conservative']}" in page
        assert [t["guess"] for t in tried] == sorted(t["guess"] for t in tried)
        assert [t["met"] for t in tried] == sorted((t["met"] for t in tried), reverse=True)
    assert page.count("<polyline") == len(value["rows"]) == 2
    assert page.count('class="bound"') == page.count('class="best"') == 1
    assert "<li><code>public &lt;= 1%</code></li>" in page and 'y1="134.8" y2="134.8"' in page
    assert all(command.split()[1] in page for command in value["commands"])
    code, _, error = run(*words, "--require", "trace <= 1%", "--out", out)
    assert code == 2 and "exists" in error and out.read_text() == page
    code, _, _ = run(*words, "--require", "trace <= 1%", "--out", out, "--force")
    page = out.read_text()
    assert code == 4 and "no plan meets your limits" in page
    assert 'class="bound"' not in page and 'class="best"' not in page
    code, _, error = run(*words, "--out", corpus, "--force")
    assert code == 2 and "input" in error


def test_advice_counts_what_earlier_searches_passed_over(tmp_path):
    text, _ = read_by_people(tmp_path, people=80)
    earlier = CRT | {"conservative": "regex:customersim", "labels": tmp_path / "labels"}
    trainings.train(text, out=tmp_path / "one", **earlier)
    limits = ["public <= 1%"]
    how = {"policies": ["regex:customersim"], "conservative": ["everything"], "epochs": 1}
    (row,) = advise_on_limits(text, tmp_path / "labels", limits, **how).rows
    trainings.train(
        text, out=tmp_path / "two", policy=row.policy, conservative=row.conservative,
        labels=tmp_path / "labels", epsilon=row.epsilon, epochs=1, width=4,
    )  # fmt: skip
    made = certify.write_certificate(
        tmp_path / "two", tmp_path / "two.html", secrets_per_person=(), require=limits
    )
    assert made["limits"] == row.judged_limits


@pytest.mark.parametrize("base, most", [("o.jsonl", 60), ("bare.jsonl", 70)])
def test_advice_for_a_base_is_what_the_certificate_says(tmp_path, base, most):
    """Its chat template makes the policies others, so that the bounds were wider: 59.9 was said
    and 61.6 certified. And a base that had learned this text makes the certificate void."""
    text, _ = read_by_people(tmp_path, people=80)
    write_simulated_text(tmp_path / "o.jsonl", 9)
    start = SGD_GPT2 | {"policy": "regex:customersim"}
    trainings.train(tmp_path / base, out=tmp_path / "base", **start)
    init, limits = str(tmp_path / "base"), [f"guess <= {most}"]
    how = {"policies": ["regex:customersim"], "conservative": ["cautious"]}
    advice = advise_on_limits(text, tmp_path / "labels", limits, epochs=1, init=init, **how)
    row = advice.rows[0]
    trainings.train(
        text, out=tmp_path / "m", policy=row.policy, conservative=row.conservative,
        labels=tmp_path / "labels", epsilon=row.epsilon, epochs=1, init=init,
    )  # fmt: skip
    made = certify.write_certificate(
        tmp_path / "m", tmp_path / "m.html", secrets_per_person=(), require=limits
    )
    assert made["limits"] == row.judged_limits


SETTINGS = {
    "a base that nobody knows": {"init": "elsewhere"},
    "a base of other text": {"init": "o.jsonl"},
    "a base of this text": {"init": "bare.jsonl"},
    "several trainings": {"trials": 3},
    "public steps": {"conservative": "cautious"},
    "a policy of a kind": {"policy": "regex:schema_guided"},
    "conversations": {"unit": "dialogue"},
    "people": {"unit": "user"},
    "one more point": {"neighbouring_relation": "add_or_remove"},
    "another accountant": {"accountant": "rdp"},
    "repeats of public points are masked": {"duplicates": "mask"},
    "misses on purpose": {"gamma": 0.2, "coin": "text"},
    "misses by the name of a message": {"gamma": 0.2, "coin": "point"},
    "a template": {"template": "plain"},
}


def train_base_elsewhere(home, patch):
    """A model of other text that another machine made: its registry and its odometer stay there."""
    with patch.context() as elsewhere:
        elsewhere.setenv("CRTLIB_REGISTRY", str(home / "registry of another machine"))
        write_simulated_text(home / "o.jsonl", 9)
        trainings.train(home / "o.jsonl", out=home / "base", **SGD_GPT2 | {"policy": FINDS})
    shutil.rmtree(next(home.glob("o.jsonl*odometer*")))
    return str(home / "base")


def test_a_plan_from_a_base_that_nobody_knows_meets_nothing(tmp_path, monkeypatch):
    """It was "met", and the certificate of that very plan void."""
    text, _ = read_by_people(tmp_path, people=60)
    init = train_base_elsewhere(tmp_path, monkeypatch)
    advice = advise_on_limits(
        text, tmp_path / "labels", ["missed <= 99"], policies=[FINDS],
        conservative=["everything"], epochs=1, init=init,
    )  # fmt: skip
    assert advice.best is None and not advice.commands and not advice.rows[0].meets_limits
    reason = "It is not known what base, from which it started, has read."
    assert advice.why == f"no plan has a promise; void: {reason}"


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_said_of_a_plan_is_said_by_its_certificate(tmp_path, monkeypatch, name):
    text, _ = read_by_people(tmp_path, people=80)
    settings = {"policy": FINDS, "conservative": "everything", "unit": "turn"} | SETTINGS[name]
    if settings.get("init") == "elsewhere":
        settings["init"] = train_base_elsewhere(tmp_path, monkeypatch)
    elif "init" in settings:
        write_simulated_text(tmp_path / "o.jsonl", 9)
        start = SGD_GPT2 | {"policy": FINDS}
        trainings.train(tmp_path / settings["init"], out=tmp_path / "base", **start)
        settings["init"] = str(tmp_path / "base")
    limits = ["missed <= 99", "delta <= 1e-3", "trace <= 99%", "epsilon <= 3"]
    pair = ("policy", "conservative", "unit")
    policy, conservative, unit = (settings[key] for key in pair)
    others = {key: value for key, value in settings.items() if key not in pair}
    (row,) = advise_on_limits(
        text, tmp_path / "labels", limits, policies=[policy], conservative=[conservative],
        units=[unit], epochs=1, **others,
    ).rows  # fmt: skip
    trainings.train(
        text, out=tmp_path / "m", labels=tmp_path / "labels", epsilon=row.epsilon, epochs=1,
        **settings, **({} if "init" in settings else {"width": 4}),
    )  # fmt: skip
    made = certify.write_certificate(
        tmp_path / "m", tmp_path / "m.html", secrets_per_person=(), require=limits
    )
    assert made["limits"] == row.judged_limits
    assert made["void_because"] == row.void_reasons


def test_labels_that_advice_asks_for_are_charged_as_it_said(tmp_path):
    """ "needs 74 turns": they make a set of their own, whose pairs come on top of those of the
    first, so that every bound is wider than was planned."""
    text, _ = read_by_people(tmp_path, people=80)
    how = {"policies": ["regex:customersim"], "conservative": ["everything"], "epochs": 1}
    first = advise_on_limits(text, tmp_path / "labels", ["trace <= 12.5%"], hours=1, **how)
    (command,) = first.commands
    turns = int(re.search(r"--turns (\d+)", command)[1])
    spans = {
        d.id: [t.secrets for t in d.turns] for d in customersim.simulate_corpus(80, 3).dialogues
    }
    drawing.draw_label_tasks(text, home := tmp_path / "more", turns=turns, seed=2, forms=["jsonl"],
                  kinds=label_tasks.read_label_facts(tmp_path / "labels")["kinds"])  # fmt: skip
    known = {(t.id, t.turn): spans[t.id][t.turn] for t in label_tasks.read_tasks(home)}
    bring_known_labels(text, home, lambda t: known[t.id, t.turn])
    trace = advise_on_limits(text, home, ["trace <= 12.5%"], **how).rows[0].rates["trace"]
    planned = clopper_pearson_upper(0, trace["of"], confidence=1 - 0.05 / (4 * first.pairs))
    assert trace["count"] == 0 and trace["upper"] <= planned


def test_advice_rounds_bounds_up():
    """``crtlib advise`` printed bounds to the nearest."""
    rate = {"upper": 0.022449, "count": 0, "of": 1, "rate": 0.0, "how": "one_per_cluster"}
    row = AdviceRow(
        "a",
        "b",
        "turn",
        False,
        3.0,
        1.0,
        0.5,
        0.5,
        {"trace": rate, "public": rate},
        [],
        0.50949,
        None,
    )
    said = Advice((row,), None, "", (), 1, 1, 1).text()
    assert "2.25 %" in said and "51.0" in said


def test_how_many_were_drawn_is_told_apart_from_how_many_there_are():
    """Thirty turns of a text of 70 conversations were "30 turns of 70 people", and one pair that
    had been judged "1 pairs"."""
    advice = advise.Advice((), 0, "plan 1", (), 30, 70, 1, "conversations")
    said = "30 turns, each from a different one of the text's 70 conversations; they have judged 1"
    assert said in " ".join(advice.text().split())


def test_the_command_of_an_advice_runs_where_a_name_has_a_space(tmp_path):
    """It was printed without quotes."""
    (tmp_path / "my text").mkdir()
    text, _ = read_by_people(tmp_path / "my text", people=80)
    advice = advise_on_limits(text, tmp_path / "my text" / "labels", ["guess <= 90"], epochs=1,
                    policies=["regex:customersim"], conservative=["everything"])  # fmt: skip
    assert str(text) in shlex.split(advice.commands[0])
