package server

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// portHost is a sentry host that starts nothing.
func portHost(t *testing.T) *Host {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "guest.erofs"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "image.erofs"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "saved"), 0o700))
	h := &Host{
		cfg:    Config{Saved: filepath.Join(dir, "saved"), Images: dir, GuestImage: filepath.Join(dir, "guest.erofs"), SidecarDir: filepath.Join(dir, "build"), Build: "build"},
		naming: map[string]chan struct{}{}, keys: installation.Open(filepath.Join(dir, "saved")), opened: map[string]int{},
	}
	return h
}

// stateOf saves a state.
func stateOf(t *testing.T, h *Host, memory bool) string {
	t.Helper()
	return stateOfImage(t, h, memory, "image")
}

func stateOfImage(t *testing.T, h *Host, memory bool, image string) string {
	t.Helper()
	return stateOfPages(t, h, memory, image, -1)
}

// stateOfPages is stateOfImage with a pages file of n bytes; -1: of some.
func stateOfPages(t *testing.T, h *Host, memory bool, image string, n int) string {
	t.Helper()
	m := &sentryhost.Manifest{
		Name: sandbox.NewSnapshotID(), Boot: sandbox.NewBootID(), Memory: memory, Build: "build", Engine: h.engineVersion(),
		Image: image, Shape: sandbox.DefaultShape(),
	}
	d, err := h.newDraft(m, 1<<20, 0)
	must(t, err)
	for i, f := range d.files {
		bytesOf := 1000 * (i + 1)
		if n >= 0 && i == len(d.files)-1 {
			bytesOf = n
		}
		_, err := f.Write(bytes.Repeat([]byte{byte(i + 1)}, bytesOf))
		must(t, err)
	}
	_, err = d.finish()
	must(t, err)
	return m.Name
}

// carriedState is a state in transfer.
type carriedState struct {
	proof   sentryhost.Proof
	bytes   []byte
	revoked []byte // list of revoked sentry hosts, as the server passes it on
}

func exported(t *testing.T, h *Host, name string) carriedState {
	t.Helper()
	return exportedWith(t, h, sentryhost.ExportRequest{Name: name})
}

func exportedWith(t *testing.T, h *Host, r sentryhost.ExportRequest) carriedState {
	t.Helper()
	reply, files, err := h.export(t.Context(), r)
	must(t, err)
	defer closeAll(files)
	s := carriedState{proof: reply.(sentryhost.Proof)}
	if r.Image { // the image goes first
		last := len(files) - 1
		files = append(files[last:], files[:last]...)
	}
	for _, f := range files {
		raw, err := io.ReadAll(f)
		must(t, err)
		s.bytes = append(s.bytes, raw...)
	}
	return s
}

// give sends a state through a pipe.
func (s carriedState) give(t *testing.T, h *Host, name, end string) (sandbox.Saved, error) {
	t.Helper()
	out, in, err := os.Pipe()
	must(t, err)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = in.Write(append(bytes.Clone(s.bytes), end...)) // the import may fail earlier
		in.Close()
	}()
	saved, err := h.take(t.Context(), sentryhost.ImportRequest{Name: name, Proof: s.proof, Revoked: s.revoked}, &fdrpc.Request{Files: []*os.File{out}})
	<-sent
	return saved, err
}

const good = string(sentryhost.ImportEnd)

func TestExportAndTake(t *testing.T) {
	from, to := portHost(t), portHost(t)
	for _, memory := range []bool{true, false} {
		name := stateOf(t, from, memory)
		s := exported(t, from, name)
		next := sandbox.NewSnapshotID()
		if _, err := s.give(t, to, next, good); !errors.Is(err, sandbox.Denied) {
			t.Fatalf("taken of one that is not trusted: %v", err)
		}
		own, err := from.keys.Own()
		must(t, err)
		must(t, to.keys.Trust(own))
		saved, err := s.give(t, to, next, good)
		if err != nil || saved.Memory != memory || saved.Bytes < int64(len(s.bytes)) {
			t.Fatalf("taken as %+v, %v", saved, err)
		}
		must(t, to.keys.Distrust(own))
		m, _, err := to.readManifest(next)
		must(t, err)
		files, err := to.openSaved(m)
		must(t, err)
		must(t, verify(m, files))
		closeAll(files)
		if again := exported(t, to, next); !bytes.Equal(again.bytes, s.bytes) || again.proof.Key == s.proof.Key {
			t.Error("what was taken is exported as something else, or as another's")
		}
		if _, err := s.give(t, from, name, good); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("taken as what is there: %v", err)
		}
		must(t, to.deleteSaved(next))
	}
}

// The layer of a sandbox with only empty files has no pages.
func TestTakeWithoutPages(t *testing.T) {
	from, to := portHost(t), portHost(t)
	own, err := from.keys.Own()
	must(t, err)
	must(t, to.keys.Trust(own))
	s := exported(t, from, stateOfPages(t, from, false, "image", 0))
	if _, err := s.give(t, to, sandbox.NewSnapshotID(), good); err != nil {
		t.Error(err)
	}
}

