package builds

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/disk"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
)

const end = '.'

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	key, _, err := NewKey()
	must(t, err)
	return key
}

// programs makes a folder lib/BUILD with programs of which the first is this test's own.
func programs(t *testing.T) (dir string, m Manifest) {
	t.Helper()
	made := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	for name, content := range map[string][]byte{payload.Sentry: self, payload.Link: []byte("a link shard"), payload.GuestImage: []byte("a guest")} {
		must(t, os.WriteFile(filepath.Join(made, name), content, 0o755))
	}
	m, err = Read(made)
	must(t, err)
	dir = filepath.Join(lib(t), m.Build)
	must(t, os.Rename(made, dir))
	must(t, os.Chmod(dir, 0o755))
	return dir, m
}

// lib makes a folder for builds on the disk of t.TempDir.
func lib(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "lib")
	must(t, os.Mkdir(dir, 0o755))
	return dir
}

func signed(t *testing.T, m Manifest, key ed25519.PrivateKey) []byte {
	t.Helper()
	s, err := Sign(m, key)
	must(t, err)
	raw, err := s.Marshal()
	must(t, err)
	return raw
}

// refuses checks that err is a Conflict that clients see, with a text.
func refuses(t *testing.T, what string, err error, text string) {
	t.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Code != sandbox.Conflict || !strings.Contains(e.Detail, text) {
		t.Errorf("%s: %v, want %q", what, err, text)
	}
}

func TestRead(t *testing.T) {
	_, m := programs(t)
	if m.Arch != runtime.GOARCH || !slices.Equal(m.names(), payload.Names()) || m.check() != nil {
		t.Errorf("%+v", m)
	}
	empty, text := t.TempDir(), t.TempDir()
	for _, name := range payload.Names() {
		must(t, os.WriteFile(filepath.Join(text, name), []byte("text"), 0o755))
	}
	linked := t.TempDir()
	must(t, os.Symlink("/proc/self/exe", filepath.Join(linked, payload.Sentry)))
	for name, dir := range map[string]string{"an empty folder": empty, "no folder": filepath.Join(empty, "none"), "no programs": text} {
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "holds no build of Cloud Sandbox") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Read(linked); err == nil {
		t.Error("a link is a program")
	}
}

func TestOpen(t *testing.T) {
	_, m := programs(t)
	key, stranger := newKey(t), newKey(t)
	good := signed(t, m, key)
	if got, err := Open(good, m.Build, PublicOf(key)); err != nil || got.Build != m.Build || len(got.Programs) != len(m.Programs) {
		t.Fatalf("%+v, %v", got, err)
	}
	altered := func(change func(*Signed)) []byte {
		var s Signed
		must(t, json.Unmarshal(good, &s))
		change(&s)
		raw, err := json.Marshal(s)
		must(t, err)
		return raw
	}
	const unreadable, wrong, other = "cannot be read", "signature is wrong", "another key"
	program := func(change func(*Program)) []byte { return altered(func(s *Signed) { change(&s.Programs[0]) }) }
	for name, tt := range map[string]struct {
		raw  []byte
		want string
	}{
		"no text":               {nil, unreadable},
		"half of it":            {good[:len(good)/2], unreadable},
		"too long":              {append(bytes.Repeat([]byte(" "), MaxSignature), good...), unreadable},
		"null":                  {[]byte("null"), unreadable},
		"of a stranger":         {signed(t, m, stranger), other},
		"a stranger's as ours":  {altered(func(s *Signed) { s.Signature = ed25519.Sign(stranger, s.statement()) }), wrong},
		"without a signature":   {altered(func(s *Signed) { s.Signature = nil }), wrong},
		"a short signature":     {altered(func(s *Signed) { s.Signature = s.Signature[:8] }), wrong},
		"without a key":         {altered(func(s *Signed) { s.Key = PublicOf(stranger) }), other},
		"another architecture":  {altered(func(s *Signed) { s.Arch = "riscv64" }), wrong},
		"another build":         {altered(func(s *Signed) { s.Build = "0123456789abcdef" }), unreadable},
		"a path as a build":     {altered(func(s *Signed) { s.Build = "../0123456789abc" }), unreadable},
		"another size":          {program(func(p *Program) { p.Bytes++ }), wrong},
		"another hash":          {program(func(p *Program) { p.SHA256 = strings.Repeat("0", 64) }), wrong},
		"no hash":               {program(func(p *Program) { p.SHA256 = "" }), unreadable},
		"a huge program":        {program(func(p *Program) { p.Bytes = maxProgram + 1 }), unreadable},
		"an empty program":      {program(func(p *Program) { p.Bytes = 0 }), unreadable},
		"a path as a name":      {program(func(p *Program) { p.Name = "../x" }), unreadable},
		"a hidden name":         {program(func(p *Program) { p.Name = ".x" }), unreadable},
		"the signature's name":  {program(func(p *Program) { p.Name = SignatureName }), unreadable},
		"one program twice":     {altered(func(s *Signed) { s.Programs[1] = s.Programs[0] }), unreadable},
		"a program less":        {altered(func(s *Signed) { s.Programs = s.Programs[1:] }), unreadable},
		"programs in new order": {altered(func(s *Signed) { slices.Reverse(s.Programs) }), wrong},
	} {
		_, err := Open(tt.raw, m.Build, PublicOf(key))
		refuses(t, name, err, tt.want)
		refuses(t, name, err, "cluster sign-build")
	}
	if _, err := Sign(Manifest{Build: m.Build}, key); err == nil {
		t.Error("signed a manifest without programs")
	}
}

