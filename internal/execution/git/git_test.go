package git_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/git"
)

const secret = "s3cr3t-t0ken/with+signs"

// here runs programs on this machine, with a home of their own.
type here struct {
	t    *testing.T
	home string

	mu   sync.Mutex
	runs []execution.RunRequest
}

func newHere(t *testing.T) *here {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git on this machine")
	}
	h := &here{t: t, home: t.TempDir()}
	h.write(".gitconfig", "[user]\n\tname = Own\n\temail = own@example.com\n[init]\n\tdefaultBranch = main\n[safe]\n\tdirectory = *\n[protocol \"file\"]\n\tallow = always\n")
	return h
}

func (h *here) write(name, content string) {
	h.t.Helper()
	p := filepath.Join(h.home, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o755)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *here) read(name string) string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.home, name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(data)
}

func (h *here) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Dir, c.Env = dir, []string{"HOME=" + h.home, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1"}
	return c
}

// git runs git as a user would.
func (h *here) git(dir string, args ...string) string {
	h.t.Helper()
	out, err := h.command(h.t.Context(), filepath.Join(h.home, dir), append([]string{"git"}, args...)...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (h *here) repo(path string) git.Repo {
	return git.Repo{Guest: h, Path: filepath.Join(h.home, path)}
}

func (h *here) Run(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	h.mu.Lock()
	h.runs = append(h.runs, req)
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, req.Timeout)
	defer cancel()
	if _, err := os.Stat(req.Cwd); err != nil {
		return execution.RunEnd{}, sandbox.Errorf(sandbox.Invalid, "the working directory does not exist")
	}
	c := h.command(ctx, req.Cwd, req.Args...)
	for name, value := range req.Env {
		c.Env = append(c.Env, name+"="+value)
	}
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(req.Stdin), &stdout, &stderr
	err := c.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		return execution.RunEnd{}, err
	}
	if err := handle(execution.RunEvent{Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}); err != nil {
		return execution.RunEnd{}, err
	}
	return execution.RunEnd{Status: execution.StatusOK, ExitCode: c.ProcessState.ExitCode()}, nil
}

func (h *here) Programs(_ context.Context, names []string) ([]string, error) { return names, nil }

func (h *here) Stat(_ context.Context, path string) (execution.Entry, error) {
	if _, err := os.Stat(path); err != nil {
		return execution.Entry{}, sandbox.Errorf(sandbox.NotFound, "it is not there")
	}
	return execution.Entry{Path: path}, nil
}

// origin makes a repository with one commit and a bare one that it is pushed to.
func (h *here) origin() {
	h.t.Helper()
	h.write("seed/a.txt", "one\n")
	h.git("seed", "init", "-q")
	h.git("seed", "add", ".")
	h.git("seed", "commit", "-qm", "first")
	h.git(".", "clone", "-q", "--bare", "seed", "origin.git")
	h.git("origin.git", "config", "http.receivepack", "true")
}

// advance pushes another commit to the origin, from another clone.
func (h *here) advance(name, content string) {
	h.t.Helper()
	if _, err := os.Stat(filepath.Join(h.home, "other")); err != nil {
		h.git(".", "clone", "-q", "origin.git", "other")
	}
	h.git("other", "pull", "-q")
	h.write("other/"+name, content)
	h.git("other", "add", ".")
	h.git("other", "commit", "-qm", "advance")
	h.git("other", "push", "-q")
}

func wants(t *testing.T, what string, err error, code sandbox.Code) {
	t.Helper()
	if code == "" && err != nil || code != "" && !errors.Is(err, code) {
		t.Errorf("%s: %v, want %q", what, err, code)
	}
}

