"""Studies of published papers: MAD-Max's strategies, Chimera's pipelines, KAISA's gradient workers.

`__init__.pyi` lists the names; each is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
