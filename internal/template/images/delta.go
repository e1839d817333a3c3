package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A delta file consists of: magic, the length of the head (4 bytes, big endian), the
// head's SHA-256, the head in JSON, and the blocks that the base lacks.
const (
	magic = "CSDELTA1"
	// blockSize is the block size of EROFS, in bytes. Files in an image begin at block
	// boundaries.
	blockSize = 4096
	// maxBase is the largest usable base: its index takes some 40 bytes of memory per
	// block.
	maxBase = 8 << 30
	// maxHead bounds a head, in bytes.
	maxHead = 64 << 20
	// worthPart is the largest useful size of a delta, as a fraction of its image.
	worthPart = 0.75
)

// head describes how to build an image from its base.
type head struct {
	Digest string `json:"digest"` // of the image
	Base   string `json:"base"`   // digest of the base
	Size   int64  `json:"size"`   // of the image in bytes, a multiple of blockSize
	Fresh  int64  `json:"fresh"`  // number of blocks in the delta itself
	Sum    string `json:"sum"`    // SHA-256 of the fresh blocks, in hex
	Runs   []span `json:"runs"`   // the image, from its first block to its last

	data int64 // offset of the first fresh block
}

// span is a run of blocks of an image: [count, first block in the base], or [count, -1]
// for the next fresh blocks.
type span [2]int64

const fresh = -1

// errBroken is returned for a damaged delta.
var errBroken = errors.New("the delta is broken")

func readHeadAt(path string) (*head, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readHead(f)
}

// readHead reads and checks the head of a delta, independently of the file offset.
func readHead(f *os.File) (*head, error) {
	const fixed = len(magic) + 4 + sha256.Size
	start := make([]byte, fixed)
	if _, err := f.ReadAt(start, 0); err != nil {
		return nil, errors.Join(errBroken, err)
	}
	n := int64(binary.BigEndian.Uint32(start[len(magic):]))
	if string(start[:len(magic)]) != magic || n > maxHead {
		return nil, errBroken
	}
	raw := make([]byte, n)
	if _, err := f.ReadAt(raw, int64(fixed)); err != nil {
		return nil, errors.Join(errBroken, err)
	}
	if sum := sha256.Sum256(raw); !bytes.Equal(sum[:], start[len(magic)+4:]) {
		return nil, errBroken
	}
	h := &head{data: int64(fixed) + n}
	if err := json.Unmarshal(raw, h); err != nil {
		return nil, errors.Join(errBroken, err)
	}
	return h, nil
}

// part is a byte range of an image, in the base or in the delta.
type part struct {
	fresh  bool
	offset int64 // in its file
	bytes  int64
}

// parts calls each with the parts of the image, in order.
func (h *head) parts(ctx context.Context, each func(part) error) error {
	next := h.data
	for _, r := range h.Runs {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p := part{offset: r[1] * blockSize, bytes: r[0] * blockSize}
		if r[1] == fresh {
			p.fresh, p.offset = true, next
			next += p.bytes
		}
		if err := each(p); err != nil {
			return err
		}
	}
	return nil
}

// apply writes the image to out. If the file system supports it, blocks of the base are
// shared and take no space.
func (h *head) apply(ctx context.Context, delta, base, out *os.File) error {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(delta, h.data, h.Fresh*blockSize)); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != h.Sum {
		return errBroken
	}
	done := int64(0)
	err := h.parts(ctx, func(p part) error {
		from := base
		if p.fresh {
			from = delta
		}
		if err := copyRange(out, done, from, p.offset, p.bytes); err != nil {
			return err
		}
		done += p.bytes
		return nil
	})
	if err == nil && done != h.Size {
		err = errBroken
	}
	return err
}

