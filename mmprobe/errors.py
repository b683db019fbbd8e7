"""Errors that a user can fix. The command line prints each as one line and exits with 2."""


class InputError(ValueError):
    """An input cannot be used. The message says what, where and what to do."""


class NotApplicable(InputError):
    """A run lacks what an analysis needs. Other analyses of the run may still work."""


class NotCaptured(NotApplicable):
    """A trace lacks a data set that its capture did not record."""
