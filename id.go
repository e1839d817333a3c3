package sandbox

import (
	"crypto/rand"
)

const (
	idAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	idLength   = 20
)

var (
	sandboxIDPattern  = lazily(`^i[a-z0-9]{20}$`)
	bootIDPattern     = lazily(`^b[a-z0-9]{20}$`)
	snapshotIDPattern = lazily(`^s[a-z0-9]{20}$`)
)

// NewSandboxID returns a fresh Sandbox ID: "i" and 20 of [a-z0-9], about 103
// bits of randomness. A Session has the same ID.
func NewSandboxID() string { return "i" + randomText() }

// NewBootID returns a fresh Boot ID: "b" and 20 of [a-z0-9].
func NewBootID() string { return "b" + randomText() }

// NewSnapshotID returns a fresh Snapshot ID: "s" and 20 of [a-z0-9].
func NewSnapshotID() string { return "s" + randomText() }

// ValidSandboxID reports whether s has the form of a Sandbox ID.
func ValidSandboxID(s string) bool { return sandboxIDPattern.MatchString(s) }

// ValidBootID reports whether s has the form of a Boot ID. Everything that an
// Engine names after a Boot (paths, cgroups, sockets) checks it first.
func ValidBootID(s string) bool { return bootIDPattern.MatchString(s) }

// ValidSnapshotID reports whether s has the form of a Snapshot ID. Saved states
// are named after it on disk, so an Engine checks it first.
func ValidSnapshotID(s string) bool { return snapshotIDPattern.MatchString(s) }

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
