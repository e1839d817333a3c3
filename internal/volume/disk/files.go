package disk

import (
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// The methods of this file implement sandbox.VolumeFiles for one Volume.

const (
	newFileMode   = 0o644
	newFolderMode = 0o755
)

// place is the result of resolving a path.
type place struct {
	folder uint64 // its parent
	name   string // in the parent; empty for the root
	entry
	is bool // the entry exists
}

// errThrough is the error of a path with a non-folder in it.
func errThrough(p string) error {
	return sandbox.Errorf(sandbox.Invalid, "the path %.100q leads through a file", p)
}

func errNoFile(p string) error {
	return sandbox.Errorf(sandbox.NotFound, "%.100q does not exist in the volume", p)
}

// find resolves a path; NotFound if a folder on the way does not exist. mu is held.
func (v *Volume) find(p string) (place, error) {
	at := place{entry: entry{letterFolder, volume.RootNode}, is: true}
	if p == "/" {
		return at, nil
	}
	for name := range strings.SplitSeq(p[1:], "/") {
		switch {
		case !at.is:
			return at, errNoFile(p)
		case at.letter != letterFolder:
			return at, errThrough(p)
		}
		e, err := v.entry(at.node, name)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return at, err
		}
		at = place{folder: at.node, name: name, entry: e, is: err == nil}
	}
	return at, nil
}

// findExisting is find for a path that must exist.
func (v *Volume) findExisting(p string) (place, error) {
	at, err := v.find(p)
	if err == nil && !at.is {
		err = errNoFile(p)
	}
	return at, err
}

// parents makes the missing folders above a path.
func (v *Volume) parents(p string) error {
	at := uint64(volume.RootNode)
	dir := path.Dir(p)
	if dir == "/" {
		return nil
	}
	for name := range strings.SplitSeq(dir[1:], "/") {
		e, err := v.entry(at, name)
		switch {
		case errors.Is(err, unix.ENOENT):
			a, err := v.add(at, name, object{mode: unix.S_IFDIR | newFolderMode}, nil)
			if err != nil {
				return err
			}
			at = a.Node
		case err != nil:
			return err
		case e.letter != letterFolder:
			return errThrough(p)
		default:
			at = e.node
		}
	}
	return nil
}

// fileAt describes the file at a path.
func (v *Volume) fileAt(p string, node uint64) (sandbox.VolumeFile, error) {
	a, err := v.attr(node)
	if err != nil {
		return sandbox.VolumeFile{}, err
	}
	f := sandbox.VolumeFile{
		Path: strings.ToValidUTF8(p, "\uFFFD"), Type: sandbox.VolumeFileOther, Bytes: a.Size, Mode: a.Mode & permissions, UID: a.UID, GID: a.GID,
		Accessed: timeOf(a.Accessed), Modified: timeOf(a.Modified), Changed: timeOf(a.Changed),
	}
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.Type = sandbox.VolumeFileRegular
	case unix.S_IFDIR:
		f.Type = sandbox.VolumeFileFolder
	case unix.S_IFLNK:
		f.Type = sandbox.VolumeFileLink
		target, err := v.target(node)
		if err != nil {
			return f, err
		}
		f.Target = strings.ToValidUTF8(string(target), "\uFFFD")
	}
	return f, nil
}

// coded gives a disk error its Code.
func coded(p string, err error) error {
	var own *sandbox.Error
	var e syscall.Errno
	if err == nil || errors.As(err, &own) || !errors.As(err, &e) {
		return err
	}
	switch e {
	case unix.ENOENT, unix.ESTALE:
		return errNoFile(p)
	case unix.EEXIST:
		return sandbox.Errorf(sandbox.Conflict, "%.100q exists already", p)
	case unix.ENOSPC, unix.EDQUOT:
		return sandbox.Errorf(sandbox.TooLarge, "it does not fit: the volume is full")
	case unix.EFBIG:
		return sandbox.Errorf(sandbox.TooLarge, "the file is too large")
	case unix.ELOOP:
		return sandbox.Errorf(sandbox.Invalid, "a path in a volume has at most %d folders", sandbox.MaxVolumeDepth)
	case unix.ENAMETOOLONG, unix.EINVAL:
		return sandbox.Errorf(sandbox.Invalid, "%.100q cannot be a name in a volume", p)
	}
	return err
}

// on runs f on a Volume, between begin and its done.
func (d *Disk) on(of sandbox.VolumeRef, p string, begin func(*Volume) (func(), error), f func(*Volume) error) error {
	if err := sandbox.CheckVolumePath(p); err != nil {
		return err
	}
	v, err := d.Volume(of)
	if err != nil {
		return err
	}
	done, err := begin(v)
	if err != nil {
		return errNoVolume() // it was deleted just now
	}
	defer done()
	return coded(p, f(v))
}

