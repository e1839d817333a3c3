package envd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloud-sandbox/cloud-sandbox/api/gen/filesystem"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/files"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// fileSystem is the filesystem service.
type fileSystem struct {
	*watchers
	guest *server.Guest
}

func newFilesystem(g *server.Guest) *fileSystem {
	return &fileSystem{watchers: newWatchers(g), guest: g}
}

// account returns the user that a request acts as.
func account(g *server.Guest, name string) (server.User, error) {
	owner, bound := g.Owner()
	if !bound {
		return server.User{}, server.ErrNotBound
	}
	if name == "" {
		name = owner.User
	}
	u, err := g.Accounts.User(name)
	if err != nil {
		return u, unknownUser(name)
	}
	return u, nil
}

// unknownUser is the name of a user that a request names and that does not exist. Its
// error text is the text of E2B, whose clients show it.
type unknownUser string

func (u unknownUser) Error() string { return fmt.Sprintf("invalid username: '%s'", string(u)) }

// rpcAccount is account for an RPC.
func rpcAccount(g *server.Guest, name string) (server.User, error) {
	u, err := account(g, name)
	switch {
	case errors.Is(err, server.ErrNotBound):
		return u, connect.NewError(connect.CodeFailedPrecondition, err)
	case err != nil:
		return u, connect.NewError(connect.CodeUnauthenticated, err)
	}
	return u, nil
}

// resolve makes a path absolute: "~" and relative ones are below the user's
// home.
func resolve(path string, u server.User) (string, error) {
	if strings.ContainsRune(path, 0) {
		return "", errors.New("the path holds a zero byte")
	}
	switch {
	case path == "":
		return u.Home, nil
	case path == "~" || strings.HasPrefix(path, "~/"):
		path = filepath.Join(u.Home, path[1:])
	case !filepath.IsAbs(path):
		path = filepath.Join(u.Home, path)
	}
	return filepath.Clean(path), nil
}

// rpcPath resolves a path of an RPC.
func (f *fileSystem) rpcPath(user, path string) (string, server.User, error) {
	u, err := rpcAccount(f.guest, user)
	if err != nil {
		return "", u, err
	}
	p, err := resolve(path, u)
	if err != nil {
		return "", u, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return p, u, nil
}

// entryOf describes the file at path. A symbolic link has its target's type and
// includes the target; a dangling one has the type of a link.
func entryOf(path string, accounts server.Accounts) (*filesystem.EntryInfo, error) {
	e, err := files.Describe(path, accounts)
	if err != nil {
		return nil, err
	}
	return infoOf(path, e), nil
}

// infoOf converts the description of the file at path.
func infoOf(path string, e *files.Entry) *filesystem.EntryInfo {
	return &filesystem.EntryInfo{
		Name: e.Name, Path: e.Path, Type: typeOf(e.Mode), Size: e.Size,
		Mode: files.Bits(e.Mode), Permissions: e.Info.Mode().String(), ModifiedTime: timestamppb.New(e.Info.ModTime()),
		Owner: e.Owner, Group: e.Group, SymlinkTarget: e.Target, Metadata: files.ReadMetadata(path),
	}
}

func typeOf(m fs.FileMode) filesystem.FileType {
	switch {
	case m.IsRegular():
		return filesystem.FileType_FILE_TYPE_FILE
	case m.IsDir():
		return filesystem.FileType_FILE_TYPE_DIRECTORY
	case m&fs.ModeSymlink != 0:
		return filesystem.FileType_FILE_TYPE_SYMLINK
	}
	return filesystem.FileType_FILE_TYPE_UNSPECIFIED
}

// Stat describes one path.
func (f *fileSystem) Stat(_ context.Context, r *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	path, _, err := f.rpcPath(userOf(r.Header()), r.Msg.Path)
	if err != nil {
		return nil, err
	}
	e, err := entryOf(path, f.guest.Accounts)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&filesystem.StatResponse{Entry: e}), nil
}

// MakeDir creates a folder and the folders above it, owned by the user.
func (f *fileSystem) MakeDir(_ context.Context, r *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	path, u, err := f.rpcPath(userOf(r.Header()), r.Msg.Path)
	if err != nil {
		return nil, err
	}
	if err := files.MakeDir(path, u); err != nil {
		return nil, err
	}
	e, err := entryOf(path, f.guest.Accounts)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&filesystem.MakeDirResponse{Entry: e}), nil
}

// Move renames a file, and creates the folders above the destination.
func (f *fileSystem) Move(_ context.Context, r *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	source, u, err := f.rpcPath(userOf(r.Header()), r.Msg.Source)
	if err != nil {
		return nil, err
	}
	destination, err := resolve(r.Msg.Destination, u)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if err := files.Move(source, destination, u); err != nil {
		return nil, err
	}
	e, err := entryOf(destination, f.guest.Accounts)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&filesystem.MoveResponse{Entry: e}), nil
}

// ListDir lists a folder down to a depth, in lexical order.
func (f *fileSystem) ListDir(ctx context.Context, r *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	path, _, err := f.rpcPath(userOf(r.Header()), r.Msg.Path)
	if err != nil {
		return nil, err
	}
	limit, _ := strconv.ParseUint(r.Header().Get(LimitHeader), 10, 32) // 0: none
	reply := connect.NewResponse(&filesystem.ListDirResponse{})
	truncated, err := files.List(ctx, path, r.Msg.Depth, uint32(limit), f.guest.Accounts, func(path string, e *files.Entry) {
		reply.Msg.Entries = append(reply.Msg.Entries, infoOf(path, e))
	})
	if err != nil {
		return nil, err
	}
	if truncated {
		reply.Header().Set(TruncatedHeader, "true")
	}
	return reply, nil
}

// Headers of ListDir in addition to E2B's protocol, which has no bounds.
const (
	LimitHeader     = "Cloud-Sandbox-Limit"     // maximum number of entries
	TruncatedHeader = "Cloud-Sandbox-Truncated" // "true": more entries exist
)

// Remove deletes a path and all below it. A missing path is a success.
func (f *fileSystem) Remove(_ context.Context, r *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	path, _, err := f.rpcPath(userOf(r.Header()), r.Msg.Path)
	if err != nil {
		return nil, err
	}
	if err := files.Remove(path); err != nil {
		return nil, err
	}
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}
