package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// The functions of this file and of content.go work on single files as root. They
// serve this service and envd. Their paths are absolute and clean, and their errors
// have the codes and texts that E2B's clients expect.

// MaxListed bounds a listing.
const MaxListed = 50_000

// listTime bounds the time of one listing. After it, the answer has the entries
// found so far.
const listTime = 15 * time.Second

// Refused gives an error of the operating system its code. It names the resolved
// path, as E2B does: for a relative path, that shows where it was looked up.
func Refused(path string, err error) error {
	kind, text := server.RefusalOf(err)
	switch {
	case kind == server.RefusedAbsent:
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("path '%s' does not exist", path))
	case kind != server.RefusedInternal && !errors.Is(err, fs.ErrPermission):
		return connect.NewError(refusedCode(kind), fmt.Errorf("%s %s", path, text))
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return connect.NewError(refusedCode(kind), fmt.Errorf("%s: %w", path, err))
}

// refusedCode returns the Connect code of a refusal. Clients of E2B report that
// waiting helps for CodeResourceExhausted, and they do not know CodeOutOfRange.
func refusedCode(kind server.Refusal) connect.Code {
	switch kind {
	case server.RefusedFull:
		return connect.CodeFailedPrecondition
	case server.RefusedInternal:
		return connect.CodeInternal
	}
	return codes[kind]
}

// Entry describes a file. A symbolic link has the mode and size of its target, and a
// dangling one has its own. Names in an Entry are valid UTF-8, as messages require;
// names of files may have any bytes.
type Entry struct {
	Name, Path   string
	Info         fs.FileInfo // of the file itself
	Mode         fs.FileMode
	Size         int64
	Owner, Group string
	Target       *string // nil: it is no symbolic link, or its target cannot be read
}

// Describe returns the Entry of the file at path.
func Describe(path string, accounts server.Accounts) (*Entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, Refused(path, err)
	}
	e := &Entry{Name: valid(info.Name()), Path: valid(path), Info: info, Mode: info.Mode(), Size: info.Size()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Owner, e.Group = valid(accounts.UserName(st.Uid)), valid(accounts.GroupName(st.Gid))
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		e.follow(path)
	}
	return e, nil
}

// follow describes the target of the symbolic link at path.
func (e *Entry) follow(path string) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		if raw, err := os.Readlink(path); err == nil {
			e.Target = new(valid(raw))
		}
		return
	}
	e.Target = new(valid(target))
	if info, err := os.Stat(path); err == nil {
		e.Mode, e.Size = info.Mode(), info.Size()
	}
}

// MakeDir creates a folder and the folders above it, owned by u.
func MakeDir(path string, u server.User) error {
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return conflict("directory already exists: %s", path)
		}
		return invalid("path is not a directory: %s", path)
	}
	if err := makeDirsFor(path, u); err != nil {
		return Refused(path, err)
	}
	return nil
}

// makeDirsFor creates a folder and the missing ones above it and gives them to u.
func makeDirsFor(path string, u server.User) error {
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
	if err := makeDirsFor(filepath.Dir(path), u); err != nil {
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

// Move renames a file, and creates the folders above the destination for u.
func Move(source, destination string, u server.User) error {
	if _, err := os.Lstat(source); err != nil {
		return Refused(source, err)
	}
	if strings.HasPrefix(destination, source+"/") { // before any folder is created for it
		return invalid("%s is within %s", destination, source)
	}
	if err := makeDirsFor(filepath.Dir(destination), u); err != nil {
		return Refused(destination, err)
	}
	if err := os.Rename(source, destination); err != nil {
		var link *os.LinkError
		if errors.As(err, &link) {
			err = link.Err
		}
		return Refused(destination, err)
	}
	return nil
}

// Remove deletes a path and all below it. A missing path is a success.
func Remove(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return Refused(path, err)
	}
	return nil
}

// List calls add with the path and the description of each entry of a folder down to a
// depth, in lexical order. limit is the maximum number of entries; zero: MaxListed.
// truncated reports that more exist.
func List(ctx context.Context, path string, depth, limit uint32, accounts server.Accounts, add func(path string, e *Entry)) (truncated bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, Refused(path, err)
	}
	if !info.IsDir() {
		return false, invalid("path is not a directory: %s", path)
	}
	l := lister{accounts: accounts, add: add, depth: max(depth, 1), left: MaxListed, until: time.Now().Add(listTime)}
	if limit > 0 {
		l.left = min(limit, MaxListed)
	}
	if err := l.list(ctx, path, 1); err != nil {
		return false, Refused(path, err)
	}
	return l.truncated, nil
}

