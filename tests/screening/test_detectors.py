"""Detectors of other packages: whole words, thresholds by kind, no text beyond the context lost."""

import importlib.util
import json
import pathlib
import pickle
from types import SimpleNamespace

import pytest
import torch

from crtlib.screening import detectors as policy_values
from crtlib.screening import ner, policy_names, presidio, tagger
from crtlib.screening.policy import as_policy
from crtlib.text import data_points
from crtlib.text.records import MASK, Corpus, Dialogue, Point, Turn

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "call",
    "ada",
    "love",
    "##lace",
    "now",
    ".",
]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def points(*texts):
    return [Point(str(i), "u", t) for i, t in enumerate(texts)]


def found(labels, text):
    return [(s.kind, text[s.start : s.end]) for s in labels]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A token classifier whose embedding of a word decides its tag: ada B-PER, love(lace) I-PER."""
    from transformers import BertConfig, BertForTokenClassification, BertTokenizerFast

    folder = tmp_path_factory.mktemp("ner")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=12).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=8,
        num_hidden_layers=0,
        num_attention_heads=1,
        max_position_embeddings=12,
        id2label=dict(enumerate(TAGS)),
        label2id={t: i for i, t in enumerate(TAGS)},
    )
    net = BertForTokenClassification(config)
    embed = net.bert.embeddings
    tag = {"ada": 1, "love": 2, "##lace": 2, "now": 3}
    with torch.no_grad():
        for table in (embed.position_embeddings, embed.token_type_embeddings):
            table.weight.zero_()
        embed.word_embeddings.weight.copy_(
            torch.nn.functional.one_hot(torch.tensor([tag.get(w, 0) for w in VOCABULARY]), 8)
        )
        net.classifier.weight.copy_(torch.eye(5, 8))
        net.classifier.bias.zero_()
    net.save_pretrained(folder)
    return folder


def test_a_local_transformers_model(model):
    policy = ner.ner_policy(str(model), plain_score_limit=0.5)
    text = f"call ada lovelace, now. {MASK}"
    assert policy.learned and policy.name == f"ner:{model}"
    assert found(policy(points(text))[0], text) == [("PER", "ada lovelace"), ("LOC", "now")]
    strict = ner.ner_policy(str(model), plain_score_limit=1e-6)
    assert strict(points(text)) == [()]
    assert policy(points("", " ", MASK)) == [(), (), ()]
    named = policy_names.policy_by_name(f"ner:{model}")
    assert set(policy(points(text))[0]) <= set(named(points(text))[0])


def test_the_conservative_policy_flags_what_is_not_surely_plain(model):
    pi = ner.ner_policy(str(model), plain_score_limit=1e-3)
    pi_c = policy_names.policy_by_name(f"ner_conservative:{model}")
    text = "call ada now"
    assert pi(points(text)) == [()]
    flagged = pi_c(points(text))[0]
    assert flagged[0].start <= text.index("ada") and flagged[-1].end == len(text)


def test_words_beyond_the_context_are_read(model):
    text = "call . " * 30 + "ada lovelace " + "call . " * 30 + "now"
    policy = ner.ner_policy(str(model), plain_score_limit=0.5)
    assert found(policy(points(text))[0], text) == [("PER", "ada lovelace"), ("LOC", "now")]
    assert policy(points("call", text, "ada"))[1] == policy(points(text))[0]


def test_pickled_weights_are_refused(model, tmp_path):
    from safetensors.torch import load_file

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    torch.save(load_file(model / "model.safetensors"), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="is not a transformers encoder with safetensors"):
        ner.ner_policy(str(tmp_path))


EVIL = """
import pathlib
pathlib.Path({mark!r}).write_text("it ran")
class Evil:
    pass
"""


def copied(model, folder, **changes):
    """The model's folder with keys of its JSON files changed; None takes a key out."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name, keys in changes.items():
        told = json.loads((folder / f"{name}.json").read_text()) | keys
        told = {k: v for k, v in told.items() if v is not None}
        (folder / f"{name}.json").write_text(json.dumps(told))
    return folder


