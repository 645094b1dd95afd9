"""The command line: parse, call one function of the library, print."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import logging
import os
import re
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import perdure
from perdure.errors import CheckpointError, InputError, NotSolvableYet, PerdureError, UnknownEnvironment

DONE, UNEXPECTED, BAD_INPUT, NOT_YET, DAMAGED, BLOCKED, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 5, 130, 141

USAGE = """\
Learn from labelled tables or pictures, keep answering those from places that have no labels.

  perdure learn HOME --support clinic_a.csv --label-column diagnosis --query clinic_b.csv --environment b
  perdure learn HOME --support clinic_a.csv --query clinic_c.csv --environment c
  perdure predict HOME new_from_b.csv --environment b -o answers.csv
  perdure learn HOME2 --support photos/a --query photos/b --environment b --backbone facebook/dinov2-small
  perdure status HOME
  perdure demo
  perdure features photos -o features.parquet --backbone facebook/dinov2-small
  perdure reproduce office31-tasks --quick

HOME is a folder that perdure makes. It keeps what was learned, never your data. The support has labels, the query
needs none; both have the same feature columns. Tables are Parquet, CSV, TSV or NPZ (arrays "X" and "y"). Pictures with
labels lie in a folder for each class.
"""
EXIT_CODES = """\
exit codes:
  0    done; also when half an environment was queued
  1    something unexpected (please report it; --debug shows where)
  2    bad input or usage: the sentence says what to change
  3    no answer yet: nothing is learned, or what was asked for is still queued or under way
  4    what is saved in HOME is damaged
  5    the machine stood in the way: disk full, no permission, HOME in use by another perdure
  130  stopped with Ctrl-C; the same command goes on from there

Whatever the code, HOME and OUT are never left half-written.
"""


class Interrupted(Exception):
    """Ctrl-C, with what to do next."""


@dataclasses.dataclass
class Notes:
    """Remarks beside the result: on stderr at once, or kept for the one JSON object."""

    kept: list[str] | None

    def __call__(self, text: str) -> None:
        """Make a remark."""
        if self.kept is None:
            print(f"note: {text}", file=sys.stderr)
        else:
            self.kept.append(text)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command has to say, to a person and to a program."""

    text: str
    content: Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json, debug = "--json" in arguments, "--debug" in arguments
    notes = Notes([] if as_json else None)
    handler = _to_notes(notes)
    try:
        try:
            args = parser().parse_args(arguments)
            answer: Answer = args.run(args, notes)
            if as_json:
                _print_json({**answer.content, **({"notes": notes.kept} if notes.kept else {})})
            else:
                print(answer.text, end="\n" if answer.text else "")
            sys.stdout.flush()
            return DONE
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read has seen enough, as with `| head`
            return BROKEN_PIPE
        except (Exception, KeyboardInterrupt) as error:
            code, sentence = _explained(error, arguments)
            if debug:
                traceback.print_exc()
            print(f"perdure: {sentence}", file=sys.stderr)
            if as_json:
                _print_json({"error": {"kind": type(error).__name__, "message": sentence, "exit_code": code}})
            return code
    finally:
        logging.getLogger("perdure").removeHandler(handler)


