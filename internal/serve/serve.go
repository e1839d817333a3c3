// Package serve assembles the parts of a process. It is the only package that imports
// both roles and drivers, and the only one that knows which roles share a process.
package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/redis"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sandboxca"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/oidc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/tenants"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/users"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/scheduler"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/acme"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/failpoint"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/lead"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/run"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/webhook"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/replication"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/builder"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploads"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/disk"
)

// stopGrace is the Guest's time to end its Processes when a Sandbox ends: none, because
// its files and memory are deleted too.
const stopGrace = 0 * time.Second

// Run is the server process with all roles over SQLite, without rights, until ctx ends.
// Sandboxes keep running after it returns.
func Run(ctx context.Context, cfg config.Config, in launch.Inherited, log *slog.Logger) error {
	defer in.Close()
	j, err := begin(ctx, cfg, in, log)
	if err != nil {
		return err
	}
	defer j.close()
	keepLead, err := j.takeLead(ctx)
	if err != nil {
		return err
	}
	if err := j.openEngine(ctx, in); err != nil {
		return err
	}
	defer j.engine.Close()
	parts, err := j.all(ctx)
	if err != nil {
		return err
	}
	if keepLead != nil {
		parts.Start("lead", ended(keepLead))
	}
	in.Ready(log)
	log.Info("the server is ready", "addr", cfg.Addr, "dev", cfg.Dev, "data", cfg.Data)
	return parts.Wait(ctx)
}

// takeLead takes the lead of the session managers of a database that processes on other
// machines may use, and returns the part that keeps it: the manager of this process works
// without terms, so no other one may. A database in a file is of the data folder, which is
// locked.
func (j *joined) takeLead(ctx context.Context) (keep func(context.Context) error, err error) {
	if j.cfg.Database == "" {
		return nil, nil
	}
	claim, err := j.claim(ctx, config.RoleSessionManager, "")
	if err != nil {
		return nil, err
	}
	keep, err = lead.Hold(ctx, j.store, claim, j.log)
	if errors.Is(err, sandbox.Conflict) {
		return nil, fmt.Errorf("a session-manager, or another server with all roles, uses this database: stop it, and wait 10 seconds if it was killed, or run the roles as programs of their own here too: %w", err)
	}
	return keep, err
}

// begin starts every server process: it gives up its rights and opens its roles'
// dependencies.
func begin(ctx context.Context, cfg config.Config, in launch.Inherited, log *slog.Logger) (*joined, error) {
	boundMemory()
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	if err := giveUpRights(); err != nil {
		return nil, err
	}
	return open(ctx, cfg, in, log)
}

// joined holds the dependencies of roles.
type joined struct {
	cfg       config.Config
	layout    launch.Layout
	seed      []byte                  // nil, as secrets: the process's role needs none
	secrets   *secrets.Service        // nil, as seed
	store     sandbox.Store           // nil: the process is a Node alone
	shared    *sqlstore.Store         // store, if other hosts may use it too; nil: it is this data folder's
	records   sandbox.NodeRecords     // of a process that is a Node
	kept      *builder.Client         // of the Templates in the data folder
	images    sandbox.Images          // of templates
	templates rpc.Home                // kept, or the Templates of another Node
	catalog   sandbox.TemplateCatalog // of templates
	builds    sandbox.TemplateBuilds  // of templates
	starts    sandbox.TemplateFinder  // of templates, for new Sandboxes
	stored    *uploads.Store          // in the data folder
	uploads   sandbox.TemplateUploads // stored, or the uploads at another Node
	listeners []net.Listener
	log       *slog.Logger
	registry  *prometheus.Registry // of this process
	// revokedHosts is cluster.Identity.RevokedHosts; nil: the process is in no cluster.
	revokedHosts func() []byte
	// buildKey is cluster.Identity.BuildKey; nil: as revokedHosts.
	buildKey func() []byte
	blobs    sandbox.Blobs       // of a process that is a Node; nil: not configured
	engine   *gvisor.Engine      // of a process that is a Node
	boots    sandbox.Engine      // engine, or replicas around it
	replicas *replication.Engine // nil: saved states are kept on the host only
	points   *failpoint.Points   // nil: off
	hooks    *webhook.Sender     // nil: as store
	acme     *acme.Certificates  // nil: no ACME
	limiter  *redis.Limiter      // nil: rate limits of this process alone
}

