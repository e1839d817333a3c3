// Package snapfile implements the file format of a Snapshot: a head with its metadata,
// the Engine's compressed data, and a checksum over everything. A truncated or modified
// file is rejected.
//
//	magic    8 bytes, "CSBXSNAP"
//	version  2 bytes, big endian as all numbers
//	head     4 bytes of length, JSON
//	chunks   each 4 bytes of length and that many bytes; together a zstd stream
//	end      4 bytes, zero
//	sum      SHA-256 of all before it
//
// The checksum detects accidental damage. The Engine verifies the origin of its data.
package snapfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	magic = "CSBXSNAP"
	// Version is the version of written files without the image, imageVersion of files
	// with it. Other versions are rejected.
	Version      = 1
	imageVersion = 2

	maxHead  = 1 << 20
	maxChunk = 1 << 20
	// window bounds the decoder's window, in bytes.
	window = 8 << 20
	// maxDecoding bounds the memory that the decoder may allocate for one stream, in
	// bytes.
	maxDecoding = 64 << 20
)

// Head holds the metadata of a file.
type Head struct {
	Name     string            `json:"name,omitempty"`
	Memory   bool              `json:"memory"`
	Template string            `json:"template"`
	Image    string            `json:"image"`
	Shape    sandbox.Shape     `json:"shape"`
	Limits   sandbox.Limits    `json:"limits"`
	Network  string            `json:"network"`
	Env      map[string]string `json:"env,omitempty"`
	User     string            `json:"user,omitempty"`
	Cwd      string            `json:"cwd,omitempty"`
	Timeline int64             `json:"timeline"`
	Snapshot string            `json:"snapshot"` // the Snapshot's original ID
	// CPU are the features that a host needs, so that one is chosen which has them. The
	// Engine has its own, signed list.
	CPU sandbox.CPUFeatures `json:"cpu,omitempty"`
	// WithImage reports that the content includes the Image.
	WithImage bool `json:"with_image,omitempty"`
}

func (h Head) version() uint16 {
	if h.WithImage {
		return imageVersion
	}
	return Version
}

// HeadOf returns the Head of a Snapshot.
func HeadOf(s sandbox.Snapshot) Head {
	return Head{
		Name: s.Name, Memory: s.Memory, Template: s.Template, Image: s.Image, Shape: s.Shape, Limits: s.Limits,
		Network: string(s.Network), Env: s.Env, User: s.User, Cwd: s.Cwd, Timeline: s.Timeline, Snapshot: s.ID, CPU: s.CPU,
	}
}

// Origin returns the Snapshot that a Head describes, or Invalid.
func (h Head) Origin() (sandbox.Snapshot, error) {
	s := sandbox.Snapshot{
		Name: h.Name, Memory: h.Memory, Template: h.Template, Image: h.Image, Shape: h.Shape, Limits: h.Limits,
		Network: sandbox.NetworkPolicy(h.Network), Env: h.Env, User: h.User, Cwd: h.Cwd, Timeline: h.Timeline, CPU: h.CPU,
	}
	if err := s.CheckOrigin(); err != nil {
		return sandbox.Snapshot{}, sandbox.Errorf(sandbox.Invalid, "the head of the file is not a snapshot's").WithCause(err)
	}
	return s, nil
}

// Writer writes one file. Nothing is written before the first byte of content.
type Writer struct {
	head   Head
	to     io.Writer
	sum    hash.Hash
	packed *zstd.Encoder // nil: nothing has been written
}

// NewWriter returns a Writer that writes a file with Head h to to.
func NewWriter(to io.Writer, h Head) *Writer {
	sum := sha256.New()
	return &Writer{head: h, to: io.MultiWriter(to, sum), sum: sum}
}

// Write adds content.
func (w *Writer) Write(p []byte) (int, error) {
	if w.packed == nil {
		if err := w.begin(); err != nil {
			return 0, err
		}
	}
	return w.packed.Write(p)
}

func (w *Writer) begin() error {
	head, err := json.Marshal(w.head)
	if err != nil {
		return err
	}
	if len(head) > maxHead {
		return fmt.Errorf("the head of a snapshot's file has %d bytes", len(head))
	}
	out := binary.BigEndian.AppendUint16([]byte(magic), w.head.version())
	out = binary.BigEndian.AppendUint32(out, uint32(len(head)))
	if _, err := w.to.Write(append(out, head...)); err != nil {
		return err
	}
	w.packed, err = zstd.NewWriter(chunkWriter{w.to}, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(window/2))
	return err
}

// Close completes the file; without it the file is invalid. It does not close the
// underlying writer. To give up, call Abandon instead.
func (w *Writer) Close() error {
	if w.packed == nil {
		return errors.New("a snapshot's file without content")
	}
	if err := w.packed.Close(); err != nil {
		return err
	}
	if _, err := w.to.Write(make([]byte, 4)); err != nil {
		return err
	}
	_, err := w.to.Write(w.sum.Sum(nil))
	return err
}

// Abandon releases the Writer without completing the file.
func (w *Writer) Abandon() {
	if w.packed != nil {
		w.packed.Reset(nil)
	}
}

// chunkWriter writes each chunk after its length.
type chunkWriter struct{ to io.Writer }

func (p chunkWriter) Write(b []byte) (int, error) {
	done := 0
	for chunk := range bytesOf(b, maxChunk) {
		if _, err := p.to.Write(binary.BigEndian.AppendUint32(nil, uint32(len(chunk)))); err != nil {
			return done, err
		}
		n, err := p.to.Write(chunk)
		if done += n; err != nil {
			return done, err
		}
	}
	return done, nil
}

