"""Run untrusted code in Cloud Sandbox.

>>> from cloud_sandbox import Sandbox
>>> with Sandbox.create(user_id="my-user") as sandbox:  # doctest: +SKIP
...     print(sandbox.run_code("print(6 * 7)").stdout)
42
"""

from ._client import Client
from ._version import __version__
from .errors import (
    AuthenticationError,
    CloudSandboxError,
    ConflictError,
    ConnectionFailedError,
    ExhaustedError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    SandboxTimeoutError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
)
from .models import (
    Ended,
    Execution,
    ExecutionError,
    FileEntry,
    FileList,
    Resources,
    SandboxInfo,
    Truncated,
)
from .sandbox import FileStream, OutputHandler, Sandbox

__all__ = [
    "AuthenticationError",
    "Client",
    "CloudSandboxError",
    "ConflictError",
    "ConnectionFailedError",
    "Ended",
    "Execution",
    "ExecutionError",
    "ExhaustedError",
    "FileEntry",
    "FileList",
    "FileStream",
    "InternalError",
    "InvalidRequestError",
    "NotFoundError",
    "OutputHandler",
    "PermissionDeniedError",
    "ProtocolError",
    "Resources",
    "Sandbox",
    "SandboxInfo",
    "SandboxTimeoutError",
    "TooLargeError",
    "Truncated",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
]