func TestLocalWork(t *testing.T) {
	h := newHere(t)
	h.origin()
	ctx := t.Context()
	r := h.repo("work")
	head, err := r.Clone(ctx, git.Clone{URL: h.home + "/origin.git", Timeout: 60e9})
	if err != nil || head.Branch != "main" || len(head.Commit) != 40 || !strings.HasSuffix(head.Path, "/work") {
		t.Fatalf("%+v, %v", head, err)
	}
	s, err := r.Status(ctx)
	if err != nil || len(s.Files) != 0 || s.Upstream != "origin/main" || s.Ahead != 0 || s.Head != head {
		t.Errorf("clean: %+v, %v", s, err)
	}
	h.write("work/sub/new ü\n.txt", "x")
	h.write("work/a.txt", "two\n")
	h.git("work", "mv", "a.txt", "b.txt")
	if s, err = r.Status(ctx); err != nil || len(s.Files) != 2 {
		t.Fatalf("changed: %+v, %v", s, err)
	}
	want := []git.File{
		{Path: "b.txt", Index: git.Renamed, Worktree: git.Modified, Original: "a.txt"},
		{Path: "sub/new ü\n.txt", Index: git.Untracked, Worktree: git.Untracked},
	}
	if !slices.Equal(s.Files, want) {
		t.Errorf("changed: %+v", s.Files)
	}
	sub := h.repo("work/sub")
	if s, err = sub.Add(ctx, []string{"new ü\n.txt"}, false); err != nil || s.Files[1].Index != git.Added || s.Path != head.Path {
		t.Errorf("added: %+v, %v", s, err)
	}
	_, err = r.Add(ctx, []string{"*.none"}, false)
	wants(t, "add what is not there", err, sandbox.NotFound)
	if s, err = sub.Add(ctx, nil, true); err != nil || len(s.Files) != 3 {
		t.Errorf("added all: %+v, %v", s, err)
	}
	next, err := r.Commit(ctx, git.Commit{Message: "Second\n\nof all", Name: "Ada", Email: "ada@example.com"})
	if err != nil || next.Commit == head.Commit {
		t.Errorf("committed %+v, %v", next, err)
	}
	if got := h.git("work", "log", "-1", "--format=%an %ae %cn %B"); got != "Ada ada@example.com Ada Second\n\nof all" {
		t.Errorf("the commit is %q", got)
	}
	_, err = r.Commit(ctx, git.Commit{Message: "Nothing"})
	wants(t, "commit nothing", err, sandbox.Conflict)
	if _, err = r.Commit(ctx, git.Commit{Message: "Empty", AllowEmpty: true}); err != nil {
		t.Error(err)
	}
	h.git(".", "config", "--global", "--remove-section", "user")
	_, err = r.Commit(ctx, git.Commit{Message: "Nobody", AllowEmpty: true})
	wants(t, "commit as nobody", err, sandbox.Invalid)
	if err == nil || !strings.Contains(err.Error(), "send one") {
		t.Errorf("commit as nobody: %v; it does not say what to do", err)
	}
}

