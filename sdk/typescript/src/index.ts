/**
 * Run untrusted code in Cloud Sandbox.
 *
 * ```ts
 * import { Sandbox } from "cloud-sandbox";
 *
 * await using sandbox = await Sandbox.create();
 * console.log((await sandbox.runCode("print(6 * 7)")).stdout);
 * ```
 *
 * @module
 */

export type { Word } from "./api/wire.js";
export type { Audit, AuditEntry, AuditOptions } from "./audit.js";
export { Client, type ClientOptions, type WithClient } from "./client.js";
export type { ContextInfo, ContextOptions, Contexts } from "./contexts.js";
export type { Data } from "./data.js";
export {
  AuthenticationError,
  CloudSandboxError,
  ConflictError,
  ConnectionFailedError,
  type ErrorDetails,
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
} from "./errors.js";
export type {
  Execution,
  ExecutionError,
  Result,
  ResultFields,
  RunOptions,
  Truncated,
} from "./execution.js";
export type {
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
} from "./filemodels.js";
export type {
  ActingOptions,
  Files,
  ReadFormat,
  ReadOptions,
  ReplaceOptions,
  SearchOptions,
} from "./files.js";
export type {
  Git,
  GitBranch,
  GitBranches,
  GitCredentials,
  GitFile,
  GitHead,
  GitOptions,
  GitPull,
  GitPush,
  GitRemoteOptions,
  GitStatus,
} from "./git.js";
export type { KeyInfo, KeyOptions, Keys, PreviousSecret, Role } from "./keys.js";
export type { CallOptions } from "./options.js";
export type {
  Output,
  OutputOptions,
  OutputPiece,
  Process,
  Processes,
  ProcessInfo,
  ProcessOptions,
  ProcessOutput,
  RunToEndOptions,
  StartOptions,
  TerminalOptions,
  TerminalSize,
  WaitOptions,
  WaitResult,
} from "./processes.js";
export {
  type CreateOptions,
  type ForkOptions,
  type ListOptions,
  type MemoryOptions,
  type RunCodeOptions,
  Sandbox,
} from "./sandbox.js";
export type { SecretInfo, SecretOptions, Secrets } from "./secrets.js";
export type { Cost, Depths, NodeInfo, PoolInfo, Stats, Usage, UsageOptions } from "./service.js";
export type {
  Ended,
  Network,
  NetworkRules,
  OnTimeout,
  OpenPort,
  PortAccess,
  PortLink,
  Ports,
  Resources,
  SandboxChanges,
  SandboxInfo,
  SandboxOptions,
  SecretUse,
} from "./session.js";
export type { ConnectionOptions } from "./settings.js";
export type { SnapshotInfo, Snapshots } from "./snapshots.js";
export type { ByteStream } from "./streams.js";
export type {
  BuildInfo,
  BuildLine,
  BuildLog,
  BuildOptions,
  RemovedTemplates,
  TemplateFile,
  TemplateInfo,
  Templates,
} from "./templates.js";
export type { Terminal } from "./terminal.js";
export type { NewUserOptions, UserChanges, UserInfo, Users } from "./users.js";
export { VERSION } from "./version.js";
export type { VolumeInfo, VolumeMount, VolumeOptions, Volumes } from "./volumes.js";
export type { FileWatch, WatchOptions } from "./watching.js";
