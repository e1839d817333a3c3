package files

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// maxUnpacked bounds the entries of an archive to unpack.
	maxUnpacked = 500_000
	// maxDirectory bounds a zip's central directory, in bytes: it is held in
	// memory.
	maxDirectory = 16 << 20
)

// Extract unpacks an archive into a folder and writes nowhere else. When it fails,
// the files that were unpacked before remain.
func (s *Service) Extract(ctx context.Context, stream *connect.ClientStream[guestv1.ExtractRequest]) (*connect.Response[guestv1.ExtractResponse], error) {
	if !stream.Receive() {
		if err := stream.Err(); err != nil {
			return nil, err
		}
		return nil, invalid("the first message must be start")
	}
	start := stream.Msg().GetStart()
	if start == nil {
		return nil, invalid("the first message must be start")
	}
	if err := checkPaths(start.Path); err != nil {
		return nil, err
	}
	u, err := s.user(start.User)
	if err != nil {
		return nil, err
	}
	x := &extractor{ctx: ctx}
	if err := server.As(u, func() error { return x.all(start, &extractStream{stream: stream}) }); err != nil {
		return nil, fileError(start.Path, err)
	}
	return connect.NewResponse(x.done), nil
}

// extractStream reads the archive's bytes.
type extractStream struct {
	stream *connect.ClientStream[guestv1.ExtractRequest]
	left   []byte
}

func (s *extractStream) Read(p []byte) (int, error) {
	for len(s.left) == 0 {
		if !s.stream.Receive() {
			if err := s.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		s.left = s.stream.Msg().GetData()
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

// extractor unpacks one archive.
type extractor struct {
	ctx     context.Context
	root    *tree
	done    *guestv1.ExtractResponse
	entries int
	folders []folder // in the order they came
}

// folder holds the attributes that a folder gets after its content: it may be
// read-only.
type folder struct {
	path string
	info entry
}

// entry holds the attributes of a file in an archive.
type entry struct {
	mode     fs.FileMode
	modified time.Time
}

func (x *extractor) all(start *guestv1.ExtractStart, in io.Reader) error {
	if err := makeDirs(start.Path); err != nil {
		return err
	}
	root, err := openTree(start.Path)
	if err != nil {
		return err
	}
	defer root.close()
	x.root, x.done = root, &guestv1.ExtractResponse{}
	buffered := bufio.NewReaderSize(reader{x.ctx, in}, pieceSize)
	format := start.Format
	if format == guestv1.ArchiveFormat_ARCHIVE_FORMAT_UNSPECIFIED {
		format = formatOf(buffered)
	}
	if err := x.unpack(format, buffered); err != nil {
		return x.explain(err)
	}
	return x.finishFolders()
}

// formatOf detects the format by the first bytes; the default is tar.
func formatOf(in *bufio.Reader) guestv1.ArchiveFormat {
	head, _ := in.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return guestv1.ArchiveFormat_ARCHIVE_FORMAT_TAR_GZ
	case bytes.HasPrefix(head, []byte("PK")):
		return guestv1.ArchiveFormat_ARCHIVE_FORMAT_ZIP
	}
	return guestv1.ArchiveFormat_ARCHIVE_FORMAT_TAR
}

func (x *extractor) unpack(format guestv1.ArchiveFormat, in *bufio.Reader) error {
	switch format {
	case guestv1.ArchiveFormat_ARCHIVE_FORMAT_TAR:
		return x.tar(in)
	case guestv1.ArchiveFormat_ARCHIVE_FORMAT_TAR_GZ:
		z, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		return x.tar(z)
	case guestv1.ArchiveFormat_ARCHIVE_FORMAT_ZIP:
		return x.zip(in)
	}
	return invalid("no such archive format")
}

// explain distinguishes a damaged archive from other failures.
func (x *extractor) explain(err error) error {
	for _, damaged := range []error{
		tar.ErrHeader, tar.ErrFieldTooLong, tar.ErrInsecurePath, zip.ErrFormat, zip.ErrAlgorithm, zip.ErrChecksum, zip.ErrInsecurePath,
		gzip.ErrHeader, gzip.ErrChecksum, io.ErrUnexpectedEOF, io.EOF,
	} {
		if errors.Is(err, damaged) {
			return invalid("the archive is damaged, or is none: %v", err)
		}
	}
	var corrupt flate.CorruptInputError
	if errors.As(err, &corrupt) {
		return invalid("the archive is damaged: %v", err)
	}
	return err
}

// local returns an entry's path below the target; an error for an entry outside of
// it.
func (x *extractor) local(name string) (string, error) {
	if err := x.ctx.Err(); err != nil {
		return "", err
	}
	if x.entries++; x.entries > maxUnpacked {
		return "", connect.NewError(connect.CodeResourceExhausted, errors.New("the archive holds too many files"))
	}
	clean := path.Clean(strings.TrimRight(name, "/"))
	if len(name) > maxPath || strings.ContainsRune(name, 0) || !filepath.IsLocal(clean) {
		return "", invalid("the archive holds %.100q, which is not within the folder", name)
	}
	return clean, nil
}

func (x *extractor) tar(in io.Reader) error {
	archive := tar.NewReader(in)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return err
		}
		name, err := x.local(h.Name)
		if err != nil {
			return err
		}
		if err := x.tarEntry(name, h, archive); err != nil {
			return x.entryError(h.Name, err)
		}
	}
}

