package contexts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// maxFrame bounds a frame from a worker, in bytes.
	maxFrame = 12 << 20
	// maxTexts bounds the texts of a frame.
	maxTexts = 256
)

var errFrame = errors.New("the interpreter broke its protocol")

// writeFrame writes texts as one frame: its length, then each text after its
// own length, all lengths in four bytes.
func writeFrame(w io.Writer, texts ...string) error {
	size := 0
	for _, t := range texts {
		size += 4 + len(t)
	}
	frame := make([]byte, 0, 4+size)
	frame = binary.BigEndian.AppendUint32(frame, uint32(size))
	for _, t := range texts {
		frame = binary.BigEndian.AppendUint32(frame, uint32(len(t)))
		frame = append(frame, t...)
	}
	_, err := w.Write(frame)
	return err
}

// readFrame reads one frame. It holds at least one text.
func readFrame(r io.Reader) ([]string, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return nil, fmt.Errorf("%w: a frame of %d bytes", errFrame, size)
	}
	// Memory is only allocated for bytes that arrive.
	body, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return nil, err
	}
	if len(body) < int(size) {
		return nil, io.ErrUnexpectedEOF
	}
	return splitFrame(body)
}

func splitFrame(body []byte) ([]string, error) {
	var texts []string
	for len(body) > 0 {
		if len(body) < 4 || len(texts) == maxTexts {
			return nil, errFrame
		}
		n := binary.BigEndian.Uint32(body)
		body = body[4:]
		if uint64(n) > uint64(len(body)) {
			return nil, errFrame
		}
		texts = append(texts, string(body[:n]))
		body = body[n:]
	}
	if len(texts) == 0 {
		return nil, errFrame
	}
	return texts, nil
}
