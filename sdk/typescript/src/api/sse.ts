// Decoding of server-sent events, without any input or output.

import { ProtocolError } from "../errors.js";

/** One event: its name (`message` if it has none), its data and its ID. */
export interface Event {
  name: string;
  data: string;
  id: string;
}

// One event holds at most the final result with both output streams, which the server caps at a few
// MiB. Beyond this something is wrong.
const MAX_EVENT_CHARS = 64 << 20;

/**
 * Turns chunks of bytes, cut anywhere, into events.
 *
 * Lines end with LF, CRLF or CR. Comments and fields other than `event`, `data` and `id` are
 * skipped. An ID holds for its own event only. An event that the stream's end cuts off is dropped.
 */
export class Decoder {
  readonly #max: number;
  readonly #utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
  #line: string[] = []; // pieces of the line that has not ended
  #afterCR = false;
  #name = "";
  #id = "";
  #data: string[] = [];
  #size = 0;

  constructor(maxEventChars = MAX_EVENT_CHARS) {
    this.#max = maxEventChars;
  }

  /** Takes the next bytes and returns the events that they complete. */
  feed(chunk: Uint8Array): Event[] {
    const events: Event[] = [];
    const text = this.#utf8.decode(chunk, { stream: true });
    let begin = 0;
    const ends = /\r\n|\r|\n/g;
    for (let end = ends.exec(text); end !== null; end = ends.exec(text)) {
      const after = end.index + end[0].length;
      if (!(this.#afterCR && end[0] === "\n" && end.index === 0)) {
        this.#add(text.slice(begin, end.index));
        this.#endLine(events);
      }
      this.#afterCR = false;
      begin = after;
    }
    if (text) this.#afterCR = begin === text.length && text.endsWith("\r");
    if (begin < text.length) this.#add(text.slice(begin));
    return events;
  }

  #add(piece: string): void {
    this.#size += piece.length;
    if (this.#size > this.#max) {
      throw new ProtocolError("the server sent an event that is too large");
    }
    this.#line.push(piece);
  }

  #endLine(events: Event[]): void {
    const line = this.#line.join("");
    this.#line = [];
    if (!line) {
      if (this.#data.length > 0) {
        events.push({ name: this.#name || "message", data: this.#data.join("\n"), id: this.#id });
      }
      [this.#name, this.#id, this.#data, this.#size] = ["", "", [], 0];
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#name = value;
    else if (field === "id") this.#id = value;
    else if (field === "data") this.#data.push(value);
  }
}
