"""A model folder of somebody else can fetch nothing, run nothing, and end in no traceback."""

import json
import math
import os
import shutil
import socket
import struct

import pytest
import transformers
from safetensors.torch import load_file, save_file

from crtlib import foreign_files
from crtlib.models import generation, model_folder, pretrained, tensor_files
from crtlib.screening import word_scorers
from crtlib.text.tokenizer import adapt_tokenizer, load_pretrained_tokenizer, load_tokenizer
from tests.models.test_pretrained import tiny

ADVICE = ("pip", "trust_remote_code", "http", "github", "pass ")
"""What messages of other tools tell people to do."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return tiny("gpt2", tmp_path_factory.mktemp("foreign") / "good")


@pytest.fixture
def asked(monkeypatch):
    """What was fetched: calls for a kernel of a hub, whose package is said to be here, and
    connections."""
    calls = []

    def record(*args, **options):
        calls.append(args)
        raise OSError("nobody answers")

    kernels = transformers.integrations.hub_kernels
    monkeypatch.setattr(kernels, "get_kernel", record, raising=False)
    monkeypatch.setattr(kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(transformers.modeling_utils, "is_kernels_available", lambda: True)
    monkeypatch.setattr(socket.socket, "connect", record)
    monkeypatch.setattr(socket, "getaddrinfo", record)
    return calls


def changed(good, home, name="config.json", **keys):
    shutil.copytree(good, home)
    if keys:
        told = json.loads((home / name).read_text()) | keys
        (home / name).write_text(json.dumps(told))
    return home


def ends_in_one_line(call, *args):
    """The error of a call, which is one line of ours; None where it answers."""
    try:
        call(*args)
    except ValueError as error:
        said = str(error)
        assert "\n" not in said and not any(word in said for word in ADVICE), said
        return said
    return None


KERNEL = "kernels-community/flash-attn2@0123456"
REFUSED = "asks for code from elsewhere"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"_attn_implementation": KERNEL}, REFUSED),
        ({"attn_implementation": "evil-org/evil-kernel"}, REFUSED),
        ({"attn_implementation": {"": "evil-org/evil-kernel"}}, REFUSED),
        ({"_attn_implementation_internal": KERNEL}, REFUSED),
        ({"experts_implementation": "evil-org/experts"}, REFUSED),
        ({"use_kernels": True}, REFUSED),
        ({"kernel_config": {"RMSNorm": "evil-org/norm:Norm"}}, REFUSED),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "is quantised"),
        ({"attn_implementation": "flash_attention_2"}, None),
        ({"_attn_implementation": "evil"}, None),
        ({"auto_map": {"AutoModelForCausalLM": "evil-org/code--code.Model"}}, None),
        ({"_name_or_path": "evil-org/evil", "transformers_weights": "evil-org/w"}, None),
    ],
)
def test_a_folder_can_fetch_nothing(good, tmp_path, asked, keys, says):
    place = changed(good, tmp_path / "m", **keys)
    for read in (pretrained.load_pretrained, model_folder.load_model, word_scorers.load_encoder):
        said = ends_in_one_line(read, str(place))
        if says:
            assert says in (said or "it was read")
        else:
            assert said is None or read is word_scorers.load_encoder
    if says is None:
        assert pretrained.load_pretrained(place).config._attn_implementation in ("sdpa", "eager")
    adapt_tokenizer(place)
    assert not asked


def test_a_configuration_below_another_is_read_alike():
    inner = {"model_type": "gemma2", "attn_implementation": KERNEL}
    with pytest.raises(foreign_files.ForeignFileError, match=REFUSED):
        foreign_files.keep_model_settings({"text_config": inner}, {"text_config"})


def test_an_adapter_brings_no_other_model(good, tmp_path, asked):
    place = changed(good, tmp_path / "m")
    adapter = {"base_model_name_or_path": "evil-org/base", "peft_type": "LORA"}
    (place / "adapter_config.json").write_text(json.dumps(adapter))
    for read in (pretrained.load_pretrained, model_folder.load_model, word_scorers.load_encoder):
        assert "holds an adapter" in ends_in_one_line(read, str(place))
    assert not asked


def test_a_model_of_a_hub_that_cannot_be_had_is_one_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # nobody waits for a hub
    assert "nor a model on the hub" in ends_in_one_line(pretrained.load_pretrained, "owner/none")


@pytest.mark.parametrize(
    "keys",
    [
        {"n_head": 0}, {"n_embd": -8}, {"n_layer": "1"}, {"n_layer": 1.5}, {"n_head": True},
        {"activation_function": "nobody knows"}, {"rope_scaling": {"rope_type": "evil"}},
        {"n_layer": 10**9}, {"n_positions": 10**400}, {"vocab_size": 2**40}, {"n_inner": []},
        {"model_type": "llama", "num_attention_heads": 0}, {"model_type": ["gpt2"]},
        {"model_type": "nobody"}, {"architectures": 7}, {"architectures": ["T5Model"]},
    ],
)  # fmt: skip
def test_a_bad_configuration_is_one_line(good, tmp_path, keys):
    place = changed(good, tmp_path / "m", **keys)
    said = ends_in_one_line(pretrained.load_pretrained, str(place))
    assert said is not None or "rope_scaling" in keys or "T5Model" in str(keys)
    defect = None
    try:  # before a training, when its sizes are asked for
        ends_in_one_line(pretrained.count_pretrained_parameters, str(place))
    except Exception as error:
        defect = error
    assert defect is None


@pytest.mark.parametrize("content", ["[]", "7", "{", "[" * 100_000, "\x00"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_no_object_is_one_line(good, tmp_path, name, content):
    place = changed(good, tmp_path / "m")
    (place / name).write_text(content)
    assert [
        read
        for read in (model_folder.load_model, adapt_tokenizer)
        if ends_in_one_line(read, str(place))
    ]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_and_a_folder_instead_of_a_file_are_one_line(good, tmp_path, make):
    """Nobody knows whether a pipe ends, and a folder was found after the training."""
    place = changed(good, tmp_path / "m")
    (place / "tokenizer_config.json").unlink()
    make(place / "tokenizer_config.json")
    for read in (pretrained.load_pretrained, model_folder.load_model, adapt_tokenizer):
        with pytest.raises(ValueError, match=r"its tokenizer_config\.json is a ") as refused:
            read(str(place))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("size", [2**63 - 1, 2**63, 2**64 - 1, 10**6])
def test_a_header_of_any_length_is_one_line(good, tmp_path, size):
    place = changed(good, tmp_path / "m")
    (place / "model.safetensors").write_bytes(struct.pack("<Q", size) + b"{}")
    for read in (model_folder.load_model, tensor_files.hash_tensors):
        assert ends_in_one_line(read, place)


def test_weights_that_are_no_numbers_are_refused(good, tmp_path):
    place = changed(good, tmp_path / "m")
    weights = {name: w * math.nan for name, w in load_file(place / "model.safetensors").items()}
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    assert "its weights are not finite" in ends_in_one_line(model_folder.load_model, place)
    with pytest.raises(ValueError, match="its weights are not finite"):
        generation.generate_text(place, "hello")


def test_a_tokenizer_that_panics_or_pads_is_one_line_or_is_not_followed(good, tmp_path, capfd):
    bad = {"type": "Precompiled", "precompiled_charsmap": "AAAA" * 4}
    place = changed(good, tmp_path / "m", "tokenizer.json", normalizer=bad)
    for read in (load_pretrained_tokenizer, adapt_tokenizer):
        assert ends_in_one_line(read, place)
    wide = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}  # fmt: skip
    place = changed(good, tmp_path / "n", "tokenizer.json", padding=wide)
    assert len(load_pretrained_tokenizer(place).encode("hello").ids) < 10
    assert len(load_tokenizer(place / "tokenizer.json")._tokenizer.encode("hello").ids) < 10


@pytest.mark.parametrize("to", ["tokenizer_config.json", "gone.json"])
def test_a_link_that_leads_nowhere_is_refused_before_anything_is_read(good, tmp_path, to):
    place = changed(good, tmp_path / "m")
    (place / "tokenizer_config.json").unlink()
    (place / "tokenizer_config.json").symlink_to(place / to)
    for read in (pretrained.load_pretrained, model_folder.load_model, adapt_tokenizer):
        assert "is a link that leads nowhere" in ends_in_one_line(read, str(place))


@pytest.mark.parametrize("longest", [{}, "long", [7]])
def test_a_setting_that_a_tokenizer_cannot_read_with_is_one_line(good, tmp_path, longest):
    place = changed(good, tmp_path / "m", "tokenizer_config.json", model_max_length=longest)
    assert ends_in_one_line(model_folder.load_model, place)


def test_what_is_raised_becomes_one_line_but_the_machines_faults_stay():
    class PanicException(BaseException):
        """As Rust raises it."""

    for error in (PanicException("x"), OverflowError("x"), ValueError("see pip install\nx")):
        try:
            with foreign_files.refuse_whatever_fails("f", "is bad"):
                raise error
        except BaseException as said:
            ended = said
        assert type(ended) is foreign_files.ForeignFileError
        assert str(ended) == f"f: is bad ({type(error).__name__})"
    with pytest.raises(OSError, match="full"), foreign_files.refuse_whatever_fails("f", "is bad"):
        raise OSError(28, "full")
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error), foreign_files.refuse_whatever_fails("f", "is bad"):
            raise error
