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

// object is what an object's attribute says.
type object struct {
	mode     uint32 // with its type
	uid, gid uint32
	links    uint32 // entries that stand for it
	parent   uint64 // of a folder
}

func (o object) String() string {
	return fmt.Sprintf("%o %d %d %d %d", o.mode, o.uid, o.gid, o.links, o.parent)
}

func parseObject(s string) (o object, err error) {
	n, err := fmt.Sscanf(s, "%o %d %d %d %d", &o.mode, &o.uid, &o.gid, &o.links, &o.parent)
	if err != nil || n != 5 || o.String() != s {
		return o, fmt.Errorf("an attribute that is none: %.64q", s)
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

// entryPath of a name in a folder. The name was checked: it is one element.
func (v *Volume) entryPath(folder uint64, name string) string { return v.path(folder) + "/" + name }

// describe reads an object's attribute; ESTALE when it is not there.
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

// folder is describe for what must be a folder.
func (v *Volume) folder(node uint64) (object, error) {
	o, err := v.describe(node)
	if err == nil && !o.isFolder() {
		err = unix.ENOTDIR
	}
	return o, err
}

// attr is what a guest sees of an object.
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
		a.Links, a.Size, a.Blocks = 2, blockBytes, blockBytes/512 // not those of the links in it
	}
	return a, nil
}

func stale(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return unix.ESTALE
	}
	return err
}

// Entries are symbolic links that say a letter and a number.
const (
	letterFolder = 'd'
	letterFile   = 'f'
	letterLink   = 'l'
)

// entry is what a folder has under a name.
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
	return entry{}, fmt.Errorf("an entry that is none: %.64q", s)
}

// entry looks a name up in a folder, ENOENT when it is not there.
func (v *Volume) entry(folder uint64, name string) (entry, error) {
	var buf [64]byte
	n, err := unix.Readlink(v.entryPath(folder, name), buf[:])
	if err != nil {
		return entry{}, err
	}
	return parseEntry(string(buf[:n]))
}

// dtype is the type that readdir(3) tells.
func (e entry) dtype() uint8 {
	switch e.letter {
	case letterFolder:
		return unix.DT_DIR
	case letterLink:
		return unix.DT_LNK
	}
	return unix.DT_REG
}

// checkName returns why a guest's name cannot be one of an entry.
func checkName(name string) error {
	switch {
	case len(name) > volume.MaxName:
		return unix.ENAMETOOLONG
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return unix.EINVAL
	}
	return nil
}

// charge is what an object costs of the quota: a block for each name, though it
// has none while it is held or made, and the blocks that its length covers.
// Holes count like bytes, so that it does not depend on the host's file system.
func charge(links uint32, size int64) int64 {
	return int64(max(links, 1))*blockBytes + (size+blockBytes-1)/blockBytes*blockBytes
}

// sizeOf is the length that counts: that of a folder does not.
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

// errno makes an error one that a guest understands.
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

// asideEntry is where an entry is made that is to take another's place.
func (v *Volume) asideEntry(node uint64) string {
	return filepath.Join(v.dir, asideName, strconv.FormatUint(node, 10))
}
