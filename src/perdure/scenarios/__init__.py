"""Each scenario is a function that returns a `Scenario`: environments in order, and the answers to score them by kept apart."""

from perdure.scenarios.digits import digits
from perdure.scenarios.manuals import manuals
from perdure.scenarios.pictures import folder

__all__ = ["digits", "folder", "manuals"]
