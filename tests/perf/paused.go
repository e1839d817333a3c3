package perf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

// measurePaused measures a server that keeps n paused Sandboxes. Some are real, and
// the others are copied records that share the saved state of a real one.
func measurePaused(ctx context.Context, o options, n rounds, report *bench.Report, rivals *rivals) error {
	server, err := startServer(ctx, o, 0, 0)
	if err != nil {
		return err
	}
	defer func() { server.stop() }()
	meter := rivals.meter(server, report, 0)
	ids, err := meter.Paused(ctx, n.Storm)
	if err != nil {
		return err
	}
	if _, err := server.client.List(ctx, nil, nil, 100); err != nil {
		return err
	}
	few, err := server.memory()
	if err != nil {
		return err
	}
	if err := server.quit(); err != nil {
		return err
	}
	if err := copyRecord(ctx, server.data, ids[0], n.paused-len(ids)); err != nil {
		return err
	}
	if server, err = startServer(ctx, o, 0, 0); err != nil {
		return err
	}
	meter.Client = server.client
	if err := meter.Listed(ctx, n.paused, n.Calls); err != nil {
		return err
	}
	many, err := server.memory()
	if err != nil {
		return err
	}
	report.AddFact(bench.Fact{
		What: fmt.Sprintf("memory that the server has more with %d paused sandboxes than with %d", n.paused, n.Storm),
		Who:  bench.Ours, Value: float64((many - few) >> 20), Unit: "MiB",
	})
	return meter.Storm(ctx, ids)
}

// copyRecord adds n copies of a paused Sandbox to the store of a server that does not
// run.
func copyRecord(ctx context.Context, data, id string, n int) error {
	files, err := filepath.Glob(filepath.Join(data, "*", "cloud-sandbox.db"))
	if err != nil || len(files) != 1 {
		return errors.Join(err, fmt.Errorf("%s has %d databases", data, len(files)))
	}
	store, err := sqlstore.OpenSQLite(ctx, files[0])
	if err != nil {
		return err
	}
	sb, err := store.SandboxByID(ctx, id)
	for range n {
		if err != nil {
			break
		}
		sb.ID, sb.Boot.Number = sandbox.NewSandboxID(), 1
		_, err = store.InsertSandbox(ctx, sb)
	}
	return errors.Join(err, store.Close())
}

// quit ends the server's process and keeps its data.
func (s *server) quit() error {
	s.client.Close()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return s.cmd.Wait()
}

// memory is the memory of the server's processes, without the sentry host and the
// link shards, which are not its children.
func (s *server) memory() (int64, error) {
	var total int64
	for pids := []string{strconv.Itoa(s.cmd.Process.Pid)}; len(pids) > 0; pids = pids[1:] {
		status, err := os.ReadFile(filepath.Join("/proc", pids[0], "status"))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
				var kib int64
				if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
					return 0, err
				}
				total += kib << 10
			}
		}
		children, err := filepath.Glob(filepath.Join("/proc", pids[0], "task", "*", "children"))
		if err != nil {
			return 0, err
		}
		for _, file := range children {
			list, err := os.ReadFile(file)
			if err != nil {
				return 0, err
			}
			pids = append(pids, strings.Fields(string(list))...)
		}
	}
	return total, nil
}
