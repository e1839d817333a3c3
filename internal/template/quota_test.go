package template

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// noise is n bytes that differ for every seed.
func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

// bring puts an image of n bytes without a name into the Store.
func bring(t *testing.T, s *Store, seed byte, n int) (digest string) {
	t.Helper()
	if err := s.makeFolders(); err != nil {
		t.Fatal(err)
	}
	file := s.path("build", "image")
	if err := os.WriteFile(file, noise(seed, n), 0o600); err != nil {
		t.Fatal(err)
	}
	digest, _, err := s.adopt(file)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// nameIt lets text mean an image to an owner.
func nameIt(t *testing.T, s *Store, owner sandbox.TenantID, text, digest string) {
	t.Helper()
	ref, err := ParseRef(owner, text)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.publish(ref, Image{Digest: digest}); err != nil {
		t.Fatal(err)
	}
}

const mib = 1 << 20

// The bytes of a file with a hole are those that the disk gave it.
func TestStoredIsWhatTheDiskGave(t *testing.T) {
	s := newStore(t)
	digest := bring(t, s, 1, mib)
	path := s.images().Path(digest)
	if got, err := s.stored(digest); err != nil || got != mib {
		t.Errorf("stored: %d, %v", got, err)
	}
	if err := os.Truncate(path, 16*mib); err != nil {
		t.Fatal(err)
	}
	if got, err := s.stored(digest); err != nil || got != mib {
		t.Errorf("with a hole: %d, %v", got, err)
	}
	if _, err := s.stored(strings.Repeat("0", 64)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no image: %v", err)
	}
	if _, err := s.stored("../x"); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("of no digest: %v", err)
	}
}

// An image counts once for each Tenant that names it, and not where the operator
// names it too; a removal frees the images that no Tenant needs any more.
func TestStoredBytesOfTenants(t *testing.T) {
	s := newStore(t)
	use := func(owner sandbox.TenantID, want int64) {
		t.Helper()
		if got, err := s.StoredBytes(owner); err != nil || got != want*mib {
			t.Errorf("%q has %d bytes, %v, want %d MiB", owner, got, err, want)
		}
	}
	remove := func(owner sandbox.TenantID, text string, want int64) {
		t.Helper()
		if _, freed, err := s.Remove(owner, text); err != nil || freed != want*mib {
			t.Errorf("removing %s of %q freed %d bytes, %v, want %d MiB", text, owner, freed, err, want)
		}
	}
	use("me", 0)
	one, two, shared := bring(t, s, 1, mib), bring(t, s, 2, 2*mib), bring(t, s, 3, 4*mib)
	use("me", 0)
	nameIt(t, s, "", "base", shared)
	nameIt(t, s, "me", "web", one)
	nameIt(t, s, "me", "web:1", one)
	nameIt(t, s, "me", "other", one)
	nameIt(t, s, "me", "web:2", two)
	nameIt(t, s, "me", "mine", shared)
	nameIt(t, s, "you", "web", one)
	use("me", 3)
	use("you", 1)
	use("", 0)
	if l, err := s.Find(t.Context(), "me", "web:2"); err != nil || l.Stored != 2*mib {
		t.Errorf("found %+v, %v", l, err)
	}
	remove("me", "mine", 0)
	remove("me", "web:2", 0) // its version stays
	use("me", 3)
	remove("me", "web@"+two, 2)
	use("me", 1)
	remove("me", "web", 0)
	remove("me", "other", 0) // it is another tenant's too
	use("me", 0)
	remove("you", "web", 1)
}

