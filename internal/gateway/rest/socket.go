package rest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
)

const (
	// socketWrite bounds one write to a client that reads nothing.
	socketWrite = 30 * time.Second
	// patientWrite is socketWrite for a program that may wait for others.
	patientWrite = 10 * time.Minute
	// socketPing is the interval of pings, and the time that a client has to answer
	// one.
	socketPing = 30 * time.Second
)

// wantsSocket reports whether a client asks for a WebSocket.
func wantsSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

const (
	// socketProtocol is the subprotocol of every WebSocket.
	socketProtocol = "cloud-sandbox"
	// socketBearer is the prefix of a subprotocol that carries a credential.
	socketBearer = "bearer."
)

// SocketTokens returns the credentials among the protocols that a client offers
// for a WebSocket; nil when it does not ask for one.
func SocketTokens(r *http.Request) (tokens []string) {
	if !wantsSocket(r) {
		return nil
	}
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		for offer := range strings.SplitSeq(header, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(offer), socketBearer); ok {
				tokens = append(tokens, token)
			}
		}
	}
	return tokens
}

// socket is a WebSocket to a client.
type socket struct{ conn *websocket.Conn }

// refusal keeps the status of a failed handshake and drops its answer: errors have a
// form of our own.
type refusal struct {
	http.ResponseWriter
	status int // 0: none
}

func (w *refusal) WriteHeader(code int) {
	if code == http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(code)
		return
	}
	w.status = code
}

func (w *refusal) Write(p []byte) (int, error) { return len(p), nil }

// Unwrap lets net/http find the connection.
func (w *refusal) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// acceptSocket answers with a WebSocket whose incoming messages have at most limit
// bytes. Afterwards no HTTP status can be sent.
func acceptSocket(w http.ResponseWriter, r *http.Request, limit int64) (*socket, error) {
	refused := &refusal{ResponseWriter: w}
	conn, err := websocket.Accept(refused, r, &websocket.AcceptOptions{
		CompressionMode: websocket.CompressionDisabled, Subprotocols: []string{socketProtocol},
	})
	switch {
	case err == nil:
		conn.SetReadLimit(limit)
		return &socket{conn}, nil
	case refused.status == http.StatusForbidden:
		return nil, sandbox.Errorf(sandbox.Denied, "a page of another host may not open this WebSocket").WithCause(err)
	case refused.status != 0:
		return nil, sandbox.Errorf(sandbox.Invalid, "the request is no whole handshake of a WebSocket, by HTTP/1.1 and of version 13").WithCause(err)
	}
	return nil, &Answered{sandbox.Errorf(sandbox.Invalid, "the WebSocket was not opened").WithCause(err)}
}

// listen returns a context that ends when the client leaves. A client that sends a
// message is disconnected. wait returns once the socket is closed and its reader has
// ended.
func (s *socket) listen(ctx context.Context) (left context.Context, wait func()) {
	// The end of the request's own context would close the socket without a close
	// frame.
	left, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		if _, _, err := s.conn.Reader(left); err == nil {
			_ = s.conn.Close(websocket.StatusPolicyViolation, "this WebSocket takes no messages")
		}
	}()
	return left, func() { <-done }
}

// keep sends pings until stop is called and disconnects a client that does not answer.
// Another goroutine has to read meanwhile.
func (s *socket) keep(ctx context.Context) (stop func()) {
	return s.keepUnless(ctx, func() bool { return false }, func() {})
}

// maxMissed is the number of pings in a row without an answer after which the client is
// gone. More than one: an answer may be queued behind data that was read late.
const maxMissed = 2

// keepUnless is keep for a client whose answers may be late for a good reason while
// busy returns true: only a ping that cannot be sent shows then that the client is
// gone. It calls gone when it disconnects the client.
func (s *socket) keepUnless(ctx context.Context, busy func() bool, gone func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(socketPing)
		defer tick.Stop()
		missed := 0
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			ping, end := context.WithTimeout(ctx, socketPing)
			err := s.conn.Ping(ping)
			end()
			late := errors.Is(err, context.DeadlineExceeded)
			switch {
			case err == nil, late && busy():
				missed = 0
				continue
			case late && missed+1 < maxMissed:
				missed++
				continue
			}
			_ = s.conn.CloseNow()
			gone()
			return
		}
	}()
	return func() { cancel(); <-done }
}

func (s *socket) write(ctx context.Context, kind websocket.MessageType, data []byte) error {
	return s.writeWithin(ctx, socketWrite, kind, data)
}

func (s *socket) writeWithin(ctx context.Context, limit time.Duration, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.conn.Write(ctx, kind, data)
}

func (s *socket) json(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write(ctx, websocket.MessageText, data)
}

// finish closes the socket after err, normally when err is nil, and returns err wrapped
// in Answered. ctx is the request's context.
func (s *socket) finish(ctx context.Context, err error) error {
	if err == nil {
		return s.conn.Close(websocket.StatusNormalClosure, "")
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	f := status.Of(err)
	last := context.WithoutCancel(ctx) // the end of ctx may be the error to report
	_ = s.json(last, struct {
		Event string     `json:"event"`
		Type  string     `json:"type"`
		Error v1.Failure `json:"error"`
	}{"error", "error", f})
	code := websocket.StatusInternalError
	if f.Code == sandbox.Unavailable {
		code = websocket.StatusGoingAway
	}
	_ = s.conn.Close(code, string(f.Code))
	return &Answered{err}
}
