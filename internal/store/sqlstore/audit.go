package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var auditTable = newTable("audit", func(e *sandbox.AuditEntry, c *columns) {
	c.add("seq", &e.Seq)
	c.add("at", (*moment)(&e.At))
	c.add("tenant", (*string)(&e.Tenant))
	c.add("user_id", &e.User)
	c.add("role", (*string)(&e.Role))
	c.add("key", &e.Key)
	c.add("operation", &e.Operation)
	c.add("target", &e.Target)
	c.add("sandbox", &e.Sandbox)
	c.add("detail", &e.Detail)
	c.add("remote", &e.Remote)
	c.add("request", &e.Request)
	c.add("status", &e.Status)
	c.add("code", &e.Code)
	c.add("hash", (*chainHash)(&e.Hash))
})

// A chainHash is read as zero if it is malformed: checking the chain then detects the
// damage.
type chainHash hash

// Value implements driver.Valuer.
func (h *chainHash) Value() (driver.Value, error) { return h[:], nil }

// Scan implements sql.Scanner.
func (h *chainHash) Scan(src any) error {
	if (*hash)(h).Scan(src) != nil {
		*h = chainHash{}
	}
	return nil
}

const (
	// auditLook bounds how many entries are read for one page, however few match.
	auditLook = 10_000
	lastAudit = `SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1`
	auditMark = `SELECT seq, hash FROM audit_mark WHERE id = 0`
)

// auditStatements are the writer's prepared statements for the audit log.
type auditStatements struct {
	insertAudit, lastAudit, auditMark *sql.Stmt
	trimAudit, setAuditMark           *sql.Stmt
	firstAuditSince, auditSeq         *sql.Stmt
	wasStarted                        *sql.Stmt
}

func (s *auditStatements) all() []prepared {
	return []prepared{
		{&s.insertAudit, auditTable.insert.text},
		{&s.lastAudit, lastAudit},
		{&s.auditMark, auditMark},
		{&s.firstAuditSince, `SELECT seq FROM audit WHERE seq <= ? AND at >= ? ORDER BY seq LIMIT 1`},
		{&s.auditSeq, `SELECT seq, hash FROM audit WHERE seq <= ? ORDER BY seq DESC LIMIT 1`},
		{&s.trimAudit, `DELETE FROM audit WHERE seq <= ?`},
		{&s.wasStarted, `SELECT 1 FROM sandboxes WHERE id = ? AND state <> 'starting'`},
		{&s.setAuditMark, `UPDATE audit_mark SET seq = ?, hash = ? WHERE id = 0`},
	}
}

// auditQueries are its prepared statements on reading connections.
type auditQueries struct{ listAudit, auditAt *sql.Stmt }

func (q *auditQueries) all() []prepared {
	return []prepared{
		{&q.listAudit, auditTable.record + `WHERE tenant = ? AND at >= ? AND (at, seq) < (?, ?) ORDER BY at DESC, seq DESC LIMIT ?`},
		{&q.auditAt, `SELECT seq FROM audit WHERE tenant = ? AND at = ? AND substr(hash, 1, 8) = ?`},
	}
}

// AppendAudit implements sandbox.AuditStore. The end of the chain is read in the writing
// transaction, so other processes may append too.
func (s *Store) AppendAudit(ctx context.Context, e sandbox.AuditEntry, started ...string) (sandbox.AuditMark, error) {
	return s.appendAudit(ctx, e, started, func(*pipeline) {})
}

// appendAudit is AppendAudit; too adds more statements to its transaction.
func (s *Store) appendAudit(ctx context.Context, e sandbox.AuditEntry, started []string, too func(*pipeline)) (sandbox.AuditMark, error) {
	// A caller's text must not keep its entry out of the log.
	for _, text := range []*string{
		(*string)(&e.Tenant), &e.User, (*string)(&e.Role), &e.Key, &e.Operation, &e.Target, &e.Sandbox, &e.Detail, &e.Remote, &e.Request, &e.Code,
	} {
		*text = sandbox.StorableText(*text)
	}
	var mark sandbox.AuditMark
	err := s.writer.send(ctx, func(p *pipeline) error {
		for _, id := range started {
			p.needs(p.st.wasStarted, sandbox.LostRecord(), id)
		}
		last, err := lastMark(p)
		if err != nil {
			return err
		}
		e.Seq = last.Seq + 1
		e.Hash = e.HashAfter(last.Hash)
		mark = sandbox.AuditMark{Seq: e.Seq, Hash: e.Hash}
		auditTable.insert.send(p, p.st.insertAudit, &e)
		too(p)
		return nil
	})
	if err != nil {
		return sandbox.AuditMark{}, err
	}
	return mark, nil
}

// lastMark is the end of the chain, which the next entry follows.
func lastMark(p *pipeline) (last sandbox.AuditMark, err error) {
	empty := false
	p.row(p.st.lastAudit, func(scan scanner) error {
		last, err = scanMark(scan)
		if empty = errors.Is(err, sql.ErrNoRows); empty {
			return nil
		}
		return err
	})
	st, err := p.direct()
	if err == nil && empty {
		last, err = scanMark(st.auditMark.QueryRow().Scan)
	}
	return last, err
}

