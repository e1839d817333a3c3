package server

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/chunks"
)

// A packed state consists of chunks and a list of them beside the manifest. Each chunk is
// stored once for all states of its group, compressed, under its hash. The files of the
// state may exist too, as a cache.
//
//	saved/NAME/manifest.json, files
//	saved/NAME/group          the group that it may share chunks with
//	saved/NAME/pieces         hash and length of each chunk of each file
//	saved/pieces/GROUP/HH/HASH
//
// A chunk is synced before it gets its name, and a list is written after all its chunks.
// So after a crash a list can be relied on, and a chunk that no list names can be
// removed. Only runPacking adds and removes chunks.
const (
	groupFile  = "group"
	chunksName = "pieces"
)

const pageBytes = 4 << 10

// listedBytes is the size of a chunk's entry in a list.
const listedBytes = sha256.Size + 4

var groupLength = hex.EncodedLen(sha256.Size)

// groupName is the folder name of a group.
func groupName(group string) string {
	sum := sha256.Sum256([]byte(group))
	return hex.EncodeToString(sum[:])
}

func (h *Host) chunkPath(group string, id chunks.ID) string {
	name := id.String()
	return filepath.Join(h.cfg.Saved, chunksName, group, name[:2], name)
}

// groupOf returns the group of a state; empty: it has none.
func (h *Host) groupOf(name string) string {
	raw, err := os.ReadFile(filepath.Join(h.savedDir(name), groupFile))
	if err != nil || len(raw) != groupLength || strings.Trim(string(raw), "0123456789abcdef") != "" {
		return ""
	}
	return string(raw)
}

// readChunks returns the chunks of a state, by file; fs.ErrNotExist when it is not
// packed.
func (h *Host) readChunks(m *sentryhost.Manifest) ([][]chunks.Chunk, error) {
	raw, err := os.ReadFile(filepath.Join(h.savedDir(m.Name), chunksName))
	if err != nil {
		return nil, err
	}
	files := make([][]chunks.Chunk, len(m.Files))
	for i, f := range m.Files {
		for have := int64(0); have < f.Bytes; {
			if len(raw) < listedBytes {
				return nil, damaged(m.Name, errors.New("its chunk list is too short"))
			}
			p := chunks.Chunk{ID: chunks.ID(raw), Bytes: int(binary.BigEndian.Uint32(raw[sha256.Size:]))}
			if have += int64(p.Bytes); !p.Possible() || have > f.Bytes {
				return nil, damaged(m.Name, errors.New("its chunk list is wrong"))
			}
			files[i], raw = append(files[i], p), raw[listedBytes:]
		}
	}
	if len(raw) > 0 {
		return nil, damaged(m.Name, errors.New("its chunk list is too long"))
	}
	return files, nil
}

// packer writes the chunks of one state.
type packer struct {
	host   *Host
	m      *sentryhost.Manifest
	files  []*os.File
	group  string
	stage  string // folder of chunks without their names yet
	new    map[chunks.ID]bool
	list   []byte
	encode *zstd.Encoder
	decode *zstd.Decoder
}

// pack packs a state that has a group. Its files stay.
func (h *Host) pack(name string) error {
	p, err := h.newPacker(name)
	if err != nil {
		return err
	}
	defer p.close()
	return p.pack()
}

// newPacker opens and verifies a state's files for packing.
func (h *Host) newPacker(name string) (_ *packer, err error) {
	m, _, err := h.readManifest(name)
	if err != nil {
		return nil, err
	}
	p := &packer{host: h, m: m, group: h.groupOf(name), new: map[chunks.ID]bool{}}
	if p.group == "" {
		return nil, fmt.Errorf("%s has no group", name)
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.files, err = h.openSaved(m); err != nil {
		return nil, err
	}
	if err := verify(m, p.files); err != nil {
		return nil, err
	}
	if p.stage, err = os.MkdirTemp(h.cfg.Saved, asidePrefix+name+"-chunks-"); err != nil {
		return nil, fmt.Errorf("make a folder for chunks: %w", err)
	}
	if p.encode, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1)); err != nil {
		return nil, err
	}
	p.decode, err = newDecoder()
	return p, err
}

func (p *packer) close() {
	closeAll(p.files)
	if p.stage != "" {
		os.RemoveAll(p.stage)
	}
	if p.encode != nil {
		p.encode.Close()
	}
	if p.decode != nil {
		p.decode.Close()
	}
}

func (p *packer) pack() error {
	for i, f := range p.files {
		if err := chunks.Each(io.NewSectionReader(f, 0, p.m.Files[i].Bytes), p.add); err != nil {
			return fmt.Errorf("pack %s: %w", p.m.Files[i].Name, err)
		}
	}
	return p.finish()
}

