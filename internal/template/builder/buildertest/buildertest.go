// Package buildertest starts a builder of Templates at a socket, for the suites of its
// ports.
package buildertest

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
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/builder"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/templatetest"
)

// World is a builder with its folder. The operator has the Template "base".
type World struct {
	*builder.Client
	Dir   string // of the Templates
	store *template.Store
	limit *limit
}

// limit is the Quota.TemplateBytes of every Tenant.
type limit struct{ atomic.Int64 }

func (l *limit) TenantQuota(context.Context, sandbox.TenantID) (sandbox.Quota, error) {
	return sandbox.Quota{TemplateBytes: l.Load()}, nil
}

// New starts a builder until the test ends.
func New(t *testing.T) *World {
	t.Helper()
	w := &World{Dir: t.TempDir(), limit: &limit{}}
	w.name(t, "base", w.PutImage(t, "base"))
	var err error
	w.store, err = template.Open(w.Dir)
	codetest.OK(t, "template.Open", err)
	socket := filepath.Join(w.Dir, "s")
	serve(t, builder.Config{Store: w.store, Log: slog.New(slog.DiscardHandler)}, socket)
	w.Client = builder.NewClient(w.store, w.limit, socket)
	t.Cleanup(w.Client.Close)
	return w
}

// Client is a client of the builder.
type Client interface {
	sandbox.Templates
	sandbox.TemplateImages
}

// Suite returns the World of the suite, over a client of w.
func (w *World) Suite(t *testing.T, client Client) templatetest.World {
	return templatetest.World{
		Templates: client, Images: client, Limit: w.limit.Store,
		Own: func(tenant sandbox.TenantID, name string) string {
			version := w.PutImage(t, name)
			codetest.OK(t, "Keep", w.Keep(t.Context(), tenant, "kept", version))
			_, err := w.store.Reuse(t.Context(), "kept@"+version, template.Ref{Owner: tenant, Name: name, Tag: "latest"}, template.Image{Digest: version})
			codetest.OK(t, "Reuse", err)
			codetest.OK(t, "Remove", codetest.ErrOf(w.Remove(t.Context(), tenant, "kept")))
			return version
		},
	}
}

// serve runs a builder at a socket until the test ends.
func serve(t *testing.T, cfg builder.Config, socket string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served, listening := make(chan error, 1), make(chan struct{})
	go func() {
		served <- builder.Serve(ctx, cfg, func() (net.Listener, error) {
			defer close(listening)
			return builder.Listen(socket, os.Getuid())
		})
	}()
	<-listening
	t.Cleanup(func() {
		stop()
		codetest.OK(t, "Serve", <-served)
	})
}

// Content returns an image of 8192 bytes that only name has, and its version.
func Content(name string) (content []byte, version string) {
	content = bytes.Repeat([]byte(name+"\n"), 8192)[:8192]
	sum := sha256.Sum256(content)
	return content, hex.EncodeToString(sum[:])
}

// PutImage puts the Content of name into the folder, without a name.
func (w *World) PutImage(t *testing.T, name string) (version string) {
	t.Helper()
	for _, folder := range []string{"images", "locks", "tenants", "refs"} {
		codetest.OK(t, "make a folder", os.MkdirAll(filepath.Join(w.Dir, folder), 0o755))
	}
	content, version := Content(name)
	f, err := os.Create(filepath.Join(w.Dir, "images", version+".erofs"))
	codetest.OK(t, "make an image", err)
	_, err = f.Write(content)
	codetest.OK(t, "write an image", errors.Join(err, f.Sync(), f.Close())) // blocks are given at a sync
	return version
}

// name makes an image the operator's Template.
func (w *World) name(t *testing.T, name, version string) {
	t.Helper()
	ref, err := json.Marshal(template.Image{Digest: version, CreatedAt: time.Now().UTC(), Source: "debian:bookworm", Size: 8192})
	codetest.OK(t, "encode a ref", err)
	for _, r := range []string{name, name + "@" + version} {
		codetest.OK(t, "write a ref", os.WriteFile(filepath.Join(w.Dir, "refs", r), ref, 0o644))
	}
}
