package installation_test

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
)

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Concurrent first uses of an installation create one key, which only its owner may read.
func TestOwnKey(t *testing.T) {
	dir := t.TempDir()
	keys := make([]installation.Key, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = installation.Open(dir).Own(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(slices.Compact(keys)) != 1 {
		t.Errorf("keys %v", keys)
	}
	left := must[[]os.DirEntry](t)(os.ReadDir(dir))
	if len(left) != 1 {
		t.Fatalf("the folder holds %v", left)
	}
	if info := must[os.FileInfo](t)(left[0].Info()); info.Mode().Perm() != 0o600 {
		t.Errorf("the key is a file of mode %v", info.Mode())
	}
	other := must[installation.Key](t)(installation.Open(t.TempDir()).Own())
	if other == keys[0] {
		t.Error("two installations have one key")
	}
}

func TestSign(t *testing.T) {
	k := installation.Open(t.TempDir())
	signature, by, err := k.Sign([]byte("message"))
	if err != nil || by != must[installation.Key](t)(k.Own()) {
		t.Fatalf("signed by %s, %v", by, err)
	}
	other := must[installation.Key](t)(installation.Open(t.TempDir()).Own())
	changed := slices.Clone(signature)
	changed[7] ^= 1
	for _, tt := range []struct {
		what      string
		key       installation.Key
		message   string
		signature []byte
		want      bool
	}{
		{"what was signed", by, "message", signature, true},
		{"another message", by, "massage", signature, false},
		{"another key", other, "message", signature, false},
		{"a changed signature", by, "message", changed, false},
		{"a short signature", by, "message", signature[:63], false},
		{"no signature", by, "message", nil, false},
		{"no key", installation.Key{}, "message", signature, false},
	} {
		if got := tt.key.Verify([]byte(tt.message), tt.signature); got != tt.want {
			t.Errorf("%s: %t", tt.what, got)
		}
	}
}

func TestTrust(t *testing.T) {
	dir := t.TempDir()
	k := installation.Open(dir)
	own := must[installation.Key](t)(k.Own())
	other := must[installation.Key](t)(installation.Open(t.TempDir()).Own())
	third := must[installation.Key](t)(installation.Open(t.TempDir()).Own())
	trusts := func(key installation.Key, want bool) {
		t.Helper()
		if got, err := k.Trusts(key); err != nil || got != want {
			t.Errorf("trusts %s: %t, %v", key, got, err)
		}
	}
	trusts(own, true)
	trusts(other, false)
	for range 2 {
		if err := k.Trust(other); err != nil {
			t.Fatal(err)
		}
	}
	if err := installation.Open(dir).Trust(third); err != nil { // another process
		t.Fatal(err)
	}
	if got, err := k.Trusted(); err != nil || !slices.Equal(got, []installation.Key{other, third}) {
		t.Errorf("trusted are %v, %v", got, err)
	}
	trusts(other, true)
	if err := k.Distrust(other); err != nil {
		t.Error(err)
	}
	if err := k.Distrust(other); err == nil {
		t.Error("what is not trusted was removed")
	}
	trusts(other, false)
	trusts(third, true)
	if err := os.WriteFile(filepath.Join(dir, "trusted.keys"), []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Trusts(third); err == nil {
		t.Error("a broken list of keys is trusted")
	}
}

func TestParseKey(t *testing.T) {
	own := must[installation.Key](t)(installation.Open(t.TempDir()).Own())
	if got, err := installation.ParseKey(own.String()); err != nil || got != own {
		t.Errorf("ParseKey = %v, %v", got, err)
	}
	for _, bad := range []string{"", "ab", own.String()[1:], own.String() + "00", "zz" + own.String()[2:], " " + own.String()} {
		if _, err := installation.ParseKey(bad); err == nil {
			t.Errorf("ParseKey(%q) is a key", bad)
		}
	}
}
