"""Files of any kind to upright pictures in three colours."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_backbones import Colours

from perdure import InputError
from perdure.inputs.backbones import Unreadable
from perdure.inputs.pictures import Preprocessing, open_picture, resized

ORIENTATION = 0x0112
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def noise(file: Path, height: int, width: int) -> np.ndarray:
    """A picture that nothing was lost of, and its pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return pixels


def saved(picture: Image.Image, kind: str, **how: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **how)
    return buffer.getvalue()


def seen(content: bytes) -> list[tuple[int, int, int]]:
    picture = open_picture(content, "x")
    assert picture.mode == "RGB"
    return [tuple(pixel) for pixel in np.asarray(picture).reshape(-1, 3).tolist()]


def two(mode: str, left: object, right: object) -> Image.Image:
    picture = Image.new(mode, (2, 1))
    picture.putpixel((0, 0), left)
    picture.putpixel((1, 0), right)
    return picture


# Kinds


def test_grey_has_three_equal_channels() -> None:
    assert seen(saved(two("L", 7, 200), "png")) == [(7, 7, 7), (200, 200, 200)]
    assert seen(saved(two("1", 0, 1), "png")) == [(0, 0, 0), (255, 255, 255)]


def test_grey_of_16_bits_keeps_its_upper_8() -> None:
    pixels = np.array([[0, 256 * 7 + 255, 256 * 254, 65535]], np.uint16)
    for kind in ("png", "tiff"):
        assert seen(saved(Image.fromarray(pixels), kind)) == [(0,) * 3, (7,) * 3, (254,) * 3, (255,) * 3]


def test_what_is_transparent_lies_on_white() -> None:
    half = (127, 127, 255)  # blue at one half on white: 255 - 128, 255 - 128, 255
    assert seen(saved(two("RGBA", (255, 0, 0, 0), (0, 0, 255, 128)), "png")) == [(255, 255, 255), half]
    assert seen(saved(two("LA", (0, 0), (9, 255)), "png")) == [(255, 255, 255), (9, 9, 9)]


def test_palettes_become_their_colours() -> None:
    picture = two("P", 0, 1)
    picture.putpalette([*RED, *GREEN])
    assert seen(saved(picture, "png")) == [RED, GREEN]
    assert seen(saved(picture, "gif")) == [RED, GREEN]
    assert seen(saved(picture, "png", transparency=0)) == [(255, 255, 255), GREEN]
    assert seen(saved(picture, "png", transparency=b"\x00\xff")) == [(255, 255, 255), GREEN]


def test_cmyk_becomes_red_green_and_blue() -> None:
    for colours, expected in (((0, 255, 255, 0), RED), ((255, 0, 255, 0), GREEN), ((0, 0, 0, 255), (0, 0, 0))):
        (pixel,) = seen(saved(Image.new("CMYK", (1, 1), colours), "tiff"))
        assert pixel == expected
        flat = open_picture(saved(Image.new("CMYK", (16, 16), colours), "jpeg", quality=95), "x")
        np.testing.assert_allclose(np.asarray(flat)[8, 8], expected, atol=4)


@pytest.mark.parametrize(
    ("note", "expected"), [(1, [RED, BLUE]), (2, [BLUE, RED]), (3, [BLUE, RED]), (6, [RED, BLUE]), (8, [BLUE, RED])]
)
def test_a_picture_stands_as_the_camera_says(note: int, expected: list[tuple[int, int, int]]) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = note
    content = saved(two("RGB", RED, BLUE), "png", exif=exif)
    assert seen(content) == expected
    assert open_picture(content, "x").size == ((1, 2) if note in (6, 8) else (2, 1))
    assert open_picture(content, "x", upright=False).size == (2, 1)


def test_of_many_frames_the_first_is_seen() -> None:
    frames = [Image.new("RGB", (3, 2), colour) for colour in (RED, GREEN)]
    assert set(seen(saved(frames[0], "gif", save_all=True, append_images=frames[1:]))) == {RED}


