package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// filled is fresh with files of all kinds, and returns the number of the folder "d".
func filled(t *testing.T) (*Disk, sandbox.VolumeRef, uint64) {
	t.Helper()
	d, of := fresh(t)
	m := mounted(t, d, of)
	folder := m.make(t, volume.OpMkdir, volume.RootNode, "d")
	file := m.make(t, volume.OpCreate, folder, "one\n\xff")
	m.must(t, volume.Request{Op: volume.OpWrite, Node: file, Data: []byte("text")})
	m.must(t, volume.Request{Op: volume.OpWrite, Node: file, Offset: 300_000, Data: []byte("end")})
	m.must(t, volume.Request{Op: volume.OpSetAttr, Node: file, Set: volume.SetUID | volume.SetMode | volume.SetModified, UID: 1234, Mode: 0o4751, Modified: 1e18 + 7})
	m.must(t, volume.Request{Op: volume.OpLink, Node: volume.RootNode, Name: "two", Other: file})
	m.make(t, volume.OpSymlink, volume.RootNode, "link")
	return d, of, folder
}

// arrives imports an export into another Disk.
func arrives(t *testing.T, export []byte, of sandbox.VolumeRef) (*Disk, error) {
	t.Helper()
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d, d.Import(t.Context(), sandbox.VolumeSpec{ID: of.ID, Tenant: of.Tenant, MaxBytes: someBytes}, bytes.NewReader(export))
}

