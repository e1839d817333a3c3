package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

// RecordDown records that the operator ended every Sandbox of a data folder whose server
// has stopped and that has no running Boots; it returns their number. Sandboxes of
// other hosts in the same database keep running. It gives up root for good before it
// opens the database, whose files are the server's.
func RecordDown(ctx context.Context, layout launch.Layout) (int, error) {
	if !hasDatabase(layout) && !hasAccess(layout) {
		return 0, nil
	}
	if err := launch.BecomeServer(); err != nil {
		return 0, err
	}
	holder, err := node.Holder(layout.Node())
	if err != nil {
		return 0, err
	}
	access, err := readAccess(layout)
	if err != nil {
		return 0, err
	}
	if access.isUsed(layout) {
		return access.reportDown(ctx, holder)
	}
	if kept, err := keptAddress(layout); err != nil || holder == "" && kept.address != "" {
		return 0, err // no node has run here, and the Sandboxes of that database run elsewhere
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

// ErrManagersAway is the Cause when no session manager could record the Sandboxes that
// a Node's operator ended: none answers, or none leads. A session manager records their
// ends when the Node has started again, or has been away for a day.
var ErrManagersAway = errors.New("no session-manager records it")

// reportDown is RecordDown for a Node: the session manager records the ends.
func (a nodeAccess) reportDown(ctx context.Context, holder string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	self, err := a.self()
	if err != nil {
		return 0, err
	}
	records := rpc.NewNodeRecords(a.SessionManagers, self)
	defer records.Close()
	leader := rpc.NewLeader(leaderAt(a.SessionManagers[0], records.LeaderOf), self)
	defer leader.Close()
	n, err := leader.NodeEnded(ctx, a.Node, holder)
	if errors.Is(err, sandbox.Unavailable) || errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w at %s: %w", ErrManagersAway, strings.Join(a.SessionManagers, " or "), err)
	}
	return n, err
}

// nothingRuns is the Nodes of an installation that is down.
type nothingRuns struct{ sandbox.Nodes }

func (nothingRuns) Boots(context.Context, string) ([]sandbox.BoundBoot, error) { return nil, nil }

func (nothingRuns) Traffic(context.Context, string) ([]sandbox.BootTraffic, error) { return nil, nil }

func (nothingRuns) Stop(context.Context, string, string, time.Duration) error { return nil }
