package sentryhost

import (
	"context"
	"encoding/json"
	"os"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// Client calls a sentry host. Safe for concurrent use; when the connection
// breaks, Done is closed and every call is Unavailable.
type Client struct {
	rpc  *fdrpc.Client
	Info HelloReply
}

// Events receives the sentry host's events after Watch. The functions run in the
// connection's reader, so they must return soon.
type Events struct {
	Boot     func(sandbox.BootEvent)
	ShardEnd func(number int)
}

// Dial connects to the sentry host at a socket and agrees on the protocol version: ours
// or the previous one.
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

// Close ends the connection; Boots keep running.
func (c *Client) Close() error { return c.rpc.Close() }

// Start starts a Boot with the guest's end of a link. The sentry host keeps a copy of the
// host's end. Both files stay the caller's.
func (c *Client) Start(ctx context.Context, r StartRequest, guest, host *os.File) (reply StartReply, err error) {
	err = c.call(ctx, MethodStart, r, &reply, guest, host)
	return reply, err
}

// Stop ends a Boot and returns when everything of it is removed.
func (c *Client) Stop(ctx context.Context, id string) error {
	return c.call(ctx, MethodStop, BootRequest{ID: id}, nil)
}

// List returns the running Boots.
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

// ReturnLink gives the sentry host a copy of the host's end of a link, if it has none because
// it adopted the Boot from an earlier sentry host. The file stays the caller's.
func (c *Client) ReturnLink(ctx context.Context, id string, host *os.File) error {
	return c.call(ctx, MethodReturnLink, BootRequest{ID: id}, nil, host)
}

// Usage reports the resource usage of a Boot.
func (c *Client) Usage(ctx context.Context, id string) (u sandbox.Usage, err error) {
	err = c.call(ctx, MethodUsage, BootRequest{ID: id}, &u)
	return u, err
}

// Limit changes the limits of a Boot; see sandbox.Engine.SetLimits.
func (c *Client) Limit(ctx context.Context, id string, limits sandbox.Limits) error {
	return c.call(ctx, MethodLimit, LimitRequest{ID: id, Limits: limits}, nil)
}

// Freeze stops a Boot; see sandbox.Pauser.
func (c *Client) Freeze(ctx context.Context, id string) error {
	return c.call(ctx, MethodFreeze, BootRequest{ID: id}, nil)
}

// Thaw continues a frozen Boot.
func (c *Client) Thaw(ctx context.Context, id string) error {
	return c.call(ctx, MethodThaw, BootRequest{ID: id}, nil)
}

// Save saves a Boot. The save continues when ctx ends.
func (c *Client) Save(ctx context.Context, r SaveRequest) (s sandbox.Saved, err error) {
	err = c.call(ctx, MethodSave, r, &s)
	return s, err
}

// DeleteSaved removes a saved state. It waits for a save or import of the same name.
func (c *Client) DeleteSaved(ctx context.Context, name string) error {
	return c.call(ctx, MethodDelete, SavedRequest{Name: name}, nil)
}

// ListSaved returns the names of saved states.
func (c *Client) ListSaved(ctx context.Context) (names []string, err error) {
	err = c.call(ctx, MethodSaved, struct{}{}, &names)
	return names, err
}

// Export returns the Proof of a saved state and its files, which the caller closes.
func (c *Client) Export(ctx context.Context, r ExportRequest) (p Proof, files []*os.File, err error) {
	files, err = c.rpc.Call(ctx, MethodExport, r, &p)
	return p, files, err
}

// Import makes a saved state from the bytes of a pipe. The file is the pipe's reading end
// and stays the caller's. When ctx ends, the import continues until the pipe ends.
func (c *Client) Import(ctx context.Context, r ImportRequest, pipe *os.File) (s sandbox.Saved, err error) {
	err = c.call(ctx, MethodImport, r, &s, pipe)
	return s, err
}

// Arrive makes a saved state whose pages follow on a connection, of which the file is the
// sentry host's end; the file stays the caller's.
func (c *Client) Arrive(ctx context.Context, r ImportRequest, conn *os.File) (a ArriveReply, err error) {
	err = c.call(ctx, MethodArrive, r, &a, conn)
	return a, err
}

// Arrived waits until all of the state that a Boot started from has arrived.
func (c *Client) Arrived(ctx context.Context, id string) error {
	return c.call(ctx, MethodArrived, BootRequest{ID: id}, nil)
}

// Admit checks whether a state would be imported, before its files are sent.
func (c *Client) Admit(ctx context.Context, r ImportRequest) (a AdmitReply, err error) {
	err = c.call(ctx, MethodAdmit, r, &a)
	return a, err
}

// BringBuild makes the programs of an earlier build available from the bytes of a pipe. The
// file is the pipe's reading end and stays the caller's. A build that is here already needs
// no bytes.
func (c *Client) BringBuild(ctx context.Context, r BuildRequest, pipe *os.File) error {
	return c.call(ctx, MethodBuild, r, nil, pipe)
}

// SetBuildKey says which key signs the builds of the cluster.
func (c *Client) SetBuildKey(ctx context.Context, b installation.BuildKey) error {
	return c.call(ctx, MethodBuildKey, b, nil)
}

// Share assigns a saved state to a group.
func (c *Client) Share(ctx context.Context, r ShareRequest) error {
	return c.call(ctx, MethodShare, r, nil)
}

// SetCache sets how saved states are kept from now on.
func (c *Client) SetCache(ctx context.Context, r CacheRequest) error {
	return c.call(ctx, MethodCache, r, nil)
}

// Home returns the build whose sentry host can start from a saved state.
func (c *Client) Home(ctx context.Context, name string) (r HomeReply, err error) {
	err = c.call(ctx, MethodHome, SavedRequest{Name: name}, &r)
	return r, err
}

// ShareWithEarlier puts a saved state where the sentry host of an earlier build finds it.
func (c *Client) ShareWithEarlier(ctx context.Context, r EarlierRequest) error {
	return c.call(ctx, MethodShareWithEarlier, r, nil)
}

// RevokeFromEarlier undoes ShareWithEarlier; without one it succeeds. It waits for a
// concurrent ShareWithEarlier of the same state.
func (c *Client) RevokeFromEarlier(ctx context.Context, r EarlierRequest) error {
	return c.call(ctx, MethodRevokeFromEarlier, r, nil)
}

// ImportFromEarlier takes a state that the sentry host of an earlier build saved.
func (c *Client) ImportFromEarlier(ctx context.Context, r EarlierRequest) (s sandbox.Saved, err error) {
	err = c.call(ctx, MethodImportFromEarlier, r, &s)
	return s, err
}

// Shard starts link shard number n unless it runs, and returns its socket.
func (c *Client) Shard(ctx context.Context, n int) (r ShardReply, err error) {
	err = c.call(ctx, MethodShard, ShardRequest{Number: n}, &r)
	return r, err
}

// Shards returns the running link shards.
func (c *Client) Shards(ctx context.Context) (r []ShardReply, err error) {
	err = c.call(ctx, MethodShards, struct{}{}, &r)
	return r, err
}

// Watch subscribes to events from now on.
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
