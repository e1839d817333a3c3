package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const someBytes = 1 << 20 // the least that a Volume may hold

// fresh returns a Disk with one Volume of someBytes.
func fresh(t *testing.T) (*Disk, sandbox.VolumeRef) {
	t.Helper()
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	of := sandbox.VolumeRef{ID: sandbox.NewVolumeID(), Tenant: "alice"}
	if err := d.Create(sandbox.VolumeSpec{ID: of.ID, Tenant: of.Tenant, MaxBytes: someBytes}); err != nil {
		t.Fatal(err)
	}
	return d, of
}

// mounted returns the Volume as a Boot has it.
func mounted(t *testing.T, d *Disk, of sandbox.VolumeRef) *mount {
	t.Helper()
	v, err := d.Volume(of)
	if err != nil {
		t.Fatal(err)
	}
	return newMount(v)
}

func (m *mount) ask(r volume.Request) volume.Answer {
	return m.do(&r, make([]byte, volume.MaxData))
}

// must is ask for what succeeds.
func (m *mount) must(t *testing.T, r volume.Request) volume.Answer {
	t.Helper()
	a := m.ask(r)
	if a.Err != 0 {
		t.Fatalf("operation %d on %d %q: %v", r.Op, r.Node, r.Name, a.Err)
	}
	return a
}

func (m *mount) make(t *testing.T, op volume.Op, folder uint64, name string) uint64 {
	t.Helper()
	return m.must(t, volume.Request{Op: op, Node: folder, Name: name, Mode: 0o755, Data: data(op), Flags: volume.FlagExclusive}).Attr.Node
}

func data(op volume.Op) []byte {
	if op == volume.OpSymlink {
		return []byte("/etc/passwd")
	}
	return nil
}

// checkCount compares what is counted with what a process that begins counts.
func checkCount(t *testing.T, v *Volume) {
	t.Helper()
	again, err := openVolume(v.dir, spec{Tenant: v.tenant, MaxBytes: v.max})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := v.use(), again.use(); got != want {
		t.Errorf("the volume is counted as %+v and holds %+v", got, want)
	}
}

