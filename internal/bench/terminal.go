package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// echoTime is the timeout for a key's echo.
const echoTime = 30 * time.Second

// Echo measures the time from sending a key over a WebSocket until the terminal of a
// Process shows it: the delay that a person at a shell feels.
func (m *Meter) Echo(ctx context.Context, operation, goal string, n int) error {
	return m.within(ctx, func(id string) error {
		p, err := m.Client.Start(ctx, v1.StartProcessRequest{Target: v1.Target{SandboxID: id}, Argv: []string{"cat"}, Background: true, PTY: &v1.TerminalSize{Cols: 80, Rows: 24}})
		if err != nil {
			return err
		}
		a, err := m.Client.Attach(ctx, id, p.ID, client.AttachOptions{})
		if err != nil {
			return err
		}
		defer a.Close()
		key := byte('a')
		return m.Rounds(ctx, operation, goal, n, func(ctx context.Context) (time.Duration, error) {
			key = 'a' + (key-'a'+1)%26
			return timed(func() error { return echo(ctx, a, key) })
		})
	})
}

// echo sends a key and waits until it is shown.
func echo(ctx context.Context, a *client.Attached, key byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, echoTime, errors.New("the terminal does not echo"))
	defer cancel()
	if err := a.Input(ctx, []byte{key}); err != nil {
		return err
	}
	for {
		e, err := a.Next(ctx)
		switch {
		case err != nil:
			return err
		case bytes.IndexByte(e.Output, key) >= 0:
			return nil
		case e.Type == "end" || e.Type == "error":
			return fmt.Errorf("the terminal said %q", e.Type)
		}
	}
}
