package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"golang.org/x/sys/unix"
)

const (
	// The changes of the writer that held the lock before must be visible. So the
	// isolation level is set here, and the database's default does not matter.
	beginPostgres = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`
	// The schema's name is in the lock, so that two installations may share a database.
	lockPostgres = `SELECT pg_advisory_xact_lock(hashtext('cloud-sandbox writer'), hashtext(current_schema()))`
)

var postgresDialect = dialect{
	name:         "postgres",
	goose:        goose.DialectPostgres,
	numbered:     true,
	begin:        beginPostgres,
	lock:         lockPostgres,
	commitLater:  `SET LOCAL synchronous_commit = off`,
	inStates:     `state IN (SELECT jsonb_array_elements_text(CAST(?4 AS JSONB)))`,
	inList:       `IN (SELECT jsonb_array_elements_text(CAST(?1 AS JSONB)))`,
	withMetadata: `CAST(metadata AS JSONB) @> CAST(?5 AS JSONB)`,
	// The planner may look at the mounts before it looks whether there are any.
	mountsVolume: `EXISTS (SELECT 1 FROM jsonb_array_elements(CAST(CASE WHEN volumes = '' THEN '[]' ELSE volumes END AS JSONB)) AS mount WHERE mount ->> 'volume' = ?2)`,
	forgettable:  `users`,
	dropNames:    dropNames,
	touch:        `UPDATE touched SET n = 1`,
	touchAgain:   `UPDATE touched SET n = 2`,
	columnsOf:    `SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = ?`,
	// Not now(), which is the start of the transaction: before it waited for the lock.
	clock:    `CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)`,
	pooled:   true,
	snapshot: sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead},
}

const (
	// postgresReaders is the number of connections of a process for reads. With one
	// more for writes, four processes stay well below the 100 connections that a server
	// allows by default.
	postgresReaders = 8
	// dialLimit is how long a connection may take to be made.
	dialLimit = 5 * time.Second
	// silenceLimit is how long the server's kernel may keep silent before the server counts
	// as gone. For its processes see pulseLimit.
	silenceLimit = 15 * time.Second
	// idleLimit ends the transaction of a writer that has vanished: all others wait for
	// its lock.
	idleLimit = 10 * time.Second
)

// OpenPostgres opens the database that a URL like postgres://user:password@host/name
// names, and migrates its schema; processes that start together migrate it once. The role
// needs to own its schema, and nothing more. If the address cannot be parsed or the
// database cannot be reached, the error is one sentence and holds no password.
func OpenPostgres(ctx context.Context, address string) (*Store, error) {
	config, err := parsePostgres(address)
	if err != nil {
		return nil, err
	}
	s := &Store{dialect: &postgresDialect, counter: &counter{}}
	if err := s.openPostgres(ctx, config); err != nil {
		return nil, errors.Join(explainServer(config, err), s.closeHandles())
	}
	return s, nil
}

func parsePostgres(address string) (*pgx.ConnConfig, error) {
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return nil, errors.New("the address of a PostgreSQL database has the form postgres://user:password@host:port/name")
	}
	config, err := pgx.ParseConfig(address)
	if err != nil {
		// The driver's error repeats the address, with the password where the URL is
		// malformed.
		return nil, errors.New("the address of the PostgreSQL database cannot be read: it has the form postgres://user:password@host:port/name, with special characters of the password percent-encoded")
	}
	config.ConnectTimeout = dialLimit
	dialer := net.Dialer{Timeout: dialLimit, KeepAlive: silenceLimit / 3, Control: limitSilence}
	config.DialFunc = dialer.DialContext
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "cloud-sandbox"
	}
	return config, nil
}

// setLimits limits how long a session waits for locks, and for its client. They are no
// parameters of the connection, which PgBouncer would refuse.
func setLimits(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, fmt.Sprintf("SET idle_in_transaction_session_timeout = %d; SET lock_timeout = %d",
		idleLimit.Milliseconds(), (2*idleLimit).Milliseconds()))
	return err
}

// socketOf is the socket of a connection; nil when it is lost already.
func socketOf(conn *sql.Conn) (socket net.Conn) {
	_ = conn.Raw(func(driver any) error {
		socket = driver.(*stdlib.Conn).Conn().PgConn().Conn()
		return nil
	})
	return socket
}

// isClosed reports whether a connection is lost.
func isClosed(conn *sql.Conn) bool {
	closed := true // also when Raw fails, for a connection that database/sql has dropped
	_ = conn.Raw(func(driver any) error {
		closed = driver.(*stdlib.Conn).Conn().IsClosed()
		return nil
	})
	return closed
}

// limitSilence lets the kernel give up a connection whose data the peer does not
// acknowledge.
func limitSilence(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silenceLimit.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// Identity returns the ID of a PostgreSQL database. A data folder keeps it, to notice
// when it is used with another database.
func (s *Store) Identity(ctx context.Context) (id string, err error) {
	err = s.reads.QueryRowContext(ctx, `SELECT id FROM installation`).Scan(&id)
	return id, classify(err)
}

// Fingerprint returns the fingerprint that a PostgreSQL database has of a secret, by the
// secret's name, and keeps fingerprint if it has none.
func (s *Store) Fingerprint(ctx context.Context, secret, fingerprint string) (kept string, err error) {
	_, err = s.reads.ExecContext(ctx, `INSERT INTO fingerprints (secret, fingerprint) VALUES ($1, $2) ON CONFLICT (secret) DO NOTHING`, secret, fingerprint)
	if err == nil {
		err = s.reads.QueryRowContext(ctx, `SELECT fingerprint FROM fingerprints WHERE secret = $1`, secret).Scan(&kept)
	}
	return kept, classify(err)
}

// SetFingerprint replaces the fingerprint of a secret that has one.
func (s *Store) SetFingerprint(ctx context.Context, secret, fingerprint string) error {
	_, err := s.reads.ExecContext(ctx, `UPDATE fingerprints SET fingerprint = $2 WHERE secret = $1`, secret, fingerprint)
	return classify(err)
}

func (s *Store) openPostgres(ctx context.Context, config *pgx.ConnConfig) error {
	s.pulse = newPulse(stdlib.OpenDB(*config))
	watched := config.Copy()
	watched.DialFunc = s.pulse.dial(config.DialFunc)
	limits := stdlib.OptionAfterConnect(setLimits)
	s.writes, s.reads = stdlib.OpenDB(*watched, limits), stdlib.OpenDB(*watched, limits)
	s.writes.SetMaxOpenConns(1)
	limited, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	if err := s.reads.PingContext(limited); err != nil {
		return err
	}
	// Migrations take a second connection, for their lock.
	migrating := stdlib.OpenDB(*config)
	defer migrating.Close()
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return err
	}
	if err := migrate(ctx, migrating, &postgresDialect, goose.WithSessionLocker(locker)); err != nil {
		return err
	}
	return s.start(ctx, postgresReaders)
}

// explainServer turns the errors of a database server into a sentence that names it and
// what to do.
func explainServer(config *pgx.ConnConfig, err error) error {
	where := (&url.URL{Scheme: "postgres", Host: net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))), Path: "/" + config.Database}).String()
	switch state := sqlState(err); {
	case strings.HasPrefix(state, "28"): // invalid authorization
		return fmt.Errorf("database %s: the server refuses the user %q or its password: %w", where, config.User, err)
	case state == "3D000": // invalid catalog name
		return fmt.Errorf("database %s: the server has no such database, make it with createdb: %w", where, err)
	case state == "42501": // insufficient privilege
		return fmt.Errorf("database %s: the user %q may not make tables in its schema, make it the schema's owner: %w", where, config.User, err)
	case broken(err), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("database %s: the server does not answer, start it or mend the address: %w", where, err)
	}
	return fmt.Errorf("database %s: %w", where, err)
}
