package offload

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
)

// A state is cut where its bytes say so, not at offsets: what is inserted or
// removed moves all that follows.
const (
	minPiece = 8 << 10
	maxPiece = 128 << 10
	// cutMask has 14 bits: beyond minPiece a piece has 16 KiB more on average. They
	// are the highest ones, which depend on the 64 bytes before.
	cutMask = 1<<14 - 1
	cutTop  = 64 - 14
)

// packBytes is how many bytes of pieces one pack holds, at most.
const packBytes = 4 << 20

// pieceID names a piece, or a pack, within its group.
type pieceID [sha256.Size]byte

// A cutter finds where pieces end, with a number for each byte value that looks
// random and is always the same.
type cutter struct{ gear [256]uint64 }

func newCutter() *cutter {
	c := &cutter{}
	x := uint64(0x9e3779b97f4a7c15)
	for i := range c.gear { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		c.gear[i] = z ^ z>>31
	}
	return c
}

// cut returns how many bytes of b are its first piece, or zero when more could
// belong to it. atEnd: there are no more.
func (c *cutter) cut(b []byte, atEnd bool) int {
	h := uint64(0)
	most := min(len(b), maxPiece)
	const window = 64
	for i := minPiece - window; i < most; i++ {
		h = h<<1 + c.gear[b[i]]
		if i >= minPiece && h>>cutTop&cutMask == 0 {
			return i + 1
		}
	}
	if most == maxPiece || atEnd {
		return most
	}
	return 0
}

// place is where a piece lies.
type place struct {
	id     pieceID
	pack   int // of list.Packs
	offset int // in the pack
	length int
}

// list says what a state consists of.
type list struct {
	Name   string   `json:"name"`
	Bytes  int64    `json:"bytes"` // of all pieces
	Sum    []byte   `json:"sha256"`
	Packs  []string `json:"packs"`
	Pieces int      `json:"pieces"`
	places []place
}

const (
	listMagic  = "CSBXLIST1\n"
	placeBytes = sha256.Size + 3*4
)

// encode writes a list: a magic word, the length of the JSON and the JSON, and
// each piece in 44 bytes.
func (l *list) encode() ([]byte, error) {
	l.Pieces = len(l.places)
	head, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(listMagic)+4+len(head)+placeBytes*len(l.places))
	out = append(out, listMagic...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(head)))
	out = append(out, head...)
	for _, p := range l.places {
		out = append(out, p.id[:]...)
		out = binary.BigEndian.AppendUint32(out, uint32(p.pack))
		out = binary.BigEndian.AppendUint32(out, uint32(p.offset))
		out = binary.BigEndian.AppendUint32(out, uint32(p.length))
	}
	return out, nil
}

var errList = errors.New("the list of its pieces is wrong")

// decodeList reads what encode wrote of a state called name, and checks that it
// can be followed.
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
	if l.Pieces < 0 || len(raw)/placeBytes != l.Pieces || len(raw)%placeBytes != 0 {
		return nil, errList
	}
	l.places = make([]place, 0, l.Pieces)
	total := int64(0)
	for range l.Pieces {
		p := place{
			id: pieceID(raw), pack: int(binary.BigEndian.Uint32(raw[sha256.Size:])),
			offset: int(binary.BigEndian.Uint32(raw[sha256.Size+4:])), length: int(binary.BigEndian.Uint32(raw[sha256.Size+8:])),
		}
		if p.pack >= len(l.Packs) || p.length < 1 || p.length > maxPiece || p.offset > packBytes-p.length {
			return nil, errList
		}
		l.places = append(l.places, p)
		total += int64(p.length)
		raw = raw[placeBytes:]
	}
	if total != l.Bytes {
		return nil, errList
	}
	return l, nil
}
