"""Texts that are there wherever perdure is: which field a function is of, by the first paragraph of its manual.

SciPy (with NumPy), SymPy and PyTorch describe the same four fields, each in its own way: real texts, real drift, no download.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from perdure.errors import InputError
from perdure.inputs.backbones import Backbone
from perdure.inputs.extraction import extract
from perdure.inputs.texts import TextBackbone
from perdure.progress import Progress
from perdure.scenarios.frozen import FrozenFeatures, Step, scenario
from perdure.streams import Labels, Scenario

LIBRARIES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "SciPy": {
        "Fourier and other transforms": ("numpy.fft", "scipy.fft"),
        "linear algebra": ("numpy.linalg", "scipy.linalg"),
        "probability": ("numpy.random", "scipy.stats"),
        "special functions": ("scipy.special",),
    },
    "SymPy": {
        "Fourier and other transforms": (
            "sympy.discrete", "sympy.integrals.laplace", "sympy.integrals.transforms", "sympy.series.fourier"
        ),
        "linear algebra": ("sympy.matrices",),
        "probability": ("sympy.stats",),
        "special functions": ("sympy.functions.special",),
    },
    "PyTorch": {
        "Fourier and other transforms": ("torch.fft",),
        "linear algebra": ("torch.linalg",),
        "probability": ("torch.distributions",),
        "special functions": ("torch.special",),
    },
}  # fmt: skip
"""Library → field → the modules whose functions are of it."""
AT_MOST = 150
"""Texts of a field in a library."""


def manuals(
    support: str,
    queries: Sequence[str],
    backbone: Backbone | str | Path,
    *,
    inductive: bool = False,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: Progress = None,
) -> Scenario:
    """One library's manual with fields supports those of others without, one after another ("SciPy", "SymPy", "PyTorch")."""
    queries = [queries] if isinstance(queries, str) else list(queries)
    read = {name: texts(name) for name in dict.fromkeys([support, *queries])}
    seen_by = TextBackbone(backbone) if isinstance(backbone, (str, Path)) else backbone
    words = [text for library, _ in read.values() for text in library]
    features = FrozenFeatures(
        extract(words, seen_by, cache=cache, progress=progress).x,
        np.concatenate([fields for _, fields in read.values()]),
        np.repeat(list(read), [len(fields) for _, fields in read.values()]),
    )
    steps = [Step(f"{support}→{query}", support, query, list(LIBRARIES[support])) for query in queries]
    return scenario(f"manuals {support}→{','.join(queries)}", features, steps, inductive=inductive, seed=seed)


def texts(library: str) -> tuple[list[str], Labels]:
    """First paragraphs, none twice, and the field of each."""
    if library not in LIBRARIES:
        raise InputError(f"No library is called {library!r}. Known: {', '.join(LIBRARIES)}.")
    found: dict[str, str] = {}
    for field, names in LIBRARIES[library].items():
        paragraphs = {text for name in names for module in _modules(name) for text in _paragraphs(module, name)}
        new = sorted(paragraphs - found.keys())
        rows = np.sort(np.random.default_rng(0).permutation(len(new))[:AT_MOST])
        found |= {new[row]: field for row in rows}
    return list(found), np.array(list(found.values()))


def _modules(name: str) -> Iterator[ModuleType]:
    """A module and, of SymPy and of distributions, which are many, those in it."""
    module = importlib.import_module(name)
    yield module
    if name.startswith(("sympy.", "torch.distributions")) and hasattr(module, "__path__"):
        for info in pkgutil.iter_modules(module.__path__, f"{name}."):
            if not re.search(r"\._|test|benchmark", info.name):
                yield importlib.import_module(info.name)


def _paragraphs(module: ModuleType, name: str) -> Iterator[str]:
    """Of all functions and classes of a module, and of their methods."""
    library = name.partition(".")[0]
    for key, thing in sorted(vars(module).items()):
        owner = getattr(thing, "__module__", None) or name  # compiled functions have none
        elsewhere = not owner.startswith(name if library == "sympy" else library)
        if key.startswith("_") or key == "test" or inspect.ismodule(thing) or not callable(thing) or elsewhere:
            continue
        own = sorted(vars(thing).items()) if inspect.isclass(thing) else []
        kinds = (property, classmethod, staticmethod)
        methods = [each for name, each in own if name[0] != "_" and (inspect.isroutine(each) or isinstance(each, kinds))]
        yield from filter(None, map(_first_paragraph, [thing, *methods]))


def _first_paragraph(thing: Any) -> str | None:
    """Of its description: a sentence, neither a signature nor an example."""
    for paragraph in re.split(r"\n\s*\n", inspect.getdoc(thing) or ""):
        text = " ".join(paragraph.split())
        if text.startswith(("Parameters", "Returns", "Examples", "See Also", "Notes")):
            return None
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= 5 and not re.search(r">>>|->|^[\w.,]+( ?= ?[\w.]+)?\(.*\)$", text):
            return text
    return None