# Broken


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n cut off", b"\xff\xd8\xff\xe0"])
def test_an_unreadable_picture_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(Unreadable, match=rf"^{tmp_path}/bad\.png cannot be read as a picture \(.*Replace it or take it out"):
        open_picture(tmp_path / "bad.png", tmp_path / "bad.png")
    with pytest.raises(Unreadable, match=r"^a photo cannot be read"):
        open_picture(content, "a photo")


def test_a_picture_that_breaks_off_is_named(tmp_path: Path) -> None:
    noise(tmp_path / "whole.jpg", 64, 64)
    with pytest.raises(Unreadable, match=r"half cannot be read as a picture \(OSError: .*truncated"):
        open_picture((tmp_path / "whole.jpg").read_bytes()[:900], "half")


def test_measurements_are_no_colours() -> None:
    with pytest.raises(Unreadable, match="its pixels are measurements and no colours"):
        open_picture(saved(Image.fromarray(np.zeros((2, 2), np.float32)), "tiff"), "x")


def test_without_pillow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"needs Pillow: pip install 'perdure\[images\]'"):
        open_picture(b"", "x")


# Sizes


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [(8, 13, slice(1, 7), slice(3, 9)), (13, 8, slice(3, 9), slice(1, 7)), (8, 8, slice(1, 7), slice(1, 7))],
)
def test_the_middle_is_cut_out(height: int, width: int, rows: slice, columns: slice, tmp_path: Path) -> None:
    pixels = noise(tmp_path / "x.png", height, width)
    seen = resized(Image.fromarray(pixels), 8, (6, 6), 2)  # the short side is 8 already, so that nothing is resized
    np.testing.assert_array_equal(np.asarray(seen), pixels[rows, columns])


def test_the_short_side_is_resized_and_the_other_in_proportion() -> None:
    picture = Image.new("RGB", (40, 20))
    picture.paste((255, 255, 255), (20, 0, 40, 20))  # left half black, right half white
    seen = np.asarray(resized(picture, 10, (10, 10), 2))  # 20 x 10, of which columns 5 to 15 are kept: five black, five white
    assert (seen[:, :4] == 0).all()
    assert (seen[:, 6:] == 255).all()


def test_two_sides_are_height_and_width() -> None:
    preprocessing = Preprocessing((6, 10), (4, 2), 0, (0.0,) * 3, (1.0,) * 3)
    assert preprocessing.size == (4, 2)
    assert preprocessing.pixels(Image.new("RGB", (40, 20))).shape == (4, 2, 3)


# What a data set holds in memory


def test_a_picture_is_the_same_however_it_is_held(tmp_path: Path) -> None:
    pixels = noise(tmp_path / "x.png", 4, 4)  # the size the stand-in wants: nothing is resized
    backbone = Colours()
    held = [
        tmp_path / "x.png", str(tmp_path / "x.png"), (tmp_path / "x.png").read_bytes(), Image.fromarray(pixels), pixels,
        pixels.transpose(2, 0, 1), pixels.astype(np.float32) / 255,
    ]  # fmt: skip
    for item in held:
        np.testing.assert_array_equal(backbone.prepare(backbone.content(item), item), pixels)
    grey = pixels[..., 0]
    for item in (grey, grey[..., None], grey[None]):
        np.testing.assert_array_equal(backbone.prepare(b"", item), np.repeat(grey[..., None], 3, axis=2))


def test_what_differs_in_any_pixel_or_in_shape_is_kept_apart() -> None:
    backbone = Colours()
    pixels = np.zeros((4, 6, 3), np.uint8)
    other = pixels.copy()
    other[3, 5, 2] = 1
    contents = [backbone.content(item) for item in (pixels, other, pixels.reshape(6, 4, 3), pixels.view(np.int8))]
    contents += [backbone.content(Image.new("L", (6, 4))), backbone.content(Image.new("P", (6, 4)))]
    assert len(set(contents)) == 6


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (np.full((4, 4, 3), 1.5), "must go from 0 to 1; undo its normalisation"),
        (np.full((4, 4, 3), np.nan), "must go from 0 to 1"),
        (np.zeros((5, 4, 7), np.uint8), "is no picture"),
        (np.zeros(9, np.uint8), "is no picture"),
    ],
)
def test_an_array_that_is_no_picture_is_refused(item: np.ndarray, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        Colours().prepare(b"", item)
