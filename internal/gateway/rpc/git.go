package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	gitv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/git/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/git"
)

// repositories is the service of git.
type repositories struct{ guests *execution.Guests }

// repo returns the repository in the Sandbox.
func (s repositories) repo(ctx context.Context, m *gitv1.Repository) (git.Repo, error) {
	p, user, err := git.Place(m.GetPath(), m.GetUser())
	if err != nil {
		return git.Repo{}, err
	}
	id, err := required(m.GetSandboxId())
	if err != nil {
		return git.Repo{}, err
	}
	_, guest, err := s.guests.Open(ctx, tenantOf(ctx), id)
	return git.Repo{Guest: guest, Path: p, User: user}, err
}

// remoteOf returns the credentials and the timeout of a call over the network.
func remoteOf(m interface {
	GetCredentials() *gitv1.Credentials
}, timeoutSeconds *float64,
) (*git.Credentials, time.Duration, error) {
	asked, err := secondsOr("timeout_seconds", timeoutSeconds, 0)
	if err != nil {
		return nil, 0, err
	}
	timeout, err := git.Timeout(asked)
	if err != nil || m.GetCredentials() == nil {
		return nil, timeout, err
	}
	c := m.GetCredentials()
	given := &git.Credentials{Username: c.Username, Password: c.Password, Host: c.Host}
	return given, timeout, given.Check()
}

func headOf(h git.Head) *gitv1.Head {
	return &gitv1.Head{Path: text(h.Path), Branch: text(h.Branch), Commit: text(h.Commit)}
}

func statusOf(s git.Status) *gitv1.Status {
	v := &gitv1.Status{
		Head: headOf(s.Head), Upstream: text(s.Upstream), Ahead: s.Ahead, Behind: s.Behind,
		Clean: len(s.Files) == 0 && !s.Truncated, Truncated: s.Truncated,
	}
	for _, f := range s.Files {
		v.Files = append(v.Files, &gitv1.ChangedFile{
			Path: text(f.Path), Index: string(f.Index), Worktree: string(f.Worktree), OriginalPath: text(f.Original),
		})
	}
	return v
}

// Clone implements the service.
func (s repositories) Clone(ctx context.Context, r *connect.Request[gitv1.CloneRequest]) (*connect.Response[gitv1.CloneResponse], error) {
	var depth *int
	if r.Msg.Depth != nil {
		depth = new(int(*r.Msg.Depth))
	}
	c, err := git.NewClone(r.Msg.Url, r.Msg.Branch, depth)
	if err != nil {
		return nil, err
	}
	if c.Credentials, c.Timeout, err = remoteOf(r.Msg, r.Msg.TimeoutSeconds); err != nil {
		return nil, err
	}
	place := &gitv1.Repository{SandboxId: r.Msg.Repository.GetSandboxId(), Path: r.Msg.Repository.GetPath(), User: r.Msg.Repository.GetUser()}
	if place.Path == "" {
		if place.Path, err = git.Default(execution.Workspace, c.URL); err != nil {
			return nil, err
		}
	}
	repo, err := s.repo(ctx, place)
	if err != nil {
		return nil, err
	}
	head, err := repo.Clone(ctx, c)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&gitv1.CloneResponse{Head: headOf(head)}), nil
}

// Status implements the service.
func (s repositories) Status(ctx context.Context, r *connect.Request[gitv1.StatusRequest]) (*connect.Response[gitv1.StatusResponse], error) {
	repo, err := s.repo(ctx, r.Msg.Repository)
	if err != nil {
		return nil, err
	}
	found, err := repo.Status(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&gitv1.StatusResponse{Status: statusOf(found)}), nil
}

