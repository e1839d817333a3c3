package envd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloud-sandbox/cloud-sandbox/api/gen/filesystem"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// maxEntries bounds a listing.
const maxEntries = 50_000

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

// unknownUser is the name of a user that a request names and that does not exist.
// Its texts are those that E2B's clients show.
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

// fileError gives an error of the operating system its code. It names the resolved
// path, as E2B does: for a relative path, that shows where it was looked up.
func fileError(path string, err error) error {
	kind, text := server.RefusalOf(err)
	switch {
	case kind == server.RefusedAbsent:
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("path '%s' does not exist", path))
	case kind != server.RefusedInternal && !errors.Is(err, fs.ErrPermission):
		return connect.NewError(codes[kind], fmt.Errorf("%s %s", path, text))
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return connect.NewError(codes[kind], fmt.Errorf("%s: %w", path, err))
}

// codes maps each refusal to a Connect code. Clients report that waiting helps for
// CodeResourceExhausted, which is wrong for a full disk.
var codes = map[server.Refusal]connect.Code{
	server.RefusedFull:     connect.CodeFailedPrecondition,
	server.RefusedInternal: connect.CodeInternal, server.RefusedAbsent: connect.CodeNotFound, server.RefusedConflict: connect.CodeAlreadyExists,
	server.RefusedForbidden: connect.CodePermissionDenied, server.RefusedBusy: connect.CodeResourceExhausted, server.RefusedInvalid: connect.CodeInvalidArgument,
}

// entryOf describes the file at path. A symbolic link has its target's type and
// includes the target; a dangling one has the type of a link.
func entryOf(path string, accounts server.Accounts) (*filesystem.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	e := &filesystem.EntryInfo{
		Name: info.Name(), Path: path, Type: typeOf(info.Mode()), Size: info.Size(),
		Mode: modeBits(info.Mode()), Permissions: info.Mode().String(), ModifiedTime: timestamppb.New(info.ModTime()),
		Metadata: readMetadata(path),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Owner, e.Group = accounts.UserName(st.Uid), accounts.GroupName(st.Gid)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		followLink(path, e)
	}
	return e, nil
}

// followLink fills in the target of a symbolic link.
func followLink(path string, e *filesystem.EntryInfo) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		if raw, err := os.Readlink(path); err == nil {
			e.SymlinkTarget = &raw
		}
		return
	}
	e.SymlinkTarget = &target
	if info, err := os.Stat(path); err == nil {
		e.Type, e.Size, e.Mode = typeOf(info.Mode()), info.Size(), modeBits(info.Mode())
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

// modeBits converts Go's mode to the kernel's bits.
func modeBits(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for flag, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: unix.S_ISUID, fs.ModeSetgid: unix.S_ISGID, fs.ModeSticky: unix.S_ISVTX} {
		if m&flag != 0 {
			bits |= bit
		}
	}
	return bits
}

// Stat describes one path.
func (f *fileSystem) Stat(_ context.Context, r *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	path, _, err := f.rpcPath(userOf(r.Header()), r.Msg.Path)
	if err != nil {
		return nil, err
	}
	e, err := entryOf(path, f.guest.Accounts)
	if err != nil {
		return nil, fileError(path, err)
	}
	return connect.NewResponse(&filesystem.StatResponse{Entry: e}), nil
}

// MakeDir creates a folder and the folders above it, owned by the user.
func (f *fileSystem) MakeDir(_ context.Context, r *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	path, u, err := f.rpcPath(userOf(r.Header()), r.Msg.Path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", path))
		}
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", path))
	}
	if err := makeDirs(path, u); err != nil {
		return nil, fileError(path, err)
	}
	e, err := entryOf(path, f.guest.Accounts)
	if err != nil {
		return nil, fileError(path, err)
	}
	return connect.NewResponse(&filesystem.MakeDirResponse{Entry: e}), nil
}

// makeDirs creates a folder and the missing ones above it and gives them to u.
func makeDirs(path string, u server.User) error {
	info, err := os.Stat(path)
	if err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeDirs(filepath.Dir(path), u); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Lchown(path, int(u.UID), int(u.GID))
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
	if _, err := os.Lstat(source); err != nil {
		return nil, fileError(source, err)
	}
	if strings.HasPrefix(destination, source+"/") { // before any folder is created for it
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s is within %s", destination, source))
	}
	if err := makeDirs(filepath.Dir(destination), u); err != nil {
		return nil, fileError(destination, err)
	}
	if err := os.Rename(source, destination); err != nil {
		var link *os.LinkError
		if errors.As(err, &link) {
			err = link.Err
		}
		return nil, fileError(destination, err)
	}
	e, err := entryOf(destination, f.guest.Accounts)
	if err != nil {
		return nil, fileError(destination, err)
	}
	return connect.NewResponse(&filesystem.MoveResponse{Entry: e}), nil
}

// ListDir lists a folder down to a depth, in lexical order.
func (f *fileSystem) ListDir(ctx context.Context, r *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	path, _, err := f.rpcPath(userOf(r.Header()), r.Msg.Path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	if !info.IsDir() {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", path))
	}
	l := lister{accounts: f.guest.Accounts, depth: max(int(r.Msg.Depth), 1), most: maxEntries, until: time.Now().Add(listTime)}
	if n, err := strconv.Atoi(r.Header().Get(LimitHeader)); err == nil && n > 0 {
		l.most = min(n, maxEntries)
	}
	if err := l.list(ctx, path, 1); err != nil {
		return nil, fileError(path, err)
	}
	reply := connect.NewResponse(&filesystem.ListDirResponse{Entries: l.entries})
	if l.truncated {
		reply.Header().Set(TruncatedHeader, "true")
	}
	return reply, nil
}

// Headers of ListDir in addition to E2B's protocol, which has no bounds.
const (
	LimitHeader     = "Cloud-Sandbox-Limit"     // maximum number of entries
	TruncatedHeader = "Cloud-Sandbox-Truncated" // "true": more entries exist
)

// listTime bounds the time of one listing. After it, the answer has the entries
// found so far.
const listTime = 15 * time.Second

type lister struct {
	accounts server.Accounts
	depth    int
	most     int
	until    time.Time

	entries   []*filesystem.EntryInfo
	truncated bool
}

// names returns the names in a folder, in order. Only the names of the whole folder
// are held in memory: complete entries of a large folder would need much more.
func names(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := f.Readdirnames(-1)
	slices.Sort(all)
	return all, err
}

// list adds the entries of dir, each folder followed by its content. Entries that
// vanish meanwhile, or may not be read, are left out.
func (l *lister) list(ctx context.Context, dir string, level int) error {
	all, err := names(dir)
	if err != nil {
		if level > 1 {
			return nil
		}
		return err
	}
	for _, name := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		if l.truncated = l.truncated || len(l.entries) >= l.most || time.Now().After(l.until); l.truncated {
			return nil
		}
		path := filepath.Join(dir, name)
		e, err := entryOf(path, l.accounts)
		if err != nil {
			continue
		}
		l.entries = append(l.entries, e)
		if e.Type == filesystem.FileType_FILE_TYPE_DIRECTORY && e.SymlinkTarget == nil && level < l.depth {
			if err := l.list(ctx, path, level+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// Remove deletes a path and all below it. A missing path is a success.
func (f *fileSystem) Remove(_ context.Context, r *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	path, _, err := f.rpcPath(userOf(r.Header()), r.Msg.Path)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, fileError(path, err)
	}
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}
