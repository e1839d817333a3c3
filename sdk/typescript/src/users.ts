// Users of a tenant.

import {
  type Answer,
  type Call,
  get,
  nothing,
  post,
  queryOf,
  remove,
  segment,
} from "./api/call.js";
import type { paths } from "./api/schema.js";
import type { Schemas, Wire, Word } from "./api/wire.js";
import type { Client } from "./client.js";
import type { Role } from "./keys.js";
import type { CallOptions } from "./options.js";
import { all, type Page } from "./paging.js";

/** A user of a tenant. */
export interface UserInfo {
  /** Their ID, as their tokens say it. */
  userId: string;
  /** A name for people; `undefined` if unknown. */
  name: string | undefined;
  /** An email address; `undefined` if unknown. */
  email: string | undefined;
  /** Their role; `undefined` before their first token, unless it was assigned here. */
  role: Word<Role> | undefined;
  /** Whether the role was assigned here. Otherwise it comes from their last token. */
  roleGiven: boolean;
  /** Their state. */
  state: Word<"active" | "suspended" | "removed">;
  /** The origin of the record: a token of this server, an identity provider, or an invitation. */
  source: Word<"token" | "oidc" | "invited">;
  /** The name of their identity provider; `undefined` without one. */
  issuer: string | undefined;
  /** When the record was made. */
  createdAt: Date | undefined;
  /** When a token of theirs last came, to a minute; `undefined` if none did. */
  lastSeenAt: Date | undefined;
}

/** Options of a new user. */
export interface NewUserOptions extends CallOptions {
  /** Their role. Default: the role in their tokens. */
  role?: Role;
  /** For people. */
  name?: string;
  /** For people to know them by; nothing is sent there. */
  email?: string;
}

/** Changes of a user. Absent fields stay as they are. */
export interface UserChanges extends CallOptions {
  /** Replaces the role in their tokens, and limits their keys. `"credential"` undoes that. */
  role?: Role | "credential";
  /** While `"suspended"`, their tokens and the API keys that they made are refused. */
  state?: "active" | "suspended";
  /** For people; `""` for none. */
  name?: string;
  /** An email address; `undefined` if unknown. */
  email?: string;
}

/** The users of your tenant, for its admins and owners: `client.users`. */
export class Users {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Returns users, by ID.
   *
   * @throws {@link PermissionDeniedError} you are no admin, or your key lacks the scope `users`.
   */
  async list(
    options: CallOptions & {
      /** Only users in this state. Default: all but removed users. */
      state?: "active" | "suspended" | "removed";
    } = {},
  ): Promise<UserInfo[]> {
    return all((cursor) => this.#client.call(page(options.state, cursor), options));
  }

  /**
   * Returns a user.
   *
   * @param user - the user, or their ID.
   * @throws {@link NotFoundError} no such user exists.
   */
  async get(user: UserInfo | string, options: CallOptions = {}): Promise<UserInfo> {
    return this.#client.call(get(pathOf(user), one), options);
  }

  /**
   * Invites a user before their first token, or adds a removed user again.
   *
   * @param user - the ID in their tokens, which is `"NAME:SUB"` for a user of the identity provider
   * NAME; or a removed user.
   * @throws {@link ConflictError} the user exists already.
   * @throws {@link PermissionDeniedError} the role is above yours.
   * @throws {@link InvalidRequestError} a value breaks a rule.
   */
  async add(user: UserInfo | string, options: NewUserOptions = {}): Promise<UserInfo> {
    const { role, name, email } = options;
    const body = { user_id: idOf(user), role, name, email } satisfies NewUser;
    // A repeat finds that there is one already.
    return this.#client.call(post(PATH, one, body), options);
  }

  /**
   * Changes, suspends or resumes a user, at once for their tokens and keys.
   *
   * @param user - the user, or their ID.
   * @throws {@link NotFoundError} no such user exists.
   * @throws {@link PermissionDeniedError} the user is of a role above yours, or would be.
   * @throws {@link ConflictError} you would suspend yourself, or leave the tenant without its last
   * owner.
   */
  async update(user: UserInfo | string, options: UserChanges): Promise<UserInfo> {
    const { role, state, name, email } = options;
    const body = { role, state, name, email } satisfies ChangedUser;
    const call = post(pathOf(user), one, body, { method: "PATCH", repeatable: true });
    return this.#client.call(call, options);
  }

  /**
   * Removes a user and revokes the API keys that they made. Present and later tokens of theirs are
   * refused, until they are added again.
   *
   * @param user - the user, or their ID.
   * @throws {@link NotFoundError} no such user exists.
   * @throws {@link PermissionDeniedError} the user is of a role above yours.
   * @throws {@link ConflictError} it is you, or the last owner of the tenant.
   */
  async remove(user: UserInfo | string, options: CallOptions = {}): Promise<void> {
    await this.#client.call(remove(pathOf(user), nothing), options);
  }
}

const PATH = "/api/v1/users";

type JSONOf<T> = T extends { content: { "application/json": infer B } } ? B : never;
type NewUser = JSONOf<NonNullable<paths["/api/v1/users"]["post"]["requestBody"]>>;
type ChangedUser = JSONOf<NonNullable<paths["/api/v1/users/{user}"]["patch"]["requestBody"]>>;

function page(state: string | undefined, cursor: string | undefined): Call<Page<UserInfo>> {
  return get(
    PATH,
    (answer) => {
      const obj = answer.json<Schemas["UserPage"]>();
      return { items: obj.list("users").map(userOf), next: obj.text("next_cursor") };
    },
    { query: queryOf({ state, cursor }) },
  );
}

function idOf(user: UserInfo | string): string {
  return typeof user === "string" ? user : user.userId;
}

function pathOf(user: UserInfo | string): string {
  return `${PATH}/${segment(idOf(user), "user ID")}`;
}

function one(answer: Answer): UserInfo {
  return userOf(answer.json());
}

function userOf(obj: Wire<Schemas["User"]>): UserInfo {
  return {
    userId: obj.required("user_id"),
    name: obj.maybe("name"),
    email: obj.maybe("email"),
    role: obj.maybe("role"),
    roleGiven: obj.flag("role_given"),
    state: obj.text("state"),
    source: obj.text("source"),
    issuer: obj.maybe("issuer"),
    createdAt: obj.time("created_at"),
    lastSeenAt: obj.time("last_seen_at"),
  };
}
