package link

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// Client calls a link shard. Methods are safe for concurrent use and do not wait for
// each other. When the connection breaks, Done is closed and every call is Unavailable:
// dial again then. Streams from DialGuest survive.
type Client struct {
	rpc *fdrpc.Client
}

// Dial connects to the shard at a socket, agrees on the version and sends the settings.
func Dial(ctx context.Context, socket string, settings Settings) (*Client, error) {
	rpc, err := fdrpc.Dial(ctx, socket, nil)
	if err != nil {
		return nil, err
	}
	c := &Client{rpc: rpc}
	if err := c.call(ctx, MethodHello, Hello{Version: Version, Settings: settings}, nil); err != nil {
		rpc.Close()
		return nil, fmt.Errorf("greet the link shard: %w", err)
	}
	return c, nil
}

// Done is closed when the connection is gone.
func (c *Client) Done() <-chan struct{} { return c.rpc.Done() }

// Close ends the connection; links stay.
func (c *Client) Close() error { return c.rpc.Close() }

// Add plugs in the link of a Boot. host stays the caller's: keep it, to plug the link
// into another shard when this one ends. An existing link is a Conflict; a full shard is
// Exhausted.
func (c *Client) Add(ctx context.Context, bootID string, host *os.File, policy sandbox.NetworkPolicy) error {
	return c.call(ctx, MethodAdd, AddRequest{BootID: bootID, Policy: policy}, nil, host)
}

// Remove unplugs a link, and returns its total traffic when the link is gone. A missing
// link is a success with zero traffic.
func (c *Client) Remove(ctx context.Context, bootID string) (last Traffic, err error) {
	err = c.call(ctx, MethodRemove, Ref{BootID: bootID}, &last)
	return last, err
}

// Traffic returns the traffic of each link. A shard of an earlier version is Unsupported.
func (c *Client) Traffic(ctx context.Context) (links []Traffic, err error) {
	err = c.call(ctx, MethodTraffic, struct{}{}, &links)
	return links, err
}

// List returns the links of the shard, by Boot ID.
func (c *Client) List(ctx context.Context) (links []Status, err error) {
	err = c.call(ctx, MethodList, struct{}{}, &links)
	return links, err
}

// Fetch returns a copy of the host's end of a link; the caller closes it.
func (c *Client) Fetch(ctx context.Context, bootID string) (*os.File, error) {
	return c.fetch(ctx, MethodFetch, Ref{BootID: bootID})
}

// SetPolicy changes the policy of a link. Before it returns, connections that the new
// policy forbids are cut.
func (c *Client) SetPolicy(ctx context.Context, bootID string, policy sandbox.NetworkPolicy) error {
	return c.call(ctx, MethodSetPolicy, PolicyRequest{BootID: bootID, Policy: policy}, nil)
}

// SetSecrets changes the headers that requests of a link's guest get, from the next
// request on, also on open connections.
func (c *Client) SetSecrets(ctx context.Context, bootID string, secrets sandbox.SecretBinding) error {
	return c.call(ctx, MethodSetSecrets, SecretsRequest{BootID: bootID, Secrets: secrets}, nil)
}

// SetBandwidth bounds the traffic of all connections of a link's guest together, per
// direction, in bytes per second, at once; zero: unlimited. A shard of an earlier version
// is Unsupported.
func (c *Client) SetBandwidth(ctx context.Context, bootID string, bytesPerSecond int64) error {
	return c.call(ctx, MethodBandwidth, BandwidthRequest{BootID: bootID, BytesPerSecond: bytesPerSecond}, nil)
}

// CloseAt has all links of the shard, also later ones, carry nothing from a time since the
// machine started on, by CLOCK_BOOTTIME; zero: never. The next call replaces the time; with
// keep, a time that is set already stays. A shard of an earlier version is Unsupported.
func (c *Client) CloseAt(ctx context.Context, at time.Duration, keep bool) error {
	return c.call(ctx, MethodCloseAt, CloseAtRequest{At: at, Keep: keep}, nil)
}

// Log returns the kept decisions of a link's policy.
func (c *Client) Log(ctx context.Context, bootID string) (log sandbox.NetworkLog, err error) {
	err = c.call(ctx, MethodLog, Ref{BootID: bootID}, &log)
	return log, err
}

// Stats reports on the shard as a whole.
func (c *Client) Stats(ctx context.Context) (s Stats, err error) {
	err = c.call(ctx, MethodStats, struct{}{}, &s)
	return s, err
}

// DialGuest connects from the gateway's address to a TCP port of the guest. A refused
// connection is Unavailable, no answer in time is Timeout (after ctx's deadline or
// DialTimeout). The connection is a *net.UnixConn, so it can be half closed; the guest's
// reset is seen as its end.
func (c *Client) DialGuest(ctx context.Context, bootID string, port uint16) (net.Conn, error) {
	req := DialRequest{BootID: bootID, Port: port}
	if deadline, ok := ctx.Deadline(); ok {
		req.Timeout = max(time.Until(deadline), time.Millisecond)
	}
	f, err := c.fetch(ctx, MethodDial, req)
	if err != nil {
		return nil, err
	}
	defer f.Close() // FileConn has a copy of its own
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use the stream to the guest: %w", err)
	}
	return conn, nil
}

// fetch calls a method that answers with one file.
func (c *Client) fetch(ctx context.Context, method string, body any) (*os.File, error) {
	files, err := c.rpc.Call(ctx, method, body, nil)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		closeAll(files)
		return nil, sandbox.Errorf(sandbox.Internal, "the link shard answered %s with %d files", method, len(files))
	}
	return files[0], nil
}

func (c *Client) call(ctx context.Context, method string, body, reply any, files ...*os.File) error {
	got, err := c.rpc.Call(ctx, method, body, reply, files...)
	closeAll(got)
	return err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
