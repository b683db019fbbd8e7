"""Answer samples, and capture a model's internals while it does."""

import lazy_loader

# torch and transformers take seconds to import, so each name of __init__.pyi is imported at its first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
