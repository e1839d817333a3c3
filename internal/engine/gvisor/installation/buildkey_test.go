package installation_test

import (
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
)

// buildKeyOf returns the key of builds that k knows; nil: none.
func buildKeyOf(t *testing.T, k *installation.Keys) *installation.Key {
	t.Helper()
	return must[*installation.Key](t)(k.BuildKey())
}

func TestBuildKey(t *testing.T) {
	authority, stranger := installation.Open(t.TempDir()), installation.Open(t.TempDir())
	a, _ := member(t, authority, "a")
	first := must[installation.Key](t)(installation.Open(t.TempDir()).Own())
	second := must[installation.Key](t)(installation.Open(t.TempDir()).Own())
	certified := func(by *installation.Keys, cluster string, number int64, key installation.Key) installation.BuildKey {
		return must[installation.BuildKey](t)(by.CertifyBuildKey(cluster, number, key))
	}
	if got := buildKeyOf(t, a); got != nil {
		t.Fatalf("a node that has heard of no key knows %s", got)
	}
	changed := certified(authority, "prod", 1, first)
	changed.Key = second
	renumbered := certified(authority, "prod", 1, first)
	renumbered.Number = 2
	for name, b := range map[string]installation.BuildKey{
		"of another authority":  certified(stranger, "prod", 1, first),
		"of another cluster":    certified(authority, "test", 1, first),
		"with another key":      changed,
		"with another number":   renumbered,
		"without a number":      certified(authority, "prod", 0, first),
		"without its signature": {Cluster: "prod", Number: 1, Key: first},
	} {
		if err := a.UpdateBuildKey(b); err == nil || buildKeyOf(t, a) != nil {
			t.Errorf("took a key %s: %v", name, err)
		}
	}
	for _, step := range []struct {
		number    int64
		key, want installation.Key
	}{{1, first, first}, {1, first, first}, {1, second, first}, {3, second, second}, {2, first, second}} {
		err := a.UpdateBuildKey(certified(authority, "prod", step.number, step.key))
		if taken := step.key == step.want; taken != (err == nil) || !taken && !strings.Contains(err.Error(), "build-key --replace") {
			t.Errorf("number %d: %v", step.number, err)
		}
		if got := buildKeyOf(t, a); got == nil || *got != step.want {
			t.Errorf("after number %d: %v, want %s", step.number, got, step.want)
		}
	}

	// Joining the same cluster again keeps the key, joining another one drops it.
	own := must[installation.Key](t)(a.Own())
	for _, by := range []*installation.Keys{authority, stranger} {
		if err := a.Enlist(must[installation.Membership](t)(by.Certify("prod", "a", own))); err != nil {
			t.Fatal(err)
		}
		if got := buildKeyOf(t, a); (got != nil) != (by == authority) {
			t.Errorf("after another join: %v", got)
		}
	}
	outside := installation.Open(t.TempDir())
	if err := outside.UpdateBuildKey(certified(authority, "prod", 1, first)); err != nil || buildKeyOf(t, outside) != nil {
		t.Errorf("outside of a cluster: %v", err)
	}
}