CODE = {"AutoConfig": "evil.Evil", "AutoModelForTokenClassification": "evil.Evil"}


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"auto_map": CODE, "model_type": "evil"}},
        {"config": {"auto_map": CODE, "model_type": None}},
        {
            "config": {
                "auto_map": {k: f"other/repo--{v}" for k, v in CODE.items()},
                "model_type": "e",
            }
        },
        {
            "tokenizer_config": {
                "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]},
                "tokenizer_class": "Evil",
            }
        },
        {"config": {"auto_map": CODE}, "tokenizer_config": {"auto_map": {"AutoTokenizer": CODE}}},
    ],
)
def test_no_code_of_a_folder_is_run_and_nobody_is_asked(model, tmp_path, monkeypatch, changes):
    folder = copied(model, tmp_path / "m", **changes)
    (folder / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "mark")))
    monkeypatch.setattr("builtins.input", lambda *a: pytest.fail("it asked whether to run code"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        policy = ner.ner_policy(str(folder))
    except ValueError as error:
        assert str(error).startswith(f"policy='ner:{folder}'") and "\n" not in str(error)
    else:  # the library's own class stands in for the folder's
        assert policy(points("call ada now"))
    assert not (tmp_path / "mark").exists()


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return pathlib.Path.write_text, (pathlib.Path(self.mark), "it ran")


def hostile(kind, mark):
    """Bytes that stand where weights should."""
    if kind == "pickle":
        return pickle.dumps(Bomb(mark))
    if kind == "a header beyond the file":
        return (2**63 - 1).to_bytes(8, "little") + b"{}"
    if kind == "a header of a gigabyte":
        return (2**30).to_bytes(8, "little") + b" " * 64
    if kind == "a tensor beyond the file":
        header = b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
        return len(header).to_bytes(8, "little") + header
    return b"" if kind == "empty" else b"no weights at all"


HOSTILE = (
    "pickle", "a header beyond the file", "a header of a gigabyte", "a tensor beyond the file",
    "empty", "noise",
)  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_weights_are_refused_in_one_line(model, tmp_path, kind):
    mark = tmp_path / "mark"
    folder = copied(model, tmp_path / "m")
    (folder / "model.safetensors").write_bytes(hostile(kind, mark))
    with pytest.raises(ValueError, match="is not a transformers encoder with safetensors") as error:
        ner.ner_policy(str(folder))
    taught = tmp_path / "t"
    taught.mkdir()
    (taught / "tagger.json").write_text('{"version": 2, "kinds": ["name"]}')
    (taught / "tagger.safetensors").write_bytes(hostile(kind, mark))
    with pytest.raises(ValueError, match="its tagger is damaged or is not a tagger") as other:
        tagger.load_tagger(taught)
    assert not mark.exists()
    assert "\n" not in str(error.value) + str(other.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"version": "1.0", "model": {"type": "Nobody"}}'),
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer_config.json", "\x00"),
        ("config.json", "[]"),
        ("config.json", '{"model_type": "bert", "hidden_size": "many"}'),
        ("config.json", '{"model_type": "bert", "num_labels": -1, "id2label": 7}'),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(model, tmp_path, file, content):
    folder = copied(model, tmp_path / "m")
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=f"policy='ner:{folder}': '{folder}': ") as error:
        ner.ner_policy(str(folder))
    assert "\n" not in str(error.value)


def test_a_model_sees_the_turns_own_words_and_not_who_speaks(model):
    """To a model "now" would be a place also where it is only who speaks."""
    corpus = Corpus(
        "c",
        (
            Dialogue(
                "d",
                "u",
                (Turn("now", "call ada"), Turn("ada", "now .")),
            ),
        ),
    )
    policy = ner.ner_policy(str(model), plain_score_limit=0.5)
    assert found(policy(points("now: call ada"))[0], "now: call ada")[0] == ("LOC", "now")
    for unit, expected in (("turn", [["ada"], ["now"]]), ("dialogue", [["ada", "now"]])):
        some = data_points.make_points(corpus, unit)
        said = [[text for _, text in found(spans, p.text)] for p, spans in
                zip(some, policy(some), strict=True)]  # fmt: skip
        assert said == expected


def test_tags_of_every_style_are_read():
    kinds, columns = ner._kinds_and_columns(["O", "S-PER", "B-PER", "E-PER", "I-PER", "DATE-TIME"])
    assert kinds == ("DATE-TIME", "PER")
    assert columns.sum() == 6 and columns[0, 0] == 1
    per = 1 + 2 * kinds.index("PER")
    assert columns[1:5].argmax(1).tolist() == [per, per, per + 1, per + 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: policy_values.plain_score_limit_at(0.0), r"must be in \(0, 1\]"),
        (
            lambda: policy_values.detector_policy("d", ("A",), None, plain_score_limit=1.5),
            r"plain_score_limit=1.5: must be in",
        ),
        (
            lambda: policy_names.policy_by_name("ner:/no/such/folder"),
            "'/no/such/folder': is neither a folder",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_missing_package_says_what_to_install(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda n, *a: None if n == "presidio_analyzer" else real(n, *a),
    )
    expected = "policy='presidio': needs .*pip install presidio-analyzer"
    with pytest.raises(ValueError, match=expected) as error:
        policy_names.policy_by_name("presidio")
    assert "\n" not in str(error.value)


def test_presidio():
    pytest.importorskip("presidio_analyzer", reason="presidio-analyzer is not installed")
    import spacy
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    class Blank(SpacyNlpEngine):
        """Tokenises and finds no names, so that no model has to be fetched."""

        def load(self):
            self.nlp = {"en": spacy.blank("en")}

    nlp = Blank()
    nlp.load()
    engine = AnalyzerEngine(nlp_engine=nlp, supported_languages=["en"])
    text = f"USR: mail ada@example.com or 4111 1111 1111 1111 {MASK}"
    policy = as_policy(presidio.presidio_policy(engine=engine))
    assert ("CREDIT_CARD", "4111 1111 1111 1111") in found(policy(points(text, ""))[0], text)


def test_what_presidio_finds_is_widened_to_words_and_a_mask_is_none():
    class Engine:
        """Finds what it is told, as Presidio's engine does."""

        def analyze(self, text, language, score_threshold):
            assert (language, score_threshold) == ("en", 0.3)
            at = text.find("da Love")
            return [SimpleNamespace(entity_type="PERSON", start=at, end=at + 7)] * (at >= 0)

    policy = as_policy(presidio.presidio_policy(engine=Engine()))
    text = f"mail Ada Lovelace {MASK}"
    assert [found(spans, text) for spans in policy(points(text, MASK, ""))] == [
        [("PERSON", "Ada Lovelace")], [], []
    ]  # fmt: skip
    assert policy.learned and policy.own_words
