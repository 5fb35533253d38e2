"""Secure noise: the words are those of the RFC, and the numbers normal as far as nobody reaches."""

import itertools
import math
import os

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats
from torch import nn

from crtlib.accounting.events import NOISE_END, SampledGaussian, delta_of_noise_end
from crtlib.training import devices, noise

CPU = torch.device("cpu")
KEYS = [bytes(32), np.random.default_rng(0).bytes(32)]


@pytest.fixture(params=["openssl", "operators"])
def way(request, monkeypatch):
    """The words of a CPU, and those of a GPU, there."""
    if request.param == "operators":
        monkeypatch.setattr(devices, "HOST_DEVICE_TYPES", frozenset())
        monkeypatch.setattr(noise, "GPU_CIPHER_BLOCKS_AT_ONCE", 5000)


@pytest.fixture
def one_key(monkeypatch):
    """The first key is fixed, so that a test fails always or never; the others follow from it."""
    monkeypatch.setattr(os, "urandom", np.random.default_rng(1).bytes)


def test_words_are_those_of_the_rfc():
    """RFC 8439, A.1, test vector 1; of both ways."""
    for words in (
        noise.chacha20_words(KEYS[0], 1, CPU).numpy().astype("<u4").tobytes(),
        Cipher(algorithms.ChaCha20(KEYS[0], bytes(16)), None).encryptor().update(bytes(64)),
    ):
        assert words.hex() == (
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        )


@pytest.mark.parametrize("key", KEYS)
def test_words_are_those_of_openssl(key):
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), None)
    theirs = np.frombuffer(cipher.encryptor().update(bytes(64 * 3000)), "<u4").reshape(-1, 16).T
    assert (noise.chacha20_words(key, 3000, CPU).numpy().view(np.uint32) == theirs).all()


def test_numbers_are_normal_and_independent(way, one_key):
    x = noise.draw_normals(torch.empty(4000, 256), "secure").double()
    n = x.numel()
    assert stats.kstest(x.flatten().numpy(), "norm").pvalue > 0.01
    moments = [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]  # power, mean, variance of the power
    assert all(abs((x**k).mean() - m) < 4 * (v / n) ** 0.5 for k, m, v in moments)
    beyond = 2 * stats.norm.sf(4) * n
    assert abs((x.abs() > 4).sum() - beyond) < 4 * beyond**0.5
    for y in (x, x.square(), x.sign()):
        assert torch.corrcoef(y.T).fill_diagonal_(0).abs().max() < 6 / 4000**0.5


def test_numbers_of_a_pair_are_independent(one_key):
    words = torch.frombuffer(bytearray(os.urandom(2**23)), dtype=torch.int32)
    one, two = noise.box_muller(words.view(16, -1)).view(2, -1).double()
    assert stats.kstest((one.square() + two.square()).numpy(), "expon", (0, 2)).pvalue > 0.01
    angles = torch.atan2(one, two).numpy()
    assert stats.kstest(angles, "uniform", (-np.pi, 2 * np.pi)).pvalue > 0.01


def test_the_noise_ends_where_its_delta_is_counted_from():
    zeros = torch.zeros(16, 1, dtype=torch.int32)
    assert NOISE_END < noise.box_muller(zeros).abs().max() < NOISE_END + 0.01


def test_a_person_of_many_points_has_a_chance_to_be_drawn_often():
    """Fault: binomial coefficients of thousands of points overflowed, and nothing was counted."""
    event = SampledGaussian(sampling_probability=0.01, noise_multiplier=1.0, steps=10)
    many = delta_of_noise_end([event], [5000], "replace", 1e4)
    assert 0.99 < many <= 1 and delta_of_noise_end([event], [1], "replace", 8.0) < 1e-20


def radii(*words):
    """Of pairs with these three words of 31 bits each, the first the highest."""
    n = len(words[0])
    column = torch.zeros(4, 4, n, dtype=torch.int32)
    for kind, bits in zip(column, words, strict=False):
        kind[0] = torch.tensor(bits).int()
    return noise.box_muller(column.view(16, n))[:n].double()