func TestBranchesAndCheckout(t *testing.T) {
	h := newHere(t)
	h.origin()
	ctx := t.Context()
	r := h.repo("work")
	if _, err := r.Clone(ctx, git.Clone{URL: "file://" + h.home + "/origin.git", Depth: 1, Timeout: 60e9}); err != nil {
		t.Fatal(err)
	}
	head, err := r.Checkout(ctx, git.Checkout{Ref: "feature/x", Create: true, Start: "origin/main"})
	if err != nil || head.Branch != "feature/x" {
		t.Errorf("%+v, %v", head, err)
	}
	b, err := r.Branches(ctx)
	if err != nil || b.Current != "feature/x" || len(b.Branches) != 3 || b.Branches[2].Name != "origin/main" || !b.Branches[2].Remote || b.Branches[1].Upstream != "origin/main" {
		t.Errorf("%+v, %v", b, err)
	}
	if head, err = r.Checkout(ctx, git.Checkout{Ref: head.Commit}); err != nil || head.Branch != "" {
		t.Errorf("a commit: %+v, %v", head, err)
	}
	if b, err = r.Branches(ctx); err != nil || b.Current != "" {
		t.Errorf("detached: %+v, %v", b, err)
	}
	h.git("work", "checkout", "-q", "feature/x")
	h.write("work/a.txt", "mine\n")
	h.git("work", "commit", "-qam", "mine")
	h.write("work/a.txt", "not committed\n")
	for what, c := range map[string]struct {
		c    git.Checkout
		code sandbox.Code
	}{
		"over changes":    {git.Checkout{Ref: "main"}, sandbox.Conflict},
		"no such":         {git.Checkout{Ref: "none"}, sandbox.NotFound},
		"a file":          {git.Checkout{Ref: "a.txt"}, sandbox.NotFound},
		"that exists":     {git.Checkout{Ref: "main", Create: true}, sandbox.Conflict},
		"from nowhere":    {git.Checkout{Ref: "y", Create: true, Start: "none"}, sandbox.NotFound},
		"an option":       {git.Checkout{Ref: "--orphan"}, sandbox.Invalid},
		"start an option": {git.Checkout{Ref: "y", Create: true, Start: "--force"}, sandbox.Invalid},
		"no name":         {git.Checkout{Ref: "a..b", Create: true}, sandbox.Invalid},
		"a space":         {git.Checkout{Ref: "a b"}, sandbox.Invalid},
		"empty":           {git.Checkout{}, sandbox.Invalid},
		"start alone":     {git.Checkout{Ref: "main", Start: "main"}, sandbox.Invalid},
		"long":            {git.Checkout{Ref: strings.Repeat("x", 1025)}, sandbox.Invalid},
	} {
		_, err := r.Checkout(ctx, c.c)
		wants(t, what, err, c.code)
	}
	if got := h.read("work/a.txt"); got != "not committed\n" {
		t.Errorf("the file is now %q", got)
	}
	for _, path := range []string{"none", "."} {
		_, err := h.repo(path).Status(ctx)
		wants(t, path, err, sandbox.NotFound)
	}
}

func TestPullAndPush(t *testing.T) {
	h := newHere(t)
	h.origin()
	ctx := t.Context()
	r := h.repo("work")
	first, err := r.Clone(ctx, git.Clone{URL: h.home + "/origin.git", Timeout: 60e9})
	if err != nil {
		t.Fatal(err)
	}
	pull := func(p git.Pull, code sandbox.Code, updated bool) git.Head {
		t.Helper()
		p.Timeout = 60e9
		head, got, err := r.Pull(ctx, p)
		wants(t, "pull", err, code)
		if got != updated {
			t.Errorf("pull: updated is %v", got)
		}
		return head
	}
	pull(git.Pull{}, "", false)
	h.advance("c.txt", "c\n")
	if head := pull(git.Pull{}, "", true); head.Commit == first.Commit || h.read("work/c.txt") != "c\n" {
		t.Errorf("pulled %+v", head)
	}
	h.write("work/mine.txt", "m\n")
	h.git("work", "add", ".")
	h.git("work", "commit", "-qm", "mine")
	h.advance("d.txt", "d\n")
	_, err = r.Push(ctx, git.Push{Timeout: 60e9})
	wants(t, "push what is behind", err, sandbox.Conflict)
	pull(git.Pull{Rebase: true, Remote: "origin", Branch: "main"}, "", true)
	pushed, err := r.Push(ctx, git.Push{Timeout: 60e9})
	if err != nil || pushed.Branch != "main" || pushed.Remote != "origin" || h.git("origin.git", "rev-parse", "main") != pushed.Commit {
		t.Errorf("pushed %+v, %v", pushed, err)
	}
	// Both change the same line: nothing is left half merged.
	h.advance("a.txt", "theirs\n")
	h.write("work/a.txt", "ours\n")
	h.git("work", "commit", "-qam", "ours")
	for _, rebase := range []bool{false, true} {
		pull(git.Pull{Rebase: rebase}, sandbox.Conflict, false)
		if s, err := r.Status(ctx); err != nil || len(s.Files) != 0 || s.Branch != "main" || h.read("work/a.txt") != "ours\n" {
			t.Errorf("after a conflict: %+v, %v", s, err)
		}
	}
	// A merge of the user's own is left alone.
	_ = h.command(ctx, h.home+"/work", "git", "merge", "-q", "origin/main").Run()
	pull(git.Pull{}, sandbox.Conflict, false)
	if s, err := r.Status(ctx); err != nil || len(s.Files) != 1 || s.Files[0].Index != git.Unmerged {
		t.Errorf("in a merge: %+v, %v", s, err)
	}
	h.git("work", "merge", "--abort")
	_, err = r.Push(ctx, git.Push{Force: true, SetUpstream: true, Timeout: 60e9})
	wants(t, "force", err, "")
	for what, p := range map[string]struct {
		p    git.Push
		code sandbox.Code
	}{
		"no such branch": {git.Push{Branch: "none"}, sandbox.NotFound},
		"no such remote": {git.Push{Remote: "none"}, sandbox.NotFound},
		"an option":      {git.Push{Remote: "--mirror"}, sandbox.Invalid},
		"a url":          {git.Push{Remote: "https://example.com/x"}, sandbox.Invalid},
		"a refspec":      {git.Push{Branch: "main:other"}, sandbox.Invalid},
	} {
		_, err := r.Push(ctx, p.p)
		wants(t, what, err, p.code)
	}
	h.git("work", "checkout", "-qb", "alone")
	pull(git.Pull{}, sandbox.Conflict, false)
	pull(git.Pull{Remote: "origin", Branch: "none"}, sandbox.NotFound, false)
	pull(git.Pull{Remote: "origin", Branch: "-x"}, sandbox.Invalid, false)
	h.git("work", "checkout", "-q", "--detach")
	pull(git.Pull{}, sandbox.Conflict, false)
	_, err = r.Push(ctx, git.Push{})
	wants(t, "push nothing", err, sandbox.Conflict)
}

