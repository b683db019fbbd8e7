# The public names: lazy_loader reads them when the package is imported, type checkers when it is checked.

from .asking import answer as answer
from .capture import CaptureSpec as CaptureSpec
from .capture import load_capture as load_capture
from .run import trace as trace
from .workers import RayActors as RayActors
