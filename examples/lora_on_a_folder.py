"""Train adapters (LoRA) on a transformers model from a folder, by CRT, with a promise.

    python examples/lora_on_a_folder.py FOLDER     # without FOLDER: a tiny model, made here

The base stays unchanged. Only the adapters learn, with noise where text may hold a secret.
"""

import sys
import tempfile
from pathlib import Path

import transformers

import confide
import crtlib
from crtlib.text import jsonl, tokenizer


def tiny(folder: Path) -> Path:
    """A GPT-2 with random weights, and a tokenizer from other text, as a hub would deliver them."""
    bpe = tokenizer.train_bpe([p.text for p in crtlib.simulate(50, 9).turns()], vocab_size=400)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.copy_backend_tokenizer(bpe), bos_token="<BOS>", eos_token="<EOS>"
    ).save_pretrained(folder)
    size = {"vocab_size": 400, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**size, bos_token_id=bpe.bos, eos_token_id=bpe.eos)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


with tempfile.TemporaryDirectory() as place:
    base = sys.argv[1] if sys.argv[1:] else tiny(Path(place, "base"))
    corpus = Path(place, "talk.jsonl")
    jsonl.write_jsonl(crtlib.simulate(60, seed=0), corpus)
    run = confide.train(
        str(corpus), init=str(base), lora=4, method="crt", epsilon=3, epochs=1, unit="turn",
        policy="regex:customersim", out=Path(place, "model"),
    )  # fmt: skip
    print(*run.lines, sep="\n")
    print(*sorted(path.name for path in Path(place, "model", "adapter").iterdir()))
