"""Profiles change sizes, never the method; settings are checked before anything runs."""

import copy
import json

import pytest
import yaml

from crtbook import settings as settings_studies
from crtbook.settings import (
    SECTIONS,
    Dotted,
    assign_changes,
    list_leaves,
    load_settings,
    read_parameters,
)
from crtlib import options
from crtlib.checks import ParameterError
from crtlib.training import methods

PROFILES = settings_studies.profile_names()
METHOD = {  # numbers that belong to the method, beside all words; every other number is a size
    "epsilon", "epsilons", "delta", "gamma", "prior", "posterior", "threshold", "thresholds",
    "seed", "ablations", "methods", "workers", "canaries", "copies", "bots", "min_users",
    "pub_passes", "public_epochs", "public_trials",
}  # fmt: skip
SIZES = {"schema_guided": 12_174, "multiwoz": 8_437, "multiwoz_held_out": 1_599}
"""Dialogues that a profile may count on; Schema-Guided Dialogue has 16,142 for training."""


def flat(tree, above=""):
    for name, entry in dict(tree).items():
        if hasattr(entry, "items"):
            yield from flat(entry, f"{above}{name}.")
        else:
            yield f"{above}{name}", entry


@pytest.fixture
def quick():
    return yaml.safe_load((settings_studies.FOLDER / "quick.yml").read_text())


# --------------------------------------------------------------------------- profiles
OF_A_PART = ("smollm2", "h100", "at_hand", "converged", "settled", "tenth")
"""Profiles of the model and methods of one chapter or one figure, or of corpora of their own."""
WHOLE = [name for name in PROFILES if name not in OF_A_PART]
"""Profiles of all chapters."""


def test_profiles_differ_in_sizes_only():
    assert PROFILES[:3] == ["quick", "laptop", "paper"]
    for section in SECTIONS:
        quick = dict(flat(load_settings(section)))
        for name in WHOLE:
            for key, entry in flat(load_settings(section, name)):
                of_a_corpus = key.startswith("data.") and key.endswith(("methods", "ablations"))
                of_the_method = key.rsplit(".", 1)[-1] in METHOD or isinstance(entry, str)
                if of_the_method and not of_a_corpus and key != "profile":
                    assert entry == quick[key], (name, section, key)


def test_corpora_that_are_not_here_do_not_change_what_a_first_look_runs():
    for section in SECTIONS:
        settings = load_settings(section)
        read = {*settings.get("corpora", ()), *settings.get("texts", ())}
        assert section == "tuning" or read <= {"customersim"}, section  # a search is no chapter


def test_every_profile_trains_every_method_on_customersim():
    for name in WHOLE:
        settings = load_settings("crt", name)
        elsewhere = ("lp_weighted", "greedy", "public", "user_dpsgd", "jft")  # in other chapters
        shown = {name for name in methods.METHODS if name not in elsewhere}
        assert {*settings.methods, *settings.ablations} == shown
        assert settings.data["customersim"].methods == settings.methods
        assert settings.data["customersim"].ablations == settings.ablations


@pytest.mark.parametrize("corpus", SIZES)
def test_the_corpora_are_large_enough_for_every_profile(corpus):
    """The search has a block of its own, of the same size if none is given; labelled dialogues are
    one more. What is left gives an attack its secrets that were not trained on."""
    for name in PROFILES:
        for section in ("crt", "tuning"):
            settings = load_settings(section, name)
            part = settings.data.get(corpus)
            read = part and (corpus in settings.corpora or part.dialogues != settings.dialogues)
            if not read:  # nor has it a size of its own
                continue
            size = part.dialogues + 2 * part.heldout
            needed = size + (part.search_block or size) + part.labelled
            assert needed + 100 <= SIZES[corpus], (name, section, needed)
        part = load_settings("screening", name).data.get(corpus)
        needed = 2 * (1 + 2 * part.heldout) + part.labelled if part else 0
        assert needed <= SIZES[corpus], (name, "screening")
        for section in ("leakage_report", "leakage_training"):
            settings = load_settings(section, name)
            if corpus in settings.corpora:
                size = settings.data[corpus].dialogues + 2 * settings.heldout
                assert 2 * size <= SIZES[corpus], (name, section)


