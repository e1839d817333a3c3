package execution

import (
	"context"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Workspace is the base of relative paths.
const Workspace = "/workspace"

// Bounds of file requests.
const (
	MaxPath    = 4096 // bytes, as in Linux
	MaxDepth   = 32   // of a list
	maxPattern = 4096 // bytes
	maxGlobs   = 64
)

// Path returns the clean absolute form of a path inside a Sandbox; Invalid for an invalid
// path. name is the name of the client's parameter.
func Path(name, p string) (string, error) {
	switch {
	case p == "":
		return "", sandbox.Errorf(sandbox.Invalid, "%s is missing", name)
	case strings.ContainsRune(p, 0):
		return "", sandbox.Errorf(sandbox.Invalid, "%s must not hold a zero byte", name)
	case !utf8.ValidString(p):
		return "", sandbox.Errorf(sandbox.Invalid, "%s is not UTF-8", name)
	case len(p) > MaxPath:
		return "", sandbox.Errorf(sandbox.Invalid, "%s has more than %d bytes", name, MaxPath)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "", sandbox.Errorf(sandbox.Invalid, "%s must not hold ..", name)
	}
	if !strings.HasPrefix(p, "/") {
		p = Workspace + "/" + p
	}
	if p = path.Clean(p); len(p) > MaxPath {
		return "", sandbox.Errorf(sandbox.Invalid, "%s has more than %d bytes", name, MaxPath)
	}
	return p, nil
}

// Actor checks the user that acts inside a Sandbox; empty: its default user. It returns
// Invalid for an invalid user name.
func Actor(user string) (string, error) {
	if len(user) > maxUser {
		return "", sandbox.Errorf(sandbox.Invalid, "user has more than %d bytes", maxUser)
	}
	for _, c := range user {
		if c <= ' ' || c == 0x7f || c == ':' {
			return "", sandbox.Errorf(sandbox.Invalid, "user must not hold spaces, colons or control characters")
		}
	}
	return user, nil
}

// FileMode parses permissions in octal digits.
func FileMode(s string) (uint32, error) {
	mode, err := strconv.ParseUint(s, 8, 32)
	if err != nil || mode > 0o7777 || len(s) > 5 {
		return 0, sandbox.Errorf(sandbox.Invalid, `mode must be octal digits up to "7777", such as "0644"`)
	}
	return uint32(mode), nil
}

// Remove removes a file or a directory. A directory that is not empty needs recursive,
// otherwise it is a Conflict. The root is Invalid.
func Remove(ctx context.Context, guest Files, p string, recursive bool) error {
	if p == "/" {
		return sandbox.Errorf(sandbox.Invalid, "the root directory cannot be removed")
	}
	if !recursive {
		if err := refuseFull(ctx, guest, p); err != nil {
			return err
		}
	}
	return guest.Remove(ctx, p)
}

// refuseFull returns Conflict for a directory that is not empty.
func refuseFull(ctx context.Context, guest Files, p string) error {
	entry, err := guest.Stat(ctx, p)
	if err != nil || entry.Type != "directory" {
		return err
	}
	below, _, err := guest.List(ctx, p, 1)
	if err == nil && len(below) > 0 {
		return sandbox.Errorf(sandbox.Conflict, "the directory is not empty; recursive=true removes it with all it holds")
	}
	return err
}

// complete checks a selection and cleans its path.
func (f *FileSelection) complete() (err error) {
	if f.Path, err = Path("path", f.Path); err != nil {
		return err
	}
	if len(f.Globs) > maxGlobs {
		return sandbox.Errorf(sandbox.Invalid, "there may be at most %d globs", maxGlobs)
	}
	for _, glob := range f.Globs {
		if glob == "" || len(glob) > maxPattern {
			return sandbox.Errorf(sandbox.Invalid, "a glob has 1 to %d bytes", maxPattern)
		}
	}
	return nil
}

// Depth returns the number of levels of a list, which is 1 if the request names none.
func Depth(levels *int) (int, error) {
	switch {
	case levels == nil:
		return 1, nil
	case *levels < 1 || *levels > MaxDepth:
		return 0, sandbox.Errorf(sandbox.Invalid, "depth must be a whole number from 1 to %d", MaxDepth)
	}
	return *levels, nil
}

// DefaultSearchResults is the default number of results of a search.
const DefaultSearchResults = 100

// Complete validates the request; an empty path is Workspace.
func (r *SearchRequest) Complete() (err error) {
	switch {
	case len(r.Pattern) > maxPattern:
		return sandbox.Errorf(sandbox.Invalid, "pattern has more than %d bytes", maxPattern)
	case r.MaxResults < 1 || r.MaxResults > MaxSearchResults:
		return sandbox.Errorf(sandbox.Invalid, "max_results must be from 1 to %d", MaxSearchResults)
	case r.Context < 0 || r.Context > MaxSearchContext:
		return sandbox.Errorf(sandbox.Invalid, "context_lines must be from 0 to %d", MaxSearchContext)
	}
	if r.Files.Path == "" {
		r.Files.Path = Workspace
	}
	if err := r.Files.complete(); err != nil {
		return err
	}
	r.User, err = Actor(r.User)
	return err
}

// Complete validates the request. A nil replacement is missing.
func (r *ReplaceRequest) Complete(replacement *string) (err error) {
	switch {
	case r.Files.Path == "":
		return sandbox.Errorf(sandbox.Invalid, "path is missing")
	case r.Pattern == "" || len(r.Pattern) > MaxReplacePattern:
		return sandbox.Errorf(sandbox.Invalid, "pattern needs 1 to %d bytes", MaxReplacePattern)
	case replacement == nil:
		return sandbox.Errorf(sandbox.Invalid, `replacement is missing; "" removes the text`)
	case len(*replacement) > MaxReplacement:
		return sandbox.Errorf(sandbox.Invalid, "replacement has more than %d bytes", MaxReplacement)
	case r.Expected != nil && *r.Expected < 0:
		return sandbox.Errorf(sandbox.Invalid, "expected_count must not be negative")
	}
	r.Replacement = *replacement
	if err := r.Files.complete(); err != nil {
		return err
	}
	r.User, err = Actor(r.User)
	return err
}

// Complete validates the request and cleans its paths.
func (r *CopyRequest) Complete() (err error) {
	if r.Source, err = Path("source", r.Source); err != nil {
		return err
	}
	if r.Destination, err = Path("destination", r.Destination); err != nil {
		return err
	}
	r.User, err = Actor(r.User)
	return err
}

// Complete validates the request, with mode in octal digits.
func (r *ChmodRequest) Complete(mode string) (err error) {
	if r.Path, err = Path("path", r.Path); err != nil {
		return err
	}
	if r.Mode, err = FileMode(mode); err != nil {
		return err
	}
	r.User, err = Actor(r.User)
	return err
}

// Complete validates the request and cleans its path.
func (r *WatchRequest) Complete() (err error) {
	if r.Path, err = Path("path", r.Path); err != nil {
		return err
	}
	if len(r.Since) > MaxCursor {
		return sandbox.Errorf(sandbox.Invalid, "since is not the cursor of an earlier answer")
	}
	r.User, err = Actor(r.User)
	return err
}

// Check returns Invalid for an unknown format. The empty format means that the content
// decides, or the default.
func (f ArchiveFormat) Check() error {
	switch f {
	case "", Tar, TarGz, Zip:
		return nil
	}
	return sandbox.Errorf(sandbox.Invalid, `format must be "tar", "tar.gz" or "zip"`)
}
