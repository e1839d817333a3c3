// Package durable writes files so that a crash leaves either the old or the new
// content.
package durable

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Aside is the prefix of files that are still being written. After a crash they
// remain next to their targets.
const Aside = ".new-"

// Write replaces the content of the file at path atomically: a reader sees the old or
// the new content. The new content is durable when Write returns.
func Write(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, os.Geteuid(), true)
}

// WriteFor is Write for a file that another user, and the group of the same number, shall
// own. It changes the owner of no other file, even if that user can rename files in the
// folder meanwhile.
func WriteFor(uid int, path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, uid, true)
}

// WriteLoose is Write without the wait for the disk: after a crash of the machine
// the file may be the old one, or empty.
func WriteLoose(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, os.Geteuid(), false)
}

// Unnamed makes a file without a name in a folder. Nothing is left of it once it is closed, or
// after a crash.
func Unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, Aside)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func write(path string, content []byte, mode fs.FileMode, uid int, lasting bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), Aside)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode))
	if uid != os.Geteuid() {
		err = errors.Join(err, f.Chown(uid, uid))
	}
	if lasting {
		err = errors.Join(err, f.Sync())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if !lasting {
		return os.Rename(f.Name(), path)
	}
	return Rename(f.Name(), path)
}

// Identity returns the random text that the file at path holds, which it makes at the
// first call. It tells one data folder from another.
func Identity(path string) (string, error) {
	id, err := KeptIdentity(path)
	if err != nil || id != "" {
		return id, err
	}
	id = rand.Text()
	return id, Write(path, []byte(id+"\n"), 0o600)
}

// KeptIdentity is Identity without making one: it returns an empty text if the file
// does not exist.
func KeptIdentity(path string) (string, error) {
	kept, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return strings.TrimSpace(string(kept)), nil
}

// Rename renames a durable file, and makes its new name durable.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return Folder(filepath.Dir(to))
}

// Folder makes the names in a folder durable.
func Folder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
