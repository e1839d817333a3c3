package server

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// buildRig is a sentry host of a cluster, and an earlier build that is elsewhere.
type buildRig struct {
	*Host
	authority *installation.Keys
	request   sentryhost.BuildRequest
	content   []byte // of the pipe
	sign      func(name string) []byte
}

func newBuildRig(t *testing.T) *buildRig {
	t.Helper()
	h := portHost(t)
	h.log, h.trusted = slog.New(slog.NewTextHandler(io.Discard, nil)), map[string]installation.Key{}
	lib := filepath.Join(filepath.Dir(h.cfg.Saved), "lib")
	must(t, os.Mkdir(lib, 0o755))
	h.cfg.SidecarDir = filepath.Join(lib, "build")
	r := &buildRig{Host: h, authority: installation.Open(t.TempDir())}
	own, err := h.keys.Own()
	must(t, err)
	m, err := r.authority.Certify("prod", "n", own)
	must(t, err)
	must(t, h.keys.Enlist(m))

	elsewhere := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	for name, content := range map[string][]byte{payload.Sentry: self, payload.Link: []byte("link"), payload.GuestImage: []byte("guest")} {
		must(t, os.WriteFile(filepath.Join(elsewhere, name), content, 0o755))
	}
	manifest, err := builds.Read(elsewhere)
	must(t, err)
	for _, p := range manifest.Programs {
		content, err := os.ReadFile(filepath.Join(elsewhere, p.Name))
		must(t, err)
		r.content = append(r.content, content...)
	}
	r.content = append(r.content, sentryhost.ImportEnd)
	key, _, err := builds.NewKey()
	must(t, err)
	stranger, _, err := builds.NewKey()
	must(t, err)
	r.sign = func(name string) []byte {
		with := key
		if name == "stranger" {
			with = stranger
		}
		s, err := builds.Sign(manifest, with)
		must(t, err)
		raw, err := s.Marshal()
		must(t, err)
		return raw
	}
	r.request = sentryhost.BuildRequest{Build: manifest.Build, Signed: r.sign("ours")}
	stated, err := r.authority.CertifyBuildKey("prod", 1, builds.PublicOf(key))
	must(t, err)
	must(t, h.setBuildKey(stated))
	return r
}

// give sends a build through a pipe.
func (r *buildRig) give(t *testing.T, req sentryhost.BuildRequest, content []byte) error {
	t.Helper()
	out, in, err := os.Pipe()
	must(t, err)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(in, bytes.NewReader(content)) // the other end may refuse it
		in.Close()
	}()
	err = r.takeBuild(t.Context(), req, &fdrpc.Request{Files: []*os.File{out}})
	<-sent
	return err
}

// A build is taken once, if the key of the cluster signed it.
func TestTakeBuild(t *testing.T) {
	r := newBuildRig(t)
	lib := filepath.Dir(r.cfg.SidecarDir)
	stolen := r.request
	stolen.Signed = r.sign("stranger")
	unsigned := r.request
	unsigned.Signed = nil
	path := r.request
	path.Build = "../lib"
	for name, tt := range map[string]struct {
		req     sentryhost.BuildRequest
		content []byte
		want    string
	}{
		"of a stranger":       {stolen, r.content, "another key"},
		"without a signature": {unsigned, r.content, "cannot be read"},
		"a path":              {path, r.content, "cannot be read"},
		"cut off":             {r.request, r.content[:len(r.content)-3], "guest.erofs differs"},
		"altered":             {r.request, append([]byte{0}, r.content[1:]...), "gvisor_sentry differs"},
		"with something more": {r.request, append(bytes.Clone(r.content), 'x'), "damaged"},
	} {
		err := r.give(t, tt.req, tt.content)
		if !errors.Is(err, sandbox.Conflict) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if left, err := os.ReadDir(lib); err != nil || len(left) > 0 {
			t.Fatalf("%s: left are %v, %v", name, left, err)
		}
	}
	outside := portHost(t)
	err := (&buildRig{Host: outside}).give(t, r.request, r.content)
	if !errors.Is(err, sandbox.Conflict) || !strings.Contains(err.Error(), "has no key that signs builds") {
		t.Errorf("without a key of builds: %v", err)
	}
	for range 2 { // the second time without a byte
		must(t, r.give(t, r.request, r.content))
		must(t, r.trustBuild(r.request.Build))
		r.content = nil
	}
	for _, name := range payload.Names() {
		if info, err := os.Stat(filepath.Join(lib, r.request.Build, name)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// A state lacks its build until that is here with a signature of the present key. Without a
// key of builds, its programs suffice.
func TestLacks(t *testing.T) {
	r := newBuildRig(t)
	name := stateOf(t, r.Host, true)
	m, _, err := r.readManifest(name)
	must(t, err)
	m.Build = r.request.Build
	if got := r.lacks(m); got != m.Build {
		t.Errorf("it lacks %q", got)
	}
	must(t, r.give(t, r.request, r.content))
	if got := r.lacks(m); got != "" {
		t.Errorf("it lacks %q although that is here", got)
	}
	must(t, os.Remove(filepath.Join(r.buildDir(m.Build), builds.SignatureName)))
	if got := r.lacks(m); got != "" {
		t.Errorf("it lacks %q, which was verified", got)
	}
	next, _, err := builds.NewKey()
	must(t, err)
	stated, err := r.authority.CertifyBuildKey("prod", 2, builds.PublicOf(next))
	must(t, err)
	must(t, r.setBuildKey(stated))
	if got := r.lacks(m); got != m.Build {
		t.Errorf("it lacks %q although the key was replaced", got)
	}
	if err := r.canStart(m); !errors.Is(err, sandbox.Conflict) || !strings.Contains(err.Error(), "not trusted") {
		t.Errorf("an unsigned guest can be started: %v", err)
	}
	forged, err := installation.Open(t.TempDir()).CertifyBuildKey("prod", 3, builds.PublicOf(next))
	must(t, err)
	if err := r.setBuildKey(forged); !errors.Is(err, sandbox.Denied) {
		t.Errorf("another authority's key: %v", err)
	}
	files := *m
	files.Memory = false
	own := *m
	own.Build = r.cfg.Build
	for _, m := range []*sentryhost.Manifest{&files, &own} {
		if got := r.lacks(m); got != "" {
			t.Errorf("a state of build %s, with memory %t, lacks %q", m.Build, m.Memory, got)
		}
	}
	r.keys = installation.Open(t.TempDir())
	if got := r.lacks(m); got != "" {
		t.Errorf("without a key of builds it lacks %q", got)
	}
}

// admit says what a state lacks only to those who may import it.
func TestAdmit(t *testing.T) {
	r := newBuildRig(t)
	from := portHost(t)
	name := stateAs(t, from, func(m *sentryhost.Manifest) { m.Build, m.Engine = r.request.Build, earlierEngine }).Name
	s := exported(t, from, name)
	req := sentryhost.ImportRequest{Name: sandbox.NewSnapshotID(), Proof: s.proof}
	if got, err := r.admit(req); !errors.Is(err, sandbox.Denied) || got.Lacks != "" {
		t.Errorf("of a stranger: %+v, %v", got, err)
	}
	key, err := from.keys.Own()
	must(t, err)
	must(t, r.keys.Trust(key))
	if got, err := r.admit(req); err != nil || got.Lacks != r.request.Build {
		t.Errorf("%+v, %v", got, err)
	}
	must(t, r.give(t, r.request, r.content))
	if got, err := r.admit(req); err != nil || got.Lacks != "" {
		t.Errorf("with the build: %+v, %v", got, err)
	}
}
