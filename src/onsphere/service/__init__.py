"""A model behind HTTP: assessments, a drift alarm that several workers share, and a live page.

>>> from onsphere.service import Settings
>>> Settings(model="model.onsphere").store_url
'sqlite:///model.onsphere.sqlite'
"""

from onsphere._internal.validation import missing_extra_error

try:
    import fastapi  # noqa: F401  # type: ignore[reportUnusedImport]
    import prometheus_client  # noqa: F401  # type: ignore[reportUnusedImport]
    import pydantic_settings  # noqa: F401  # type: ignore[reportUnusedImport]
    import sqlalchemy  # noqa: F401  # type: ignore[reportUnusedImport]
    import uvicorn  # noqa: F401  # type: ignore[reportUnusedImport]
except ImportError:
    raise missing_extra_error(
        "The service", "fastapi, uvicorn, pydantic-settings, sqlalchemy and prometheus-client", "serve"
    ) from None

from onsphere.service.app import create_app
from onsphere.service.server import serve
from onsphere.service.settings import Settings, hash_key, make_key

__all__ = ["Settings", "create_app", "hash_key", "make_key", "serve"]
