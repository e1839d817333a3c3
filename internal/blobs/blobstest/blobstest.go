// Package blobstest is the contract of sandbox.Blobs as a test suite, which every
// implementation passes.
package blobstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Run checks the contract. open returns empty Blobs and registers its own cleanup;
// Run calls it once for each case.
func Run(t *testing.T, open func(*testing.T) sandbox.Blobs) {
	for _, c := range []struct {
		name  string
		check func(*testing.T, sandbox.Blobs)
	}{
		{"what was put is there", putAndGet},
		{"what is put again replaces", putAgain},
		{"what is not there", absent},
		{"names that are none", badNames},
		{"nothing, and too much", tooLarge},
		{"many at once", sideBySide},
		{"given up", givenUp},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, open(t)) })
	}
}

func put(t *testing.T, b sandbox.Blobs, name string, content []byte) {
	t.Helper()
	if err := b.Put(t.Context(), name, content); err != nil {
		t.Fatalf("Put(%s): %v", name, err)
	}
}

func holds(t *testing.T, b sandbox.Blobs, name string, want []byte) {
	t.Helper()
	got, err := b.Get(t.Context(), name)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("Get(%s) = %d bytes, %v, want %d", name, len(got), err, len(want))
	}
	if n, err := b.Size(t.Context(), name); err != nil || n != int64(len(want)) {
		t.Errorf("Size(%s) = %d, %v, want %d", name, n, err, len(want))
	}
}

func gone(t *testing.T, b sandbox.Blobs, name string) {
	t.Helper()
	if _, err := b.Get(t.Context(), name); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("Get(%s) = %v, want not found", name, err)
	}
	if _, err := b.Size(t.Context(), name); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("Size(%s) = %v, want not found", name, err)
	}
}

func putAndGet(t *testing.T, b sandbox.Blobs) {
	if err := b.Probe(t.Context()); err != nil {
		t.Fatalf("Probe: %v", err)
	}
	all := map[string][]byte{
		"a": []byte("one"), "b/c/d": []byte("two"), "b/c/e-1_2.Z": {0}, "b/x": bytes.Repeat([]byte{0, 255, 10}, 3<<20),
	}
	for name, content := range all {
		put(t, b, name, content)
	}
	for name, content := range all {
		holds(t, b, name, content)
	}
	for name := range all {
		for range 2 {
			if err := b.Delete(t.Context(), name); err != nil {
				t.Errorf("Delete(%s): %v", name, err)
			}
		}
		gone(t, b, name)
	}
}

func putAgain(t *testing.T, b sandbox.Blobs) {
	put(t, b, "a/b", bytes.Repeat([]byte("long"), 1000))
	put(t, b, "a/b", []byte("short"))
	holds(t, b, "a/b", []byte("short"))
}

func absent(t *testing.T, b sandbox.Blobs) {
	gone(t, b, "a")
	gone(t, b, "a/b/c")
	if err := b.Delete(t.Context(), "a/b/c"); err != nil {
		t.Errorf("Delete of what is not there: %v", err)
	}
	put(t, b, "a/b/c", []byte("x"))
	gone(t, b, "a/b") // only a prefix of a blob's name
	gone(t, b, "a/b/c/d")
}

func badNames(t *testing.T, b sandbox.Blobs) {
	for _, name := range []string{"", "/a", "a/", "a//b", "..", "a/../b", "./a", ".a", "a/.b", "a b", "a\x00", "ä", "a\\b", strings.Repeat("a", 513)} {
		_, getErr := b.Get(t.Context(), name)
		_, sizeErr := b.Size(t.Context(), name)
		for what, err := range map[string]error{"Put": b.Put(t.Context(), name, []byte("x")), "Get": getErr, "Size": sizeErr, "Delete": b.Delete(t.Context(), name)} {
			if !errors.Is(err, sandbox.Invalid) {
				t.Errorf("%s(%q) = %v, want invalid", what, name, err)
			}
		}
	}
}

func tooLarge(t *testing.T, b sandbox.Blobs) {
	if err := b.Put(t.Context(), "a", nil); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("Put of nothing = %v", err)
	}
	if err := b.Put(t.Context(), "a", make([]byte, sandbox.MaxBlob+1)); !errors.Is(err, sandbox.TooLarge) {
		t.Errorf("Put of too much = %v", err)
	}
	gone(t, b, "a")
}

// sideBySide checks that of concurrent puts of one name one wins, whole.
func sideBySide(t *testing.T, b sandbox.Blobs) {
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			own, shared := fmt.Sprintf("x/%d", i), bytes.Repeat([]byte{byte(i)}, 64<<10)
			if err := errors.Join(b.Put(t.Context(), own, shared), b.Put(t.Context(), "x/shared", shared)); err != nil {
				t.Errorf("Put: %v", err)
			}
			holds(t, b, own, shared)
		})
	}
	wg.Wait()
	got, err := b.Get(t.Context(), "x/shared")
	if err != nil || len(got) != 64<<10 || bytes.Count(got, got[:1]) != len(got) {
		t.Errorf("what all put is %d bytes, %v", len(got), err)
	}
}

func givenUp(t *testing.T, b sandbox.Blobs) {
	put(t, b, "a", []byte("x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Put(ctx, "b", []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("Put = %v", err)
	}
	if _, err := b.Get(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Get = %v", err)
	}
	if _, err := b.Size(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Size = %v", err)
	}
	if err := b.Delete(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Delete = %v", err)
	}
	gone(t, b, "b")
}
