package snapfile_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/snapfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func snapshot() sandbox.Snapshot {
	shape := sandbox.DefaultShape()
	return sandbox.Snapshot{
		ID: sandbox.NewSnapshotID(), Name: "before", Memory: true, Template: "base", Image: strings.Repeat("ab", 32), Shape: shape,
		Limits: shape.Limits(), Network: sandbox.NetworkNone, Env: map[string]string{"A": "1"}, User: "user", Cwd: "/workspace", Timeline: 3,
	}
}

// written returns the file of a Snapshot with content.
func written(t testing.TB, s sandbox.Snapshot, content []byte) []byte {
	t.Helper()
	var file bytes.Buffer
	w := snapfile.NewWriter(&file, snapfile.HeadOf(s))
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// read returns the head and content of a file. Its error is nil only if the file was read
// to its end.
func read(from io.Reader) (snapfile.Head, []byte, error) {
	r, head, err := snapfile.NewReader(from)
	if err != nil {
		return head, nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	return head, content, err
}

// A file with an image has a later version. A version number that does not match the head
// is refused.
func TestWithImage(t *testing.T) {
	var file bytes.Buffer
	head := snapfile.HeadOf(snapshot())
	head.WithImage = true
	w := snapfile.NewWriter(&file, head)
	if _, err := w.Write([]byte("content")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got, content, err := read(bytes.NewReader(file.Bytes())); err != nil || !got.WithImage || string(content) != "content" {
		t.Errorf("%+v, %q, %v", got, content, err)
	}
	for _, version := range []byte{1, 3} {
		changed := bytes.Clone(file.Bytes())
		changed[9] = version
		if _, _, err := read(bytes.NewReader(changed)); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("as version %d: %v", version, err)
		}
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func TestRoundTrip(t *testing.T) {
	s := snapshot()
	for name, content := range map[string][]byte{
		"one byte": {1}, "zeros": make([]byte, 20<<20), "noise": noise(5 << 20), "text": bytes.Repeat([]byte("all work and no play "), 1000),
	} {
		file := written(t, s, content)
		for _, from := range []io.Reader{bytes.NewReader(file), iotest.HalfReader(bytes.NewReader(file)), iotest.DataErrReader(bytes.NewReader(file))} {
			head, got, err := read(from)
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%s: %d bytes, %v", name, len(got), err)
			}
			origin, err := head.Origin()
			want := s
			want.ID = ""
			if err != nil || !reflect.DeepEqual(origin, want) || head.Snapshot != s.ID {
				t.Errorf("%s: %+v, %v", name, origin, err)
			}
		}
	}
	if n := len(written(t, s, make([]byte, 20<<20))); n > 10<<10 {
		t.Errorf("20 MiB of zeros take %d bytes", n)
	}
}

func refused(t *testing.T, what string, file []byte) {
	t.Helper()
	_, _, err := read(bytes.NewReader(file))
	var told *sandbox.Error
	if !errors.As(err, &told) || told.Code != sandbox.Invalid {
		t.Errorf("%s: %v", what, err)
	}
}

// A truncated, changed or extended file is refused.
func TestNotWhole(t *testing.T) {
	file := written(t, snapshot(), noise(3000))
	for n := range file {
		refused(t, "cut", file[:n])
	}
	for i := range file {
		changed := slices.Clone(file)
		changed[i] ^= 1 << (i % 8)
		refused(t, "changed", changed)
	}
	refused(t, "with more", append(slices.Clone(file), 0))
	refused(t, "twice", slices.Concat(file, file))
}

// summed returns a file of parts with a correct checksum.
func summed(version uint16, head []byte, parts ...[]byte) []byte {
	out := binary.BigEndian.AppendUint16([]byte("CSBXSNAP"), version)
	out = binary.BigEndian.AppendUint32(out, uint32(len(head)))
	out = append(out, head...)
	for _, p := range parts {
		out = binary.BigEndian.AppendUint32(out, uint32(len(p)))
		out = append(out, p...)
	}
	out = append(out, 0, 0, 0, 0)
	sum := sha256.Sum256(out)
	return append(out, sum[:]...)
}

// A correct checksum does not make a malformed file valid.
func TestForged(t *testing.T) {
	head, err := json.Marshal(snapfile.HeadOf(snapshot()))
	if err != nil {
		t.Fatal(err)
	}
	for what, file := range map[string][]byte{
		"a later version":      summed(snapfile.Version+1, head),
		"no head":              summed(snapfile.Version, nil),
		"a head that is none":  summed(snapfile.Version, []byte("[]")),
		"an unknown field":     summed(snapfile.Version, []byte(`{"path": "/etc"}`)),
		"two heads":            summed(snapfile.Version, append(slices.Clone(head), head...)),
		"content that is none": summed(snapfile.Version, head, []byte("not compressed")),
		"a chunk too long":     summed(snapfile.Version, head, make([]byte, 1<<20+1)),
		"a head too long":      summed(snapfile.Version, append(head, bytes.Repeat([]byte(" "), 1<<20)...)),
	} {
		refused(t, what, file)
	}
	for what, edit := range map[string]func(*snapfile.Head){
		"template": func(h *snapfile.Head) { h.Template = "../base" },
		"shape":    func(h *snapfile.Head) { h.Shape.MemoryBytes = 1 << 60 },
		"limits":   func(h *snapfile.Head) { h.Limits.MemoryBytes = h.Shape.MemoryBytes + 1 },
		"network":  func(h *snapfile.Head) { h.Network = "all" },
		"name":     func(h *snapfile.Head) { h.Name = "a/b" },
		"env":      func(h *snapfile.Head) { h.Env = map[string]string{"A=B": "c"} },
		"cwd":      func(h *snapfile.Head) { h.Cwd = "/\x00" },
		"timeline": func(h *snapfile.Head) { h.Timeline = 0 },
	} {
		h := snapfile.HeadOf(snapshot())
		edit(&h)
		if _, err := h.Origin(); sandbox.CodeOf(err) != sandbox.Invalid {
			t.Errorf("a wrong %s: %v", what, err)
		}
	}
}

// A failure of the source is returned unchanged, not as a truncated file.
func TestFailureOfTheSource(t *testing.T) {
	file := written(t, snapshot(), noise(100000))
	slow := sandbox.Errorf(sandbox.TooLarge, "too slow")
	for _, n := range []int{0, 5, 12, 300, 50000, len(file) - 3} {
		from := io.MultiReader(bytes.NewReader(file[:n]), iotest.ErrReader(slow))
		if _, _, err := read(from); !errors.Is(err, slow) {
			t.Errorf("failing at %d of %d: %v", n, len(file), err)
		}
	}
}

// failing accepts n bytes and then fails.
type failing struct{ n int }

func (f *failing) Write(p []byte) (int, error) {
	if f.n -= len(p); f.n < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

func TestFailureOfTheTarget(t *testing.T) {
	size := len(written(t, snapshot(), noise(9<<20)))
	for _, n := range []int{0, 100, 1 << 20, size - 1} {
		w := snapfile.NewWriter(&failing{n}, snapfile.HeadOf(snapshot()))
		_, err := w.Write(noise(9 << 20))
		if err == nil {
			err = w.Close()
		} else {
			w.Abandon()
		}
		if !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("a target that takes %d bytes: %v", n, err)
		}
	}
	w := snapfile.NewWriter(io.Discard, snapfile.Head{})
	w.Abandon()
	if err := w.Close(); err == nil {
		t.Error("a file without content is one")
	}
}

func FuzzReader(f *testing.F) {
	file := written(f, snapshot(), noise(300))
	f.Add(file)
	f.Add(file[:len(file)-1])
	f.Add([]byte("CSBXSNAP"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		head, _, err := read(bytes.NewReader(raw))
		if err != nil {
			return
		}
		sum := sha256.Sum256(raw[:len(raw)-sha256.Size])
		if !bytes.Equal(sum[:], raw[len(raw)-sha256.Size:]) {
			t.Fatal("a wrong sum was taken")
		}
		if _, err := head.Origin(); err != nil && sandbox.CodeOf(err) != sandbox.Invalid {
			t.Fatal(err)
		}
	})
}