// server serves the origin over HTTP to who has the password, and looks around
// at each request while git is running.
func (h *here) server(t *testing.T) *httptest.Server {
	t.Helper()
	exe, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path: strings.TrimSpace(string(exe)) + "/git-http-backend", Root: "/",
		Env:    []string{"GIT_PROJECT_ROOT=" + h.home, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + h.home, "REMOTE_USER=ada"},
		Stderr: io.Discard,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "ada" || password != secret {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		for _, what := range []string{"cmdline", "environ"} {
			files, _ := filepath.Glob("/proc/[0-9]*/" + what)
			for _, f := range files {
				if data, _ := os.ReadFile(f); bytes.Contains(data, []byte(secret)) {
					t.Errorf("the password is in %s: %q", f, data)
				}
			}
		}
		r.Header.Del("Authorization") // it would be in the environment of the server's own git
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv
}

func TestCredentials(t *testing.T) {
	h := newHere(t)
	h.origin()
	srv := h.server(t)
	ctx := t.Context()
	// Hooks and helpers that would store the password.
	h.write("hooks/reference-transaction", "#!/bin/sh\ncat <&3 >>'"+h.home+"/leak' 2>/dev/null\nenv >>'"+h.home+"/leak'\n")
	for _, hook := range []string{"post-checkout", "pre-push", "post-merge"} {
		h.write("hooks/"+hook, h.read("hooks/reference-transaction"))
	}
	h.git(".", "config", "--global", "core.hooksPath", h.home+"/hooks")
	h.git(".", "config", "--global", "credential.helper", "store")
	h.git(".", "config", "--global", "credential."+srv.URL+".helper", "store --file="+h.home+"/kept")
	ada := &git.Credentials{Username: "ada", Password: secret}
	url := srv.URL + "/origin.git"
	host := strings.TrimPrefix(srv.URL, "http://")

	for what, tt := range map[string]struct {
		c    *git.Credentials
		url  string
		code sandbox.Code
	}{
		"none":          {nil, url, sandbox.Denied},
		"wrong":         {&git.Credentials{Username: "ada", Password: "wrong"}, url, sandbox.Denied},
		"another host":  {&git.Credentials{Username: "ada", Password: secret, Host: "git.example"}, url, sandbox.Denied},
		"not over http": {ada, h.home + "/origin.git", sandbox.Invalid},
		"in the url":    {nil, strings.Replace(url, "http://", "http://ada:x@", 1), sandbox.Invalid},
		"not there":     {ada, srv.URL + "/none.git", sandbox.NotFound},
	} {
		_, err := h.repo("refused").Clone(ctx, git.Clone{URL: tt.url, Credentials: tt.c, Timeout: 60e9})
		wants(t, what, err, tt.code)
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the password is in %v", what, err)
		}
	}
	r := h.repo("work")
	if _, err := r.Clone(ctx, git.Clone{URL: url, Branch: "main", Credentials: ada, Timeout: 60e9}); err != nil {
		t.Fatal(err)
	}
	h.advance("c.txt", "c\n")
	ada.Host = host
	if _, updated, err := r.Pull(ctx, git.Pull{Credentials: ada, Timeout: 60e9}); err != nil || !updated {
		t.Errorf("pull: %v, %v", updated, err)
	}
	h.write("work/mine.txt", "m\n")
	h.git("work", "add", ".")
	h.git("work", "commit", "-qm", "mine")
	if _, err := r.Push(ctx, git.Push{Credentials: ada, Timeout: 60e9}); err != nil {
		t.Errorf("push: %v", err)
	}
	// The repository now leads elsewhere.
	h.git("work", "remote", "set-url", "origin", "http://git.example:1/origin.git")
	_, err := r.Push(ctx, git.Push{Credentials: ada, Timeout: 60e9})
	wants(t, "push elsewhere", err, sandbox.Denied)
	h.git("work", "remote", "set-url", "origin", url)
	_, _, err = r.Pull(ctx, git.Pull{Timeout: 60e9})
	wants(t, "pull without", err, sandbox.Denied)

	err = filepath.WalkDir(h.home, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("the password is in %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, run := range h.runs {
		if strings.Contains(strings.Join(run.Args, " "), secret) {
			t.Errorf("the password is in the arguments %q", run.Args)
		}
		for name, value := range run.Env {
			if strings.Contains(value, secret) {
				t.Errorf("the password is in the environment as %s", name)
			}
		}
	}
}

// A server that leads elsewhere does not get the password there.
func TestCredentialsAreNotSentOn(t *testing.T) {
	h := newHere(t)
	asked := 0
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("Authorization") != "" {
			t.Errorf("it was given %q", r.Header.Get("Authorization"))
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer thief.Close()
	leads := httptest.NewServer(http.RedirectHandler(thief.URL+"/x.git/info/refs?service=git-upload-pack", http.StatusFound))
	defer leads.Close()
	_, err := h.repo("work").Clone(t.Context(), git.Clone{
		URL: leads.URL + "/x.git", Credentials: &git.Credentials{Username: "ada", Password: secret}, Timeout: 60e9,
	})
	wants(t, "clone", err, sandbox.Denied)
	if asked == 0 {
		t.Error("nobody was led anywhere")
	}
}

// echoing is a Guest whose git repeats the password on the stream that it reports on.
type echoing struct {
	git.Runner
	stdout, stderr string
}

func (e echoing) Run(_ context.Context, _ execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	err := handle(execution.RunEvent{Stdout: []byte(e.stdout), Stderr: []byte(e.stderr)})
	return execution.RunEnd{Status: execution.StatusOK, ExitCode: 1}, err
}

func (echoing) Programs(_ context.Context, names []string) ([]string, error) { return names, nil }

// A password is not in an error, on whichever stream a program of the Sandbox writes it.
func TestCredentialsAreNotInErrors(t *testing.T) {
	for name, guest := range map[string]echoing{
		"standard output": {stdout: "error: refused " + secret + "\n"}, "standard error": {stderr: "fatal: refused " + secret + "\n"},
	} {
		repo := git.Repo{Guest: guest, Path: "/workspace"}
		_, err := repo.Clone(t.Context(), git.Clone{URL: "https://git.example/x.git", Credentials: &git.Credentials{Username: "ada", Password: secret}, Timeout: 60e9})
		if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "refused ***") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
