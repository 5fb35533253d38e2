"""A Trainer of `transformers` that trains with differential privacy: two changed lines.

    python examples/own_trainer.py

`confide.hf.SFTTrainer` does the same in place of TRL's. Here the model is a tiny random one; for a
model from a hub, write `model="HuggingFaceTB/SmolLM2-135M"` and change nothing else.
"""

import tempfile
from pathlib import Path

import datasets
import transformers
from peft import LoraConfig

from confide.hf import Trainer  # was: from transformers import Trainer
from crtlib.text import customersim, tokenizer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
rows = [turn.text for turn in customersim.simulate_corpus(60, 0, "paper").turns()][:300]


def tiny_llama(folder):
    """A folder with a model, as a hub would deliver it."""
    bpe = tokenizer.train_bpe(rows, vocab_size=300)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.copy_backend_tokenizer(bpe), bos_token="<BOS>", eos_token="<EOS>"
    ).save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


with tempfile.TemporaryDirectory() as home:
    trainer = Trainer(
        model=tiny_llama(Path(home) / "base"),
        args=transformers.TrainingArguments(
            f"{home}/model", num_train_epochs=1, per_device_train_batch_size=30, report_to="none",
            learning_rate=1e-3, logging_steps=5, disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_dict({"text": rows}),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
        confide={"epsilon": 3},  # new
    )  # fmt: skip
    trainer.train()
    print(trainer.result.promise)
    print(trainer.certify(f"{home}/certificate.html")["verdict"])
