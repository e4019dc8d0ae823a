"""Buffers as people hold them: arrays of several dimensions, where the layout only orders these."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from tests.cli.test_cli import run

NCHW = "f32[4,3,10,12]"
NHWC = "f32[4,3,10,12]{1,3,2,0}"
TILED = "f32[4,3,10,12]{3,2,1,0:T(8,128)}"


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).random((4, 3, 10, 12), np.float32)


def test_channels_last_in_one_line(images: np.ndarray) -> None:
    wanted = images.transpose(0, 2, 3, 1)
    found = fi.relayout(images, NCHW, NHWC, as_array=True)
    assert found.shape == (4, 10, 12, 3)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(fi.relayout(found, NHWC, NCHW, as_array=True), images)
    np.testing.assert_array_equal(fi.relayout(images, NCHW, NHWC, fill=0, as_array=True), wanted)
    plan = fi.plan_relayout(NCHW, NHWC)
    np.testing.assert_array_equal(plan(images, as_array=True), wanted)
    assert plan(images).shape == (4 * 3 * 10 * 12,)


def test_outputs_of_many_dimensions(images: np.ndarray) -> None:
    wanted = images.transpose(0, 2, 3, 1)
    out = np.empty((4, 10, 12, 3), np.float32)
    assert fi.relayout(images, NCHW, NHWC, out=out) is out
    np.testing.assert_array_equal(out, wanted)
    # The layout's own strides: the array itself.
    view = np.empty((4, 10, 12, 3), np.float32).transpose(0, 3, 1, 2)
    assert fi.plan_relayout(NCHW, NHWC)(images, view) is view
    np.testing.assert_array_equal(view, images)
    out[...] = 0
    assert fi.pack(images, NHWC, out=out) is out
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(fi.unpack(out, NHWC), images)
    tiled = fi.relayout(images, NCHW, TILED)
    np.testing.assert_array_equal(fi.unpack(tiled, TILED), images)


def test_what_is_not_one_piece_is_refused(images: np.ndarray) -> None:
    for wrong in (images[:, :, ::2], images.transpose(0, 2, 3, 1), images.reshape(4, 30, 12)):
        with pytest.raises(fi.FastIndexError):
            fi.relayout(wrong, NCHW, NHWC)
    with pytest.raises(fi.FastIndexError):
        fi.relayout(images, TILED, NHWC)
    with pytest.raises(fi.FastIndexError, match="as_array=True needs a destination without tiles"):
        fi.relayout(images, NCHW, TILED, as_array=True)
    with pytest.raises(fi.FastIndexError, match="overlaps"):
        fi.relayout(images, NCHW, NHWC, out=images.reshape(4, 10, 12, 3))
    with pytest.raises(fi.FastIndexError):
        fi.relayout(images, NCHW, NHWC, out=np.empty((4, 10, 12, 6), np.float32)[..., ::2])


def test_types_that_files_lose() -> None:
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    for call in (fi.pack, fi.unpack):
        with pytest.raises(TypeError, match=r"view\(ml_dtypes.bfloat16\)"):
            call(array.view("V2"), "bf16[2,3]")


def test_files_of_many_dimensions(images: np.ndarray, tmp_path: Path) -> None:
    source, target, back = (tmp_path / name for name in ("in.npy", "out.npy", "back.npy"))
    np.save(source, images)
    run("relayout", source, target, "--from", NCHW, "--to", NHWC)
    np.testing.assert_array_equal(np.load(target), images.transpose(0, 2, 3, 1))
    run("relayout", target, back, "--from", NHWC, "--to", NCHW)
    np.testing.assert_array_equal(np.load(back), images)
    run("relayout", source, target, "--from", NCHW, "--to", TILED)
    assert np.load(target).ndim == 1
    np.save(source, images.reshape(-1))
    run("relayout", source, target, "--from", NCHW, "--to", NHWC)
    np.testing.assert_array_equal(np.load(target), images.transpose(0, 2, 3, 1))
