"""Benchmarks: their data, their questions, judges and metrics.

import mmprobe as mp
evaluation = mp.benchmarks.evaluate("spd-faith", "tiny-spd", "results/spd", trace=True)
print(evaluation.metrics["drf"])
"""

import lazy_loader

# numpy and pydantic take time to import, so each name of __init__.pyi is imported at its first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
