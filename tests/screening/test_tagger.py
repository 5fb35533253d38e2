"""The learned policy: it finds what it never saw, pi_c flags what pi flags, and files are whole."""

import json
import sys
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from confide import __main__ as cli
from crtlib.screening import (
    detection_recall,
    int8_layers,
    policy_changes,
    policy_names,
    rates,
    regex_policies,
    tagger,
    word_scorers,
)
from crtlib.screening.detectors import (
    detector_policy,
    join_flagged_words,
    plain_score_limit_at,
    trim_plain_words,
    word_spans,
)
from crtlib.text import canaries, corpora, customersim, data_points, jsonl
from crtlib.text.records import MASK, Point, Secret
from tests.text import original

TRAIN = data_points.make_points(customersim.simulate_corpus(60, 0, "paper"), unit="turn")
TEST = data_points.make_points(customersim.simulate_corpus(40, 1, "paper"), unit="turn")


@pytest.fixture(scope="module")
def learned():
    return tagger.train_tagger(TRAIN, seed=0, epochs=8)


def test_it_finds_secrets_that_it_never_saw(learned):
    known = {p.text[s.start : s.end] for p in TRAIN for s in p.secrets}
    fresh = [
        replace(p, secrets=tuple(s for s in p.secrets if p.text[s.start : s.end] not in known))
        for p in TEST
    ]
    assert sum(len(p.secrets) for p in fresh) > 50
    for policy in (tagger.tagger_policy(learned), tagger.conservative_tagger_policy(learned)):
        assert detection_recall.recall_by_kind(fresh, policy(fresh)).loc["all", "recall"] > 0.7
    table = detection_recall.recall_by_kind(TEST, tagger.tagger_policy(learned)(TEST))
    assert table.loc["all", "precision"] > 0.8
    assert set(table.index) == {*learned.kinds, "all"}


def test_the_conservative_policy_flags_every_character_that_pi_flags(learned):
    def characters(spans):
        return {i for s in spans for i in range(s.start, s.end)}

    pi, pi_c = tagger.tagger_policy(learned)(TEST), tagger.conservative_tagger_policy(learned)(TEST)
    assert any(map(bool, pi))
    for few, more in zip(pi, pi_c, strict=True):
        assert characters(few) <= characters(more)
    everything = detector_policy("all", learned.kinds, learned.probabilities, 1.0)(TEST)
    assert sum(map(bool, everything)) >= sum(map(bool, pi_c))


def asked_once(made):
    """The tagger's pi without what it asks with spans masked."""
    plain = plain_score_limit_at(made.threshold)
    return replace(
        detector_policy("tagger", made.kinds, made.probabilities, plain), own_words=False
    )


def test_thresholds_are_those_of_the_scores(learned):
    for threshold in (0.1, 0.3, 0.9):
        each = replace(learned, threshold=threshold)
        once = asked_once(each)(TEST)
        steady = tagger.tagger_policy(each)(TEST)
        scores = each.probabilities(TEST)
        for p, spans, kept, found in zip(TEST, once, steady, scores, strict=True):
            assert np.allclose(found.sum(1), 1, atol=1e-5)
            flagged = trim_plain_words(p.text, found[:, 0] <= 1 - threshold + 1e-9)
            for (a, b), word in zip(word_spans(p.text), flagged, strict=True):
                assert any(s.start <= a and b <= s.end for s in spans) == word
                if any(s.start <= a and b <= s.end for s in kept) and not word:  # beside a mask
                    assert len(kept) > 1
            assert bool(kept) <= bool(flagged.any())


def test_a_span_that_stays_beside_masks_stays_beside_values(learned):
    """The value of one span decides nothing about the others: fewer neighbours leave a trace of a
    secret that was not missed."""
    each = replace(learned, threshold=0.1)
    left = {}
    for name, pi in (("once", asked_once(each)), ("steady", tagger.tagger_policy(each))):
        judged = rates.RateCounter(pi, pi).add(TEST)
        left[name] = sum(bool(j.trace and not j.miss) for j in judged)
    assert left["steady"] < left["once"]


def test_labels_depend_on_the_point_and_not_on_its_company(learned):
    policy = tagger.conservative_tagger_policy(learned)
    together = policy(TEST[:80])
    assert together[::-1] == [policy([p])[0] for p in reversed(TEST[:80])]


