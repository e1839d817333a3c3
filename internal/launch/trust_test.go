package launch

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
)

// builtLayout is a data folder with one build, whose programs end at once.
func builtLayout(t *testing.T) (Layout, builds.Manifest) {
	t.Helper()
	l := Layout{Root: t.TempDir()}
	made := filepath.Join(l.Root, "made")
	truth, err := os.ReadFile("/bin/true")
	err = errors.Join(err, os.Mkdir(made, 0o755), os.Mkdir(l.Binaries(), 0o755), os.MkdirAll(l.Saved(), 0o700), os.MkdirAll(l.Logs(), 0o755))
	for _, name := range payload.Names() {
		err = errors.Join(err, os.WriteFile(filepath.Join(made, name), truth, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	m, err := builds.Read(made)
	if err == nil {
		err = os.Rename(made, filepath.Join(l.Binaries(), m.Build))
	}
	if err != nil {
		t.Fatal(err)
	}
	return l, m
}

// A node has the signatures by another key as soon as it has the key.
func TestKeepSigned(t *testing.T) {
	l, m := builtLayout(t)
	member, authority := installation.Open(l.Saved()), installation.Open(t.TempDir())
	own, err := member.Own()
	if err != nil {
		t.Fatal(err)
	}
	certified, err := authority.Certify("prod", "n", own)
	if err == nil {
		err = member.Enlist(certified)
	}
	if err != nil {
		t.Fatal(err)
	}
	var now atomic.Pointer[ed25519.PrivateKey]
	l.signature = func(context.Context, string) ([]byte, error) {
		s, err := builds.Sign(m, *now.Load())
		if err != nil {
			return nil, err
		}
		return s.Marshal()
	}
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.keepSigned(ctx, slog.New(slog.NewTextHandler(&log, nil)))
	}()
	for number := range int64(2) {
		key, _, err := builds.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		now.Store(&key)
		stated, err := authority.CertifyBuildKey("prod", number+1, builds.PublicOf(key))
		if err == nil {
			err = member.UpdateBuildKey(stated)
		}
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(l.Binaries(), m.Build)
		for late := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if err = builds.HasSignature(dir, builds.PublicOf(key)); err == nil || time.Now().After(late) {
				break
			}
		}
		if err != nil {
			t.Fatalf("key %d: %v", number+1, err)
		}
	}
	cancel()
	<-ended
	if log.Len() > 0 {
		t.Errorf("it logs %s", &log)
	}

	// A build that is not signed is said once.
	stranger, _, err := builds.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	now.Store(&stranger)
	if err := os.Remove(filepath.Join(l.Binaries(), m.Build, builds.SignatureName)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 2*lookEvery)
	defer cancel()
	l.keepSigned(ctx, slog.New(slog.NewTextHandler(&log, nil)))
	if n := strings.Count(log.String(), "another key"); n != 1 {
		t.Errorf("it is said %d times: %s", n, &log)
	}
}

// joins makes the data folder one of a node whose cluster has a key of builds.
func joins(t *testing.T, l Layout) ed25519.PrivateKey {
	t.Helper()
	own, authority := installation.Open(l.Saved()), installation.Open(t.TempDir())
	key, _, err := builds.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	k, err := own.Own()
	if err != nil {
		t.Fatal(err)
	}
	member, err := authority.Certify("prod", "n", k)
	if err == nil {
		err = own.Enlist(member)
	}
	stated, certifyErr := authority.CertifyBuildKey("prod", 1, builds.PublicOf(key))
	if err = errors.Join(err, certifyErr); err == nil {
		err = own.UpdateBuildKey(stated)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Outside of a cluster with a key of builds, programs need no signature and are not read.
// In one, they are started only with a signature, which the cluster's CA has.
func TestTrust(t *testing.T) {
	l, m := builtLayout(t)
	l.signature = func(context.Context, string) ([]byte, error) {
		t.Error("the CA is asked outside of a cluster")
		return nil, nil
	}
	if err := l.trust(t.Context(), m.Build); err != nil {
		t.Fatal(err)
	}
	key := joins(t, l)
	sign := func(key ed25519.PrivateKey) []byte {
		s, err := builds.Sign(m, key)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	stranger, _, err := builds.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	l.signature = nil
	if err := l.trust(t.Context(), m.Build); err == nil || !strings.Contains(err.Error(), "it is not signed") {
		t.Errorf("without a CA: %v", err)
	}
	away := errors.New("it does not answer")
	for name, tt := range map[string]struct {
		raw  []byte
		err  error
		want string
	}{
		"the CA is away":  {nil, away, away.Error()},
		"a stranger's":    {sign(stranger), nil, "another key"},
		"no signature":    {[]byte("x"), nil, "cannot be read"},
		"an empty answer": {nil, nil, "cannot be read"},
	} {
		l.signature = func(context.Context, string) ([]byte, error) { return tt.raw, tt.err }
		if err := l.trust(t.Context(), m.Build); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if err := l.startHost(t.Context(), m.Build, l.Saved()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: the sentry host starts: %v", name, err)
		}
	}
	l.signature = func(_ context.Context, build string) ([]byte, error) {
		if build != m.Build {
			t.Errorf("asked for %s", build)
		}
		return sign(key), nil
	}
	if err := l.trust(t.Context(), m.Build); err != nil {
		t.Fatal(err)
	}
	l.signature = nil // it is kept
	if err := l.trust(t.Context(), m.Build); err != nil {
		t.Error(err)
	}
	// It is started now, and ends at once.
	if err := l.startHost(t.Context(), m.Build, l.Saved()); err == nil || !strings.Contains(err.Error(), "ended at once") {
		t.Errorf("the sentry host of a signed build: %v", err)
	}
	if err := os.WriteFile(filepath.Join(l.Binaries(), m.Build, payload.GuestImage), []byte("another guest"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.startHost(t.Context(), m.Build, l.Saved()); err == nil || !strings.Contains(err.Error(), "guest.erofs here is not the signed one") {
		t.Errorf("an altered build: %v", err)
	}
	all, err := l.Builds(t.Context())
	if err != nil || len(all) != 1 || all[0].GVisor != "" || !strings.Contains(all[0].Refused, "not the signed one") {
		t.Errorf("%+v, %v", all, err)
	}
}
