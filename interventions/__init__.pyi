# The public names: lazy_loader reads them when the package is imported, type checkers when it is checked.

from .base import Method as Method
from .base import intervene as intervene
from .generate import GeneratedAnswer as GeneratedAnswer
from .generate import generate as generate
from .generate import generate_batch as generate_batch
from .registry import METHODS as METHODS
from .registry import load_method as load_method
from .registry import load_methods as load_methods
