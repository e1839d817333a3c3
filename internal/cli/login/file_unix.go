//go:build unix

package login

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ownFolder is the folder for a user's settings.
func ownFolder(getenv func(string) string) (string, error) {
	home := getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", errors.New("no folder to keep logins and certificates in: set HOME or XDG_CONFIG_HOME")
	}
	return filepath.Join(home, ".config"), nil
}

// lockFile waits for a lock that ends with the file.
func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }
