package volumes

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// maxFolders bounds the open folders of a mount.
	maxFolders = 1024
	direntHead = 24
)

// folder is an open folder with the part of its listing that was fetched last.
type folder struct {
	entries []volume.Entry
	begin   uint64 // index of the first entry in the whole listing; "." and ".." are 0 and 1
	last    bool   // the listing ends here
}

func (q *query) openFolder() {
	m := q.m
	m.mu.Lock()
	full := len(m.folders) >= maxFolders
	if !full {
		m.handle++
		m.folders[m.handle] = nil
		q.out = appendOpen(q.out, m.handle)
	}
	m.mu.Unlock()
	if full {
		q.end(unix.ENFILE)
		return
	}
	q.end(0)
}

func (m *mount) closeFolder(handle uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.folders, handle)
}

// readFolder appends entries from an offset on, up to size bytes.
func (q *query) readFolder(handle, at uint64, size int) syscall.Errno {
	m := q.m
	m.mu.Lock()
	f, open := m.folders[handle]
	m.mu.Unlock()
	if !open {
		return unix.EBADF
	}
	f, err := m.part(q.h.node, f, at)
	if err != 0 {
		return err
	}
	m.mu.Lock()
	if _, open := m.folders[handle]; open {
		m.folders[handle] = f
	}
	m.mu.Unlock()
	for i := at - f.begin; i < uint64(len(f.entries)); i++ {
		e := f.entries[i]
		padded := (direntHead + len(e.Name) + 7) &^ 7
		if len(q.out)-outHead+padded > size {
			break
		}
		q.out = order.AppendUint64(q.out, e.Node)
		q.out = order.AppendUint64(q.out, f.begin+i+1)
		q.out = order.AppendUint32(q.out, uint32(len(e.Name)))
		q.out = order.AppendUint32(q.out, uint32(e.Type))
		q.out = append(q.out, e.Name...)
		q.out = append(q.out, make([]byte, padded-direntHead-len(e.Name))...)
	}
	return 0
}

// part returns the part of a folder's listing that begins at or before an offset. At
// offset 0 it fetches the listing again.
func (m *mount) part(node uint64, f *folder, at uint64) (*folder, syscall.Errno) {
	if f == nil || at == 0 || at < f.begin {
		f = &folder{entries: []volume.Entry{{Node: node, Type: unix.DT_DIR, Name: "."}, {Node: node, Type: unix.DT_DIR, Name: ".."}}}
	}
	for at >= f.begin+uint64(len(f.entries)) && !f.last {
		r := volume.Request{Op: volume.OpList, Node: node}
		if n := len(f.entries); f.begin+uint64(n) > 2 {
			r.Name = f.entries[n-1].Name
		}
		a, err := m.ask(r)
		if err != 0 {
			return nil, err
		}
		entries, decodeErr := volume.DecodeEntries(a.Data)
		if decodeErr != nil {
			return nil, unix.EIO
		}
		f = &folder{entries: entries, begin: f.begin + uint64(len(f.entries)), last: a.Count == 0 || len(entries) == 0}
	}
	return f, 0
}