// bytesOf yields b in chunks of at most n bytes.
func bytesOf(b []byte, n int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			chunk := b[:min(len(b), n)]
			if !yield(chunk) {
				return
			}
			b = b[len(chunk):]
		}
	}
}

// Reader reads the content of one file. It returns io.EOF only if the whole file is valid
// and nothing follows it.
type Reader struct {
	from     *chunkReader
	unpacked *zstd.Decoder
}

// NewReader reads the Head of a file. It returns Invalid with an explanation, or an error
// of from.
func NewReader(from io.Reader) (*Reader, Head, error) {
	sum := sha256.New()
	in := io.TeeReader(from, sum)
	head, err := readHead(in)
	if err != nil {
		return nil, Head{}, err
	}
	r := &Reader{from: &chunkReader{from: in, after: from, sum: sum}}
	r.unpacked, err = zstd.NewReader(r.from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(window), zstd.WithDecoderMaxMemory(maxDecoding))
	if err != nil {
		return nil, Head{}, r.explain(err)
	}
	return r, head, nil
}

func readHead(from io.Reader) (Head, error) {
	var h Head
	var fixed [len(magic) + 2 + 4]byte
	if err := readFull(from, fixed[:len(magic)]); err != nil || string(fixed[:len(magic)]) != magic {
		if err == nil || errors.Is(err, errCut) {
			err = sandbox.Errorf(sandbox.Invalid, "this is not the file of a snapshot: send a file that export wrote")
		}
		return h, err
	}
	if err := readFull(from, fixed[len(magic):]); err != nil {
		return h, err
	}
	v := binary.BigEndian.Uint16(fixed[len(magic):])
	if v != Version && v != imageVersion {
		return h, sandbox.Errorf(sandbox.Invalid, "the file is of version %d, and this server reads versions %d and %d: import it with a server of the version that wrote it", v, Version, imageVersion)
	}
	length := binary.BigEndian.Uint32(fixed[len(magic)+2:])
	if length > maxHead {
		return h, errDamaged
	}
	raw := make([]byte, length)
	if err := readFull(from, raw); err != nil {
		return h, err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if d.Decode(&h) != nil || d.More() || h.version() != v {
		return h, errDamaged
	}
	return h, nil
}

var (
	errCut     = sandbox.Errorf(sandbox.Invalid, "the file of the snapshot ends too early: copy it again")
	errDamaged = sandbox.Errorf(sandbox.Invalid, "the file of the snapshot is damaged: copy or export it again")
)

// readFull fills p.
func readFull(from io.Reader, p []byte) error {
	_, err := io.ReadFull(from, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCut
	}
	return err
}

// Read reads content.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.unpacked.Read(p)
	if err == nil {
		return n, nil
	}
	if err == io.EOF {
		err = r.from.finish()
	}
	return n, r.explain(err)
}

// explain returns the cause of an error, which the decoder may not know.
func (r *Reader) explain(err error) error {
	switch {
	case err == io.EOF:
		return err
	case r.from.err != nil && r.from.err != io.EOF:
		return r.from.err
	}
	var told *sandbox.Error
	if errors.As(err, &told) {
		return told
	}
	return sandbox.Errorf(sandbox.Invalid, "%s", errDamaged.Detail).WithCause(err)
}

// Close releases the Reader.
func (r *Reader) Close() { r.unpacked.Close() }

// chunkReader joins the bytes of all chunks. After the last chunk it checks the checksum.
type chunkReader struct {
	from  io.Reader // also updates sum
	after io.Reader // the same, without updating sum
	sum   hash.Hash
	left  uint32 // bytes of the current chunk
	err   error  // final error; io.EOF: the file is valid
}

func (u *chunkReader) Read(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	if u.left == 0 {
		if u.err = u.next(); u.err != nil {
			return 0, u.err
		}
	}
	n, err := u.from.Read(p[:min(len(p), int(u.left))])
	u.left -= uint32(n)
	if err == io.EOF {
		err = nil
		if n == 0 {
			err = errCut
		}
	}
	u.err = err
	return n, err
}

// next begins a chunk. After the last chunk it returns io.EOF if the file is valid.
func (u *chunkReader) next() error {
	var length [4]byte
	if err := readFull(u.from, length[:]); err != nil {
		return err
	}
	if u.left = binary.BigEndian.Uint32(length[:]); u.left > maxChunk {
		return errDamaged
	}
	if u.left > 0 {
		return nil
	}
	want := u.sum.Sum(nil)
	var got [sha256.Size]byte
	if err := readFull(u.after, got[:]); err != nil {
		return err
	}
	if !bytes.Equal(got[:], want) {
		return errDamaged
	}
	switch n, err := io.ReadFull(u.after, got[:1]); {
	case n > 0:
		return sandbox.Errorf(sandbox.Invalid, "more data follows the end of the snapshot's file")
	case err != io.EOF:
		return err
	}
	return io.EOF
}

// finish checks that nothing but the end follows the content.
func (u *chunkReader) finish() error {
	switch n, err := io.Copy(io.Discard, io.LimitReader(u, 1)); {
	case err != nil:
		return err
	case n > 0:
		return errDamaged
	case u.err != nil:
		return u.err
	}
	return errDamaged
}
