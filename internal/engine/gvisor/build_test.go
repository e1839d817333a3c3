package gvisor

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/disk"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// keptBuild puts a build as the earlier one into a store, and returns its content.
func keptBuild(t *testing.T, store builds.Store) (content []byte) {
	t.Helper()
	m := builds.Manifest{Build: earlierBuild, Arch: "amd64"}
	dir := t.TempDir()
	for _, name := range payload.Names() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("content of "+name), 0o755); err != nil {
			t.Fatal(err)
		}
		content = append(content, "content of "+name...)
		m.Programs = append(m.Programs, builds.Program{Name: name, Bytes: int64(len("content of " + name)), SHA256: sumOf("content of " + name)})
	}
	key, _, err := builds.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	signed, err := builds.Sign(m, key)
	if err == nil {
		err = store.Put(t.Context(), signed, dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	return append(content, sentryhost.ImportEnd)
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// A start from a state whose build is not here fetches that build first.
func TestStartFetchesABuild(t *testing.T) {
	dir := t.TempDir()
	store := builds.Store{Blobs: disk.Open(dir)}
	h := newHosts(t)
	h.lacks, h.cfg.Builds = true, &store
	e, err := Open(t.Context(), h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	own, err := e.own.connected(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	name := sandbox.NewSnapshotID()
	refused := func(what, text string) {
		t.Helper()
		if _, err := e.homeOf(t.Context(), own, name); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
	}
	e.cfg.Builds = nil
	refused("without a store", "that build is not here")
	e.cfg.Builds = &store
	refused("a build that is not in the blob store", "neither on this node nor in the blob store")
	content := keptBuild(t, store)
	e.cfg.Earlier.OldestGVisor = "v0.0.0-20300101000000-000000000000"
	refused("a build that the operator forbids", "starts nothing with one older")
	e.cfg.Earlier.OldestGVisor = ""
	h.mu.Lock()
	h.fails[sentryhost.MethodBuild] = 1
	h.mu.Unlock()
	refused("the sentry host refuses", errFails.Error())
	piece, err := filepath.Glob(filepath.Join(dir, "builds", "programs", "*"))
	if err != nil || len(piece) != len(payload.Names()) {
		t.Fatalf("%v, %v", piece, err)
	}
	whole, err := os.ReadFile(piece[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(piece[0], whole[1:], 0o600); err != nil {
		t.Fatal(err)
	}
	refused("a truncated program", "upload it again")
	if err := os.WriteFile(piece[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.loses = true
	h.mu.Unlock()
	refused("a build that is removed at once", "not here any more")
	h.mu.Lock()
	h.loses, h.taken = false, nil
	h.mu.Unlock()

	var starts sync.WaitGroup
	for range 4 {
		starts.Go(func() {
			home, err := e.homeOf(t.Context(), own, name)
			if err != nil || home.Build != earlierBuild {
				t.Errorf("%+v, %v", home, err)
			}
		})
	}
	starts.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, got := range h.taken {
		if !bytes.Equal(got, content) {
			t.Errorf("it took %q", got)
		}
	}
	if len(h.taken) == 0 {
		t.Error("it took nothing")
	}
}

// A state of the own build, or of files alone, needs no other build, and none is fetched.
func TestImportsThatNeedNoBuild(t *testing.T) {
	h := newHosts(t)
	h.cfg.Builds = &builds.Store{Blobs: disk.Open(t.TempDir())}
	e, err := Open(t.Context(), h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	own, err := e.own.connected(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []sentryhost.Manifest{{Build: earlierBuild}, {Memory: true, Build: own.Info.Build}} {
		if err := e.bringBuild(t.Context(), own, sentryhost.ImportRequest{}, m); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	other := sentryhost.Manifest{Memory: true, Build: earlierBuild}
	if err := e.bringBuild(t.Context(), own, sentryhost.ImportRequest{}, other); !errors.Is(err, sandbox.Unsupported) {
		t.Errorf("a sentry host that cannot say what it lacks: %v", err)
	}
}

// The sentry host gets the key of builds, and each later one once.
func TestBuildKeysArePassedOn(t *testing.T) {
	passed := make(chan installation.BuildKey, 8)
	h := newHosts(t)
	h.keys = passed
	authority := installation.Open(t.TempDir())
	key, err := authority.Own()
	if err != nil {
		t.Fatal(err)
	}
	var now atomic.Int64
	h.cfg.BuildKey = func() []byte {
		if now.Load() == 0 {
			return nil
		}
		b, err := authority.CertifyBuildKey("prod", now.Load(), key)
		if err != nil {
			t.Error(err)
		}
		raw, err := json.Marshal(b)
		if err != nil {
			t.Error(err)
		}
		return raw
	}
	now.Store(1)
	e, err := Open(t.Context(), h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, want := range []int64{1, 2} {
		now.Store(want)
		select {
		case got := <-passed:
			if got.Number != want || got.Key != key {
				t.Errorf("it got %+v, want number %d", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("number %d was not passed on", want)
		}
	}
}
