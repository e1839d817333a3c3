package sqlstore

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A record type and its table have the same columns. A difference would lose a value, or
// leave a column NULL.
func TestTablesHaveTheColumnsOfTheirRecords(t *testing.T) {
	s, err := OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, stored := range map[string][]string{
		sandboxTable.name:     sandboxTable.stored,
		snapshotTable.name:    snapshotTable.stored,
		volumeTable.name:      volumeTable.stored,
		keyTable.name:         keyTable.stored,
		idempotencyTable.name: idempotencyTable.stored,
		secretTable.name:      secretTable.stored,
		signingTable.name:     signingTable.stored,
		tenantTable.name:      tenantTable.stored,
		userTable.name:        userTable.stored,
		auditTable.name:       auditTable.stored,
		nodeTable.name:        nodeTable.stored,
		leaderTable.name:      leaderTable.stored,
		openTable.name:        openTable.stored,
	} {
		columns, err := collect(func(scan func(...any) error) (column string, err error) {
			err = scan(&column)
			return column, err
		})(s.reads.QueryContext(t.Context(), "SELECT name FROM pragma_table_info(?)", name))
		if err != nil {
			t.Fatal(err)
		}
		stored = slices.Sorted(slices.Values(stored))
		if slices.Sort(columns); !slices.Equal(columns, stored) {
			t.Errorf("%s has the columns\n%q, and its record\n%q", name, columns, stored)
		}
	}
}

// A command binds each column wherever the text names it, also more than once.
func TestCommandBindsByName(t *testing.T) {
	c := nodeTable.command("UPDATE nodes SET address = $address WHERE name = $name AND address <> $address")
	args, err := c.args(&nodeRow{NodeRecord: sandbox.NodeRecord{Name: "n", Address: "a"}})
	if err != nil || !slices.Equal(args, []any{"a", "n", "a"}) || c.text != "UPDATE nodes SET address = ? WHERE name = ? AND address <> ?" {
		t.Errorf("%q with %v: %v", c.text, args, err)
	}
}
