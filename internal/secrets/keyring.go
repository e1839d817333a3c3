// Package secrets manages Tenants' Secrets. Their values are sealed only here, and
// opened only to be handed to a Sandbox's link.
package secrets

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

// A KMS seals small keys with a master key that it keeps to itself. binding names the
// owner of a key: Unwrap needs the same binding as Wrap. Methods are safe for
// concurrent use.
type KMS interface {
	// Current names the master key that Wrap uses.
	Current() string
	Wrap(ctx context.Context, key, binding []byte) (sealed []byte, keyID string, err error)
	// Unwrap opens a key that Wrap sealed. The error does not reveal the key.
	Unwrap(ctx context.Context, keyID string, sealed, binding []byte) ([]byte, error)
}

const (
	keyBytes = 32
	// maxKeys is the most keys in a Keyring: the current one and earlier ones.
	maxKeys = 16
	// maxKeyFile bounds the file of a Keyring, in bytes.
	maxKeyFile = 16 << 10
)

// Keyring is a KMS of master keys that the operator keeps. The first key seals, all
// keys open.
type Keyring struct {
	current string
	keys    map[string]cipher.AEAD
}

// ParseKeyring reads keys of 64 hex digits, separated by commas or space; it skips
// lines that begin with '#'. Its errors show no key.
func ParseKeyring(text string) (*Keyring, error) {
	k := &Keyring{keys: map[string]cipher.AEAD{}}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, word := range strings.FieldsFunc(line, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r' }) {
			if err := k.add(word); err != nil {
				return nil, fmt.Errorf("key %d: %w", len(k.keys)+1, err)
			}
		}
	}
	if len(k.keys) == 0 {
		return nil, errors.New("no key is set: make one with `openssl rand -hex 32`")
	}
	return k, nil
}

// ReadKeyring is ParseKeyring of a file.
func ReadKeyring(path string) (*Keyring, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", path, maxKeyFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := ParseKeyring(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

func (k *Keyring) add(word string) error {
	raw, err := hex.DecodeString(word)
	if err != nil || len(raw) != keyBytes {
		return fmt.Errorf("it is not %d hex digits: make one with `openssl rand -hex %d`", 2*keyBytes, keyBytes)
	}
	if len(k.keys) == maxKeys {
		return fmt.Errorf("there may be at most %d", maxKeys)
	}
	id := keyID(raw)
	if k.keys[id] != nil {
		return errors.New("it is listed twice")
	}
	if k.keys[id], err = gcm(raw); err != nil {
		return err
	}
	if k.current == "" {
		k.current = id
	}
	return nil
}

// keyID returns a name for a key that does not reveal it.
func keyID(raw []byte) string {
	const shown = 8
	sum := sha256.Sum256(append([]byte("cloud-sandbox secrets key\x00"), raw...))
	return hex.EncodeToString(sum[:shown])
}

func gcm(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Current implements KMS.
func (k *Keyring) Current() string { return k.current }

// Wrap implements KMS.
func (k *Keyring) Wrap(_ context.Context, key, binding []byte) ([]byte, string, error) {
	return seal(k.keys[k.current], key, binding), k.current, nil
}

// Unwrap implements KMS.
func (k *Keyring) Unwrap(_ context.Context, keyID string, sealed, binding []byte) ([]byte, error) {
	aead := k.keys[keyID]
	if aead == nil {
		return nil, fmt.Errorf("the master key %.16q is not among the keys that the operator set", keyID)
	}
	return open(aead, sealed, binding)
}

// seal encrypts plain behind a fresh nonce.
func seal(aead cipher.AEAD, plain, binding []byte) []byte {
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails: crypto/rand aborts the process instead
	return aead.Seal(nonce, nonce, plain, binding)
}

// open is the inverse of seal.
func open(aead cipher.AEAD, sealed, binding []byte) ([]byte, error) {
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("the sealed value is too short")
	}
	return aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], binding)
}
