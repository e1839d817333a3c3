package fdrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Client calls one server. Its methods are safe for concurrent use. When the connection
// breaks, every call in flight and every later one fails with Unavailable, and Done is
// closed; dial again then.
type Client struct {
	conn    *net.UnixConn
	onEvent func(method string, body json.RawMessage)
	done    chan struct{}

	mu      sync.Mutex
	nextID  uint64
	waiting map[uint64]chan answer
	broken  error
}

type answer struct {
	message
	files []*os.File
}

// Dial connects to the socket at path. onEvent, which may be nil, is called for
// each event, in order, and delays answers while it runs.
func Dial(ctx context.Context, path string, onEvent func(method string, body json.RawMessage)) (*Client, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "a local service is not running").WithCause(err)
	}
	conn := c.(*net.UnixConn)
	if err := tune(conn); err != nil {
		conn.Close()
		return nil, err
	}
	client := &Client{conn: conn, onEvent: onEvent, done: make(chan struct{}), waiting: map[uint64]chan answer{}}
	go client.read()
	return client, nil
}

// Done is closed when the connection is broken or closed.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close breaks the connection and waits for its reader.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}

// Call sends a request with files, which stay the caller's, and waits for the answer.
// reply, when not nil, receives the answer's body. The answer's files are returned
// and are the caller's to close. When ctx ends first, the call may still be carried
// out; a call whose ctx had ended before is not sent.
func (c *Client) Call(ctx context.Context, method string, body, reply any, files ...*os.File) ([]*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", method, err)
	}
	id, ch, err := c.register()
	if err != nil {
		return nil, err
	}
	if err := send(c.conn, message{ID: id, Method: method, Body: raw}, files); err != nil {
		c.forget(id)
		if sandbox.CodeOf(err) == sandbox.TooLarge {
			return nil, err
		}
		c.conn.Close()
		select {
		case <-c.done: // so that a caller that gets this error finds Done closed
		case <-ctx.Done():
		}
		return nil, unavailable(err)
	}
	select {
	case a, ok := <-ch:
		if !ok {
			return nil, unavailable(c.cause())
		}
		return a.decode(reply)
	case <-ctx.Done():
		c.forget(id)
		select {
		case a := <-ch: // it arrived before forget
			closeAll(a.files)
		default:
		}
		return nil, ctx.Err()
	}
}

func (a answer) decode(reply any) ([]*os.File, error) {
	err := error(nil)
	switch {
	case a.Error != nil:
		err = a.Error.err()
	case reply != nil:
		err = json.Unmarshal(a.Body, reply)
	}
	if err != nil {
		closeAll(a.files)
		return nil, err
	}
	return a.files, nil
}

func (c *Client) register() (uint64, chan answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return 0, nil, unavailable(c.broken)
	}
	c.nextID++
	ch := make(chan answer, 1)
	c.waiting[c.nextID] = ch
	return c.nextID, ch, nil
}

// forget stops waiting for an answer: after it nothing is sent on the call's channel.
func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

func (c *Client) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

func (c *Client) read() {
	r := newReceiver(c.conn)
	for {
		m, files, err := r.next()
		if err != nil {
			c.fail(err)
			return
		}
		if m.ID == 0 {
			closeAll(files)
			if c.onEvent != nil {
				c.onEvent(m.Method, m.Body)
			}
			continue
		}
		c.deliver(answer{m, files})
	}
}

// deliver passes an answer to its caller, or closes its files when the caller no
// longer waits.
func (c *Client) deliver(a answer) {
	c.mu.Lock()
	ch := c.waiting[a.ID]
	delete(c.waiting, a.ID)
	if ch != nil {
		ch <- a // has room for one, and an ID is answered once
	}
	c.mu.Unlock()
	if ch == nil {
		closeAll(a.files)
	}
}

func (c *Client) fail(err error) {
	c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = err
	close(c.done) // before any call in flight returns
	for id, ch := range c.waiting {
		delete(c.waiting, id)
		close(ch)
	}
}

func unavailable(cause error) error {
	if errors.Is(cause, net.ErrClosed) {
		cause = errors.New("the connection is closed")
	}
	return sandbox.Errorf(sandbox.Unavailable, "a local service went away").WithCause(cause)
}
