package git

import (
	"cmp"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// Bounds of what clients ask for.
const (
	defaultTime = 5 * time.Minute // of calls over the network
	maxTime     = time.Hour
	maxURL      = 2048     // bytes
	maxAdded    = 1000     // that are staged by name
	maxMessage  = 64 << 10 // bytes
	maxAuthor   = 256      // bytes
	maxDepth    = 1 << 30
)

// Place checks where in a Sandbox a call is made, and by whom. An empty path is
// the workspace.
func Place(path, user string) (cleanPath, actor string, err error) {
	if cleanPath, err = execution.Path("path", cmp.Or(path, execution.Workspace)); err != nil {
		return "", "", err
	}
	actor, err = execution.Actor(user)
	return cleanPath, actor, err
}

// Timeout is how long a call over the network may take; zero asks for the default.
func Timeout(asked time.Duration) (time.Duration, error) {
	if asked > maxTime {
		return 0, sandbox.Errorf(sandbox.Invalid, "timeout_seconds must be at most %d", int(maxTime.Seconds()))
	}
	return cmp.Or(asked, defaultTime), nil
}

// NewClone checks what a client wants to clone. A nil depth is all of it.
func NewClone(url, branch string, depth *int) (Clone, error) {
	c := Clone{URL: url, Branch: branch}
	switch {
	case url == "" || len(url) > maxURL:
		return c, sandbox.Errorf(sandbox.Invalid, "url needs 1 to %d bytes", maxURL)
	case depth != nil && (*depth < 1 || *depth > maxDepth):
		return c, sandbox.Errorf(sandbox.Invalid, "depth must be at least 1")
	case depth != nil:
		c.Depth = *depth
	}
	return c, nil
}

// CheckAdded checks what a client wants to stage: files by name, or all.
func CheckAdded(files []string, all bool) error {
	switch {
	case all == (len(files) > 0):
		return sandbox.Errorf(sandbox.Invalid, "either files or all is needed")
	case len(files) > maxAdded:
		return sandbox.Errorf(sandbox.Invalid, "there may be at most %d files", maxAdded)
	}
	for _, f := range files {
		if _, err := execution.Path("a file", f); err != nil {
			return err
		}
	}
	return nil
}

// Check checks what a client wants to commit. authored is whether it names an
// author.
func (c Commit) Check(authored bool) error {
	if strings.TrimSpace(c.Message) == "" || len(c.Message) > maxMessage || strings.ContainsRune(c.Message, 0) {
		return sandbox.Errorf(sandbox.Invalid, "message needs 1 to %d bytes, without zero bytes", maxMessage)
	}
	if !authored {
		return nil
	}
	for _, f := range []struct{ field, value string }{{"author.name", c.Name}, {"author.email", c.Email}} {
		if f.value == "" || len(f.value) > maxAuthor || strings.ContainsFunc(f.value, func(r rune) bool { return r < ' ' || r == '<' || r == '>' || r == 0x7f }) {
			return sandbox.Errorf(sandbox.Invalid, "%s needs 1 to %d bytes, without <, > and control characters", f.field, maxAuthor)
		}
	}
	return nil
}
