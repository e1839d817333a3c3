// Data that callers write into files and archives.

import type { Body, Stream } from "./api/call.js";
import { encode } from "./api/wire.js";

/**
 * Data to write: text (as UTF-8), bytes, a `Blob` or `File`, a Web Stream, or an iterable of text
 * and bytes, asynchronous or not.
 *
 * Streams and iterables are sent as they are read, in constant memory, and only once: a call with
 * one is not tried again when the connection breaks. A `Blob` is sent again; Node opens a file as
 * one with `openAsBlob` of `node:fs`. In a browser, streams are read to their end first.
 */
export type Data =
  | string
  | ArrayBuffer
  | ArrayBufferView
  | Blob
  | ReadableStream<string | Uint8Array>
  | Iterable<string | Uint8Array>
  | AsyncIterable<string | Uint8Array>;

/** Turns data into a body. Throws a TypeError for other values. */
export function bodyOf(data: Data): Body {
  if (typeof data === "string") return encode(data);
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  if (ArrayBuffer.isView(data)) return bytesOf(data);
  if (data instanceof Blob) return data;
  if (typeof data === "object" && data !== null) {
    if (Symbol.asyncIterator in data || Symbol.iterator in data) {
      return { replayable: false, open: () => pieces(data as AsyncIterable<string | Uint8Array>) };
    }
    if ("getReader" in data) {
      return { replayable: false, open: () => pieces(iterate(data as ReadableStream)) };
    }
  }
  throw new TypeError("cannot write that; pass text, bytes, a Blob, a stream or an iterable");
}

/** Joins bodies into one. */
export function joined(parts: readonly Body[]): Body {
  const streams = parts.filter((part): part is Stream => "open" in part);
  if (streams.length === 0) return new Blob(parts as (Uint8Array<ArrayBuffer> | Blob)[]);
  return {
    replayable: streams.every((part) => part.replayable),
    async *open() {
      for (const part of parts) {
        if (part instanceof Uint8Array) yield part;
        else if (part instanceof Blob) yield* iterate(part.stream());
        else yield* part.open();
      }
    },
  };
}

/** Reads a Web Stream piece by piece, also where those are not iterable yet. */
export async function* iterate<T>(stream: ReadableStream<T>): AsyncGenerator<T, void, undefined> {
  const reader = stream.getReader();
  let ended = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        ended = true;
        return;
      }
      yield value;
    }
  } finally {
    if (!ended) await reader.cancel().catch(() => {});
    reader.releaseLock();
  }
}

/** Makes a Web Stream of an iterable. Cancelling the stream ends the iterable. */
export function streamOf<T>(source: AsyncIterable<T>): ReadableStream<T> {
  const iterator = source[Symbol.asyncIterator]();
  return new ReadableStream<T>(
    {
      async pull(controller) {
        const { done, value } = await iterator.next();
        if (done) controller.close();
        else controller.enqueue(value);
      },
      async cancel() {
        await iterator.return?.();
      },
    },
    { highWaterMark: 0 },
  );
}

async function* pieces(
  source: Iterable<string | Uint8Array> | AsyncIterable<string | Uint8Array>,
): AsyncGenerator<Uint8Array, void, undefined> {
  for await (const piece of source) {
    if (typeof piece === "string") yield encode(piece);
    else if (ArrayBuffer.isView(piece)) yield bytesOf(piece);
    else throw new TypeError(`a piece to write must be text or bytes, not ${typeof piece}`);
  }
}

function bytesOf(view: ArrayBufferView): Uint8Array<ArrayBuffer> {
  return new Uint8Array(view.buffer as ArrayBuffer, view.byteOffset, view.byteLength);
}
