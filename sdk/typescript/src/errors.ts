// Errors, one class for each error code of the API.

/** Details of a failed call beside its message. */
export interface ErrorDetails {
  /** See {@link CloudSandboxError.code}. Default: the code of the class. */
  code?: string;
  /** See {@link CloudSandboxError.statusCode}. */
  statusCode?: number;
  /** See {@link CloudSandboxError.retryAfter}. */
  retryAfter?: number;
  /** See {@link CloudSandboxError.requestId}. */
  requestId?: string;
  /** The error that caused it. */
  cause?: unknown;
}

/**
 * A call that failed. Its class says what to do about it, and the message is the server's own
 * sentence.
 */
export class CloudSandboxError extends Error {
  /** The API's error code, such as `"not_found"`. Empty without an answer that makes sense. */
  readonly code: string;
  /** The HTTP status. `undefined` without an answer. */
  readonly statusCode: number | undefined;
  /** The seconds that the server asks to wait before another try. `undefined`: no advice. */
  readonly retryAfter: number | undefined;
  /** Names the request in the server's log. `undefined` when the server gave no name. */
  readonly requestId: string | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = details.code ?? "";
    this.statusCode = details.statusCode;
    this.retryAfter = details.retryAfter;
    this.requestId = details.requestId;
  }

  /** The name of the class. */
  override get name(): string {
    return "CloudSandboxError";
  }
}

/** The request breaks a rule; the message says what to change. */
export class InvalidRequestError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "invalid", ...details });
  }
  override get name(): string {
    return "InvalidRequestError";
  }
}

/** The request has no valid token or API key. */
export class AuthenticationError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "unauthenticated", ...details });
  }
  override get name(): string {
    return "AuthenticationError";
  }
}

/** The caller is known, but may not do that. */
export class PermissionDeniedError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "denied", ...details });
  }
  override get name(): string {
    return "PermissionDeniedError";
  }
}

/** No such Sandbox or file exists, or it belongs to another user. */
export class NotFoundError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "not_found", ...details });
  }
  override get name(): string {
    return "NotFoundError";
  }
}

/** The state has changed: read it again, then decide. */
export class ConflictError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "conflict", ...details });
  }
  override get name(): string {
    return "ConflictError";
  }
}

/** The request is larger than the server accepts. */
export class TooLargeError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "too_large", ...details });
  }
  override get name(): string {
    return "TooLargeError";
  }
}

/** A quota or the server's capacity is used up; see `retryAfter`. */
export class ExhaustedError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "exhausted", ...details });
  }
  override get name(): string {
    return "ExhaustedError";
  }
}

/** The server cannot do that, and asking again does not help. */
export class UnsupportedError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "unsupported", ...details });
  }
  override get name(): string {
    return "UnsupportedError";
  }
}

/** A part of the server is away; try again in a moment. */
export class UnavailableError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "unavailable", ...details });
  }
  override get name(): string {
    return "UnavailableError";
  }
}

/**
 * The call took too long, by the server's clock or by the client's.
 *
 * Code that runs longer than its `timeoutSeconds` does not throw this: its {@link Execution} has
 * the status `"timeout"`.
 */
export class SandboxTimeoutError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "timeout", ...details });
  }
  override get name(): string {
    return "SandboxTimeoutError";
  }
}

/** The server failed in a way that is the server's fault. */
export class InternalError extends CloudSandboxError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { code: "internal", ...details });
  }
  override get name(): string {
    return "InternalError";
  }
}

/**
 * The server could not be reached, or the connection broke. When it broke after the request was
 * sent, the server may have acted on it.
 */
export class ConnectionFailedError extends CloudSandboxError {
  /** Whether the server may have acted on this try or an earlier one. */
  sent = false;
  override get name(): string {
    return "ConnectionFailedError";
  }
}

/** Some of the requested forks do not run. When none runs, `sandboxes` is empty. */
export class ForkError<S = unknown> extends CloudSandboxError {
  /**
   * The forks that run, as `fork` would have returned them. End them if they are no use without the
   * others.
   */
  readonly sandboxes: readonly S[];
  /** The reasons of the other forks. */
  readonly errors: readonly CloudSandboxError[];

  constructor(
    sandboxes: readonly S[],
    errors: readonly [CloudSandboxError, ...CloudSandboxError[]],
  ) {
    const first = errors[0];
    super(
      `${errors.length} of ${errors.length + sandboxes.length} forks do not run: ${first.message}`,
      {
        code: first.code,
        ...(first.retryAfter === undefined ? {} : { retryAfter: first.retryAfter }),
        cause: first,
      },
    );
    this.sandboxes = sandboxes;
    this.errors = errors;
  }
  override get name(): string {
    return "ForkError";
  }
}

/** The answer is not one that this version of the SDK understands. */
export class ProtocolError extends CloudSandboxError {
  override get name(): string {
    return "ProtocolError";
  }
}

type ErrorClass = new (message: string, details?: ErrorDetails) => CloudSandboxError;

const BY_CODE = new Map<string, ErrorClass>([
  ["invalid", InvalidRequestError],
  ["unauthenticated", AuthenticationError],
  ["denied", PermissionDeniedError],
  ["not_found", NotFoundError],
  ["conflict", ConflictError],
  ["too_large", TooLargeError],
  ["exhausted", ExhaustedError],
  ["unsupported", UnsupportedError],
  ["unavailable", UnavailableError],
  ["timeout", SandboxTimeoutError],
  ["internal", InternalError],
]);

// The meaning of a status whose body is not the API's, such as a proxy's page.
const BY_STATUS = new Map<number, ErrorClass>([
  [401, AuthenticationError],
  [403, PermissionDeniedError],
  [404, NotFoundError],
  [408, SandboxTimeoutError],
  [409, ConflictError],
  [413, TooLargeError],
  [429, ExhaustedError],
  [501, UnsupportedError],
  [502, UnavailableError],
  [503, UnavailableError],
  [504, SandboxTimeoutError],
]);

/**
 * Makes the error for one of the API's. An unknown or empty code is judged by the status, so that a
 * newer server or a proxy in between still gives a useful class.
 */
export function errorFrom(
  code: string,
  message: string,
  details: Omit<ErrorDetails, "code">,
): CloudSandboxError {
  const status = details.statusCode;
  const byStatus = status === undefined ? undefined : classOfStatus(status);
  const Class = BY_CODE.get(code) ?? byStatus ?? InternalError;
  return new Class(message, code ? { code, ...details } : details);
}

function classOfStatus(status: number): ErrorClass {
  return BY_STATUS.get(status) ?? (status >= 500 ? InternalError : InvalidRequestError);
}
