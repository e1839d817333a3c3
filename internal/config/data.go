package config

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// DataFolder returns the absolute path of the data folder, by the same rules as
// Load, for commands that need nothing else.
func DataFolder(flags map[string]string, getenv func(string) string) (string, error) {
	c, err := one(FlagData, flags, getenv)
	if err != nil {
		return "", err
	}
	return c.Data, c.checkData()
}

// Address returns where a server with all roles listens, by the same rules as Load.
func Address(flags map[string]string, getenv func(string) string) (string, error) {
	c, err := one(FlagAddr, flags, getenv)
	return c.Addr, err
}

// blobsVariables say where copies are, without the keys that open them.
var blobsVariables = []string{
	"CLOUD_SANDBOX_BLOBS", "CLOUD_SANDBOX_S3_ENDPOINT", "CLOUD_SANDBOX_S3_REGION", "CLOUD_SANDBOX_S3_ACCESS_KEY", "CLOUD_SANDBOX_S3_SECRET_KEY", "CLOUD_SANDBOX_S3_CREDENTIALS_FILE",
}

// BlobsOf returns where copies and builds are kept, by the same rules as Load for a process
// that opens no copies.
func BlobsOf(getenv func(string) string) (Blobs, error) {
	c := defaults(getenv)
	for _, s := range settings {
		value := getenv(s.env)
		if value == "" || !slices.Contains(blobsVariables, s.env) {
			continue
		}
		if err := s.apply(&c, value); err != nil {
			return Blobs{}, fmt.Errorf("%s: %w", s.env, err)
		}
	}
	return c.Blobs, c.Blobs.check(RoleSessionManager)
}

// checkDatabase returns an error unless address has the form of a PostgreSQL database's
// address. The error holds no password.
func checkDatabase(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || strings.Trim(u.Path, "/") == "" {
		return errors.New("the address of a PostgreSQL database has the form postgres://user:password@host:port/name, with special characters of the password percent-encoded")
	}
	return nil
}

// one returns the defaults with one setting from flags and environment.
func one(flag string, flags map[string]string, getenv func(string) string) (Config, error) {
	c := defaults(getenv)
	for _, s := range settings {
		if s.flag != flag {
			continue
		}
		value, given := flags[s.flag]
		if !given {
			value = getenv(s.env)
		}
		if value == "" {
			continue
		}
		if err := s.apply(&c, value); err != nil {
			return c, fmt.Errorf("--%s: %w", s.flag, err)
		}
	}
	return c, nil
}

// ReleasedBase returns where an installation of the program exe has its release's
// Template base, as a file of `cloud-sandbox template export`.
func ReleasedBase(exe string) string {
	return filepath.Join(filepath.Dir(exe), "../share/cloud-sandbox/base.template")
}

// SandboxImage returns the image of the Template "base", by the same rules as Load.
func SandboxImage(getenv func(string) string) (string, error) {
	c := defaults(getenv)
	if v := getenv("SANDBOX_IMAGE"); v != "" {
		c.SandboxImage = v
	}
	return c.SandboxImage, c.checkImage()
}

// InexactImages reports whether similar images may replace a missing one, by the same
// rules as Load.
func InexactImages(getenv func(string) string) (bool, error) {
	v := getenv("CLOUD_SANDBOX_INEXACT_IMAGES")
	if v == "" {
		return false, nil
	}
	allowed, err := parseBool(v)
	if err != nil {
		return false, fmt.Errorf("CLOUD_SANDBOX_INEXACT_IMAGES: %w", err)
	}
	return allowed, nil
}

// NPMRegistry is the npm registry for builds of Templates, in npm's own variable; empty:
// the host's usual one.
func NPMRegistry(getenv func(string) string) string { return getenv("npm_config_registry") }

// Registries are private registries, HOST or HOST:PORT each, that Tenants' builds may
// pull from.
func Registries(getenv func(string) string) []string {
	return strings.FieldsFunc(getenv("CLOUD_SANDBOX_REGISTRIES"), func(r rune) bool { return r == ',' || r == ' ' })
}

// SecretsKeys are the master keys of Tenants' secrets and the file with them, from Load's
// variables; both empty: none is set.
func SecretsKeys(getenv func(string) string) (keys, file string) {
	return getenv("CLOUD_SANDBOX_SECRETS_KEY"), getenv("CLOUD_SANDBOX_SECRETS_KEY_FILE")
}

// maxRoots bounds a file of authorities, in bytes: it is sent in one message.
const maxRoots = 256 << 10

// ReadRoots returns the extra authorities for hosts that get secrets: the contents of
// SecretsRoots and CACerts.
func (c *Config) ReadRoots() (string, error) {
	roots, err := readPEM("CLOUD_SANDBOX_SECRETS_ROOTS", c.SecretsRoots)
	if err != nil {
		return "", err
	}
	own, err := c.ReadCACerts()
	return roots + own, err
}

// ReadCACerts returns the contents of the file of CACerts.
func (c *Config) ReadCACerts() (string, error) { return readPEM("CLOUD_SANDBOX_CA_CERTS", c.CACerts) }

// readPEM reads a file that holds only certificates; its result ends with a newline. It
// is empty without a path.
func readPEM(name, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s, which the server's user must be able to read: %w", name, err)
	case len(text) > maxRoots:
		return "", fmt.Errorf("%s: the file %s has more than %d bytes", name, path, maxRoots)
	}
	var out strings.Builder
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); block.Type != "CERTIFICATE" || err != nil {
			return "", fmt.Errorf("%s: the file %s holds a block %q that is no certificate: remove it", name, path, block.Type)
		}
		_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // to memory
	}
	if out.Len() == 0 {
		return "", fmt.Errorf("%s: the file %s has no certificate in PEM", name, path)
	}
	return out.String(), nil
}
