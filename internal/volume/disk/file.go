package disk

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

// The operations of this file work on one object. Their callers hold mu.

// maxFile is the maximum size of a file: the size of a Volume.
const maxFile = sandbox.MaxVolumeBytes

// openFile opens the bytes of a regular file.
func (v *Volume) openFile(node uint64, flags int) (*os.File, error) {
	o, err := v.describe(node)
	switch {
	case err != nil:
		return nil, err
	case o.isFolder():
		return nil, unix.EISDIR
	case !o.isFile():
		return nil, unix.EINVAL
	}
	f, err := os.OpenFile(v.path(node), flags|unix.O_NOFOLLOW, 0)
	return f, stale(err)
}

func (v *Volume) lockLength(node uint64) (unlock func()) {
	l := &v.growing[node%uint64(len(v.growing))]
	l.Lock()
	return l.Unlock
}

// writeAt writes into an object, at its end if appending, and returns its new length.
func (v *Volume) writeAt(node uint64, data []byte, at int64, appending bool) (size int64, err error) {
	f, err := os.OpenFile(v.path(node), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, stale(err)
	}
	defer f.Close()
	defer v.lockLength(node)()
	before, err := lengthOf(f)
	if err != nil {
		return 0, err
	}
	if appending {
		at = before
	}
	end := at + int64(len(data))
	if at < 0 || end < at || end > maxFile {
		return 0, unix.EFBIG
	}
	if err := v.take(charge(0, max(end, before))-charge(0, before), 0); err != nil {
		return 0, err
	}
	if _, err = f.WriteAt(data, at); err == nil {
		return max(end, before), nil
	}
	// A part may have been written.
	if after, lengthErr := lengthOf(f); lengthErr == nil {
		v.giveBack(charge(0, max(end, before))-charge(0, after), 0)
	}
	return 0, err
}

func lengthOf(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// truncate sets the length of a file; growAlone: it never shrinks it.
func (v *Volume) truncate(node uint64, size int64, growAlone bool) error {
	if size < 0 || size > maxFile {
		return unix.EFBIG
	}
	f, err := v.openFile(node, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	defer v.lockLength(node)()
	before, err := lengthOf(f)
	if err != nil || growAlone && size <= before {
		return err
	}
	cost := charge(0, size) - charge(0, before)
	if cost > 0 {
		if err := v.take(cost, 0); err != nil {
			return err
		}
	}
	if err := f.Truncate(size); err != nil {
		if cost > 0 {
			v.giveBack(cost, 0)
		}
		return err
	}
	if cost < 0 {
		v.giveBack(-cost, 0)
	}
	return nil
}

// setAttr applies an OpSetAttr request. The caller holds mu for writing.
func (v *Volume) setAttr(r *volume.Request) (volume.Attr, error) {
	o, err := v.describe(r.Node)
	if err != nil {
		return volume.Attr{}, err
	}
	if r.Set&volume.SetSize != 0 {
		if err := v.truncate(r.Node, r.Offset, false); err != nil {
			return volume.Attr{}, err
		}
	}
	was := o
	if r.Set&volume.SetMode != 0 {
		o.mode = o.mode&unix.S_IFMT | r.Mode&permissions
	}
	if r.Set&volume.SetUID != 0 {
		o.uid = r.UID
	}
	if r.Set&volume.SetGID != 0 {
		o.gid = r.GID
	}
	if o != was {
		if err := v.note(r.Node, o); err != nil {
			return volume.Attr{}, err
		}
	}
	if err := v.setTimes(r); err != nil {
		return volume.Attr{}, err
	}
	return v.attrOf(r.Node, o)
}

func (v *Volume) setTimes(r *volume.Request) error {
	omit := unix.Timespec{Nsec: unix.UTIME_OMIT}
	times := []unix.Timespec{omit, omit}
	for i, how := range []struct {
		set, now uint32
		at       int64
	}{
		{volume.SetAccessed, volume.SetAccessedNow, r.Accessed},
		{volume.SetModified, volume.SetModifiedNow, r.Modified},
	} {
		switch {
		case r.Set&how.now != 0:
			times[i] = unix.Timespec{Nsec: unix.UTIME_NOW}
		case r.Set&how.set != 0:
			times[i] = unix.NsecToTimespec(how.at)
		}
	}
	if times[0] == omit && times[1] == omit {
		return nil
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, v.path(r.Node), times, unix.AT_SYMLINK_NOFOLLOW)
}

// sync flushes an object to the disk.
func (v *Volume) sync(node uint64) error {
	f, err := os.OpenFile(v.path(node), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return stale(err)
	}
	return errors.Join(f.Sync(), f.Close())
}

// target is the target of a symbolic link.
func (v *Volume) target(node uint64) ([]byte, error) {
	o, err := v.describe(node)
	if err != nil {
		return nil, err
	}
	if o.mode&unix.S_IFMT != unix.S_IFLNK {
		return nil, unix.EINVAL
	}
	b, err := os.ReadFile(v.path(node))
	if err == nil && len(b) > volume.MaxTarget {
		err = unix.EIO // nothing here makes one
	}
	return b, stale(err)
}

// timeOf is a time of an Attr.
func timeOf(nanos int64) time.Time { return time.Unix(0, nanos).UTC() }