// open opens the dependencies of every process.
func open(ctx context.Context, cfg config.Config, in launch.Inherited, log *slog.Logger) (*joined, error) {
	j := &joined{cfg: cfg, layout: launch.Layout{Root: cfg.Data}, listeners: in.Listeners, log: log, registry: newRegistry(cfg.Version)}
	if cfg.DevFailpoint != "" {
		log.Warn("CLOUD_SANDBOX_DEV_FAILPOINT is set: tests can kill this server")
		j.points = failpoint.New(cfg.DevFailpoint, nil)
	}
	if err := j.cfg.ReadSecrets(); err != nil {
		return nil, err
	}
	j.stored = uploads.New(uploads.Config{Dir: filepath.Join(j.layout.Server(), "uploads"), Log: log})
	j.uploads = j.stored
	images, err := template.Open(j.layout.Templates())
	if err != nil {
		return nil, err
	}
	if cfg.Role == config.RoleNode {
		j.kept = builder.NewClient(images, templateQuotas{j}, j.layout.BuilderSocket())
		j.images, j.templates = images, j.kept
		return j, nil
	}
	store, err := openConfigured(ctx, j.layout, cfg.Database)
	if err != nil {
		return nil, err
	}
	store.SetDefaultQuota(cfg.Quota)
	j.store, j.kept = store, builder.NewClient(images, store, j.layout.BuilderSocket())
	j.images, j.templates, j.catalog, j.builds, j.starts = images, j.kept, j.kept, j.kept, j.kept
	j.records = session.NodeRecords{Store: store, Home: cfg.TemplatesNode}
	if cfg.Database != "" {
		j.shared = store
	}
	j.hooks = webhook.New(webhook.Config{
		Store: store, URLs: cfg.Webhooks, Kinds: cfg.WebhookEvents, Secret: cfg.WebhookSecret, Log: log, Registry: j.registry,
	})
	if err := j.openSecrets(ctx); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return j, nil
}

// close closes the database, if this process has one.
func (j *joined) close() {
	if j.store != nil {
		_ = j.store.Close() // the process ends
	}
}

// nodeName is the name of the Node of this process.
func (j *joined) nodeName() string {
	if j.cfg.Role == "" {
		return config.DefaultNode
	}
	return cmp.Or(j.cfg.NodeName, config.DefaultNode)
}

// hostName is the name of this host in the engine's errors: the name of its node, unless
// that is the default. Empty: none.
func hostName(cfg config.Config) string {
	if cfg.NodeName == config.DefaultNode {
		return ""
	}
	return cfg.NodeName
}

func (j *joined) openEngine(ctx context.Context, in launch.Inherited) error {
	roots, err := j.cfg.ReadRoots()
	if err != nil {
		return err
	}
	var earlier *builds.Store
	if j.cfg.Blobs.Wanted() {
		if j.blobs, err = OpenBlobs(ctx, &j.cfg.Blobs, j.log); err != nil {
			return err
		}
		if j.buildKey != nil {
			earlier = &builds.Store{Blobs: j.blobs}
		}
	}
	if j.engine, err = gvisor.Open(ctx, gvisor.Config{
		Socket: in.HostSocket, Log: j.log,
		Earlier: gvisor.Earlier{
			Running: in.Earlier, Socket: j.layout.HostSocket, Need: j.layout.NeedSocket, OldestGVisor: j.cfg.OldestGVisor,
		},
		Network:    link.Settings{Open: j.cfg.EgressOpen, NameServers: j.cfg.NameServers, Roots: roots, Proxy: j.cfg.UpstreamProxy, Fenced: j.cfg.Role == config.RoleNode},
		SavedCache: j.cfg.SnapshotCache, PackAfter: j.cfg.SnapshotPackAfter,
		CPU: j.cfg.CPU, Host: hostName(j.cfg), Spares: j.cfg.SpareSentries, Revoked: j.revokedHosts,
		BuildKey: j.buildKey, Builds: earlier,
	}); err != nil {
		return fmt.Errorf("reach the engine: %w", err)
	}
	if err := j.openOffload(); err != nil {
		return errors.Join(err, j.engine.Close())
	}
	return nil
}

