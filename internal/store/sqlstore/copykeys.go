package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// copyKey is the row of a sealed key.
type copyKey struct {
	prefix    string
	sealed    []byte
	createdAt time.Time
}

var copyKeyTable = newTable("copy_keys", func(k *copyKey, c *columns) {
	c.add("prefix", &k.prefix)
	c.add("sealed", (*blob)(&k.sealed))
	c.add("created_at", (*moment)(&k.createdAt))
})

var insertCopyKey = copyKeyTable.inserting("ON CONFLICT (prefix) DO NOTHING")

// copyKeyStatements are the writer's prepared statements for the keys of copies.
type copyKeyStatements struct{ insertCopyKey, countCopyKeys, writtenCopyKey *sql.Stmt }

func (s *copyKeyStatements) all() []prepared {
	return []prepared{
		{&s.insertCopyKey, insertCopyKey.text},
		{&s.countCopyKeys, `SELECT count(*) FROM copy_keys`},
		{&s.writtenCopyKey, copyKeyTable.record + `WHERE prefix = ?`},
	}
}

// KeepCopyKey implements sandbox.CopyRecords.
func (s *Store) KeepCopyKey(ctx context.Context, prefix string, sealed []byte) (kept []byte, err error) {
	if err := sandbox.CheckCopyKey(prefix, sealed); err != nil {
		return nil, err
	}
	err = s.writer.write(ctx, func(st *statements) error {
		if _, err := insertCopyKey.exec(st.insertCopyKey, &copyKey{prefix: prefix, sealed: sealed, createdAt: time.Now()}); err != nil {
			return err
		}
		var have int
		if err := st.countCopyKeys.QueryRow().Scan(&have); err != nil {
			return err
		}
		if have > sandbox.MaxCopyKeys {
			return sandbox.Errorf(sandbox.Exhausted, "there are %d keys of copies of snapshots already", sandbox.MaxCopyKeys)
		}
		k, err := copyKeyTable.scan(st.writtenCopyKey.QueryRow(prefix).Scan)
		kept = k.sealed
		return err
	})
	return kept, err
}
