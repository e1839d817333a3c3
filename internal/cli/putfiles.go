package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PutFile is a local file that is added to a Template, where root owns it.
type PutFile struct {
	Here, There string
	Mode        fs.FileMode // permissions
}

// putFiles reads the values of --file: HERE:THERE or HERE:THERE:MODE.
func putFiles(given []string) (files []PutFile, err error) {
	for _, text := range given {
		drive := filepath.VolumeName(text) // C: on Windows
		parts := strings.Split(text[len(drive):], ":")
		parts[0] = drive + parts[0]
		if len(parts) != 2 && len(parts) != 3 {
			return nil, usagef("--file %q is not HERE:THERE or HERE:THERE:MODE", text)
		}
		info, err := os.Stat(parts[0])
		if err == nil && !info.Mode().IsRegular() {
			err = errors.New("it is not a file; a folder comes by a Dockerfile, or as --source dir:FOLDER")
		}
		if err != nil {
			return nil, fmt.Errorf("--file %q: %w", text, err)
		}
		file := PutFile{parts[0], parts[1], info.Mode().Perm()}
		if len(parts) == 3 {
			mode, err := strconv.ParseUint(parts[2], 8, 12)
			if err != nil {
				return nil, usagef("--file %q: the mode is an octal number, for example 0755", text)
			}
			file.Mode = fs.FileMode(mode)
		}
		files = append(files, file)
	}
	return files, nil
}

// PackFiles writes files as an archive, reading one after the other.
func PackFiles(ctx context.Context, w io.Writer, files []PutFile) error {
	archive := tar.NewWriter(w)
	for _, f := range files {
		info, err := os.Stat(f.Here)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		h := &tar.Header{Name: f.There, Mode: int64(f.Mode), ModTime: info.ModTime(), Format: tar.FormatPAX}
		if err := packFile(archive, f.Here, h, &progress{}, &copied{}); err != nil {
			return fmt.Errorf("--file %s: %w", f.Here, err)
		}
	}
	return archive.Close()
}