// add lists a chunk, and stores it unless it exists. An existing chunk that was damaged
// since is replaced: otherwise this state would be damaged too.
func (p *packer) add(b []byte) error {
	id := chunks.ID(sha256.Sum256(b))
	p.list = append(p.list, id[:]...)
	p.list = binary.BigEndian.AppendUint32(p.list, uint32(len(b)))
	if p.new[id] {
		return nil
	}
	if _, err := p.host.readChunk(p.decode, p.group, chunks.Chunk{ID: id, Bytes: len(b)}); err == nil {
		return nil
	}
	p.new[id] = true
	return os.WriteFile(filepath.Join(p.stage, id.String()), p.encode.EncodeAll(b, nil), 0o600)
}

// finish names the new chunks after they are synced, and then writes the list.
func (p *packer) finish() error {
	saved, err := os.Open(p.host.cfg.Saved)
	if err != nil {
		return err
	}
	defer saved.Close()
	if err := unix.Syncfs(int(saved.Fd())); err != nil {
		return os.NewSyscallError("syncfs", err)
	}
	for id := range p.new {
		to := p.host.chunkPath(p.group, id)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(p.stage, id.String()), to); err != nil {
			return err
		}
	}
	if err := unix.Syncfs(int(saved.Fd())); err != nil { // their names
		return os.NewSyscallError("syncfs", err)
	}
	defer p.host.lockName(p.m.Name)()
	if err := p.host.checkSame(p.m, p.files); err != nil {
		return err
	}
	dir := p.host.savedDir(p.m.Name)
	half := filepath.Join(dir, asidePrefix+chunksName)
	if err := os.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeSynced(half, p.list); err != nil {
		return err // the state was perhaps deleted meanwhile
	}
	return errors.Join(os.Rename(half, filepath.Join(dir, chunksName)), syncDir(dir))
}

// hasFiles reports whether all files of a state exist in full length.
func (h *Host) hasFiles(m *sentryhost.Manifest) bool {
	for _, f := range m.Files {
		info, err := os.Lstat(filepath.Join(h.savedDir(m.Name), f.Name))
		if err != nil || info.Size() != f.Bytes {
			return false
		}
	}
	return true
}

// unpack recreates the files of a packed state. The caller holds its name.
func (h *Host) unpack(m *sentryhost.Manifest) error {
	lists, err := h.readChunks(m)
	if err != nil {
		return damaged(m.Name, err)
	}
	group := h.groupOf(m.Name)
	again := *m
	d, err := h.newDraft(&again, bytesOf(m), 0)
	if err != nil {
		return err
	}
	defer d.discard()
	for i, f := range d.files {
		if err := h.join(group, lists[i], f); errors.Is(err, errChunk) {
			return damaged(m.Name, err)
		} else if err != nil {
			return noRoom(err)
		}
	}
	if err := verify(m, d.files); err != nil {
		return err
	}
	for _, f := range d.files {
		if err := f.Sync(); err != nil {
			return noRoom(err)
		}
	}
	for _, f := range m.Files {
		if err := os.Rename(filepath.Join(d.dir, f.Name), filepath.Join(h.savedDir(m.Name), f.Name)); err != nil {
			return err
		}
	}
	return nil
}

// newDecoder returns a decoder for one chunk at a time.
func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(chunks.MaxBytes))
}

// join writes chunks, one after the other, into a file.
func (h *Host) join(group string, list []chunks.Chunk, to *os.File) error {
	type part struct {
		list []chunks.Chunk
		at   int64
	}
	const each = 64 // chunks per worker at a time
	parts := make(chan part)
	var g errgroup.Group
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			decode, err := newDecoder()
			if err == nil {
				defer decode.Close()
			}
			for p := range parts { // receives all of them, so that the sender is never blocked
				for _, chunk := range p.list {
					if err == nil {
						err = h.put(decode, group, chunk, to, p.at)
					}
					p.at += int64(chunk.Bytes)
				}
			}
			return err
		})
	}
	at := int64(0)
	for len(list) > 0 {
		p := part{list[:min(each, len(list))], at}
		list = list[len(p.list):]
		for _, chunk := range p.list {
			at += int64(chunk.Bytes)
		}
		parts <- p
	}
	close(parts)
	return errors.Join(g.Wait(), to.Truncate(at))
}

// put writes one chunk.
func (h *Host) put(decode *zstd.Decoder, group string, p chunks.Chunk, to *os.File, at int64) error {
	content, err := h.readChunk(decode, group, p)
	if err != nil {
		return err
	}
	_, err = to.WriteAt(content, at)
	return err
}

var errChunk = errors.New("a chunk does not match its hash")

// readChunk returns a chunk, and errChunk unless it exists and has its hash and size.
func (h *Host) readChunk(decode *zstd.Decoder, group string, p chunks.Chunk) ([]byte, error) {
	packed, err := os.ReadFile(h.chunkPath(group, p.ID))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errChunk, err)
	}
	content, err := decode.DecodeAll(packed, nil)
	if err != nil || len(content) != int(p.Bytes) || !bytes.Equal(p.ID[:], sum(content)) {
		return nil, fmt.Errorf("%w: %s, %w", errChunk, p.ID, cmp.Or(err, errors.New("it has another hash")))
	}
	return content, nil
}

func sum(b []byte) []byte {
	s := sha256.Sum256(b)
	return s[:]
}