func (x *extractor) tarEntry(name string, h *tar.Header, content io.Reader) error {
	info := entry{fs.FileMode(h.Mode) & fs.ModePerm, h.ModTime}
	switch h.Typeflag {
	case tar.TypeDir:
		return x.dir(name, info)
	case tar.TypeReg, tar.TypeGNUSparse:
		return x.file(name, info, content)
	case tar.TypeSymlink:
		return x.symlink(name, h.Linkname)
	case tar.TypeLink:
		target, err := x.local(h.Linkname)
		if err != nil {
			return err
		}
		return x.hardlink(name, target)
	}
	x.done.Skipped++
	return nil
}

// zip stores the archive in a temporary file: its directory is at its end.
func (x *extractor) zip(in io.Reader) error {
	aside, err := os.CreateTemp("", ".cloud-sandbox-*")
	if err != nil {
		return err
	}
	defer aside.Close()
	if err := os.Remove(aside.Name()); err != nil {
		return err
	}
	size, err := copyPieces(x.ctx, aside, in)
	if err != nil {
		return err
	}
	bounded := &boundedReader{file: aside, left: maxDirectory}
	archive, err := zip.NewReader(bounded, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return err
	}
	bounded.free = true
	for _, f := range archive.File {
		name, err := x.local(f.Name)
		if err != nil {
			return err
		}
		if err := x.zipEntry(name, f); err != nil {
			return x.entryError(f.Name, err)
		}
	}
	return nil
}

// boundedReader bounds the bytes that are read from a file, until free is set.
type boundedReader struct {
	file *os.File
	left int
	free bool
}

func (b *boundedReader) ReadAt(p []byte, at int64) (int, error) {
	if b.left -= len(p); b.left < 0 && !b.free {
		return 0, connect.NewError(connect.CodeResourceExhausted, errors.New("the archive holds too many files"))
	}
	return b.file.ReadAt(p, at)
}

func (x *extractor) zipEntry(name string, f *zip.File) error {
	info := entry{f.Mode().Perm(), f.Modified}
	if f.CreatorVersion>>8 != 3 { // not from Unix: without permissions
		info.mode = 0o644
	}
	mode := f.Mode()
	switch {
	case mode.IsDir():
		if info.mode&0o700 != 0o700 {
			info.mode = 0o755
		}
		return x.dir(name, info)
	case !mode.IsRegular() && mode&fs.ModeSymlink == 0:
		x.done.Skipped++
		return nil
	}
	content, err := f.Open()
	if err != nil {
		return err
	}
	defer content.Close()
	if mode.IsRegular() {
		return x.file(name, info, content)
	}
	target, err := io.ReadAll(io.LimitReader(content, maxPath+1))
	if err != nil {
		return err
	}
	return x.symlink(name, string(target))
}

