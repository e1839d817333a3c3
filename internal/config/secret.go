package config

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
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

// maxSecretFile bounds the file of a secret, in bytes.
const maxSecretFile = 4096

// secretFiles are the secrets that a file may hold instead of a variable.
func (c *Config) secretFiles() []secretOf {
	return []secretOf{
		{"JWT_SECRET", &c.Secret, c.SecretFile},
		{"CLOUD_SANDBOX_GUEST_SEED", &c.GuestSeed, c.GuestSeedFile},
		{"CLOUD_SANDBOX_SERVICE_SECRET", &c.ServiceSecret, c.ServiceSecretFile},
	}
}

type secretOf struct {
	env  string
	text *[]byte
	file string // of NAME_FILE
}

// checkSecretFiles returns an error for secrets that are too short, or set both by a
// variable and by a file.
func (c *Config) checkSecretFiles() error {
	var errs []error
	for _, s := range c.secretFiles() {
		switch {
		case len(*s.text) > 0 && s.file != "":
			errs = append(errs, fmt.Errorf("%s and %[1]s_FILE: set one of them", s.env))
		case s.env != "JWT_SECRET": // that one has a check of its own
			errs = append(errs, s.check(s.env))
		}
	}
	return errors.Join(errs...)
}

func (s secretOf) check(name string) error {
	if n := len(*s.text); n > 0 && n < MinSecret {
		return fmt.Errorf("%s: it has %d bytes and needs at least %d; make one with `openssl rand -hex 32`", name, n, MinSecret)
	}
	return nil
}

// ReadSecrets reads the configured files of the secrets that the process's role needs.
// It runs as the server's user, who must be able to read the files.
func (c *Config) ReadSecrets() error {
	for _, s := range c.secretFiles() {
		if s.file == "" || !c.needs(s.env) {
			continue
		}
		name := s.env + "_FILE"
		text, err := readSecretFile(s.file)
		if err != nil {
			return fmt.Errorf("%s, which the server's user must be able to read: %w", name, err)
		}
		*s.text = text
		if s.env == "JWT_SECRET" {
			err = checkSecret(text)
		} else {
			err = s.check(name)
		}
		if err != nil {
			return fmt.Errorf("the file %s: %w", s.file, err)
		}
	}
	return nil
}

// needs reports whether the process's role needs a secret, by the name of its variable.
func (c *Config) needs(env string) bool {
	switch env {
	case "CLOUD_SANDBOX_SERVICE_SECRET":
		return c.Role != ""
	case "JWT_SECRET":
		return c.Role == "" || c.Role == RoleGateway
	}
	return c.Role == "" || c.Role == RoleGateway || c.Role == RoleSessionManager
}

// NeedsGuests reports whether the process's role has the guest seed and can open
// Tenants' secrets. The role derives the tokens and certificate authorities of guests
// and links from the seed. Nodes only pass the results on, and schedulers never see
// them.
func (c *Config) NeedsGuests() bool { return c.needs("CLOUD_SANDBOX_GUEST_SEED") }

// readSecretFile reads a file without the line break that editors end it with.
func readSecretFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	switch text = bytes.TrimRight(text, "\r\n"); {
	case err != nil:
		return nil, err
	case len(text) > maxSecretFile:
		return nil, fmt.Errorf("the file %s has more than %d bytes", path, maxSecretFile)
	case len(text) == 0:
		return nil, fmt.Errorf("the file %s is empty", path)
	}
	return text, nil
}

// KeepGuestSeed fills in GuestSeed as KeepSecret does Secret, under Data.
func (c *Config) KeepGuestSeed() error {
	kept := Config{Data: filepath.Join(c.Data, "guest-seed"), Secret: c.GuestSeed}
	err := kept.KeepSecret()
	c.GuestSeed = kept.Secret
	return err
}