// TestRules walks through what a file system refuses.
func TestRules(t *testing.T) {
	d, of := fresh(t)
	m := mounted(t, d, of)
	const root = volume.RootNode
	folder := m.make(t, volume.OpMkdir, root, "folder")
	inner := m.make(t, volume.OpMkdir, folder, "inner")
	file := m.make(t, volume.OpCreate, root, "file")
	link := m.make(t, volume.OpSymlink, root, "link")
	empty := m.make(t, volume.OpMkdir, root, "empty")
	for name, tt := range map[string]struct {
		r    volume.Request
		want syscall.Errno
	}{
		"a name with a slash":        {volume.Request{Op: volume.OpLookup, Node: root, Name: "folder/inner"}, unix.EINVAL},
		"the folder above":           {volume.Request{Op: volume.OpLookup, Node: root, Name: ".."}, unix.EINVAL},
		"no name":                    {volume.Request{Op: volume.OpMkdir, Node: root}, unix.EINVAL},
		"a name with NUL":            {volume.Request{Op: volume.OpCreate, Node: root, Name: "a\x00"}, unix.EINVAL},
		"too long a name":            {volume.Request{Op: volume.OpCreate, Node: root, Name: strings.Repeat("n", 256)}, unix.ENAMETOOLONG},
		"a name that is not there":   {volume.Request{Op: volume.OpLookup, Node: root, Name: "none"}, unix.ENOENT},
		"in a file":                  {volume.Request{Op: volume.OpLookup, Node: file, Name: "x"}, unix.ENOTDIR},
		"in a link":                  {volume.Request{Op: volume.OpCreate, Node: link, Name: "x"}, unix.ENOTDIR},
		"in nothing":                 {volume.Request{Op: volume.OpLookup, Node: 12345, Name: "x"}, unix.ESTALE},
		"of nothing":                 {volume.Request{Op: volume.OpGetAttr, Node: 12345}, unix.ESTALE},
		"read a folder":              {volume.Request{Op: volume.OpRead, Node: folder, Size: 1}, unix.EISDIR},
		"read a link":                {volume.Request{Op: volume.OpRead, Node: link, Size: 1}, unix.EINVAL},
		"read before the beginning":  {volume.Request{Op: volume.OpRead, Node: file, Size: 1, Offset: -1}, unix.EINVAL},
		"write a folder":             {volume.Request{Op: volume.OpWrite, Node: folder, Data: []byte("x")}, unix.EINVAL},
		"write a link":               {volume.Request{Op: volume.OpWrite, Node: link, Data: []byte("x")}, unix.EINVAL},
		"write far out":              {volume.Request{Op: volume.OpWrite, Node: file, Offset: 1<<63 - 1, Data: []byte("x")}, unix.EFBIG},
		"write too much":             {volume.Request{Op: volume.OpWrite, Node: file, Offset: someBytes, Data: []byte("x")}, unix.ENOSPC},
		"grow too much":              {volume.Request{Op: volume.OpSetAttr, Node: file, Set: volume.SetSize, Offset: someBytes}, unix.ENOSPC},
		"grow beyond all bounds":     {volume.Request{Op: volume.OpSetAttr, Node: file, Set: volume.SetSize, Offset: 1 << 62}, unix.EFBIG},
		"a length below none":        {volume.Request{Op: volume.OpSetAttr, Node: file, Set: volume.SetSize, Offset: -1}, unix.EFBIG},
		"the length of a folder":     {volume.Request{Op: volume.OpSetAttr, Node: folder, Set: volume.SetSize}, unix.EISDIR},
		"readlink of a file":         {volume.Request{Op: volume.OpReadLink, Node: file}, unix.EINVAL},
		"readlink of a folder":       {volume.Request{Op: volume.OpReadLink, Node: folder}, unix.EINVAL},
		"a link to nothing":          {volume.Request{Op: volume.OpSymlink, Node: root, Name: "l"}, unix.EINVAL},
		"make what is there":         {volume.Request{Op: volume.OpMkdir, Node: root, Name: "file"}, unix.EEXIST},
		"create what is there":       {volume.Request{Op: volume.OpCreate, Node: root, Name: "file", Flags: volume.FlagExclusive}, unix.EEXIST},
		"create over a folder":       {volume.Request{Op: volume.OpCreate, Node: root, Name: "folder"}, unix.EEXIST},
		"unlink a folder":            {volume.Request{Op: volume.OpUnlink, Node: root, Name: "folder"}, unix.EISDIR},
		"rmdir a file":               {volume.Request{Op: volume.OpRmdir, Node: root, Name: "file"}, unix.ENOTDIR},
		"rmdir a full folder":        {volume.Request{Op: volume.OpRmdir, Node: root, Name: "folder"}, unix.ENOTEMPTY},
		"a second name of a folder":  {volume.Request{Op: volume.OpLink, Node: root, Name: "again", Other: folder}, unix.EPERM},
		"a second name that is used": {volume.Request{Op: volume.OpLink, Node: root, Name: "folder", Other: file}, unix.EEXIST},
		"move into itself":           {volume.Request{Op: volume.OpRename, Node: root, Name: "folder", Other: inner, Data: []byte("x")}, unix.EINVAL},
		"move onto itself":           {volume.Request{Op: volume.OpRename, Node: root, Name: "folder", Other: folder, Data: []byte("x")}, unix.EINVAL},
		"move over a full folder":    {volume.Request{Op: volume.OpRename, Node: root, Name: "empty", Other: root, Data: []byte("folder")}, unix.ENOTEMPTY},
		"a folder over a file":       {volume.Request{Op: volume.OpRename, Node: root, Name: "empty", Other: root, Data: []byte("file")}, unix.ENOTDIR},
		"a file over a folder":       {volume.Request{Op: volume.OpRename, Node: root, Name: "file", Other: root, Data: []byte("empty")}, unix.EISDIR},
		"move to a bad name":         {volume.Request{Op: volume.OpRename, Node: root, Name: "file", Other: root, Data: []byte("../x")}, unix.EINVAL},
		"move over, not allowed":     {volume.Request{Op: volume.OpRename, Node: root, Name: "file", Other: root, Data: []byte("link"), Flags: volume.FlagExclusive}, unix.EEXIST},
		"list a file":                {volume.Request{Op: volume.OpList, Node: file}, unix.ENOTDIR},
		"hold nothing":               {volume.Request{Op: volume.OpHold, Node: 12345}, unix.ESTALE},
		"allocate too much":          {volume.Request{Op: volume.OpAllocate, Node: file, Offset: someBytes}, unix.ENOSPC},
	} {
		t.Run(name, func(t *testing.T) {
			if a := m.ask(tt.r); a.Err != tt.want {
				t.Errorf("it ends with %v, want %v", a.Err, tt.want)
			}
		})
	}
	if a := m.must(t, volume.Request{Op: volume.OpRename, Node: root, Name: "folder", Other: root, Data: []byte("empty")}); a.Err != 0 {
		t.Error(a.Err)
	}
	if a := m.must(t, volume.Request{Op: volume.OpLookup, Node: root, Name: "empty"}); a.Attr.Node != folder {
		t.Errorf("the moved folder has the number %d, had %d", a.Attr.Node, folder)
	}
	if a := m.ask(volume.Request{Op: volume.OpGetAttr, Node: empty}); a.Err != unix.ESTALE {
		t.Errorf("the folder that was replaced answers %v", a.Err)
	}
	checkCount(t, m.v)
}

