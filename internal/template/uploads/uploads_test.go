package uploads_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploads"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploads/uploadstest"
)

var hash = strings.Repeat("a", 64)

func newStore(dir string) *uploads.Store {
	return uploads.New(uploads.Config{Dir: dir, Log: slog.New(slog.DiscardHandler), Leave: 1})
}

func TestStore(t *testing.T) {
	t.Parallel()
	uploadstest.Run(t, func(_ *testing.T, s *uploads.Store) sandbox.TemplateUploads { return s })
}

// A home of this version keeps all uploads; a home of the version before keeps none, and
// the gateway's own Store then satisfies the contract.
func TestAtHome(t *testing.T) {
	t.Parallel()
	own := func(t *testing.T) sandbox.TemplateUploads { return newStore(t.TempDir()) }
	t.Run("of this version", func(t *testing.T) {
		uploadstest.Run(t, func(t *testing.T, s *uploads.Store) sandbox.TemplateUploads { return uploads.AtHome(s, own(t)) })
	})
	t.Run("of the version before", func(t *testing.T) {
		uploadstest.Run(t, func(_ *testing.T, s *uploads.Store) sandbox.TemplateUploads { return uploads.AtHome(earlier{}, s) })
	})
}

// earlier is a home of the version before.
type earlier struct{}

var errEarlier = sandbox.Errorf(sandbox.Unsupported, "an earlier version")

func (earlier) HasUpload(context.Context, sandbox.TenantID, string) (bool, error) {
	return false, errEarlier
}

func (earlier) OpenUpload(context.Context, sandbox.TenantID, string) (io.ReadCloser, int64, error) {
	return nil, 0, errEarlier
}

func (earlier) StoreUpload(context.Context, sandbox.TenantID, string, io.Reader) error {
	return errEarlier
}

// A build that was announced before the home was upgraded finds its files; a client that
// asks afterwards sends them to the home.
func TestHomeThatWasUpgraded(t *testing.T) {
	t.Parallel()
	home, own := newStore(t.TempDir()), newStore(t.TempDir())
	codetest.OK(t, "StoreUpload", uploads.AtHome(earlier{}, own).StoreUpload(t.Context(), "t", hash, strings.NewReader("files")))
	after := uploads.AtHome(home, own)
	archive, n, err := after.OpenUpload(t.Context(), "t", hash)
	codetest.OK(t, "OpenUpload", err)
	archive.Close()
	if n != 5 {
		t.Errorf("the upload has %d bytes", n)
	}
	present, err := after.HasUpload(t.Context(), "t", hash)
	if present || err != nil {
		t.Errorf("the home has the upload: %v, %v", present, err)
	}
	codetest.OK(t, "StoreUpload", after.StoreUpload(t.Context(), "t", hash, strings.NewReader("again")))
	if present, err = home.HasUpload(t.Context(), "t", hash); !present || err != nil {
		t.Errorf("the home has no upload: %v, %v", present, err)
	}
}

// A home that is away is told, and nothing is kept where only one gateway sees it.
func TestHomeThatIsAway(t *testing.T) {
	t.Parallel()
	own := newStore(t.TempDir())
	a := uploads.AtHome(away{}, own)
	archive := bytes.NewReader([]byte("files"))
	codetest.Want(t, "HasUpload", codetest.ErrOf(a.HasUpload(t.Context(), "t", hash)), sandbox.Unavailable)
	codetest.Want(t, "StoreUpload", a.StoreUpload(t.Context(), "t", hash, archive), sandbox.Unavailable)
	_, _, err := a.OpenUpload(t.Context(), "t", hash)
	codetest.Want(t, "OpenUpload", err, sandbox.Unavailable)
	if present, err := own.HasUpload(t.Context(), "t", hash); present || err != nil {
		t.Errorf("the gateway keeps the upload: %v, %v", present, err)
	}
	if archive.Len() != 5 {
		t.Error("the archive was read although no store takes it")
	}
}

type away struct{ earlier }

func (away) HasUpload(context.Context, sandbox.TenantID, string) (bool, error) {
	return false, sandbox.Errorf(sandbox.Unavailable, "away")
}

func (away) OpenUpload(context.Context, sandbox.TenantID, string) (io.ReadCloser, int64, error) {
	return nil, 0, sandbox.Errorf(sandbox.Unavailable, "away")
}

// A disk that fills up while an upload arrives is told, and gets its room back.
func TestDiskThatFillsUp(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a small disk is mounted by root only")
	}
	dir := t.TempDir()
	codetest.OK(t, "mount", unix.Mount("none", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { codetest.OK(t, "unmount", unix.Unmount(dir, 0)) })
	s := newStore(dir)
	err := s.StoreUpload(t.Context(), "t", hash, strings.NewReader(strings.Repeat("x", 2<<20)))
	codetest.Want(t, "StoreUpload", err, sandbox.Exhausted)
	codetest.OK(t, "StoreUpload of less", s.StoreUpload(t.Context(), "t", hash, strings.NewReader(strings.Repeat("x", 900<<10))))
}

// A crash leaves a file without a name, which is removed a day later.
func TestSweepAfterACrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newStore(dir)
	codetest.OK(t, "Sweep without a folder", newStore(filepath.Join(dir, "none")).Sweep())
	codetest.OK(t, "StoreUpload", s.StoreUpload(t.Context(), "t", hash, strings.NewReader("x")))
	kept, err := filepath.Glob(filepath.Join(dir, "*", hash))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%v, %v", kept, err)
	}
	left := filepath.Join(filepath.Dir(kept[0]), ".new-1")
	codetest.OK(t, "WriteFile", os.WriteFile(left, []byte("half"), 0o600))
	codetest.OK(t, "Sweep", s.Sweep())
	if _, err := os.Stat(left); err != nil {
		t.Errorf("an upload that arrives is gone: %v", err)
	}
	then := time.Now().Add(-25 * time.Hour)
	codetest.OK(t, "Chtimes", os.Chtimes(left, then, then))
	codetest.OK(t, "Sweep", s.Sweep())
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what a crash left is still there: %v", err)
	}
	if present, err := s.HasUpload(t.Context(), "t", hash); !present || err != nil {
		t.Errorf("the upload is gone: %v", err)
	}
}

// Run sweeps at its start, and ends with its context.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newStore(dir)
	codetest.OK(t, "StoreUpload", s.StoreUpload(t.Context(), "t", hash, strings.NewReader("x")))
	kept, err := filepath.Glob(filepath.Join(dir, "*", hash))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%v, %v", kept, err)
	}
	then := time.Now().Add(-8 * 24 * time.Hour)
	codetest.OK(t, "Chtimes", os.Chtimes(kept[0], then, then))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := s.Run(ctx); err != context.Canceled {
		t.Errorf("Run: %v", err)
	}
	if _, err := os.Stat(kept[0]); !os.IsNotExist(err) {
		t.Errorf("an expired upload is still there: %v", err)
	}
}
