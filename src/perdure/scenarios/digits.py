"""Handwritten digits as support, the same digits in print as query. Real on both sides, and nothing is downloaded.

The handwriting is scikit-learn's: of each 32 x 32 bitmap, how many of the 16 pixels in each of 8 x 8 cells are inked. The print
is brought to the same 64 numbers from 0 to 16: a typeface that matplotlib ships, set smaller than the handwriting (which
fills its box), faded, on greyish paper that lies askew, a little stretched and out of place.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from perdure.errors import InputError
from perdure.streams import Answers, Environment, Query, Scenario, Support

TASKS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
TYPEFACES = (
    *("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSans-Bold", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Oblique", "DejaVuSansMono-Bold", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Italic", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralItalic", "STIXGeneralBol", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmtt10", "cmmi10"),
)
"""Those of matplotlib's fonts that draw all ten digits. Named, because others claim to and draw boxes or ornaments, and because
newer versions ship more."""

_BOX, _CELLS = 32, 8
_FINE = 4  # each of the 32 x 32 pixels is drawn as 4 x 4


def digits(*, seed: int = 0, renderings: int = 8) -> Scenario:
    """Five environments of two digits each, "printed 0-1" to "printed 8-9".

    Ten of the typefaces, chosen by `seed`, make the queries that are adapted to (transductive); the other eleven are kept aside
    (inductive), so that those rows are new in typeface and not only in rendering. Each typeface prints each digit `renderings`
    times: hence 10 * 2 * `renderings` rows an environment to adapt to and 11 * 2 * `renderings` kept aside.
    """
    from sklearn.datasets import load_digits

    if seed < 0:
        raise InputError(f"`seed` must be zero or more, got {seed}.")
    if renderings < 1:
        raise InputError(f"`renderings` must be at least 1, got {renderings}.")
    handwritten = load_digits()
    rng = np.random.default_rng(seed)
    shuffled = [str(name) for name in rng.permutation(TYPEFACES)]
    adapted, kept_aside = shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]
    environments, transductive, inductive = [], {}, {}
    for task in TASKS:
        name = f"printed {task[0]}-{task[1]}"
        own = np.isin(handwritten.target, task)
        query, answers = _printed(adapted, task, renderings, rng)
        environments.append(Environment(name, Support(handwritten.data[own], handwritten.target[own]), Query(query)))
        transductive[name] = answers
        inductive[name] = Support(*_printed(kept_aside, task, renderings, rng))
    return Scenario("digits: handwritten to printed", environments, Answers(transductive, inductive))


def _printed(
    typefaces: list[str], task: tuple[int, ...], renderings: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "n 64"], np.ndarray]:
    """Rows and labels in random order."""
    glyphs = [(glyph(typeface, digit), digit) for typeface in typefaces for digit in task]
    drawn = [(printed(ink, rng).reshape(-1), digit) for ink, digit in glyphs for _ in range(renderings)]
    order = rng.permutation(len(drawn))
    return np.stack([drawn[i][0] for i in order]), np.array([drawn[i][1] for i in order])


def glyph(typeface: str, digit: int) -> Float[np.ndarray, "height width"]:
    """One digit, large and cut to its edges; 1 is ink."""
    import matplotlib as mpl
    from PIL import Image, ImageDraw, ImageFont

    path = Path(mpl.get_data_path()) / "fonts" / "ttf" / f"{typeface}.ttf"
    if not path.exists():
        raise InputError(f"This matplotlib ({mpl.__version__}) does not ship the typeface {typeface}; expected {path}.")
    # The basic layout, because the other one depends on what is installed.
    font = ImageFont.truetype(str(path), 96, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = (round(edge) for edge in font.getbbox(str(digit)))
    image = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(image).text((-left, -top), str(digit), font=font, fill=255)
    return np.asarray(image, dtype=np.float64) / 255


def printed(ink: Float[np.ndarray, "height width"], rng: np.random.Generator) -> Float[np.ndarray, "8 8"]:
    """A glyph as it lies on the page: 0 to 16 a cell, as the handwriting has it."""
    from PIL import Image

    height, width = ink.shape
    tall = rng.uniform(24, 28)
    wide = tall * width / height * rng.uniform(0.8, 1.2)
    turn = np.deg2rad(rng.uniform(12, 28))
    centre = _BOX / 2 + rng.uniform(-1.5, 1.5, size=2)
    faded, paper = rng.uniform(0.6, 1.0), 0.2

    # Pillow asks for the map from a pixel of the page back to a pixel of the glyph.
    across, down = width / (wide * _FINE), height / (tall * _FINE)
    back = np.array([[across * np.cos(turn), across * np.sin(turn)], [-down * np.sin(turn), down * np.cos(turn)]])
    origin = np.array([width / 2, height / 2]) - back @ (centre * _FINE)
    affine = (*back[0], origin[0], *back[1], origin[1])
    fine = _BOX * _FINE
    image = Image.fromarray(np.round(255 * ink).astype(np.uint8))
    page = image.transform((fine, fine), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    cell = fine // _CELLS
    inked = np.asarray(page, dtype=np.float64).reshape(_CELLS, cell, _CELLS, cell).mean(axis=(1, 3)) / 255
    cells: NDArray[np.float64] = np.round(16 * (paper + (1 - paper) * faded * inked))
    return cells
