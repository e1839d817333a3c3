// Repositories of git in a Sandbox, as the Sandbox describes them.

import { type Answer, type Call, post, READ_SECONDS, whenTrue } from "./api/call.js";
import type { Schemas, Wire, Word } from "./api/wire.js";
import type { Client } from "./client.js";
import type { CallOptions } from "./options.js";

/**
 * Credentials for one call; they are stored nowhere.
 *
 * They are sent to the host of the repository's URL and to no other. A pull and a push take the URL
 * from the repository, which code in the Sandbox may have changed: say `host` to be sure.
 */
export interface GitCredentials {
  /** A password or token. */
  password: string;
  /** Default: `git`, which does for tokens. */
  username?: string;
  /** The only host that may get them, with its port if it has one. Default: the URL's. */
  host?: string;
}

/** The position of a repository. */
export interface GitHead {
  /** Its root. */
  path: string;
  /** `undefined` when no branch is checked out. */
  branch: string | undefined;
  /** `undefined` before the first. */
  commit: string | undefined;
}

/** A file that differs from the last commit. */
export interface GitFile {
  /** Relative to the repository's root. */
  path: string;
  /** The staged change. */
  index: Word<Schemas["GitChange"]>;
  /** The change that is not staged. */
  worktree: Word<Schemas["GitChange"]>;
  /** The path before it was renamed or copied. */
  originalPath: string | undefined;
}

/** The changes in a repository. */
export interface GitStatus extends GitHead {
  /** The upstream branch; `undefined` without one. */
  upstream: string | undefined;
  /** Commits that the upstream lacks. */
  ahead: number;
  /** Commits that the branch lacks. */
  behind: number;
  /** Nothing has changed. */
  clean: boolean;
  /** The files that differ from the last commit. */
  files: GitFile[];
  /** More files have changed. */
  truncated: boolean;
}

/** A branch. */
export interface GitBranch {
  /** Its name. */
  name: string;
  /** Its last commit. */
  commit: string;
  /** It is one of a remote, as it was when last fetched. */
  remote: boolean;
  /** Its upstream branch; `undefined` without one. */
  upstream: string | undefined;
}

/** The branches of a repository. */
export interface GitBranches {
  /** Its root. */
  path: string;
  /** The current branch; `undefined` when none is checked out. */
  current: string | undefined;
  /** Its own, and those known of its remotes. */
  branches: GitBranch[];
  /** More branches exist. */
  truncated: boolean;
}

/** The result of a pull. */
export interface GitPull extends GitHead {
  /** The pull brought new commits. */
  updated: boolean;
}

/** The result of a push. */
export interface GitPush {
  /** The repository's root. */
  path: string;
  /** The pushed branch. */
  branch: string;
  /** The remote. */
  remote: string;
  /** The commit of the remote's branch now. */
  commit: string;
}

/** Where a call of git acts. */
export interface GitOptions extends CallOptions {
  /** A folder in a repository, below `/workspace` if it is not absolute. Default: `/workspace`. */
  path?: string;
  /** The acting user inside. Default: the Sandbox's user. */
  user?: string;
}

/** How a call of git goes to another host. */
export interface GitRemoteOptions extends GitOptions {
  /** For this call only. */
  credentials?: GitCredentials;
  /** Up to 3,600. Default: 300. */
  timeoutSeconds?: number;
}

// The server's default timeout of calls to another host.
const REMOTE_SECONDS = 300;

/** Repositories of git: `sandbox.git`. */
export class Git {
  readonly #client: Client;
  readonly #sandboxId: string;

  /** @internal */
  constructor(client: Client, sandboxId: string) {
    this.#client = client;
    this.#sandboxId = sandboxId;
  }

