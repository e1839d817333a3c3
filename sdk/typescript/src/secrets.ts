// Secrets.

import { type Answer, get, nothing, once, post, remove, segment } from "./api/call.js";
import type { Schemas, Wire } from "./api/wire.js";
import type { Client } from "./client.js";
import type { CallOptions } from "./options.js";

/** A secret, whose value no call returns. */
export interface SecretInfo {
  /** Its name. */
  name: string;
  /** Its purpose. */
  description: string;
  /** The only hosts that it may be sent to; an empty list means any. */
  hosts: string[];
  /** When it was made. */
  createdAt: Date | undefined;
  /** When it was replaced last. */
  updatedAt: Date | undefined;
}

/** Options of a secret. */
export interface SecretOptions extends CallOptions {
  /** Its purpose. Default of `replace`: unchanged. */
  description?: string;
  /**
   * The only hosts that it may be sent to, such as `"api.example.com"` or `"*.example.com"`.
   * Default: any. For `replace`, an empty list means any, and the default is unchanged.
   */
  hosts?: readonly string[];
}

/** Your secrets: `client.secrets`. */
export class Secrets {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Makes a secret. No call gives its value back.
   *
   * @param name - letters, digits and `_`, `.`, `-`, at most 128.
   * @param value - any value of a header, at most 8192 bytes.
   * @throws {@link ConflictError} one of this name exists.
   * @throws {@link InvalidRequestError} a value breaks a rule.
   * @throws {@link UnsupportedError} the server's operator has set no master key.
   */
  async create(name: string, value: string, options: SecretOptions = {}): Promise<SecretInfo> {
    const body = { name, value, ...rest(options) } satisfies Schemas["SecretRequest"];
    return this.#client.call(once(post(PATH, one, body), undefined), options);
  }

  /** Returns all of them, by name, without values. */
  async list(options: CallOptions = {}): Promise<SecretInfo[]> {
    const call = get(PATH, (answer) =>
      answer.json<Schemas["SecretList"]>().list("secrets").map(secretOf),
    );
    return this.#client.call(call, options);
  }

  /**
   * Gives a secret another value; the one before is gone.
   *
   * @throws {@link NotFoundError} no such secret exists.
   */
  async replace(name: string, value: string, options: SecretOptions = {}): Promise<SecretInfo> {
    const body = { value, ...rest(options) } satisfies Schemas["SecretReplacement"];
    const call = post(pathOf(name), one, body, { method: "PUT", repeatable: true });
    return this.#client.call(call, options);
  }

  /**
   * Deletes a secret; its value is gone for good.
   *
   * @param secret - the secret, or its name.
   * @throws {@link NotFoundError} no such secret exists.
   */
  async delete(secret: SecretInfo | string, options: CallOptions = {}): Promise<void> {
    const name = typeof secret === "string" ? secret : secret.name;
    await this.#client.call(remove(pathOf(name), nothing), options);
  }
}

const PATH = "/api/v1/secrets";

function rest(options: SecretOptions) {
  return { description: options.description, hosts: options.hosts && [...options.hosts] };
}

function pathOf(name: string): string {
  return `${PATH}/${segment(name, "name of a secret")}`;
}

function one(answer: Answer): SecretInfo {
  return secretOf(answer.json());
}

function secretOf(obj: Wire<Schemas["Secret"]>): SecretInfo {
  return {
    name: obj.required("name"),
    description: obj.text("description"),
    hosts: obj.strings("hosts"),
    createdAt: obj.time("created_at"),
    updatedAt: obj.time("updated_at"),
  };
}
