# The public names: lazy_loader reads them when the package is imported, type checkers when it is checked.

from .attribution import attribute as attribute
from .components.attribution_patching import attribution_patching as attribution_patching
from .components.component_patching import patch_components as patch_components
from .components.logit_attribution import direct_logit_attribution as direct_logit_attribution
from .interchange.image_interchange import image_interchange as image_interchange
from .interchange.run import image_interchange_run as image_interchange_run
from .knockout import attention_knockout as attention_knockout
from .knockout import attention_knockout_run as attention_knockout_run
from .linear import linear_probe as linear_probe
from .linear import linear_probe_by_step as linear_probe_by_step
from .logit_lens import logit_lens as logit_lens
from .logit_lens import logit_lens_run as logit_lens_run
from .patching import patch_residual as patch_residual
from .reasoning.chain_tests import chain_tests as chain_tests
from .reasoning.chain_tests import prefill_chain as prefill_chain
from .reasoning.early_verdict import early_verdict as early_verdict
from .region_overlap import compare_with_regions as compare_with_regions
from .registry import RUN_PROBES as RUN_PROBES
from .registry import run_probes as run_probes
from .steering.directions import concept_eraser as concept_eraser
from .steering.directions import mean_difference as mean_difference
from .steering.directions import probe_direction as probe_direction
from .steering.directions import random_direction as random_direction
from .steering.dose_response import dose_response as dose_response
from .steering.subspaces import align_subspace as align_subspace
from .targets import object_presence as object_presence