  /**
   * Clones a repository.
   *
   * @param url - https, http, git, ssh, file, or a path in the Sandbox; never with credentials in
   * it.
   * @throws {@link PermissionDeniedError} the credentials are wrong, or missing.
   * @throws {@link ConflictError} `path` is not empty.
   * @throws {@link NotFoundError} no such repository or branch exists.
   */
  async clone(
    url: string,
    options: GitRemoteOptions & {
      /**
       * The destination, which must be absent or an empty folder. Default: the last part of the
       * URL.
       */
      path?: string;
      /** A branch or tag. Default: the repository's. */
      branch?: string;
      /** Only so many commits. Default: all. */
      depth?: number;
    } = {},
  ): Promise<GitHead> {
    const body = {
      sandbox_id: this.#sandboxId,
      url,
      path: options.path,
      branch: options.branch,
      depth: options.depth,
      user: options.user,
      ...remote(options),
    } satisfies Schemas["GitCloneRequest"];
    return this.#client.call(call("clone", head, body, silence(options)), options);
  }

  /**
   * Returns the branch and the files that differ from its last commit.
   *
   * @throws {@link NotFoundError} no such folder exists.
   * @throws {@link InvalidRequestError} it belongs to no repository.
   */
  async status(options: GitOptions = {}): Promise<GitStatus> {
    const body = this.#in(options) satisfies Schemas["GitRequest"];
    return this.#client.call(repeatable(call("status", status, body)), options);
  }

  /** Returns the repository's branches and those known of its remotes. */
  async branches(options: GitOptions = {}): Promise<GitBranches> {
    const body = this.#in(options) satisfies Schemas["GitRequest"];
    return this.#client.call(repeatable(call("branches", branches, body)), options);
  }

  /**
   * Changes to a branch, tag or commit.
   *
   * @throws {@link ConflictError} changes would be overwritten, or the branch exists already.
   * @throws {@link NotFoundError} no such branch, tag or commit exists.
   */
  async checkout(
    ref: string,
    options: GitOptions & {
      /** Make the branch first. */
      create?: boolean;
      /** The start of a new branch. Default: the current commit. */
      start?: string;
    } = {},
  ): Promise<GitHead> {
    const body = {
      ...this.#in(options),
      ref,
      create: whenTrue(options.create),
      start: options.start,
    } satisfies Schemas["GitCheckoutRequest"];
    return this.#client.call(call("checkout", head, body, REMOTE_SECONDS), options);
  }