// A state is exported with its image on request. The image is imported only if it matches
// the digest in the state.
func TestTakeWithImage(t *testing.T) {
	from, to := portHost(t), portHost(t)
	content := bytes.Repeat([]byte("an image "), 1000)
	digest := hex.EncodeToString(sum(content))
	must(t, os.WriteFile(filepath.Join(from.cfg.Images, digest+".erofs"), content, 0o644))
	name := stateOfImage(t, from, true, digest)
	own, err := from.keys.Own()
	must(t, err)
	must(t, to.keys.Trust(own))
	if _, err := exported(t, from, name).give(t, to, sandbox.NewSnapshotID(), good); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("taken without the image: %v", err)
	}
	s := exportedWith(t, from, sentryhost.ExportRequest{Name: name, Image: true})
	if s.proof.ImageBytes != int64(len(content)) {
		t.Fatalf("the image has %d bytes, not %d", s.proof.ImageBytes, len(content))
	}
	changed := carriedState{proof: s.proof, bytes: bytes.Clone(s.bytes)}
	changed.bytes[17] ^= 1
	shorter := carriedState{proof: s.proof, bytes: s.bytes}
	shorter.proof.ImageBytes--
	for what, tt := range map[string]struct {
		s    carriedState
		end  string
		want sandbox.Code
	}{
		"a changed image":  {changed, good, sandbox.Invalid},
		"another length":   {shorter, good, sandbox.Invalid},
		"a negative one":   {carriedState{proof: withImage(s.proof, -1), bytes: s.bytes}, good, sandbox.Invalid},
		"a huge one":       {carriedState{proof: withImage(s.proof, 1<<60), bytes: s.bytes}, good, sandbox.Invalid},
		"more than fits":   {carriedState{proof: withImage(s.proof, maxImage), bytes: s.bytes}, good, sandbox.Exhausted},
		"an image cut off": {carriedState{proof: s.proof, bytes: s.bytes[:100]}, "", sandbox.Invalid},
	} {
		if _, err := tt.s.give(t, to, sandbox.NewSnapshotID(), tt.end); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %s", what, err, tt.want)
		}
		if left, err := filepath.Glob(filepath.Join(to.cfg.Images, "*")); err != nil || len(left) != 3 { // image, guest, saved
			t.Errorf("%s left %v, %v", what, left, err)
		}
	}
	for range 2 { // the second time the image exists
		if _, err := s.give(t, to, sandbox.NewSnapshotID(), good); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(to.cfg.Images, digest+".erofs")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the image has %d bytes, %v", len(got), err)
	}
	if _, err := shorter.give(t, to, sandbox.NewSnapshotID(), good); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("taken with another image than is there: %v", err)
	}
	must(t, os.Remove(filepath.Join(from.cfg.Images, digest+".erofs")))
	if _, _, err := from.export(t.Context(), sentryhost.ExportRequest{Name: name, Image: true}); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("exported with an image that is gone: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(to.cfg.Images, incomingPrefix+"1"), nil, 0o600))
	to.removeIncoming()
	if left, err := filepath.Glob(filepath.Join(to.cfg.Images, incomingPrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("left of what was cut: %v, %v", left, err)
	}
}

func withImage(p sentryhost.Proof, n int64) sentryhost.Proof {
	p.ImageBytes = n
	return p
}

// A state without a valid proof is not imported and leaves nothing.
func TestTakeRefuses(t *testing.T) {
	h := portHost(t)
	stranger := installation.Open(t.TempDir())
	base := exported(t, h, stateOf(t, h, true))
	edited := func(edit func(*sentryhost.Manifest, *carriedState)) func() carriedState {
		return func() carriedState {
			s := carriedState{proof: base.proof, bytes: base.bytes}
			s.proof.Sums = slices.Clone(base.proof.Sums)
			var m sentryhost.Manifest
			must(t, json.Unmarshal(base.proof.Manifest, &m))
			edit(&m, &s)
			var err error
			s.proof.Manifest, err = json.Marshal(m)
			must(t, err)
			signature, by, err := h.keys.Sign(s.proof.Statement())
			must(t, err)
			s.proof.Signature, s.proof.Key = signature, by.String()
			return s
		}
	}
	for what, tt := range map[string]struct {
		make func() carriedState
		end  string
		want sandbox.Code
	}{
		"no end":      {func() carriedState { return base }, "", sandbox.Invalid},
		"another end": {func() carriedState { return base }, "x", sandbox.Invalid},
		"more":        {func() carriedState { return base }, good + good, sandbox.Invalid},
		"less":        {func() carriedState { return carriedState{proof: base.proof, bytes: base.bytes[:len(base.bytes)-1]} }, good, sandbox.Invalid},
		"nothing":     {func() carriedState { return carriedState{proof: base.proof} }, "", sandbox.Invalid},
		"something else": {func() carriedState {
			return carriedState{proof: base.proof, bytes: bytes.Map(func(r rune) rune { return r + 1 }, base.bytes)}
		}, good, sandbox.Invalid},
		"no proof":        {func() carriedState { return carriedState{bytes: base.bytes} }, good, sandbox.Invalid},
		"another key":     {func() carriedState { return resigned(t, base, stranger) }, good, sandbox.Denied},
		"a changed proof": {func() carriedState { s := base; s.proof.Manifest = append([]byte(" "), s.proof.Manifest...); return s }, good, sandbox.Invalid},
		"a later gVisor":  {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Engine = "later" }), good, sandbox.Conflict},
		"another build":   {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Build = "other" }), good, sandbox.Conflict},
		"a build's path":  {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Build = "../build" }), good, sandbox.Invalid},
		"another image":   {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Image = "other" }), good, sandbox.Conflict},
		"an image's path": {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Image = "../image" }), good, sandbox.Conflict},
		"a file's path":   {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Files[0].Name = "../x" }), good, sandbox.Invalid},
		"a file less":     {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Files = m.Files[1:] }), good, sandbox.Invalid},
		"a sum less":      {edited(func(_ *sentryhost.Manifest, s *carriedState) { s.proof.Sums = s.proof.Sums[1:] }), good, sandbox.Invalid},
		"a huge file":     {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Files[2].Bytes = 1 << 60 }), good, sandbox.Invalid},
		"a negative file": {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Files[2].Bytes = -1 }), good, sandbox.Invalid},
		"no shape":        {edited(func(m *sentryhost.Manifest, _ *carriedState) { m.Shape = sandbox.Shape{} }), good, sandbox.Invalid},
	} {
		name := sandbox.NewSnapshotID()
		if _, err := tt.make().give(t, h, name, tt.end); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %s", what, err, tt.want)
		}
		if _, _, err := h.readManifest(name); !errors.Is(err, sandbox.NotFound) {
			t.Errorf("%s left something: %v", what, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(h.cfg.Saved, asidePrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("left aside: %v, %v", left, err)
	}
	if _, err := base.give(t, h, "../x", good); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("taken as nonsense: %v", err)
	}
	if _, err := base.give(t, h, sandbox.NewSnapshotID(), good); err != nil {
		t.Errorf("what is right: %v", err)
	}
}