// Branches implements the service.
func (s repositories) Branches(ctx context.Context, r *connect.Request[gitv1.BranchesRequest]) (*connect.Response[gitv1.BranchesResponse], error) {
	repo, err := s.repo(ctx, r.Msg.Repository)
	if err != nil {
		return nil, err
	}
	found, err := repo.Branches(ctx)
	if err != nil {
		return nil, err
	}
	res := &gitv1.BranchesResponse{Path: text(found.Path), Current: text(found.Current), Truncated: found.Truncated}
	for _, b := range found.Branches {
		res.Branches = append(res.Branches, &gitv1.Branch{Name: text(b.Name), Commit: text(b.Commit), Remote: b.Remote, Upstream: text(b.Upstream)})
	}
	return connect.NewResponse(res), nil
}

// Checkout implements the service.
func (s repositories) Checkout(ctx context.Context, r *connect.Request[gitv1.CheckoutRequest]) (*connect.Response[gitv1.CheckoutResponse], error) {
	repo, err := s.repo(ctx, r.Msg.Repository)
	if err != nil {
		return nil, err
	}
	head, err := repo.Checkout(ctx, git.Checkout{Ref: r.Msg.Ref, Create: r.Msg.Create, Start: r.Msg.Start})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&gitv1.CheckoutResponse{Head: headOf(head)}), nil
}

// Add implements the service.
func (s repositories) Add(ctx context.Context, r *connect.Request[gitv1.AddRequest]) (*connect.Response[gitv1.AddResponse], error) {
	if err := git.CheckAdded(r.Msg.Files, r.Msg.All); err != nil {
		return nil, err
	}
	repo, err := s.repo(ctx, r.Msg.Repository)
	if err != nil {
		return nil, err
	}
	found, err := repo.Add(ctx, r.Msg.Files, r.Msg.All)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&gitv1.AddResponse{Status: statusOf(found)}), nil
}

// Commit implements the service.
func (s repositories) Commit(ctx context.Context, r *connect.Request[gitv1.CommitRequest]) (*connect.Response[gitv1.CommitResponse], error) {
	m := r.Msg
	c := git.Commit{Message: m.Message, Name: m.Author.GetName(), Email: m.Author.GetEmail(), All: m.All, AllowEmpty: m.AllowEmpty}
	if err := c.Check(m.Author != nil); err != nil {
		return nil, err
	}
	repo, err := s.repo(ctx, m.Repository)
	if err != nil {
		return nil, err
	}
	head, err := repo.Commit(ctx, c)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&gitv1.CommitResponse{Head: headOf(head)}), nil
}

// Pull implements the service.
func (s repositories) Pull(ctx context.Context, r *connect.Request[gitv1.PullRequest]) (*connect.Response[gitv1.PullResponse], error) {
	p := git.Pull{Remote: r.Msg.Remote, Branch: r.Msg.Branch, Rebase: r.Msg.Rebase}
	var err error
	if p.Credentials, p.Timeout, err = remoteOf(r.Msg, r.Msg.TimeoutSeconds); err != nil {
		return nil, err
	}
	repo, err := s.repo(ctx, r.Msg.Repository)
	if err != nil {
		return nil, err
	}
	head, updated, err := repo.Pull(ctx, p)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&gitv1.PullResponse{Head: headOf(head), Updated: updated}), nil
}

// Push implements the service.
func (s repositories) Push(ctx context.Context, r *connect.Request[gitv1.PushRequest]) (*connect.Response[gitv1.PushResponse], error) {
	p := git.Push{Remote: r.Msg.Remote, Branch: r.Msg.Branch, Force: r.Msg.Force, SetUpstream: r.Msg.SetUpstream}
	var err error
	if p.Credentials, p.Timeout, err = remoteOf(r.Msg, r.Msg.TimeoutSeconds); err != nil {
		return nil, err
	}
	repo, err := s.repo(ctx, r.Msg.Repository)
	if err != nil {
		return nil, err
	}
	done, err := repo.Push(ctx, p)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&gitv1.PushResponse{Path: text(done.Path), Branch: text(done.Branch), Remote: text(done.Remote), Commit: text(done.Commit)}), nil
}