def test_the_paper_profile_judges_on_test_sets_of_a_thousand():
    settings = load_settings("crt", "paper")
    assert {part.heldout for part in settings.data.values()} == {1000}
    assert settings.device == "auto" and settings.dialogues == 10_000


def test_a_profile_is_checked_whole(quick):
    for change, message in [
        (lambda t: t.update(crtt={}), "profile mine: crtt: unknown; allowed are own_data"),
        (lambda t: t.pop("engine"), "profile mine: engine: is missing"),
        (lambda t: t.update(crt=3), "profile mine: crt: is missing, or is not a group of settings"),
        (lambda t: t["engine"].pop("seed"), "profile mine: engine.seed: is missing"),
        (lambda t: t["engine"].update(sed=3), "profile mine: engine.sed: unknown"),
        (
            lambda t: t["crt"]["shapes"]["lstm"].update(hiden=3),
            "profile mine: crt.shapes.lstm.hiden: unknown; allowed are embedding, hidden, epochs",
        ),
        (
            lambda t: t["crt"]["data"]["multiwoz"].update(heldout=0),
            "profile mine: crt.data.multiwoz.heldout=0: must be int from 1",
        ),
        (
            lambda t: t["crt"]["data"].update(nowhere={}),
            "profile mine: crt.data.nowhere: unknown; allowed are ",
        ),
        (lambda t: t["crt"].update(shapes=3), "profile mine: crt.shapes=3: must be a group of"),
    ]:
        tree = copy.deepcopy(quick)
        change(tree)
        with pytest.raises(ParameterError) as refused:
            settings_studies.read_profile(tree, "mine")
        assert str(refused.value).startswith(message)
        assert "\n" not in str(refused.value)


def test_a_profile_says_only_what_it_changes_of_its_base():
    paper, base = load_settings("crt", "paper_lstm"), load_settings("crt", "laptop")
    assert (paper.dialogues, paper.models, paper.gammas) == (10_000, ("lstm",), base.gammas)
    assert paper.shapes.lstm.hidden == 200 and paper.shapes.gpt2 == base.shapes.gpt2
    assert load_settings("engine", "paper_lstm").trials == load_settings("engine", "laptop").trials


def test_a_profile_that_is_its_own_base_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.yml").write_text("base: b")
    (tmp_path / "b.yml").write_text("base: a")
    monkeypatch.setattr(settings_studies, "FOLDER", tmp_path)
    with pytest.raises(ParameterError, match="base='a': must be another profile"):
        settings_studies._load_tree("a")


def test_claims_utility_and_tuning_take_from_crt_what_they_do_not_say(quick):
    quick["crt"]["dialogues"] = 77
    sections = settings_studies.read_profile(quick, "mine")
    for name in ("crt", "claims", "utility", "tuning"):
        assert sections[name].dialogues == sections[name].data["customersim"].dialogues == 77
    assert not hasattr(sections["tuning"], "gammas")  # the search has one
    assert not hasattr(sections["crt"].data["customersim"], "trials")  # the figures search nothing


# --------------------------------------------------------------------------- what a field is
@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_has_a_type_a_range_and_a_sentence(section):
    for name, node in list_leaves(SECTIONS[section]):
        if name.endswith(".*"):  # epochs of a method
            continue
        item = node.get("items", node)
        assert options.describe_type(item), name
        assert node.get("description"), name
        free = options.describe_type(item) == "text"
        a_model = name.endswith(".init")  # a folder or a name on the hub
        assert not free or a_model or name in ("profile", "store"), name


def test_settings_are_frozen_and_give_their_fields_as_items():
    settings = load_settings("crt")
    shape = settings.shapes["lstm"]
    assert shape is settings.shapes.lstm
    assert {**shape} == dict(shape) == {n: getattr(shape, n) for n in shape}
    with pytest.raises(AttributeError):
        shape.hidden = 3
    with pytest.raises(KeyError):
        shape["hiden"]