def parser() -> argparse.ArgumentParser:
    """Everything that can be typed."""
    every = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    every.add_argument("--json", action="store_true", help="print exactly one JSON object")
    every.add_argument("--debug", action="store_true", help="show where an error comes from")
    top = _Parser(prog="perdure", description=USAGE, epilog=EXIT_CODES, formatter_class=_Raw, parents=[every], allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"perdure {perdure.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)

    def command(name: str, run: Callable[[argparse.Namespace, Notes], Answer], about: str, more: str = "") -> _Parser:
        made: _Parser = commands.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}.\n\n{more}".strip(), epilog=EXIT_CODES,
            formatter_class=_Raw, parents=[every], allow_abbrev=False,
        )  # fmt: skip
        made.set_defaults(run=run)
        return made

    learn = command("learn", _learn, "learn one environment from a labelled support and an unlabelled query", LEARN)
    _add_home(learn)
    learn.add_argument("--environment", metavar="NAME", required=True, help="what to call it, and later ask for it by")
    learn.add_argument("--support", metavar="PATH", type=Path, help="labelled table, or folder of pictures as CLASS/FILE")
    learn.add_argument("--query", metavar="PATH", type=Path, help="unlabelled table or folder of pictures from the new place")
    about = "analytic: sums, in seconds; variational: the paper's networks, trained (analytic; remembered in HOME)"
    learn.add_argument("--learner", choices=("analytic", "variational"), help=about)
    learn.add_argument("--label-column", metavar="NAME", help='where the support\'s labels are (remembered; "y" in an NPZ file)')
    _add_ignore(learn)
    shown = learn.add_argument_group("pictures and texts")
    shown.add_argument("--text-column", metavar="NAME", help="where in a table the texts are (remembered in HOME)")
    _add_backbone(shown, batch="--backbone-batch")
    settings = learn.add_argument_group("settings of the variational learner, taken at the first learn and remembered in HOME")
    for name, (kind, about) in SETTINGS.items():
        settings.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=about)
    settings.add_argument("--replay", choices=("generative", "noise", "none"), help="how the past is rehearsed (generative)")
    running = learn.add_argument_group("running")
    about = "of the variational learner: steps between two saves (200)"
    running.add_argument("--checkpoint-every", type=_positive, metavar="N", help=about)
    _add_device(running, None)

    predict = command("predict", _predict, "answer every row of a table, or every picture", PREDICT)
    _add_home(predict)
    predict.add_argument("input", metavar="INPUT", type=Path, help="table, folder of pictures or picture, as was learned from")
    predict.add_argument("-o", "--out", metavar="OUT", type=Path, help="write a .csv or .parquet file instead of printing CSV")
    predict.add_argument("--environment", metavar="NAME", help="where the rows come from; inferred for each row if left out")
    predict.add_argument("--proba", action="store_true", help="add a column probability_CLASS for every class")
    about = "leave the prediction empty where it is less probable than this (analytic learner)"
    predict.add_argument("--abstain-below", type=_number, metavar="P", help=about)
    _add_ignore(predict)
    _add_backbone(predict.add_argument_group("pictures and texts"), batch="--backbone-batch")
    _add_device(predict, None)

    _add_home(command("status", _status, "show what HOME has learned, what waits and what is under way"))

    forget = command("forget", _forget, "drop an environment, whether learned, queued or under way")
    _add_home(forget)
    forget.add_argument("environment", metavar="NAME")

    demo = command("demo", _demo, "watch the method beside source-only and no replay, on digits that need no download")
    demo.add_argument("--seeds", type=_whole, nargs="+", default=[0, 1, 2], metavar="N", help="one repetition for each (0 1 2)")
    demo.add_argument("-o", "--out", metavar="PNG", type=Path, default=Path("perdure-demo.png"), help="the picture to draw")

    features = command("features", _features, "turn pictures or texts into a file of features", FEATURES)
    features.add_argument("input", metavar="INPUT", type=Path, help="folder of pictures, or table with a column of texts")
    features.add_argument("-o", "--out", metavar="OUT", type=Path, required=True, help="the .parquet, .csv or .npz file to write")
    features.add_argument("--text-column", metavar="NAME", help="where in the table the texts are")
    features.add_argument("--label-column", metavar="NAME", help="a column of the table to keep beside the features")
    _add_backbone(features, batch="--batch", required=True)
    _add_device(features, None)

    again = command("reproduce", _reproduce, "run tables and figures of the paper beside its numbers", REPRODUCE)
    again.add_argument("names", metavar="NAME", nargs="*", help="what to run; without one, the names there are")
    budget = again.add_mutually_exclusive_group()
    budget.add_argument("--quick", action="store_true", help="fewer pairs, seeds and steps: under ten minutes each on two cores")
    budget.add_argument("--paper-budget", action="store_true", help="the paper's 5,000 steps where the ledger has 1,000")
    again.add_argument(
        "--show", action="store_true", help="run nothing; print and draw what is there, and write the ledger's section"
    )
    again.add_argument("--only", metavar="TEXT", help='of the missing runs, those that are called so, such as "joint training"')
    again.add_argument("--workers", type=_positive, metavar="N", help="processes of one thread each (as many as cores)")
    again.add_argument("--data", type=Path, metavar="DIR", help="folder of the features (PERDURE_DATA, else ../shared/data)")
    again.add_argument(
        "--matmul-precision",
        choices=("highest", "high", "medium"),
        default="highest",
        help="of matrix products, as in torch; medium is bfloat16, several times as fast on some processors (highest)",
    )
    _add_device(again)
    return top


