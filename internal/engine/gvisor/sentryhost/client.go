package sentryhost

import (
	"context"
	"encoding/json"
	"os"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/fdrpc"
)

// Client calls a sentry host. Safe for concurrent use; when the connection
// breaks, Done is closed and every call is Unavailable.
type Client struct {
	rpc  *fdrpc.Client
	Info HelloReply
}

// Events receives what the sentry host tells after Watch. The functions run in
// the connection's reader: they return soon.
type Events struct {
	Boot     func(sandbox.BootEvent)
	ShardEnd func(number int)
}

// Dial connects to the sentry host at a socket and agrees on the version: ours,
// or the one before.
func Dial(ctx context.Context, socket string, events Events) (*Client, error) {
	c, err := dial(ctx, socket, events, Version)
	if sandbox.CodeOf(err) == sandbox.Unsupported {
		return dial(ctx, socket, events, Version-1)
	}
	return c, err
}

func dial(ctx context.Context, socket string, events Events, version int) (*Client, error) {
	rpc, err := fdrpc.Dial(ctx, socket, func(method string, body json.RawMessage) {
		switch method {
		case EventBoot:
			var e sandbox.BootEvent
			if json.Unmarshal(body, &e) == nil && events.Boot != nil {
				events.Boot(e)
			}
		case EventShardEnd:
			var r ShardRequest
			if json.Unmarshal(body, &r) == nil && events.ShardEnd != nil {
				events.ShardEnd(r.Number)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	c := &Client{rpc: rpc}
	if _, err := rpc.Call(ctx, MethodHello, Hello{Version: version}, &c.Info); err != nil {
		rpc.Close()
		return nil, err
	}
	return c, nil
}

// Done is closed when the connection is gone.
func (c *Client) Done() <-chan struct{} { return c.rpc.Done() }

// Close ends the connection; Boots run on.
func (c *Client) Close() error { return c.rpc.Close() }

// Start starts a Boot with its end of a link; host is the other end, of which
// the sentry host keeps a copy. Both stay the caller's.
func (c *Client) Start(ctx context.Context, r StartRequest, guest, host *os.File) (reply StartReply, err error) {
	err = c.call(ctx, MethodStart, r, &reply, guest, host)
	return reply, err
}

// Stop ends a Boot and returns when nothing of it is left.
func (c *Client) Stop(ctx context.Context, id string) error {
	return c.call(ctx, MethodStop, BootRequest{ID: id}, nil)
}

// List returns the Boots that run.
func (c *Client) List(ctx context.Context) (boots []Boot, err error) {
	err = c.call(ctx, MethodList, struct{}{}, &boots)
	return boots, err
}

// Link returns a copy of the host's end of a Boot's link; the caller closes it.
func (c *Client) Link(ctx context.Context, id string) (*os.File, error) {
	files, err := c.rpc.Call(ctx, MethodLink, BootRequest{ID: id}, nil)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		for _, f := range files {
			f.Close()
		}
		return nil, sandbox.Errorf(sandbox.Internal, "the sentry host answered without a link")
	}
	return files[0], nil
}

// Keep gives the sentry host a copy of the host's end of a link, if it has none:
// one that took the Boot up from an earlier sentry host. The file stays the
// caller's.
func (c *Client) Keep(ctx context.Context, id string, host *os.File) error {
	return c.call(ctx, MethodKeep, BootRequest{ID: id}, nil, host)
}

// Usage reports what a Boot uses.
func (c *Client) Usage(ctx context.Context, id string) (u sandbox.Usage, err error) {
	err = c.call(ctx, MethodUsage, BootRequest{ID: id}, &u)
	return u, err
}

// Limit changes what a Boot may use; see sandbox.Engine.SetLimits.
func (c *Client) Limit(ctx context.Context, id string, limits sandbox.Limits) error {
	return c.call(ctx, MethodLimit, LimitRequest{ID: id, Limits: limits}, nil)
}

// Freeze stops a Boot; see sandbox.Pauser.
func (c *Client) Freeze(ctx context.Context, id string) error {
	return c.call(ctx, MethodFreeze, BootRequest{ID: id}, nil)
}

// Thaw lets a Boot go on.
func (c *Client) Thaw(ctx context.Context, id string) error {
	return c.call(ctx, MethodThaw, BootRequest{ID: id}, nil)
}

// Save saves a Boot. When ctx ends, that goes on all the same.
func (c *Client) Save(ctx context.Context, r SaveRequest) (s sandbox.Saved, err error) {
	err = c.call(ctx, MethodSave, r, &s)
	return s, err
}

// DeleteSaved removes a saved state, and waits for who makes it.
func (c *Client) DeleteSaved(ctx context.Context, name string) error {
	return c.call(ctx, MethodDelete, SavedRequest{Name: name}, nil)
}

// ListSaved returns the names of saved states.
func (c *Client) ListSaved(ctx context.Context) (names []string, err error) {
	err = c.call(ctx, MethodSaved, struct{}{}, &names)
	return names, err
}

// Export returns what a saved state consists of and its files, which the caller
// closes.
func (c *Client) Export(ctx context.Context, r ExportRequest) (p Proof, files []*os.File, err error) {
	files, err = c.rpc.Call(ctx, MethodExport, r, &p)
	return p, files, err
}

// Import makes a saved state of what comes through a pipe, of which the file is
// the reading end and stays the caller's. When ctx ends, that goes on until the
// pipe ends.
func (c *Client) Import(ctx context.Context, r ImportRequest, pipe *os.File) (s sandbox.Saved, err error) {
	err = c.call(ctx, MethodImport, r, &s, pipe)
	return s, err
}

// Share gives a saved state its group.
func (c *Client) Share(ctx context.Context, r ShareRequest) error {
	return c.call(ctx, MethodShare, r, nil)
}

// SetCache says how saved states are kept from now on.
func (c *Client) SetCache(ctx context.Context, r CacheRequest) error {
	return c.call(ctx, MethodCache, r, nil)
}

// Home tells whose sentry host can start from a saved state.
func (c *Client) Home(ctx context.Context, name string) (r HomeReply, err error) {
	err = c.call(ctx, MethodHome, SavedRequest{Name: name}, &r)
	return r, err
}

// Lend puts a saved state where the sentry host of an earlier build finds it.
func (c *Client) Lend(ctx context.Context, r LendRequest) error {
	return c.call(ctx, MethodLend, r, nil)
}

// Unlend takes back what was lent; nothing is a success. It waits for a Lend of the
// same that is under way.
func (c *Client) Unlend(ctx context.Context, r LendRequest) error {
	return c.call(ctx, MethodUnlend, r, nil)
}

// Collect takes a state that the sentry host of an earlier build saved.
func (c *Client) Collect(ctx context.Context, r LendRequest) (s sandbox.Saved, err error) {
	err = c.call(ctx, MethodCollect, r, &s)
	return s, err
}

// Shard starts link shard number n if it does not run and tells where it
// listens.
func (c *Client) Shard(ctx context.Context, n int) (r ShardReply, err error) {
	err = c.call(ctx, MethodShard, ShardRequest{Number: n}, &r)
	return r, err
}

// Shards returns the link shards that run.
func (c *Client) Shards(ctx context.Context) (r []ShardReply, err error) {
	err = c.call(ctx, MethodShards, struct{}{}, &r)
	return r, err
}

// Watch asks for events from now on.
func (c *Client) Watch(ctx context.Context) error {
	return c.call(ctx, MethodWatch, struct{}{}, nil)
}

// Down ends every Boot, every link shard and the sentry host.
func (c *Client) Down(ctx context.Context) error {
	return c.call(ctx, MethodDown, struct{}{}, nil)
}

func (c *Client) call(ctx context.Context, method string, body, reply any, files ...*os.File) error {
	got, err := c.rpc.Call(ctx, method, body, reply, files...)
	for _, f := range got {
		f.Close()
	}
	return err
}
