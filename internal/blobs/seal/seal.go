// Package seal encrypts the content of blobs, with keys that it derives from the
// operator's.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
)

// KeyBytes is the length of a key, in bytes.
const KeyBytes = 32

// sealedBy is the first byte of all sealed data: the format version.
const sealedBy = 1

// Overhead is how much longer sealed data is. It consists of the format version, a nonce
// and the AES-256-GCM ciphertext. The blob's name is authenticated, so that no blob can
// replace another.
const Overhead = 1 + 12 + 16

// Seal encrypts the content of the blob with a name.
func Seal(aead cipher.AEAD, name string, content []byte) []byte {
	out := make([]byte, 1+aead.NonceSize(), Overhead+len(content))
	out[0] = sealedBy
	_, _ = rand.Read(out[1:]) // never fails: crypto/rand aborts the process instead
	return aead.Seal(out, out[1:], content, []byte(name))
}

// ErrOther is the error of Open.
var ErrOther = errors.New("it was not sealed with this key under this name, or was changed since")

// Open returns the content of a blob that Seal sealed with the same key and name.
func Open(aead cipher.AEAD, name string, sealed []byte) ([]byte, error) {
	if len(sealed) < Overhead || sealed[0] != sealedBy {
		return nil, ErrOther
	}
	nonce, text := sealed[1:1+aead.NonceSize()], sealed[1+aead.NonceSize():]
	content, err := aead.Open(nil, nonce, text, []byte(name))
	if err != nil {
		return nil, ErrOther
	}
	return content, nil
}

// Derive derives a key for a single use from another key.
func Derive(key []byte, use string) ([]byte, error) {
	return hkdf.Key(sha256.New, key, nil, "cloud-sandbox blobs: "+use, KeyBytes)
}

// AEAD returns the cipher of the key that is derived for a single use from another key.
func AEAD(key []byte, use string) (cipher.AEAD, error) {
	own, err := Derive(key, use)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(own)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
