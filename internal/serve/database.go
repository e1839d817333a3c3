package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

// databaseFile is the path of the server's database in SQLite.
func databaseFile(layout launch.Layout) string {
	return filepath.Join(layout.Server(), "cloud-sandbox.db")
}

// addressFile holds the address of the database of a server that uses PostgreSQL, with
// its password, for the commands that work on the data folder. Only the server's user
// reads it.
func addressFile(layout launch.Layout) string {
	return filepath.Join(layout.Server(), "database")
}

// hasDatabase reports whether a server has ever run. Root may call it: it opens no file
// that the server writes.
func hasDatabase(layout launch.Layout) bool {
	for _, file := range []string{databaseFile(layout), addressFile(layout)} {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// openDatabase opens the database that the server of a data folder used last. The caller
// must be the server's user.
func openDatabase(ctx context.Context, layout launch.Layout) (*sqlstore.Store, error) {
	address, err := keptAddress(layout)
	if err != nil {
		return nil, err
	}
	if address != "" {
		return sqlstore.OpenPostgres(ctx, address)
	}
	return sqlstore.OpenSQLite(ctx, databaseFile(layout))
}

// openConfigured opens the database of a server: the PostgreSQL database at address, or
// the file in the data folder if that is empty. A data folder whose records are in
// PostgreSQL is refused without an address, since an empty file would hide them.
func openConfigured(ctx context.Context, layout launch.Layout, address string) (*sqlstore.Store, error) {
	if address == "" {
		kept, err := keptAddress(layout)
		if err != nil {
			return nil, err
		}
		if kept != "" {
			return nil, fmt.Errorf("the records of this data folder are in PostgreSQL, and CLOUD_SANDBOX_DATABASE is not set: set it as before, or remove %s to begin with an empty database", addressFile(layout))
		}
		return sqlstore.OpenSQLite(ctx, databaseFile(layout))
	}
	store, err := sqlstore.OpenPostgres(ctx, address)
	if err != nil {
		return nil, err
	}
	if err := durable.Write(addressFile(layout), []byte(address+"\n"), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("keep the address of the database: %w", err), store.Close())
	}
	return store, nil
}

// keptAddress is the address in the file of addressFile; empty: there is none.
func keptAddress(layout launch.Layout) (string, error) {
	text, err := os.ReadFile(addressFile(layout))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the address of the database: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