LEARN = """\
Either half may come alone: the environment is then queued, and learned when the other half is given. HOME remembers
where the first file is (not what is in it) and reads it again. Pictures and texts go through a pretrained network, the
backbone; HOME remembers which. Stopped by Ctrl-C or killed: the same command goes on."""
PREDICT = """\
Columns: picture, of pictures; prediction; environment and confidence if no --environment is given; probabilities with
--proba. The rows keep their order."""
FEATURES = """\
Pictures lie as DOMAIN/CLASS/FILE, as CLASS/FILE or in any folders; texts stand in a column of a table. The backbone is what
Hugging Face calls a model: a folder with config.json, preprocessor_config.json (or a tokenizer) and safetensors, or its name. No
code of it is run. What was computed before is read from the cache. Stopped by Ctrl-C or killed: the same command goes on.
This needs pip install 'perdure[images]' or 'perdure[text]'."""
REPRODUCE = """\
For a checkout of perdure: each NAME is a file of its folder reproduce/. Results are kept in reproduce/results, run by run, and
what is there is not run again; a full run also writes its section of docs/ledger.md. Stopped by Ctrl-C or killed: the same
command goes on."""


def _learn(args: argparse.Namespace, notes: Notes) -> Answer:
    from perdure import Adapted, AnalyticLearner, home
    from perdure.waiting import Queued

    names = (*SETTINGS, "replay")
    settings = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    try:
        outcome, learner = home.learn(
            args.home,
            args.environment,
            args.support,
            args.query,
            label_column=args.label_column,
            ignore=args.ignore_column,
            kind=args.learner,
            settings=settings,
            showing=_showing(args),
            device=args.device,
            every=args.checkpoint_every,
            note=notes,
        )
    except KeyboardInterrupt:
        stopped = home.in_progress(args.home)
        where = (
            f'"{stopped.environment}" is saved at step {stopped.step} of {stopped.steps}' if stopped else "nothing was learned"
        )
        raise Interrupted(f"stopped; {where}. To go on, run the same command again:") from None
    content: dict[str, Any] = {"home": str(args.home), "environment": args.environment}
    if isinstance(outcome, Queued):
        text = f'"{args.environment}" is queued: it waits for its {outcome.missing}.'
        return Answer(text, {**content, "state": "queued", "missing": outcome.missing})
    content |= {"state": "learned", "environments": learner.environments, "classes": learner.classes}
    if isinstance(learner, AnalyticLearner):
        content["adapted"] = learner.adapted[args.environment]
    if outcome is None:
        return Answer(f'"{args.environment}" was already learned when the last run was killed.', content)
    for label in outcome.returning:
        notes(f"the class {label} came back: it stays one class, learned from both environments.")
    content |= {"seconds": round(outcome.seconds, 3), "returning": outcome.returning}
    if isinstance(outcome, Adapted):
        how = "and adapted to its query" if outcome.adapted else "without adapting to its query"
        content["explained"] = outcome.explained
    else:
        how = f"in {outcome.steps} steps"
        content |= {"steps": outcome.steps, "losses": dict(outcome.losses)}
    known = f"environments {_list(learner.environments)}; classes {_list(learner.classes)}"
    return Answer(f'learned "{args.environment}" {how}. {args.home} knows {known}.', content)


def _showing(args: argparse.Namespace) -> Any:
    """How pictures and texts are to go through a backbone."""
    from perdure.inputs.showing import Showing

    return Showing(
        args.backbone,
        getattr(args, "text_column", None),
        args.device or "auto",
        args.precision,
        args.backbone_batch,
        args.cache,
        not args.no_cache,
        "skip" if args.skip_broken else "stop",
    )


