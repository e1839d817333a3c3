package gatewaytest

import (
	"cmp"
	"context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/guesttest"
	realguest "github.com/cloud-sandbox/cloud-sandbox/tests/guest"
)

// scripts imitates the programs of the suite, by their code.
var scripts = map[string]program{
	"true":              exits(execution.RunEnd{Status: execution.StatusOK}),
	"kill -TERM $$":     exits(execution.RunEnd{Status: execution.StatusKilled, Signal: int(unix.SIGTERM)}),
	"printf 0123456789": prints("0123456789", exits(execution.RunEnd{Status: execution.StatusOK})),
	"sleep 60":          waits,
	"echo x; sleep 60":  prints("x\n", waits),
	`read line; echo "$line $WORD"; pwd; echo problem >&2; exit 3`: func(_ context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
		line, _, _ := strings.Cut(string(req.Stdin), "\n")
		if err := handle(execution.RunEvent{Stdout: []byte(line + " " + req.Env["WORD"] + "\n" + cmp.Or(req.Cwd, home) + "\n")}); err != nil {
			return execution.RunEnd{}, err
		}
		return execution.RunEnd{Status: execution.StatusOK, ExitCode: 3}, handle(execution.RunEvent{Stderr: []byte("problem\n")})
	},
}

func exits(end execution.RunEnd) program {
	return func(context.Context, execution.RunRequest, func(execution.RunEvent) error) (execution.RunEnd, error) {
		return end, nil
	}
}

func prints(text string, then program) program {
	return func(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
		if err := handle(execution.RunEvent{Stdout: []byte(text)}); err != nil {
			return execution.RunEnd{}, err
		}
		return then(ctx, req, handle)
	}
}

func waits(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
	<-ctx.Done()
	return execution.RunEnd{}, ctx.Err()
}

// The guest of a Fixture passes the suite of a Guest's ports, with the Processes of a
// real Guest.
func TestGuest(t *testing.T) {
	guesttest.Run(t, func(t *testing.T) guesttest.World {
		g := newGuest()
		g.Scripts = scripts
		c, _ := realguest.Open(t)
		g.Processes, g.ProcessStreams = c, c
		return guesttest.World{Guest: g, Dir: home}
	})
}
