package config

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// secretFile is the name of the kept secret under Data.
const secretFile = "jwt-secret"

// KeepSecret fills in Secret when dev mode left it empty: it reads the secret kept under
// Data, or makes and keeps one, readable by its owner only. It does nothing if Secret is
// set. It makes Data if missing. Concurrent processes get the same secret.
func (c *Config) KeepSecret() error {
	if len(c.Secret) > 0 {
		return nil
	}
	if err := os.MkdirAll(c.Data, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	path := filepath.Join(c.Data, secretFile)
	secret, err := readSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeSecret(path); err == nil {
			secret, err = readSecret(path)
		}
	}
	c.Secret = secret
	return err
}

func readSecret(path string) ([]byte, error) {
	secret, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("%s holds fewer than %d bytes; delete it and the next start makes a new one", path, MinSecret)
	}
	return secret, nil
}

// makeSecret links a finished file into place, so that no reader sees a partial one.
// Losing a race against another process is a success.
func makeSecret(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), secretFile+".*") // 0600
	if err != nil {
		return fmt.Errorf("keep the signing secret: %w", err)
	}
	defer os.Remove(f.Name())
	raw := make([]byte, MinSecret)
	_, _ = rand.Read(raw) // never fails: crypto/rand aborts the process instead
	_, err = f.WriteString(hex.EncodeToString(raw))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("keep the signing secret: %w", err)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("keep the signing secret: %w", err)
	}
	return nil
}
