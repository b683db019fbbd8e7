"""mmprobe: does what a vision-language model says come from what it sees?

    import mmprobe as mp
    model = mp.load_model("tiny-spd")
    run = mp.trace(model, "pairs/samples.jsonl", out="runs/first")
    mp.viz.plot(mp.analyses.attention_decay(run)).show()

Each name is imported at its first use, so `import mmprobe` is quick.
"""

from importlib.metadata import version

import lazy_loader

__version__ = version("mmprobe")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
