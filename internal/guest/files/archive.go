package files

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// Archive streams the content of a folder, or one file.
func (s *Service) Archive(ctx context.Context, r *connect.Request[guestv1.ArchiveRequest], stream *connect.ServerStream[guestv1.ArchiveResponse]) error {
	m := r.Msg
	if err := checkPaths(m.Path); err != nil {
		return err
	}
	u, err := s.user(m.User)
	if err != nil {
		return err
	}
	return server.As(u, func() error {
		root, err := openFolder(m.Path)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := readable(ctx, root); err != nil {
			return err
		}
		if err := stream.Send(&guestv1.ArchiveResponse{}); err != nil {
			return err
		}
		out := bufio.NewWriterSize(archiveStream{stream}, pieceSize)
		if err := pack(ctx, root, m.Format, out); err != nil {
			return fileError(m.Path, err)
		}
		return out.Flush()
	})
}

// openFolder opens a folder to list it.
func openFolder(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() { // opening it might have side effects
		return nil, invalid("%s is not a directory: it is %s", path, server.KindOf(info.Mode()))
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fileError(path, err)
	}
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		f.Close()
		return nil, invalid("%s is not a directory", path)
	}
	return f, nil
}

type archiveStream struct {
	stream *connect.ServerStream[guestv1.ArchiveResponse]
}

func (s archiveStream) Write(p []byte) (int, error) {
	return len(p), s.stream.Send(&guestv1.ArchiveResponse{Data: p})
}

// item is an entry of a folder.
type item struct {
	dir  int    // the folder's descriptor, for *at calls
	name string // in the folder
	path string // from the root of the walk
	info fs.FileInfo
}

// open opens a regular file or folder for reading; it follows no link.
func (i item) open() (*os.File, error) { return openAt(i.dir, i.name, i.path, os.O_RDONLY, 0) }

// walker visits everything below a folder, folders before their content, in order
// of names. It follows no link, even if one replaces a folder during the walk.
// Files that are removed or change their type during the walk are skipped.
type walker struct {
	visit   func(item) error
	entries int
}

func each(ctx context.Context, root *os.File, visit func(item) error) error {
	w := walker{visit: visit}
	if _, err := root.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return w.folder(ctx, root, "")
}

func (w *walker) folder(ctx context.Context, dir *os.File, path string) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fileError(path, err)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if w.entries++; w.entries > maxEntries {
			return connect.NewError(connect.CodeResourceExhausted, errTooMany)
		}
		i := item{dir: int(dir.Fd()), name: name, path: path + name}
		if err := w.one(ctx, i); err != nil {
			return fileError(i.path, err)
		}
	}
	return nil
}

func (w *walker) one(ctx context.Context, i item) error {
	var err error
	if i.info, err = lstatAt(i.dir, i.name); changed(err) {
		return nil
	} else if err != nil {
		return err
	}
	if err := w.visit(i); err != nil || !i.info.IsDir() {
		return err
	}
	below, err := i.open()
	if changed(err) {
		return nil
	} else if err != nil {
		return err
	}
	defer below.Close()
	if info, err := below.Stat(); err != nil || !info.IsDir() {
		return err
	}
	return w.folder(ctx, below, i.path+"/")
}

// changed reports whether an error says that a file was removed, or was replaced by
// a link or socket, which are not opened.
func changed(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO)
}

// lstatAt is os.Lstat relative to a folder.
func lstatAt(dir int, name string) (fs.FileInfo, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return f.Stat()
}

// readable returns the errors that packing would meet. Once packing has begun, the
// answer cannot report an error.
func readable(ctx context.Context, root *os.File) error {
	return each(ctx, root, func(i item) error {
		if !i.info.Mode().IsRegular() {
			return nil
		}
		f, err := i.open()
		if changed(err) {
			return nil
		} else if err != nil {
			return err
		}
		return f.Close()
	})
}

// packer writes one kind of archive.
type packer interface {
	// add writes an entry; target is a link's target, and content is nil for
	// entries without content.
	add(path string, info fs.FileInfo, target string, content io.Reader) error
	Close() error
}

func pack(ctx context.Context, root *os.File, format guestv1.ArchiveFormat, out io.Writer) error {
	var p packer
	switch format {
	case guestv1.ArchiveFormat_ARCHIVE_FORMAT_TAR:
		p = &tarPacker{Writer: tar.NewWriter(out)}
	case guestv1.ArchiveFormat_ARCHIVE_FORMAT_TAR_GZ:
		zipped, _ := gzip.NewWriterLevel(out, gzip.BestSpeed)
		p = &tarPacker{Writer: tar.NewWriter(zipped), zipped: zipped}
	case guestv1.ArchiveFormat_ARCHIVE_FORMAT_ZIP:
		p = zipPacker{zip.NewWriter(out)}
	default:
		return invalid("no such archive format")
	}
	if err := each(ctx, root, func(i item) error { return packOne(ctx, p, i) }); err != nil {
		return err
	}
	return p.Close()
}

// packOne adds a file, folder or link, and skips others.
func packOne(ctx context.Context, p packer, i item) error {
	switch {
	case i.info.IsDir():
		return p.add(i.path, i.info, "", nil)
	case i.info.Mode()&fs.ModeSymlink != 0:
		target := make([]byte, maxPath)
		n, err := unix.Readlinkat(i.dir, i.name, target)
		if changed(err) || errors.Is(err, unix.EINVAL) { // it is no longer a link
			return nil
		} else if err != nil {
			return err
		}
		return p.add(i.path, i.info, string(target[:n]), nil)
	case !i.info.Mode().IsRegular():
		return nil
	}
	f, err := i.open()
	if changed(err) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	// A file that is being written keeps its size of the beginning; missing bytes
	// are zero.
	return p.add(i.path, info, "", io.LimitReader(io.MultiReader(reader{ctx, f}, zeros{}), info.Size()))
}

// zeros is an endless stream of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// reader fails when its context ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

type tarPacker struct {
	*tar.Writer
	zipped *gzip.Writer // nil: not compressed
}

func (t *tarPacker) add(path string, info fs.FileInfo, target string, content io.Reader) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Linkname: target}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, path+"/"
	case target != "":
		h.Typeflag = tar.TypeSymlink
	default:
		h.Size = info.Size()
	}
	if err := t.WriteHeader(h); err != nil || content == nil {
		return err
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{t}, content, make([]byte, min(pieceSize, h.Size+1)))
	return err
}

func (t *tarPacker) Close() error {
	if err := t.Writer.Close(); err != nil || t.zipped == nil {
		return err
	}
	return t.zipped.Close()
}

type zipPacker struct{ *zip.Writer }

func (z zipPacker) add(path string, info fs.FileInfo, target string, content io.Reader) error {
	h := &zip.FileHeader{Name: path, Method: zip.Deflate, Modified: info.ModTime()}
	h.SetMode(info.Mode())
	if info.IsDir() {
		h.Name, h.Method = path+"/", zip.Store
	}
	w, err := z.CreateHeader(h)
	switch {
	case err != nil:
		return err
	case target != "":
		_, err = io.WriteString(w, target)
	case content != nil:
		_, err = io.CopyBuffer(struct{ io.Writer }{w}, content, make([]byte, min(pieceSize, info.Size()+1)))
	}
	return err
}
