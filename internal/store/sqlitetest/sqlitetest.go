// Package sqlitetest makes stores for the tests of other packages.
package sqlitetest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

// empty is the file of an empty store: making one in each of hundreds of tests takes
// longer than all else.
var empty = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "empty")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "db")
	st, err := sqlstore.OpenSQLite(context.Background(), file)
	if err != nil {
		return nil, err
	}
	if err := st.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
})

// Open returns an empty Store that is closed with the test.
func Open(t testing.TB) *sqlstore.Store {
	t.Helper()
	return OpenAt(t, filepath.Join(t.TempDir(), "db"))
}

// Make makes the file of an empty Store. It must not exist.
func Make(t testing.TB, file string) {
	t.Helper()
	content, err := empty()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = os.WriteFile(file, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// OpenAt is Open with this file, which must not exist.
func OpenAt(t testing.TB, file string) *sqlstore.Store {
	t.Helper()
	Make(t, file)
	st, err := sqlstore.OpenSQLite(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() }) // again, if the test has closed it
	return st
}
