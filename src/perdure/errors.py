"""What can go wrong, said so that the reader knows what to do next."""


class PerdureError(Exception):
    """Every error that perdure raises on purpose."""


class InputError(PerdureError, ValueError):
    """The data or a setting cannot be used as it came."""


class UnknownEnvironment(PerdureError, LookupError):
    """An environment was named that is not there."""


class NotSolvableYet(PerdureError, RuntimeError):
    """An answer was asked for before there was anything to answer with."""


class CheckpointError(PerdureError):
    """A saved learner cannot be read, written or continued."""
