package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cloud-sandbox/cloud-sandbox/internal/template/dockerfile"
)

// checkDockerfile refuses flags that do not go together.
func (t TemplateBuild) checkDockerfile() error {
	if t.DockerfileAt == "" {
		switch {
		case t.Context != "":
			return usagef("--context needs --dockerfile")
		case len(t.BuildArgs) > 0:
			return usagef("--build-arg needs --dockerfile")
		}
		return nil
	}
	for _, both := range []struct {
		given        bool
		flag, remedy string
	}{
		{t.Source != "", "--source", "FROM names the base image"},
		{len(t.Packages) > 0, "--package", "install packages by RUN, for example RUN apt-get update && apt-get install -y ffmpeg"},
		{len(t.Put) > 0, "--file", "bring in files by COPY"},
		{len(t.Env) > 0, "--env", "set variables by ENV"},
		{t.Bare, "--bare", "nothing is added to its image"},
	} {
		if both.given {
			return usagef("--dockerfile and %s do not go together: %s", both.flag, both.remedy)
		}
	}
	return nil
}

// openDockerfile reads the Dockerfile, and returns an archive of its context; nil
// where it copies nothing. A mistake in it is reported before anything is sent.
func (t *TemplateBuild) openDockerfile(ctx context.Context) (io.ReadCloser, error) {
	text, err := readAtMost(t.DockerfileAt, dockerfile.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("--dockerfile: %w", err)
	}
	t.Dockerfile = string(text)
	file, err := dockerfile.Parse(t.Dockerfile, t.BuildArgs)
	if err != nil || !file.Copies() {
		return nil, err
	}
	if t.Context == "" {
		t.Context = filepath.Dir(t.DockerfileAt)
	}
	if info, err := os.Stat(t.Context); err != nil {
		return nil, fmt.Errorf("--context: %w", err)
	} else if !info.IsDir() {
		return nil, usagef("--context %s is not a folder", t.Context)
	}
	ignoring, err := t.readIgnored()
	if err != nil {
		return nil, err
	}
	read, write := io.Pipe()
	go func() {
		write.CloseWithError(packContext(ctx, write, t.Context, ignoring))
	}()
	return read, nil
}

// readAtMost reads a file of at most most bytes.
func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d KiB", path, most>>10)
	}
	return text, err
}

// readIgnored reads the ignore file: the Dockerfile's own, as Docker has it, or else
// the context's.
func (t *TemplateBuild) readIgnored() ([]byte, error) {
	for _, path := range []string{t.DockerfileAt + dockerfile.IgnoreFile, filepath.Join(t.Context, dockerfile.IgnoreFile)} {
		text, err := readAtMost(path, 1<<20)
		if !errors.Is(err, fs.ErrNotExist) {
			return text, err
		}
	}
	return nil, nil
}

// packContext packs a folder without its ignored files. Links stay links.
func packContext(ctx context.Context, w io.Writer, folder string, ignoring []byte) error {
	ignored, err := dockerfile.ReadIgnored(bytes.NewReader(ignoring))
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	// The server ignores the same files, so that all clients get the same result.
	if err := archive.WriteHeader(&tar.Header{Name: dockerfile.IgnoreFile, Mode: 0o644, Size: int64(len(ignoring))}); err != nil {
		return err
	}
	if _, err := archive.Write(ignoring); err != nil {
		return err
	}
	from := filepath.Clean(folder) + string(filepath.Separator) // a link to a directory is followed
	err = filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		below, err := filepath.Rel(from, name)
		if err != nil || below == "." || below == dockerfile.IgnoreFile {
			return err
		}
		if ignored.Has(filepath.ToSlash(below)) {
			if d.IsDir() && ignored.Whole() {
				return fs.SkipDir
			}
			return nil
		}
		return packOne(archive, name, below, d, &progress{}, &copied{})
	})
	if err != nil {
		return err
	}
	return archive.Close()
}