// exported exports a Volume.
func exported(t *testing.T, d *Disk, of sandbox.VolumeRef) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := d.Export(t.Context(), of, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A Volume arrives as it was: names, numbers, owners, times, holes and what counts.
func TestCarry(t *testing.T) {
	d, of, folder := filled(t)
	m := mounted(t, d, of)
	before, err := d.Volume(of)
	if err != nil {
		t.Fatal(err)
	}
	want := before.use()
	file := m.must(t, volume.Request{Op: volume.OpLookup, Node: folder, Name: "one\n\xff"}).Attr
	there, err := arrives(t, exported(t, d, of), of)
	if err != nil {
		t.Fatal(err)
	}
	v, err := there.Volume(of)
	if err != nil {
		t.Fatal(err)
	}
	if got := v.use(); got != want {
		t.Errorf("it uses %+v, want %+v", got, want)
	}
	checkCount(t, v)
	at := mounted(t, there, of)
	got := at.must(t, volume.Request{Op: volume.OpLookup, Node: volume.RootNode, Name: "two"}).Attr
	if got.Node != file.Node || got.Mode != file.Mode || got.UID != 1234 || got.Links != 2 || got.Size != 300_003 || got.Modified != file.Modified || got.Accessed != file.Accessed {
		t.Errorf("the file is %+v, want %+v", got, file)
	}
	if got.Blocks*512 >= 300_000 {
		t.Errorf("its hole takes %d blocks", got.Blocks)
	}
	for offset, text := range map[int64]string{0: "text\x00", 299_999: "\x00end"} {
		if a := at.must(t, volume.Request{Op: volume.OpRead, Node: file.Node, Offset: offset, Size: 5}); !strings.HasPrefix(string(a.Data), text) {
			t.Errorf("at %d it has %q", offset, a.Data)
		}
	}
	link := at.must(t, volume.Request{Op: volume.OpLookup, Node: volume.RootNode, Name: "link"}).Attr
	if a := at.must(t, volume.Request{Op: volume.OpReadLink, Node: link.Node}); string(a.Data) != "/etc/passwd" {
		t.Errorf("the link has %q", a.Data)
	}
	codetest.Want(t, "a second import", there.Import(t.Context(), sandbox.VolumeSpec{ID: of.ID, Tenant: of.Tenant, MaxBytes: someBytes}, bytes.NewReader(nil)), sandbox.Conflict)
}

// What was exported is unusable until it is made again, also for a later process, and can
// be exported again and deleted.
func TestExportedIsAway(t *testing.T) {
	d, of, _ := filled(t)
	m := mounted(t, d, of)
	codetest.Want(t, "another tenant's export", d.Export(t.Context(), sandbox.VolumeRef{ID: of.ID, Tenant: "mallory"}, io.Discard), sandbox.NotFound)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Export(ended, of, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("an export that is cancelled: %v", err)
	}
	if a := m.ask(volume.Request{Op: volume.OpGetAttr, Node: volume.RootNode}); a.Err != unix.ESTALE {
		t.Errorf("a boot that has it: %v", a.Err)
	}
	again, err := Open(d.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Disk{d, again} {
		codetest.Want(t, "its use", d.Check(of), sandbox.Unavailable)
		if all, err := d.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("List = %+v, %v", all, err)
		}
	}
	if _, err := arrives(t, exported(t, again, of), of); err != nil {
		t.Errorf("a second export: %v", err)
	}
	if err := again.Create(sandbox.VolumeSpec{ID: of.ID, Tenant: of.Tenant, MaxBytes: someBytes}); err != nil {
		t.Fatal(err)
	}
	mounted(t, again, of).must(t, volume.Request{Op: volume.OpLookup, Node: volume.RootNode, Name: "two"})
	exported(t, again, of)
	if err := again.Delete(of.ID); err != nil {
		t.Error(err)
	}
	codetest.Want(t, "one that is deleted", again.Check(of), sandbox.NotFound)
}

// archive makes an export by hand.
func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		content := make([]byte, h.Size)
		if h.Name == lastName {
			content = []byte(h.Linkname)
			h.Linkname, h.Size = "", int64(len(content))
		}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// What is no export is refused, and leaves nothing.
func TestHostileImport(t *testing.T) {
	d, of, _ := filled(t)
	good := exported(t, d, of)
	pax := func(o string) map[string]string { return map[string]string{paxAttribute: o} }
	root := tar.Header{Name: "1", Typeflag: tar.TypeDir, PAXRecords: pax("40777 0 0 1 1")}
	ends := func(n string) tar.Header {
		return tar.Header{Name: lastName, Typeflag: tar.TypeReg, Linkname: `{"objects":` + n + `}`}
	}
	for name, export := range map[string][]byte{
		"nothing":                    nil,
		"no archive":                 bytes.Repeat([]byte("x"), 4096),
		"one that is cut off":        good[:len(good)/2],
		"one without its last part":  archive(t, root),
		"one with less than it says": archive(t, root, ends("2")),
		"one without a root":         archive(t, ends("0")),
		"a path":                     archive(t, root, tar.Header{Name: "../../x", Typeflag: tar.TypeReg, PAXRecords: pax("100644 0 0 1 0")}, ends("2")),
		"an absolute path":           archive(t, root, tar.Header{Name: "/etc/x", Typeflag: tar.TypeReg, PAXRecords: pax("100644 0 0 1 0")}, ends("2")),
		"an entry with a path":       archive(t, root, tar.Header{Name: "1/a/b", Typeflag: tar.TypeSymlink, Linkname: "f2"}, ends("1")),
		"an entry above":             archive(t, root, tar.Header{Name: "1/..", Typeflag: tar.TypeSymlink, Linkname: "f2"}, ends("1")),
		"an entry of no folder":      archive(t, root, tar.Header{Name: "7/a", Typeflag: tar.TypeSymlink, Linkname: "f2"}, ends("1")),
		"an entry to a path":         archive(t, root, tar.Header{Name: "1/a", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, ends("1")),
		"an entry twice":             archive(t, root, tar.Header{Name: "1/a", Typeflag: tar.TypeSymlink, Linkname: "f2"}, tar.Header{Name: "1/a", Typeflag: tar.TypeSymlink, Linkname: "f3"}, ends("1")),
		"an object twice":            archive(t, root, root, ends("2")),
		"an object without kind":     archive(t, root, tar.Header{Name: "2", Typeflag: tar.TypeReg}, ends("2")),
		"a file that is a folder":    archive(t, root, tar.Header{Name: "2", Typeflag: tar.TypeReg, PAXRecords: pax("40777 0 0 1 1")}, ends("2")),
		"a link to the host":         archive(t, root, tar.Header{Name: "2", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd", PAXRecords: pax("120777 0 0 1 0")}, ends("2")),
		"a device":                   archive(t, root, tar.Header{Name: "2", Typeflag: tar.TypeBlock, PAXRecords: pax("60777 0 0 1 0")}, ends("2")),
		"more than it may hold":      archive(t, root, tar.Header{Name: "2", Typeflag: tar.TypeReg, Size: someBytes + 1, PAXRecords: pax("100644 0 0 1 0")}, ends("2")),
	} {
		there, err := arrives(t, export, of)
		codetest.Want(t, name, err, sandbox.Invalid)
		for _, folder := range []string{volumesName, madeName} {
			if left, err := os.ReadDir(filepath.Join(there.dir, folder)); err != nil || len(left) != 0 {
				t.Errorf("%s leaves %v in %s, %v", name, left, folder, err)
			}
		}
	}
	// Sizes whose sum overflows: the file after the first one has only a header.
	small := archive(t, root, tar.Header{Name: "2", Typeflag: tar.TypeReg, Size: 512, PAXRecords: pax("100644 0 0 1 0")})
	var huge bytes.Buffer
	w := tar.NewWriter(&huge)
	if err := w.WriteHeader(&tar.Header{Format: tar.FormatPAX, Name: "3", Typeflag: tar.TypeReg, Size: math.MaxInt64, PAXRecords: pax("100644 0 0 1 0")}); err != nil {
		t.Fatal(err)
	}
	_, err := arrives(t, append(small[:len(small)-1024], huge.Bytes()...), of)
	codetest.Want(t, "more than can be counted", err, sandbox.Invalid)
	if err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("more than can be counted: %v", err)
	}
	if _, err := arrives(t, archive(t, root, ends("1")), of); err != nil {
		t.Errorf("an empty one: %v", err)
	}
}

// The error of a source that breaks stays.
func TestImportFromBrokenSource(t *testing.T) {
	d, of, _ := filled(t)
	broken := errors.New("the other end is gone")
	r := io.MultiReader(bytes.NewReader(exported(t, d, of)[:4096]), errReader{broken})
	there, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := there.Import(t.Context(), sandbox.VolumeSpec{ID: of.ID, Tenant: of.Tenant, MaxBytes: someBytes}, r); !errors.Is(err, broken) {
		t.Errorf("it fails with %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }
