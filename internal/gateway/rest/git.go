package rest

import (
	"net/http"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/git"
)

// gitPlace is where a call of git is made, and by whom.
type gitPlace struct {
	target
	Path string `json:"path"`
	User string `json:"user"`
}

// repo returns the place in the Sandbox.
func (a *API) repo(r *http.Request, who sandbox.Identity, g gitPlace) (git.Repo, error) {
	p, user, err := git.Place(g.Path, g.User)
	if err != nil {
		return git.Repo{}, err
	}
	guest, err := a.guest(r, who, g.target)
	return git.Repo{Guest: guest, Path: p, User: user}, err
}

type gitCredentials struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Host     string `json:"host"`
}

func (c *gitCredentials) credentials() (*git.Credentials, error) {
	if c == nil {
		return nil, nil
	}
	out := &git.Credentials{Username: c.Username, Password: c.Password, Host: c.Host}
	return out, out.Check()
}

// remoteFields are those of calls over the network.
type remoteFields struct {
	Credentials    *gitCredentials `json:"credentials"`
	TimeoutSeconds *seconds        `json:"timeout_seconds"`
}

func (f *remoteFields) parse() (*git.Credentials, time.Duration, error) {
	timeout, err := git.Timeout(f.TimeoutSeconds.duration())
	if err != nil {
		return nil, 0, err
	}
	c, err := f.Credentials.credentials()
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

// replyWith answers with v, unless there is an error.
func replyWith(w http.ResponseWriter, v any, err error) error {
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v)
}

// GitClone answers POST /api/v1/git/clone with where the new repository stands.
func (a *API) GitClone(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		gitPlace
		remoteFields
		URL    string `json:"url"`
		Branch string `json:"branch"`
		Depth  *int   `json:"depth"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	c, err := git.NewClone(body.URL, body.Branch, body.Depth)
	if err != nil {
		return err
	}
	if c.Credentials, c.Timeout, err = body.parse(); err != nil {
		return err
	}
	if body.Path == "" {
		if body.Path, err = git.Default(execution.Workspace, body.URL); err != nil {
			return err
		}
	}
	repo, err := a.repo(r, who, body.gitPlace)
	if err != nil {
		return err
	}
	head, err := repo.Clone(r.Context(), c)
	return replyWith(w, v1.GitHead(head), err)
}

// GitStatus answers POST /api/v1/git/status with what has changed.
func (a *API) GitStatus(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body gitPlace
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
	var body gitPlace
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

// GitCheckout answers POST /api/v1/git/checkout with where the repository stands
// now.
func (a *API) GitCheckout(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		gitPlace
		Ref    string `json:"ref"`
		Create bool   `json:"create"`
		Start  string `json:"start"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body.gitPlace)
	if err != nil {
		return err
	}
	head, err := repo.Checkout(r.Context(), git.Checkout{Ref: body.Ref, Create: body.Create, Start: body.Start})
	return replyWith(w, v1.GitHead(head), err)
}

// GitAdd answers POST /api/v1/git/add with the status afterwards.
func (a *API) GitAdd(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		gitPlace
		Files []string `json:"files"`
		All   bool     `json:"all"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	if err := git.CheckAdded(body.Files, body.All); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body.gitPlace)
	if err != nil {
		return err
	}
	s, err := repo.Add(r.Context(), body.Files, body.All)
	return replyWith(w, gitStatusViewOf(s), err)
}

type gitAuthor struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// GitCommit answers POST /api/v1/git/commit with the new commit.
func (a *API) GitCommit(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		gitPlace
		Message    string     `json:"message"`
		Author     *gitAuthor `json:"author"`
		All        bool       `json:"all"`
		AllowEmpty bool       `json:"allow_empty"`
	}
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
	repo, err := a.repo(r, who, body.gitPlace)
	if err != nil {
		return err
	}
	head, err := repo.Commit(r.Context(), c)
	return replyWith(w, v1.GitHead(head), err)
}

// GitPull answers POST /api/v1/git/pull with where the repository stands now.
func (a *API) GitPull(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		gitPlace
		remoteFields
		Remote string `json:"remote"`
		Branch string `json:"branch"`
		Rebase bool   `json:"rebase"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	p := git.Pull{Remote: body.Remote, Branch: body.Branch, Rebase: body.Rebase}
	var err error
	if p.Credentials, p.Timeout, err = body.parse(); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body.gitPlace)
	if err != nil {
		return err
	}
	head, updated, err := repo.Pull(r.Context(), p)
	return replyWith(w, v1.GitPulled{GitHead: v1.GitHead(head), Updated: updated}, err)
}

// GitPush answers POST /api/v1/git/push with what was pushed.
func (a *API) GitPush(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		gitPlace
		remoteFields
		Remote      string `json:"remote"`
		Branch      string `json:"branch"`
		Force       bool   `json:"force"`
		SetUpstream bool   `json:"set_upstream"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	p := git.Push{Remote: body.Remote, Branch: body.Branch, Force: body.Force, SetUpstream: body.SetUpstream}
	var err error
	if p.Credentials, p.Timeout, err = body.parse(); err != nil {
		return err
	}
	repo, err := a.repo(r, who, body.gitPlace)
	if err != nil {
		return err
	}
	done, err := repo.Push(r.Context(), p)
	return replyWith(w, v1.GitPushed(done), err)
}
