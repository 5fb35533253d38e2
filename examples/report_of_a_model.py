"""How much of its training text a transformers model, trained by somebody else, completes.

    python examples/report_of_a_model.py     # for your model: the last call, or `crtlib report`

It counts what the model completes when it is given the beginning of each user's text (Inan et al.,
2021).
"""

import tempfile
from pathlib import Path

import torch
import transformers

import confide
import crtlib
from crtlib.text import jsonl, tokenizer


def overfitted(folder: Path, texts: list[str]) -> None:
    """A small GPT-2 that has read a few texts too often."""
    bpe = tokenizer.train_bpe(texts, vocab_size=400)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.copy_backend_tokenizer(bpe), bos_token="<BOS>", eos_token="<EOS>"
    ).save_pretrained(folder)
    size = {"vocab_size": 400, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**size, bos_token_id=bpe.bos, eos_token_id=bpe.eos)
    model = transformers.GPT2LMHeadModel(config)
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for ids in bpe.encode(8 * texts):
        model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.backward()
        adam.step()
        adam.zero_grad()
    model.save_pretrained(folder)


with tempfile.TemporaryDirectory() as place:
    model, corpus, talk = Path(place, "model"), Path(place, "talk.jsonl"), crtlib.simulate(10, 0)
    jsonl.write_jsonl(talk, corpus)
    overfitted(model, [turn.text for turn in talk.turns()])
    _, summary = confide.leakage_report(model, corpus, Path(place, "report"), unit="turn")
    print(*(f"{name:>40}  {value}" for name, value in summary.items()), sep="\n")
