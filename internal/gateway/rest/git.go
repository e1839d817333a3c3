package rest

import (
	"net/http"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/git"
)

// repo returns the repository in the Sandbox.
func (a *API) repo(r *http.Request, who sandbox.Identity, g v1.GitRequest) (git.Repo, error) {
	p, user, err := git.Place(g.Path, g.User)
	if err != nil {
		return git.Repo{}, err
	}
	guest, err := a.guest(r, who, g.Target)
	return git.Repo{Guest: guest, Path: p, User: user}, err
}

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

// replyWith answers with v, or returns err.
func replyWith(w http.ResponseWriter, v any, err error) error {
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v)
}

// GitClone answers POST /api/v1/git/clone with the head of the new repository.
func (a *API) GitClone(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.GitCloneRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	c, err := git.NewClone(body.URL, body.Branch, body.Depth)
	if err != nil {
		return err
	}
	if c.Credentials, c.Timeout, err = remoteOf(&body.GitRemote); err != nil {
		return err
	}
	if body.Path == "" {
		if body.Path, err = git.Default(execution.Workspace, body.URL); err != nil {
			return err
		}
	}
	repo, err := a.repo(r, who, body.GitRequest)
	if err != nil {
		return err
	}
	head, err := repo.Clone(r.Context(), c)
	return replyWith(w, v1.GitHead(head), err)
}

// GitStatus answers POST /api/v1/git/status with the changes.
func (a *API) GitStatus(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.GitRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body)
	if err != nil {
		return err
	}
	s, err := repo.Status(r.Context())
	return replyWith(w, gitStatusViewOf(s), err)
}

// GitBranches answers POST /api/v1/git/branches with the branches.
func (a *API) GitBranches(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.GitRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body)
	if err != nil {
		return err
	}
	b, err := repo.Branches(r.Context())
	reply := v1.GitBranches{Path: b.Path, Current: b.Current, Branches: make([]v1.GitBranch, len(b.Branches)), Truncated: b.Truncated}
	for i, branch := range b.Branches {
		reply.Branches[i] = v1.GitBranch(branch)
	}
	return replyWith(w, reply, err)
}

// GitCheckout answers POST /api/v1/git/checkout with the repository's new head.
func (a *API) GitCheckout(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.GitCheckoutRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body.GitRequest)
	if err != nil {
		return err
	}
	head, err := repo.Checkout(r.Context(), git.Checkout{Ref: body.Ref, Create: body.Create, Start: body.Start})
	return replyWith(w, v1.GitHead(head), err)
}

// GitAdd answers POST /api/v1/git/add with the status afterwards.
func (a *API) GitAdd(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.GitAddRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	if err := git.CheckAdded(body.Files, body.All); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body.GitRequest)
	if err != nil {
		return err
	}
	s, err := repo.Add(r.Context(), body.Files, body.All)
	return replyWith(w, gitStatusViewOf(s), err)
}

// GitCommit answers POST /api/v1/git/commit with the new commit.
func (a *API) GitCommit(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.GitCommitRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	c := git.Commit{Message: body.Message, All: body.All, AllowEmpty: body.AllowEmpty}
	if body.Author != nil {
		c.Name, c.Email = body.Author.Name, body.Author.Email
	}
	if err := c.Check(body.Author != nil); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body.GitRequest)
	if err != nil {
		return err
	}
	head, err := repo.Commit(r.Context(), c)
	return replyWith(w, v1.GitHead(head), err)
}

// GitPull answers POST /api/v1/git/pull with the repository's new head.
func (a *API) GitPull(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.GitPullRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	p := git.Pull{Remote: body.Remote, Branch: body.Branch, Rebase: body.Rebase}
	var err error
	if p.Credentials, p.Timeout, err = remoteOf(&body.GitRemote); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body.GitRequest)
	if err != nil {
		return err
	}
	head, updated, err := repo.Pull(r.Context(), p)
	return replyWith(w, v1.GitPulled{GitHead: v1.GitHead(head), Updated: updated}, err)
}

// GitPush answers POST /api/v1/git/push with the pushed branch and commit.
func (a *API) GitPush(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.GitPushRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	p := git.Push{Remote: body.Remote, Branch: body.Branch, Force: body.Force, SetUpstream: body.SetUpstream}
	var err error
	if p.Credentials, p.Timeout, err = remoteOf(&body.GitRemote); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body.GitRequest)
	if err != nil {
		return err
	}
	done, err := repo.Push(r.Context(), p)
	return replyWith(w, v1.GitPushed(done), err)
}