def test_a_mask_is_never_flagged_and_no_text_crashes(learned):
    texts = ["", " ", MASK, f"{MASK}{MASK}", f"USR: {MASK} {MASK}.", f"x{MASK}y <MASK", "\n\n", "☃"]
    points = [Point(str(i), "u", t) for i, t in enumerate(texts)]
    labels = detector_policy("all", learned.kinds, learned.probabilities, 1.0)(points)
    for spans, p in zip(labels, points, strict=True):
        assert not any(MASK in p.text[s.start : s.end] for s in spans)
        assert all(p.text[s.start : s.end].strip() for s in spans)
    assert labels[4]


def test_equal_seeds_make_equal_taggers_and_leave_the_global_generator_alone():
    import torch

    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    made = [tagger.train_tagger(TRAIN[:60], seed=seed, epochs=1) for seed in (0, 0, 1)]
    assert torch.rand(1) == expected
    scores = [np.concatenate(t.probabilities(TEST[:30])) for t in made]
    assert (scores[0] == scores[1]).all() and (scores[0] != scores[2]).any()


def test_saved_and_loaded_it_says_the_same(learned, tmp_path):
    tagger.save_tagger(learned, tmp_path / "t")
    policy = policy_names.policy_by_name(f"tagger:{tmp_path / 't'}")
    assert policy(TEST) == tagger.tagger_policy(learned)(TEST)
    careful = policy_names.policy_by_name(f"tagger_conservative:{tmp_path / 't'}")
    assert careful(TEST) == tagger.conservative_tagger_policy(learned)(TEST)
    assert (policy.name, careful.name) == ("tagger", "tagger_conservative")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tagger.json", None, "holds no tagger.json"),
        ("tagger.safetensors", None, "holds no tagger.json"),
        ("tagger.safetensors", b"x" * 99, "damaged"),
        ("tagger.json", b"{}", "damaged"),
        ("tagger.json", b'{"kinds": ["a"], "version": 2}', "damaged"),
    ],
)
def test_a_damaged_folder_is_refused(learned, tmp_path, file, content, message):
    tagger.save_tagger(learned, tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        tagger.load_tagger(tmp_path)


def test_neighbouring_secrets_are_two_spans_and_one_secret_is_one():
    text = "wire Ada Lovelace $5,120.50 now"
    begins, goes_on = np.zeros((6, 2)), np.zeros((6, 2))
    begins[1, 0], goes_on[2, 1], begins[3, 1], goes_on[4, 1] = 1, 0.4, 1, 1
    flagged = (begins + goes_on).any(1)
    spans = join_flagged_words(text, flagged, begins, goes_on, ("name", "amount"))
    assert [(s.kind, text[s.start : s.end]) for s in spans] == [
        ("name", "Ada Lovelace"),
        ("amount", "$5,120.50"),
    ]


@pytest.mark.parametrize("kind", ["regex", "everything", "neighbour"])
def test_label_stability_counts_what_it_should(kind):
    """A policy that looks at nothing but the word is stable; one that looks at the next is not."""
    text = "USR: My ID is 341752 and 7"
    points = [Point("0", "u", text, (Secret("id", 14, 20),))]

    def neighbour(points):
        return [(Secret("n", 25, 26),) if "341752" in p.text else () for p in points]

    policy = {
        "regex": regex_policies.corpus_regex_policy(),
        "everything": regex_policies.everything_policy,
        "neighbour": neighbour,
    }
    assert detection_recall.count_unstable_flags(policy[kind], points) == (
        int(kind == "neighbour"),
        1,
    )


def test_regular_expressions_are_stable_and_the_tagger_is_measured(learned):
    assert detection_recall.count_unstable_flags(regex_policies.corpus_regex_policy(), TEST)[0] == 0
    changed, secrets = detection_recall.count_unstable_flags(tagger.tagger_policy(learned), TEST)
    assert 0 <= changed < 0.2 * secrets


def test_canaries_are_learned_beside_the_rest():
    planted = canaries.insert_canaries(
        customersim.simulate_corpus(40, 2, "paper"),
        canaries.make_canaries(10, seed=3),
        copies=2,
        seed=3,
    )
    made = tagger.train_tagger(data_points.make_points(planted, unit="turn"), seed=0, epochs=8)
    fresh = [Point("c", "u", f"USR: My ID is: {n}") for n in (341752, 990811, 104020)]
    labels = tagger.tagger_policy(made)(fresh)
    assert all(any(s.start <= 15 and s.end == 21 for s in spans) for spans in labels)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: tagger.train_tagger([Point("0", "u", "hi")], seed=0),
            "none holds a labelled secret",
        ),
        (lambda t: tagger.train_tagger([], seed=0), "none holds a labelled secret"),
        (lambda t: tagger.train_tagger(TRAIN, seed=0, epochs=0), "epochs=0: must be at least 1"),
        (
            lambda t: tagger.train_tagger(TRAIN, seed=0, threshold=0.0),
            r"threshold=0.0: must be in \(0, 1\]",
        ),
        (lambda t: policy_names.policy_by_name("tagger:nowhere"), "nowhere: holds no tagger.json"),
    ],
)
def test_bad_arguments(learned, call, message):
    with pytest.raises(ValueError, match=message):
        call(learned)