  /**
   * Stages changes and returns the status afterwards.
   *
   * @param files - up to 1,000 paths relative to `path`. Default: every change, removals too.
   * @throws {@link NotFoundError} no such file exists.
   */
  async add(files?: readonly string[], options: GitOptions = {}): Promise<GitStatus> {
    const what = files === undefined ? { all: true } : { files: [...files] };
    const body = { ...this.#in(options), ...what } satisfies Schemas["GitAddRequest"];
    return this.#client.call(repeatable(call("add", status, body, REMOTE_SECONDS)), options);
  }

  /**
   * Commits the staged changes; the repository's hooks run.
   *
   * @param message - the message of the commit.
   * @throws {@link ConflictError} nothing has changed, or a hook refused.
   */
  async commit(
    message: string,
    options: GitOptions & {
      /** Author and committer. Default: from git's configuration. */
      author?: { name: string; email: string };
      /** Also changes of tracked files that are not staged. */
      all?: boolean;
      /** Also when nothing has changed. */
      allowEmpty?: boolean;
    } = {},
  ): Promise<GitHead> {
    const body = {
      ...this.#in(options),
      message,
      author: options.author,
      all: whenTrue(options.all),
      allow_empty: whenTrue(options.allowEmpty),
    } satisfies Schemas["GitCommitRequest"];
    return this.#client.call(call("commit", head, body, REMOTE_SECONDS), options);
  }

  /**
   * Fetches and merges. A merge that needs manual work is a conflict and changes nothing.
   *
   * @throws {@link PermissionDeniedError} the credentials are wrong, or missing.
   * @throws {@link ConflictError} it cannot be merged.
   */
  async pull(
    options: GitRemoteOptions & {
      /** The remote. Default: the upstream's. */
      remote?: string;
      /** The branch. Default: the upstream. */
      branch?: string;
      /** Put own commits on top, instead of merging. */
      rebase?: boolean;
    } = {},
  ): Promise<GitPull> {
    const body = {
      ...this.#in(options),
      remote: options.remote,
      branch: options.branch,
      rebase: whenTrue(options.rebase),
      ...remote(options),
    } satisfies Schemas["GitPullRequest"];
    return this.#client.call(call("pull", pulled, body, silence(options)), options);
  }

  /**
   * Pushes a branch.
   *
   * @throws {@link PermissionDeniedError} the credentials are wrong, or missing.
   * @throws {@link ConflictError} the remote has newer commits.
   */
  async push(
    options: GitRemoteOptions & {
      /** The remote. Default: `origin`. */
      remote?: string;
      /** The branch. Default: the current one. */
      branch?: string;
      /** Overwrite the remote's branch, unless it has changed since the last fetch. */
      force?: boolean;
      /** Follow the remote's branch from now on. */
      setUpstream?: boolean;
    } = {},
  ): Promise<GitPush> {
    const body = {
      ...this.#in(options),
      remote: options.remote,
      branch: options.branch,
      force: whenTrue(options.force),
      set_upstream: whenTrue(options.setUpstream),
      ...remote(options),
    } satisfies Schemas["GitPushRequest"];
    return this.#client.call(call("push", pushed, body, silence(options)), options);
  }

  #in(options: GitOptions) {
    const { path = "/workspace", user } = options;
    return { sandbox_id: this.#sandboxId, path, user };
  }
}

function call<T>(
  what: string,
  decode: (answer: Answer) => T,
  body: object,
  readSeconds = READ_SECONDS,
): Call<T> {
  return post(`/api/v1/git/${what}`, decode, body, { readSeconds });
}

function repeatable<T>(call: Call<T>): Call<T> {
  return { ...call, repeatable: true };
}

function remote(options: GitRemoteOptions) {
  const { credentials, timeoutSeconds } = options;
  return {
    credentials: credentials && {
      username: credentials.username,
      password: credentials.password,
      host: credentials.host,
    },
    timeout_seconds: timeoutSeconds,
  };
}

function silence(options: GitRemoteOptions): number {
  return (options.timeoutSeconds ?? REMOTE_SECONDS) + READ_SECONDS;
}

function head(answer: Answer): GitHead {
  return headOf(answer.json<Schemas["GitHead"]>());
}

function headOf(obj: Wire<Schemas["GitHead"]>): GitHead {
  return { path: obj.text("path"), branch: obj.maybe("branch"), commit: obj.maybe("commit") };
}

function status(answer: Answer): GitStatus {
  const obj = answer.json<Schemas["GitStatus"]>();
  return {
    ...headOf(obj),
    upstream: obj.maybe("upstream"),
    ahead: obj.count("ahead"),
    behind: obj.count("behind"),
    clean: obj.flag("clean"),
    files: obj.list("files").map((item) => ({
      path: item.required("path"),
      index: item.text("index"),
      worktree: item.text("worktree"),
      originalPath: item.maybe("original_path"),
    })),
    truncated: obj.flag("truncated"),
  };
}

function branches(answer: Answer): GitBranches {
  const obj = answer.json<Schemas["GitBranches"]>();
  return {
    path: obj.text("path"),
    current: obj.maybe("current"),
    branches: obj.list("branches").map((item) => ({
      name: item.required("name"),
      commit: item.text("commit"),
      remote: item.flag("remote"),
      upstream: item.maybe("upstream"),
    })),
    truncated: obj.flag("truncated"),
  };
}

function pulled(answer: Answer): GitPull {
  const obj = answer.json<Schemas["GitPullResult"]>();
  return { ...headOf(obj), updated: obj.flag("updated") };
}

function pushed(answer: Answer): GitPush {
  const obj = answer.json<Schemas["GitPushResult"]>();
  return {
    path: obj.text("path"),
    branch: obj.text("branch"),
    remote: obj.text("remote"),
    commit: obj.text("commit"),
  };
}