def test_a_radius_is_as_likely_as_it_is_far():
    """A radius is beyond r for exp(-r^2 / 2) of all words: to seven digits where 40 bits ended, at
    7.54, and on to 11.42."""
    bits = range(92, -1, -1)
    r = radii(*([2**k >> end & (2**31 - 1) for k in bits] for end in (62, 31, 0)))
    wanted = np.array([2.0 ** (k - 93) + 2.0**-94 for k in bits])
    assert np.allclose(stats.rayleigh.isf(wanted), r.numpy(), rtol=2e-7)
    assert (r[-50:] > 7.54).all() and (np.diff(r) > 0).all()


def test_the_rarest_words_make_finite_numbers():
    words = itertools.product(*3 * [[0, -1, 1, 2**31 - 1, -(2**31)]])
    r = radii(*zip(*words, strict=True))
    assert r.isfinite().all() and (r >= 0).all()
    assert abs(r.max() - (2 * 94 * np.log(2)) ** 0.5) < 1e-5


def test_numbers_are_of_single_precision_whatever_torch_is_asked_for(way, monkeypatch):
    drawn = []
    for kind in (torch.float32, torch.float64):
        monkeypatch.setattr(os, "urandom", np.random.default_rng(1).bytes)
        torch.set_default_dtype(kind)
        try:
            drawn.append(noise.draw_normals(torch.empty(3, 700, dtype=torch.float64), "secure"))
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(*drawn) and torch.equal(drawn[0].float().double(), drawn[0])
    assert noise.draw_normals(torch.empty(0, 3), "secure").shape == (0, 3)


def test_tensors_of_one_step_share_no_noise(way):
    """Nor do the pieces of one."""
    parameters = [nn.Parameter(torch.zeros(300, 700)) for _ in range(3)]
    noise.add_noise(parameters, std=2.0, generator="secure")
    rows = torch.cat([p.grad.view(10, -1) for p in parameters])
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 6 / 21_000**0.5
    assert (rows.std(1) / 2 - 1).abs().max() < 6 / 42_000**0.5


def test_small_tensors_of_one_step_share_no_noise(way):
    """Nor do they and a large one, though several are one draw."""
    sizes = [2001] * 40 + [2**16] + [2003] * 3
    parameters = [nn.Parameter(torch.zeros(n)) for n in sizes]
    noise.add_noise(parameters, std=2.0, generator="secure")
    rows = torch.stack([p.grad[:2001] for p in parameters])
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 6 / 2001**0.5
    assert (rows.std(1) / 2 - 1).abs().max() < 6 / 4002**0.5


def test_in_place_the_numbers_are_those_of_the_formula(monkeypatch):
    """Bit by bit, and in memory that held others; of the words one after another."""
    monkeypatch.setattr(os, "urandom", lambda n: KEYS[1][:n])
    stream = Cipher(algorithms.ChaCha20(KEYS[1], bytes(16)), None).encryptor()
    expected = []
    for some in (3000, 10):
        words = torch.frombuffer(bytearray(stream.update(bytes(64 * some))), dtype=torch.int32)
        words = words.view(16, -1)
        high, middle, low = (words[:12] & 0x7FFFFFFF).float().view(3, -1)
        u = high + (middle + (low + 0.5) * 2.0**-31) * 2.0**-31
        radius = (u * 2.0**-31).log().mul(-2).sqrt()
        turn = words[12:].float().flatten() * (math.pi * 2.0**-31)
        expected.append(torch.cat([radius * turn.cos(), radius * turn.sin()]))
    draw = noise._HostNormals()
    for numbers in expected:
        assert torch.equal(draw(len(numbers)), numbers)


def test_every_step_has_a_key_of_its_own(way):
    a, b = (noise.draw_normals(torch.empty(5000), "secure") for _ in range(2))
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 6 / 5000**0.5
