package login

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// ownFolder is the folder for a user's settings.
func ownFolder(getenv func(string) string) (string, error) {
	dir := getenv("AppData")
	if !filepath.IsAbs(dir) {
		return "", errors.New("no folder to keep logins and certificates in: set AppData or XDG_CONFIG_HOME")
	}
	return dir, nil
}

// lockFile waits for a lock that ends with the file.
func lockFile(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, &windows.Overlapped{})
}
