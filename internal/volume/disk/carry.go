package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// An export is a tar archive of a Volume's objects, as they are on the disk: files and
// folders named by their numbers, each with its attribute, and in a folder symbolic links,
// its entries. A last entry counts the objects, since a tar archive that is cut off can look
// complete.
const (
	paxAttribute = "SCHILY.xattr." + attribute
	lastName     = "last"
	maxLast      = 1 << 10
	// copyBytes is the size of the unit in which holes are found.
	copyBytes = 64 << 10
)

// last is the content of the last entry.
type last struct {
	Objects int64 `json:"objects"`
}

// Export implements NodeVolumes.ExportVolume.
func (d *Disk) Export(ctx context.Context, of sandbox.VolumeRef, w io.Writer) error {
	dir, err := d.leave(of)
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	e := exporter{v: &Volume{dir: dir}, out: out}
	if err := e.all(ctx); err != nil {
		return err
	}
	return out.Close()
}

// leave makes a Volume unusable, so that nothing changes while it is exported, and returns
// its folder. It is durable: an exported Volume may be in use elsewhere.
func (d *Disk) leave(of sandbox.VolumeRef) (dir string, err error) {
	if !sandbox.ValidVolumeID(of.ID) {
		return "", errNoVolume()
	}
	defer d.turn(of.ID)()
	s, err := d.read(of.ID)
	if err == nil && s.Tenant != of.Tenant {
		err = errNoVolume()
	}
	if err != nil {
		return "", err
	}
	dir = d.path(of.ID)
	if !s.Leaving {
		if err := d.recounted(of.ID, s); err != nil {
			return "", err
		}
		s.Leaving = true
		if err := writeSpec(dir, s); err != nil {
			return "", err
		}
	}
	d.mu.Lock()
	v := d.open[of.ID]
	delete(d.open, of.ID)
	d.mu.Unlock()
	if v != nil {
		v.end()
	}
	return dir, nil
}

// recounted repairs a Volume that this process has not used: a crash may have left
// objects without a name. The caller has its turn.
func (d *Disk) recounted(id string, s spec) error {
	d.mu.Lock()
	used := d.open[id] != nil
	d.mu.Unlock()
	if used {
		return nil
	}
	_, err := openVolume(d.path(id), s)
	return err
}

func errLeaving() error {
	e := sandbox.Errorf(sandbox.Unavailable, "the volume is being moved to another node: try again soon")
	e.RetryAfter = 5 * time.Second
	return e
}

// exporter writes the objects of a Volume that nothing else uses.
type exporter struct {
	v       *Volume
	out     *tar.Writer
	objects int64
}

