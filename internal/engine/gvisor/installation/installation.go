// Package installation is the identity of an installation: the key that signs its
// exports, and the keys of the installations whose exports it imports. Both lie in one
// folder, which only root may read and write.
package installation

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

const (
	ownFile     = "installation.key"
	trustedFile = "trusted.keys"
	// maxTrusted bounds the trusted keys.
	maxTrusted = 1000
)

// Key identifies an installation: the public half of its key.
type Key [ed25519.PublicKeySize]byte

// ParseKey parses the output of String.
func ParseKey(text string) (Key, error) {
	var k Key
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(k) {
		return Key{}, fmt.Errorf("the key of an installation has %d hex digits; `cloud-sandbox trust key` prints it there", 2*len(k))
	}
	copy(k[:], raw)
	return k, nil
}

func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Verify reports whether the installation signed message.
func (k Key) Verify(message, signature []byte) bool {
	return len(signature) == ed25519.SignatureSize && ed25519.Verify(k[:], message, signature)
}

// Keys are the keys in one folder. Methods are safe for concurrent use, also by several
// processes, except that concurrent changes of the trusted keys by two processes may lose
// one.
type Keys struct {
	dir string

	mu  sync.Mutex
	own ed25519.PrivateKey // nil: not read yet
}

// Open returns the Keys in a folder, which must exist when they are used.
func Open(dir string) *Keys { return &Keys{dir: dir} }

// Own returns this installation's Key, which is made at the first use.
func (k *Keys) Own() (Key, error) {
	private, err := k.private()
	if err != nil {
		return Key{}, err
	}
	return Key(private.Public().(ed25519.PublicKey)), nil
}

// Sign signs a message, which must state its purpose.
func (k *Keys) Sign(message []byte) (signature []byte, by Key, err error) {
	private, err := k.private()
	if err != nil {
		return nil, Key{}, err
	}
	return ed25519.Sign(private, message), Key(private.Public().(ed25519.PublicKey)), nil
}

func (k *Keys) private() (ed25519.PrivateKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.own != nil {
		return k.own, nil
	}
	path := filepath.Join(k.dir, ownFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = k.make(path); err == nil {
			text, err = os.ReadFile(path) // possibly another process's key
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the installation's key: %w", err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("the installation's key in %s is not one", path)
	}
	k.own = ed25519.NewKeyFromSeed(seed)
	return k.own, nil
}

// make makes a key unless one exists.
func (k *Keys) make(path string) error {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // never fails
	aside, err := k.aside([]byte(hex.EncodeToString(seed) + "\n"))
	if err != nil {
		return err
	}
	defer os.Remove(aside)
	if err := os.Link(aside, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// aside writes a file, synced, under a temporary name.
func (k *Keys) aside(content []byte) (path string, err error) {
	f, err := os.CreateTemp(k.dir, ".key-*") // readable by its owner only
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// Trusted returns the trusted Keys, in the order in which they were added.
func (k *Keys) Trusted() ([]Key, error) {
	text, err := os.ReadFile(filepath.Join(k.dir, trustedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the keys of trusted installations: %w", err)
	}
	var all []Key
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, err := ParseKey(line)
		if err != nil {
			return nil, fmt.Errorf("the keys of trusted installations: %w", err)
		}
		all = append(all, key)
	}
	return all, nil
}

// Trusts reports whether key is our own or trusted.
func (k *Keys) Trusts(key Key) (bool, error) {
	own, err := k.Own()
	if err != nil || own == key {
		return err == nil, err
	}
	all, err := k.Trusted()
	return slices.Contains(all, key), err
}

// Trust adds a trusted Key; it is idempotent.
func (k *Keys) Trust(key Key) error {
	return k.change(func(all []Key) ([]Key, error) {
		switch {
		case slices.Contains(all, key):
			return all, nil
		case len(all) >= maxTrusted:
			return nil, fmt.Errorf("%d installations are trusted already: remove one", len(all))
		}
		return append(all, key), nil
	})
}

// Distrust removes a trusted Key; an error when it is not trusted.
func (k *Keys) Distrust(key Key) error {
	return k.change(func(all []Key) ([]Key, error) {
		if !slices.Contains(all, key) {
			return nil, fmt.Errorf("the installation %s is not trusted", key)
		}
		return slices.DeleteFunc(all, func(other Key) bool { return other == key }), nil
	})
}

func (k *Keys) change(edit func([]Key) ([]Key, error)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	all, err := k.Trusted()
	if err != nil {
		return err
	}
	if all, err = edit(all); err != nil {
		return err
	}
	var text bytes.Buffer
	for _, key := range all {
		fmt.Fprintln(&text, key)
	}
	aside, err := k.aside(text.Bytes())
	if err != nil {
		return err
	}
	return os.Rename(aside, filepath.Join(k.dir, trustedFile))
}
