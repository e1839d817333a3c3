package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// patience is how long a connection waits for the server before the server is asked,
	// on another connection, whether it lives.
	patience = time.Second
	// pulseLimit is how long the server may take for that answer. A server that answers is
	// slow: its statements may take longer, up to the limits of their own.
	pulseLimit = 4 * time.Second
	// pulsePause is the time between two questions to a silent server.
	pulsePause = 500 * time.Millisecond
)

// errSilent is the error of connections to a silent server. It unwraps to net.ErrClosed,
// as the error of a connection that was closed meanwhile does.
var errSilent = &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}

// A pulse notices that a database server is silent: its connections are open, and no
// connection gets an answer, as when its processes are stopped or its disk hangs. All
// connections are closed then, and new ones are refused until the server answers again.
type pulse struct {
	db   *sql.DB // for the question; its connection is none of conns
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	silent atomic.Bool

	mu     sync.Mutex
	asking bool
	conns  map[*pulseConn]struct{}
}

func newPulse(db *sql.DB) *pulse {
	db.SetMaxOpenConns(1)
	db.SetConnMaxIdleTime(time.Minute)
	p := &pulse{db: db, conns: map[*pulseConn]struct{}{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// dial wraps a dialer, so that its connections end when the server is silent.
func (p *pulse) dial(next pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if p.silent.Load() {
			return nil, errSilent
		}
		conn, err := next(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &pulseConn{Conn: conn, pulse: p}
		c.timer = time.AfterFunc(patience, c.late)
		c.timer.Stop()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conns[c] = struct{}{}
		return c, nil
	}
}

// ask starts to ask the server, unless it is being asked.
func (p *pulse) ask() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking || p.ctx.Err() != nil {
		return
	}
	p.asking = true
	p.done.Go(func() {
		for !p.answers() {
			p.silent.Store(true)
			p.closeAll()
			select {
			case <-time.After(pulsePause):
			case <-p.ctx.Done():
				return
			}
		}
		p.silent.Store(false)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asking = false
	})
}

// answers reports whether the server answers, even if with an error.
func (p *pulse) answers() bool {
	ctx, cancel := context.WithTimeout(p.ctx, pulseLimit)
	defer cancel()
	_, err := p.db.ExecContext(ctx, "SELECT 1")
	refused := (*pgconn.PgError)(nil)
	return err == nil || errors.As(err, &refused) && !broken(err)
}

func (p *pulse) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Conn.Close() // its reads and writes fail
	}
	clear(p.conns)
}

func (p *pulse) close() error {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.done.Wait()
	return p.db.Close()
}

// pulseConn is a connection to the server.
type pulseConn struct {
	net.Conn
	pulse   *pulse
	waiting atomic.Int64 // reads and writes in progress
	timer   *time.Timer  // calls late
}

func (c *pulseConn) Read(b []byte) (int, error) {
	defer c.wait()()
	return c.Conn.Read(b)
}

func (c *pulseConn) Write(b []byte) (int, error) {
	defer c.wait()()
	return c.Conn.Write(b)
}

func (c *pulseConn) Close() error {
	c.timer.Stop()
	c.pulse.mu.Lock()
	delete(c.pulse.conns, c)
	c.pulse.mu.Unlock()
	return c.Conn.Close()
}

// wait begins to wait for the server, until the result is called.
func (c *pulseConn) wait() (end func()) {
	c.waiting.Add(1)
	c.timer.Reset(patience)
	return c.heard
}

func (c *pulseConn) heard() {
	if c.waiting.Add(-1) == 0 {
		c.timer.Stop()
	}
}

// late asks the server again and again, while a read or write waits.
func (c *pulseConn) late() {
	if c.waiting.Load() == 0 {
		return
	}
	c.pulse.ask()
	c.timer.Reset(patience)
}