// TestDepth makes no tree deeper than is allowed, by moves neither.
func TestDepth(t *testing.T) {
	d, of := fresh(t)
	m := mounted(t, d, of)
	at, half := uint64(volume.RootNode), uint64(0)
	for i := range sandbox.MaxVolumeDepth {
		at = m.make(t, volume.OpMkdir, at, "d")
		if i == 0 {
			half = at
		}
	}
	if a := m.ask(volume.Request{Op: volume.OpCreate, Node: at, Name: "f"}); a.Err != unix.ELOOP {
		t.Errorf("a file too deep: %v", a.Err)
	}
	other := m.make(t, volume.OpMkdir, volume.RootNode, "other")
	move := volume.Request{Op: volume.OpRename, Node: volume.RootNode, Name: "d", Other: other, Data: []byte("d")}
	if a := m.ask(move); a.Err != unix.ELOOP {
		t.Errorf("a deep folder was moved deeper: %v", a.Err)
	}
	m.must(t, volume.Request{Op: volume.OpRename, Node: half, Name: "d", Other: other, Data: []byte("d")})
	checkCount(t, m.v)
}

// TestHeld reads and writes a file that has lost its name, which counts until
// nobody has it open.
func TestHeld(t *testing.T) {
	d, of := fresh(t)
	m := mounted(t, d, of)
	before := m.v.use()
	create := volume.Request{Op: volume.OpCreate, Node: volume.RootNode, Name: "f", Mode: 0o600, Flags: volume.FlagHold}
	file := m.must(t, create).Attr.Node
	content := bytes.Repeat([]byte("x"), 100_000)
	m.must(t, volume.Request{Op: volume.OpWrite, Node: file, Data: content})
	m.must(t, volume.Request{Op: volume.OpUnlink, Node: volume.RootNode, Name: "f"})
	if got := m.v.use().Bytes - before.Bytes; got != 4096+25*4096 {
		t.Errorf("a file without a name counts %d bytes", got)
	}
	if a := m.must(t, volume.Request{Op: volume.OpRead, Node: file, Size: 200_000}); !bytes.Equal(a.Data, content) {
		t.Errorf("read %d bytes of it", len(a.Data))
	}
	if a := m.ask(volume.Request{Op: volume.OpLink, Node: volume.RootNode, Name: "again", Other: file}); a.Err != unix.ENOENT {
		t.Errorf("it was given a name again: %v", a.Err)
	}
	m.must(t, volume.Request{Op: volume.OpRelease, Node: file})
	if got := m.v.use(); got != before {
		t.Errorf("the volume holds %+v, before %+v", got, before)
	}
	if a := m.ask(volume.Request{Op: volume.OpRead, Node: file, Size: 1}); a.Err != unix.ESTALE {
		t.Errorf("a read of it afterwards: %v", a.Err)
	}
	m.must(t, create)
	m.must(t, volume.Request{Op: volume.OpUnlink, Node: volume.RootNode, Name: "f"})
	m.close() // as when the Boot ends
	if got := m.v.use(); got != before {
		t.Errorf("after the boot's end the volume holds %+v, before %+v", got, before)
	}
	checkCount(t, m.v)
}

