package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// leaderRow is a Leader as stored in its row, and the clock of the database when it was
// read. A row stays after its term: its Epoch is the Role's.
type leaderRow struct {
	sandbox.Leader
	until time.Time // the end of the lease, by that clock
	clock int64
}

var leaderTable = newTable("leaders", func(l *leaderRow, c *columns) {
	c.add("role", &l.Role)
	c.add("holder", &l.Holder)
	c.add("address", &l.Address)
	c.add("epoch", &l.Epoch)
	c.add("until", (*moment)(&l.until))
	c.compute(clockName, &l.clock)
})

var (
	keepLeader   = leaderTable.replacing("role")
	leaderOfText = leaderTable.record + `WHERE role = ?`
)

func scanLeader(scan func(...any) error) (leaderRow, error) {
	l, err := leaderTable.scan(scan)
	l.Left = l.until.Sub(clockAt(l.clock))
	return l, err
}

func noLeader() error { return sandbox.Errorf(sandbox.NotFound, "the role has no leader yet") }

// leaderStatements are the writer's prepared statements for leaders, and its clock.
type leaderStatements struct {
	clock, leaderNow, keepLeader, resign *sql.Stmt
}

func (s *leaderStatements) all(d *dialect) []prepared {
	return []prepared{
		{&s.clock, d.clocked(`SELECT clock()`)},
		{&s.leaderNow, d.clocked(leaderOfText)},
		{&s.keepLeader, keepLeader.text},
		{&s.resign, `UPDATE leaders SET until = ? WHERE role = ? AND holder = ? AND until > ?`},
	}
}

// now is the present time by the database's clock.
func (s *leaderStatements) now() (time.Time, error) {
	var n int64
	if err := s.clock.QueryRow().Scan(&n); err != nil {
		return time.Time{}, err
	}
	return clockAt(n), nil
}

// check makes the pipeline fail if the term of l is over.
func (s *leaderStatements) check(p *pipeline, l *sandbox.Leader) {
	p.row(s.leaderNow, func(scan scanner) error {
		now, err := scanLeader(scan)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		case now.Holder == l.Holder && now.Epoch == l.Epoch && now.Left > 0:
			return nil
		}
		return sandbox.Errorf(sandbox.Unavailable, "this %s does not lead any more, and the request may have begun: check the state before you repeat it", l.Role).WithCause(sandbox.ErrNotLeading)
	}, l.Role)
}

// Lead implements sandbox.LeaderStore.
func (s *Store) Lead(ctx context.Context, c sandbox.LeaderClaim, life time.Duration) (sandbox.Leader, error) {
	row := leaderRow{Leader: sandbox.Leader{LeaderClaim: c}}
	err := s.writer.write(ctx, func(st *statements) error {
		now, err := st.now()
		if err != nil {
			return err
		}
		row.Epoch, row.until = 1, now.Add(life)
		old, err := one(st.leaderNow.QueryRow(c.Role), scanLeader, noLeader)
		switch expired := !now.Before(old.until); {
		case errors.Is(err, sandbox.NotFound):
		case err != nil:
			return err
		case expired:
			row.Epoch = old.Epoch + 1
		case old.Holder != c.Holder:
			return sandbox.Errorf(sandbox.Conflict, "another %s leads", c.Role)
		default:
			row.Epoch = old.Epoch
		}
		_, err = keepLeader.exec(st.keepLeader, &row)
		return err
	})
	if err != nil {
		return sandbox.Leader{}, err
	}
	row.Left = life
	return row.Leader, nil
}

// Resign implements sandbox.LeaderStore.
func (s *Store) Resign(ctx context.Context, role, holder string) error {
	return s.writer.write(ctx, func(st *statements) error {
		now, err := st.now()
		if err != nil {
			return err
		}
		_, err = st.resign.Exec(micros(now), role, holder, micros(now))
		return err
	})
}

// LeaderOf implements sandbox.LeaderStore.
func (s *Store) LeaderOf(ctx context.Context, role string) (sandbox.Leader, error) {
	l, err := one(s.query.leader.QueryRowContext(ctx, role), scanLeader, noLeader)
	return l.Leader, err
}

// Under implements sandbox.LeaderStore.
func (s *Store) Under(l sandbox.Leader, lost func()) sandbox.Store {
	u := &Store{
		dialect: s.dialect, reads: s.reads, writes: s.writes, query: s.query, brief: s.brief, quota: s.quota,
		checkpoints: s.checkpoints, counter: s.counter, check: checker{folder: s.check.folder},
		writer: fencedWriter{writer: s.writer.writer, leader: &l, lost: lost},
	}
	u.closeOnce.Do(func() {}) // s closes
	return u
}

// A fencedWriter is the writer for anyone, or for a leader: each of its writes then checks
// in its own transaction that the term lasts.
type fencedWriter struct {
	*writer
	leader *sandbox.Leader // nil: for anyone
	lost   func()
}

// write runs do, which takes one statement after the other, in a transaction.
func (w fencedWriter) write(ctx context.Context, do func(*statements) error) error {
	return w.send(ctx, func(p *pipeline) error {
		st, err := p.direct()
		if err != nil {
			return err
		}
		return do(st)
	})
}

// send is write for a do that uses the pipeline.
func (w fencedWriter) send(ctx context.Context, do func(*pipeline) error) error {
	if w.leader == nil {
		return w.writer.write(ctx, do)
	}
	err := w.writer.write(ctx, func(p *pipeline) error {
		p.st.leaderStatements.check(p, w.leader)
		return do(p)
	})
	if errors.Is(err, sandbox.ErrNotLeading) && w.lost != nil {
		w.lost()
	}
	return err
}