type lister struct {
	accounts server.Accounts
	add      func(string, *Entry)
	depth    uint32
	left     uint32 // entries
	until    time.Time

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
func (l *lister) list(ctx context.Context, dir string, level uint32) error {
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
		if l.truncated = l.truncated || l.left == 0 || time.Now().After(l.until); l.truncated {
			return nil
		}
		path := filepath.Join(dir, name)
		e, err := Describe(path, l.accounts)
		if err != nil {
			continue
		}
		l.add(path, e)
		l.left--
		if e.Info.IsDir() && level < l.depth {
			if err := l.list(ctx, path, level+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// message returns the Entry as a message.
func (e *Entry) message() *guestv1.FileEntry {
	return &guestv1.FileEntry{
		Name: e.Name, Path: e.Path, Type: typeOf(e.Mode), Size: e.Size, Mode: Bits(e.Mode),
		Owner: e.Owner, Group: e.Group, ModifiedTime: timestamppb.New(e.Info.ModTime()), SymlinkTarget: e.Target,
	}
}

func typeOf(m fs.FileMode) guestv1.FileType {
	switch {
	case m.IsRegular():
		return guestv1.FileType_FILE_TYPE_FILE
	case m.IsDir():
		return guestv1.FileType_FILE_TYPE_DIRECTORY
	case m&fs.ModeSymlink != 0:
		return guestv1.FileType_FILE_TYPE_SYMLINK
	}
	return guestv1.FileType_FILE_TYPE_UNSPECIFIED
}

// owner checks the paths of a call on single files and returns the default user, who
// owns the files that the call makes.
func (s *Service) owner(paths ...string) (server.User, error) {
	if err := checkPaths(paths...); err != nil {
		return server.User{}, err
	}
	return s.user("")
}

// entry describes the file at path for an answer.
func (s *Service) entry(path string) (*guestv1.FileEntry, error) {
	e, err := Describe(path, s.guest.Accounts)
	if err != nil {
		return nil, err
	}
	return e.message(), nil
}

// Stat describes a file.
func (s *Service) Stat(_ context.Context, r *connect.Request[guestv1.StatRequest]) (*connect.Response[guestv1.StatResponse], error) {
	if _, err := s.owner(r.Msg.Path); err != nil {
		return nil, err
	}
	e, err := s.entry(r.Msg.Path)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&guestv1.StatResponse{Entry: e}), nil
}

// ListDir lists a folder.
func (s *Service) ListDir(ctx context.Context, r *connect.Request[guestv1.ListDirRequest]) (*connect.Response[guestv1.ListDirResponse], error) {
	if _, err := s.owner(r.Msg.Path); err != nil {
		return nil, err
	}
	m := &guestv1.ListDirResponse{}
	truncated, err := List(ctx, r.Msg.Path, r.Msg.Depth, r.Msg.Limit, s.guest.Accounts, func(_ string, e *Entry) {
		m.Entries = append(m.Entries, e.message())
	})
	if err != nil {
		return nil, err
	}
	m.Truncated = truncated
	return connect.NewResponse(m), nil
}

// MakeDir creates a folder.
func (s *Service) MakeDir(_ context.Context, r *connect.Request[guestv1.MakeDirRequest]) (*connect.Response[guestv1.MakeDirResponse], error) {
	u, err := s.owner(r.Msg.Path)
	if err == nil {
		err = MakeDir(r.Msg.Path, u)
	}
	if err != nil {
		return nil, err
	}
	e, err := s.entry(r.Msg.Path)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&guestv1.MakeDirResponse{Entry: e}), nil
}

// Move renames a file.
func (s *Service) Move(_ context.Context, r *connect.Request[guestv1.MoveRequest]) (*connect.Response[guestv1.MoveResponse], error) {
	u, err := s.owner(r.Msg.Source, r.Msg.Destination)
	if err == nil {
		err = Move(r.Msg.Source, r.Msg.Destination, u)
	}
	if err != nil {
		return nil, err
	}
	e, err := s.entry(r.Msg.Destination)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&guestv1.MoveResponse{Entry: e}), nil
}

// Remove deletes a path.
func (s *Service) Remove(_ context.Context, r *connect.Request[guestv1.RemoveRequest]) (*connect.Response[guestv1.RemoveResponse], error) {
	if _, err := s.owner(r.Msg.Path); err != nil {
		return nil, err
	}
	if err := Remove(r.Msg.Path); err != nil {
		return nil, err
	}
	return connect.NewResponse(&guestv1.RemoveResponse{}), nil
}
