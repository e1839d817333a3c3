// Package uploadstest is the contract of sandbox.TemplateUploads as a test suite.
package uploadstest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploads"
)

// Run checks the contract. over returns a client of a Store, which may be the Store
// itself, and registers its own cleanup; it is called once per case.
func Run(t *testing.T, over func(t *testing.T, s *uploads.Store) sandbox.TemplateUploads) {
	for name, c := range map[string]struct {
		bounds uploads.Config
		check  func(*world)
	}{
		"an upload":               {uploads.Config{}, stored},
		"a bad hash":              {uploads.Config{}, badHash},
		"an upload of others":     {uploads.Config{}, ofOthers},
		"an upload that breaks":   {uploads.Config{}, broken},
		"a caller that leaves":    {uploads.Config{}, left},
		"an upload too large":     {uploads.Config{Most: 1 << 20}, tooLarge},
		"too many bytes":          {uploads.Config{TenantBytes: 30}, tooManyBytes},
		"too many uploads":        {uploads.Config{TenantFiles: 3}, tooManyUploads},
		"too many bytes at once":  {uploads.Config{TenantBytes: 40 << 20}, tooManyAtOnce},
		"expiry":                  {uploads.Config{}, expiry},
		"a full disk":             {uploads.Config{Leave: 1 << 60}, fullDisk},
		"the same upload at once": {uploads.Config{}, sameAtOnce},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.bounds.Dir, c.bounds.Log = t.TempDir(), slog.New(slog.DiscardHandler)
			if c.bounds.Leave == 0 {
				c.bounds.Leave = 1 // of a disk that other tests fill
			}
			store := uploads.New(c.bounds)
			c.check(&world{over(t, store), store, c.bounds.Dir, t})
		})
	}
}

// world is TemplateUploads with their folder.
type world struct {
	sandbox.TemplateUploads
	store *uploads.Store
	dir   string
	t     *testing.T
}

// hash returns a hash of one digit.
func hash(digit string) string { return strings.Repeat(digit, 64) }

func (w *world) put(tenant sandbox.TenantID, digit, content string) {
	w.t.Helper()
	codetest.OK(w.t, "StoreUpload", w.StoreUpload(w.t.Context(), tenant, hash(digit), strings.NewReader(content)))
}

// has checks that an upload has a content; an empty one stands for no upload.
func (w *world) has(tenant sandbox.TenantID, digit, want string) {
	w.t.Helper()
	present, err := w.HasUpload(w.t.Context(), tenant, hash(digit))
	codetest.OK(w.t, "HasUpload", err)
	if present != (want != "") {
		w.t.Errorf("HasUpload of %s of %q is %v", digit, tenant, present)
	}
	archive, n, err := w.OpenUpload(w.t.Context(), tenant, hash(digit))
	if want == "" {
		codetest.Want(w.t, "OpenUpload", err, sandbox.NotFound)
		return
	}
	codetest.OK(w.t, "OpenUpload", err)
	defer archive.Close()
	got, err := io.ReadAll(archive)
	codetest.OK(w.t, "read an upload", err)
	if n != int64(len(want)) || string(got) != want {
		w.t.Errorf("the upload %s of %q has %d bytes and begins with %.20q, want %d and %.20q", digit, tenant, n, got, len(want), want)
	}
}

// files checks how many files are in the folder, finished or not.
func (w *world) files(want int) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got := len(w.paths())
		if got == want {
			return
		}
		if time.Now().After(deadline) { // the other end of a connection learns later that it broke
			w.t.Fatalf("the folder has %d files, want %d", got, want)
		}
	}
}

func (w *world) paths() (all []string) {
	w.t.Helper()
	codetest.OK(w.t, "list the folder", filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, path)
		}
		if errors.Is(err, fs.ErrNotExist) { // it was renamed meanwhile
			return nil
		}
		return err
	}))
	return all
}

