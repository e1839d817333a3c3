package builder

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// world is a Service whose builds do what the test says.
type world struct {
	t       *testing.T
	dir     string
	service *Service
	asked   chan *asked
}

// asked is a build under way; it ends when the test answers.
type asked struct {
	recipe  template.Recipe
	content string
	output  io.Writer
	say     func(template.Progress)
	answer  chan error
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), asked: make(chan *asked)}
	w.open()
	t.Cleanup(func() { w.service.Close() })
	return w
}

// open starts the Service, as after a restart when there was one before.
func (w *world) open() {
	w.t.Helper()
	store, err := template.Open(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.service, err = Open(Config{Store: store, Log: slog.New(slog.DiscardHandler)}); err != nil {
		w.t.Fatal(err)
	}
	w.service.run = func(ctx context.Context, b *template.Builder, _ template.Ref, r template.Recipe, content io.Reader, say func(template.Progress)) (template.Image, error) {
		a := &asked{recipe: r, output: b.Output, say: say, answer: make(chan error)}
		if content != nil {
			body, err := io.ReadAll(content)
			if err != nil {
				return template.Image{}, err
			}
			a.content = string(body)
		}
		select {
		case w.asked <- a:
		case <-ctx.Done():
			return template.Image{}, ctx.Err()
		}
		select {
		case err := <-a.answer:
			return template.Image{Digest: strings.Repeat("ab", 32), Size: 7}, err
		case <-ctx.Done():
			return template.Image{}, ctx.Err()
		}
	}
}

func (w *world) build(tenant sandbox.TenantID, name string) sandbox.TemplateBuild {
	w.t.Helper()
	b, err := w.service.Build(w.t.Context(), tenant, sandbox.Quota{}, sandbox.TemplateRequest{Template: name, Source: "debian:bookworm"}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// ended waits for the end of a build.
func (w *world) ended(b sandbox.TemplateBuild) sandbox.TemplateBuild {
	w.t.Helper()
	found, err := w.service.find(b.Tenant, b.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	<-found.done
	return found.snapshot()
}

func (w *world) log(b sandbox.TemplateBuild, from int64) (lines []string, last int64) {
	w.t.Helper()
	err := w.service.BuildLog(w.t.Context(), b.Tenant, b.ID, from, false, func(l sandbox.BuildLine) error {
		lines, last = append(lines, l.Text), l.Next
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return lines, last
}

func TestBuildAndLog(t *testing.T) {
	w := newWorld(t)
	b, err := w.service.Build(t.Context(), "me", sandbox.Quota{}, sandbox.TemplateRequest{Template: "web:1", Source: "tar:", Env: map[string]string{"A": "b"}}, strings.NewReader("an archive"))
	if err != nil || b.State != sandbox.BuildQueued && b.State != sandbox.BuildRunning || b.Template != "web:1" {
		t.Fatalf("%+v, %v", b, err)
	}
	a := <-w.asked
	if a.content != "an archive" || a.recipe.Env["A"] != "b" {
		t.Errorf("made of %q and %+v", a.content, a.recipe)
	}
	followed := make(chan []string, 1)
	go func() {
		var lines []string
		err := w.service.BuildLog(t.Context(), "me", b.ID, 0, true, func(l sandbox.BuildLine) error {
			lines = append(lines, l.Text)
			return nil
		})
		if err != nil {
			lines = append(lines, err.Error())
		}
		followed <- lines
	}()
	a.say(template.Progress{Stage: "unpack", Detail: "files", Done: 500})
	a.say(template.Progress{Stage: "unpack", Detail: "files", Done: 1000})
	fmt.Fprint(a.output, "one\r\n\ntwo and ")
	fmt.Fprint(a.output, "a half\n"+strings.Repeat("x", 3*maxLine)+"\n\xff\n")
	if now, err := w.service.BuildByID(t.Context(), "me", b.ID); err != nil || now.State != sandbox.BuildRunning || now.Progress != "unpack: files 1000" {
		t.Errorf("meanwhile: %+v, %v", now, err)
	}
	a.answer <- nil
	done := w.ended(b)
	if done.State != sandbox.BuildReady || done.Version != strings.Repeat("ab", 32) || done.SizeBytes != 7 || done.EndedAt.Before(done.StartedAt) {
		t.Errorf("ended as %+v", done)
	}
	lines, last := w.log(b, 0)
	want := []string{"unpack: files", "one", "two and a half"}
	if len(lines) < 6 || strings.Join(lines[:3], "|") != strings.Join(want, "|") || lines[len(lines)-2] != "\uFFFD" || lines[len(lines)-1] != "ready: version "+done.Version {
		t.Errorf("the log is %.100q", lines)
	}
	if got := <-followed; strings.Join(got, "|") != strings.Join(lines, "|") {
		t.Errorf("followed: %.100q", got)
	}
	if rest, _ := w.log(b, last); rest != nil {
		t.Errorf("after the end: %q", rest)
	}
	for _, from := range []int64{-1, 1, last + 1} {
		if err := w.service.BuildLog(t.Context(), "me", b.ID, from, false, func(sandbox.BuildLine) error { return nil }); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("from %d: %v", from, err)
		}
	}

	w.service.Close()
	w.open()
	if again, err := w.service.BuildByID(t.Context(), "me", b.ID); err != nil || again.Version != done.Version {
		t.Errorf("after a restart: %+v, %v", again, err)
	}
	if again, _ := w.log(b, 0); len(again) != len(lines) {
		t.Errorf("the log after a restart: %.100q", again)
	}
}

func TestFailuresAreTold(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		err  error
		code sandbox.Code
		says string
	}{
		{sandbox.Errorf(sandbox.Invalid, "no /bin/sh"), sandbox.Invalid, "no /bin/sh"},
		{fmt.Errorf("a step: %w", &template.RunError{Program: "apt-get", Err: errors.New("exit status 100"), Output: "no package nonsense"}), sandbox.Invalid, "no package nonsense"},
		{errors.New("/var/secret: broken"), sandbox.Internal, "its log"},
	} {
		b := w.build("me", "web")
		(<-w.asked).answer <- tt.err
		done := w.ended(b)
		if done.State != sandbox.BuildFailed || done.Failure.Code != tt.code || !strings.Contains(done.Failure.Message, tt.says) || strings.Contains(done.Failure.Message, "secret") {
			t.Errorf("%v: %+v, %+v", tt.err, done, done.Failure)
		}
	}
}

// Waiting and running builds can be cancelled, but not builds of other tenants.
func TestCancelAndBounds(t *testing.T) {
	w := newWorld(t)
	var all []sandbox.TemplateBuild
	for range maxTenant {
		all = append(all, w.build("me", "web"))
	}
	<-w.asked
	<-w.asked // as many as may run; the others wait
	if _, err := w.service.Build(t.Context(), "me", sandbox.Quota{}, sandbox.TemplateRequest{Template: "x", Source: "debian:bookworm"}, nil); !errors.Is(err, sandbox.Exhausted) {
		t.Errorf("one too many: %v", err)
	}
	other := w.build("you", "web")
	for _, tenant := range []sandbox.TenantID{"me", ""} {
		if _, err := w.service.CancelBuild(t.Context(), tenant, other.ID); !errors.Is(err, sandbox.NotFound) {
			t.Errorf("%q cancels another's: %v", tenant, err)
		}
	}
	if own, err := w.service.Builds(t.Context(), "you"); err != nil || len(own) != 1 {
		t.Errorf("another's builds: %+v, %v", own, err)
	}
	for i := len(all) - 1; i >= 0; i-- { // those that wait first
		b, err := w.service.CancelBuild(t.Context(), "me", all[i].ID)
		if err != nil || b.State != sandbox.BuildCancelled {
			t.Errorf("cancelled: %+v, %v", b, err)
		}
		if _, err := w.service.CancelBuild(t.Context(), "me", all[i].ID); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("cancelled again: %v", err)
		}
	}
	(<-w.asked).answer <- nil // the other's turn
	if done := w.ended(other); done.State != sandbox.BuildReady {
		t.Errorf("another's: %+v", done)
	}
	for range keptBuilds + 5 {
		b := w.build("many", "web")
		(<-w.asked).answer <- nil
		w.ended(b)
	}
	if kept, err := w.service.Builds(t.Context(), "many"); err != nil || len(kept) > keptBuilds+1 {
		t.Errorf("%d builds are kept, %v", len(kept), err)
	}
}

// A build that was under way when the process ended has failed, and says so.
func TestKilledBuilder(t *testing.T) {
	w := newWorld(t)
	b := w.build("me", "web")
	<-w.asked
	found, err := w.service.find("me", b.ID)
	if err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(found.path + recordSuffix)
	if err != nil {
		t.Fatal(err)
	}
	w.service.Close()
	for name, body := range map[string][]byte{
		b.ID + recordSuffix: record, "tbad0000000000000000x" + recordSuffix: []byte("{"), "left" + archiveSuffix: nil, b.ID + ".new": nil,
	} {
		if err := os.WriteFile(filepath.Join(w.service.dir, name), body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.open()
	again, err := w.service.BuildByID(t.Context(), "me", b.ID)
	if err != nil || again.State != sandbox.BuildFailed || again.Failure == nil || !strings.Contains(again.Failure.Message, "again") {
		t.Errorf("after a kill: %+v, %v", again, err)
	}
	if _, err := w.service.CancelBuild(t.Context(), "me", b.ID); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("cancelling it: %v", err)
	}
	if files, err := os.ReadDir(w.service.dir); err != nil || len(files) > 2 {
		t.Errorf("left: %v, %v", files, err)
	}
}

func TestBuildRefuses(t *testing.T) {
	w := newWorld(t)
	for name, tt := range map[string]struct {
		tenant  sandbox.TenantID
		req     sandbox.TemplateRequest
		archive io.Reader
		want    error
	}{
		"nobody":              {"", sandbox.TemplateRequest{Template: "x", Source: "debian:bookworm"}, nil, sandbox.Invalid},
		"a bad name":          {"me", sandbox.TemplateRequest{Template: "../x", Source: "debian:bookworm"}, nil, sandbox.Invalid},
		"a version":           {"me", sandbox.TemplateRequest{Template: "x@" + strings.Repeat("0", 64), Source: "debian:bookworm"}, nil, sandbox.Invalid},
		"the server's own":    {"me", sandbox.TemplateRequest{Template: "base", Source: "debian:bookworm"}, nil, sandbox.Denied},
		"a file of here":      {"me", sandbox.TemplateRequest{Template: "x", Source: "tar:/etc/x.tar"}, nil, sandbox.Denied},
		"a folder of here":    {"me", sandbox.TemplateRequest{Template: "x", Source: "dir:/etc"}, nil, sandbox.Denied},
		"foreign programs":    {"me", sandbox.TemplateRequest{Template: "x", Source: "oci:python:3"}, nil, sandbox.Denied},
		"no archive":          {"me", sandbox.TemplateRequest{Template: "x", Source: "tar:"}, nil, sandbox.Invalid},
		"an archive too many": {"me", sandbox.TemplateRequest{Template: "x", Source: "debian:bookworm"}, strings.NewReader("x"), sandbox.Invalid},
		"another source":      {"me", sandbox.TemplateRequest{Template: "x", Source: "ftp:x"}, nil, sandbox.Invalid},
		"a bad mode":          {"me", sandbox.TemplateRequest{Template: "x", Source: "debian:bookworm", Files: []sandbox.TemplateFile{{Path: "/a", Mode: 0o4755}}}, nil, sandbox.Invalid},
		"a bad path":          {"me", sandbox.TemplateRequest{Template: "x", Source: "debian:bookworm", Files: []sandbox.TemplateFile{{Path: "../a"}}}, nil, sandbox.Invalid},
		"a broken upload":     {"me", sandbox.TemplateRequest{Template: "x", Source: "tar:"}, broken{}, sandbox.Unavailable},
	} {
		if _, err := w.service.Build(t.Context(), tt.tenant, sandbox.Quota{}, tt.req, tt.archive); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	if files, err := os.ReadDir(w.service.dir); err != nil || len(files) != 0 {
		t.Errorf("left: %v, %v", files, err)
	}
}

// unbounded has no quota for anybody.
type unbounded struct{}

func (unbounded) TenantQuota(context.Context, sandbox.TenantID) (q sandbox.Quota, err error) {
	return q, nil
}

// bounded has one for all.
type bounded int64

func (b bounded) TenantQuota(context.Context, sandbox.TenantID) (sandbox.Quota, error) {
	return sandbox.Quota{TemplateBytes: int64(b)}, nil
}

// brought is a Store with an image of n bytes without a name.
func brought(t *testing.T, dir string, n int) (*template.Store, string) {
	t.Helper()
	store, err := template.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	digest := strings.Repeat("0a", 32)
	path := filepath.Join(dir, "images", digest+".erofs")
	for _, folder := range []string{filepath.Dir(path), filepath.Join(dir, "locks"), filepath.Join(dir, "tenants")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(bytes.Repeat([]byte("x"), n))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil { // blocks are given at a sync
		t.Fatal(err)
	}
	return store, digest
}

// A quota that is used up is a refusal before anything is sent, and one that turns
// out too small says so over the socket.
func TestQuotaOverTheSocket(t *testing.T) {
	w := newWorld(t)
	w.service.Close()
	store, digest := brought(t, w.dir, 2<<20)
	socket := filepath.Join(w.dir, "s")
	serve(t, w.service.cfg, socket)
	tight := NewClient(store, bounded(1<<20), socket)
	defer tight.Close()
	if err := tight.Admit(t.Context(), "me", digest); !errors.Is(err, sandbox.ErrOverQuota) {
		t.Errorf("admitted: %v", err)
	}
	err := tight.Keep(t.Context(), "me", "web", digest)
	if !errors.Is(err, sandbox.ErrOverQuota) || sandbox.CodeOf(err) != sandbox.Exhausted || !strings.Contains(err.Error(), "1 MiB left, and this one has 2 MiB") {
		t.Errorf("kept: %v", err)
	}
	wide := NewClient(store, bounded(2<<20), socket)
	defer wide.Close()
	if err := wide.Keep(t.Context(), "me", "web", digest); err != nil {
		t.Error(err)
	}
	if n, err := wide.StoredBytes(t.Context(), "me"); err != nil || n != 2<<20 {
		t.Errorf("stored: %d, %v", n, err)
	}
	_, err = wide.Build(t.Context(), "me", sandbox.TemplateRequest{Template: "t", Source: "tar:"}, broken{})
	if !errors.Is(err, sandbox.ErrOverQuota) || !strings.Contains(err.Error(), "used up") {
		t.Errorf("a build: %v", err)
	}
	if all, err := wide.Builds(t.Context(), "me"); err != nil || len(all) != 0 {
		t.Errorf("builds: %+v, %v", all, err)
	}
	if err := wide.Drop(t.Context(), digest); err != nil {
		t.Error(err)
	}
	gone, err := wide.Remove(t.Context(), "me", "web")
	if err != nil || len(gone.Names) != 1 || gone.FreedBytes != 2<<20 {
		t.Errorf("removed %+v, %v", gone, err)
	}
}

// A second builder of a folder says that it waits, and serves when the first ended.
func TestSecondBuilderWaits(t *testing.T) {
	w := newWorld(t)
	cfg, socket := w.service.cfg, filepath.Join(w.dir, "s")
	w.service.Close()
	release, err := cfg.Store.LockBuilds(t.Context(), func() { t.Error("the first one waits") })
	if err != nil {
		t.Fatal(err)
	}
	said := make(lines, 1)
	cfg.Log = slog.New(slog.NewTextHandler(said, nil))
	go func() {
		defer release()
		if line := <-said; !strings.Contains(line, "no template can be built yet: another builder") {
			t.Errorf("logged: %s", line)
		}
		if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the second listens beside the first: %v", err)
		}
	}()
	serve(t, cfg, socket)
}

// lines sends what is written to it.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, sandbox.Errorf(sandbox.Unavailable, "broken") }

// The server says the same through the socket.
func TestOverTheSocket(t *testing.T) {
	w := newWorld(t)
	socket := filepath.Join(w.dir, "s")
	store, err := template.Open(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(store, unbounded{}, socket)
	defer c.Close()
	if _, err := c.Builds(t.Context(), "me"); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("without a builder: %v", err)
	}
	w.service.Close()
	serve(t, w.service.cfg, socket)
	tenant := sandbox.TenantID("a tenant & more=1")
	files := []sandbox.TemplateFile{{Path: "/a", Content: bytes.Repeat([]byte("\n"), 200<<10), Mode: 0o755}}
	b, err := c.Build(t.Context(), tenant, sandbox.TemplateRequest{Template: "t", Source: "tar:", Files: files}, strings.NewReader("not an archive"))
	if err != nil || b.Tenant != tenant {
		t.Fatalf("%+v, %v", b, err)
	}
	var lines []string
	err = c.BuildLog(t.Context(), tenant, b.ID, 0, true, func(l sandbox.BuildLine) error {
		lines = append(lines, l.Text)
		return nil
	})
	if err != nil || len(lines) == 0 || !strings.HasPrefix(lines[len(lines)-1], "failed: ") {
		t.Errorf("the log: %q, %v", lines, err)
	}
	if b, err = c.BuildByID(t.Context(), tenant, b.ID); err != nil || b.State != sandbox.BuildFailed || b.Failure == nil {
		t.Errorf("%+v, %v", b, err)
	}
	if all, err := c.Builds(t.Context(), tenant); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if all, err := c.Ended(t.Context(), b.EndedAt); err != nil || len(all) != 1 || all[0].ID != b.ID || all[0].Tenant != tenant {
		t.Errorf("ended %+v, %v", all, err)
	}
	if all, err := c.Ended(t.Context(), b.EndedAt.Add(time.Nanosecond)); err != nil || len(all) != 0 {
		t.Errorf("ended later %+v, %v", all, err)
	}
	for name, err := range map[string]error{
		"another's": func() error { _, err := c.BuildByID(t.Context(), "other", b.ID); return err }(),
		"a path":    func() error { _, err := c.BuildByID(t.Context(), tenant, "../x"); return err }(),
		"its log":   c.BuildLog(t.Context(), "other", b.ID, 0, false, func(sandbox.BuildLine) error { return nil }),
		"a name":    func() error { _, err := c.Remove(t.Context(), tenant, "none"); return err }(),
		"no image": func() error {
			_, err := c.Reuse(t.Context(), tenant, "none", sandbox.Template{Name: "t", Tag: "x"})
			return err
		}(),
	} {
		if !errors.Is(err, sandbox.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.CancelBuild(t.Context(), tenant, b.ID); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("cancelling what is over: %v", err)
	}
	if err := c.BuildLog(t.Context(), tenant, b.ID, 3, false, func(sandbox.BuildLine) error { return nil }); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("a bad offset: %v", err)
	}
	for name, tt := range map[string]struct {
		as   sandbox.Template
		want error
	}{
		"the server's own": {sandbox.Template{Name: "base", Tag: "x"}, sandbox.Denied},
		"no tag":           {sandbox.Template{Name: "t"}, sandbox.Invalid},
		"a bad name":       {sandbox.Template{Name: "../t", Tag: "x"}, sandbox.Invalid},
		"a bad size":       {sandbox.Template{Name: "t", Tag: "x", Defaults: sandbox.TemplateDefaults{CPUs: -1}}, sandbox.Invalid},
		"long words":       {sandbox.Template{Name: "t", Tag: "x", Build: strings.Repeat("b", maxBuild+1)}, sandbox.Invalid},
	} {
		if _, err := c.Reuse(t.Context(), tenant, "none", tt.as); !errors.Is(err, tt.want) {
			t.Errorf("reused as %s: %v", name, err)
		}
	}
	if _, err := c.Build(t.Context(), tenant, sandbox.TemplateRequest{Template: "t", Source: "tar:"}, broken{}); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("a broken upload: %v", err)
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(`{"Template":"t","Source":"tar:"}` + "\narchive"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := readRequest(bufio.NewReader(bytes.NewReader(body)))
		if err != nil {
			return
		}
		_, recipe, err := recipeOf("me", req, false)
		if err == nil && recipe.Check() != nil {
			t.Errorf("%q is accepted and cannot be built", body)
		}
	})
}

// serve runs a builder at a socket until the test ends.
func serve(t *testing.T, cfg Config, socket string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served, listening := make(chan error, 1), make(chan struct{})
	go func() {
		served <- Serve(ctx, cfg, func() (net.Listener, error) {
			defer close(listening)
			return Listen(socket, os.Getuid())
		})
	}()
	<-listening
	t.Cleanup(func() {
		stop()
		codetest.OK(t, "Serve", <-served)
	})
}
