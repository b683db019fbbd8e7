# The public names: lazy_loader reads them when the package is imported, type checkers when it is checked.

from .checkpoints import Alias as Alias
from .checkpoints import load_aliases as load_aliases
from .loading import Model as Model
from .loading import load_model as load_model
from .loading import load_shapes as load_shapes
from .loading import wrap as wrap
from .prompt import Batch as Batch
from .prompt import Group as Group
from .prompt import Prompt as Prompt
