package disk

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// attribute is the name of the extended attribute in which an object is described.
const attribute = "user.cloud-sandbox"

// blockBytes is the unit in which the use of a Volume is counted.
const blockBytes = 4096

// object is the content of an object's attribute.
type object struct {
	mode     uint32 // with its type
	uid, gid uint32
	links    uint32 // number of entries
	parent   uint64 // of a folder
}

func (o object) String() string {
	return fmt.Sprintf("%o %d %d %d %d", o.mode, o.uid, o.gid, o.links, o.parent)
}

func parseObject(s string) (o object, err error) {
	n, err := fmt.Sscanf(s, "%o %d %d %d %d", &o.mode, &o.uid, &o.gid, &o.links, &o.parent)
	if err != nil || n != 5 || o.String() != s {
		return o, fmt.Errorf("an invalid attribute: %.64q", s)
	}
	return o, nil
}

func (o object) isFolder() bool { return o.mode&unix.S_IFMT == unix.S_IFDIR }

func (o object) isFile() bool { return o.mode&unix.S_IFMT == unix.S_IFREG }

// Permission bits, with setuid, setgid and sticky.
const permissions = 0o7777

// path of an object.
func (v *Volume) path(node uint64) string {
	return v.dir + "/" + objectsName + "/" + strconv.FormatUint(node, 10)
}

// entryPath of a name in a folder. The name is already checked: it is one path element.
func (v *Volume) entryPath(folder uint64, name string) string { return v.path(folder) + "/" + name }

// describe reads an object's attribute; ESTALE if it does not exist.
func (v *Volume) describe(node uint64) (object, error) {
	var buf [128]byte
	n, err := unix.Lgetxattr(v.path(node), attribute, buf[:])
	if errors.Is(err, unix.ENOENT) {
		return object{}, unix.ESTALE
	}
	if err != nil {
		return object{}, err
	}
	return parseObject(string(buf[:n]))
}

func (v *Volume) note(node uint64, o object) error {
	return unix.Lsetxattr(v.path(node), attribute, []byte(o.String()), 0)
}

// folder is describe for an object that must be a folder.
func (v *Volume) folder(node uint64) (object, error) {
	o, err := v.describe(node)
	if err == nil && !o.isFolder() {
		err = unix.ENOTDIR
	}
	return o, err
}

// attr returns the attributes that a guest sees.
func (v *Volume) attr(node uint64) (volume.Attr, error) {
	o, err := v.describe(node)
	if err != nil {
		return volume.Attr{}, err
	}
	return v.attrOf(node, o)
}

func (v *Volume) attrOf(node uint64, o object) (volume.Attr, error) {
	var st unix.Stat_t
	if err := unix.Lstat(v.path(node), &st); err != nil {
		return volume.Attr{}, stale(err)
	}
	a := volume.Attr{
		Node: node, Mode: o.mode, UID: o.uid, GID: o.gid, Links: o.links, Size: st.Size, Blocks: st.Blocks,
		Accessed: st.Atim.Nano(), Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano(),
	}
	if o.isFolder() {
		a.Links, a.Size, a.Blocks = 2, blockBytes, blockBytes/512 // not the values of the host's folder
	}
	return a, nil
}

func stale(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return unix.ESTALE
	}
	return err
}

// Entries are symbolic links with a letter and a number.
const (
	letterFolder = 'd'
	letterFile   = 'f'
	letterLink   = 'l'
)

// entry is the target of a name in a folder.
type entry struct {
	letter byte
	node   uint64
}

func (e entry) String() string { return string(e.letter) + strconv.FormatUint(e.node, 10) }

func entryOf(o object, node uint64) entry {
	switch o.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return entry{letterFolder, node}
	case unix.S_IFLNK:
		return entry{letterLink, node}
	}
	return entry{letterFile, node}
}

func parseEntry(s string) (entry, error) {
	if len(s) > 1 && strings.IndexByte("dfl", s[0]) >= 0 {
		if node, err := strconv.ParseUint(s[1:], 10, 64); err == nil && node > 0 {
			return entry{s[0], node}, nil
		}
	}
	return entry{}, fmt.Errorf("an invalid entry: %.64q", s)
}

// entry looks a name up in a folder; ENOENT if it does not exist.
func (v *Volume) entry(folder uint64, name string) (entry, error) {
	var buf [64]byte
	n, err := unix.Readlink(v.entryPath(folder, name), buf[:])
	if err != nil {
		return entry{}, err
	}
	return parseEntry(string(buf[:n]))
}

// dtype is the d_type of readdir(3).
func (e entry) dtype() uint8 {
	switch e.letter {
	case letterFolder:
		return unix.DT_DIR
	case letterLink:
		return unix.DT_LNK
	}
	return unix.DT_REG
}

// checkName returns an error if a guest's name is not allowed for an entry.
func checkName(name string) error {
	switch {
	case len(name) > volume.MaxName:
		return unix.ENAMETOOLONG
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return unix.EINVAL
	}
	return nil
}

// charge is an object's quota cost: a block for each name, at least one, and the blocks
// that its length covers. Holes count like bytes, so that the cost does not depend on the
// host's file system.
func charge(links uint32, size int64) int64 {
	return int64(max(links, 1))*blockBytes + (size+blockBytes-1)/blockBytes*blockBytes
}

// sizeOf is the length for charge: zero for a folder.
func (v *Volume) sizeOf(node uint64, o object) (int64, error) {
	if o.isFolder() {
		return 0, nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(v.path(node), &st); err != nil {
		return 0, stale(err)
	}
	return st.Size, nil
}

// errno converts an error to one that a guest understands.
func errno(err error) syscall.Errno {
	var e syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e
	}
	return unix.EIO
}

// asideEntry is the path for an entry that will replace another.
func (v *Volume) asideEntry(node uint64) string {
	return filepath.Join(v.dir, asideName, strconv.FormatUint(node, 10))
}
