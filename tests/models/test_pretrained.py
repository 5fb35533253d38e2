"""Every architecture of today, in and out: tiny random folders, trained by the command line.

Run this file with ``-s`` to see the table; that of the engine (clipped sums against the loop, whole
and LoRA, float32 and bfloat16) is in ``tests/training/test_architectures.py``.
"""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from crtlib import outputs
from crtlib.models import model_folder, pretrained, scoring
from crtlib.studies import study_data, study_run
from crtlib.studies.crt_study import CrtStudy
from crtlib.text import customersim, jsonl, templates
from crtlib.text.records import MASK
from crtlib.text.tokenizer import adapt_tokenizer
from crtlib.training import clipping
from tests.training.test_architectures import CONFIGS

VOCABULARY = 320
SIZES = {"vocab_size": VOCABULARY}
LLAMA4 = transformers.Llama4TextConfig(
    hidden_size=8, intermediate_size=8, intermediate_size_mlp=8, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=4, num_local_experts=2,
)  # fmt: skip


def tiny(name, path, *, ends=("<|endoftext|>", "</s>"), padded=0):
    """A folder as a hub would deliver it: random weights, dropout, a byte-level BPE of its own."""
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    texts = [f"{t.speaker}: {t.text}" for t in customersim.simulate_corpus(30, 7, "paper").turns()]
    plain.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            special_tokens=list(ends),
            show_progress=False,
        ),
    )
    plain.post_processor = processors.ByteLevel(trim_offsets=False)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token=ends[0], eos_token=ends[1]
    ).save_pretrained(path)
    config = LLAMA4 if name == "llama4" else CONFIGS[name]()
    config.vocab_size = VOCABULARY + padded
    for key in ("max_position_embeddings", "n_positions"):
        if hasattr(config, key):
            setattr(config, key, 64)
    for key in ("attention_dropout", "resid_pdrop", "hidden_dropout"):
        if hasattr(config, key):
            setattr(config, key, 0.1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "dialogues.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(16, 0, "paper"), path)
    return path


ARCHITECTURES = [name for name in CONFIGS if name not in ("llama-biases", "phi3")]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_trained_by_the_command_line_and_read_by_transformers(name, corpus, run, tmp_path):
    """Adapters for every second architecture, all weights for the others."""
    source = tiny(name, tmp_path / "source")
    lora = 2 * (ARCHITECTURES.index(name) % 2)
    out = tmp_path / "model"
    code, told, err = run(
        "train", corpus, "--unit", "turn", "--method", "crt", "--init", source, "--lora", lora,
        "--epochs", 1, "--canaries", 0, "--out", out,
    )  # fmt: skip
    assert code == 0, err
    assert re.search(r"held-out perplexity .* tokens: [\d.]+ bits a character", told)
    assert ("LoRA 2" in told) == bool(lora)
    assert outputs.require_marker(out)["command"] == "train"
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    own, bpe = model_folder.load_model(out), adapt_tokenizer(source)
    text = "USR: my ID is: 4217 <MASK>"
    ids = tokenizer(text).input_ids
    assert ids == bpe.encode_prefix(text) and (tokenizer.bos_token, bpe.eos_token) == (
        "<|endoftext|>",
        "</s>",
    )
    assert tokenizer.decode(ids, skip_special_tokens=True).endswith(MASK)
    with torch.no_grad():
        torch.testing.assert_close(
            model(torch.tensor([ids])).logits,
            own[0](input_ids=torch.tensor([ids])).logits,
        )
    written = model.generate(torch.tensor([ids]), max_new_tokens=3)
    assert written.shape[1] <= len(ids) + 3 and model.generation_config.eos_token_id == bpe.eos
    code, _, err = run("report", out, "--corpus", corpus, "--out", tmp_path / "report")
    assert code == 0 and (tmp_path / "report" / "report.html").exists(), err
    print(f"\n{name:9} lora {lora} {told.splitlines()[-2]}", end="")


def test_training_moves_what_it_should_and_the_adapter_gives_the_merged_weights(
    corpus, run, tmp_path, monkeypatch
):
    source, out = tiny("llama", tmp_path / "source"), tmp_path / "model"
    options = ["--unit", "turn", "--method", "sgd", "--epochs", 1, "--canaries", 0]
    assert run("train", corpus, *options, "--init", source, "--lora", 2, "--out", out)[0] == 0
    before, after = load_file(source / "model.safetensors"), load_file(out / "model.safetensors")
    moved = {
        key.rpartition("layers.")[2]
        for key in before
        if not torch.equal(before[key], after[key][: len(before[key])])
    }
    assert moved and all("proj" in key for key in moved)
    config = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "source"  # no path of this machine
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    base = pretrained.load_with_added_tokens(source, adapt_tokenizer(source))
    whole = peft.PeftModel.from_pretrained(base, out / "adapter").merge_and_unload().state_dict()
    # The folder itself holds merged weights: an adapter_config.json beside them would make
    # transformers read the base in their place. Its adapter is what peft opens, given the base.
    monkeypatch.chdir(tmp_path)
    auto = peft.AutoPeftModelForCausalLM.from_pretrained(out / "adapter")
    merged = transformers.AutoModelForCausalLM.from_pretrained(out)
    ids = torch.tensor([adapt_tokenizer(source).encode_prefix("USR: my ID is: 4217")])
    with torch.no_grad():
        mine, theirs = (m(ids).logits[..., : auto.config.vocab_size] for m in (auto, merged))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    for key, tensor in after.items():
        torch.testing.assert_close(whole[key], tensor, rtol=1e-5, atol=1e-6)
    card = (out / "README.md").read_text()
    assert 'library_name: "transformers"' in card and 'base_model: "source"' in card
    assert "adapter/" in card and str(tmp_path) not in card
    again = tmp_path / "again"  # a finished model is a start like any other
    assert run("train", corpus, *options, "--init", out, "--out", again)[0] == 0
    tokens = [transformers.AutoTokenizer.from_pretrained(f) for f in (out, again)]
    assert tokens[0].get_vocab() == tokens[1].get_vocab()


NAMED = (  # what stands around a text looks like a secret: policies must not read it
    "{{ bos_token }}{% for m in messages %}Ada Byron as {{ m.role }}> {{ m.content }}\n{% endfor %}"
)


@pytest.mark.parametrize("given", ["plain", "chat", "named.j2"])
def test_turns_become_text_as_the_template_says(given, corpus, run, tmp_path):
    """And the report reads them so, without being told."""
    source, out, name = tiny("llama", tmp_path / "source"), tmp_path / "model", given
    if given == "chat":  # the model's own is the default
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        tokenizer.chat_template = NAMED
        tokenizer.save_pretrained(source)
    if given == "named.j2":
        name = str(tmp_path / given)
        (tmp_path / given).write_text(NAMED)
    options = [] if given == "chat" else ["--template", name]
    code, told, err = run(
        "train", corpus, "--unit", "turn", "--method", "crt", "--init", source, "--epochs", 1,
        "--canaries", 2, "--copies", 2, "--out", out, "--repeatable-noise", *options,
    )  # fmt: skip
    assert code == 0 and "exposure of 2 canaries" in told, err
    said = {"role": "user", "content": "My ID is: "}
    text = transformers.AutoTokenizer.from_pretrained(out).apply_chat_template(
        [said], tokenize=False
    )
    assert text.strip().endswith("My ID is:") and ("Ada Byron" in text) == (given != "plain")
    assert run("report", out, "--corpus", corpus, "--out", tmp_path / "report")[0] == 0
    summary = json.loads((tmp_path / "report" / "report.json").read_text())["summary"]
    assert summary["template"] == {"used": "plain" if given == "plain" else "chat"}
    recorded = json.loads((out / "experiment.json").read_text())
    settings = {k: v for k, v in recorded.items() if k not in ("corpus", "init", "template")}
    study = CrtStudy(corpus=str(corpus), init=str(source), template=name, **settings)
    named = study_data.prepare_data(study)
    as_ever = study_data.prepare_data(replace(study, template="speaker"))
    split = [[p.id for p in d.prepared.private] for d in (named, as_ever)]
    assert split[0] == split[1] and named.rates == as_ever.rates
    beginning = "" if given == "plain" else "Ada Byron as user> "
    assert templates.carrier_of_template(named.template) == f"{beginning}My ID is: "
    assert all(p.text.startswith(beginning.partition(" as ")[0]) for p in named.prepared.public)


def test_perplexity_counts_the_words_of_the_text_and_not_those_around_them(tmp_path):
    source = tiny("llama", tmp_path / "source")
    bpe = adapt_tokenizer(source)
    model = pretrained.load_with_added_tokens(source, bpe)
    around = templates.Template("named", NAMED)
    text = customersim.simulate_corpus(1, 0, "paper").dialogues[0]
    point = templates.render_point(text, text.turns[:1], "0", around)
    found = study_run.measure_utility(model, bpe, {point: 1}, own_words=True)["ppl"]
    (ids,) = bpe.encode([point.text])
    losses = -scoring.token_logprobs(model, [ids])[0]
    before = len(bpe.encode_prefix("Ada Byron as assistant>")) - 1
    own = losses[before : before + len(bpe.encode_prefix(f" {text.turns[0].text}")) - 1]
    assert found == pytest.approx(float(np.exp(own.mean())), rel=1e-4)


def test_the_end_of_a_text_is_learned_and_generate_stops_by_itself(corpus, run, tmp_path):
    source, out = tiny("gpt2", tmp_path / "source"), tmp_path / "model"
    options = ["--unit", "turn", "--method", "sgd", "--epochs", 40, "--canaries", 0]
    options += ["--learning-rate", 1e-2, "--batch-size", 16]
    assert run("train", corpus, *options, "--init", source, "--out", out)[0] == 0
    write = transformers.pipeline("text-generation", model=str(out))
    text = write("USR:", max_new_tokens=60, do_sample=False)[0]["generated_text"]
    assert len(write.tokenizer(text).input_ids) < 60
    code, told, _ = run("generate", out, "--prompt", "USR:", "--temperature", 0, "--json")
    assert code == 0 and "USR:" + json.loads(told)["texts"][0] == text


def test_tokens_that_are_new_begin_at_the_mean_also_in_a_padded_table(tmp_path):
    for padded in (0, 64):
        source = tiny("qwen2", tmp_path / str(padded), padded=padded)
        model = pretrained.load_with_added_tokens(source, adapt_tokenizer(source))
        table = model.get_input_embeddings().weight
        assert len(table) == max(VOCABULARY + 1, VOCABULARY + padded)
        torch.testing.assert_close(table[VOCABULARY], table[:VOCABULARY].mean(0))
        assert not any("drop" in k and v for k, v in model.config.to_dict().items())


def test_what_cannot_be_right_is_refused_by_name(tmp_path):
    bert = transformers.BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1,
                                   num_attention_heads=2, intermediate_size=8)  # fmt: skip
    transformers.BertForMaskedLM(bert).save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="is a BertForMaskedLM; a causal model is needed"):
        pretrained.load_pretrained(tmp_path / "bert")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds an adapter; merge it"):
        pretrained.load_pretrained(tmp_path / "adapter")
    source = tiny("llama", tmp_path / "source")
    model = pretrained.load_with_added_tokens(source, adapt_tokenizer(source))
    with pytest.raises(ValueError, match="lora_targets='nothing': the model has no such layers"):
        pretrained.with_lora(model, 2, targets="nothing", seed=0)