// all makes and starts the roles in dependency order: a role's calls to another are
// method calls here.
func (j *joined) all(ctx context.Context) (*run.Parts, error) {
	var manager *session.Manager
	// The Node reports only while it runs, which is after manager is set.
	ends := func(ctx context.Context, e sandbox.BootEnd) error { return manager.BootEnded(ctx, e) }
	n, err := j.node(ctx, "", elsewhere{}, ends)
	if err != nil {
		return nil, err
	}
	placement := scheduler.New(j.store, nil, j.log)
	manager = j.manager(j.store, newLives(j.registry, j.store, func() bool { return true }), n, placement, 0)
	names := func(context.Context) ([]string, error) { return []string{j.nodeName()}, nil }
	j.openLimiter(ctx)
	door, err := j.door(manager, n, names)
	if err != nil {
		return nil, err
	}
	parts := new(run.Parts)
	parts.Start("events", ended(j.hooks.Run))
	parts.Start("memory", ended(returnMemory))
	if err := j.deliver(ctx, parts); err != nil {
		return nil, err
	}
	j.followBuilds(parts, door)
	collecting, err := j.openCollecting(ctx)
	if err != nil {
		return nil, err
	}
	parts.Start("unneeded copies", ended(func(ctx context.Context) error { return collecting.run(ctx, j.store) }))
	parts.Start("scheduler", ended(placement.Run))
	parts.Start("session-manager", ended(manager.Run))
	parts.Start("node", ended(n.Run))
	parts.Start("uploads", ended(j.stored.Run))
	j.startOffload(parts)
	j.startACME(parts)
	j.startLimiter(parts)
	parts.Start("gateway", ended(func(ctx context.Context) error { return door.Run(ctx, j.listeners...) }))
	return parts, nil
}

// deliver starts sending webhooks from this process.
func (j *joined) deliver(ctx context.Context, parts *run.Parts) error {
	if err := j.hooks.Open(ctx, j.store); err != nil {
		return fmt.Errorf("webhooks: %w", err)
	}
	parts.Start("webhooks", ended(func(ctx context.Context) error { return j.hooks.Deliver(ctx, j.store) }))
	return nil
}

// followBuilds sends events of finished Template builds. These are the builds that a
// gateway runs step by step, and the builder's builds that are not part of such a
// build.
func (j *joined) followBuilds(parts *run.Parts, door *gateway.Server) {
	since := func(ctx context.Context, since time.Time) ([]sandbox.Event, error) {
		events := door.EndedBuilds(since)
		builds, err := j.templates.Ended(ctx, since)
		for _, b := range builds {
			if e, over := b.Event(); over && b.Build == "" {
				events = append(events, e)
			}
		}
		return events, err
	}
	parts.Start("ends of builds", ended(func(ctx context.Context) error { return j.hooks.Follow(ctx, since) }))
}