# --------------------------------------------------------------------------- changes
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gamas": [0.1]}, "gamas: unknown; allowed are profile, store, workers, device, corpora"),
        ({"gamma": 0.1}, "gamma: unknown; allowed are"),
        ({"gammas": []}, "gammas=[]: must be a list of float from 0 to 1"),
        ({"gammas": 0.1}, "gammas=0.1: must be a list of float from 0 to 1"),
        ({"gammas": "[0.1"}, "gammas='[0.1': must be a list of float from 0 to 1"),
        ({"gammas": [float("nan")]}, "gammas=[nan]: must be a list of float from 0 to 1"),
        ({"gammas.first": 0.1}, "gammas.first: unknown"),
        ({"seeds": 0}, "seeds=0: must be int from 1"),
        ({"seeds": True}, "seeds=True: must be int from 1"),
        ({"workers": 1.5}, "workers=1.5: must be int from 1"),
        ({"methods": ["sdg"]}, "methods=['sdg']: must be a list of sgd|dedup"),
        ({"models": ["bert"]}, "models=['bert']: must be a list of lstm|gpt2|pretrained"),
        ({"corpora": ["nowhere"]}, "corpora=['nowhere']: must be a list of "),
        ({"corpora": ["a.jsonl"]}, "corpora=['a.jsonl']: data has sizes for customersim, schema"),
        ({"delta": 1}, "delta=1: must be float above 0 below 1"),
        ({"epsilon": -1}, "epsilon=-1: must be float above 0"),
        ({"profile": "huge"}, "profile='huge': must be one of quick, laptop, paper"),
        ({"device": "gpu"}, "device='gpu': must be auto|cpu|cuda|cuda:N"),
        ({"store": 3}, "store=3: must be text"),
        ({"shapes": {}}, "shapes={}: must be set by parts: shapes.lstm, shapes.gpt2"),
        ({"shapes": {"lsm": {"hidden": 3}}}, "shapes.lsm: unknown; allowed are lstm, gpt2"),
        ({"shapes.lstm.hiden": 3}, "shapes.lstm.hiden: unknown; allowed are embedding, hidden"),
        ({"shapes.lstm.hidden": 0}, "shapes.lstm.hidden=0: must be int from 1"),
        ({"shapes.lstm.hidden": "x"}, "shapes.lstm.hidden='x': must be int"),
        ({"shapes.lstm.epochs.crtt": 3}, "shapes.lstm.epochs.crtt: unknown; allowed are sgd"),
        ({"shapes.lstm.epochs": 3}, "shapes.lstm.epochs=3: must be set by parts: shapes.lstm.epo"),
        ({"shapes.gpt2.heads": 5}, "shapes.gpt2.heads=5: must divide hidden=64"),
        ({"data.nowhere.heldout": 3}, "data.nowhere: unknown; allowed are "),
        ({"data.customersim.policy": "rgex"}, "data.customersim.policy='rgex': must be tag"),
        ({"data.customersim.labelled": 3}, "data.customersim.labelled=3: must be 0, because no"),
        ({"data.customersim.policy": "tagger"}, "data.customersim.labelled=0: must be above 0, be"),
        ({"data.customersim.trials": 3}, "data.customersim.trials: unknown; allowed are dialogues"),
        ({"data.multiwoz.heldout": 30}, "data.multiwoz.heldout: is read by nothing under the oth"),
        ({"models": ["lstm"], "shapes.gpt2.hidden": 8}, "shapes.gpt2.hidden: is read by nothing"),
    ],
)
def test_bad_settings_are_named_in_one_line(given, message):
    with pytest.raises(ParameterError) as refused:
        read_parameters(given, "crt")
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        ("customersim", {"device": "cpu"}, "device: unknown; allowed are profile, dialogues, seed"),
        ("customersim", {"shapes.lstm.hidden": 9}, "shapes: unknown; allowed are profile"),
        ("amplification", {"accountant": "guess"}, "accountant='guess': must be pld|rdp"),
        ("reconstruction_bounds", {"trials": 99}, "trials=99: must be int from"),
        ("leakage_report", {"corpora": ["schema_guided"]}, "corpora=['schema_guided']: must begin"),
        ("leakage_report", {"shapes.table.epochs": 2}, "shapes.table.snapshots=[3, 10, 30]: must"),
        ("secret_protection", {"texts": ["nowhere"]}, "texts=['nowhere']: must be a list of "),
        ("extraction", {"noise_multipliers": [1.0]}, "noise_multipliers=[1.0]: must hold 0 and"),
        ("extraction", {"hidden": [30]}, "heads=4: must divide hidden=30"),
    ],
)
def test_the_rules_of_other_sections_too(section, given, message):
    with pytest.raises(ParameterError) as refused:
        read_parameters(given, section)
    assert str(refused.value).startswith(message)


