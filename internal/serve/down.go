package serve

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlite"
)

// RecordDown records that the operator ended every Sandbox of a data folder whose server
// has stopped and that has no running Boots; it returns their number. Sandboxes on other
// hosts that the same database lists go on. It gives up root for good before it opens the
// database, whose files are the server's.
func RecordDown(ctx context.Context, layout launch.Layout) (int, error) {
	file := databaseFile(layout)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err := launch.BecomeServer(); err != nil {
		return 0, err
	}
	holder, err := node.Holder(layout.Node())
	if err != nil {
		return 0, err
	}
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return 0, err
	}
	n, err := session.New(store, nothingRuns{}, nil, nil, session.Config{
		Ended: func(ctx context.Context, sb sandbox.Sandbox) { auditEnd(ctx, store, slog.Default(), sb) },
	}).EndAll(ctx, holder, sandbox.CauseOperator)
	return n, errors.Join(err, store.Close())
}

// databaseFile is the path of the server's database.
func databaseFile(layout launch.Layout) string {
	return filepath.Join(layout.Server(), "cloud-sandbox.db")
}

// nothingRuns is the Nodes of an installation that is down.
type nothingRuns struct{ sandbox.Nodes }

func (nothingRuns) Boots(context.Context, string) ([]sandbox.BoundBoot, error) { return nil, nil }

func (nothingRuns) Traffic(context.Context, string) ([]sandbox.BootTraffic, error) { return nil, nil }

func (nothingRuns) Stop(context.Context, string, string, time.Duration) error { return nil }
