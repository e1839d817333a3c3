package client

import (
	"encoding/binary"
	"io"
	"net/http"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

// messageCopies is how often a message of a Guest is in memory during a read: the
// raw bytes, in a buffer that grows by halves, and the decoded message.
const messageCopies = 3

// frames counts large messages of Guests, which must be held whole, as memory of
// the request that they answer.
type frames struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (f frames) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch kind := resp.Header.Get("Content-Type"); {
	case strings.HasPrefix(kind, "application/connect+"):
		resp.Body = &frameBody{ReadCloser: resp.Body, request: r, release: func() {}}
	case strings.HasPrefix(kind, "application/proto"):
		resp.Body = &messageBody{ReadCloser: resp.Body, request: r, memory: spool.Gather{Most: maxMessage}}
	}
	return resp, nil
}

// frameBody is a stream of messages, each after a header of five bytes with its
// length. The memory of a message is released when the next one begins.
type frameBody struct {
	io.ReadCloser
	request *http.Request
	head    []byte // header bytes read so far
	left    int64  // remaining bytes of the message
	release func()
}

const frameHead = 5 // bytes: a flag and a length

func (b *frameBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		p = p[:min(len(p), frameHead-len(b.head))]
	} else {
		p = p[:min(int64(len(p)), b.left)]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
		return n, err
	}
	if len(b.head) == 0 && n > 0 {
		b.release()
	}
	if b.head = append(b.head, p[:n]...); len(b.head) < frameHead {
		return n, err
	}
	b.left = int64(binary.BigEndian.Uint32(b.head[1:]))
	b.head = b.head[:0]
	if b.left <= maxMessage { // a larger message is not read
		var failed error
		if b.release, failed = spool.Hold(b.request.Context(), messageCopies*b.left); failed != nil {
			b.release = func() {}
			return n, failed
		}
	}
	return n, err
}

func (b *frameBody) Close() error {
	b.release()
	return b.ReadCloser.Close()
}

// messageBody is one message. It counts as memory until the request that it answers
// has ended.
type messageBody struct {
	io.ReadCloser
	request *http.Request
	memory  spool.Gather
}

func (b *messageBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if failed := b.memory.Add(b.request.Context(), n); failed != nil {
		return n, failed
	}
	return n, err
}
