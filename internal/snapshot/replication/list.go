package replication

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"

	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/chunks"
)

// packBytes bounds the bytes of chunks in one pack.
const packBytes = 4 << 20

// place locates a chunk.
type place struct {
	chunks.Chunk
	pack   int // index in list.Packs
	offset int // in the pack
}

// list describes the content of a state.
type list struct {
	Name   string   `json:"name"`
	Bytes  int64    `json:"bytes"` // of all chunks
	Sum    []byte   `json:"sha256"`
	Packs  []string `json:"packs"`
	Chunks int      `json:"pieces"`
	places []place
}

const (
	listMagic  = "CSBXLIST1\n"
	placeBytes = sha256.Size + 3*4
)

// encode writes a list: a magic word, the length of the JSON, the JSON, and each chunk in
// 44 bytes.
func (l *list) encode() ([]byte, error) {
	l.Chunks = len(l.places)
	head, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(listMagic)+4+len(head)+placeBytes*len(l.places))
	out = append(out, listMagic...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(head)))
	out = append(out, head...)
	for _, p := range l.places {
		out = append(out, p.ID[:]...)
		out = binary.BigEndian.AppendUint32(out, uint32(p.pack))
		out = binary.BigEndian.AppendUint32(out, uint32(p.offset))
		out = binary.BigEndian.AppendUint32(out, uint32(p.Bytes))
	}
	return out, nil
}

var errList = errors.New("its chunk list is wrong")

// decodeList parses the list of the state called name, and checks that it is consistent.
func decodeList(raw []byte, name string) (*list, error) {
	if len(raw) < len(listMagic)+4 || string(raw[:len(listMagic)]) != listMagic {
		return nil, errList
	}
	raw = raw[len(listMagic):]
	n := uint64(binary.BigEndian.Uint32(raw))
	raw = raw[4:]
	if n > uint64(len(raw)) {
		return nil, errList
	}
	l := &list{}
	if err := json.Unmarshal(raw[:n], l); err != nil || l.Name != name || len(l.Sum) != sha256.Size {
		return nil, errors.Join(errList, err)
	}
	raw = raw[n:]
	if l.Chunks < 0 || len(raw)/placeBytes != l.Chunks || len(raw)%placeBytes != 0 {
		return nil, errList
	}
	l.places = make([]place, 0, l.Chunks)
	total := int64(0)
	for range l.Chunks {
		p := place{
			Chunk: chunks.Chunk{ID: chunks.ID(raw), Bytes: int(binary.BigEndian.Uint32(raw[sha256.Size+8:]))},
			pack:  int(binary.BigEndian.Uint32(raw[sha256.Size:])), offset: int(binary.BigEndian.Uint32(raw[sha256.Size+4:])),
		}
		if p.pack >= len(l.Packs) || !p.Possible() || p.offset > packBytes-p.Bytes {
			return nil, errList
		}
		l.places = append(l.places, p)
		total += int64(p.Bytes)
		raw = raw[placeBytes:]
	}
	if total != l.Bytes {
		return nil, errList
	}
	return l, nil
}
