"""The types of what `import schedc` exports: all of `schedc.api`, from where it is loaded at its first use."""

from schedc.api import *  # noqa: F403
from schedc.api import __all__ as __all__

__version__: str
