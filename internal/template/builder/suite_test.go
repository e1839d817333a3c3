package builder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/templatetest"
)

// limit is the Quota.TemplateBytes of every Tenant.
type limit struct{ atomic.Int64 }

func (l *limit) TenantQuota(context.Context, sandbox.TenantID) (sandbox.Quota, error) {
	return sandbox.Quota{TemplateBytes: l.Load()}, nil
}

// The client passes the suite of its port over a builder at a socket.
func TestSuite(t *testing.T) {
	templatetest.Run(t, func(t *testing.T) templatetest.World {
		dir := t.TempDir()
		putImage(t, dir, "base", "refs")
		store, err := template.Open(dir)
		codetest.OK(t, "template.Open", err)
		socket := filepath.Join(dir, "s")
		serve(t, Config{Store: store, Log: slog.New(slog.DiscardHandler)}, socket)
		limit := &limit{}
		c := NewClient(store, limit, socket)
		t.Cleanup(c.Close)
		return templatetest.World{
			Templates: c, Limit: limit.Store,
			Own: func(tenant sandbox.TenantID, name string) string {
				version := putImage(t, dir, name, "")
				codetest.OK(t, "Keep", c.Keep(t.Context(), tenant, "kept", version))
				_, err := store.Reuse(t.Context(), "kept@"+version, template.Ref{Owner: tenant, Name: name, Tag: "latest"}, template.Image{Digest: version})
				codetest.OK(t, "Reuse", err)
				codetest.OK(t, "Remove", codetest.ErrOf(c.Remove(t.Context(), tenant, "kept")))
				return version
			},
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

// putImage puts an image into a Store's folder, of 8192 bytes that only it has. In the
// folder of the operator's refs it is the Template name.
func putImage(t *testing.T, dir, name, refs string) (digest string) {
	t.Helper()
	content := bytes.Repeat([]byte(name+"\n"), 8192)[:8192]
	sum := sha256.Sum256(content)
	digest = hex.EncodeToString(sum[:])
	path := filepath.Join(dir, "images", digest+".erofs")
	for _, folder := range []string{"images", "locks", "tenants", "refs"} {
		codetest.OK(t, "make a folder", os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	f, err := os.Create(path)
	codetest.OK(t, "make an image", err)
	_, err = f.Write(content)
	codetest.OK(t, "write an image", errors.Join(err, f.Sync(), f.Close())) // blocks are given at a sync
	if refs == "" {
		return digest
	}
	ref, err := json.Marshal(template.Image{Digest: digest, CreatedAt: time.Now().UTC(), Source: "debian:bookworm", Size: 8192})
	codetest.OK(t, "encode a ref", err)
	for _, r := range []string{name, name + "@" + digest} {
		codetest.OK(t, "write a ref", os.WriteFile(filepath.Join(dir, refs, r), ref, 0o644))
	}
	return digest
}
