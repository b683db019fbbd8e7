# The public names: lazy_loader reads them when the package is imported, type checkers when it is checked.

from .attribution import attribute as attribute
from .knockout import attention_knockout as attention_knockout
from .knockout import attention_knockout_run as attention_knockout_run
from .linear import linear_probe as linear_probe
from .linear import linear_probe_by_step as linear_probe_by_step
from .logit_lens import logit_lens as logit_lens
from .logit_lens import logit_lens_run as logit_lens_run
from .patching import patch_residual as patch_residual
from .region_overlap import compare_with_regions as compare_with_regions
from .registry import RUN_PROBES as RUN_PROBES
from .registry import run_probes as run_probes
from .targets import object_presence as object_presence
