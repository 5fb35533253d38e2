"""Detectors of other packages: whole words, thresholds by kind, no text beyond the context lost."""

import importlib.util

import numpy as np
import pytest
import torch

from crtlib.screening import by_name, detectors
from crtlib.screening.policy import checked, words
from crtlib.text.records import MASK, Point

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "call", "ada", "love", "##lace", "now", "."]
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
    policy = detectors.transformers_ner(str(model), threshold=0.5)
    text = f"call ada lovelace, now. {MASK}"
    assert policy.learned and policy.name == f"ner:{model}"
    assert found(policy(points(text))[0], text) == [("PER", "ada lovelace"), ("LOC", "now")]
    strict = detectors.transformers_ner(str(model), threshold=0.5, thresholds={"LOC": 1.0})
    assert found(strict(points(text))[0], text) == [("PER", "ada lovelace")]
    assert policy(points("", " ", MASK)) == [(), (), ()]
    named = by_name.policy_by_name(f"ner:{model}")
    assert set(policy(points(text))[0]) <= set(named(points(text))[0])


def test_the_conservative_policy_flags_what_is_not_surely_plain(model):
    pi = detectors.transformers_ner(str(model), threshold=0.9)
    pi_c = by_name.policy_by_name(f"ner_conservative:{model}")
    text = "call ada now"
    assert pi(points(text)) == [()]
    flagged = pi_c(points(text))[0]
    assert flagged[0].start <= text.index("ada") and flagged[-1].end == len(text)


def test_words_beyond_the_context_are_read(model):
    text = "call . " * 30 + "ada lovelace " + "call . " * 30 + "now"
    policy = detectors.transformers_ner(str(model), threshold=0.5)
    assert found(policy(points(text))[0], text) == [("PER", "ada lovelace"), ("LOC", "now")]
    assert policy(points("call", text, "ada"))[1] == policy(points(text))[0]


def test_pickled_weights_are_refused(model, tmp_path):
    from safetensors.torch import load_file

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    torch.save(load_file(model / "model.safetensors"), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="no token-classification model with safetensors"):
        detectors.transformers_ner(str(tmp_path))


def test_tags_of_every_style_are_read():
    kinds, columns = detectors._columns(["O", "S-PER", "B-PER", "E-PER", "I-PER", "DATE-TIME"])
    assert kinds == ("DATE-TIME", "PER")
    assert columns.sum() == 6 and columns[0, 0] == 1
    per = 1 + 2 * kinds.index("PER")
    assert columns[1:5].argmax(1).tolist() == [per, per, per + 1, per + 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detectors.detector("d", ("A",), None, thresholds={"B": 0.1}), "'B' is no kind"),
        (lambda: detectors.detector("d", ("A",), None, threshold=0.0), r"must be in \(0, 1\]"),
        (lambda: detectors.detector("d", ("A",), None, plain=1.5), r"plain=1.5: must be in"),
        (lambda: by_name.policy_by_name("ner:/no/such/folder"), "policy='ner:/no/such/folder': no"),
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
        by_name.policy_by_name("presidio")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["flair:x", "flair_conservative:/tmp/m.pt"])
def test_a_flair_model_is_not_read_by_name_as_its_files_are_pickles(name):
    with pytest.raises(ValueError, match="flair's files are pickles, which run code") as error:
        by_name.policy_by_name(name)
    assert "\n" not in str(error.value)


def test_flair():
    pytest.importorskip("flair", reason="flair is not installed")
    from flair.data import Dictionary
    from flair.embeddings import OneHotEmbeddings
    from flair.models import SequenceTagger

    torch.manual_seed(0)
    tags = Dictionary(add_unk=False)
    for tag in ("PER", "LOC"):
        tags.add_item(tag)
    vocabulary = Dictionary()
    for word in ("call", "Ada"):
        vocabulary.add_item(word)
    made = SequenceTagger(OneHotEmbeddings(vocabulary), tags, "ner", hidden_size=8)
    text = f"call Ada Lovelace now {MASK}"
    everything = detectors.flair(made, threshold=1e-9)
    flagged = everything(points(text, ""))[0]
    assert {s.kind for s in flagged} <= {"PER", "LOC"}
    covered = {i for s in flagged for i in range(s.start, s.end)}
    assert all(set(range(a, b)) <= covered for a, b in words(text)[:4])
    assert not covered & set(range(text.index(MASK), len(text)))
    assert detectors.flair(made, threshold=1.0)(points(text)) == [()]


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
    options = {"engine": engine, "entities": ["EMAIL_ADDRESS", "CREDIT_CARD"]}
    policy = checked(detectors.presidio(**options))
    assert found(policy(points(text, ""))[0], text) == [
        ("EMAIL_ADDRESS", "ada@example.com"),
        ("CREDIT_CARD", "4111 1111 1111 1111"),
    ]
    options["entities"].append("URL")
    detectors.presidio(**options, thresholds={"EmailRecognizer": 1.0, "URL": 0.9})
    with pytest.raises(ValueError, match="'Nobody' is unknown"):
        detectors.presidio(**options, thresholds={"Nobody": 0.5})


def test_by_word_takes_the_least_plain_token():
    rows = [(0, 3, np.array([0.9, 0.1, 0])), (3, 6, np.array([0.2, 0, 0.8]))]
    assert detectors._by_word("abcdef gh", rows, 1).tolist() == [[0.2, 0, 0.8], [1, 0, 0]]
