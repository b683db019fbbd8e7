"""The errors that a user can mend. The command line prints each as one line and exits with 2."""


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what, where and what to do."""


class NotApplicable(InputError):
    """A run lacks what an analysis needs; others may still be made of it."""


class NotCaptured(NotApplicable):
    """A trace does not hold what is asked for, because its capture did not record it."""
