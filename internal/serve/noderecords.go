package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// A nodeAccess says where a Node reads its records, for commands on its data folder.
type nodeAccess struct {
	Node            string   `json:"node"`
	SessionManagers []string `json:"session_managers"`
	Cluster         string   `json:"cluster,omitempty"` // folder of the Node's certificate
	Secret          []byte   `json:"secret,omitempty"`  // the shared secret of the roles; empty with a certificate
}

// accessFile holds the nodeAccess of a data folder. Only the server's user reads it.
func accessFile(layout launch.Layout) string {
	return filepath.Join(layout.Server(), "session-managers.json")
}

// hasAccess reports whether a Node has ever run on a data folder. Root may call it: it
// opens no file that the server writes.
func hasAccess(layout launch.Layout) bool {
	_, err := os.Lstat(accessFile(layout))
	return !errors.Is(err, fs.ErrNotExist)
}

// isElsewhere reports whether the session managers use another database than one in this
// data folder: none of them has run here.
func (a nodeAccess) isElsewhere(layout launch.Layout) bool {
	if _, err := os.Lstat(holderFile(layout, config.RoleSessionManager)); err == nil {
		return false
	}
	return len(a.SessionManagers) > 0 && !slices.Contains(a.SessionManagers, rpc.UnixAddress(layout.Socket(config.RoleSessionManager)))
}

// isUsed reports whether the records of a data folder are at session managers, and not in
// a database in the folder.
func (a nodeAccess) isUsed(layout launch.Layout) bool {
	return len(a.SessionManagers) > 0 && (!hasDatabase(layout) || a.isElsewhere(layout))
}

// managers are the addresses of the session managers that answer this process.
func (r *role) managers() []string {
	urls := r.cfg.SessionManagerURLs()
	if len(urls) == 0 {
		urls = []string{rpc.UnixAddress(r.layout.Socket(config.RoleSessionManager))}
	}
	return urls
}

const (
	// firstAnswer bounds one attempt of a Node to reach a session manager at its start.
	firstAnswer = 5 * time.Second
	// commandLimit bounds how long a command on a data folder waits for session managers.
	commandLimit = 30 * time.Second
)

// openRecords lets a Node ask the session managers for its records, and waits until one of
// them answers. secret is the shared secret of the roles.
func (r *role) openRecords(ctx context.Context, secret []byte) (*rpc.NodeRecords, error) {
	access := nodeAccess{Node: r.self.Name, SessionManagers: r.managers(), Cluster: r.cfg.Cluster}
	if access.Cluster == "" {
		access.Secret = secret
	}
	if err := access.keep(r.layout); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(addressFile(r.layout)); err == nil && r.cfg.Cluster != "" {
		r.log.Warn("a file has the address of the database with its password, which a node does not use: remove it if no other role has this data folder", "file", addressFile(r.layout))
	}
	records := rpc.NewNodeRecords(access.SessionManagers, r.self)
	for {
		attempt, cancel := context.WithTimeout(ctx, firstAnswer)
		_, err := records.LeaderOf(attempt, config.RoleSessionManager)
		cancel()
		switch {
		case err == nil, errors.Is(err, sandbox.NotFound):
			return records, nil
		case errors.Is(err, sandbox.Denied), errors.Is(err, rpc.ErrRefused):
			records.Close()
			return nil, fmt.Errorf("ask the session-manager: %w", err)
		}
		r.log.Warn("waiting for a session-manager to answer", "addresses", strings.Join(access.SessionManagers, ","), telemetry.KeyError, err)
		select {
		case <-ctx.Done():
			records.Close()
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func (a nodeAccess) keep(layout launch.Layout) error {
	text, err := json.Marshal(a)
	if err == nil {
		err = durable.Write(accessFile(layout), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the addresses of the session-managers: %w", err)
	}
	return nil
}

// readAccess returns the nodeAccess of a data folder; zero if it has none. The caller must
// be the server's user.
func readAccess(layout launch.Layout) (a nodeAccess, err error) {
	text, err := os.ReadFile(accessFile(layout))
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err == nil && len(a.SessionManagers) == 0 {
		err = errors.New("the file has none")
	}
	if err != nil {
		return a, fmt.Errorf("read the addresses of the session-managers: %w", err)
	}
	return a, nil
}

// self is the Node, for calls to other roles.
func (a nodeAccess) self() (self rpc.Self, err error) {
	self = rpc.Self{Role: rpc.Node, Name: a.Node}
	if a.Cluster != "" {
		self.Identity, err = cluster.Open(a.Cluster, slog.New(slog.DiscardHandler))
	} else {
		self.Keys, err = rpc.NewKeys(a.Secret)
	}
	return self, err
}

// WithNodeRecords calls use with the records of a data folder, as its Node sees them: at
// the session managers, or in the database in the folder. It gives up root for good before
// it opens either.
func WithNodeRecords(ctx context.Context, layout launch.Layout, use func(sandbox.NodeRecords) error) error {
	if err := launch.BecomeServer(); err != nil {
		return err
	}
	access, err := readAccess(layout)
	if err != nil {
		return err
	}
	if !access.isUsed(layout) {
		return WithStore(ctx, layout, func(s sandbox.Store) error { return use(session.NodeRecords{Store: s}) })
	}
	self, err := access.self()
	if err != nil {
		return err
	}
	records := rpc.NewNodeRecords(access.SessionManagers, self)
	defer records.Close()
	return use(records)
}

// leaderAt finds the session manager that leads by records. It is at address if none has
// led yet, or if its record has a socket and address is on another machine.
func leaderAt(address string, leaderOf func(ctx context.Context, role string) (sandbox.Leader, error)) rpc.Find {
	return func(ctx context.Context) (string, bool, error) {
		l, err := leaderOf(ctx, config.RoleSessionManager)
		switch {
		case errors.Is(err, sandbox.NotFound), err == nil && (rpc.CheckAddress(l.Address) != nil || rpc.IsUnix(l.Address) && !rpc.IsUnix(address)):
			return address, false, nil
		case err != nil:
			return "", false, err
		}
		return l.Address, l.Left <= 0, nil
	}
}

// templateQuotas are the Quotas of Tenants for their Templates, as a Node sees them.
type templateQuotas struct{ *joined }

// TenantQuota returns a Quota of which only TemplateBytes is set.
func (q templateQuotas) TenantQuota(ctx context.Context, tenant sandbox.TenantID) (sandbox.Quota, error) {
	n, err := q.records.TemplateBytes(ctx, q.nodeName(), tenant)
	return sandbox.Quota{TemplateBytes: n}, err
}