// node opens the Node of this machine.
// carrier brings images to it; nil: they are here.
func (j *joined) node(ctx context.Context, address string, others elsewhere, ends func(context.Context, sandbox.BootEnd) error) (*node.Node, error) {
	trusted, err := j.cfg.ReadCACerts()
	if err != nil {
		return nil, err
	}
	volumes, err := disk.Open(j.layout.Volumes())
	if err != nil {
		return nil, err
	}
	n, err := node.Open(ctx, node.Config{
		Name: j.nodeName(), Address: address, Version: j.cfg.Version, Dir: j.layout.Node(), Volumes: volumes, Homes: others.volumes,
		Engine: j.boots, Leases: j.records, Images: j.images, Held: j.kept.ListImages, Carrier: others.images, Log: j.log,
		Guest: func(dial node.Dial) node.GuestControl {
			return client.New(client.Dial(dial), client.WithTrusted(trusted))
		},
		Pools:   []node.PoolConfig{{Template: "base", Min: j.cfg.PoolMin, Max: j.cfg.PoolMax}},
		MaxWait: j.cfg.StartWait, OnEnd: ends, Observe: newBoots(j.registry).step,
		Fencer: j.fencer(), FenceAfter: j.cfg.FenceAfter(),
	})
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	j.registry.MustRegister(&nodeCollector{n, j.nodeName()}, &networkCollector{j.engine.NetworkCounts, j.nodeName()})
	return n, nil
}

// fencer is the fence of a Node on its own; nil: a server with all roles has none.
func (j *joined) fencer() sandbox.Fencer {
	if j.cfg.Role != config.RoleNode {
		return nil
	}
	return j.engine
}

// manager makes a session manager that writes to store. grace is how long a Node may be
// away; zero: the default. The audit log gets its entries in any case: they are of ends
// that are recorded already.
func (j *joined) manager(store sandbox.Store, l *lives, nodes sandbox.Nodes, placement sandbox.Placement, grace time.Duration) *session.Manager {
	if j.points != nil {
		store = j.points.Store(store)
	}
	return session.New(store, nodes, placement, j.images, session.Config{
		Network: j.cfg.Egress, Engine: "gvisor", StopGrace: stopGrace, NodeGrace: grace, UsageLife: j.cfg.UsageLife, LayerBytes: j.cfg.BuildCache, Log: j.log,
		AccessToken: func(id string) string { return guest.AccessToken(j.seed, id) },
		OpenSecret:  j.secrets.Open,
		Authority:   func(id string) (string, string, error) { return sandboxca.New(j.seed, id) },
		Created:     l.created, OnTransition: l.transition, Survived: l.survived, Event: j.hooks.Queue,
		Imported: j.templates,
		OnPruned: func(ctx context.Context, snap sandbox.Snapshot) { auditPruned(ctx, j.store, j.log, snap) },
		Ended: func(ctx context.Context, sb sandbox.Sandbox) {
			l.ended(sb.Ended.Cause)
			if c := sb.Ended.Cause; c == sandbox.CauseOOM || c == sandbox.CauseDiskFull {
				j.hooks.Queue(sandbox.Event{Kind: sandbox.EventLimitKill, Tenant: sb.Tenant, Sandbox: sb.ID, Operation: sandbox.AuditEnded, Reason: string(c)})
			}
			auditEnd(ctx, j.store, j.log, sb)
		},
	})
}

