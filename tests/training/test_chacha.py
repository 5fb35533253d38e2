"""The words are those of the RFC, and the numbers normal: by machine code and by operators."""

import itertools

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats
from torch import nn

from crtlib import machine
from crtlib.training import chacha, noise

CPU = torch.device("cpu")
KEYS = [np.zeros(8, np.uint32), np.random.default_rng(0).integers(2**32, size=8, dtype=np.uint32)]


@pytest.fixture(params=["compiled", "operators"])
def way(request, monkeypatch):
    if request.param == "operators":
        monkeypatch.setattr(chacha, "_compiled", lambda: None)
    elif not machine.compiles():
        pytest.skip("no llvmlite")
    return request.param


def test_words_are_those_of_the_rfc():
    """RFC 8439, A.1, test vector 1."""
    first = chacha.words(KEYS[0], 0, 1, CPU).numpy().astype("<u4").tobytes()
    assert first.hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("first", [0, 1, 2**31 - 2, 2**32 - 5])
def test_words_are_those_of_openssl(key, first):
    cipher = Cipher(
        algorithms.ChaCha20(key.tobytes(), first.to_bytes(4, "little") + bytes(12)), None
    )
    theirs = np.frombuffer(cipher.encryptor().update(bytes(64 * 5)), "<u4").reshape(5, 16).T
    assert (chacha.words(key, first, 5, CPU).numpy().view(np.uint32) == theirs).all()


@pytest.mark.parametrize("first", [0, 256 * 3, chacha.MOST - 256 * 400])
def test_machine_code_makes_the_numbers_of_the_operators(first, monkeypatch):
    if not machine.compiles():
        pytest.skip("no llvmlite")
    ours = chacha.normals(KEYS[1], first, torch.empty(399 * 256 + 7))
    monkeypatch.setattr(chacha, "_compiled", lambda: None)
    theirs = chacha.normals(KEYS[1], first, ours)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_a_number_is_where_it_is_whatever_was_asked_for(way):
    whole = chacha.normals(KEYS[1], 0, torch.empty(3, 1024))
    assert torch.equal(chacha.normals(KEYS[1], 1024, whole[:1]), whole[1:2])
    assert torch.equal(chacha.normals(KEYS[1], 512, whole[0, :7]), whole[0, 512:519])
    double = chacha.normals(KEYS[1], 0, whole.double())
    assert double.dtype == torch.float64 and torch.equal(double.float(), whole)
    assert chacha.normals(KEYS[1], 0, torch.empty(0, 3)).shape == (0, 3)


def test_numbers_are_normal_and_independent(way):
    """Of a hundred draws by a fixed key, so that it fails always or never."""
    x = chacha.normals(KEYS[1], 0, torch.empty(4000, 256)).double()
    n = x.numel()
    assert stats.kstest(x.flatten().numpy(), "norm").pvalue > 0.01
    moments = [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]  # power, mean, variance of the power
    assert all(abs((x**k).mean() - m) < 4 * (v / n) ** 0.5 for k, m, v in moments)
    beyond = 2 * stats.norm.sf(4) * n
    assert abs((x.abs() > 4).sum() - beyond) < 4 * beyond**0.5
    by_word = x.view(-1, 16, 16).transpose(0, 1).flatten(1)  # both numbers of a pair: rows i, i + 8
    for y in (by_word, by_word.square(), by_word.sign()):
        off = torch.corrcoef(y) - torch.eye(16)
        assert off.abs().max() < 5 / y.shape[1] ** 0.5
    pairs = by_word[:8].square() + by_word[8:].square()
    assert stats.kstest(pairs.flatten().numpy(), "expon", (0, 2)).pvalue > 0.01
    angles = torch.atan2(by_word[:8], by_word[8:]).flatten().numpy()
    assert stats.kstest(angles, "uniform", (-np.pi, 2 * np.pi)).pvalue > 0.01


def test_numbers_are_of_single_precision_whatever_torch_is_asked_for(way):
    like = torch.empty(700)
    wanted = chacha.normals(KEYS[1], 0, like)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(chacha.normals(KEYS[1], 0, like), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_rarest_words_make_finite_numbers():
    words = torch.tensor([0, -1, 2**31 - 1, -(2**31), 255, 256], dtype=torch.int32)
    pairs = torch.tensor(list(itertools.product(words, words)) * 4).T  # 16 of a row
    numbers = chacha.box_muller(pairs.repeat_interleave(8, 0).int())
    assert numbers.isfinite().all()
    assert abs(numbers.abs().max() - (2 * 41 * np.log(2)) ** 0.5) < 0.01


def test_what_no_key_has_is_refused():
    for first in (1, -256, chacha.MOST):
        with pytest.raises(
            ValueError, match=f"first={first}: must be a multiple of 256, and end b"
        ):
            chacha.normals(KEYS[0], first, torch.empty(1))


@pytest.mark.parametrize("compiles", [True, False])
def test_tensors_of_one_step_share_no_noise(compiles, monkeypatch):
    if not compiles:
        monkeypatch.setattr(machine, "compiles", lambda: False)
    parameters = [nn.Parameter(torch.zeros(300, 70)) for _ in range(3)]
    noise.add_noise(parameters, std=2.0, generator="secure")
    rows = torch.stack([p.grad.flatten() for p in parameters])
    assert (torch.corrcoef(rows) - torch.eye(3)).abs().max() < 6 / 21_000**0.5
    assert (rows.std(1) / 2 - 1).abs().max() < 6 / 42_000**0.5


def test_every_step_has_a_key_of_its_own():
    a, b = (noise.normals(torch.empty(5000), "secure") for _ in range(2))
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 6 / 5000**0.5
