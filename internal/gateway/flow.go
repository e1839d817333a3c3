package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/linger"
	"github.com/cloud-sandbox/cloud-sandbox/internal/mcp"
)

// writer remembers the status and gives each write its own deadline: a stream may last
// for hours, but a client that stops reading is disconnected.
//
// The audit entry is written before the first byte of the answer. When it cannot be
// written, no answer is sent.
type writer struct {
	http.ResponseWriter
	flow       *http.ResponseController
	audit      *auditing // nil: nothing is recorded
	body       *body     // of the request; nil: it has none, or nothing looked at it
	failure    error     // the error that the answer reports; nil: none
	unrecorded error     // the entry could not be written
	status     int       // 0: nothing has been written
	sent       int64     // bytes of the answer's body
	gone       bool      // a write or flush failed: the client is gone
}

// begin begins an answer with a status, unless it has begun. It reports whether
// anything may be sent.
func (w *writer) begin(code int) bool {
	if w.audit != nil && w.status == 0 && w.unrecorded == nil {
		w.unrecorded = w.audit.record(code, w.failure)
	}
	if w.unrecorded != nil {
		return false
	}
	if w.status == 0 {
		w.status = code
	}
	return true
}

// Fails sets, before the answer begins, the error that it reports.
func (w *writer) Fails(err error) { w.failure = err }

func (w *writer) WriteHeader(code int) {
	if w.begin(code) {
		w.ResponseWriter.WriteHeader(code)
	}
}

func (w *writer) Write(p []byte) (int, error) {
	if !w.begin(http.StatusOK) {
		return 0, w.unrecorded
	}
	// Each piece has its own deadline: a slow reader is served, and a client that stops
	// reading is disconnected.
	written := 0
	for {
		piece := p[written:min(len(p), written+maxPiece)]
		_ = w.flow.SetWriteDeadline(time.Now().Add(stalledTime)) // not all writers can
		n, err := w.ResponseWriter.Write(piece)
		w.gone = w.gone || err != nil
		w.sent += int64(n)
		if written += n; err != nil || written >= len(p) {
			return written, err
		}
	}
}

// FlushError sends all that has been written so far.
func (w *writer) FlushError() error {
	if !w.begin(http.StatusOK) {
		return w.unrecorded
	}
	err := w.flow.Flush()
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	w.gone = w.gone || err != nil
	return err
}

// send flushes a complete answer at once, instead of when the handler returns.
func (w *writer) send() {
	if w.status != 0 && !w.gone && w.Header().Get("Content-Length") == strconv.FormatInt(w.sent, 10) {
		_ = w.FlushError() // an error means that the client is gone
	}
}

// Hijack hands the connection to a handler that continues without HTTP.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.unrecorded != nil {
		return nil, nil, w.unrecorded
	}
	return w.flow.Hijack()
}

// closeUnread lets a client read the answer to a request whose body was not read to its
// end, in the cases in which net/http's server would close the connection too early.
func (w *writer) closeUnread(r *http.Request) {
	if b := w.body; b != nil && !b.ended && r.ProtoMajor == 1 && (b.cut || expects(r)) {
		linger.Close(w.ResponseWriter)
	}
}

// expects reports whether a client asks first whether to send its body. net/http's
// server then closes the connection as soon as it has answered, but not every such
// client waits before it sends.
func expects(r *http.Request) bool { return r.Header.Get("Expect") != "" }

// Unwrap lets http.ResponseController find the deadlines.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// body is a request's body with a bound on its size and on the time that its sender
// takes. Time that the reader spends elsewhere does not count.
type body struct {
	io.ReadCloser
	w   *writer
	max int64 // bytes; negative: no bound
	// whole is the most bytes that its reader gathers in memory; zero: it passes the body on,
	// or counts it for itself.
	whole   int64
	release func()          // gives back the memory that counts for the body
	ctx     context.Context // of the request
	read    int64
	waited  time.Duration
	ended   bool // it was read to its end, or failed
	cut     bool // a read timed out
}

// newBody bounds the body of r. It returns TooLarge when the Content-Length exceeds the
// bound.
func newBody(w *writer, r *http.Request, max int64) (io.ReadCloser, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return http.NoBody, nil
	}
	b := &body{ReadCloser: r.Body, w: w, max: max, ctx: r.Context(), release: func() {}}
	if max >= 0 && r.ContentLength > max {
		return nil, b.tooLarge()
	}
	w.body = b
	// For the part that the handler leaves unread: the server reads it afterwards.
	_ = w.flow.SetReadDeadline(time.Now().Add(stalledTime)) // not all writers can
	return b, nil
}

// bodyCopies is the memory that a body takes while it arrives, in multiples of its size: the
// buffer into which it is read, and a larger one when that grows.
const bodyCopies = 2

// gather says that the reader of the body of r gathers all of it in memory, most bytes if its
// length is not known. Then it counts as memory of its Tenant while it arrives, from the moment
// that it has more than spool.Small bytes. So a client cannot make the server hold much by
// sending all of many bodies but their ends. A request that holds more while it waits for
// memory, such as a call of MCP for one of its tools, could wait for itself: it counts for the
// message of MCP.
func (b *body) gather(r *http.Request, most int64) {
	if mcp.Caller(b.ctx) != nil {
		return
	}
	b.whole = max(most, 0)
	if r.ContentLength >= 0 {
		b.whole = min(b.whole, r.ContentLength)
	}
}

// hold counts the body as memory once it is large.
func (b *body) hold() (err error) {
	if b.whole <= spool.Small || b.read <= spool.Small {
		return nil
	}
	release, err := spool.Hold(b.ctx, bodyCopies*b.whole)
	b.whole = 0
	if err != nil {
		b.cut = true
		b.w.Header().Set("Connection", "close")
		return err
	}
	b.release = sync.OnceFunc(release)
	return nil
}

func (b *body) tooLarge() error {
	b.w.Header().Set("Connection", "close")
	if b.max == 0 {
		return sandbox.Errorf(sandbox.Invalid, "this request takes no body")
	}
	return sandbox.Errorf(sandbox.TooLarge, "the body has more than %d bytes", b.max)
}

// Read fails with TooLarge beyond the bound and with Invalid when the sender is too
// slow.
func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if b.max >= 0 && int64(len(p)) > b.max-b.read+1 {
		p = p[:b.max-b.read+1] // one more byte than allowed shows that there is more
	}
	start := time.Now()
	patience := stalledTime + time.Duration(b.read/minRate)*time.Second - b.waited
	_ = b.w.flow.SetReadDeadline(start.Add(min(patience, stalledTime))) // not all writers can
	n, err := b.ReadCloser.Read(p)
	b.waited += time.Since(start)
	b.read += int64(n)
	switch {
	case b.max >= 0 && b.read > b.max:
		return 0, b.tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.cut = true
		b.w.Header().Set("Connection", "close")
		return n, sandbox.Errorf(sandbox.Invalid, "the body came too slowly").WithCause(err)
	}
	if err == nil {
		err = b.hold()
	}
	if err != nil {
		b.release()
	}
	if err != nil && !b.ended && !b.cut {
		b.ended = true
		// From here on the server watches the connection, without a deadline.
		_ = b.w.flow.SetReadDeadline(time.Time{}) // not all writers can
	}
	return n, err
}