// age makes all files older.
func (w *world) age(by time.Duration) {
	w.t.Helper()
	for _, path := range w.paths() {
		info, err := os.Stat(path)
		codetest.OK(w.t, "stat", err)
		then := info.ModTime().Add(-by)
		codetest.OK(w.t, "age a file", os.Chtimes(path, then, then))
	}
}

func stored(w *world) {
	w.has("t", "a", "")
	large := strings.Repeat("an archive ", 1<<19) // more than any buffer
	w.put("t", "a", large)
	w.has("t", "a", large)
	w.put("t", "a", "another archive")
	w.has("t", "a", "another archive")
	w.has("t", "b", "")
	codetest.OK(w.t, "StoreUpload of nothing", w.StoreUpload(w.t.Context(), "t", hash("c"), strings.NewReader("")))
	archive, n, err := w.OpenUpload(w.t.Context(), "t", hash("c"))
	codetest.OK(w.t, "OpenUpload of nothing", err)
	got, err := io.ReadAll(archive)
	if n != 0 || len(got) != 0 || err != nil {
		w.t.Errorf("an upload of nothing has %d bytes, %q, %v", n, got, err)
	}
	codetest.OK(w.t, "Close", archive.Close())
	w.files(2)
}

func badHash(w *world) {
	ctx := w.t.Context()
	for _, bad := range []string{"", "short", hash("A"), hash("a") + "a", hash("a")[1:] + "\n", "../../" + hash("a")[6:], hash("a")[:63] + "/"} {
		codetest.Want(w.t, "HasUpload", codetest.ErrOf(w.HasUpload(ctx, "t", bad)), sandbox.Invalid)
		_, _, err := w.OpenUpload(ctx, "t", bad)
		codetest.Want(w.t, "OpenUpload", err, sandbox.Invalid)
		codetest.Want(w.t, "StoreUpload", w.StoreUpload(ctx, "t", bad, strings.NewReader("x")), sandbox.Invalid)
	}
	w.files(0)
}

func ofOthers(w *world) {
	tenants := []sandbox.TenantID{"t", "T", "../t", "t/a", ".", sandbox.TenantID(strings.Repeat("t", 300)), "t "}
	for i, tenant := range tenants {
		w.put(tenant, "a", string(tenant)+"'s")
		for j, other := range tenants {
			want := ""
			if j <= i {
				want = string(other) + "'s"
			}
			w.has(other, "a", want)
		}
	}
}

func broken(w *world) {
	w.put("t", "a", "whole")
	ours := errors.New("the client has gone")
	for _, before := range []string{"", "begun", strings.Repeat("much ", 1<<20)} {
		for _, digit := range []string{"a", "b"} {
			archive := io.MultiReader(strings.NewReader(before), iotest.ErrReader(ours))
			if err := w.StoreUpload(w.t.Context(), "t", hash(digit), archive); !errors.Is(err, ours) {
				w.t.Errorf("StoreUpload of an archive that breaks after %d bytes: %v", len(before), err)
			}
		}
	}
	w.files(1)
	w.has("t", "a", "whole")
	w.has("t", "b", "")
}

func left(w *world) {
	ctx, leave := context.WithCancel(w.t.Context())
	archive := &onRead{Reader: endless{}, at: 20 << 20, do: leave}
	if err := w.StoreUpload(ctx, "t", hash("a"), archive); !errors.Is(err, context.Canceled) {
		w.t.Errorf("StoreUpload by a caller that left: %v", err)
	}
	w.files(0)
	w.has("t", "a", "")
}

func tooLarge(w *world) {
	w.put("t", "a", strings.Repeat("x", 1<<20))
	for _, archive := range []io.Reader{strings.NewReader(strings.Repeat("x", 1<<20+1)), endless{}} {
		codetest.Want(w.t, "StoreUpload", w.StoreUpload(w.t.Context(), "t", hash("b"), archive), sandbox.TooLarge)
	}
	w.files(1)
	w.has("t", "b", "")
}