func (e *exporter) all(ctx context.Context) error {
	dir, err := os.Open(filepath.Join(e.v.dir, objectsName))
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(maxListed)
		for _, name := range names {
			if err := errors.Join(ctx.Err(), e.object(name)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	raw, err := json.Marshal(last{e.objects})
	if err != nil {
		return err
	}
	if err := e.out.WriteHeader(&tar.Header{Name: lastName, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(raw))}); err != nil {
		return err
	}
	_, err = e.out.Write(raw)
	return err
}

// object writes an object and its entries.
func (e *exporter) object(name string) error {
	node, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		return nil // nothing here makes it, and a recount removes it
	}
	o, err := e.v.describe(node)
	if err != nil {
		return fmt.Errorf("object %d: %w", node, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(e.v.path(node), &st); err != nil {
		return err
	}
	e.objects++
	h := &tar.Header{
		Format: tar.FormatPAX, Name: name, Mode: 0o600, PAXRecords: map[string]string{paxAttribute: o.String()},
		ModTime: time.Unix(st.Mtim.Unix()), AccessTime: time.Unix(st.Atim.Unix()),
	}
	if o.isFolder() {
		h.Typeflag = tar.TypeDir
		if err := e.out.WriteHeader(h); err != nil {
			return err
		}
		return e.entries(node)
	}
	f, err := os.Open(e.v.path(node))
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if err := e.out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(e.out, f, st.Size)
	return err
}

func (e *exporter) entries(folder uint64) error {
	dir, err := os.Open(e.v.path(folder))
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(maxListed)
		for _, name := range names {
			at, err := e.v.entry(folder, name)
			if err != nil {
				return err
			}
			if err := e.out.WriteHeader(&tar.Header{
				Format: tar.FormatPAX, Name: strconv.FormatUint(folder, 10) + "/" + name, Typeflag: tar.TypeSymlink, Linkname: at.String(), Mode: 0o777,
			}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Import implements NodeVolumes.ImportVolume. The Volume appears once it is complete and on
// the disk.
func (d *Disk) Import(ctx context.Context, s sandbox.VolumeSpec, r io.Reader) error {
	if err := d.checkSpec(s); err != nil {
		return err
	}
	defer d.turn(s.ID)()
	if _, err := d.read(s.ID); !errors.Is(err, sandbox.NotFound) {
		return errors.Join(err, sandbox.Errorf(sandbox.Conflict, "the volume is on this node already"))
	}
	return d.place(s, func(v *Volume) error {
		in := importer{v: v, in: tar.NewReader(r), max: s.MaxBytes}
		if err := in.all(ctx); err != nil {
			return err
		}
		return syncDisk(v.dir)
	})
}

// syncDisk writes all changes of a folder's file system to the disk.
func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

// importer makes the objects of a new Volume.
type importer struct {
	v       *Volume
	in      *tar.Reader
	max     int64 // bytes of all files
	bytes   int64
	objects int64
	entries int64
}

func errImport(format string, args ...any) error {
	return sandbox.Errorf(sandbox.Invalid, "this is not an exported volume: "+format, args...)
}

func (m *importer) all(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := m.in.Next()
		if errors.Is(err, io.EOF) {
			return errImport("it is cut off")
		}
		if err != nil {
			return badArchive(err)
		}
		if h.Name == lastName {
			return m.last()
		}
		if err := m.one(h); err != nil {
			return full(err)
		}
	}
}

// badArchive is the error for an archive that cannot be read. Errors of its source stay.
func badArchive(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errImport("it is cut off")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return errImport("%v", err)
	}
	return err
}

func (m *importer) last() error {
	raw, err := io.ReadAll(io.LimitReader(m.in, maxLast))
	if err != nil {
		return err
	}
	var l last
	if json.Unmarshal(raw, &l) != nil || l.Objects != m.objects {
		return errImport("it has %d objects, and ends with %.100q", m.objects, raw)
	}
	if _, err := m.v.folder(volume.RootNode); err != nil {
		return errImport("it has no root folder")
	}
	return nil
}

func (m *importer) one(h *tar.Header) error {
	number, name, isEntry := strings.Cut(strings.TrimSuffix(h.Name, "/"), "/")
	node, err := strconv.ParseUint(number, 10, 64)
	if err != nil || node == 0 || strconv.FormatUint(node, 10) != number {
		return errImport("it has %.100q", h.Name)
	}
	if isEntry {
		return m.entry(node, name, h)
	}
	o, err := parseObject(h.PAXRecords[paxAttribute])
	if err != nil || o.isFolder() != (h.Typeflag == tar.TypeDir) {
		return errImport("the object %d has %v", node, err)
	}
	if m.objects++; m.objects > maxObjects {
		return errImport("it has more than %d files", maxObjects)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = unix.Mkdir(m.v.path(node), 0o700)
	case tar.TypeReg:
		err = m.file(node, h.Size)
	default:
		err = errImport("the object %d has the type %q", node, h.Typeflag)
	}
	if errors.Is(err, fs.ErrExist) {
		return errImport("it has the object %d twice", node)
	}
	if err == nil {
		err = m.v.note(node, o)
	}
	if err == nil && h.Typeflag == tar.TypeReg { // the times of a folder change with its entries
		err = os.Chtimes(m.v.path(node), h.AccessTime, h.ModTime)
	}
	return err
}

// file makes a file with holes where its content is zero.
func (m *importer) file(node uint64, size int64) error {
	if size < 0 || size > m.max-m.bytes {
		return errImport("it has more than %d bytes", m.max)
	}
	m.bytes += size
	f, err := os.OpenFile(m.v.path(node), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	buf, zero := make([]byte, copyBytes), make([]byte, copyBytes)
	for at := int64(0); at < size; {
		n, err := io.ReadFull(m.in, buf[:min(copyBytes, size-at)])
		if err != nil {
			return badArchive(err)
		}
		if !bytes.Equal(buf[:n], zero[:n]) {
			if _, err := f.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return f.Truncate(size)
}

// entry makes an entry of a folder. A recount removes one whose object is missing.
func (m *importer) entry(folder uint64, name string, h *tar.Header) error {
	if _, err := m.v.folder(folder); err != nil || h.Typeflag != tar.TypeSymlink || checkName(name) != nil {
		return errImport("it has the entry %.300q", h.Name)
	}
	at, err := parseEntry(h.Linkname)
	if err != nil {
		return errImport("the entry %.300q is %v", h.Name, err)
	}
	if m.entries++; m.entries > m.max/blockBytes {
		return errImport("it has too many names")
	}
	err = unix.Symlink(at.String(), m.v.entryPath(folder, name))
	if errors.Is(err, fs.ErrExist) {
		return errImport("it has the entry %.300q twice", h.Name)
	}
	return err
}
