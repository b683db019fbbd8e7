# The public names: lazy_loader reads them when the package is imported, type checkers when it is checked.

from .causes import CAUSES as CAUSES
from .diagnose import Diagnosis as Diagnosis
from .diagnose import diagnose as diagnose
