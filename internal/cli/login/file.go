package login

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// maxFile bounds the file of logins, in bytes.
const maxFile = 1 << 20

// File stores logins, one for each server, readable only by its user.
type File struct {
	path string
}

// NewFile returns the File in the user's folder for configuration; getenv reads the
// environment.
func NewFile(getenv func(string) string) (File, error) {
	dir, err := Folder(getenv)
	return File{filepath.Join(dir, "logins.json")}, err
}

// Folder is where a user's commands keep files.
func Folder(getenv func(string) string) (string, error) {
	dir := getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		var err error
		if dir, err = ownFolder(getenv); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "cloud-sandbox"), nil
}

// Get returns the login at a server; false when the file has no such login.
func (f File) Get(server string) (Login, bool, error) {
	all, err := f.read()
	l, is := all[server]
	return l, is, err
}

// Change replaces a server's login with the result of change; false removes it.
// Concurrent changes wait, so that a single-use refresh token is used once.
func (f File) Change(server string, change func(l Login, is bool) (Login, bool, error)) error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return fmt.Errorf("keep the login: %w", err)
	}
	lock, err := os.OpenFile(f.path+".lock", os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return fmt.Errorf("keep the login: %w", err)
	}
	defer lock.Close()
	if err := lockFile(lock); err != nil {
		return fmt.Errorf("keep the login: %w", err)
	}
	all, err := f.read()
	if err != nil {
		return err
	}
	had, is := all[server]
	l, keep, err := change(had, is)
	if err != nil {
		return err
	}
	if delete(all, server); keep {
		all[server] = l
	}
	return f.write(all)
}

func (f File) read() (map[string]Login, error) {
	all := map[string]Login{}
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the logins: %w", err)
	}
	defer file.Close()
	if err := json.NewDecoder(io.LimitReader(file, maxFile)).Decode(&all); err != nil {
		return nil, fmt.Errorf("read the logins: %s is damaged, remove it: %w", f.path, err)
	}
	return all, nil
}

func (f File) write(all map[string]Login) error {
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	fresh, err := os.CreateTemp(filepath.Dir(f.path), ".logins-") // 0600
	if err != nil {
		return fmt.Errorf("keep the login: %w", err)
	}
	_, err = fresh.Write(text)
	if err = errors.Join(err, fresh.Close()); err == nil {
		err = os.Rename(fresh.Name(), f.path)
	}
	if err != nil {
		_ = os.Remove(fresh.Name())
		return fmt.Errorf("keep the login: %w", err)
	}
	return nil
}
