"""A report on a model that somebody else trained, in the template that it was trained with."""

import random

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from confide.reports import leakage as reports
from crtlib.attacks import leakage
from crtlib.text import customersim, jsonl, templates
from crtlib.text.records import Corpus, Dialogue, Secret, Turn

COPIES = (1, 5, 20)
SECRETS = 30
BLOCK = 64


def planted():
    """90 dialogues, and 30 secrets in one, five or twenty dialogues each: numbers and names."""
    rng = random.Random(3)
    dialogues, values = list(customersim.simulate_corpus(60, 5, "rich").dialogues), []
    for k in range(SECRETS):
        number = "".join(rng.choice("0123456789") for _ in range(6))
        name = "".join(rng.choice("bdfglmnprst") + rng.choice("aeiou") for _ in range(3)).title()
        value, lead = (number, f"ticket {k} is for ") if k % 2 else (name, f"case {k} belongs to ")
        turn = Turn("USR", f"{lead}{value}", (Secret("planted", len(lead), len(lead + value)),))
        answer = Turn("SYS", "thank you , noted .")
        copies = COPIES[k % 3]
        dialogues += [Dialogue(f"s{k}-{c}", f"u{k}", (turn, answer)) for c in range(copies)]
        values.append((f"s{k}-0", value))
    rng.shuffle(dialogues)
    return Corpus("planted", tuple(dialogues)), values


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A GPT-2 trained by plain transformers on packed blocks of ``<|user|>`` markup; the secrets
    that it completes there among its top 3."""
    home = tmp_path_factory.mktemp("theirs")
    corpus, values = planted()
    texts = [p.text for p in templates.render_points(corpus, "dialogue", templates.MARKUP_TEMPLATE)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|user|>", "<|agent|>"]
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=640,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=special,
            show_progress=False,
        ),
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=special[0], eos_token=special[0]
    )
    stream = [i for e in bpe.encode_batch(texts) for i in [*e.ids, 0]]
    blocks = torch.tensor(stream[: len(stream) // BLOCK * BLOCK]).view(-1, BLOCK)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = transformers.GPT2Config(
            vocab_size=bpe.get_vocab_size(), n_embd=64, n_layer=2, n_head=2, n_positions=BLOCK,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(shape)
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
        for _ in range(EPOCHS):
            for batch in blocks[torch.randperm(len(blocks))].split(16):
                model(input_ids=batch, labels=batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    model.eval().save_pretrained(home / "model")
    fast.save_pretrained(home / "model")
    jsonl.write_jsonl(corpus, home / "corpus.jsonl")
    texts = {d.id: text for d, text in zip(corpus.dialogues, texts, strict=True)}
    known = [(name, value) for name, value in values if completed(model, bpe, texts[name], value)]
    return home, corpus, known


EPOCHS = 20


@torch.no_grad()
def completed(model, bpe, text, value):
    """Whether each token of the value is among the top 3 after the true text before it."""
    e = bpe.encode(text)
    a = text.index(value)
    spots = [i for i, (x, y) in enumerate(e.offsets) if x < a + len(value) and y > a]
    logits = model(input_ids=torch.tensor([[0, *e.ids]])).logits[0]
    return all(int((logits[i] > logits[i, e.ids[i]]).sum()) < 3 for i in spots)


def listed(trained, out, **options):
    """How many of the known secrets a report of the top 3 lists whole, and its summary."""
    home, _, known = trained
    _, summary = reports.make_leakage_report(
        home / "model", home / "corpus.jsonl", out, top_k=3, reveal=True, **options
    )
    runs = pd.read_parquet(out / "runs.parquet")
    texts = runs.groupby("document").text.agg(" | ".join)
    return sum(value in texts.get(f"{name}/0", "") for name, value in known), summary


def test_the_report_finds_all_that_the_model_completes_in_its_own_template(trained, tmp_path):
    known = len(trained[2])
    assert known >= 16
    count, summary = listed(trained, tmp_path / "by itself")
    assert count == known and summary["template"]["used"] == "markup" and "warning" not in summary
    (tmp_path / "theirs.j2").write_text(templates.MARKUP_TEMPLATE.source, encoding="utf-8")
    assert listed(trained, tmp_path / "j2", template=str(tmp_path / "theirs.j2"))[0] == known
    count, summary = listed(trained, tmp_path / "speaker", template="speaker")
    assert count < known
    assert "this model reads '<|user|>…' more easily than 'speaker'" in summary["warning"]
    count, summary = listed(trained, tmp_path / "scan", template="speaker", prefix_scan=True)
    assert count == known and summary["prefixes"]["markup"] > 0
    print("\nknown", known, "speaker", listed(trained, tmp_path / "again", template="speaker")[0])


def test_own_words_alone_are_counted_and_text_of_another_kind_is_named(trained, tmp_path):
    home, corpus, _ = trained
    model, tokenizer = reports.load_model(home / "model")
    points = templates.render_points(corpus, "turn", templates.MARKUP_TEMPLATE)[:20]
    texts, scores, masks, *_ = leakage.score_points(model, tokenizer, points, own_words=True)
    for point, text, mask in zip(points, texts, masks, strict=True):
        a, b = point.spoken_spans[0]
        said = tokenizer.decode(np.array(text.tokens)[mask].tolist())
        assert said.strip() == point.text[a:b].strip()
    assert len(scores.ranks) == len(masks) == 20
    noise = random.Random(0)
    letters = "".join(chr(c) for c in range(0x4E00, 0x4E40))
    other = Corpus(
        "other",
        tuple(
            Dialogue(str(k), str(k), (Turn("USR", "".join(noise.choices(letters, k=12))),))
            for k in range(30)
        ),
    )
    name, facts = leakage.choose_template(
        model, tokenizer, other, unit="turn", used=templates.MARKUP_TEMPLATE
    )
    assert name == "markup" and "unlike what the model was trained on" in facts["warning"]