func TestReadKey(t *testing.T) {
	dir := t.TempDir()
	key, text, err := NewKey()
	must(t, err)
	file := func(name string, content []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, content, mode))
		must(t, os.Chmod(path, mode))
		return path
	}
	if got, err := ReadKey(file("good", text, 0o600)); err != nil || !got.Equal(key) {
		t.Errorf("%v", err)
	}
	block, _ := pem.Decode(text)
	for _, tt := range []struct{ path, want string }{
		{filepath.Join(dir, "none"), "no such file"},
		{dir, "not a file"},
		{file("shared", text, 0o640), "chmod 600"},
		{file("readable", text, 0o604), "chmod 600"},
		{file("empty", nil, 0o600), "no private key in PEM"},
		{file("public", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: block.Bytes}), 0o600), "no private key in PEM"},
		{file("broken", pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: block.Bytes[:10]}), 0o600), "broken"},
	} {
		if _, err := ReadKey(tt.path); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.path, err, tt.want)
		}
	}
}

// Only the signed programs verify, and only if no other user can change them.
func TestVerify(t *testing.T) {
	key := newKey(t)
	const notSigned, notTheSigned, others = "it is not signed", "is not the signed one", "can change its programs"
	for name, tt := range map[string]struct {
		change func(dir string)
		want   string
	}{
		"as signed":         {func(string) {}, ""},
		"without signature": {func(dir string) { must(t, os.Remove(filepath.Join(dir, SignatureName))) }, notSigned},
		"a longer program": {func(dir string) {
			f, err := os.OpenFile(filepath.Join(dir, payload.Link), os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			_, err = f.WriteString("x")
			must(t, errors.Join(err, f.Close()))
		}, notTheSigned},
		"a shorter program": {func(dir string) { must(t, os.Truncate(filepath.Join(dir, payload.Sentry), 1<<20)) }, notTheSigned},
		"other content": {func(dir string) {
			must(t, os.WriteFile(filepath.Join(dir, payload.Link), []byte("a link shorn"), 0o755))
		}, notTheSigned},
		"a missing program": {func(dir string) { must(t, os.Remove(filepath.Join(dir, payload.GuestImage))) }, others},
		"a program for all": {func(dir string) { must(t, os.Chmod(filepath.Join(dir, payload.Link), 0o757)) }, others},
		"a folder for all":  {func(dir string) { must(t, os.Chmod(dir, 0o777)) }, others},
		"a parent for all":  {func(dir string) { must(t, os.Chmod(filepath.Dir(dir), 0o777)) }, others},
		"a link to the program": {func(dir string) {
			path := filepath.Join(dir, payload.Link)
			must(t, errors.Join(os.Rename(path, path+".away"), os.Symlink(path+".away", path)))
		}, notTheSigned},
	} {
		dir, m := programs(t)
		must(t, Keep(dir, signed(t, m, key), PublicOf(key)))
		tt.change(dir)
		err := Verify(dir, PublicOf(key))
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		refuses(t, name, err, tt.want)
	}
	dir, m := programs(t)
	must(t, Keep(dir, signed(t, m, key), PublicOf(key)))
	for _, mode := range []os.FileMode{0o755, 0o777} { // of the folder with the second of two links
		between := filepath.Join(lib(t), "between")
		first := filepath.Join(filepath.Dir(between), "first")
		must(t, errors.Join(os.Mkdir(between, 0o700), os.Chmod(between, mode)))
		must(t, errors.Join(os.Symlink(filepath.Dir(dir), filepath.Join(between, "second")), os.Symlink("between/second", first)))
		err := Verify(filepath.Join(first, m.Build), PublicOf(key))
		if mode == 0o755 {
			must(t, err)
			continue
		}
		refuses(t, "a link that all can replace", err, others)
	}
	dir, m = programs(t)
	refuses(t, "a stranger's signature is kept", Keep(dir, signed(t, m, newKey(t)), PublicOf(key)), "another key")
	m.Programs[1].Bytes++
	refuses(t, "a signature of others is kept", Keep(dir, signed(t, m, key), PublicOf(key)), notTheSigned)
	refuses(t, "what was not kept", HasSignature(dir, PublicOf(key)), notSigned)
	m.Programs[1].Bytes--
	m.Arch = "riscv64"
	refuses(t, "another architecture", Keep(dir, signed(t, m, key), PublicOf(key)), "riscv64")
}

// What was put is received as it was. What was altered meanwhile leaves nothing.
func TestStore(t *testing.T) {
	key := newKey(t)
	dir, m := programs(t)
	raw := signed(t, m, key)
	s, err := Sign(m, key)
	must(t, err)
	for name, tt := range map[string]struct {
		change func(t *testing.T, blobs string)
		want   string
	}{
		"as put": {func(*testing.T, string) {}, ""},
		"an altered piece": {func(t *testing.T, blobs string) {
			path := filepath.Join(blobs, filepath.FromSlash(pieceBlob(m.Programs[1], 0)))
			must(t, os.WriteFile(path, bytes.ToUpper([]byte("a link shard")), 0o600))
		}, "link differs"},
		"a truncated piece": {func(t *testing.T, blobs string) {
			must(t, os.Truncate(filepath.Join(blobs, filepath.FromSlash(pieceBlob(m.Programs[0], 0))), 1000))
		}, "gvisor_sentry differs"},
		"a missing piece": {func(t *testing.T, blobs string) {
			must(t, os.Remove(filepath.Join(blobs, filepath.FromSlash(pieceBlob(m.Programs[2], 0)))))
		}, "guest.erofs differs"},
	} {
		t.Run(name, func(t *testing.T) {
			blobs, to := t.TempDir(), lib(t)
			store := Store{disk.Open(blobs)}
			must(t, store.Put(t.Context(), s, dir))
			tt.change(t, blobs)
			got, err := store.Signature(t.Context(), m.Build)
			if err != nil || !bytes.Equal(got, raw) {
				t.Fatalf("the signature is %s, %v", got, err)
			}
			var sent bytes.Buffer
			err = store.Copy(t.Context(), m, &sent)
			if err == nil {
				sent.WriteByte(end)
				err = Receive(to, raw, m, &sent, end)
			}
			if tt.want == "" {
				must(t, err)
				must(t, Verify(filepath.Join(to, m.Build), PublicOf(key)))
				return
			}
			refuses(t, name, err, tt.want)
			if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
				t.Errorf("left are %v, %v", left, err)
			}
		})
	}
	if _, err := (Store{disk.Open(t.TempDir())}).Signature(t.Context(), m.Build); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("the signature of a build that was never put: %v", err)
	}
	changed := s
	changed.Programs = slices.Clone(s.Programs)
	changed.Programs[1].SHA256 = strings.Repeat("0", 64)
	if err := (Store{disk.Open(t.TempDir())}).Put(t.Context(), changed, dir); err == nil || !strings.Contains(err.Error(), "changed since it was signed") {
		t.Errorf("a file that has changed was put: %v", err)
	}
}