SMALL = {"vocab_size": 23, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "more", "targets", "said"),
    [
        ("phimoe", SMALL, "all-linear", "AttributeError"),  # a router, which returns two tensors
        ("llama", SMALL, "mlp", "ValueError"),  # no linear layer
        ("mamba", {"vocab_size": 23, "hidden_size": 8, "num_hidden_layers": 1}, "all-linear",
         "ValueError"),
    ],
)  # fmt: skip
def test_layers_that_take_no_adapter_are_refused_in_one_line(kind, more, targets, said):
    """LoRA on a PhiMoE ended in a traceback at the first text."""
    config = transformers.AutoConfig.for_model(kind, **more)
    model = transformers.AutoModelForCausalLM.from_config(config)
    line = f"^lora_targets='{targets}': not all of these layers of a {type(model).__name__} take an"
    with pytest.raises(ValueError, match=line + rf" adapter; name others \({said}\)$"):
        pretrained.with_lora(model, 2, targets=targets, seed=0)


def test_a_model_whose_layers_transformers_does_not_name_is_refused_in_one_line(
    corpus, run, tmp_path
):
    """``train --init`` of a Llama 4 ended in "AttributeError: ... last_hidden_state"."""
    tiny("llama4", tmp_path / "source")
    text = tmp_path / corpus.name
    text.write_bytes(corpus.read_bytes())
    words = ["--init", tmp_path / "source", "--method", "dpsgd", "--epsilon", 3, "--epochs", 1]
    try:
        code, _, error = run("train", text, *words, "--out", tmp_path / "m")
    except AttributeError:
        pytest.fail("it ended in a traceback")
    said = error.splitlines()[-1]  # after the bar of what was saved
    assert code == 2 and not (tmp_path / "m").exists()
    assert "is a Llama4ForCausalLM, for which transformers does not say what its output" in said
    assert not (tmp_path / f"{corpus.name}.odometer").exists()


def test_a_text_beyond_the_context_is_clipped_as_one_point(corpus, run, tmp_path):
    seen = []
    whole = clipping.add_clipped_unit_gradient
    source = tiny("llama", tmp_path / "source")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            clipping,
            "add_clipped_unit_gradient",
            lambda *a, **k: seen.append(len(a[1])) or whole(*a, **k),
        )
        code, _, err = run(
            "train", corpus, "--unit", "dialogue", "--method", "dpsgd", "--init", source,
            "--epochs", 1, "--canaries", 0, "--out", tmp_path / "model", "--context", 32,
        )  # fmt: skip
    assert code == 0 and seen, err


def test_a_model_of_ours_is_read_as_it_was_written(tmp_path):
    source = tiny("gpt-neox", tmp_path / "source")
    bpe = adapt_tokenizer(source)
    model_folder.save_model(
        pretrained.load_with_added_tokens(source, bpe), bpe, None, tmp_path / "out"
    )
    assert model_folder.load_saved_model(tmp_path / "out")[1] == bpe
