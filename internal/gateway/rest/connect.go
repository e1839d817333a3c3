package rest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// Ports reaches the TCP ports of Sandboxes.
type Ports interface {
	// Dial connects to a port of a running Sandbox, also to one that listens only on
	// its loopback. It returns Conflict when nothing listens on the port and Invalid
	// for a port that clients may not use.
	Dial(ctx context.Context, sb sandbox.Sandbox, port uint16) (net.Conn, error)
}

// connectPiece bounds one message of a client, in bytes.
const connectPiece = 256 << 10

// ConnectPort answers GET /api/v1/sessions/{id}/ports/{port}/connect with a
// WebSocket that is one TCP connection to the port.
func (a *API) ConnectPort(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	port, err := execution.Port(r.PathValue("port"))
	if err != nil {
		return err
	}
	if !wantsSocket(r) {
		w.Header().Set("Upgrade", "websocket")
		return sandbox.Errorf(sandbox.Invalid, "this path answers with a WebSocket only")
	}
	sb, _, err := a.Guests.Open(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return err
	}
	inside, err := a.Ports.Dial(r.Context(), sb, port)
	if err != nil {
		return err
	}
	defer inside.Close()
	s, err := acceptSocket(w, r, connectPiece)
	if err != nil {
		return err
	}
	return join(r.Context(), s, inside)
}

// join carries bytes both ways until both ends have ended their direction, or one has
// closed.
func join(ctx context.Context, s *socket, inside net.Conn) error {
	// The end of the request's own context would close the socket without a close
	// frame.
	left, gone := context.WithCancel(context.WithoutCancel(ctx))
	defer gone()
	defer context.AfterFunc(ctx, func() { inside.Close() })()
	c := connection{s: s, inside: inside, ended: make(chan struct{})}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		defer inside.Close()
		defer gone()
		c.hear(left)
	}()
	defer func() { <-heard }()
	defer s.keepUnless(left, c.busy.Load, func() { gone(); inside.Close() })()
	err := c.tell(left)
	if err == nil {
		select {
		case <-c.ended:
		case <-left.Done():
		case <-ctx.Done():
		}
	}
	return s.part(ctx, left, err)
}

// connection is one TCP connection that is tunnelled over a client's WebSocket.
type connection struct {
	s      *socket
	inside net.Conn
	ended  chan struct{} // closed once the client has sent eof
	// busy is whether a write of the client's bytes waits for the program inside.
	busy atomic.Bool
}

// tell sends the bytes from inside, then eof.
func (c *connection) tell(left context.Context) error {
	piece := make([]byte, 32<<10)
	for {
		n, err := c.inside.Read(piece)
		if n > 0 {
			if err := c.s.writeWithin(left, patientWrite, websocket.MessageBinary, piece[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return c.s.json(left, connectMessage{Type: "eof"})
		case err != nil:
			return sandbox.Errorf(sandbox.Unavailable, "the connection inside the sandbox broke").WithCause(err)
		}
	}
}

// connectMessage is a text message.
type connectMessage struct {
	Type string `json:"type"`
}

// hear passes on the client's messages until the client leaves or the socket is closed.
func (c *connection) hear(left context.Context) {
	over := false
	for {
		kind, data, err := c.s.conn.Read(left)
		switch {
		case err != nil:
			return
		case kind == websocket.MessageText:
			var m connectMessage
			if err = decodeObject(data, &m); err == nil && m.Type != "eof" {
				err = sandbox.Errorf(sandbox.Invalid, "type must be eof; bytes are sent as binary messages")
			}
		case over:
			err = sandbox.Errorf(sandbox.Invalid, "nothing may follow eof")
		}
		if err != nil {
			_ = c.s.refuse(left, err)
			_ = c.s.conn.Close(websocket.StatusPolicyViolation, string(sandbox.Invalid))
			return
		}
		if kind == websocket.MessageText {
			if !over {
				over = true
				closeWrite(c.inside)
				close(c.ended)
			}
			continue
		}
		c.busy.Store(true)
		_, _ = c.inside.Write(data) // a program that reads no more may still write
		c.busy.Store(false)
	}
}

// closeWrite closes conn for writing.
func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the other direction reports the error
	}
}
