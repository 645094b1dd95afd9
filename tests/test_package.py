"""What holds for the project as a whole: light imports, checked shapes, documents that run, nothing unsafe."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError

import perdure
from perdure import objectives
from perdure.solver import TwoLayerClassifier

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(str(perdure.__file__)).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
MODULES = ["perdure", *sorted(info.name for info in pkgutil.walk_packages([str(PACKAGE)], "perdure."))]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

checks_shapes = pytest.mark.skipif(os.environ.get("PERDURE_CHECK_SHAPES") == "0", reason="shapes are not checked in this run")


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, as a user would start it."""
    return subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


# Imports


def test_the_core_imports_without_extras(tmp_path: Path) -> None:
    extras = ["sklearn", "scipy", "pandas", "pyarrow", "matplotlib", "PIL", "transformers", "beartype"]
    code = f"import sys, perdure; print(sorted({{name.partition('.')[0] for name in sys.modules}} & set({extras})))"
    run = python(code, tmp_path)
    assert (run.stdout.strip(), run.stderr) == ("[]", "")


def test_the_core_does_without_a_progress_bar(tmp_path: Path) -> None:
    # torch itself loads tqdm where there is one, so that it is not loaded cannot be asked for; that it is not needed can.
    run = python("import sys; sys.modules['tqdm'] = None; import perdure; print(perdure.__version__)", tmp_path)
    assert (run.stdout.strip(), run.stderr) == (perdure.__version__, "")


def test_all_public_names_are_there() -> None:
    assert sorted(set(perdure.__all__)) == sorted(perdure.__all__)
    assert all(hasattr(perdure, name) for name in perdure.__all__)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert perdure.__version__ == importlib.metadata.version("perdure")


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def imported(source: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_imports_the_command_line(source: Path) -> None:
    named = {name for name in imported(source) if re.match(r"perdure\.cli\b", name)}
    assert source.name in ("cli.py", "__main__.py") or not named


# Safety


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_that_is_read_can_run_as_code(source: Path) -> None:
    pickling = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    assert not {name.partition(".")[0] for name in imported(source)} & pickling
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "pd.read_pickle", "os.system"}
        if called in {"np.load", "numpy.load"}:
            assert "allow_pickle=False" in ast.unparse(node), f"{source.name}:{node.lineno}: say allow_pickle=False"


def project_files() -> list[Path]:
    """Every text file that is part of the project: what git knows or would add; without git, what is not built or downloaded."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=False
    )
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        built = {".git", ".venv", "build", "dist", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
        paths = [path for path in ROOT.rglob("*") if not built & set(path.relative_to(ROOT).parts)]
    return [path for path in paths if path.is_file() and path.suffix not in {".png", ".npz", ".parquet", ".safetensors"}]


def test_no_file_names_a_package_registry() -> None:
    registry = re.compile(
        r"pypi\.|files\.pythonhosted|index[-_]url|find[-_]links|pytorch\.org/whl|conda\.anaconda", re.IGNORECASE
    )
    files = project_files()
    assert ROOT / "constraints.txt" in files
    found = [
        (str(path.relative_to(ROOT)), hit[0]) for path in files if (hit := registry.search(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_every_dependency_is_pinned_to_the_tested_version() -> None:
    pins = re.findall(
        r"^([a-z0-9-]+)==[\w.]+(?:; python_version (?:>=|<) \"3\.11\")?$", (ROOT / "constraints.txt").read_text(), re.M
    )
    needed = {re.match(r"[\w-]+", line)[0] for line in importlib.metadata.requires("perdure") or []}
    assert {"torch", "pytest"} <= needed
    assert needed <= set(pins)


# Shapes


@checks_shapes
def test_a_wrong_shape_is_refused_while_testing() -> None:
    with pytest.raises(TypeCheckError, match="log_prob_of_any_other_class"):
        objectives.log_prob_of_any_other_class(torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(TypeCheckError, match="margin_disparity_discrepancy"):
        objectives.margin_disparity_discrepancy(
            torch.zeros(3, 4), torch.zeros(2, 4), torch.zeros(5, 4), torch.zeros(5, 4), gamma=1.0
        )
    with pytest.raises(TypeCheckError, match="forward"):
        TwoLayerClassifier(5, 4, 3)(torch.zeros(2, 2, 5))


@checks_shapes
def test_a_wrong_dtype_is_refused_while_testing() -> None:
    with pytest.raises(TypeCheckError, match="solver_objective"):
        objectives.solver_objective(torch.zeros(3, 4), torch.zeros(3))


# Documents


def documented_examples(module: ModuleType) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder(recurse=True).find(module) if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    tests = documented_examples(module)
    written = len(re.findall(r"^\s*>>> ", inspect.getsource(module), re.M))
    assert sum(len(test.examples) for test in tests) == written  # none is overlooked
    for test in tests:
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def snippets(document: Path) -> str:
    """The Python blocks of a document as one program, each on the lines it has in the document.

    A block that cannot run says why, in a comment on the line before it: `<!-- not run: it needs your data -->`.
    """
    lines = document.read_text(encoding="utf-8").splitlines()
    program, inside, fence = [""] * len(lines), False, re.compile(r"```(\w*)")
    for i, line in enumerate(lines):
        if opening := fence.match(line):
            told_why = i > 0 and re.fullmatch(r"<!-- not run: .{10,} -->", lines[i - 1])
            inside = not inside and opening[1] == "python" and not told_why
        elif inside:
            program[i] = line
    return "\n".join(program)


CLAIMS = {
    "README.md": """
