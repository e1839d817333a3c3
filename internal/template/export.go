package template

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A file of Export is a zstd-compressed tar archive of two members: exportRecord, then
// exportImage.
const (
	exportRecord = "template.json"
	exportImage  = "image.erofs"
)

// maxImportBytes bounds an imported image.
const maxImportBytes = 64 << 30

// exported is the content of exportRecord.
type exported struct {
	Format int    `json:"format"`
	Name   string `json:"name"` // of the Template, without a tag
	Arch   string `json:"arch"` // as in GOARCH
	Image  Image  `json:"image"`
}

const exportFormat = 1

// Export writes the version that text names of the operator's Template, for Import. Equal
// versions give equal bytes.
func (s *Store) Export(ctx context.Context, text string, w io.Writer) (Listed, error) {
	found, err := s.Find(ctx, "", text)
	if err != nil {
		return Listed{}, err
	}
	f, err := s.images().Open(ctx, found.Image.Digest)
	if err != nil {
		return Listed{}, err
	}
	defer f.Close()
	record, err := json.MarshalIndent(exported{exportFormat, found.Name, runtime.GOARCH, found.Image}, "", "  ")
	if err != nil {
		return Listed{}, err
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return Listed{}, err
	}
	archive := tar.NewWriter(z)
	err = archive.WriteHeader(&tar.Header{Name: exportRecord, Mode: 0o644, Size: int64(len(record)), ModTime: found.Image.CreatedAt.Truncate(time.Second)})
	if err == nil {
		_, err = archive.Write(record)
	}
	if err == nil {
		err = archive.WriteHeader(&tar.Header{Name: exportImage, Mode: 0o644, Size: found.Image.Size, ModTime: found.Image.CreatedAt.Truncate(time.Second)})
	}
	if err == nil {
		_, err = io.Copy(archive, contextReader{ctx, f})
	}
	if err = errors.Join(err, archive.Close(), z.Close()); err != nil {
		return Listed{}, fmt.Errorf("export the template %s: %w", found.Ref, err)
	}
	return found, nil
}

// contextReader fails once its context has ended.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}

// Import stores an exported file as a version of the operator's Template of that name,
// and tags it. It returns Invalid for a file that is not an export, is damaged, or is for
// another processor architecture; then nothing is stored.
func (s *Store) Import(ctx context.Context, r io.Reader) (Listed, error) {
	z, err := zstd.NewReader(contextReader{ctx, r}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return Listed{}, err
	}
	defer z.Close()
	archive := tar.NewReader(z)
	of, err := readExported(archive)
	if err != nil {
		return Listed{}, err
	}
	ref, err := ParseRef("", of.Name)
	if err != nil {
		return Listed{}, err
	}
	if err := s.makeFolders(); err != nil {
		return Listed{}, err
	}
	release, err := s.lock(ctx, s.key("", ref.Name), func() {})
	if err != nil {
		return Listed{}, err
	}
	defer release()
	image := of.Image
	image.CreatedAt, image.MadeAt = time.Now().UTC(), of.Image.CreatedAt
	if !s.images().Has(image.Digest) {
		if err := s.take(archive, image); err != nil {
			return Listed{}, err
		}
	}
	keep, err := s.lockImages()
	if err != nil {
		return Listed{}, err
	}
	defer keep()
	return Listed{ref, image}, s.publish(ref, image)
}

func notExported(what string) error {
	return sandbox.Errorf(sandbox.Invalid, "this is not a template that `cloud-sandbox template export` wrote, or it is damaged: %s; get it again", what)
}

// readExported reads the record and advances to the image.
func readExported(archive *tar.Reader) (of exported, err error) {
	h, err := archive.Next()
	if err != nil || h.Name != exportRecord || h.Size > maxRefBytes {
		return of, notExported("it does not begin with " + exportRecord)
	}
	if err := json.NewDecoder(archive).Decode(&of); err != nil {
		return of, notExported("its record cannot be read")
	}
	switch {
	case of.Format != exportFormat:
		return of, sandbox.Errorf(sandbox.Invalid, "the template file has format %d and this version reads %d: use the version of Cloud Sandbox that it is from", of.Format, exportFormat)
	case of.Arch != runtime.GOARCH:
		return of, sandbox.Errorf(sandbox.Invalid, "the template is for %s and this machine is %s: get the template for %s", of.Arch, runtime.GOARCH, runtime.GOARCH)
	case !ValidDigest(of.Image.Digest) || of.Image.Size <= 0 || of.Image.Size > maxImportBytes:
		return of, notExported("its record names no image")
	}
	h, err = archive.Next()
	if err != nil || h.Name != exportImage || h.Size != of.Image.Size {
		return of, notExported("its image is missing or has another size")
	}
	return of, nil
}

// take stores the image at archive's position.
func (s *Store) take(archive io.Reader, image Image) error {
	dir := s.path("build", s.key("", "import-"+image.Digest[:16]))
	if err := errors.Join(removeTree(dir), os.MkdirAll(dir, 0o700)); err != nil { // leftovers of a killed import
		return fmt.Errorf("import a template: %w", err)
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, exportImage))
	if err != nil {
		return fmt.Errorf("import a template: %w", err)
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, hash), archive); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, zstd.ErrCRCMismatch) {
			return notExported("its image ends early")
		}
		return fmt.Errorf("import a template: %w", err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != image.Digest {
		return notExported("its image differs from the image that its record names")
	}
	_, _, err = s.adopt(f.Name())
	return err
}
