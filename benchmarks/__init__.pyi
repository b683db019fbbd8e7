# The public names: lazy_loader reads them when the package is imported, type checkers when it is checked.

from .core.benchmark import BENCHMARKS as BENCHMARKS
from .core.benchmark import Benchmark as Benchmark
from .core.compare import compare as compare
from .core.evaluate import Evaluation as Evaluation
from .core.evaluate import count_calls as count_calls
from .core.evaluate import evaluate as evaluate
from .core.evaluate import score as score
from .core.results import Metric as Metric
from .core.sweep import sweep as sweep