// TestAttributes keeps what a host's process without rights cannot set.
func TestAttributes(t *testing.T) {
	d, of := fresh(t)
	m := mounted(t, d, of)
	folder := m.must(t, volume.Request{Op: volume.OpMkdir, Node: volume.RootNode, Name: "d", Mode: 0o2775, UID: 7, GID: 8}).Attr
	if folder.Mode != unix.S_IFDIR|0o2775 || folder.UID != 7 || folder.GID != 8 {
		t.Errorf("the folder has %+v", folder)
	}
	file := m.must(t, volume.Request{Op: volume.OpCreate, Node: folder.Node, Name: "f", Mode: 0o4755, UID: 9, GID: 9}).Attr
	if file.Mode != unix.S_IFREG|0o4755 || file.UID != 9 || file.GID != 8 {
		t.Errorf("the file has %+v, and the group of a setgid folder is 8", file)
	}
	set := volume.Request{
		Op: volume.OpSetAttr, Node: file.Node, Set: volume.SetMode | volume.SetUID | volume.SetModified | volume.SetAccessed,
		Mode: unix.S_IFDIR | 0o1600, UID: 11, Accessed: 12e9, Modified: 13e9 + 5,
	}
	got := m.must(t, set).Attr
	if got.Mode != unix.S_IFREG|0o1600 || got.UID != 11 || got.GID != 8 || got.Accessed != 12e9 || got.Modified != 13e9+5 {
		t.Errorf("after a change the file has %+v", got)
	}
	var st unix.Stat_t
	if err := unix.Lstat(m.v.path(file.Node), &st); err != nil || st.Mode&permissions != 0o600 {
		t.Errorf("on the host its mode is %o, %v", st.Mode, err)
	}
	link := m.must(t, volume.Request{Op: volume.OpLink, Node: volume.RootNode, Name: "g", Other: file.Node}).Attr
	if link.Node != file.Node || link.Links != 2 {
		t.Errorf("its second name shows %+v", link)
	}
	sym := m.make(t, volume.OpSymlink, volume.RootNode, "l")
	if a := m.must(t, volume.Request{Op: volume.OpReadLink, Node: sym}); string(a.Data) != "/etc/passwd" {
		t.Errorf("the link says %q", a.Data)
	}
	checkCount(t, m.v)
}

// TestQuota fills a Volume to the last byte, and no further.
func TestQuota(t *testing.T) {
	d, of := fresh(t)
	m := mounted(t, d, of)
	file := m.make(t, volume.OpCreate, volume.RootNode, "f")
	part := make([]byte, 4096)
	var n int64
	for ; ; n++ {
		a := m.ask(volume.Request{Op: volume.OpWrite, Node: file, Data: part, Flags: volume.FlagAppend})
		if a.Err == unix.ENOSPC {
			break
		}
		if a.Err != 0 {
			t.Fatal(a.Err)
		}
	}
	if want := int64(someBytes/4096 - 2); n != want { // the root and the file's name
		t.Errorf("%d blocks fit, want %d", n, want)
	}
	if a := m.ask(volume.Request{Op: volume.OpMkdir, Node: volume.RootNode, Name: "d"}); a.Err != unix.ENOSPC {
		t.Errorf("a folder in a full volume: %v", a.Err)
	}
	m.must(t, volume.Request{Op: volume.OpWrite, Node: file, Data: part}) // over what is there
	if _, err := d.WriteFile(t.Context(), of, "/g", sandbox.VolumeFileChange{}, false, strings.NewReader("x")); !errors.Is(err, sandbox.TooLarge) {
		t.Errorf("a file by the API in a full volume: %v", err)
	}
	spec := sandbox.VolumeSpec{ID: of.ID, Tenant: of.Tenant, MaxBytes: 2 * someBytes}
	if err := d.Create(spec); err != nil {
		t.Fatal(err)
	}
	m.must(t, volume.Request{Op: volume.OpWrite, Node: file, Data: part, Flags: volume.FlagAppend})
	m.must(t, volume.Request{Op: volume.OpUnlink, Node: volume.RootNode, Name: "f"})
	if got := m.v.use(); got.Bytes != 4096 || got.Files != 0 {
		t.Errorf("an empty volume holds %+v", got)
	}
	checkCount(t, m.v)
}

