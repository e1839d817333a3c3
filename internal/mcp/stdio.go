package mcp

import (
	"context"
	"errors"
	"io"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// maxMessage bounds one message of a client in bytes, as over HTTP.
const maxMessage = int(catalogue.MCPMessage)

// ServeStdio serves one client over in and out until in or ctx ends. Then it cancels
// running calls and pauses the Sandbox. It closes neither in nor out.
func ServeStdio(ctx context.Context, c *client.Client, version string, set Set, o Options, in io.Reader, out io.Writer) error {
	session := newSession(c, o)
	connected, gone := context.WithCancel(ctx)
	defer gone()
	s := newServer(version, set, func(ctx context.Context, _ *sdk.CallToolRequest) (context.Context, *Session, context.CancelFunc, error) {
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(connected, cancel)
		return ctx, session, func() { stop(); cancel() }, nil
	})
	served := s.Run(ctx, &sdk.IOTransport{Reader: &untilEnd{in, gone}, Writer: nopCloser{out}, MaxLineLength: maxMessage})
	gone()
	left := session.leave(ctx, func(string) bool { return false })
	if ctx.Err() != nil || errors.Is(served, io.EOF) { // an intended end
		served = nil
	}
	return errors.Join(served, left)
}

// untilEnd is a Reader that calls ended at its end.
type untilEnd struct {
	io.Reader
	ended func()
}

func (r *untilEnd) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.ended()
	}
	return n, err
}

func (*untilEnd) Close() error { return nil }

// nopCloser is a Writer that ignores Close.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
