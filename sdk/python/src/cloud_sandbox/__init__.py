"""Run untrusted code in Cloud Sandbox.

>>> from cloud_sandbox import Sandbox
>>> with Sandbox.create(user_id="test") as sandbox:  # doctest: +SKIP
...     print(sandbox.run_code("print(6 * 7)").stdout)
42

Everything is there twice: ``Sandbox`` and ``Client`` for synchronous code,
``AsyncSandbox`` and ``AsyncClient`` for asynchronous code, with the same methods.
"""

from ._async.audit import AsyncAudit
from ._async.client import AsyncClient
from ._async.contexts import AsyncContexts
from ._async.files import AsyncFiles
from ._async.git import AsyncGit
from ._async.keys import AsyncKeys
from ._async.processes import AsyncOutput, AsyncProcess, AsyncProcesses
from ._async.sandbox import AsyncSandbox, OutputHandler, ResultHandler
from ._async.secrets import AsyncSecrets
from ._async.snapshots import AsyncSnapshots
from ._async.streams import AsyncByteStream
from ._async.templates import AsyncBuildLog, AsyncTemplates
from ._async.terminal import AsyncTerminal
from ._async.users import AsyncUsers
from ._async.volumes import AsyncVolumes
from ._async.watching import AsyncFileWatch
from ._sync.audit import Audit
from ._sync.client import Client
from ._sync.contexts import Contexts
from ._sync.files import Files
from ._sync.git import Git
from ._sync.keys import Keys
from ._sync.processes import Output, Process, Processes
from ._sync.sandbox import Sandbox
from ._sync.secrets import Secrets
from ._sync.snapshots import Snapshots
from ._sync.streams import ByteStream
from ._sync.templates import BuildLog, Templates
from ._sync.terminal import Terminal
from ._sync.users import Users
from ._sync.volumes import Volumes
from ._sync.watching import FileWatch
from ._version import __version__
from .errors import (
    AuthenticationError,
    CloudSandboxError,
    ConflictError,
    ConnectionFailedError,
    ExhaustedError,
    ForkError,
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
    ArchiveFormat,
    AuditEntry,
    BatchResult,
    BuildInfo,
    BuildLine,
    ContextInfo,
    CopyResult,
    Cost,
    Depths,
    Ended,
    Execution,
    ExecutionError,
    ExtractResult,
    FileChange,
    FileChanges,
    FileEntry,
    FileList,
    FileOperation,
    FileOutcome,
    GitBranch,
    GitBranches,
    GitCredentials,
    GitFile,
    GitHead,
    GitPull,
    GitPush,
    GitStatus,
    KeyInfo,
    NodeInfo,
    OpenPort,
    OutputPiece,
    PoolInfo,
    PortAccess,
    PortLink,
    PreviousSecret,
    ProcessInfo,
    ProcessOutput,
    RemovedTemplates,
    ReplacedFile,
    ReplaceResult,
    Resources,
    Result,
    SandboxInfo,
    SearchMatch,
    SearchResult,
    SecretInfo,
    SignedURL,
    SnapshotInfo,
    Stats,
    TemplateFile,
    TemplateInfo,
    TerminalSize,
    Truncated,
    Usage,
    UserInfo,
    VolumeInfo,
    VolumeMount,
    WaitResult,
)

__all__ = [
    "ArchiveFormat",
    "AsyncAudit",
    "AsyncBuildLog",
    "AsyncByteStream",
    "AsyncClient",
    "AsyncContexts",
    "AsyncFileWatch",
    "AsyncFiles",
    "AsyncGit",
    "AsyncKeys",
    "AsyncOutput",
    "AsyncProcess",
    "AsyncProcesses",
    "AsyncSandbox",
    "AsyncSecrets",
    "AsyncSnapshots",
    "AsyncTemplates",
    "AsyncTerminal",
    "AsyncUsers",
    "AsyncVolumes",
    "Audit",
    "AuditEntry",
    "AuthenticationError",
    "BatchResult",
    "BuildInfo",
    "BuildLine",
    "BuildLog",
    "ByteStream",
    "Client",
    "CloudSandboxError",
    "ConflictError",
    "ConnectionFailedError",
    "ContextInfo",
    "Contexts",
    "CopyResult",
    "Cost",
    "Depths",
    "Ended",
    "Execution",
    "ExecutionError",
    "ExhaustedError",
    "ExtractResult",
    "FileChange",
    "FileChanges",
    "FileEntry",
    "FileList",
    "FileOperation",
    "FileOutcome",
    "FileWatch",
    "Files",
    "ForkError",
    "Git",
    "GitBranch",
    "GitBranches",
    "GitCredentials",
    "GitFile",
    "GitHead",
    "GitPull",
    "GitPush",
    "GitStatus",
    "InternalError",
    "InvalidRequestError",
    "KeyInfo",
    "Keys",
    "NodeInfo",
    "NotFoundError",
    "OpenPort",
    "Output",
    "OutputHandler",
    "OutputPiece",
    "PermissionDeniedError",
    "PoolInfo",
    "PortAccess",
    "PortLink",
    "PreviousSecret",
    "Process",
    "ProcessInfo",
    "ProcessOutput",
    "Processes",
    "ProtocolError",
    "RemovedTemplates",
    "ReplaceResult",
    "ReplacedFile",
    "Resources",
    "Result",
    "ResultHandler",
    "Sandbox",
    "SandboxInfo",
    "SandboxTimeoutError",
    "SearchMatch",
    "SearchResult",
    "SecretInfo",
    "Secrets",
    "SignedURL",
    "SnapshotInfo",
    "Snapshots",
    "Stats",
    "TemplateFile",
    "TemplateInfo",
    "Templates",
    "Terminal",
    "TerminalSize",
    "TooLargeError",
    "Truncated",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
    "UserInfo",
    "Users",
    "VolumeInfo",
    "VolumeMount",
    "Volumes",
    "WaitResult",
    "__version__",
]
