package git

import (
	"context"
	"errors"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Clone is a request to clone.
type Clone struct {
	URL         string // https, http, git, ssh or file; HOST:PATH; or an absolute path in the Sandbox
	Branch      string // a branch or tag; empty: the default
	Depth       int    // number of commits; 0: all
	Credentials *Credentials
	Timeout     time.Duration
}

var (
	schemes = map[string]bool{"https": true, "http": true, "git": true, "ssh": true, "file": true}
	// scpPattern is USER@HOST:PATH, the short form of ssh.
	scpPattern = regexp.MustCompile(`^([A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9._-]*:[^:].*$`)
)

// errURL lists the accepted forms of a URL.
var errURL = sandbox.Errorf(sandbox.Invalid, "url must be an https, http, git, ssh or file URL, HOST:PATH, or an absolute path in the sandbox")

// checkURL rejects strings that are no URL of a repository, and URLs with a password,
// which git would store in the repository's configuration.
func checkURL(raw string) error {
	if strings.ContainsFunc(raw, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\ufffd' }) && !strings.HasPrefix(raw, "/") ||
		strings.ContainsAny(raw, "\x00\n") || strings.HasPrefix(raw, "-") {
		return errURL
	}
	scheme, rest, isURL := strings.Cut(raw, "://")
	if !isURL {
		if strings.HasPrefix(raw, "/") || scpPattern.MatchString(raw) && !strings.Contains(raw, "::") {
			return nil
		}
		return errURL
	}
	u, err := url.Parse(raw)
	if err != nil || !schemes[scheme] || rest == "" || scheme != "file" && u.Hostname() == "" {
		return errURL
	}
	_, secret := u.User.Password()
	if secret || u.User != nil && (scheme == "https" || scheme == "http") {
		return sandbox.Errorf(sandbox.Invalid, "url must not hold a user or password, they would be stored in the repository; put them in credentials")
	}
	return nil
}

// NameOf returns the last part of a repository's URL, the default name of its clone;
// empty when the URL has no such part.
func NameOf(raw string) string {
	s := strings.TrimRight(raw, "/")
	s = strings.TrimSuffix(strings.TrimSuffix(s, "/.git"), ".git")
	if i := strings.LastIndexAny(s, "/:"); i >= 0 {
		s = s[i+1:]
	}
	if s == "." || s == ".." || s == "" {
		return ""
	}
	return s
}

// Clone makes a repository at the Repo's path, which must not exist or be an
// empty directory.
func (r Repo) Clone(ctx context.Context, c Clone) (Head, error) {
	if err := checkURL(c.URL); err != nil {
		return Head{}, err
	}
	args := []string{"clone", "--quiet"}
	if c.Branch != "" {
		if err := checkBranch("branch", c.Branch); err != nil {
			return Head{}, err
		}
		args = append(args, "--branch="+c.Branch)
	}
	if c.Depth > 0 {
		args = append(args, "--depth="+strconv.Itoa(c.Depth))
	}
	secret, err := c.Credentials.forURL(c.URL)
	if err != nil {
		return Head{}, err
	}
	_, err = r.git(ctx, call{args: append(args, "--", c.URL, r.Path), cwd: "/", timeout: c.Timeout, secret: secret})
	if err != nil {
		return Head{}, coded(err, sandbox.Invalid, "nothing was cloned")
	}
	return r.Head(ctx)
}

// Pull is a request to pull.
type Pull struct {
	Remote, Branch string // empty: the upstream's
	Rebase         bool   // rebase own commits instead of merging
	Credentials    *Credentials
	Timeout        time.Duration
}

var remotePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,254}$`)

func checkRemote(remote string) error {
	if !remotePattern.MatchString(remote) || strings.Contains(remote, "..") {
		return sandbox.Errorf(sandbox.Invalid, "remote %.64q is not the name of a remote", remote)
	}
	return nil
}

// Pull fetches and merges, and reports whether anything was new. If git cannot merge
// without conflicts, Pull returns Conflict and leaves the repository unchanged.
func (r Repo) Pull(ctx context.Context, p Pull) (head Head, updated bool, err error) {
	before, err := r.Head(ctx)
	if err != nil {
		return before, false, err
	}
	remote, ref, err := r.source(ctx, p, before)
	if err != nil {
		return before, false, err
	}
	if err := r.idle(ctx); err != nil {
		return before, false, err
	}
	secret, err := r.credentialsFor(ctx, p.Credentials, remote, false)
	if err != nil {
		return before, false, err
	}
	if _, err := r.git(ctx, call{args: []string{"fetch", "--quiet", remote, ref}, timeout: p.Timeout, secret: secret}); err != nil {
		return before, false, coded(err, sandbox.Conflict, "nothing was fetched")
	}
	join, undo := []string{"merge", "--quiet", "--no-edit", "FETCH_HEAD"}, []string{"merge", "--abort"}
	if p.Rebase {
		join, undo = []string{"rebase", "--quiet", "FETCH_HEAD"}, []string{"rebase", "--abort"}
	}
	if _, err := r.git(ctx, call{args: join}); err != nil {
		_, _ = r.git(context.WithoutCancel(ctx), call{args: undo}) // it fails if no merge or rebase was begun
		return before, false, coded(err, sandbox.Conflict, "the fetched commits cannot be merged, and nothing was changed")
	}
	head, err = r.Head(ctx)
	return head, head.Commit != before.Commit, err
}

// idle rejects a repository with a merge or rebase in progress, which the undo of a
// failed pull would abort.
func (r Repo) idle(ctx context.Context) error {
	for _, under := range []struct{ way, ref string }{{"merge", "MERGE_HEAD"}, {"rebase", "REBASE_HEAD"}} {
		_, err := r.git(ctx, call{args: []string{"rev-parse", "--verify", "--quiet", under.ref}, limit: maxName})
		var none *failure
		if err == nil {
			return sandbox.Errorf(sandbox.Conflict, "a %s is in progress; finish or abort it first", under.way)
		}
		if !errors.As(err, &none) {
			return err
		}
	}
	return nil
}

// source returns the remote and ref that a Pull fetches.
func (r Repo) source(ctx context.Context, p Pull, head Head) (remote, ref string, err error) {
	if p.Remote != "" {
		if err := checkRemote(p.Remote); err != nil {
			return "", "", err
		}
	}
	if p.Branch != "" {
		if err := checkBranch("branch", p.Branch); err != nil {
			return "", "", err
		}
	}
	remote, ref = p.Remote, p.Branch
	if head.Branch == "" && (remote == "" || ref == "") {
		return "", "", sandbox.Errorf(sandbox.Conflict, "no branch is checked out; say remote and branch")
	}
	if remote == "" {
		if remote, err = r.config(ctx, "branch."+head.Branch+".remote"); err != nil {
			return "", "", err
		}
		if ref == "" {
			ref, err = r.config(ctx, "branch."+head.Branch+".merge")
		}
		if remote == "" || ref == "" || err != nil {
			return "", "", errors.Join(err, sandbox.Errorf(sandbox.Conflict, "the branch has no upstream; say remote and branch"))
		}
		return remote, ref, checkSource(remote, ref)
	}
	if ref == "" {
		ref = head.Branch
	}
	return remote, ref, nil
}

// checkSource checks the upstream in a repository's configuration.
func checkSource(remote, ref string) error {
	if remote != "." {
		if err := checkRemote(remote); err != nil {
			return err
		}
	}
	return checkBranch("the upstream", ref)
}

// config returns one value of git's configuration; empty when it is not set.
func (r Repo) config(ctx context.Context, key string) (string, error) {
	out, err := r.git(ctx, call{args: []string{"config", "--get", key}, limit: maxName})
	var none *failure
	if errors.As(err, &none) {
		return "", nil
	}
	return strings.TrimSuffix(string(out.stdout), "\n"), err
}

// Push is a request to push.
type Push struct {
	Remote      string // empty: origin
	Branch      string // empty: the current one
	Force       bool   // overwrites the last fetched state, but nothing newer
	SetUpstream bool
	Credentials *Credentials
	Timeout     time.Duration
}

// Pushed is the result of a push.
type Pushed struct {
	Path, Branch, Remote, Commit string
}

// Push pushes a branch. A remote with new commits is a Conflict.
func (r Repo) Push(ctx context.Context, p Push) (Pushed, error) {
	head, err := r.Head(ctx)
	if err != nil {
		return Pushed{}, err
	}
	done := Pushed{Path: head.Path, Branch: p.Branch, Remote: p.Remote}
	if done.Remote == "" {
		done.Remote = "origin"
	}
	if done.Branch == "" {
		done.Branch = head.Branch
	}
	if done.Branch == "" {
		return done, sandbox.Errorf(sandbox.Conflict, "no branch is checked out; say branch")
	}
	if err := errors.Join(checkRemote(done.Remote), checkBranch("branch", done.Branch)); err != nil {
		return done, err
	}
	if done.Commit, err = r.commit(ctx, done.Branch); err != nil {
		return done, err
	}
	secret, err := r.credentialsFor(ctx, p.Credentials, done.Remote, true)
	if err != nil {
		return done, err
	}
	args := []string{"push", "--quiet"}
	if p.Force {
		args = append(args, "--force-with-lease")
	}
	if p.SetUpstream {
		args = append(args, "--set-upstream")
	}
	ref := "refs/heads/" + done.Branch
	_, err = r.git(ctx, call{args: append(args, done.Remote, ref+":"+ref), timeout: p.Timeout, secret: secret})
	return done, coded(err, sandbox.Conflict, "nothing was pushed")
}

// commit returns the commit of a branch.
func (r Repo) commit(ctx context.Context, branch string) (string, error) {
	out, err := r.git(ctx, call{args: []string{"rev-parse", "--verify", "--quiet", "refs/heads/" + branch + "^{commit}"}, limit: maxName})
	if err != nil {
		return "", coded(err, sandbox.NotFound, "no such branch with a commit")
	}
	commit := strings.TrimSuffix(string(out.stdout), "\n")
	if !commitPattern.MatchString(commit) {
		return "", errWrongAnswer
	}
	return commit, nil
}

// credentialsFor returns credentials for a remote; nil when c is nil.
func (r Repo) credentialsFor(ctx context.Context, c *Credentials, remote string, push bool) (*Credentials, error) {
	if c == nil {
		return nil, nil
	}
	args := []string{"remote", "get-url"}
	if push {
		args = append(args, "--push")
	}
	out, err := r.git(ctx, call{args: append(args, "--", remote), limit: maxName})
	if err != nil {
		return nil, coded(err, sandbox.NotFound, "no such remote")
	}
	return c.forURL(strings.TrimSuffix(string(out.stdout), "\n"))
}

// Default is the default path of a clone, below dir; Invalid when the URL has no name.
func Default(dir, rawURL string) (string, error) {
	n := NameOf(rawURL)
	if n == "" {
		return "", sandbox.Errorf(sandbox.Invalid, "path is missing, and cannot be derived from the url: send a path")
	}
	return path.Join(dir, n), nil
}
