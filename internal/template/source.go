package template

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Source identifies the source of a Template. The zero Source is none.
type Source struct{ kind, ref string }

const (
	kindOCI    = "oci"
	kindDebian = "debian"
	kindBase   = "base"
	kindTar    = "tar"
	kindDir    = "dir"
)

// baseName is the Template that every server has from the start.
const baseName = "base"

// OCI is an image of a registry, for example python:3.11-slim. It must be of a
// Debian-like system, because tools are added with apt.
func OCI(ref string) Source { return Source{kindOCI, ref} }

// Debian is built from the packages of a suite, for example bookworm. The empty suite is
// the host's own if the host is Debian or Ubuntu, and bookworm otherwise.
func Debian(suite string) Source { return Source{kindDebian, suite} }

// Tar is a root filesystem in an archive on this machine, or the image in a `docker save`
// archive, uncompressed or compressed with gzip or zstd. The path is absolute.
func Tar(file string) Source { return Source{kindTar, file} }

// Dir is a root filesystem in a folder of this machine. The path is absolute.
func Dir(folder string) Source { return Source{kindDir, folder} }

// Local reports whether the Source is a path on this machine, which only the operator may
// use.
func (s Source) Local() bool { return s.kind == kindTar || s.kind == kindDir }

// Base is the image ref if its registry answers, and Debian("") otherwise. It is the
// source of the Template "base".
func Base(ref string) Source { return Source{kindBase, ref} }

// String returns the form for ParseSource.
func (s Source) String() string { return s.kind + ":" + s.ref }

// shown returns a Source for display, without the path of an uploaded archive.
func (s Source) shown() string {
	switch s.kind {
	case kindTar:
		return "an archive"
	case kindDir:
		return "a folder"
	case kindOCI:
		return "an image that is left bare"
	}
	return s.String()
}

var suitePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// sources lists the forms for ParseSource.
const sources = "oci:REF, debian:SUITE, tar:FILE, dir:FOLDER or base:REF"

// ParseSource parses oci:REF, debian:SUITE, debian:, tar:FILE, dir:FOLDER and base:REF;
// Invalid otherwise.
func ParseSource(text string) (Source, error) {
	kind, ref, found := strings.Cut(text, ":")
	s := Source{kind, ref}
	if !found {
		return Source{}, sandbox.Errorf(sandbox.Invalid, "a template source is %s", sources)
	}
	return s, s.check()
}

func (s Source) check() error {
	switch s.kind {
	case kindOCI, kindBase:
		if _, err := name.ParseReference(s.ref); err != nil {
			return sandbox.Errorf(sandbox.Invalid, "%q is not a reference to an image", s.ref).WithCause(err)
		}
	case kindDebian:
		if s.ref != "" && !suitePattern.MatchString(s.ref) {
			return sandbox.Errorf(sandbox.Invalid, "%q is not the name of a suite", s.ref)
		}
	case kindTar, kindDir:
		if !filepath.IsAbs(s.ref) || strings.ContainsRune(s.ref, 0) {
			return sandbox.Errorf(sandbox.Invalid, "%s: needs an absolute path, not %.80q", s.kind, s.ref)
		}
	default:
		return sandbox.Errorf(sandbox.Invalid, "a template source is %s, not %.80q", sources, s.String())
	}
	return nil
}
