// Package files is the Guest's file service for the host, and the operations on single
// files that envd has in common with it. Calls on trees act as one user of the Sandbox,
// and the kernel checks the permissions. Those on single files act as root.
package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// maxMessage bounds one message of the host's.
	maxMessage = 4 << 20
	// maxPath bounds a path, as Linux does.
	maxPath = 4096
	// maxEntries bounds the entries that one call visits.
	maxEntries = 1_000_000
	// pieceSize is the size of the pieces in which content is copied, in bytes.
	pieceSize = 256 << 10
)

// Service is the file service of one Guest. Use New.
type Service struct {
	guest    *server.Guest
	journals journals
}

var _ guestv1connect.FilesServiceHandler = (*Service)(nil)

// New returns the service.
func New(g *server.Guest) *Service { return &Service{guest: g} }

// Handler returns the service's path and handler.
func (s *Service) Handler() (string, http.Handler) {
	return guestv1connect.NewFilesServiceHandler(s, connect.WithReadMaxBytes(maxMessage))
}

// user returns the account that a call acts as.
func (s *Service) user(name string) (server.User, error) {
	owner, bound := s.guest.Owner()
	if !bound {
		return server.User{}, connect.NewError(connect.CodeFailedPrecondition, server.ErrNotBound)
	}
	if name == "" {
		name = owner.User
	}
	u, err := s.guest.Accounts.User(name)
	if err != nil {
		return u, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return u, nil
}

// checkPaths refuses paths that are not absolute and clean.
func checkPaths(paths ...string) error {
	for _, p := range paths {
		if p == "" || len(p) > maxPath || strings.ContainsRune(p, 0) || !filepath.IsAbs(p) || filepath.Clean(p) != p {
			return invalid("%.64q is not an absolute, clean path of at most %d bytes", p, maxPath)
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

func conflict(format string, args ...any) error {
	return connect.NewError(connect.CodeAlreadyExists, fmt.Errorf(format, args...))
}

// codes maps each refusal to a Connect code.
var codes = map[server.Refusal]connect.Code{
	server.RefusedAbsent: connect.CodeNotFound, server.RefusedConflict: connect.CodeAlreadyExists, server.RefusedForbidden: connect.CodePermissionDenied,
	server.RefusedFull: connect.CodeOutOfRange, server.RefusedBusy: connect.CodeResourceExhausted, server.RefusedInvalid: connect.CodeInvalidArgument,
}

// fileError gives an error about path its code; an error with a code keeps it.
func fileError(path string, err error) error {
	var coded *connect.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &coded), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if errors.Is(err, errLink) {
		return conflict("%s was changed meanwhile: a symbolic link leads elsewhere", path)
	}
	if kind, text := server.RefusalOf(err); kind != server.RefusedInternal {
		return connect.NewError(codes[kind], fmt.Errorf("%s %s", path, text))
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return connect.NewError(connect.CodeInternal, fmt.Errorf("%s: %w", path, err))
}

// makeDirs creates a folder and the folders above it.
func makeDirs(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fileError(path, err)
	}
	return nil
}

// valid returns text as UTF-8, which messages require; file names are any bytes.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