// door makes the gateway.
func (j *joined) door(sandboxes sandbox.Sandboxes, nodes sandbox.Nodes, names func(context.Context) ([]string, error)) (*gateway.Server, error) {
	secret, err := j.tokenSecret()
	if err != nil {
		return nil, err
	}
	tokens, err := gateway.NewTokens(secret, nil)
	if err != nil {
		return nil, err
	}
	secure, devAuthority, err := j.certificates()
	if err != nil {
		return nil, err
	}
	var records sandbox.BuildRecords
	if j.shared != nil {
		records = j.shared.SharedBuilds()
	}
	apiKeys := keys.New(j.store, j.log)
	c := gateway.Config{
		Version: j.cfg.Version,
		TLS:     secure, DevAuthority: devAuthority,
		Sandboxes: sandboxes, Lifecycle: sandboxes, Updates: sandboxes, Snapshots: sandboxes, SnapshotFiles: sandboxes, Volumes: sandboxes,
		Boots: nodes, Reports: nodes, NodeVolumes: nodes, VolumeFiles: nodes,
		Templates: j.catalog, Starts: j.starts, TemplateBuilds: j.builds, TemplateQuota: j.templates, Tokens: tokens, Dev: j.cfg.Dev, Log: j.log, Registry: j.registry,
		Keys: apiKeys, Secrets: j.secrets, Store: j.store, CheckWrite: j.store.CheckWrite,
		Tenants:     tenants.New(tenants.Config{Store: j.store, Templates: j.templates, Audit: j.store, Event: j.hooks.Queue, Log: j.log}),
		Users:       users.New(users.Config{Store: j.store, Audit: j.store, Revoked: apiKeys.Distrust, Log: j.log}),
		SigningKeys: j.store, Quotas: j.store, Audit: j.store, AuditLife: j.cfg.AuditLife, Limits: j.cfg.RateLimits, TrustedProxies: j.cfg.TrustedProxies,
		Usage: j.store, Prices: j.cfg.Prices, Issuers: oidc.New(j.cfg.Issuers),
		Event:     j.hooks.Queue,
		NodeNames: names, NodeRecords: j.store, Records: j.store, Forward: client.Forward, Domain: j.cfg.Domain, E2BTemplates: j.cfg.E2BTemplates, InexactImages: j.cfg.InexactImages, E2BSecure: j.cfg.E2BSecure,
		Uploads:      j.uploads,
		Spool:        j.layout.Server(),
		Builds:       filepath.Join(j.layout.Server(), "builds"),
		BuildRecords: records,
		AccessToken:  func(id string) string { return guest.AccessToken(j.seed, id) },
		TrafficToken: func(id string) string { return guest.TrafficToken(j.seed, id) },
		NewGuest: func(id string, dial execution.Dial) execution.Guest {
			return client.New(client.Dial(dial), client.WithToken(guest.AccessToken(j.seed, id)))
		},
	}
	if j.limiter != nil {
		c.Limiter = j.limiter
	}
	return gateway.New(c), nil
}

// openLimiter has this process count requests together with other gateways, if that is
// configured. It comes before door, and startLimiter after it.
func (j *joined) openLimiter(ctx context.Context) {
	if j.cfg.Redis != nil {
		j.limiter = redis.Open(ctx, redis.Config{Address: *j.cfg.Redis, Rules: j.cfg.RateLimits, Log: j.log, Registry: j.registry})
	}
}

func (j *joined) startLimiter(parts *run.Parts) {
	if j.limiter != nil {
		parts.Start("rate limits", ended(j.limiter.Run))
	}
}

// certificates is the TLS configuration for clients; nil: no TLS. It sets j.acme for an
// ACME authority; devAuthority is dev mode's authority in PEM.
func (j *joined) certificates() (secure *tls.Config, devAuthority string, err error) {
	switch a := j.cfg.ACME; {
	case len(a.Hosts) > 0:
		j.acme, err = acme.New(acme.Config{
			Hosts: a.Hosts, Email: a.Email, Directory: a.Directory, Dir: filepath.Join(j.layout.Server(), "acme"), Log: j.log,
		})
		if err != nil {
			return nil, "", err
		}
		return j.acme.TLS(), "", nil
	case j.cfg.TLSCert != "":
		c, err := gateway.NewCertificate(j.cfg.TLSCert, j.cfg.TLSKey, j.log)
		if err != nil {
			return nil, "", err
		}
		return c.TLS(), "", nil
	case j.cfg.DevTLS:
		return devTLS(j.seed, j.cfg.Domain)
	}
	return nil, "", nil
}

// startACME requests certificates before clients need them.
func (j *joined) startACME(parts *run.Parts) {
	if j.acme != nil {
		parts.Start("certificates", ended(j.acme.Run))
	}
}

// ended turns a part's end on request into nil.
func ended(f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := f(ctx); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// giveUpRights makes sure that the server cannot gain rights, and raises its limit to a
// descriptor for each link.
func giveUpRights() error {
	if os.Geteuid() == 0 {
		return errors.New("the server runs as root, which it must not: start it with `cloud-sandbox serve`")
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up rights: %w", err)
	}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err == nil {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
	}
	return nil
}