// A delta counts with its own bytes, and with a base that only deltas need any more;
// the last of them gives both back.
func TestStoredBytesOfDeltas(t *testing.T) {
	s := newStore(t)
	brought := bring(t, s, 1, 2*mib)
	nameIt(t, s, "me", "first", brought)
	file := s.path("build", "image")
	if err := os.WriteFile(file, append(noise(1, 2*mib), noise(2, 4096)...), 0o600); err != nil {
		t.Fatal(err)
	}
	more, _, err := s.adopt(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.publish(Ref{Owner: "me", Name: "second", Tag: Latest}, Image{Digest: more, Base: brought}); err != nil {
		t.Fatal(err)
	}
	whole, err := s.StoredBytes("me")
	if err != nil || whole < 4*mib {
		t.Errorf("before there is a delta: %d, %v", whole, err)
	}
	c := Compactor{Store: s, Log: slog.New(slog.DiscardHandler)}
	if err := c.compact(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	delta, err := s.stored(more)
	if err != nil || delta > mib {
		t.Fatalf("the delta takes %d, %v", delta, err)
	}
	use := func(when string, want int64) {
		t.Helper()
		if got, err := s.StoredBytes("me"); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", when, got, err, want)
		}
	}
	use("as a delta", 2*mib+delta)
	if _, freed, err := s.Remove("me", "first"); err != nil || freed != 0 {
		t.Errorf("removing the base freed %d, %v", freed, err)
	}
	use("without its base's name", 2*mib+delta)
	nameIt(t, s, "", "first", brought)
	use("with a base of the operator's", delta)
	if _, _, err := s.Remove("", "first"); err != nil {
		t.Error(err)
	}
	if err := s.Admit(sandbox.Quota{TemplateBytes: 1}, "me", brought); err != nil {
		t.Errorf("the base counts already: %v", err)
	}
	if _, freed, err := s.Remove("me", "second"); err != nil || freed != 2*mib+delta {
		t.Errorf("removing the last freed %d, %v, want %d", freed, err, 2*mib+delta)
	}
	use("in the end", 0)
}

func TestAdmit(t *testing.T) {
	s := newStore(t)
	mine, more, shared := bring(t, s, 1, 2*mib), bring(t, s, 2, mib), bring(t, s, 3, 9*mib)
	nameIt(t, s, "", "base", shared)
	nameIt(t, s, "me", "web", mine)
	absent := strings.Repeat("0", 64)
	for _, tt := range []struct {
		most   int64
		digest string
		room   bool
	}{
		{0, more, true},
		{3 * mib, more, true},
		{3*mib - 1, more, false},
		{2*mib + 1, "", true},
		{2*mib + 1, absent, true}, // its size is not known yet
		{2 * mib, "", false},
		{2 * mib, absent, false},
		{mib, mine, true}, // they add nothing
		{mib, shared, true},
	} {
		err := s.Admit(sandbox.Quota{TemplateBytes: tt.most}, "me", tt.digest)
		if (err == nil) != tt.room || err != nil && !errors.Is(err, sandbox.ErrOverQuota) {
			t.Errorf("%.8s beside 2 MiB of %d bytes: %v", tt.digest, tt.most, err)
		}
	}
}

// An image that was imported is kept only within the quota, and dropped unless a Tenant
// needs it.
func TestKeepWithinTheQuota(t *testing.T) {
	s := newStore(t)
	there := func(digest string) bool {
		_, err := s.stored(digest)
		return err == nil
	}
	digest := bring(t, s, 1, 2*mib)
	if err := s.Keep(sandbox.Quota{TemplateBytes: 2*mib - 1}, "me", "web", digest); !errors.Is(err, sandbox.ErrOverQuota) {
		t.Errorf("kept beyond the quota: %v", err)
	}
	if all, err := s.refs("me"); err != nil || len(all) != 0 {
		t.Errorf("named as %+v, %v", all, err)
	}
	path := s.images().Path(digest)
	user, err := os.Open(path) // as the sentry host does
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	if err := unix.Flock(int(user.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if err := s.Drop(digest); err != nil || !there(digest) {
		t.Errorf("dropped while it is used: %v, there: %v", err, there(digest))
	}
	user.Close()
	s.SetSaved(func(context.Context, string) (sandbox.Snapshot, error) { return sandbox.Snapshot{ID: "s1"}, nil })
	if err := s.Drop(digest); err != nil || !there(digest) {
		t.Errorf("dropped while a snapshot stands on it: %v, there: %v", err, there(digest))
	}
	s.SetSaved(nil)
	if err := s.Keep(sandbox.Quota{TemplateBytes: 2 * mib}, "me", "web", digest); err != nil {
		t.Error(err)
	}
	if err := s.Drop(digest); err != nil || !there(digest) {
		t.Errorf("dropped while it is named: %v, there: %v", err, there(digest))
	}
	if _, _, err := s.Remove("me", "web"); err != nil {
		t.Error(err)
	}
	other := bring(t, s, 2, mib)
	if err := s.Drop(other); err != nil || there(other) {
		t.Errorf("what nobody needs: %v, there: %v", err, there(other))
	}
	if err := s.Drop(other); err != nil {
		t.Errorf("dropped twice: %v", err)
	}
}

// Of builds at the same time as many succeed as the quota has room for; the others
// leave nothing.
func TestBuildsWithinTheQuota(t *testing.T) {
	needHost(t)
	s := newStore(t)
	const size = 4 * mib
	make := func(text string, seed byte) error {
		ref, err := ParseRef("me", text)
		if err != nil {
			return err
		}
		b := &Builder{Store: s, Quota: sandbox.Quota{TemplateBytes: 2*size + size/2}, Guard: &Guard{}}
		if err := b.ready(); err != nil {
			return err
		}
		key := s.key(ref.Owner, ref.Name)
		run := &build{Builder: b, ref: ref, name: key, dir: s.path("build", key), plan: plan{
			recipe: Recipe{Source: Debian("")},
			fill: func(b *build, ctx context.Context) error {
				if err := b.tree.makeFolder("srv", 0o755, 0); err != nil {
					return err
				}
				if err := b.tree.write("srv/noise", 0o644, string(noise(seed, size))); err != nil {
					return err
				}
				return fillSmall(b, ctx)
			},
		}}
		_, err = run.locked(t.Context())
		return err
	}
	names := []string{"a", "b", "c", "d"}
	errs := map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, text := range names {
		all.Go(func() {
			err := make(text, byte(i))
			mu.Lock()
			defer mu.Unlock()
			errs[text] = err
		})
	}
	all.Wait()
	made := 0
	var first string
	for text, err := range errs {
		switch {
		case err == nil:
			made, first = made+1, text
		case !errors.Is(err, sandbox.ErrOverQuota) || !strings.Contains(err.Error(), "MiB left, and this one has"):
			t.Errorf("%s: %v", text, err)
		}
	}
	images, err := filepath.Glob(s.path("images", "*"))
	listed, listErr := s.List("me")
	left, globErr := filepath.Glob(s.path("build", "*"))
	if err := errors.Join(err, listErr, globErr); err != nil || made != 2 || len(images) != 2 || len(listed) != 2 || len(left) != 0 {
		t.Errorf("%d were made; images %v, templates %+v, left %v, %v", made, images, listed, left, err)
	}
	if _, freed, err := s.Remove("me", first); err != nil || freed < size {
		t.Errorf("removing %s freed %d, %v", first, freed, err)
	}
	if err := make("e", 9); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
