"""Rows of different lengths in one array: :mod:`crtlib.ragged_array`."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.ragged_array import RaggedArray
from crtlib.training.loop import Training, train_model
from crtlib.training.phases import PrivatePhase, PublicPhase

ROWS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=9)


@given(ROWS, st.slices(9))
def test_it_is_a_sequence_of_its_rows(rows, which):
    flat = RaggedArray.of(iter(rows))
    assert flat.tolist() == rows
    assert flat.lengths.tolist() == [len(row) for row in rows]
    assert [flat[k].tolist() for k in range(-len(rows), len(rows))] == [*rows, *rows]
    if which.step in (None, 1):
        assert flat[which].tolist() == rows[which]
        assert RaggedArray.joined([flat[which], flat]).tolist() == [*rows[which], *rows]
    else:
        with pytest.raises(ValueError, match="step="):
            flat[which]
    for k in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            flat[k]


def test_marks_take_a_byte_and_no_row_can_be_written():
    marks = RaggedArray.of([[True, False], np.array([True])], "bool")
    assert marks.values.dtype == np.bool_ and marks.tolist() == [[True, False], [True]]
    with pytest.raises(ValueError, match="read-only"):
        marks[0][0] = False


def test_an_array_of_another_kind_is_written_anew():
    marks = RaggedArray.of([[True], [], [False, True]], "bool")
    numbers = RaggedArray.of(marks)
    assert numbers.values.dtype == np.int32 and numbers.tolist() == [[1], [], [0, 1]]
    assert RaggedArray.of(numbers) is numbers and RaggedArray.of(marks, "bool") is marks


@pytest.mark.parametrize("number", [2**31, np.array([2**31])])
def test_a_number_beyond_32_bits_is_refused(number):
    with pytest.raises(OverflowError):
        RaggedArray.of([np.atleast_1d(number) if isinstance(number, np.ndarray) else [number]])


def test_what_is_saved_is_mapped_for_its_owner_alone(tmp_path):
    rows = RaggedArray.of([[1, 2], [], [3]])
    rows[1:].save(tmp_path / "rows")
    back = RaggedArray.open(tmp_path / "rows")
    assert back.tolist() == [[], [3]] and isinstance(back.values.base, np.memmap)
    assert (tmp_path / "rows").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        rows.save(tmp_path / "rows")


def test_a_training_keeps_at_most_eight_bytes_a_token():
    model = build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
    phase = PublicPhase(epoch=1, passes=1, batch_size=50_000, learning_rate=1e-3, part="public")
    Training(model, [phase], {"public": [[0, 1]]}, seed=0)  # what it imports is not counted
    tracemalloc.start()
    texts = ([k % 9] * 30 for k in range(50_000))
    from_lots = RaggedArray.of(texts)
    training = Training(model, [phase], {"public": from_lots}, seed=0)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert training.points == 50_000 and kept / (30 * 50_000) < 8


def test_weights_are_those_of_lists(tmp_path):
    rows = {"public": [[1, 2, 3], [4, 5]], "private": [[1, 2], [3, 4, 5], [6]]}
    phases = [
        PublicPhase(epoch=1, passes=1, batch_size=2, learning_rate=1e-3, part="all"),
        PrivatePhase(epoch=1, sampling_probability=0.5, steps=3, noise_multiplier=1.0,
                     clip_norm=0.1, normaliser=2.0, learning_rate=1e-3),
    ]  # fmt: skip
    RaggedArray.of(rows["private"]).save(tmp_path / "private")
    mapped = rows | {"private": RaggedArray.open(tmp_path / "private")}
    weights = []
    for parts in (rows, mapped):
        model = build_model(ModelSpec("lstm", vocab_size=9, embedding=4, hidden=5), seed=0)
        weights.append(train_model(model, phases, parts, seed=0).model.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
