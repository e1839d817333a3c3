package disk

import (
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// The operations of this file change or read entries. Their callers hold mu, for writing
// if they change any.

// depth is how many levels a folder is below the root, and whether within is the folder
// or above it.
func (v *Volume) depth(folder, within uint64) (n int, is bool, err error) {
	for node := folder; ; n++ {
		is = is || node == within
		if node == volume.RootNode {
			return n, is, nil
		}
		o, err := v.folder(node)
		if err != nil {
			return 0, false, err
		}
		if n > 2*sandbox.MaxVolumeDepth {
			return 0, false, unix.ELOOP // a cycle, which nothing here makes
		}
		node = o.parent
	}
}

// checkDepth returns ELOOP if a new entry in a folder would be too deep.
func (v *Volume) checkDepth(folder uint64) error {
	n, _, err := v.depth(folder, 0)
	if err == nil && n+1 > sandbox.MaxVolumeDepth {
		err = unix.ELOOP
	}
	return err
}

// height is how many levels of files and folders a folder contains.
func (v *Volume) height(folder uint64) (int, error) {
	level, height := []uint64{folder}, 0
	for {
		var next []uint64
		filled := false
		for _, f := range level {
			for after := ""; ; {
				entries, more, err := v.list(f, after)
				if err != nil {
					return 0, err
				}
				for _, e := range entries {
					filled = true
					if e.Type == unix.DT_DIR {
						next = append(next, e.Node)
					}
				}
				if !more {
					break
				}
				after = entries[len(entries)-1].Name
			}
		}
		if !filled {
			return height, nil
		}
		height, level = height+1, next
	}
}

// add makes a new object and its entry.
func (v *Volume) add(folder uint64, name string, o object, content []byte) (volume.Attr, error) {
	node, o, err := v.adding(folder, name, o)
	if err != nil {
		return volume.Attr{}, err
	}
	if len(content) > 0 {
		_, err = v.writeAt(node, content, 0, false)
	}
	if err == nil {
		err = unix.Symlink(entryOf(o, node).String(), v.entryPath(folder, name))
	}
	if err != nil {
		_ = v.drop(node, o)
		return volume.Attr{}, err
	}
	return v.attrOf(node, o)
}

// adding makes the object of a new entry, with inherited attributes.
func (v *Volume) adding(folder uint64, name string, o object) (uint64, object, error) {
	in, err := v.folder(folder)
	if err != nil {
		return 0, o, err
	}
	if _, err := v.entry(folder, name); err == nil {
		return 0, o, unix.EEXIST
	} else if !errors.Is(err, unix.ENOENT) {
		return 0, o, err
	}
	if err := v.checkDepth(folder); err != nil {
		return 0, o, err
	}
	if in.mode&unix.S_ISGID != 0 {
		o.gid = in.gid
		if o.isFolder() {
			o.mode |= unix.S_ISGID
		}
	}
	o.links, o.parent = 1, 0
	if o.isFolder() {
		o.parent = folder
	}
	node, err := v.fresh(o)
	return node, o, err
}

// unname removes a name of an object whose entry is already gone.
func (v *Volume) unname(node uint64) error {
	o, err := v.describe(node)
	if err != nil {
		return err
	}
	if o.links > 1 {
		o.links--
		if err := v.note(node, o); err != nil {
			return err
		}
		v.giveBack(blockBytes, 0)
		return nil
	}
	o.links = 0
	if v.holds(node) {
		return v.note(node, o)
	}
	return v.drop(node, o)
}

// unlink removes a name of an object that is not a folder.
func (v *Volume) unlink(folder uint64, name string) error {
	e, err := v.entry(folder, name)
	switch {
	case err != nil:
		return err
	case e.letter == letterFolder:
		return unix.EISDIR
	}
	if err := unix.Unlink(v.entryPath(folder, name)); err != nil {
		return err
	}
	return v.unname(e.node)
}

// empty returns ENOTEMPTY for a folder with entries.
func (v *Volume) empty(folder uint64) error {
	f, err := os.Open(v.path(folder))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Readdirnames(1); !errors.Is(err, io.EOF) {
		return errors.Join(err, unix.ENOTEMPTY)
	}
	return nil
}

func (v *Volume) rmdir(folder uint64, name string) error {
	e, err := v.entry(folder, name)
	switch {
	case err != nil:
		return err
	case e.letter != letterFolder:
		return unix.ENOTDIR
	}
	if err := v.empty(e.node); err != nil {
		return err
	}
	if err := unix.Unlink(v.entryPath(folder, name)); err != nil {
		return err
	}
	return v.unname(e.node)
}

// link gives an object another name.
func (v *Volume) link(node, folder uint64, name string) (volume.Attr, error) {
	o, err := v.describe(node)
	switch {
	case err != nil:
		return volume.Attr{}, err
	case o.isFolder():
		return volume.Attr{}, unix.EPERM
	case o.links == 0:
		return volume.Attr{}, unix.ENOENT // it was unlinked, and is only held
	}
	if _, err := v.folder(folder); err != nil {
		return volume.Attr{}, err
	}
	if err := v.checkDepth(folder); err != nil {
		return volume.Attr{}, err
	}
	if err := v.take(blockBytes, 0); err != nil {
		return volume.Attr{}, err
	}
	if err := unix.Symlink(entryOf(o, node).String(), v.entryPath(folder, name)); err != nil {
		v.giveBack(blockBytes, 0)
		return volume.Attr{}, err
	}
	o.links++
	if err := v.note(node, o); err != nil {
		_ = unix.Unlink(v.entryPath(folder, name))
		v.giveBack(blockBytes, 0)
		return volume.Attr{}, err
	}
	return v.attrOf(node, o)
}

// rename moves an entry, replacing an existing one unless exclusive is set.
func (v *Volume) rename(from uint64, name string, to uint64, newName string, exclusive bool) error {
	e, err := v.entry(from, name)
	if err != nil {
		return err
	}
	if _, err := v.folder(to); err != nil {
		return err
	}
	old, err := v.entry(to, newName)
	replaces := err == nil
	switch {
	case err != nil && !errors.Is(err, unix.ENOENT):
		return err
	case replaces && exclusive:
		return unix.EEXIST
	case replaces && old.node == e.node:
		return nil // they are names of one file
	case replaces && e.letter == letterFolder && old.letter != letterFolder:
		return unix.ENOTDIR
	case replaces && e.letter != letterFolder && old.letter == letterFolder:
		return unix.EISDIR
	}
	if replaces && old.letter == letterFolder {
		if err := v.empty(old.node); err != nil {
			return err
		}
	}
	if err := v.checkMove(e, from, to); err != nil {
		return err
	}
	if err := unix.Rename(v.entryPath(from, name), v.entryPath(to, newName)); err != nil {
		return err
	}
	if e.letter == letterFolder && from != to {
		if err := v.adopt(e.node, to); err != nil {
			return err
		}
	}
	if replaces {
		return v.unname(old.node)
	}
	return nil
}

// checkMove returns an error if an entry cannot move to a folder: it would contain
// itself, or be too deep.
func (v *Volume) checkMove(e entry, from, to uint64) error {
	if from == to {
		return nil
	}
	depth, within, err := v.depth(to, e.node)
	if err != nil {
		return err
	}
	if within {
		return unix.EINVAL
	}
	height := 0
	if e.letter == letterFolder {
		if height, err = v.height(e.node); err != nil {
			return err
		}
	}
	if depth+1+height > sandbox.MaxVolumeDepth {
		return unix.ELOOP
	}
	return nil
}

// adopt sets the parent of a folder.
func (v *Volume) adopt(node, parent uint64) error {
	o, err := v.describe(node)
	if err != nil {
		return err
	}
	o.parent = parent
	return v.note(node, o)
}

// maxListed is how many entries a listing keeps in memory, at most twice as many for a
// moment.
const maxListed = 4096

// list returns a folder's entries with names after one, in order, as many as fit into one
// answer, and whether there are more.
func (v *Volume) list(folder uint64, after string) (entries []volume.Entry, more bool, err error) {
	f, err := os.Open(v.path(folder))
	if err != nil {
		return nil, false, stale(err)
	}
	defer f.Close()
	var names []string
	for {
		some, err := f.Readdirnames(maxListed)
		for _, name := range some {
			if name > after {
				names = append(names, name)
			}
		}
		if len(names) > maxListed {
			slices.Sort(names)
			names, more = names[:maxListed], true
		}
		if len(some) == 0 || errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
	}
	slices.Sort(names)
	for _, name := range names {
		e, err := v.entry(folder, name)
		if err != nil {
			continue // removed meanwhile
		}
		entries = append(entries, volume.Entry{Node: e.node, Type: e.dtype(), Name: name})
	}
	return entries, more, nil
}