// copyRange copies n bytes between files in the kernel, or else in this process.
func copyRange(to *os.File, at int64, from *os.File, offset, n int64) error {
	for n > 0 {
		read, write := offset, at
		done, err := unix.CopyFileRange(int(from.Fd()), &read, int(to.Fd()), &write, int(min(n, 1<<30)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
			copied, err := io.Copy(io.NewOffsetWriter(to, at), io.NewSectionReader(from, offset, n))
			if err == nil && copied < n {
				err = io.ErrUnexpectedEOF
			}
			return err
		case err != nil:
			return os.NewSyscallError("copy_file_range", err)
		case done == 0:
			return io.ErrUnexpectedEOF
		}
		offset, at, n = offset+int64(done), at+int64(done), n-int64(done)
	}
	return nil
}

// sum returns the digest of the image that the delta produces.
func (h *head) sum(ctx context.Context, delta, base *os.File) (string, error) {
	sum := sha256.New()
	err := h.parts(ctx, func(p part) error {
		from := base
		if p.fresh {
			from = delta
		}
		n, err := io.Copy(sum, io.NewSectionReader(from, p.offset, p.bytes))
		if err == nil && n < p.bytes {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// writeDelta writes the delta of target to base into out, an empty file, and verifies it.
// It reports whether the delta is small enough to be useful.
func writeDelta(ctx context.Context, out, target, base *os.File, digest, from string) (bool, error) {
	h := &head{Digest: digest, Base: from}
	blocks, err := h.compare(ctx, target, base)
	if err != nil || blocks == nil {
		return false, err
	}
	sum := sha256.New()
	if err := eachBlock(target, blocks, sum); err != nil {
		return false, err
	}
	h.Sum = hex.EncodeToString(sum.Sum(nil))
	raw, err := json.Marshal(h)
	if err != nil {
		return false, err
	}
	if len(raw) > maxHead {
		return false, nil
	}
	start := binary.BigEndian.AppendUint32([]byte(magic), uint32(len(raw)))
	rawSum := sha256.Sum256(raw)
	h.data = int64(len(start) + len(rawSum) + len(raw))
	for _, b := range [][]byte{start, rawSum[:], raw} {
		if _, err := out.Write(b); err != nil {
			return false, err
		}
	}
	if err := eachBlock(target, blocks, out); err != nil {
		return false, err
	}
	made, err := h.sum(ctx, out, base)
	if err == nil && made != digest {
		err = fmt.Errorf("the delta of %s makes %s", digest, made)
	}
	return err == nil, err
}

// eachBlock copies blocks of a file to w.
func eachBlock(f *os.File, blocks []int64, w io.Writer) error {
	buf := make([]byte, blockSize)
	for _, n := range blocks {
		if _, err := f.ReadAt(buf, n*blockSize); err != nil {
			return err
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// compare finds the blocks of target in base. It sets Size, Fresh and Runs, and returns
// the fresh blocks, or nil if they are too many or the files cannot be compared.
func (h *head) compare(ctx context.Context, target, base *os.File) ([]int64, error) {
	index, err := indexOf(ctx, base)
	if err != nil || index == nil {
		return nil, err
	}
	info, err := target.Stat()
	if err != nil || info.Size()%blockSize != 0 {
		return nil, err
	}
	h.Size = info.Size()
	most := int64(float64(h.Size/blockSize) * worthPart)
	own := []int64{}
	block, there := make([]byte, blockSize), make([]byte, blockSize)
	same := func(at int64) (bool, error) {
		n, err := base.ReadAt(there, at*blockSize)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return n == blockSize && bytes.Equal(block, there), err
	}
	next := int64(0) // block of the base that would continue the run
	for n := int64(0); n*blockSize < h.Size; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if _, err := target.ReadAt(block, n*blockSize); err != nil {
			return nil, err
		}
		at := int64(fresh)
		goes, err := same(next)
		if err != nil {
			return nil, err
		}
		if goes {
			at = next
		} else if found, ok := index.blocks[maphash.Bytes(index.seed, block)]; ok {
			if goes, err = same(int64(found)); err != nil {
				return nil, err
			}
			if goes {
				at = int64(found)
			}
		}
		if at == fresh {
			own = append(own, n)
			if int64(len(own)) > most {
				return nil, nil
			}
		} else {
			next = at + 1
		}
		h.add(at)
	}
	h.Fresh = int64(len(own))
	return own, nil
}

// add appends one block to Runs.
func (h *head) add(at int64) {
	if len(h.Runs) > 0 {
		last := &h.Runs[len(h.Runs)-1]
		if at == fresh && last[1] == fresh || at != fresh && last[1] != fresh && at == last[1]+last[0] {
			last[0]++
			return
		}
	}
	h.Runs = append(h.Runs, span{1, at})
}

// index finds blocks of a base by a hash with a secret random seed, so that an attacker
// cannot construct collisions.
type index struct {
	seed   maphash.Seed
	blocks map[uint64]uint32
}

// indexOf indexes base; nil if it is too large.
func indexOf(ctx context.Context, base *os.File) (*index, error) {
	info, err := base.Stat()
	if err != nil || info.Size() > maxBase {
		return nil, err
	}
	all := &index{maphash.MakeSeed(), make(map[uint64]uint32, info.Size()/blockSize)}
	buf := make([]byte, 256*blockSize)
	for at := int64(0); at < info.Size(); at += int64(len(buf)) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		n, err := base.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		for i := 0; i+blockSize <= n; i += blockSize {
			all.blocks[maphash.Bytes(all.seed, buf[i:i+blockSize])] = uint32((at + int64(i)) / blockSize)
		}
	}
	return all, nil
}