def test_the_command_trains_and_screen_uses_it(tmp_path, monkeypatch, capsys):
    def run(*args):
        monkeypatch.setattr(sys, "argv", ["crtlib", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, capsys.readouterr()

    file = tmp_path / "d.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(30, 5, "paper"), file)
    code, said = run("tagger", file, "--epochs", 2, "--out", tmp_path / "t")
    assert code == 0 and "pi_c (tagger_conservative)" in said.out
    summary = json.loads((tmp_path / "t" / "summary.json").read_text())
    assert 0 <= summary["pi"]["flagged_points"] <= summary["judged_points"]
    assert f"on {summary['judged_points']} held-out points of people who did not teach" in said.out
    options = ["--policy", f"tagger:{tmp_path / 't'}", "--out", tmp_path / "s"]
    careful = ["--conservative", f"tagger_conservative:{tmp_path / 't'}", "--unit", "turn"]
    assert run("screen", file, *options, *careful)[0] == 0
    told = json.loads((tmp_path / "s" / "summary.json").read_text())
    assert told["public"] + told["private"] <= told["points"]  # copies of public points are gone
    bare = original.annotate(
        corpora.read_corpus_at(file),
        policy_changes.with_misses(regex_policies.oracle_policy, 1.0, 0),
    )
    jsonl.write_jsonl(bare, file)
    code, said = run("tagger", file, "--out", tmp_path / "none")
    assert code == 2 and "none holds a labelled secret" in said.err and said.err.count("\n") == 1
    assert not (tmp_path / "none").exists()
    code, said = run(
        "screen", file, "--policy", "oracle", "--unit", "turn", "--out", tmp_path / "n"
    )
    assert code == 0 and "without --labels nothing" in said.out and "pi flagged nothing" in said.out


# --------------------------------------------------------------------------- a pre-trained encoder
@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """An encoder of transformers with two small layers, and a tokenizer that knows few words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("backbone")
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names = dict.fromkeys([*special, *letters, *(f"##{c}" for c in letters), "i", "am", "usr"])
    cut = Tokenizer(models.WordPiece({w: k for k, w in enumerate(names)}, unk_token="[UNK]"))
    cut.normalizer, cut.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=cut, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
    ).save_pretrained(folder)  # fmt: skip
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(names), intermediate_size=64, **sizes)
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def encoded(backbone):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            word_scorers.EncoderScorer, "learning_rate", 3e-3
        )  # it has learned nothing before
        return tagger.train_tagger(TRAIN[:120], seed=0, epochs=7, backbone=backbone, threshold=0.2)


def test_an_encoder_answers_each_text_as_if_it_stood_alone(encoded):
    long = replace(TEST[0], text=" ".join(p.text for p in TEST[:60]), secrets=())
    points = [*TEST[:20], long, Point("m", "u", f"USR: {MASK} ☃ \u200b x."), Point("e", "u", "")]
    together = encoded.probabilities(points)
    for p, found in zip(points, together, strict=True):
        assert np.array_equal(found, encoded.probabilities([p])[0])
        assert found.shape == (len(word_spans(p.text)), 1 + 2 * len(encoded.kinds))
    assert len(together[20]) > 500  # longer than any model of this kind reads at once
    for policy in (tagger.tagger_policy(encoded), tagger.conservative_tagger_policy(encoded)):
        assert len(policy(points)) == len(points)


def test_an_encoder_says_the_same_in_2000_companies(encoded, monkeypatch):
    """Of 2,000 pairs of a text and the others it is scored with, drawn at random."""
    draws = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    texts = ["i am " + "".join(draws.choice(letters, 4 + k % 6)) for k in range(300)]
    sentences = [encoded.net.read(text) for text in texts]
    shapes = defaultdict(set)
    forward = encoded.net.forward

    def recorded(lots):
        shapes[len(lots[0])].add(tuple(map(len, lots)))
        return forward(lots)

    monkeypatch.setattr(encoded.net, "forward", recorded)
    seen, compared = {}, 0
    with torch.inference_mode():
        while compared < 2000:
            company = draws.choice(len(texts), draws.integers(1, 300), replace=False)
            for k, scores in encoded.net.scores([sentences[i] for i in company]):
                known = seen.setdefault(company[k], scores)
                compared += known is not scores
                assert np.array_equal(known, scores)
    assert len(shapes) > 3 and all(len(some) == 1 for some in shapes.values())


@pytest.fixture(scope="module")
def encoded_in_int8(backbone):
    try:
        int8_layers.check_exact_products()
    except ValueError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_scorers.EncoderScorer, "learning_rate", 3e-3)
        return tagger.train_tagger(TRAIN[:30], seed=0, epochs=1, backbone=backbone, int8=True)


def test_an_encoder_of_int8_says_the_same_in_any_company(encoded_in_int8):
    """Beside texts whose inputs are a thousand times as large, too: each token has its own scale,
    where ONNX Runtime has one for a lot."""
    net, draws = encoded_in_int8.net, np.random.default_rng(0)
    layers = [m for m in net.modules() if isinstance(m, int8_layers.Int8Linear)]
    assert len(layers) > 12 and not any(isinstance(m, torch.nn.Linear) for m in net.modules())
    tokens = torch.randn(40, layers[0].weight.shape[1])
    large = torch.cat([tokens, 1000 * tokens])
    assert torch.equal(layers[0](large)[:40], layers[0](tokens))
    sentences = [net.read(p.text) for p in TEST[:60]]
    with torch.inference_mode():
        together = dict(net.scores(sentences))
        for k in draws.permutation(60)[:20]:
            ((_, alone),) = net.scores([sentences[k]])
            assert np.array_equal(alone, together[k])


def test_an_encoder_of_int8_is_judged_as_it_will_run(encoded_in_int8, tmp_path):
    tagger.save_tagger(encoded_in_int8, tmp_path / "t")
    again = tagger.load_tagger(tmp_path / "t")
    for ours, theirs in zip(
        encoded_in_int8.probabilities(TEST[:50]), again.probabilities(TEST[:50]), strict=True
    ):
        assert np.array_equal(ours, theirs)
    layer = torch.nn.Linear(64, 3)
    inputs = torch.randn(5, 64)
    error = int8_layers.Int8Linear(layer)(inputs) - layer(inputs)
    assert error.abs().max() < 0.05


def test_int8_is_refused_where_it_would_be_nothing_or_wrong(encoded_in_int8, monkeypatch):
    with pytest.raises(ValueError, match="int8=True: must be False where no backbone"):
        tagger.train_tagger(TRAIN[:50], seed=0, int8=True)
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: (a.int() @ b.int()).clamp(max=2**15 - 1))
    with pytest.raises(ValueError, match="int8=True: torch has no exact products"):
        int8_layers.put_linear_layers_in_int8(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_an_encoder_learns_and_a_word_is_as_little_plain_as_its_least_plain_token(encoded):
    net = encoded.net
    tokens, of = net.read("USR: I am Wilhelmina.")
    assert len(tokens) > len(word_spans("USR: I am Wilhelmina.")) and sorted(of) == of
    with torch.inference_mode():
        ((_, scores),) = net.scores([(tokens, of)])
        alone = net([tokens]).softmax(-1)[:, 0].numpy()
    for k, row in enumerate(scores):
        assert abs(row[0] - min(alone[i] for i, w in enumerate(of) if w == k)) < 1e-5
        losses = [
            net.loss([net.read(p.text)], [tagger._word_tags(p, encoded.kinds)]).item()
            for p in TRAIN[:50]
        ]
    assert np.mean(losses) < 0.5 * np.log(1 + 2 * len(encoded.kinds))


def test_an_encoder_is_saved_with_all_that_reads_it_again(encoded, tmp_path):
    tagger.save_tagger(encoded, tmp_path / "t")
    again = tagger.load_tagger(tmp_path / "t")
    assert (again.threshold, again.backbone) == (0.2, encoded.backbone)
    assert tagger.tagger_policy(again)(TEST[:50]) == tagger.tagger_policy(encoded)(TEST[:50])
    (tmp_path / "t" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"its config.json is for a model that is not known here"):
        tagger.load_tagger(tmp_path / "t")


def test_a_backbone_that_is_none_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("CRTLIB_CACHE", str(tmp_path))
    monkeypatch.setattr("crtlib.screening.word_scorers.MINILM_PACKAGE", "no_such_package")
    for name, says in (
        ("minilm", r"needs crtlib\[encoder\]"),
        (str(tmp_path), "holds no config.json of a transformers model"),
    ):
        with pytest.raises(ValueError, match=says) as error:
            tagger.train_tagger(TRAIN[:50], seed=0, backbone=name)
        assert "\n" not in str(error.value)