// TestRecount breaks a Volume in each way that a crash can.
func TestRecount(t *testing.T) {
	d, of := fresh(t)
	m := mounted(t, d, of)
	v := m.v
	folder := m.make(t, volume.OpMkdir, volume.RootNode, "d")
	file := m.make(t, volume.OpCreate, folder, "f")
	m.must(t, volume.Request{Op: volume.OpWrite, Node: file, Data: []byte("kept")})
	want := v.use()

	if _, err := v.fresh(object{mode: unix.S_IFREG, links: 1}); err != nil { // without an entry
		t.Fatal(err)
	}
	if err := os.Symlink("f99", v.entryPath(folder, "dangling")); err != nil { // without an object
		t.Fatal(err)
	}
	if err := os.Symlink("f1", filepath.Join(v.dir, asideName, "1")); err != nil { // on its way
		t.Fatal(err)
	}
	o, _ := v.describe(file)
	o.links = 7 // an unlink that was cut
	if err := v.note(file, o); err != nil {
		t.Fatal(err)
	}
	o, _ = v.describe(folder)
	o.parent = 99 // a move that was cut
	if err := v.note(folder, o); err != nil {
		t.Fatal(err)
	}

	again, err := Open(d.dir)
	if err != nil {
		t.Fatal(err)
	}
	uses, err := again.List(t.Context())
	want.ID = of.ID
	if err != nil || len(uses) != 1 || uses[0] != want {
		t.Errorf("a new process counts %+v, %v; want %+v", uses, err, want)
	}
	m = mounted(t, again, of)
	if a := m.must(t, volume.Request{Op: volume.OpGetAttr, Node: file}); a.Attr.Links != 1 {
		t.Errorf("the file has %d names", a.Attr.Links)
	}
	if a := m.must(t, volume.Request{Op: volume.OpRead, Node: file, Size: 10}); string(a.Data) != "kept" {
		t.Errorf("the file has %q", a.Data)
	}
	if n := m.make(t, volume.OpMkdir, folder, "n"); n <= file {
		t.Errorf("a new folder has the number %d, an older file %d", n, file)
	}
}

// TestConcurrent has many Boots change one Volume at once, without order; what is
// counted is exact in the end.
func TestConcurrent(t *testing.T) {
	d, of := fresh(t)
	var boots sync.WaitGroup
	for seed := range uint64(6) {
		m := mounted(t, d, of)
		boots.Go(func() {
			defer m.close()
			random := rand.New(rand.NewPCG(seed, 1))
			folders, files := []uint64{volume.RootNode}, []uint64{}
			name := func() string { return fmt.Sprint("n", random.IntN(8)) }
			folder := func() uint64 { return folders[random.IntN(len(folders))] }
			file := func() uint64 {
				if len(files) == 0 {
					return 99
				}
				return files[random.IntN(len(files))]
			}
			for range 800 {
				r := volume.Request{Node: folder(), Name: name(), Mode: 0o777}
				switch random.IntN(12) {
				case 0:
					r.Op = volume.OpMkdir
				case 1, 2:
					r.Op, r.Flags = volume.OpCreate, volume.FlagHold
				case 3:
					r.Op, r.Data = volume.OpSymlink, []byte("x")
				case 4:
					r.Op = volume.OpUnlink
				case 5:
					r.Op = volume.OpRmdir
				case 6, 7:
					r.Op, r.Other, r.Data = volume.OpRename, folder(), []byte(name())
				case 8:
					r.Op, r.Other = volume.OpLink, file()
				case 9:
					r = volume.Request{Op: volume.OpWrite, Node: file(), Offset: random.Int64N(50_000), Data: make([]byte, random.IntN(20_000))}
				case 10:
					r = volume.Request{Op: volume.OpSetAttr, Node: file(), Set: volume.SetSize, Offset: random.Int64N(100_000)}
				case 11:
					r = volume.Request{Op: volume.OpRelease, Node: file()}
				}
				switch a := m.ask(r); {
				case a.Err == unix.EIO:
					t.Errorf("operation %d: %v", r.Op, a.Err)
				case a.Err == 0 && r.Op == volume.OpMkdir:
					folders = append(folders, a.Attr.Node)
				case a.Err == 0 && r.Op == volume.OpCreate:
					files = append(files, a.Attr.Node)
				}
			}
		})
	}
	boots.Wait()
	v, err := d.Volume(of)
	if err != nil {
		t.Fatal(err)
	}
	if use := v.use(); use.Bytes > someBytes {
		t.Errorf("the volume holds %d bytes", use.Bytes)
	}
	checkCount(t, v)
}

