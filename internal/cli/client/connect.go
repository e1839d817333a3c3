package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Connection is a TCP connection to a port in a Sandbox. One goroutine may read
// and another write. Close it.
type Connection struct{ conn *websocket.Conn }

// Connect connects to a port, even one that listens only on the Sandbox's loopback.
func (c *Client) Connect(ctx context.Context, id string, port uint16) (*Connection, error) {
	token, err := c.bearer(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := c.socket(ctx, "/api/v1/sessions/"+url.PathEscape(id)+"/ports/"+strconv.Itoa(int(port))+"/connect", token)
	if err != nil {
		return nil, err
	}
	return &Connection{conn}, nil
}

// connectMessage is a control message; bytes travel in messages of their own.
type connectMessage struct {
	Type  string `json:"type"`
	Error *struct {
		Code    sandbox.Code `json:"code"`
		Message string       `json:"message"`
	} `json:"error,omitempty"`
}

// Read returns the next bytes, and io.EOF after the last.
func (c *Connection) Read(ctx context.Context) ([]byte, error) {
	kind, data, err := c.conn.Read(ctx)
	if err != nil {
		var closed websocket.CloseError
		if errors.As(err, &closed) && closed.Code == websocket.StatusNormalClosure {
			return nil, io.EOF
		}
		return nil, lost(ctx, err)
	}
	if kind == websocket.MessageBinary {
		return data, nil
	}
	var m connectMessage
	if err := parse(data, &m); err != nil {
		return nil, err
	}
	if m.Error != nil {
		return nil, sandbox.Errorf(m.Error.Code, "%s", m.Error.Message)
	}
	_ = c.conn.CloseRead(ctx) // which answers pings
	return nil, io.EOF
}

// Write sends bytes, at most 256 KiB.
func (c *Connection) Write(ctx context.Context, data []byte) error {
	if err := c.conn.Write(ctx, websocket.MessageBinary, data); err != nil {
		return lost(ctx, err)
	}
	return nil
}

// CloseWrite closes the sending side.
func (c *Connection) CloseWrite(ctx context.Context) error {
	data, err := json.Marshal(connectMessage{Type: "eof"})
	if err != nil {
		return err
	}
	if err := c.conn.Write(ctx, websocket.MessageText, data); err != nil {
		return lost(ctx, err)
	}
	return nil
}

// Close ends the connection.
func (c *Connection) Close() { _ = c.conn.CloseNow() }