// entryError adds the entry's name to an error of the file system.
func (x *extractor) entryError(name string, err error) error {
	for _, ours := range []error{io.ErrUnexpectedEOF, tar.ErrHeader, gzip.ErrChecksum, zip.ErrChecksum, zip.ErrFormat, zip.ErrAlgorithm} {
		if errors.Is(err, ours) {
			return err
		}
	}
	if errors.Is(err, errLink) {
		return invalid("the archive holds %.100q, which a symbolic link leads elsewhere", name)
	}
	return fileError(name, err)
}

// clear removes a file with the entry's name, unless it is a folder, and returns
// the folder for the entry.
func (x *extractor) clear(name string) (dir int, base string, err error) {
	dir, base, err = x.root.at(name, true)
	if err != nil {
		return -1, "", err
	}
	err = unix.Unlinkat(dir, base, 0)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return dir, base, nil
	case errors.Is(err, syscall.EISDIR), base == ".":
		return -1, "", conflict("the archive holds the file %.100q where there is a directory", name)
	}
	return dir, base, err
}

func (x *extractor) dir(name string, info entry) error {
	if name == "." {
		return nil
	}
	// A name below it creates the whole path.
	if _, _, err := x.root.at(name+"/.", true); err != nil {
		return err
	}
	x.folders = append(x.folders, folder{name, info})
	x.done.Directories++
	return nil
}

func (x *extractor) file(name string, info entry, content io.Reader) error {
	dir, base, err := x.clear(name)
	if err != nil {
		return err
	}
	f, err := openAt(dir, base, name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := copyPieces(x.ctx, f, content)
	x.done.Bytes += n
	if err == nil {
		err = f.Chmod(info.mode)
	}
	if err == nil {
		err = setTime(f, info)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = unix.Unlinkat(dir, base, 0)
		return err
	}
	x.done.Files++
	return nil
}

// setTime sets the archive's modification time on a file, if it has a valid one.
func setTime(f *os.File, info entry) error {
	if info.modified.Unix() <= 0 {
		return nil
	}
	at := unix.NsecToTimeval(info.modified.UnixNano())
	return unix.Futimes(int(f.Fd()), []unix.Timeval{at, at})
}

func (x *extractor) symlink(name, target string) error {
	if target == "" || len(target) > maxPath || strings.ContainsRune(target, 0) {
		return invalid("the archive holds the link %.100q to nowhere", name)
	}
	dir, base, err := x.clear(name)
	if err != nil {
		return err
	}
	x.done.Links++
	return unix.Symlinkat(target, dir, base)
}

func (x *extractor) hardlink(name, target string) error {
	if name == target {
		return invalid("the archive holds %.100q as a link to itself", name)
	}
	from, err := x.root.walk(path.Dir(target), false)
	if err != nil {
		return err
	}
	if from != x.root.root {
		defer unix.Close(from)
	}
	dir, base, err := x.clear(name)
	if err != nil {
		return err
	}
	x.done.Links++
	return unix.Linkat(from, path.Base(target), dir, base, 0)
}

// finishFolders sets the permissions of folders, inner folders first.
func (x *extractor) finishFolders() error {
	for _, f := range slices.Backward(x.folders) {
		if err := x.finishFolder(f); err != nil {
			return fileError(f.path, err)
		}
	}
	return nil
}

func (x *extractor) finishFolder(f folder) error {
	dir, err := x.root.open(f.path, os.O_RDONLY, 0)
	if err != nil {
		if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENOENT) || errors.Is(err, errLink) {
			return nil // another file has replaced it
		}
		return err
	}
	defer dir.Close()
	if err := dir.Chmod(f.info.mode); err != nil {
		return err
	}
	return setTime(dir, f.info)
}