def _predict(args: argparse.Namespace, notes: Notes) -> Answer:
    from perdure import home
    from perdure.inputs import tables

    if args.out is not None:
        tables.check_writable(args.out)
        if args.out.exists() and args.input.exists() and args.out.samefile(args.input):
            raise InputError(f"{args.out} is the table to answer; give another file to write.")
    columns = home.predict(
        args.home,
        args.input,
        args.environment,
        proba=args.proba,
        abstain_below=args.abstain_below,
        ignore=args.ignore_column,
        showing=_showing(args),
        device=args.device,
        note=notes,
    )
    counted = {
        what: Counter(columns[column].tolist())
        for what, column in (("classes", "prediction"), ("environments", "environment"))
        if column in columns
    }
    rows, empty = len(columns["prediction"]), counted["classes"].pop(None, 0)
    content = {"home": str(args.home), "rows": rows, "environment": args.environment}
    content |= {what: {str(name): count[name] for name in sorted(count)} for what, count in counted.items()}
    if args.abstain_below is not None:
        content["unanswered"] = empty
    if args.out is not None:
        tables.write_table(columns, args.out)
        left = f", {empty} of them empty" if empty else ""
        return Answer(f"{rows} answers written to {args.out}{left}.", {**content, "out": str(args.out)})
    if "json" in args:
        return Answer("", {**content, "columns": {name: column.tolist() for name, column in columns.items()}})
    tables.write_csv(columns, sys.stdout.buffer)
    return Answer("", {})


def _status(args: argparse.Namespace, notes: Notes) -> Answer:
    from perdure import home

    status = home.status(args.home)
    environments = [
        name if status.adapted is None or status.adapted[name] else f"{name} (not adapted)" for name in status.environments
    ]
    lines = [
        f"learner       {status.learner}",
        f"environments  {_list(environments) or 'none yet'}",
        f"classes       {_list(status.classes) or 'none yet'}",
    ]
    for waiting in status.queued:
        why = f"waits for its {waiting.missing}" if waiting.missing else "stopped before its first save; learn it again"
        files = ", ".join(f"{half}: {path}" for half, path in waiting.files.items())
        lines.append(f"queued        {waiting.environment} {why}" + (f" ({files})" if files else ""))
    if status.in_progress is not None:
        name, step, steps = dataclasses.astuple(status.in_progress)
        again = _command(["learn", str(args.home), "--environment", name])
        lines.append(f"in progress   {name}, saved at step {step} of {steps}; `{again}` goes on")
    if status.backbone is not None:
        lines.append(f"backbone      {status.backbone}")
    if status.features is not None:
        lines.append(
            f"features      {status.features.width}" + (f": {_list(status.features.names)}" if status.features.names else "")
        )
    held = ", ".join(f"{name} {_size(size)}" for name, size in status.bytes_held.items())
    lines.append(f"held          {_size(sum(status.bytes_held.values()))}" + (f" ({held})" if held else ""))
    return Answer("\n".join(lines), {"home": str(args.home), **dataclasses.asdict(status)})


def _forget(args: argparse.Namespace, notes: Notes) -> Answer:
    from perdure import home

    learner = home.forget(args.home, args.environment)
    left = (
        f"{args.home} now knows environments {_list(learner.environments) or 'none'}; classes {_list(learner.classes) or 'none'}."
    )
    content = {"home": str(args.home), "forgotten": args.environment}
    return Answer(
        f'forgot "{args.environment}". {left}', {**content, "environments": learner.environments, "classes": learner.classes}
    )


def _demo(args: argparse.Namespace, notes: Notes) -> Answer:
    from perdure.experiments.demo import demo

    with contextlib.redirect_stdout(io.StringIO() if "json" in args else sys.stdout):
        runs = demo(seeds=args.seeds, out=args.out)
    methods = {method: [run.to_json() for run in repeated] for method, repeated in runs.items()}
    return Answer("", {"seeds": args.seeds, "picture": str(args.out), "methods": methods})


