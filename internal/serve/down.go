package serve

import (
	"context"
	"errors"
	"log/slog"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

// RecordDown records that the operator ended every Sandbox of a data folder whose server
// has stopped and that has no running Boots; it returns their number. Sandboxes on other
// hosts that the same database lists go on. It gives up root for good before it opens the
// database, whose files are the server's.
func RecordDown(ctx context.Context, layout launch.Layout) (int, error) {
	if !hasDatabase(layout) {
		return 0, nil
	}
	if err := launch.BecomeServer(); err != nil {
		return 0, err
	}
	holder, err := node.Holder(layout.Node())
	if err != nil {
		return 0, err
	}
	if kept, err := keptAddress(layout); err != nil || kept.address != "" && holder == "" {
		return 0, err // no Node ran here, and those elsewhere go on
	}
	store, err := openDatabase(ctx, layout)
	if err != nil {
		return 0, err
	}
	n, err := session.New(store, nothingRuns{}, nil, nil, session.Config{
		Ended: func(ctx context.Context, sb sandbox.Sandbox) { auditEnd(ctx, store, slog.Default(), sb) },
	}).EndAll(ctx, holder, sandbox.CauseOperator)
	return n, errors.Join(err, store.Close())
}

// nothingRuns is the Nodes of an installation that is down.
type nothingRuns struct{ sandbox.Nodes }

func (nothingRuns) Boots(context.Context, string) ([]sandbox.BoundBoot, error) { return nil, nil }

func (nothingRuns) Traffic(context.Context, string) ([]sandbox.BootTraffic, error) { return nil, nil }

func (nothingRuns) Stop(context.Context, string, string, time.Duration) error { return nil }
