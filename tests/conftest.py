"""Shapes are checked while testing: every module that states shapes is imported through jaxtyping and beartype.

Modules that state none (the streams, the command line) take whatever a user gives and refuse it in words of their own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

assert "perdure" not in sys.modules, "perdure was imported before its shapes could be checked"
package = Path(str(importlib.util.find_spec("perdure").origin)).parent  # finds, does not import
if os.environ.get("PERDURE_CHECK_SHAPES") != "0":  # a check costs about a millisecond a step: `make slow` does without
    install_import_hook(
        [
            ".".join(("perdure", *path.relative_to(package).with_suffix("").parts))
            for path in package.rglob("*.py")
            if "from jaxtyping import" in path.read_text(encoding="utf-8")
        ],
        "beartype.beartype",
    )

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's package is imported: nothing is fetched while testing

import torch  # noqa: E402

torch.set_num_threads(1)  # a worker of pytest-xdist has one core


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real features and pictures; a test that needs it is skipped where it is absent."""
    named = os.environ.get("PERDURE_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent; set PERDURE_DATA to the folder that holds office31_resnet50.npz and its companions")
    return folder


@pytest.fixture(autouse=True)
def _features_are_kept_apart(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[None]:
    """No test reads features that another kept, nor leaves any in the cache of who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
        patch.setenv("PERDURE_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{name}"))
        yield