def _features(args: argparse.Namespace, notes: Notes) -> Answer:
    from perdure.inputs import feature_files
    from perdure.inputs.pictures import PictureBackbone
    from perdure.inputs.texts import TextBackbone

    text = args.text_column is not None
    if args.label_column is not None and not text:
        raise InputError("`--label-column` belongs to `--text-column`; the classes of pictures are their folders.")
    if not args.input.exists():
        raise InputError(f"{args.input} does not exist.")
    progress = None if sys.stderr.isatty() and "json" not in args else False
    running = {"device": args.device or "auto", "precision": args.precision, "batch": args.backbone_batch}
    try:
        if text:
            done = feature_files.write_texts(
                args.input,
                args.out,
                TextBackbone(args.backbone, **running),
                args.text_column,
                label=args.label_column,
                cache=args.cache,
                keep=not args.no_cache,
                progress=progress,
            )
        else:
            done = feature_files.write_pictures(
                args.input,
                args.out,
                PictureBackbone(args.backbone, **running),
                cache=args.cache,
                keep=not args.no_cache,
                broken="skip" if args.skip_broken else "stop",
                progress=progress,
            )
    except KeyboardInterrupt:
        kept = "nothing is kept" if args.no_cache else "what is done is kept in the cache"
        raise Interrupted(f"stopped; {kept}. To go on, run the same command again:") from None
    for sentence in done.broken:
        notes(f"left out: {sentence}")
    if done.left_out:
        notes(f"left out, since their names are not those of pictures: {_list(done.left_out)}.")
    what = f"{done.rows} {'texts' if text else 'pictures'}"
    what += f" of {len(done.classes)} classes" if done.classes else ""
    what += f" in {len(done.domains)} domains ({_list(done.domains)})" if done.domains else ""
    return Answer(
        f"{what}: {done.features} features each written to {done.out} ({done.rows - done.computed} were known).",
        {
            "out": str(done.out),
            "texts" if text else "pictures": done.rows,
            "features": done.features,
            "domains": done.domains,
            "classes": done.classes,
            "computed": done.computed,
            "broken": done.broken,
        },
    )


def _reproduce(args: argparse.Namespace, notes: Notes) -> Answer:
    from perdure.experiments import reproduce

    if not args.names:
        folder = reproduce.find_folder()
        known = {name: reproduce.about(folder, name) for name in reproduce.names(folder)}
        width = max(map(len, known))
        return Answer("\n".join(f"{name:{width}}  {about}" for name, about in known.items()), {"names": known})
    try:
        done = reproduce.reproduce(
            args.names,
            budget="quick" if args.quick else "paper" if args.paper_budget else "ledger",
            workers=args.workers,
            device=args.device,
            precision=args.matmul_precision,
            data=args.data,
            progress=None if sys.stderr.isatty() and "json" not in args else False,
            show=args.show,
            only=args.only,
        )
    except KeyboardInterrupt:
        raise Interrupted("stopped; finished runs are kept. To go on, run the same command again:") from None
    text = "\n\n".join(f"{each.text}\n\nresults: {each.results}\npicture: {each.picture}" for each in done)
    content = {
        each.name: {
            "runs": each.runs,
            "missing": each.missing,
            "results": str(each.results),
            "picture": str(each.picture),
            "text": each.text,
        }
        for each in done
    }
    return Answer(text, {"quick": args.quick, "reproduced": content})


# -- what to type ---------------------------------------------------------------------------------------------------------


class _Raw(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(120, max(80, _columns_of_terminal())))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[0].upper()}{message[1:].rstrip('.')}. `{self.prog} --help` shows how.")


def _add_home(to: argparse.ArgumentParser) -> None:
    to.add_argument("home", metavar="HOME", type=Path, help="the folder that remembers")


def _add_ignore(to: argparse.ArgumentParser) -> None:
    about = "a column that is no feature, such as an id (repeatable, remembered)"
    to.add_argument("--ignore-column", metavar="NAME", action="append", default=[], help=about)


def _add_backbone(to: argparse._ActionsContainer, *, batch: str, required: bool = False) -> None:
    about = "pretrained network: a folder, or a name on the Hugging Face hub" + ("" if required else " (remembered in HOME)")
    to.add_argument("--backbone", metavar="NAME", required=required, help=about)
    about = "inputs that go through it at a time (32 on a CPU, else 256; fewer where memory is short)"
    to.add_argument(batch, dest="backbone_batch", type=_positive, metavar="N", help=about)
    about = "of the network; auto is bfloat16 on CUDA, else float32 (auto)"
    to.add_argument("--precision", choices=("auto", "float32", "bfloat16", "float16"), default="auto", help=about)
    about = "where features are kept for the next time (PERDURE_CACHE, else ~/.cache/perdure/features)"
    to.add_argument("--cache", metavar="DIR", type=Path, help=about)
    to.add_argument("--no-cache", action="store_true", help="keep no features for the next time")
    to.add_argument("--skip-broken", action="store_true", help="name pictures that cannot be read, and go on without them")