// TestListing reads a folder that does not fit into one answer.
func TestListing(t *testing.T) {
	d, of := fresh(t)
	if err := d.Create(sandbox.VolumeSpec{ID: of.ID, Tenant: of.Tenant, MaxBytes: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	m := mounted(t, d, of)
	const count = maxListed + 1000
	for i := range count {
		m.make(t, volume.OpCreate, volume.RootNode, fmt.Sprintf("%05d-%s", i, strings.Repeat("n", 100)))
	}
	got, after := 0, ""
	for more := true; more; {
		a := m.must(t, volume.Request{Op: volume.OpList, Node: volume.RootNode, Name: after})
		entries, err := volume.DecodeEntries(a.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if want := fmt.Sprintf("%05d-", got); !strings.HasPrefix(e.Name, want) {
				t.Fatalf("entry %d is %s", got, e.Name)
			}
			got, after = got+1, e.Name
		}
		more = a.Count != 0
	}
	if got != count {
		t.Errorf("the folder lists %d files, has %d", got, count)
	}
	if _, err := d.ListFolder(t.Context(), of, "/", 1); err != nil {
		t.Error(err)
	}
	if err := d.Remove(t.Context(), of, "/"); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("the root was removed: %v", err)
	}
}

// TestFiles goes through what the API does with paths.
func TestFiles(t *testing.T) {
	d, of := fresh(t)
	m := mounted(t, d, of)
	ctx := t.Context()
	no := sandbox.VolumeFileChange{}
	write := func(p string, force bool) error {
		_, err := d.WriteFile(ctx, of, p, no, force, strings.NewReader(p))
		return err
	}
	folder := func(p string, force bool) error {
		_, err := d.MakeFolder(of, p, no, force)
		return err
	}
	stat := func(p string) error {
		_, err := d.Stat(of, p)
		return err
	}
	m.make(t, volume.OpSymlink, volume.RootNode, "link")
	for i, tt := range []struct {
		err  error
		want error
	}{
		{write("/a", false), nil},
		{write("/a", false), sandbox.Conflict},
		{write("/a", true), nil},
		{write("/a/b", true), sandbox.Invalid},
		{write("/x/y", false), sandbox.NotFound},
		{write("/x/y", true), nil},
		{write("/x", true), sandbox.Conflict},
		{write("/", true), sandbox.Conflict},
		{write("a", true), sandbox.Invalid},
		{write("/../a", true), sandbox.Invalid},
		{write("/link/a", true), sandbox.Invalid},
		{stat("/link/a"), sandbox.Invalid},
		{stat("/link"), nil},
		{stat("/none"), sandbox.NotFound},
		{stat("/none/none"), sandbox.NotFound},
		{folder("/x", false), sandbox.Conflict},
		{folder("/x", true), nil},
		{folder("/a", true), sandbox.Conflict},
		{folder("/p/q", false), sandbox.NotFound},
		{folder("/p/q/r", true), nil},
		{folder("/", true), nil},
		{d.ReadFile(ctx, of, "/x", io.Discard), sandbox.Invalid},
		{d.ReadFile(ctx, of, "/link", io.Discard), sandbox.Invalid},
		{d.ReadFile(ctx, sandbox.VolumeRef{ID: of.ID, Tenant: "mallory"}, "/a", io.Discard), sandbox.NotFound},
		{d.ReadFile(ctx, sandbox.VolumeRef{ID: sandbox.NewVolumeID(), Tenant: of.Tenant}, "/a", io.Discard), sandbox.NotFound},
		{d.ReadFile(ctx, sandbox.VolumeRef{ID: "../..", Tenant: of.Tenant}, "/a", io.Discard), sandbox.NotFound},
		{d.Remove(ctx, of, "/p"), nil},
		{stat("/p"), sandbox.NotFound},
	} {
		if !errors.Is(tt.err, tt.want) || tt.want == nil && tt.err != nil {
			t.Errorf("call %d ends with %v, want %v", i, tt.err, tt.want)
		}
	}
	var content bytes.Buffer
	if err := d.ReadFile(ctx, of, "/x/y", &content); err != nil || content.String() != "/x/y" {
		t.Errorf("the file has %q, %v", content.String(), err)
	}
	broken := io.MultiReader(strings.NewReader("new"), io.LimitReader(nil, 0), &failing{})
	if _, err := d.WriteFile(ctx, of, "/a", no, true, broken); !errors.Is(err, errBroken) {
		t.Errorf("a broken upload ends with %v", err)
	}
	content.Reset()
	if err := d.ReadFile(ctx, of, "/a", &content); err != nil || content.String() != "/a" {
		t.Errorf("after a broken upload the file has %q, %v", content.String(), err)
	}
	uid, mode := uint32(1000), uint32(0o4711)
	f, err := d.Change(of, "/a", sandbox.VolumeFileChange{UID: &uid, Mode: &mode})
	if err != nil || f.UID != uid || f.Mode != mode || f.GID != 0 || f.Type != sandbox.VolumeFileRegular || f.Bytes != 2 {
		t.Errorf("the changed file is %+v, %v", f, err)
	}
	if f, err := d.Stat(of, "/link"); err != nil || f.Type != sandbox.VolumeFileLink || f.Target != "/etc/passwd" {
		t.Errorf("the link is %+v, %v", f, err)
	}
	files, err := d.ListFolder(ctx, of, "/", 2)
	var paths []string
	for _, f := range files {
		paths = append(paths, f.Path)
	}
	if got := strings.Join(paths, " "); err != nil || got != "/a /link /x /x/y" {
		t.Errorf("the volume lists %q, %v", got, err)
	}
	checkCount(t, m.v)
}

var errBroken = errors.New("broken")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

// TestDelete deletes a Volume in use, and one that a crash half deleted.
func TestDelete(t *testing.T) {
	d, of := fresh(t)
	m := mounted(t, d, of)
	file := m.make(t, volume.OpCreate, volume.RootNode, "f")
	if err := d.Delete(of.ID); err != nil {
		t.Fatal(err)
	}
	for _, op := range []volume.Op{volume.OpGetAttr, volume.OpWrite, volume.OpSetAttr, volume.OpHold} {
		if a := m.ask(volume.Request{Op: op, Node: file}); a.Err != unix.ESTALE {
			t.Errorf("operation %d on a deleted volume: %v", op, a.Err)
		}
	}
	m.close()
	if err := d.Delete(of.ID); err != nil {
		t.Errorf("once more: %v", err)
	}
	if _, err := d.Volume(of); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("it is there: %v", err)
	}
	left := filepath.Join(d.dir, goneName, "left")
	if err := os.MkdirAll(filepath.Join(left, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a crash left is there: %v", err)
	}
	if err := d.Create(sandbox.VolumeSpec{ID: of.ID, Tenant: "bob", MaxBytes: someBytes}); err != nil {
		t.Fatal(err)
	}
	if err := d.Create(sandbox.VolumeSpec{ID: of.ID, Tenant: of.Tenant, MaxBytes: someBytes}); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("another tenant's volume was made: %v", err)
	}
}
