"""A Sandbox as the backend of LangChain's deepagents.

It needs ``deepagents`` 0.6 or 0.7, which the extra ``cloud-sandbox[deepagents]`` brings.

>>> from cloud_sandbox import Sandbox
>>> from cloud_sandbox.deepagents import SandboxBackend
>>> from deepagents import create_deep_agent
>>> with Sandbox.create() as sandbox:  # doctest: +SKIP
...     agent = create_deep_agent(model="openai:gpt-5", backend=SandboxBackend(sandbox))
"""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from ._sync.sandbox import Sandbox
from .errors import CloudSandboxError, InvalidRequestError, NotFoundError, PermissionDeniedError


class SandboxBackend(BaseSandbox):
    """Runs the commands of an agent, and keeps its files, in a Sandbox.

    It does not end the Sandbox, and may be used from several threads. Folders are
    listed and searched, and files read and edited, by Python inside the Sandbox:
    its Template needs ``python3``.
    """

    def __init__(self, sandbox: Sandbox, *, timeout_seconds: int = 1800) -> None:
        """Use a Sandbox.

        Args:
            sandbox: where everything runs.
            timeout_seconds: how long a command may run when the agent does not
                say, at most 3,600; 0 for as long as the Sandbox lives.
        """
        self._sandbox = sandbox
        self._timeout_seconds = timeout_seconds

    @property
    def id(self) -> str:
        """The ID of the Sandbox."""
        return self._sandbox.sandbox_id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command to its end, in ``/workspace``.

        Args:
            command: a line for bash. Standard output and standard error come
                together, in the order in which they were written.
            timeout: end it after so many seconds, with exit code 124; 0 for no
                limit. Default: that of the backend.
        """
        execution = self._sandbox.run_command(
            f"exec 2>&1\n{command}",
            timeout_seconds=self._timeout_seconds if timeout is None else timeout,
        )
        output = execution.stdout + execution.stderr
        if execution.error is not None and execution.status != "error":
            output += f"\n{execution.status}: {execution.error.message}"
        return ExecuteResponse(
            output=output, exit_code=execution.exit_code, truncated=bool(execution.truncated)
        )

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, with the folders above them; one failing stops no other."""
        return [FileUploadResponse(path, error=self._write(path, data)) for path, data in files]

    def _write(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._sandbox.files.write(path, data)
        except CloudSandboxError as err:
            return self._failure(path, err)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; one failing stops no other."""
        return [self._read(path) for path in paths]

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self._sandbox.files.read(path, "bytes"))
        except CloudSandboxError as err:
            return FileDownloadResponse(path=path, error=self._failure(path, err))

    def _failure(self, path: str, err: CloudSandboxError) -> str:
        """Return deepagents' word for a failure; raise what is not about the path."""
        if isinstance(err, PermissionDeniedError):
            return "permission_denied"
        if isinstance(err, NotFoundError):
            self._sandbox.info()  # is the Sandbox there?
            return "file_not_found"
        if not isinstance(err, InvalidRequestError):
            raise err
        try:
            return "is_directory" if self._sandbox.files.stat(path).is_dir else "invalid_path"
        except (InvalidRequestError, NotFoundError):
            return "invalid_path"
