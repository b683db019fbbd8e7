"""Decoding-time methods that aim at more faithful answers, for every model that can be traced."""

import lazy_loader

# torch and transformers take seconds to import, so a name of __init__.pyi is imported when first used
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
