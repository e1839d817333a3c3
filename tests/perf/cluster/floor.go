package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	identity "github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// The steps of an acquire in a cluster that follow one another, and that the server with all
// roles does without. The fourth call is made beside another one.
const (
	acquireCalls = 3 // between roles
	acquireLater = 3 // transactions that do not wait for the disk
	acquireSyncs = 1 // transactions that wait for it
)

// apart is the time between two steps of a row. A process that has waited as long answers more
// slowly than one that is busy, and in an acquire each of them has waited.
const apart = 50 * time.Millisecond

// floor measures these steps alone, empty, on the same machines. An acquire takes at least their
// sum more than on the server with all roles.
func floor(ctx context.Context, report *bench.Report, s side, n int) error {
	conn, err := pgx.Connect(ctx, s.database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "CREATE TABLE floor (number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text TEXT NOT NULL)"); err != nil {
		return err
	}
	own, err := identity.Open(s.fleet.Machine(rig.FleetManager).Identity(), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	scheduler := rpc.NewPlacement("https://"+s.fleet.Machine(rig.FleetScheduler).Addr, rpc.Self{Role: rpc.SessionManager, Identity: own})
	defer scheduler.Close()
	call := func(ctx context.Context) error {
		_, err := scheduler.Place(ctx, sandbox.BootNeeds{Shape: sandbox.DefaultShape()})
		return err
	}
	commit := func(ctx context.Context) error {
		_, err := conn.Exec(ctx, "INSERT INTO floor (text) VALUES ('one row')")
		return err
	}
	sum := 0.0
	for _, step := range []struct {
		operation, before string
		do                func(context.Context) error
		times             int
	}{
		{"a call between roles: the scheduler chooses nodes", "", call, acquireCalls},
		{"a transaction of one row in PostgreSQL, which does not wait for the disk", "SET synchronous_commit = off", commit, acquireLater},
		{"a transaction of one row in PostgreSQL, which waits for the disk", "SET synchronous_commit = on", commit, acquireSyncs},
	} {
		if step.before != "" {
			if _, err := conn.Exec(ctx, step.before); err != nil {
				return err
			}
		}
		row := &bench.Series{Operation: step.operation, Who: aCluster}
		err := bench.Repeat(ctx, row, n, func(ctx context.Context) (time.Duration, error) {
			time.Sleep(apart)
			began := time.Now()
			err := step.do(ctx)
			return time.Since(began), err
		})
		if err != nil {
			return err
		}
		report.Add(row)
		sum += float64(step.times) * row.Median
	}
	report.AddFact(bench.Fact{
		What: fmt.Sprintf("the floor of that: %d such calls and %d such transactions, of which %d waits", acquireCalls, acquireLater+acquireSyncs, acquireSyncs),
		Who:  aCluster, Value: sum, Unit: "ms",
	})
	return nil
}