func resigned(t *testing.T, s carriedState, by *installation.Keys) carriedState {
	t.Helper()
	signature, key, err := by.Sign(s.proof.Statement())
	must(t, err)
	s.proof.Signature, s.proof.Key = signature, key.String()
	return s
}

// What a sentry host of the same cluster signed is taken until its key is revoked.
func TestTakeFromTheCluster(t *testing.T) {
	authority := installation.Open(t.TempDir())
	enlist := func(h *Host, node string) installation.Key {
		own, err := h.keys.Own()
		must(t, err)
		m, err := authority.Certify("prod", node, own)
		must(t, err)
		must(t, h.keys.Enlist(m))
		return own
	}
	from, to := portHost(t), portHost(t)
	keyFrom := enlist(from, "a")
	enlist(to, "b")
	s := exported(t, from, stateOf(t, from, true))
	_, err := s.give(t, to, sandbox.NewSnapshotID(), good)
	must(t, err)

	stolen := s
	stolen.proof.Certificate = nil
	if _, err := stolen.give(t, to, sandbox.NewSnapshotID(), good); !errors.Is(err, sandbox.Denied) {
		t.Errorf("taken without a certificate: %v", err)
	}
	if _, err := exported(t, to, stateOf(t, to, true)).give(t, portHost(t), sandbox.NewSnapshotID(), good); !errors.Is(err, sandbox.Denied) {
		t.Errorf("taken outside of the cluster: %v", err)
	}
	s.revoked, err = authority.Revoke([]installation.Key{keyFrom})
	must(t, err)
	if _, err := s.give(t, to, sandbox.NewSnapshotID(), good); !errors.Is(err, sandbox.Denied) {
		t.Errorf("taken from a revoked sentry host: %v", err)
	}
	must(t, to.keys.Trust(keyFrom))
	if _, err := s.give(t, to, sandbox.NewSnapshotID(), good); !errors.Is(err, sandbox.Denied) {
		t.Errorf("taken from a revoked sentry host that an operator trusts: %v", err)
	}
	s.revoked = nil
	if _, err := s.give(t, to, sandbox.NewSnapshotID(), good); !errors.Is(err, sandbox.Denied) {
		t.Errorf("taken once the list was held back: %v", err)
	}
	s.revoked = []byte("{}")
	if _, err := s.give(t, to, sandbox.NewSnapshotID(), good); !errors.Is(err, sandbox.Denied) {
		t.Errorf("taken with a forged list: %v", err)
	}
}