def test_an_unknown_section_is_refused_and_a_profile_cannot_be_changed_afterwards():
    with pytest.raises(ParameterError, match="section='crtt': must be one of own_data"):
        load_settings("crtt")
    with pytest.raises(ParameterError, match="profile='paper': is chosen when"):
        load_settings("crt").but(profile="paper")


def test_strings_from_papermill_are_read_as_json():
    settings = read_parameters({"gammas": "[0.05]", "seeds": "3", "store": "x"}, "crt")
    assert (settings.gammas, settings.seeds, settings.store) == ((0.05,), 3, "x")


def test_whole_numbers_become_floats_so_that_one_and_the_same_run_has_one_key():
    assert json.dumps(read_parameters({"epsilon": 3, "gammas": [0]}, "crt").gammas) == "[0.0]"
    assert isinstance(read_parameters({"epsilon": 3}, "crt").epsilon, float)


def test_dotted_names_reach_everything():
    settings = load_settings("tuning")
    for name, entry in flat(settings):
        if name == "profile" or any(c in name for c in ("multiwoz", "wikitext2", "pretrained")):
            continue
        assert dict(flat(assign_changes(settings, {name: entry})))[name] == entry, name
    changed = assign_changes(settings, {"shapes.lstm.hidden": "200", "data.customersim.trials": 3})
    assert (changed.shapes["lstm"].hidden, changed.data["customersim"].trials) == (200, 3)
    assert changed.shapes["lstm"].epochs == settings.shapes["lstm"].epochs


def test_the_same_change_in_four_forms():
    shapes = Dotted()
    shapes.lstm.hidden = 200
    assert shapes.gpt2.assigned() == {}  # looked at, not assigned
    forms = [
        {"shapes.lstm.hidden": 200},
        {"shapes": shapes},
        {"shapes": {"lstm": {"hidden": 200}}},
        {"shapes": '{"lstm": {"hidden": 200}}'},
    ]
    made = [read_parameters(form, "crt") for form in forms]
    assert made[0].shapes.lstm.hidden == 200 and made == [made[0]] * 4
    assert read_parameters(
        {"shapes": Dotted(), "model": Dotted(), "seeds": None}, "crt"
    ) == load_settings("crt")


def test_a_change_of_gammas_asks_for_no_ablations():
    for name in PROFILES:
        assert read_parameters({"profile": name, "gammas": [0.05]}, "crt").ablation_gammas == ()
    settings = load_settings("crt").but(gammas=[0.1, 0.5], ablation_gammas=[0.3])
    assert settings.ablation_gammas == settings.but(seeds=3).ablation_gammas == (0.3,)
    assert settings.but(gammas=[0.1]).ablation_gammas == ()


def test_what_holds_for_all_corpora_is_changed_for_all():
    paper = load_settings("crt", "paper")
    assert (paper.dialogues, paper.data["schema_guided"].dialogues) == (10_000, 3_500)
    small = paper.but(dialogues=60, methods=["sgd"], models=["lstm"])
    for part in small.data.values():
        assert (part.dialogues, part.methods, part.models) == (60, ("sgd",), ("lstm",))
    apart = assign_changes(paper, {"dialogues": 60, "data.schema_guided.dialogues": 30})
    assert [apart.data[c].dialogues for c in ("customersim", "schema_guided")] == [60, 30]
    report = load_settings("leakage_report", "laptop")
    assert (report.shapes.methods.dialogues, report.data["schema_guided"].dialogues) == (100, 60)
    assert report.but(dialogues=50).shapes.methods.dialogues == 50


def test_other_settings_are_kept_when_one_is_changed():
    settings = load_settings("crt", "laptop")
    changed = settings.but(seeds=2)
    assert changed.seeds == 2 and settings.seeds == 5
    assert changed.but(seeds=5) == settings


@pytest.mark.parametrize(
    "given",
    ["9" * 5000, "[" + "9" * 5000 + "]", 10**4000, 10**5000, ["x" * 10**5], "\x1b[2K\r\u202e"],
    ids=["digits", "list", "number", "long number", "text", "controls"],
)
def test_a_value_of_any_length_is_refused_in_one_short_line(given):
    with pytest.raises(ParameterError) as error:
        read_parameters({"gammas": given}, "crt")
    assert str(error.value).isprintable() and len(str(error.value)) < 1000
