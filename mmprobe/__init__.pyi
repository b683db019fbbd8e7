# The public names: lazy_loader reads them when the package is imported, type checkers when it is checked.

from . import analyses as analyses
from . import benchmarks as benchmarks
from . import cache as cache
from . import diagnosis as diagnosis
from . import interventions as interventions
from . import models as models
from . import probes as probes
from . import traces as traces
from . import viz as viz
from .analyses.interval import interval as interval
from .analyses.maps import maps as maps
from .benchmarks.core.benchmark import register_benchmark as register_benchmark
from .cache import Run as Run
from .cache import Trace as Trace
from .cache import open_run as open_run
from .cache import pack as pack
from .cache import verify as verify
from .errors import InputError as InputError
from .exports import export as export
from .exports import save_figures as save_figures
from .interventions import generate as generate
from .models import Model as Model
from .models import load_model as load_model
from .models import wrap as wrap
from .models.families import register_family as register_family
from .reports import report as report
from .samples import Sample as Sample
from .samples import load_samples as load_samples
from .samples import samples_from as samples_from
from .settings import AskSettings as AskSettings
from .settings import DataSettings as DataSettings
from .settings import FolderSettings as FolderSettings
from .settings import ModelSettings as ModelSettings
from .traces import CaptureSpec as CaptureSpec
from .traces import trace as trace
from .viz.figures import register_analysis as register_analysis
from .viz.overlay import overlay as overlay

__version__: str
