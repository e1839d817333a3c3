package git

import (
	"context"
	"errors"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Head is the checked-out branch and commit of a repository.
type Head struct {
	Path   string // its root
	Branch string // empty when no branch is checked out
	Commit string // empty before the first commit
}

// Status lists the changes since the last commit.
type Status struct {
	Head
	Upstream      string // empty: none
	Ahead, Behind int64  // of Upstream
	Files         []File
	Truncated     bool // there are more Files
}

// File is a file that differs from the last commit.
type File struct {
	Path            string
	Index, Worktree Change
	Original        string // of a file that was renamed or copied
}

// Change is the kind of change of a file.
type Change string

// The changes.
const (
	Unmodified  Change = "unmodified"
	Modified    Change = "modified"
	TypeChanged Change = "type_changed"
	Added       Change = "added"
	Deleted     Change = "deleted"
	Renamed     Change = "renamed"
	Copied      Change = "copied"
	Unmerged    Change = "unmerged"
	Untracked   Change = "untracked"
)

// Branches are the local and remote-tracking branches of a repository.
type Branches struct {
	Path      string
	Current   string // empty when no branch is checked out
	Branches  []Branch
	Truncated bool
}

// Branch is one branch.
type Branch struct {
	Name     string // of a remote-tracking branch: with the remote
	Commit   string
	Remote   bool
	Upstream string // empty: none
}

// root returns the path of the repository's root.
func (r Repo) root(ctx context.Context) (string, error) {
	out, err := r.git(ctx, call{args: []string{"rev-parse", "--show-toplevel"}, limit: 2 * maxName})
	if err != nil {
		return "", coded(err, sandbox.NotFound, "no git repository")
	}
	path := strings.TrimSuffix(string(out.stdout), "\n")
	if !strings.HasPrefix(path, "/") || len(path) > maxName {
		return "", errWrongAnswer
	}
	return strings.ToValidUTF8(path, "\ufffd"), nil
}

// Head returns the checked-out branch and commit.
func (r Repo) Head(ctx context.Context) (Head, error) {
	s, err := r.status(ctx, "no")
	return s.Head, err
}

// Status returns the changes, with untracked but without ignored files.
func (r Repo) Status(ctx context.Context) (Status, error) { return r.status(ctx, "all") }

func (r Repo) status(ctx context.Context, untracked string) (Status, error) {
	root, err := r.root(ctx)
	if err != nil {
		return Status{}, err
	}
	out, err := r.git(ctx, call{
		args: []string{"status", "--porcelain=v2", "--branch", "-z", "--untracked-files=" + untracked},
		env:  map[string]string{"GIT_OPTIONAL_LOCKS": "0"},
	})
	if err != nil {
		return Status{}, coded(err, sandbox.Conflict, "the status cannot be read")
	}
	s, err := parseStatus(out.stdout, out.cut)
	s.Path = root
	return s, err
}

// Branches lists branches by name, local ones first.
func (r Repo) Branches(ctx context.Context) (Branches, error) {
	root, err := r.root(ctx)
	if err != nil {
		return Branches{}, err
	}
	out, err := r.git(ctx, call{args: []string{
		"for-each-ref", "--format=%(refname)%09%(objectname)%09%(upstream:short)%09%(symref)", "--sort=refname", "refs/heads", "refs/remotes",
	}})
	if err != nil {
		return Branches{}, coded(err, sandbox.Conflict, "the branches cannot be read")
	}
	b, err := parseBranches(out.stdout, out.cut)
	if err != nil {
		return b, err
	}
	b.Path = root
	out, err = r.git(ctx, call{args: []string{"symbolic-ref", "--quiet", "--short", "HEAD"}, limit: maxName})
	var none *failure
	if err != nil && !errors.As(err, &none) {
		return b, err
	}
	if err == nil {
		b.Current = name(strings.TrimSuffix(string(out.stdout), "\n"))
	}
	return b, nil
}

// Checkout is a request to check out.
type Checkout struct {
	Ref    string // a branch, tag or commit
	Create bool   // make the branch first
	Start  string // start of a created branch; empty: the current commit
}

// Checkout switches to a branch or commit. If it would overwrite changes, it returns
// Conflict.
func (r Repo) Checkout(ctx context.Context, c Checkout) (Head, error) {
	if err := c.check(); err != nil {
		return Head{}, err
	}
	if _, err := r.root(ctx); err != nil {
		return Head{}, err
	}
	args := []string{"checkout", "--quiet"}
	if c.Create {
		args = append(args, "-b")
	}
	args = append(args, c.Ref)
	if c.Start != "" {
		args = append(args, c.Start)
	}
	if _, err := r.git(ctx, call{args: append(args, "--")}); err != nil {
		return Head{}, coded(err, sandbox.Conflict, "nothing was checked out")
	}
	return r.Head(ctx)
}

func (c Checkout) check() error {
	if c.Start != "" && !c.Create {
		return sandbox.Errorf(sandbox.Invalid, "start is for a new branch: send create too")
	}
	if c.Start != "" {
		if err := checkRevision("start", c.Start); err != nil {
			return err
		}
	}
	if c.Create {
		return checkBranch("ref", c.Ref)
	}
	return checkRevision("ref", c.Ref)
}

// Add stages files, or all changes if all is set.
func (r Repo) Add(ctx context.Context, files []string, all bool) (Status, error) {
	root, err := r.root(ctx)
	if err != nil {
		return Status{}, err
	}
	c := call{args: []string{"add", "--pathspec-from-file=-", "--pathspec-file-nul"}, env: map[string]string{"GIT_LITERAL_PATHSPECS": "1"}, stdin: strings.Join(files, "\x00")}
	if all {
		c = call{args: []string{"add", "--all"}, cwd: root}
	}
	if _, err := r.git(ctx, c); err != nil {
		return Status{}, coded(err, sandbox.Conflict, "nothing was staged")
	}
	return r.Status(ctx)
}

// Commit is a request to commit.
type Commit struct {
	Message     string
	Name, Email string // of author and committer; empty: from git's configuration
	All         bool   // also unstaged changes of tracked files
	AllowEmpty  bool
}

// Commit commits the staged changes. If no change is staged, it returns Conflict.
func (r Repo) Commit(ctx context.Context, c Commit) (Head, error) {
	if _, err := r.root(ctx); err != nil {
		return Head{}, err
	}
	args := []string{"-c", "user.useConfigOnly=true", "commit", "--quiet", "--file=-"}
	if c.All {
		args = append(args, "--all")
	}
	if c.AllowEmpty {
		args = append(args, "--allow-empty")
	}
	env := map[string]string{}
	if c.Name != "" {
		env = map[string]string{
			"GIT_AUTHOR_NAME": c.Name, "GIT_AUTHOR_EMAIL": c.Email, "GIT_COMMITTER_NAME": c.Name, "GIT_COMMITTER_EMAIL": c.Email,
		}
	}
	if _, err := r.git(ctx, call{args: args, env: env, stdin: c.Message}); err != nil {
		err = coded(err, sandbox.Conflict, "nothing was committed")
		if c.Name == "" && sandbox.CodeOf(err) == sandbox.Invalid {
			err = sandbox.Errorf(sandbox.Invalid, "nothing was committed: the author is missing; send one, or set user.name and user.email in the configuration of git").WithCause(err)
		}
		return Head{}, err
	}
	return r.Head(ctx)
}
