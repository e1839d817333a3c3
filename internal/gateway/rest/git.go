package rest

import (
	"context"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/git"
)

// credentialsOf is nil for nil.
func credentialsOf(c *v1.GitCredentials) (*git.Credentials, error) {
	if c == nil {
		return nil, nil
	}
	out := &git.Credentials{Username: c.Username, Password: c.Password, Host: c.Host}
	return out, out.Check()
}

// remoteOf returns the credentials and the timeout of a call over the network.
func remoteOf(f *v1.GitRemote) (*git.Credentials, time.Duration, error) {
	timeout, err := git.Timeout(f.TimeoutSeconds.Duration())
	if err != nil {
		return nil, 0, err
	}
	c, err := credentialsOf(f.Credentials)
	return c, timeout, err
}

func gitStatusViewOf(s git.Status) v1.GitStatus {
	v := v1.GitStatus{
		GitHead: v1.GitHead(s.Head), Upstream: s.Upstream, Ahead: s.Ahead, Behind: s.Behind,
		Clean: len(s.Files) == 0 && !s.Truncated, Files: make([]v1.GitFile, len(s.Files)), Truncated: s.Truncated,
	}
	for i, f := range s.Files {
		v.Files[i] = v1.GitFile{Path: f.Path, Index: string(f.Index), Worktree: string(f.Worktree), OriginalPath: f.Original}
	}
	return v
}

// inRepo calls do with the repository that a request names, and shows the result.
func inRepo[Found, View any](ctx context.Context, a *API, c Call, g v1.GitRequest, show func(Found) View, do func(git.Repo) (Found, error)) (view View, err error) {
	p, user, err := git.Place(g.Path, g.User)
	if err != nil {
		return view, err
	}
	guest, err := a.guest(ctx, c.Who, g.Target)
	if err != nil {
		return view, err
	}
	found, err := do(git.Repo{Guest: guest, Path: p, User: user})
	return show(found), err
}

func gitHeadOf(h git.Head) v1.GitHead { return v1.GitHead(h) }

// GitClone clones a repository and returns its head.
func (a *API) GitClone(ctx context.Context, c Call, in *v1.GitCloneRequest) (v1.GitHead, error) {
	clone, err := git.NewClone(in.URL, in.Branch, in.Depth)
	if err != nil {
		return v1.GitHead{}, err
	}
	if clone.Credentials, clone.Timeout, err = remoteOf(&in.GitRemote); err != nil {
		return v1.GitHead{}, err
	}
	place := in.GitRequest
	if place.Path == "" {
		if place.Path, err = git.Default(execution.Workspace, in.URL); err != nil {
			return v1.GitHead{}, err
		}
	}
	return inRepo(ctx, a, c, place, gitHeadOf, func(repo git.Repo) (git.Head, error) { return repo.Clone(ctx, clone) })
}

// GitStatus returns the changes.
func (a *API) GitStatus(ctx context.Context, c Call, in *v1.GitRequest) (v1.GitStatus, error) {
	return inRepo(ctx, a, c, *in, gitStatusViewOf, func(repo git.Repo) (git.Status, error) { return repo.Status(ctx) })
}

// GitBranches returns the branches.
func (a *API) GitBranches(ctx context.Context, c Call, in *v1.GitRequest) (v1.GitBranches, error) {
	return inRepo(ctx, a, c, *in, gitBranchesOf, func(repo git.Repo) (git.Branches, error) { return repo.Branches(ctx) })
}

func gitBranchesOf(b git.Branches) v1.GitBranches {
	v := v1.GitBranches{Path: b.Path, Current: b.Current, Branches: make([]v1.GitBranch, len(b.Branches)), Truncated: b.Truncated}
	for i, branch := range b.Branches {
		v.Branches[i] = v1.GitBranch(branch)
	}
	return v
}

// GitCheckout checks a commit out and returns the new head.
func (a *API) GitCheckout(ctx context.Context, c Call, in *v1.GitCheckoutRequest) (v1.GitHead, error) {
	return inRepo(ctx, a, c, in.GitRequest, gitHeadOf, func(repo git.Repo) (git.Head, error) {
		return repo.Checkout(ctx, git.Checkout{Ref: in.Ref, Create: in.Create, Start: in.Start})
	})
}

// GitAdd stages files and returns the status afterwards.
func (a *API) GitAdd(ctx context.Context, c Call, in *v1.GitAddRequest) (v1.GitStatus, error) {
	if err := git.CheckAdded(in.Files, in.All); err != nil {
		return v1.GitStatus{}, err
	}
	return inRepo(ctx, a, c, in.GitRequest, gitStatusViewOf, func(repo git.Repo) (git.Status, error) { return repo.Add(ctx, in.Files, in.All) })
}

// GitCommit makes a commit and returns it.
func (a *API) GitCommit(ctx context.Context, c Call, in *v1.GitCommitRequest) (v1.GitHead, error) {
	commit := git.Commit{Message: in.Message, All: in.All, AllowEmpty: in.AllowEmpty}
	if in.Author != nil {
		commit.Name, commit.Email = in.Author.Name, in.Author.Email
	}
	if err := commit.Check(in.Author != nil); err != nil {
		return v1.GitHead{}, err
	}
	return inRepo(ctx, a, c, in.GitRequest, gitHeadOf, func(repo git.Repo) (git.Head, error) { return repo.Commit(ctx, commit) })
}

// GitPull pulls and returns the new head.
func (a *API) GitPull(ctx context.Context, c Call, in *v1.GitPullRequest) (v1.GitPulled, error) {
	pull := git.Pull{Remote: in.Remote, Branch: in.Branch, Rebase: in.Rebase}
	var err error
	if pull.Credentials, pull.Timeout, err = remoteOf(&in.GitRemote); err != nil {
		return v1.GitPulled{}, err
	}
	updated := false
	show := func(h git.Head) v1.GitPulled { return v1.GitPulled{GitHead: v1.GitHead(h), Updated: updated} }
	return inRepo(ctx, a, c, in.GitRequest, show, func(repo git.Repo) (head git.Head, err error) {
		head, updated, err = repo.Pull(ctx, pull)
		return head, err
	})
}

// GitPush pushes and returns the pushed branch and commit.
func (a *API) GitPush(ctx context.Context, c Call, in *v1.GitPushRequest) (v1.GitPushed, error) {
	push := git.Push{Remote: in.Remote, Branch: in.Branch, Force: in.Force, SetUpstream: in.SetUpstream}
	var err error
	if push.Credentials, push.Timeout, err = remoteOf(&in.GitRemote); err != nil {
		return v1.GitPushed{}, err
	}
	show := func(p git.Pushed) v1.GitPushed { return v1.GitPushed(p) }
	return inRepo(ctx, a, c, in.GitRequest, show, func(repo git.Repo) (git.Pushed, error) { return repo.Push(ctx, push) })
}
