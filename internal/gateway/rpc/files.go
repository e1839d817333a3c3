package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	filev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// files is the service of files.
type files struct{ guests *execution.Guests }

// open returns the Guest of a Sandbox.
func (s files) open(ctx context.Context, idOrName string) (execution.Guest, error) {
	id, err := v1.Target{SandboxID: idOrName}.Required()
	if err != nil {
		return nil, err
	}
	_, guest, err := s.guests.Open(ctx, tenantOf(ctx), id)
	return guest, err
}

// about returns the Guest and path in a message.
func (s files) about(ctx context.Context, m interface {
	GetSandboxId() string
	GetPath() string
},
) (execution.Guest, string, error) {
	p, err := execution.Path("path", m.GetPath())
	if err != nil {
		return nil, "", err
	}
	guest, err := s.open(ctx, m.GetSandboxId())
	return guest, p, err
}

func readOptionsOf(m *filev1.ReadRequest) (execution.ReadOptions, error) {
	opts := execution.ReadOptions{IfMatch: m.IfMatch}
	switch {
	case m.Offset < 0:
		return opts, sandbox.Errorf(sandbox.Invalid, "offset must not be negative")
	case m.Length != nil && *m.Length < 1:
		return opts, sandbox.Errorf(sandbox.Invalid, "length must be at least 1")
	case m.Length != nil && m.Offset+*m.Length > m.Offset: // otherwise the end is beyond all files
		opts.Range = fmt.Sprintf("bytes=%d-%d", m.Offset, m.Offset+*m.Length-1)
	case m.Offset > 0:
		opts.Range = fmt.Sprintf("bytes=%d-", m.Offset)
	}
	return opts, nil
}

// Read implements the service.
func (s files) Read(ctx context.Context, r *connect.Request[filev1.ReadRequest], out *connect.ServerStream[filev1.ReadResponse]) error {
	if err := checkKnown(r.Msg); err != nil {
		return err
	}
	opts, err := readOptionsOf(r.Msg)
	if err != nil {
		return err
	}
	guest, p, err := s.about(ctx, r.Msg)
	if err != nil {
		return err
	}
	file, err := guest.ReadFile(ctx, p, opts)
	if err != nil {
		return err
	}
	defer file.Body.Close()
	if err := file.Refusal(); err != nil {
		return err
	}
	head := &filev1.Head{Offset: file.Start, ModifiedAt: timestamp(execution.Plausible(file.ModifiedAt)), Etag: text(file.ETag)}
	if file.Size >= 0 {
		head.SizeBytes = &file.Size
	}
	if err := out.Send(&filev1.ReadResponse{Part: &filev1.ReadResponse_Head{Head: head}}); err != nil {
		return err
	}
	return sendPieces(file.Body, file.Size, func(data []byte) error {
		return out.Send(&filev1.ReadResponse{Part: &filev1.ReadResponse_Data{Data: data}})
	})
}

// pieceSize is the size of messages with bytes.
const pieceSize = 256 << 10

// sendPieces sends size bytes, or all of them when size is negative. It fails when
// there are fewer, and never sends more.
func sendPieces(from io.Reader, size int64, send func([]byte) error) error {
	if size >= 0 {
		from = io.LimitReader(from, size)
	}
	piece := make([]byte, pieceSize)
	sent := int64(0)
	for {
		n, err := io.ReadFull(from, piece)
		if n > 0 {
			if err := send(piece[:n]); err != nil {
				return err
			}
			sent += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if sent < size {
				return sandbox.Errorf(sandbox.Unavailable, "the file broke off").WithCause(io.ErrUnexpectedEOF)
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// sent is a message of bytes; the first of a stream has their destination.
type sent[T any] interface {
	*T
	GetSandboxId() string
	GetPath() string
	GetData() []byte
}

// received reads the bytes of a stream of messages.
type received[T any, M sent[T]] struct {
	in   *connect.ClientStream[T]
	data []byte // not read yet
}

// begin returns the first message of a stream, and a reader of all its bytes.
func begin[T any, M sent[T]](in *connect.ClientStream[T]) (M, *received[T, M], error) {
	if !in.Receive() {
		if err := in.Err(); err != nil {
			return nil, nil, err
		}
		return nil, nil, sandbox.Errorf(sandbox.Invalid, "no message was sent: the first one names the path")
	}
	first := M(in.Msg())
	return first, &received[T, M]{in, first.GetData()}, checkKnown(first)
}

func (b *received[T, M]) Read(p []byte) (int, error) {
	for len(b.data) == 0 {
		if !b.in.Receive() {
			if err := b.in.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		m := M(b.in.Msg())
		if err := checkKnown(m); err != nil {
			return 0, err
		}
		if m.GetSandboxId() != "" || m.GetPath() != "" {
			return 0, sandbox.Errorf(sandbox.Invalid, "only the first message of a stream names the path")
		}
		b.data = m.GetData()
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

// taking calls take with a client's bytes. A failure to read from the client is
// returned instead of the error that follows from it.
func taking[R any](ctx context.Context, from io.Reader, take func(io.Reader) (R, error)) (R, error) {
	body := rest.NewClientBody(from, callOf(ctx).flow)
	done, err := take(body)
	if failed := body.Finish(); failed != nil {
		return done, failed
	}
	return done, err
}

// Write implements the service.
func (s files) Write(ctx context.Context, in *connect.ClientStream[filev1.WriteRequest]) (*connect.Response[filev1.WriteResponse], error) {
	first, from, err := begin(in)
	if err != nil {
		return nil, err
	}
	guest, p, err := s.about(ctx, first)
	if err != nil {
		return nil, err
	}
	entry, err := taking(ctx, from, func(body io.Reader) (execution.Entry, error) { return guest.WriteFile(ctx, p, body, -1) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(messageOf(&filev1.WriteResponse{}, rest.FileViewOf(entry))), nil
}
