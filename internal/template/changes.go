package template

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/decompress"
)

// maxPaths bounds the list of paths in a changed tree, in bytes.
const maxPaths = 64 << 20

// fillChanges unpacks the base image, and then an archive of changes to it. The archive's
// first file lists all paths of the result, each ended by a zero byte. The other entries
// are new or changed.
func (b *build) fillChanges(ctx context.Context, r io.Reader) error {
	b.source = "tar"
	b.say("unpack", "unpacking the changes of the archive", 0, 0)
	size, err := b.unpackImage(ctx, b.plan.recipe.Base)
	if err != nil {
		return err
	}
	plain, err := decompress.Reader(r)
	if err != nil {
		return err
	}
	archive := tar.NewReader(ctxReader{ctx, plain})
	kept, err := readPaths(archive)
	if err != nil {
		return err
	}
	if err := b.keepOnly(ctx, kept); err != nil {
		return err
	}
	b.say("unpack", "unpacking the archive", 0, 0)
	err = untarFrom(b.tree, archive, b.Guard.treeBytes()-size, func(int) {})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	return b.dateByFiles()
}

// unpackImage unpacks an image of the Store and returns its size. Setuid and setgid bits
// are lost.
func (b *build) unpackImage(ctx context.Context, digest string) (int64, error) {
	if err := checkDigest(digest); err != nil {
		return 0, err
	}
	image, err := b.Store.images().Open(ctx, digest)
	if err != nil {
		return 0, err
	}
	defer image.Close()
	info, err := image.Stat()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, "fsck.erofs", "--extract="+b.root, "--overwrite", "--preserve", image.Name())
	cmd.Env, cmd.SysProcAttr = childEnv(), dieWithParent()
	if out, err := runLocked(cmd); err != nil {
		return 0, fmt.Errorf("unpack an image: %w: %s", err, lastLines(out, 5))
	}
	return info.Size(), nil
}

// readPaths reads the list at the start of an archive of changes.
func readPaths(archive *tar.Reader) (map[string]bool, error) {
	h, err := archive.Next()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, badArchive(err)
	}
	if h.Typeflag != tar.TypeReg || h.Size > maxPaths {
		return nil, sandbox.Errorf(sandbox.Invalid, "the archive does not begin with a list of its files")
	}
	list, err := io.ReadAll(archive)
	if err != nil {
		return nil, badArchive(err)
	}
	kept := map[string]bool{}
	for path := range bytes.SplitSeq(list, []byte{0}) {
		if name, ok := cleanName(strings.TrimPrefix(string(path), ".")); ok {
			kept[name] = true
		}
	}
	return kept, nil
}

// keepOnly removes all paths from the tree that are not in kept.
func (b *build) keepOnly(ctx context.Context, kept map[string]bool) error {
	var gone []string
	err := fs.WalkDir(b.tree.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case name == "." || kept[name]:
			return nil
		}
		gone = append(gone, name)
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look through the tree: %w", err)
	}
	for _, name := range gone {
		if err := b.tree.RemoveAll(name); err != nil {
			return fmt.Errorf("remove /%s from the tree: %w", name, err)
		}
	}
	return nil
}
