// Reading answers that are errors.

import { type CloudSandboxError, errorFrom, ProtocolError } from "../errors.js";
import { type Schemas, Wire } from "./wire.js";

/** An error inside of another answer. */
export interface WireError {
  code: string;
  message: string;
  retry_after_seconds?: number;
}

/** Makes the error for an answer that is one. */
export function ofAnswer(status: number, headers: Headers, content: Uint8Array): CloudSandboxError {
  if (status < 400) return new ProtocolError(`the server answered with HTTP ${status}`);
  let code = "";
  let message = "";
  let advice: number | undefined;
  try {
    const error = Wire.parse<Schemas["Error"]>(content).object("error");
    code = error?.text("code") ?? "";
    message = error?.text("message") ?? "";
    advice = error?.number("retry_after_seconds");
  } catch (err) {
    if (!(err instanceof ProtocolError)) throw err;
    [code, message, advice] = ["", "", undefined]; // a proxy's page, say
  }
  return errorFrom(code, message || `the server answered with HTTP ${status}`, {
    statusCode: status,
    ...maybe("retryAfter", advice ?? retryAfter(headers.get("Retry-After"))),
    ...maybe("requestId", headers.get("X-Request-Id") ?? undefined),
  });
}

/** Makes the error for a stream that ends with an `error` event. */
export function ofEvent(data: string): CloudSandboxError {
  return ofObject(Wire.parse<{ error: WireError }>(data).object("error") ?? new Wire({}));
}

/** Makes the error for one that is part of an answer. */
export function ofObject(error: Wire<WireError>): CloudSandboxError {
  return errorFrom(
    error.text("code"),
    error.text("message") || "the server broke off",
    maybe("retryAfter", error.number("retry_after_seconds")),
  );
}

function maybe<K extends string, V>(name: K, value: V | undefined): { [key in K]?: V } {
  return value === undefined ? {} : ({ [name]: value } as { [key in K]?: V });
}

/** Reads a Retry-After header in seconds; a date, which we never send, is no advice. */
function retryAfter(value: string | null): number | undefined {
  return value !== null && /^\d+$/.test(value) ? Number(value) : undefined;
}
