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
// its password, for the commands that work on the data folder, and on a second line the
// identity of that database. Only the server's user reads it.
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
	kept, err := keptAddress(layout)
	if err != nil {
		return nil, err
	}
	if kept.address != "" {
		return sqlstore.OpenPostgres(ctx, kept.address)
	}
	return sqlstore.OpenSQLite(ctx, databaseFile(layout))
}

// openConfigured opens the database of a server: the PostgreSQL database at address, or
// the file in the data folder if that is empty. A data folder whose records are in
// another database is refused, because its Boots and Snapshots would have no records.
func openConfigured(ctx context.Context, layout launch.Layout, address string) (*sqlstore.Store, error) {
	kept, err := keptAddress(layout)
	if err != nil {
		return nil, err
	}
	if address == "" {
		if kept.address != "" {
			return nil, fmt.Errorf("the records of this data folder are in PostgreSQL, and CLOUD_SANDBOX_DATABASE is not set: set it as before, or remove %s to begin with an empty database", addressFile(layout))
		}
		return sqlstore.OpenSQLite(ctx, databaseFile(layout))
	}
	if _, err := os.Lstat(databaseFile(layout)); kept.address == "" && err == nil {
		return nil, fmt.Errorf("CLOUD_SANDBOX_DATABASE is set, and the records of this data folder are in %s, which is not copied to PostgreSQL: begin with an empty data folder, or do not set it", databaseFile(layout))
	}
	store, err := sqlstore.OpenPostgres(ctx, address)
	if err != nil {
		return nil, err
	}
	if err := keepAddress(ctx, layout, store, kept, address); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return store, nil
}

// keepAddress writes the address of the opened database to addressFile. It returns an
// error if kept identifies another database. The address of the same database may
// change.
func keepAddress(ctx context.Context, layout launch.Layout, store *sqlstore.Store, kept databaseAddress, address string) error {
	identity, err := store.Identity(ctx)
	if err != nil {
		return fmt.Errorf("identify the database: %w", err)
	}
	if kept.identity != "" && kept.identity != identity {
		return fmt.Errorf("CLOUD_SANDBOX_DATABASE names a PostgreSQL database, and the records of this data folder are in another PostgreSQL database: name that database, or begin with an empty data folder")
	}
	if err := durable.Write(addressFile(layout), []byte(address+"\n"+identity+"\n"), 0o600); err != nil {
		return fmt.Errorf("keep the address of the database: %w", err)
	}
	return nil
}

// A databaseAddress is the content of addressFile; zero: the file does not exist.
type databaseAddress struct{ address, identity string }

func keptAddress(layout launch.Layout) (databaseAddress, error) {
	text, err := os.ReadFile(addressFile(layout))
	if errors.Is(err, fs.ErrNotExist) {
		return databaseAddress{}, nil
	}
	if err != nil {
		return databaseAddress{}, fmt.Errorf("read the address of the database: %w", err)
	}
	address, identity, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return databaseAddress{address, identity}, nil
}
