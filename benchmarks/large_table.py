"""The memory that the analytic learner takes for a table that comes piece by piece, in a process of its own.

    python benchmarks/large_table.py [--rows 2000000] [--columns 64] [--query 100000] [--json]

Both halves are Parquet files that are written and read in pieces. Of the support only sums are kept; the query's rows are held.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from perdure import AnalyticLearner
from perdure.inputs import Reader

CLASSES = 10
PIECE = 65_536
"""Rows that are written at a time."""


@dataclass(frozen=True)
class Cost:
    """What learning took, in MiB and seconds."""

    table: float
    """The support's rows, were they in memory."""
    before: float
    """Resident when everything was imported."""
    peak: float
    seconds: float
    right: float
    """Part of the query that is answered right: were it low, something else would have been measured."""


def write(path: Path, rows: int, columns: int, *, shift: float = 0.0, labelled: bool = True) -> None:
    """Gaussian classes in turn; labels stand in the column "kind"."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, columns))
    names = [f"column_{j}" for j in range(columns)]
    schema = pa.schema([*((name, pa.float32()) for name in names), *([("kind", pa.int64())] if labelled else [])])
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, PIECE):
            y = kinds(rows)[start : start + PIECE]
            noise = np.random.default_rng([start, labelled]).normal(size=(len(y), columns))
            x = (centres[y] + shift + noise).astype(np.float32)
            writer.write_table(pa.table([*x.T, *([y] if labelled else [])], schema=schema))


def kinds(rows: int) -> NDArray[np.int64]:
    """The class of each row."""
    return np.arange(rows) % CLASSES


def learn(support: Path, query: Path) -> Cost:
    """Learn the one for the other, in this process."""
    rows, columns = parquet.read_metadata(support).num_rows, len(parquet.read_schema(query))
    before, since = resident("VmRSS"), time.perf_counter()
    learner, reader = AnalyticLearner(), Reader(label="kind")
    for part, more in reader.parts("query", support, query):
        learner.learn(part, more=more)
    seconds, peak = time.perf_counter() - since, resident("VmHWM")
    answers = learner.predict(reader.query(query).x)
    return Cost(rows * columns * 4 / 2**20, before, peak, seconds, float((answers == kinds(len(answers))).mean()))


def resident(what: str) -> float:
    """MiB of memory of this process that the system counts: now (VmRSS), or at most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def measure(rows: int, columns: int, query: int) -> Cost:
    """The same in a new process, which has held nothing else before."""
    with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
        halves = [Path(folder, "support.parquet"), Path(folder, "query.parquet")]
        write(halves[0], rows, columns)
        write(halves[1], query, columns, shift=0.5, labelled=False)
        command = [sys.executable, __file__, "--learn", *map(str, halves)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(**json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the support")
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--query", type=int, default=100_000, help="rows of the query")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--learn", type=Path, nargs=2, metavar=("SUPPORT", "QUERY"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.learn:
        print(json.dumps(asdict(learn(*args.learn))))
        return
    cost = measure(args.rows, args.columns, args.query)
    if args.json:
        print(json.dumps(asdict(cost)))
        return
    print(f"support {args.rows} x {args.columns} ({cost.table:.0f} MiB), query of {args.query} rows")
    print(f"learned in {cost.seconds:.1f} s; {cost.before:.0f} MiB before, {cost.peak:.0f} MiB at most; {cost.right:.1%} right")


if __name__ == "__main__":
    main()