// refused checks that an upload is refused for lack of room and leaves nothing.
func (w *world) refused(tenant sandbox.TenantID, digit, content string) {
	w.t.Helper()
	files := len(w.paths())
	err := w.StoreUpload(w.t.Context(), tenant, hash(digit), strings.NewReader(content))
	codetest.Want(w.t, "StoreUpload", err, sandbox.Exhausted)
	w.files(files)
}

func tooManyBytes(w *world) {
	w.put("t", "a", "ten bytes.")
	w.put("t", "b", "ten bytes.")
	w.refused("t", "c", "eleven byte")
	w.put("other", "c", "eleven byte")
	w.put("t", "c", "ten bytes.")
	w.age(2 * time.Hour)
	w.has("t", "a", "ten bytes.") // a use
	w.put("t", "d", "ten bytes.") // instead of b or c, whichever is first
	w.has("t", "a", "ten bytes.")
	w.has("other", "c", "eleven byte")
	w.files(4)
}

func tooManyUploads(w *world) {
	for _, digit := range []string{"a", "b", "c"} {
		w.put("t", digit, digit)
	}
	w.refused("t", "d", "d")
	w.put("other", "d", "d")
	w.age(2 * time.Hour)
	w.put("t", "d", "d")
	w.files(4)
}

// Uploads that arrive at once are bounded together, before they have ended.
func tooManyAtOnce(w *world) {
	var all sync.WaitGroup
	const most = 30 << 20
	for _, digit := range []string{"a", "b", "c"} {
		all.Go(func() {
			err := w.StoreUpload(w.t.Context(), "t", hash(digit), io.LimitReader(endless{}, most))
			if err != nil {
				codetest.Want(w.t, "StoreUpload", err, sandbox.Exhausted)
			}
		})
	}
	all.Wait()
	if n := len(w.paths()); n > 1 {
		w.t.Errorf("%d uploads of 30 MiB fit into 40 MiB", n)
	}
	codetest.Want(w.t, "StoreUpload", w.StoreUpload(w.t.Context(), "t", hash("d"), endless{}), sandbox.Exhausted)
}

func expiry(w *world) {
	w.put("t", "a", "used")
	w.put("t", "b", "unused")
	w.put("other", "a", "unused")
	w.age(6 * 24 * time.Hour)
	w.has("t", "a", "used")
	w.age(2 * 24 * time.Hour)
	codetest.OK(w.t, "Sweep", w.store.Sweep())
	w.files(1)
	w.has("t", "a", "used")
	w.has("t", "b", "")
	w.has("other", "a", "")
}

func fullDisk(w *world) {
	w.refused("t", "a", "anything")
	w.has("t", "a", "")
}

func sameAtOnce(w *world) {
	var all sync.WaitGroup
	contents := []string{strings.Repeat("a", 1<<20), strings.Repeat("b", 1<<20)}
	for _, content := range contents {
		all.Go(func() {
			err := w.StoreUpload(w.t.Context(), "t", hash("a"), strings.NewReader(content))
			if err != nil {
				w.t.Errorf("StoreUpload: %v", err)
			}
		})
	}
	all.Wait()
	w.files(1)
	archive, _, err := w.OpenUpload(w.t.Context(), "t", hash("a"))
	codetest.OK(w.t, "OpenUpload", err)
	defer archive.Close()
	got, err := io.ReadAll(archive)
	codetest.OK(w.t, "read an upload", err)
	if string(got) != contents[0] && string(got) != contents[1] {
		w.t.Error("two uploads are mixed")
	}
}

// endless gives bytes without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	return copy(p, bytes.Repeat([]byte{'x'}, len(p))), nil
}

// onRead calls do once at bytes have been read.
type onRead struct {
	io.Reader
	at, read int
	do       func()
}

func (r *onRead) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.read += n; r.read >= r.at {
		r.do()
	}
	return n, err
}
