package builds

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
)

const (
	pemKey     = "PRIVATE KEY"
	maxKeyFile = 16 << 10
)

// PublicOf returns the public half of a key.
func PublicOf(key ed25519.PrivateKey) installation.Key {
	return installation.Key(key.Public().(ed25519.PublicKey))
}

// NewKey makes a key that signs builds, and its text for a file.
func NewKey() (ed25519.PrivateKey, []byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// ReadKey reads a key from a file that only its owner, this process's user, may read.
func ReadKey(path string) (ed25519.PrivateKey, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("the key of builds: %w", err)
	}
	defer f.Close()
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return nil, err
	}
	if s.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("the key of builds: %s is not a file", path)
	}
	if s.Mode&0o077 != 0 || int(s.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("the key of builds: others may read %s, which has the mode %#o and belongs to user %d: run chown %d and chmod 600 on it", path, s.Mode&0o777, s.Uid, os.Geteuid())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, fmt.Errorf("the key of builds: %w", err)
	}
	key, err := parseKey(text)
	if err != nil {
		return nil, fmt.Errorf("the key of builds: %s: %w", path, err)
	}
	return key, nil
}

func parseKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemKey {
		return nil, errors.New("it holds no private key in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("its key is not of the kind Ed25519")
	}
	return key, nil
}