func scanMark(scan scanner) (m sandbox.AuditMark, err error) {
	var hash []byte
	err = scan(&m.Seq, &hash)
	copy(m.Hash[:], hash)
	return m, err
}

// ListAudit implements sandbox.AuditStore.
func (s *Store) ListAudit(ctx context.Context, tenant sandbox.TenantID, q sandbox.AuditQuery) (sandbox.AuditPage, error) {
	if q.Limit < 0 || q.Limit > sandbox.MaxAuditPage {
		return sandbox.AuditPage{}, sandbox.Errorf(sandbox.Invalid, "limit must be between 1 and %d", sandbox.MaxAuditPage)
	}
	if q.Limit == 0 {
		q.Limit = sandbox.MaxAuditPage
	}
	at, seq, err := s.auditPlace(ctx, tenant, q.Cursor)
	if err != nil {
		return sandbox.AuditPage{}, err
	}
	if until := micros(q.Until); !q.Until.IsZero() && until <= at {
		at, seq = until, 0
	}
	rows, err := s.query.listAudit.QueryContext(ctx, string(tenant), micros(q.Since), at, seq, auditLook)
	if err != nil {
		return sandbox.AuditPage{}, classify(err)
	}
	defer rows.Close()
	var page sandbox.AuditPage
	var last sandbox.AuditEntry
	for looked := 1; rows.Next(); looked++ {
		if len(page.Entries) == q.Limit {
			page.Next = auditCursor(last) // at least one more matches
			return page, nil
		}
		if last, err = auditTable.scan(rows.Scan); err != nil {
			return page, classify(err)
		}
		if q.Matches(last) {
			page.Entries = append(page.Entries, last)
		}
		if looked == auditLook {
			page.Next = auditCursor(last)
		}
	}
	return page, classify(rows.Err())
}

// auditMarkBytes of an entry's hash distinguish entries of one Tenant and microsecond. A
// number would reveal how many entries others have.
const auditMarkBytes = 8

func auditCursor(e sandbox.AuditEntry) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(micros(e.At)))
	return base64.RawURLEncoding.EncodeToString(append(b, e.Hash[:auditMarkBytes]...))
}

// auditPlace is the position where the page after cursor begins.
func (s *Store) auditPlace(ctx context.Context, tenant sandbox.TenantID, cursor string) (at, seq int64, err error) {
	if cursor == "" {
		return math.MaxInt64, 0, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) != 8+auditMarkBytes {
		return 0, 0, sandbox.Errorf(sandbox.Invalid, "the cursor is not one that a list returned")
	}
	at = int64(binary.BigEndian.Uint64(b))
	err = s.query.auditAt.QueryRowContext(ctx, string(tenant), at, b[8:]).Scan(&seq)
	if errors.Is(err, sql.ErrNoRows) { // removed for its age, and all before it
		return at, 0, nil
	}
	return at, seq, classify(err)
}

// ReadAudit implements sandbox.AuditStore.
func (s *Store) ReadAudit(ctx context.Context, begin func(sandbox.AuditMark) error, each func(sandbox.AuditEntry) error) error {
	tx, err := s.reads.BeginTx(ctx, &s.dialect.snapshot)
	if err != nil {
		return classify(err)
	}
	defer tx.Rollback() //nolint:errcheck // it only reads
	mark, err := scanMark(tx.QueryRowContext(ctx, auditMark).Scan)
	if err != nil {
		return classify(err)
	}
	if err := begin(mark); err != nil {
		return err
	}
	rows, err := tx.QueryContext(ctx, auditTable.record+`ORDER BY seq`)
	if err != nil {
		return classify(err)
	}
	defer rows.Close()
	for rows.Next() {
		e, err := auditTable.scan(rows.Scan)
		if err != nil {
			return classify(err)
		}
		if err := each(e); err != nil {
			return err
		}
	}
	return classify(rows.Err())
}

// TrimAudit implements sandbox.AuditStore.
func (s *Store) TrimAudit(ctx context.Context, before time.Time, limit int) (removed int, err error) {
	err = s.writer.write(ctx, func(st *statements) error {
		mark, err := scanMark(st.auditMark.QueryRow().Scan)
		if err != nil {
			return err
		}
		most := mark.Seq + int64(limit)
		var young int64
		switch err := st.firstAuditSince.QueryRow(most, micros(before)).Scan(&young); {
		case err == nil:
			most = young - 1
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		last, err := scanMark(st.auditSeq.QueryRow(most).Scan)
		if errors.Is(err, sql.ErrNoRows) {
			return nil // none is that old
		}
		if err != nil {
			return err
		}
		result, err := st.trimAudit.Exec(last.Seq)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		removed = int(n)
		_, err = st.setAuditMark.Exec(last.Seq, last.Hash[:])
		return err
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}
