package template

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// A tree is a root filesystem under construction. Its content may come from an unchecked
// image. All access goes through os.Root, so that no symbolic link leads out of it. Names
// are relative, with slashes.
type tree struct{ *os.Root }

// write replaces a file, owned by root, and creates missing folders.
func (t tree) write(name string, mode fs.FileMode, body string) error {
	if err := t.makeFolder(path.Dir(name), 0o755, 0); err != nil {
		return err
	}
	if err := t.RemoveAll(name); err != nil {
		return fmt.Errorf("write %s into the tree: %w", name, err)
	}
	f, err := t.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write %s into the tree: %w", name, err)
	}
	_, err = io.WriteString(f, body)
	if err := errors.Join(err, f.Chown(0, 0), f.Chmod(mode), f.Close()); err != nil {
		return fmt.Errorf("write %s into the tree: %w", name, err)
	}
	return nil
}

// makeFolder creates a folder and its missing parents, owned by the user and group id. An
// existing folder keeps its owner and mode.
func (t tree) makeFolder(name string, mode fs.FileMode, id int) error {
	if name == "." {
		return nil
	}
	if info, err := t.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	if err := t.makeFolder(path.Dir(name), 0o755, 0); err != nil {
		return err
	}
	if err := t.Mkdir(name, 0o755); err != nil {
		return fmt.Errorf("make /%s in the tree: %w", name, err)
	}
	return t.own(name, mode, id)
}

// own sets owner and mode; the mode comes second because a new owner clears
// setuid bits.
func (t tree) own(name string, mode fs.FileMode, id int) error {
	if err := errors.Join(t.Chown(name, id, id), t.Chmod(name, mode)); err != nil {
		return fmt.Errorf("give /%s in the tree its owner and mode: %w", name, err)
	}
	return nil
}

// link replaces name with a symbolic link.
func (t tree) link(target, name string) error {
	if err := t.RemoveAll(name); err != nil {
		return fmt.Errorf("link /%s in the tree: %w", name, err)
	}
	if err := t.Symlink(target, name); err != nil {
		return fmt.Errorf("link /%s in the tree: %w", name, err)
	}
	return nil
}

// has reports whether one of the names exists. A link counts, even a dangling one.
func (t tree) has(names ...string) bool {
	for _, name := range names {
		if _, err := t.Lstat(name); err == nil {
			return true
		}
	}
	return false
}

// empty removes the content of a folder. A missing folder is no error.
func (t tree) empty(folder string) error {
	entries, err := fs.ReadDir(t.FS(), folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("empty /%s in the tree: %w", folder, err)
	}
	for _, e := range entries {
		if err := t.RemoveAll(path.Join(folder, e.Name())); err != nil {
			return fmt.Errorf("empty /%s in the tree: %w", folder, err)
		}
	}
	return nil
}

// text returns a file of at most 1 MiB, or "" when it is missing.
func (t tree) text(name string) (string, error) {
	f, err := t.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read /%s in the tree: %w", name, err)
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return "", fmt.Errorf("read /%s in the tree: %w", name, err)
	}
	return string(body), nil
}

// cleanName converts an archive's name to a tree's name; false when it leads out of the
// tree or is the root itself.
func cleanName(name string) (string, bool) {
	name = path.Clean(strings.TrimLeft(name, "/"))
	return name, name != "." && name != ".." && !strings.HasPrefix(name, "../") && !strings.ContainsRune(name, 0)
}