def _add_device(to: argparse._ActionsContainer, default: str | None = "cpu") -> None:
    about = "cpu" if default else "of the learner cpu, of a backbone what is there"
    to.add_argument("--device", default=default, help=f"where to compute: cpu, cuda, mps ({about})")


def _positive(text: str) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above zero, got {text!r}")
    return int(text)


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


SETTINGS: dict[str, tuple[Callable[[str], float], str]] = {
    "steps": (_positive, "updates of all modules, an environment (1000)"),
    "warm_up": (_whole, "updates of the inference module alone before them (500)"),
    "batch": (_positive, "rows of each table in an update (32)"),
    "replay_batch": (_positive, "replayed features in an update (32)"),
    "latent": (_positive, "dimensions of z (512)"),
    "features": (_positive, "dimensions of h (1024)"),
    "width": (_positive, "hidden units of the classifiers (1024)"),
    "gamma": (_number, "margin of the discrepancy (4)"),
    "beta": (_number, "weight of the discrepancy (1)"),
    "inference_rate": (_number, "learning rate of the inference module (0.0001)"),
    "hypothesis_rate": (_number, "learning rate of f and f' (0.0004)"),
    "solver_rate": (_number, "learning rate of the solver (0.01)"),
    "reversal_horizon": (_number, "updates over which gradient reversal rises (2000)"),
    "seed": (_whole, "everything random follows from it (0)"),
}


# -- what to say ----------------------------------------------------------------------------------------------------------


def _explained(error: BaseException, arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code of an error, and its one sentence."""
    from perdure.experiments.reproduce import RunsFailed
    from perdure.home import Busy

    if isinstance(error, Interrupted):
        return INTERRUPTED, f"{error}\n  {_command(arguments)}"
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "stopped; nothing was written."
    if isinstance(error, CheckpointError):
        return BLOCKED if isinstance(error.__cause__, OSError) else DAMAGED, _for_the_shell(error, arguments)
    if isinstance(error, Busy):
        return BLOCKED, str(error)
    if isinstance(error, NotSolvableYet):
        return NOT_YET, _for_the_shell(error, arguments)
    if isinstance(error, RunsFailed):
        return UNEXPECTED, str(error)
    if isinstance(error, (InputError, UnknownEnvironment, PerdureError)):
        return BAD_INPUT, _for_the_shell(error, arguments)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return BLOCKED, f"{where}{error.strerror or error}. Nothing was lost: what was saved before is untouched."
    first = (str(error).splitlines() or [""])[0]
    return UNEXPECTED, f"something unexpected: {type(error).__name__}: {first}. Please report it; `--debug` shows where."


def _for_the_shell(error: Exception, arguments: Sequence[str]) -> str:
    """The library speaks of its methods; here they are commands."""
    home = next((shlex.quote(word) for word in arguments[1:] if not word.startswith("-")), "HOME")
    text = re.sub(r'`?forget\("(.*?)"\)`?', lambda found: f"`perdure forget {home} {shlex.quote(found[1])}`", str(error))
    return re.sub(r"`?learn\(\.\.\.\)`?", f"`perdure learn {home} …`", text)


def _to_notes(notes: Notes) -> logging.Handler:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger("perdure").addHandler(handler)
    return handler


def _print_json(content: Mapping[str, Any]) -> None:
    print(json.dumps(content, ensure_ascii=False))


def _command(arguments: Sequence[str]) -> str:
    return shlex.join(["perdure", *arguments])


def _list(names: Sequence[object] | None) -> str:
    shown = [str(name) for name in names or ()]
    return ", ".join(shown) if len(shown) <= 12 else ", ".join(shown[:12]) + f" and {len(shown) - 12} more"


def _size(size: float) -> str:
    units = ["bytes", "KB", "MB", "GB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} bytes" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


def _columns_of_terminal() -> int:
    import shutil

    return shutil.get_terminal_size().columns


if __name__ == "__main__":
    sys.exit(main())
