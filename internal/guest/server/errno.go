package server

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Refusal classifies an operating system error about a path for a caller.
type Refusal int

const (
	RefusedInternal  Refusal = iota // it says nothing about the path
	RefusedAbsent                   // nothing exists at the path
	RefusedConflict                 // something is in the way, or in use
	RefusedForbidden                // not permitted for this user, or for any user
	RefusedFull                     // the disk is full, and waiting does not help
	RefusedBusy                     // too many open files, or memory is short: may pass
	RefusedInvalid                  // the object at the path does not support this use
)

// refusals gives the kind of each error, and its text about the path.
var refusals = []struct {
	err  error
	kind Refusal
	text string
}{
	{fs.ErrNotExist, RefusedAbsent, "does not exist"},
	{syscall.ENOTEMPTY, RefusedConflict, "is a directory that is not empty"},
	{fs.ErrExist, RefusedConflict, "exists"},
	{syscall.EBUSY, RefusedConflict, "is in use, for example as a mount point"},
	{syscall.ETXTBSY, RefusedConflict, "is a running program"},
	{fs.ErrPermission, RefusedForbidden, "may not be used by this user"},
	{syscall.EROFS, RefusedForbidden, "is on a read-only file system"},
	{syscall.ENOSPC, RefusedFull, "does not fit: the disk is full"},
	{syscall.EDQUOT, RefusedFull, "does not fit: the disk is full"},
	{syscall.EFBIG, RefusedFull, "would be too large"},
	{syscall.EMFILE, RefusedBusy, "cannot be opened: too many files are open"},
	{syscall.ENFILE, RefusedBusy, "cannot be opened: too many files are open"},
	{syscall.ENOMEM, RefusedBusy, "needs more memory than is available"},
	{syscall.ENOTDIR, RefusedInvalid, "is below a file that is not a directory"},
	{syscall.EISDIR, RefusedInvalid, "is a directory"},
	{syscall.ENAMETOOLONG, RefusedInvalid, "has a name that is too long"},
	{syscall.ELOOP, RefusedInvalid, "leads through too many symbolic links"},
	{syscall.EINVAL, RefusedInvalid, "is not possible here"},
	{syscall.EXDEV, RefusedInvalid, "is on another file system than the destination: copy it, and remove the source"},
	{syscall.ENXIO, RefusedInvalid, "is a socket, a pipe or a device that cannot be opened as a file"},
	{syscall.ENODEV, RefusedInvalid, "is a device that cannot be opened as a file"},
	{syscall.ENOTTY, RefusedInvalid, "is a device that cannot be used as a file"},
	{syscall.EOPNOTSUPP, RefusedInvalid, "is on a file system that cannot do this"},
	{syscall.EAGAIN, RefusedInvalid, "has nothing to read now, as pipes and terminals may not"},
	{syscall.EIO, RefusedInvalid, "cannot be read or written: input/output error"},
}

// RefusalOf returns the kind of err and its text about the path. An error of the
// operating system that is not in the table is about the path too, with its own
// text.
func RefusalOf(err error) (Refusal, string) {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.kind, r.text
		}
	}
	var no syscall.Errno
	if errors.As(err, &no) && no != syscall.EFAULT && no != syscall.EBADF { // which are our mistakes
		return RefusedInvalid, "cannot be used so: " + no.Error()
	}
	return RefusedInternal, ""
}

// KindOf names the type of a file that is not a regular file.
func KindOf(m os.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m.IsRegular():
		return "a file"
	}
	return "neither a file nor a directory"
}