func TestReceiveRefuses(t *testing.T) {
	key := newKey(t)
	dir, m := programs(t)
	raw := signed(t, m, key)
	var all []byte
	for _, name := range m.names() {
		content, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		all = append(all, content...)
	}
	for name, sent := range map[string][]byte{
		"nothing":         nil,
		"one byte":        all[:1],
		"half":            all[:len(all)/2],
		"without its end": all,
		"another end":     append(bytes.Clone(all), 'x'),
		"more":            append(bytes.Clone(all), "xx."...),
		"something after": append(bytes.Clone(all), ".."...),
	} {
		to := lib(t)
		refuses(t, name, Receive(to, raw, m, bytes.NewReader(sent), end), "damaged")
		if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
			t.Errorf("%s: left are %v, %v", name, left, err)
		}
	}
	to, other := lib(t), m
	other.Arch = "riscv64"
	whole := bytes.NewReader(append(all, end))
	refuses(t, "a build for another kind of machine", Receive(to, signed(t, other, key), other, whole, end), "it is for riscv64")
	if left, err := os.ReadDir(to); err != nil || len(left) > 0 || whole.Len() != len(all)+1 {
		t.Errorf("of a build for another kind of machine, %d bytes are unread and left are %v, %v", whole.Len(), left, err)
	}
}

// Nothing can be executed before all of it is verified.
func TestReceiveMakesNothingExecutableEarly(t *testing.T) {
	key := newKey(t)
	dir, m := programs(t)
	to := lib(t)
	first, err := os.ReadFile(filepath.Join(dir, m.Programs[0].Name))
	must(t, err)
	in, out, err := os.Pipe()
	must(t, err)
	received := make(chan error, 1)
	go func() { received <- Receive(to, signed(t, m, key), m, in, end) }()
	_, err = out.Write(append(first, 'x'))
	must(t, err)
	folders, err := filepath.Glob(filepath.Join(to, receiving+"*"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("%v, %v", folders, err)
	}
	if info, err := os.Stat(folders[0]); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("others may enter the folder: %v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(folders[0], m.Programs[0].Name)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the first program is %v, %v", info, err)
	}
	must(t, RemoveUnfinished(to)) // of another process, which leaves it alone
	if _, err := os.Stat(folders[0]); err != nil {
		t.Errorf("one in progress was removed: %v", err)
	}
	must(t, out.Close())
	refuses(t, "the rest", <-received, "damaged")

	must(t, os.MkdirAll(filepath.Join(to, receiving+"crash", "sub"), 0o700))
	must(t, RemoveUnfinished(to))
	if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