// Stat implements VolumeFiles.StatVolumeFile.
func (d *Disk) Stat(of sandbox.VolumeRef, p string) (file sandbox.VolumeFile, err error) {
	err = d.on(of, p, (*Volume).reading, func(v *Volume) error {
		at, err := v.findExisting(p)
		if err == nil {
			file, err = v.fileAt(p, at.node)
		}
		return err
	})
	return file, err
}

// ListFolder implements VolumeFiles.ListVolumeFolder.
func (d *Disk) ListFolder(ctx context.Context, of sandbox.VolumeRef, p string, depth int) (files []sandbox.VolumeFile, err error) {
	if depth < 1 {
		return nil, sandbox.Errorf(sandbox.Invalid, "the depth of a listing is at least 1")
	}
	err = d.on(of, p, (*Volume).reading, func(v *Volume) error {
		at, err := v.findExisting(p)
		if err == nil && at.letter != letterFolder {
			err = sandbox.Errorf(sandbox.Invalid, "%.100q is not a folder", p)
		}
		if err != nil {
			return err
		}
		files = []sandbox.VolumeFile{}
		return v.below(ctx, p, at.node, depth, &files)
	})
	return files, err
}

// below appends a folder's contents, depth levels deep, by path.
func (v *Volume) below(ctx context.Context, p string, folder uint64, depth int, files *[]sandbox.VolumeFile) error {
	for after, more := "", true; more; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var entries []volume.Entry
		var err error
		if entries, more, err = v.list(folder, after); err != nil {
			return err
		}
		for _, e := range entries {
			if len(*files) == sandbox.MaxVolumeEntries {
				return sandbox.Errorf(sandbox.TooLarge, "there are more than %d files: list a part of them", sandbox.MaxVolumeEntries)
			}
			after = e.Name
			file, err := v.fileAt(path.Join(p, e.Name), e.Node)
			if err != nil {
				return err
			}
			*files = append(*files, file)
			if e.Type == unix.DT_DIR && depth > 1 {
				if err := v.below(ctx, file.Path, e.Node, depth-1, files); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// changed is an object with the change applied.
func (o object) changed(c sandbox.VolumeFileChange) object {
	if c.UID != nil {
		o.uid = *c.UID
	}
	if c.GID != nil {
		o.gid = *c.GID
	}
	if c.Mode != nil && o.mode&unix.S_IFMT != unix.S_IFLNK {
		o.mode = o.mode&unix.S_IFMT | *c.Mode&permissions
	}
	return o
}

func checkChange(c sandbox.VolumeFileChange) error {
	if c.Mode != nil && *c.Mode&^permissions != 0 {
		return sandbox.Errorf(sandbox.Invalid, "a mode is at most 07777")
	}
	return nil
}

// MakeFolder implements VolumeFiles.MakeVolumeFolder.
func (d *Disk) MakeFolder(of sandbox.VolumeRef, p string, c sandbox.VolumeFileChange, force bool) (file sandbox.VolumeFile, err error) {
	if err := checkChange(c); err != nil {
		return file, err
	}
	err = d.on(of, p, (*Volume).changing, func(v *Volume) error {
		if force {
			if err := v.parents(p); err != nil {
				return err
			}
		}
		at, err := v.find(p)
		if err != nil {
			return err
		}
		if at.is {
			if !force || at.letter != letterFolder {
				return unix.EEXIST
			}
			file, err = v.fileAt(p, at.node)
			return err
		}
		a, err := v.add(at.folder, at.name, object{mode: unix.S_IFDIR | newFolderMode}.changed(c), nil)
		if err == nil {
			file, err = v.fileAt(p, a.Node)
		}
		return err
	})
	return file, err
}

// ReadFile implements VolumeFiles.ReadVolumeFile.
func (d *Disk) ReadFile(ctx context.Context, of sandbox.VolumeRef, p string, w io.Writer) error {
	var v *Volume
	var node uint64
	err := d.on(of, p, (*Volume).reading, func(its *Volume) error {
		at, err := its.findExisting(p)
		if err == nil && at.letter != letterFile {
			err = sandbox.Errorf(sandbox.Invalid, "%.100q is not a file", p)
		}
		v, node = its, at.node
		return err
	})
	if err != nil {
		return err
	}
	v.mu.RLock()
	f, err := v.openFile(node, unix.O_RDONLY)
	v.mu.RUnlock()
	if err != nil {
		return coded(p, err)
	}
	defer f.Close()
	buf := buffer(volume.MaxData)
	defer giveBack(buf)
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := f.Read(*buf)
		if n > 0 {
			if _, err := w.Write((*buf)[:n]); err != nil {
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

// WriteFile implements VolumeFiles.WriteVolumeFile.
func (d *Disk) WriteFile(ctx context.Context, of sandbox.VolumeRef, p string, c sandbox.VolumeFileChange, force bool, r io.Reader) (file sandbox.VolumeFile, err error) {
	if err := checkChange(c); err != nil {
		return file, err
	}
	if p == "/" {
		return file, sandbox.Errorf(sandbox.Conflict, "the root of a volume is a folder")
	}
	var v *Volume
	o := object{mode: unix.S_IFREG | newFileMode}.changed(c)
	var node uint64
	err = d.on(of, p, (*Volume).changing, func(its *Volume) error {
		v = its
		if err := v.mayWrite(p, force); err != nil {
			return err
		}
		node, err = v.fresh(o)
		return err
	})
	if err != nil {
		return file, err
	}
	err = v.fill(ctx, node, r)
	done, beginErr := v.changing()
	if beginErr != nil {
		return file, errors.Join(err, errNoVolume())
	}
	defer done()
	if err == nil {
		err = v.place(p, node, o, force)
	}
	if err != nil {
		_ = v.drop(node, o)
		return file, coded(p, err)
	}
	file, err = v.fileAt(p, node)
	return file, coded(p, err)
}

// mayWrite returns an error if a file cannot be written to a path now.
func (v *Volume) mayWrite(p string, force bool) error {
	at, err := v.find(p)
	switch {
	case errors.Is(err, sandbox.NotFound) && force:
		return nil // its parents will be made
	case err != nil:
		return err
	case at.is && at.letter == letterFolder:
		return sandbox.Errorf(sandbox.Conflict, "%.100q is a folder", p)
	case at.is && !force:
		return unix.EEXIST
	}
	return nil
}

// fill copies r into an object that has no name yet.
func (v *Volume) fill(ctx context.Context, node uint64, r io.Reader) error {
	buf := buffer(volume.MaxData)
	defer giveBack(buf)
	for at := int64(0); ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := r.Read(*buf)
		if n > 0 {
			if err := v.fillPart(node, (*buf)[:n], at); err != nil {
				return err
			}
			at += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (v *Volume) fillPart(node uint64, data []byte, at int64) error {
	done, err := v.reading()
	if err != nil {
		return errNoVolume()
	}
	defer done()
	_, err = v.writeAt(node, data, at, false)
	return err
}

// place links a new file at its path, replacing an existing one.
func (v *Volume) place(p string, node uint64, o object, force bool) error {
	if err := v.mayWrite(p, force); err != nil {
		return err
	}
	if force {
		if err := v.parents(p); err != nil {
			return err
		}
	}
	at, err := v.find(p)
	if err != nil {
		return err
	}
	if err := v.checkDepth(at.folder); err != nil {
		return err
	}
	o.links = 1
	if err := v.note(node, o); err != nil {
		return err
	}
	aside := v.asideEntry(node)
	if err := unix.Symlink(entryOf(o, node).String(), aside); err != nil {
		return err
	}
	if err := unix.Rename(aside, v.entryPath(at.folder, at.name)); err != nil {
		_ = unix.Unlink(aside)
		return err
	}
	if at.is {
		return v.unname(at.node)
	}
	return nil
}

// Change implements VolumeFiles.ChangeVolumeFile.
func (d *Disk) Change(of sandbox.VolumeRef, p string, c sandbox.VolumeFileChange) (file sandbox.VolumeFile, err error) {
	if err := checkChange(c); err != nil {
		return file, err
	}
	err = d.on(of, p, (*Volume).changing, func(v *Volume) error {
		at, err := v.findExisting(p)
		if err != nil {
			return err
		}
		o, err := v.describe(at.node)
		if err != nil {
			return err
		}
		if err := v.note(at.node, o.changed(c)); err != nil {
			return err
		}
		file, err = v.fileAt(p, at.node)
		return err
	})
	return file, err
}

// Remove implements VolumeFiles.RemoveVolumeFile.
func (d *Disk) Remove(ctx context.Context, of sandbox.VolumeRef, p string) error {
	if p == "/" {
		return sandbox.Errorf(sandbox.Invalid, "the root of a volume cannot be removed")
	}
	return d.on(of, p, (*Volume).changing, func(v *Volume) error {
		at, err := v.findExisting(p)
		if err != nil {
			return err
		}
		return v.removeAll(ctx, at.folder, at.name, at.entry)
	})
}

// removeAll removes an entry recursively.
func (v *Volume) removeAll(ctx context.Context, folder uint64, name string, e entry) error {
	if e.letter != letterFolder {
		return v.unlink(folder, name)
	}
	for more := true; more; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var entries []volume.Entry
		var err error
		if entries, more, err = v.list(e.node, ""); err != nil {
			return err
		}
		for _, below := range entries {
			is, err := v.entry(e.node, below.Name)
			if err != nil {
				return err
			}
			if err := v.removeAll(ctx, e.node, below.Name, is); err != nil {
				return err
			}
		}
	}
	return v.rmdir(folder, name)
}
