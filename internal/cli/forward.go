package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// forwards is a flag LOCAL:PORT, or PORT for both, that may be given several times.
type forwards []forward

// forward is a local port that leads to one in a sandbox.
type forward struct{ local, port uint16 }

func (f *forwards) String() string { return "" }
func (f *forwards) Type() string   { return "LOCAL:PORT" }

func (f *forwards) Set(text string) error {
	local, inside, both := strings.Cut(text, ":")
	if !both {
		inside = local
	}
	l, wrong := strconv.ParseUint(local, 10, 16)
	p, err := strconv.ParseUint(inside, 10, 16)
	if wrong != nil || err != nil || p == 0 {
		return fmt.Errorf("write it as LOCAL:PORT, or as PORT for both; LOCAL may be 0 for any that is free")
	}
	*f = append(*f, forward{uint16(l), uint16(p)})
	return nil
}

// forwardPorts forwards connections from local ports into a sandbox, until the
// command is interrupted.
func forwardPorts(cmd *cobra.Command, c *client.Client, id, address string, all forwards) error {
	s, err := c.Get(cmd.Context(), id) // reports an error before the first connection
	if err != nil {
		return err
	}
	f := &forwarder{cmd: cmd, client: c, sandbox: s.ID}
	var listeners []net.Listener
	defer func() {
		for _, ln := range listeners {
			ln.Close()
		}
		f.wait.Wait()
	}()
	for _, to := range all {
		ln, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(to.local))))
		if err != nil {
			return err
		}
		listeners = append(listeners, ln)
		if err := f.announce(ln, to.port); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	for i, ln := range listeners {
		f.wait.Go(func() { stop(f.accept(ctx, ln, all[i].port)) })
	}
	<-ctx.Done()
	if cmd.Context().Err() != nil {
		return nil // the intended end
	}
	return context.Cause(ctx)
}

// forwarder forwards connections to one sandbox.
type forwarder struct {
	cmd     *cobra.Command
	client  *client.Client
	sandbox string
	wait    sync.WaitGroup // for its goroutines
	says    sync.Mutex     // serializes writes to the command's outputs
}

// announce prints the local address of a port.
func (f *forwarder) announce(ln net.Listener, port uint16) error {
	if !wantsJSON(f.cmd) {
		_, err := fmt.Fprintf(f.cmd.OutOrStdout(), "%s -> %d\n", ln.Addr(), port)
		return err
	}
	return json.NewEncoder(f.cmd.OutOrStdout()).Encode(struct {
		Address string `json:"address"`
		Port    uint16 `json:"port"`
	}{ln.Addr().String(), port})
}

// accept forwards each connection of ln, which is closed with ctx.
func (f *forwarder) accept(ctx context.Context, ln net.Listener, port uint16) error {
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		f.wait.Go(func() {
			defer conn.Close()
			if err := f.carry(ctx, conn.(*net.TCPConn), port); err != nil && ctx.Err() == nil {
				f.says.Lock()
				defer f.says.Unlock()
				fmt.Fprintf(f.cmd.ErrOrStderr(), "cloud-sandbox: port %d: %s\n", port, clean(sentence(err)))
			}
		})
	}
}

// carry joins a local connection to one in the sandbox until both have ended.
func (f *forwarder) carry(ctx context.Context, conn *net.TCPConn, port uint16) error {
	inside, err := f.client.Connect(ctx, f.sandbox, port)
	if err != nil {
		return err
	}
	defer inside.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		if !sendAll(ctx, inside, conn) {
			cancel()
		}
	})
	err = receiveAll(ctx, conn, inside)
	if err != nil || conn.CloseWrite() != nil {
		cancel() // one side has left: end the other
	}
	sending.Wait()
	cancel()
	return err
}

// sendAll sends the local input and its end into the sandbox. It reports whether it
// reached that end.
func sendAll(ctx context.Context, inside *client.Connection, conn net.Conn) bool {
	piece := make([]byte, 64<<10)
	for {
		n, err := conn.Read(piece)
		if n > 0 && inside.Write(ctx, piece[:n]) != nil {
			return false
		}
		switch {
		case errors.Is(err, io.EOF):
			return inside.CloseWrite(ctx) == nil
		case err != nil:
			return false
		}
	}
}

// receiveAll writes bytes from the sandbox to conn. A conn that is closed, or the end
// of ctx, is no failure.
func receiveAll(ctx context.Context, conn net.Conn, inside *client.Connection) error {
	for {
		data, err := inside.Read(ctx)
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if _, err := conn.Write(data); err != nil {
			conn.Close()
			return nil
		}
	}
}
