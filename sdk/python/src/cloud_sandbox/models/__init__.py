"""What the API answers with, as frozen dataclasses.

A field that the server did not send has its default, so that this version works
with older and newer servers.
"""

from .audit import AuditEntry
from .execution import ContextInfo, Execution, ExecutionError, Result, Truncated
from .files import (
    ArchiveFormat,
    BatchResult,
    CopyResult,
    ExtractResult,
    FileChange,
    FileChanges,
    FileEntry,
    FileList,
    FileOperation,
    FileOutcome,
    ReplacedFile,
    ReplaceResult,
    SearchMatch,
    SearchResult,
    SignedURL,
)
from .git import (
    GitBranch,
    GitBranches,
    GitCredentials,
    GitFile,
    GitHead,
    GitPull,
    GitPush,
    GitStatus,
)
from .keys import KeyInfo, PreviousSecret
from .processes import OutputPiece, ProcessInfo, ProcessOutput, TerminalSize, WaitResult
from .secrets import SecretInfo
from .service import Cost, Depths, NodeInfo, PoolInfo, Stats, Usage
from .session import Ended, OpenPort, PortAccess, PortLink, Resources, SandboxInfo
from .snapshots import SnapshotInfo
from .templates import BuildInfo, BuildLine, RemovedTemplates, TemplateFile, TemplateInfo
from .users import UserInfo
from .volumes import VolumeInfo, VolumeMount

__all__ = [
    "ArchiveFormat",
    "AuditEntry",
    "BatchResult",
    "BuildInfo",
    "BuildLine",
    "ContextInfo",
    "CopyResult",
    "Cost",
    "Depths",
    "Ended",
    "Execution",
    "ExecutionError",
    "ExtractResult",
    "FileChange",
    "FileChanges",
    "FileEntry",
    "FileList",
    "FileOperation",
    "FileOutcome",
    "GitBranch",
    "GitBranches",
    "GitCredentials",
    "GitFile",
    "GitHead",
    "GitPull",
    "GitPush",
    "GitStatus",
    "KeyInfo",
    "NodeInfo",
    "OpenPort",
    "OutputPiece",
    "PoolInfo",
    "PortAccess",
    "PortLink",
    "PreviousSecret",
    "ProcessInfo",
    "ProcessOutput",
    "RemovedTemplates",
    "ReplaceResult",
    "ReplacedFile",
    "Resources",
    "Result",
    "SandboxInfo",
    "SearchMatch",
    "SearchResult",
    "SecretInfo",
    "SignedURL",
    "SnapshotInfo",
    "Stats",
    "TemplateFile",
    "TemplateInfo",
    "TerminalSize",
    "Truncated",
    "Usage",
    "UserInfo",
    "VolumeInfo",
    "VolumeMount",
    "WaitResult",
]
