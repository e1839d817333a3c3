package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRefusalOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Refusal
		text string
	}{
		{fs.ErrNotExist, RefusedAbsent, "does not exist"},
		{&fs.PathError{Op: "open", Path: "/x", Err: syscall.ENXIO}, RefusedInvalid, "socket"},
		{&os.LinkError{Op: "rename", Old: "/a", New: "/b", Err: syscall.EXDEV}, RefusedInvalid, "copy it"},
		{fmt.Errorf("mkdir: %w", syscall.EROFS), RefusedForbidden, "read-only"},
		{syscall.EPERM, RefusedForbidden, "user"},
		{syscall.EBUSY, RefusedConflict, "in use"},
		{syscall.ENOTEMPTY, RefusedConflict, "not empty"},
		{syscall.ENOSPC, RefusedFull, "disk is full"},
		{syscall.EMFILE, RefusedBusy, "too many files"},
		{syscall.EPROTO, RefusedInvalid, "protocol error"}, // nobody knows which errors a file system has
		{syscall.EBADF, RefusedInternal, ""},
		{io.ErrUnexpectedEOF, RefusedInternal, ""},
		{errors.New("ours"), RefusedInternal, ""},
	} {
		if got, text := RefusalOf(tt.err); got != tt.want || !strings.Contains(text, tt.text) {
			t.Errorf("%v: %d %q", tt.err, got, text)
		}
	}
}

func TestKindOf(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{dir: "a directory", pipe: "a pipe", "/dev/null": "a device", os.Args[0]: "a file"} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := KindOf(info.Mode()); got != want {
			t.Errorf("%s is %s", path, got)
		}
	}
}
