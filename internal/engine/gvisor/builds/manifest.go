// Package builds signs the programs of a build with the key of a cluster's operator,
// verifies them, and keeps them in Blobs, so that a node can get the programs of an
// earlier build.
package builds

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

const (
	// MaxSignature bounds a Signed as JSON, in bytes.
	MaxSignature = 64 << 10
	// maxProgram bounds a program, in bytes, and maxPrograms the programs of a build.
	maxProgram  = 256 << 20
	maxPrograms = 16
	maxName     = 64
)

// Manifest lists the programs of a build.
type Manifest struct {
	Build string `json:"build"` // its name
	Arch  string `json:"arch"`  // of its machines, as Go names it
	// Programs are in the order in which the build is named after them.
	Programs []Program `json:"programs"`
}

// Program is one program, or the image of the Guest.
type Program struct {
	Name   string `json:"name"` // of its file
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // in hexadecimal
}

// Signed is a Manifest with its signature.
type Signed struct {
	Manifest
	Key       installation.Key `json:"key"` // that signed it
	Signature []byte           `json:"signature"`
}

// statement returns the bytes that are signed.
func (m Manifest) statement() []byte {
	out := fmt.Appendf(nil, "cloud-sandbox build 1\n%q %q\n", m.Build, m.Arch)
	for _, p := range m.Programs {
		out = fmt.Appendf(out, "%q %d %q\n", p.Name, p.Bytes, p.SHA256)
	}
	return out
}

// Bytes is the total size of the programs, in bytes.
func (m Manifest) Bytes() (n int64) {
	for _, p := range m.Programs {
		n += p.Bytes
	}
	return n
}

// names returns the names of the programs.
func (m Manifest) names() (all []string) {
	for _, p := range m.Programs {
		all = append(all, p.Name)
	}
	return all
}

// check returns an error unless m can be a Manifest.
func (m Manifest) check() error {
	if !sentryhost.ValidBuild(m.Build) {
		return fmt.Errorf("%.80q is not the name of a build", m.Build)
	}
	if m.Arch == "" || len(m.Arch) > maxName || len(m.Programs) > maxPrograms {
		return fmt.Errorf("it has the architecture %.80q and %d programs", m.Arch, len(m.Programs))
	}
	seen := map[string]bool{}
	for _, p := range m.Programs {
		if err := p.check(); err != nil {
			return err
		}
		if seen[p.Name] {
			return fmt.Errorf("it lists %q twice", p.Name)
		}
		seen[p.Name] = true
	}
	for _, name := range payload.Names() {
		if !seen[name] {
			return fmt.Errorf("it does not list %q", name)
		}
	}
	return nil
}

const nameChars = "abcdefghijklmnopqrstuvwxyz0123456789._-"

func (p Program) check() error {
	sum, err := hex.DecodeString(p.SHA256)
	switch {
	case p.Name == "" || len(p.Name) > maxName || p.Name[0] == '.' || p.Name == SignatureName || strings.Trim(p.Name, nameChars) != "":
		return fmt.Errorf("%.80q is not the name of a program", p.Name)
	case p.Bytes <= 0 || p.Bytes > maxProgram:
		return fmt.Errorf("%s has %d bytes, and a program has 1 to %d", p.Name, p.Bytes, maxProgram)
	case err != nil || len(sum) != sha256.Size || strings.ToLower(p.SHA256) != p.SHA256:
		return fmt.Errorf("%s has no SHA-256", p.Name)
	}
	return nil
}

// Sign signs a Manifest with the private key of a cluster's builds.
func Sign(m Manifest, key ed25519.PrivateKey) (Signed, error) {
	if err := m.check(); err != nil {
		return Signed{}, err
	}
	return Signed{Manifest: m, Key: PublicOf(key), Signature: ed25519.Sign(key, m.statement())}, nil
}

// Open returns the Manifest of a build from a Signed as JSON. It returns Conflict unless
// key signed it for this build.
func Open(raw []byte, build string, key installation.Key) (Manifest, error) {
	s, err := parse(raw, build)
	switch {
	case err != nil:
		return Manifest{}, err
	case s.Key != key:
		return Manifest{}, refused(build, "another key than this cluster's signed it", fmt.Errorf("the key %s, not %s", s.Key, key))
	case !key.Verify(s.statement(), s.Signature):
		return Manifest{}, refused(build, "its signature is wrong", nil)
	}
	return s.Manifest, nil
}

// Unverified returns the Manifest of a Signed as JSON without verifying the signature.
func Unverified(raw []byte, build string) (Manifest, error) {
	s, err := parse(raw, build)
	return s.Manifest, err
}

// parse reads a Signed, whose signature it does not verify.
func parse(raw []byte, build string) (s Signed, err error) {
	if err = json.Unmarshal(raw, &s); err == nil && len(raw) > MaxSignature {
		err = errors.New("it is too long")
	}
	if err == nil {
		err = s.check()
	}
	if err == nil && s.Build != build {
		err = fmt.Errorf("it is of build %s", s.Build)
	}
	if err != nil {
		return Signed{}, refused(build, "its signature cannot be read", err)
	}
	return s, nil
}

// refused is the Conflict of a build that lacks a good signature. why is public.
func refused(build, why string, cause error) error {
	return untrusted(build, why, "sign it with `cloud-sandbox cluster sign-build` on the machine of the cluster's CA", cause)
}

// untrusted is the Conflict of a build that is not started. why and remedy are public.
func untrusted(build, why, remedy string, cause error) error {
	return sandbox.Errorf(sandbox.Conflict, "build %.80s of Cloud Sandbox is not trusted: %s; %s", build, why, remedy).WithCause(cause)
}
