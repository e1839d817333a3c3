package gateway_test

import (
	"cmp"
	"context"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// volumeFiles is sandbox.VolumeFiles in memory, of Volumes that are there when
// something is written into them.
type volumeFiles struct {
	mu    sync.Mutex
	files map[sandbox.VolumeRef]map[string]volumeFile // by path
}

type volumeFile struct {
	sandbox.VolumeFile
	data []byte
}

// brokenFile is one that breaks off after its first bytes.
const brokenFile = "/broken"

func (n *volumeFiles) CreateVolume(context.Context, string, sandbox.VolumeSpec) error { return nil }
func (n *volumeFiles) DeleteVolume(context.Context, string, string) error             { return nil }

func (n *volumeFiles) ListVolumes(_ context.Context, node string) ([]sandbox.VolumeUse, error) {
	if node != "n1" {
		return nil, sandbox.Errorf(sandbox.Unavailable, "there is no node %s", node)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []sandbox.VolumeUse
	for of, files := range n.files {
		use := sandbox.VolumeUse{ID: of.ID, Files: int64(len(files))}
		for _, f := range files {
			use.Bytes += f.Bytes
		}
		all = append(all, use)
	}
	return all, nil
}

func (n *volumeFiles) find(of sandbox.VolumeRef, p string) (volumeFile, error) {
	if f, ok := n.files[of][p]; ok {
		return f, nil
	}
	if p == "/" {
		return volumeFile{VolumeFile: sandbox.VolumeFile{Path: "/", Type: sandbox.VolumeFileFolder, Mode: 0o755}}, nil
	}
	return volumeFile{}, sandbox.Errorf(sandbox.NotFound, "there is no such file")
}

func (n *volumeFiles) StatVolumeFile(_ context.Context, _ string, of sandbox.VolumeRef, p string) (sandbox.VolumeFile, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, err := n.find(of, p)
	return f.VolumeFile, err
}

func (n *volumeFiles) ListVolumeFolder(_ context.Context, _ string, of sandbox.VolumeRef, p string, depth int) ([]sandbox.VolumeFile, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f, err := n.find(of, p); err != nil {
		return nil, err
	} else if f.Type != sandbox.VolumeFileFolder {
		return nil, sandbox.Errorf(sandbox.Invalid, "this is no folder")
	}
	var all []sandbox.VolumeFile
	for name, f := range n.files[of] {
		below := strings.TrimPrefix(name, strings.TrimSuffix(p, "/")+"/")
		if below != name && strings.Count(below, "/") < depth {
			all = append(all, f.VolumeFile)
		}
	}
	slices.SortFunc(all, func(a, b sandbox.VolumeFile) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}

func (n *volumeFiles) put(of sandbox.VolumeRef, p string, kind sandbox.VolumeFileType, c sandbox.VolumeFileChange, force bool, data []byte) (sandbox.VolumeFile, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := n.find(of, p); err == nil && !force {
		return sandbox.VolumeFile{}, sandbox.Errorf(sandbox.Conflict, "there is such a file")
	}
	if _, err := n.find(of, path.Dir(p)); err != nil && !force {
		return sandbox.VolumeFile{}, err
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	f := volumeFile{VolumeFile: sandbox.VolumeFile{Path: p, Type: kind, Bytes: int64(len(data)), Accessed: at, Modified: at.AddDate(9000, 0, 0), Changed: at}, data: data}
	changeFile(&f.VolumeFile, c)
	if n.files == nil {
		n.files = map[sandbox.VolumeRef]map[string]volumeFile{}
	}
	if n.files[of] == nil {
		n.files[of] = map[string]volumeFile{}
	}
	n.files[of][p] = f
	return f.VolumeFile, nil
}

func changeFile(f *sandbox.VolumeFile, c sandbox.VolumeFileChange) {
	for _, part := range []struct{ to, from *uint32 }{{&f.UID, c.UID}, {&f.GID, c.GID}, {&f.Mode, c.Mode}} {
		if part.from != nil {
			*part.to = *part.from
		}
	}
}

func (n *volumeFiles) MakeVolumeFolder(_ context.Context, _ string, of sandbox.VolumeRef, p string, c sandbox.VolumeFileChange, force bool) (sandbox.VolumeFile, error) {
	return n.put(of, p, sandbox.VolumeFileFolder, c, force, nil)
}

func (n *volumeFiles) WriteVolumeFile(_ context.Context, _ string, of sandbox.VolumeRef, p string, c sandbox.VolumeFileChange, force bool, r io.Reader) (sandbox.VolumeFile, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return sandbox.VolumeFile{}, err
	}
	return n.put(of, p, sandbox.VolumeFileRegular, c, force, data)
}

func (n *volumeFiles) ReadVolumeFile(_ context.Context, _ string, of sandbox.VolumeRef, p string, w io.Writer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, err := n.find(of, p)
	if err != nil {
		return err
	}
	if f.Type != sandbox.VolumeFileRegular {
		return sandbox.Errorf(sandbox.Invalid, "this is no file")
	}
	if _, err := w.Write(f.data); err != nil {
		return err
	}
	if p == brokenFile {
		return sandbox.Errorf(sandbox.Unavailable, "the node is gone")
	}
	return nil
}

func (n *volumeFiles) ChangeVolumeFile(_ context.Context, _ string, of sandbox.VolumeRef, p string, c sandbox.VolumeFileChange) (sandbox.VolumeFile, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, err := n.find(of, p)
	if err != nil {
		return f.VolumeFile, err
	}
	changeFile(&f.VolumeFile, c)
	n.files[of][p] = f
	return f.VolumeFile, nil
}

func (n *volumeFiles) RemoveVolumeFile(_ context.Context, _ string, of sandbox.VolumeRef, p string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := n.find(of, p); err != nil {
		return err
	}
	delete(n.files[of], p)
	return nil
}
