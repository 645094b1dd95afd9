"""Office-Home on frozen features: 65 classes in four domains, the paper's thirteen tasks and its domain sequences."""

from __future__ import annotations

from perdure.errors import InputError
from perdure.scenarios.frozen import FrozenFeatures, Step, data_file, domain_called, load, scenario
from perdure.streams import Scenario

DOMAINS = {"Ar": "Art", "Cl": "Clipart", "Pr": "Product", "Rw": "Real World"}
PAIRS = tuple((s, q) for s in DOMAINS for q in DOMAINS if s != q)
"""In the order of the paper's table."""
TASKS = (
    ("Drill", "Exit Sign", "Bottle", "Glasses", "Computer"),
    ("File Cabinet", "Shelf", "Toys", "Sink", "Laptop"),
    ("Kettle", "Folder", "Keyboard", "Flipflops", "Pencil"),
    ("Bed", "Hammer", "Toothbrush", "Couch", "Bike"),
    ("Postit Notes", "Mug", "Webcam", "Desk Lamp", "Telephone"),
    ("Helmet", "Mouse", "Pen", "Monitor", "Mop"),
    ("Sneakers", "Notebook", "Backpack", "Alarm Clock", "Push Pin"),
    ("Paper Clip", "Batteries", "Radio", "Fan", "Ruler"),
    ("Pan", "Screwdriver", "Trash Can", "Printer", "Speaker"),
    ("Eraser", "Bucket", "Chair", "Calendar", "Calculator"),
    ("Flowers", "Lamp Shade", "Spoon", "Candles", "Clipboards"),
    ("Scissors", "TV", "Curtains", "Fork", "Soda"),
    ("Table", "Knives", "Oven", "Refrigerator", "Marker"),
)
"""The supplement's own order of classes, five a task."""
ASCENDING = {"Ar": ("Rw", "Pr", "Cl"), "Cl": ("Rw", "Pr", "Ar"), "Pr": ("Rw", "Ar", "Cl"), "Rw": ("Pr", "Ar", "Cl")}
DESCENDING = {"Ar": ("Cl", "Pr", "Rw"), "Cl": ("Ar", "Pr", "Rw"), "Pr": ("Cl", "Ar", "Rw"), "Rw": ("Cl", "Ar", "Pr")}
"""Support → the order in which query domains arrive, from easy to hard and from hard to easy."""
COMBINED = tuple(
    zip(
        ("Ar", "Cl", "Pr", "Rw", "Ar", "Rw", "Pr", "Ar", "Pr", "Rw", "Cl", "Ar", "Cl"),
        ("Cl", "Pr", "Rw", "Ar", "Rw", "Pr", "Cl", "Pr", "Rw", "Cl", "Ar", "Cl", "Rw"),
        strict=True,
    )
)
"""Support and query of each task where tasks and domains drift together."""


def features() -> FrozenFeatures:
    """ResNet-50 features of all pictures, as in the paper."""
    return load(data_file("officehome_resnet50.npz"))


def task_classes() -> list[list[str]]:
    """The classes of each task, spelled as they are stored."""
    stored = {_plain(str(name)): str(name) for name in set(features().classes.tolist())}
    missing = [name for task in TASKS for name in task if _plain(name) not in stored]
    if missing:
        raise InputError(f"The stored Office-Home features lack the classes {missing}.")
    return [[stored[_plain(name)] for name in task] for task in TASKS]


def tasks(support: str, query: str, *, inductive: bool = False, seed: int = 0) -> Scenario:
    """Scenario 1: the classes drift, support and query each stay in one domain ("Ar", "Cl", "Pr" or "Rw")."""
    steps = [
        Step(f"task {i + 1}", domain_called(support, DOMAINS), domain_called(query, DOMAINS), classes)
        for i, classes in enumerate(task_classes())
    ]
    return scenario(f"Office-Home {support}→{query}", features(), steps, inductive=inductive, seed=seed)


def combined(*, inductive: bool = False, seed: int = 0) -> Scenario:
    """Classes and domains drift together (the supplement's set-up table)."""
    steps = [
        Step(f"task {i + 1} {s}→{q}", domain_called(s, DOMAINS), domain_called(q, DOMAINS), classes)
        for i, ((s, q), classes) in enumerate(zip(COMBINED, task_classes(), strict=True))
    ]
    return scenario("Office-Home combined", features(), steps, inductive=inductive, seed=seed)


def domains(support: str, queries: tuple[str, ...], *, inductive: bool = False, seed: int = 0) -> Scenario:
    """Scenario 2: the query's domain drifts, all 65 classes are there from the beginning."""
    classes = [name for task in task_classes() for name in task]
    steps = [
        Step(f"{support}→{query}", domain_called(support, DOMAINS), domain_called(query, DOMAINS), classes) for query in queries
    ]
    return scenario(f"Office-Home {support}→{','.join(queries)}", features(), steps, inductive=inductive, seed=seed)


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
