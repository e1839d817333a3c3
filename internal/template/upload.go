package template

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/decompress"
)

// CheckUpload reads an archive of files for a Template, and returns a hash of its content
// without the times. It returns Invalid for an invalid archive or a path that a Template
// cannot have, and TooLarge.
func CheckUpload(ctx context.Context, file *os.File) (hash string, err error) {
	sum := sha256.New()
	size := int64(0)
	err = eachUploaded(ctx, file, func(archive *tar.Reader) error {
		for n := 1; ; n++ {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return badArchive(err)
			}
			if err := checkUploaded(h); err != nil {
				return err
			}
			if size += h.Size; size > guardedTreeBytes || n > maxTreeEntries {
				return sandbox.Errorf(sandbox.TooLarge, "the files of a template may have at most %d GiB", guardedTreeBytes>>30)
			}
			fmt.Fprintf(sum, "%q %c %o %d %d %q %d\n", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, h.Size)
			if _, err := io.Copy(sum, archive); err != nil {
				return badArchive(err)
			}
		}
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// eachUploaded calls read with an archive from its start.
func eachUploaded(ctx context.Context, file *os.File, read func(*tar.Reader) error) error {
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("read the files of a template: %w", err)
	}
	plain, err := decompress.Reader(ctxReader{ctx, io.NewSectionReader(file, 0, info.Size())})
	if err != nil {
		return err
	}
	err = read(tar.NewReader(plain))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func checkUploaded(h *tar.Header) error {
	name, ok := cleanName(h.Name)
	switch {
	case !ok && name == "." && h.Typeflag == tar.TypeDir:
		return nil // the root folder exists
	case !ok || len(h.Name) > maxFilePath:
		return sandbox.Errorf(sandbox.Invalid, "%.80q is not the path of a file in a template", h.Name)
	case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeSymlink && h.Typeflag != tar.TypeLink:
		return sandbox.Errorf(sandbox.Invalid, "/%.80s is neither a file nor a folder nor a link: leave it out", name)
	}
	return checkPlace(name)
}

// unpackUpload unpacks the uploaded files into the tree.
func (b *build) unpackUpload(ctx context.Context) error {
	if b.plan.recipe.Upload == nil {
		return nil
	}
	b.say("files", "putting in the files that were sent", 0, 0)
	return eachUploaded(ctx, b.plan.recipe.Upload, func(archive *tar.Reader) error {
		return untarFrom(b.tree, archive, b.Guard.treeBytes(), func(int) {})
	})
}
