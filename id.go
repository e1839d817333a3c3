package sandbox

import (
	"crypto/rand"
	"crypto/sha256"
	"math/big"
	"strings"
)

const (
	idAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	idLength   = 20 // characters of an ID's random part: about 103 bits
)

// An idKind is the first letter of the IDs of one kind of resource. The rest is 20 of
// [a-z0-9]. Each letter stands for one kind; "c" is reserved for contexts, which a Guest
// names.
type idKind string

const (
	bootID       idKind = "b"
	buildID      idKind = "t"
	eventID      idKind = "e"
	keyID        idKind = "k"
	sandboxID    idKind = "i"
	secretID     idKind = "p" // "s" in earlier versions
	signingKeyID idKind = "g" // "k" in earlier versions
	snapshotID   idKind = "s"
	volumeID     idKind = "v"
)

// fresh returns a new, unique ID.
func (k idKind) fresh() string { return string(k) + randomText() }

// matches reports whether s has the form of an ID of this kind.
func (k idKind) matches(s string) bool {
	random, ok := strings.CutPrefix(s, string(k))
	return ok && len(random) == idLength && strings.Trim(random, idAlphabet) == ""
}

// NewSandboxID returns a fresh Sandbox ID: "i" and 20 of [a-z0-9], about 103
// bits of randomness. A Session has the same ID.
func NewSandboxID() string { return sandboxID.fresh() }

// SandboxIDOf returns the Sandbox ID that belongs to a text. It cannot be guessed without the
// text.
func SandboxIDOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	digits := new(big.Int).SetBytes(sum[:]).Text(36)
	return string(sandboxID) + digits[len(digits)-idLength:]
}

// NewBootID returns a fresh Boot ID: "b" and 20 of [a-z0-9].
func NewBootID() string { return bootID.fresh() }

// NewSnapshotID returns a fresh Snapshot ID: "s" and 20 of [a-z0-9].
func NewSnapshotID() string { return snapshotID.fresh() }

// ValidSandboxID reports whether s has the form of a Sandbox ID.
func ValidSandboxID(s string) bool { return sandboxID.matches(s) }

// ValidBootID reports whether s has the form of a Boot ID. Everything that an
// Engine names after a Boot (paths, cgroups, sockets) checks it first.
func ValidBootID(s string) bool { return bootID.matches(s) }

// ValidSnapshotID reports whether s has the form of a Snapshot ID. Saved states
// are named after it on disk, so an Engine checks it first.
func ValidSnapshotID(s string) bool { return snapshotID.matches(s) }

// randomText draws each character without modulo bias.
func randomText() string {
	const limit = 256 - 256%len(idAlphabet)
	out := make([]byte, 0, idLength)
	buf := make([]byte, 2*idLength)
	for len(out) < idLength {
		_, _ = rand.Read(buf) // never fails: crypto/rand aborts the process instead
		for _, b := range buf {
			if int(b) < limit && len(out) < idLength {
				out = append(out, idAlphabet[int(b)%len(idAlphabet)])
			}
		}
	}
	return string(out)
}