for name, rows in {"camera a": y < 2, "camera b": (y == 2) | (y == 3)}.items():
    right = (learner.predict(shaded[rows], environment=name) == y[rows]).mean()
    assert right > 0.95, f"{right:.0%} of the rows of {name} are answered right"
assert learner.predict(shaded[:2], environment="camera a").tolist() == [0, 1]
""",
    "your-data.md": """
before, after = ((each.predict(new) == answers).mean() for each in (unadapted, adapted))
assert before + 0.04 < after, (before, after)
assert adapted.adapted == {"from above": True}
assert validators.proxy_a_distance(x, new) > 1.9
assert unanswered[answers >= 8].mean() > 0.3 + unanswered[answers < 8].mean()
assert unanswered[answers < 8].mean() > 0.1  # "right ones among them"
features, classes = 2048, 31
assert round(8e-6 * (features * (features + 1) + 2 * classes * (features + 1) + features), 1) == 34.6  # as in bytes_held
""",
}
"""What a reader takes from a snippet beyond that it runs."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_snippets_of_the_documents_run(document: Path, tmp_path: Path) -> None:
    program = snippets(document)
    if not program.strip():
        pytest.skip(f"{document.name} has no Python block to run")
    run = python(program + CLAIMS.get(document.name, ""), tmp_path)
    assert run.returncode == 0, f"{document.name} (lines are the document's own):\n{run.stderr}"


def test_the_readme_has_a_snippet_and_the_command_that_is_run_here() -> None:
    assert "perdure" in snippets(ROOT / "README.md")
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^exec make test\b", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)


def resolved(name: str) -> Any:
    """What a name such as `objectives.kl_to_prior` or `VariationalConfig.latent` in docs/paper.md stands for, or an error."""
    parts = name.split(".")
    found: Any = perdure
    for i, part in enumerate(parts):
        if i == 0 and hasattr(perdure, part) and inspect.isclass(getattr(perdure, part)):
            found = getattr(perdure, part)
        elif hasattr(found, "__path__") and importlib.util.find_spec(f"{found.__name__}.{part}"):
            found = importlib.import_module(f"{found.__name__}.{part}")
        elif part not in getattr(found, "__annotations__", {}):
            found = getattr(found, part)
    return found


def test_paper_md_names_only_what_exists() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    roots = "|".join(sorted({path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in SOURCES} | {"VariationalConfig"}))
    names = set(re.findall(rf"`((?:{roots})(?:\.\w+)+)`", text))
    assert len(names) > 60
    for name in sorted(names):
        if not name.endswith(".py"):
            resolved(name)
    files = set(re.findall(r"`((?:src|tests|reproduce)/[\w/.-]*)`", text))
    assert "reproduce/office31-tasks.py" in files
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []


def test_paper_md_names_every_equation_and_every_setting() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    for number in range(1, 16):
        assert re.search(rf"^\| {number} \|", text, re.M), f"equation {number} has no row"
    here = [name for name, f in inspect.getmembers(objectives, inspect.isfunction) if f.__module__ == objectives.__name__]
    assert [name for name in here if f"`objectives.{name}`" not in text] == []
    settings = [field.name for field in fields(perdure.VariationalConfig)]
    assert [name for name in settings if f"`VariationalConfig.{name}`" not in text] == []
