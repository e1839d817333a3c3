package git

import (
	"cmp"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// Bounds of client requests.
const (
	defaultTime = 5 * time.Minute // of calls over the network
	maxTime     = time.Hour
	maxURL      = 2048     // bytes
	maxAdded    = 1000     // files that are staged by name
	maxMessage  = 64 << 10 // bytes
	maxAuthor   = 256      // bytes
	maxDepth    = 1 << 30
)

// Place checks the directory and user of a call. An empty path is the workspace.
func Place(path, user string) (cleanPath, actor string, err error) {
	if cleanPath, err = execution.Path("path", cmp.Or(path, execution.Workspace)); err != nil {
		return "", "", err
	}
	actor, err = execution.Actor(user)
	return cleanPath, actor, err
}

// Timeout returns the timeout of a call over the network; zero means the default.
func Timeout(asked time.Duration) (time.Duration, error) {
	if asked > maxTime {
		return 0, sandbox.Errorf(sandbox.Invalid, "timeout_seconds must be at most %d", int(maxTime.Seconds()))
	}
	return cmp.Or(asked, defaultTime), nil
}

// NewClone checks a clone request. A nil depth is the full history.
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

// CheckAdded checks a request to stage files: by name, or all.
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

// Check checks a commit request. authored is whether it names an author.
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
