package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/scheduler"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/lead"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/run"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/copies"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/fetch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/recall"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploads"
)

const (
	// nodeGrace is how long a Node's process may be away before its Sandboxes count as
	// lost. Boots keep running without the process. On one machine, the Node that
	// returns has the best record of its Boots. Sandboxes that it never reports end at
	// their deadlines.
	nodeGrace = sandbox.MaxTimeout
	// silentNode is how long after the end of its Lease a Node's metrics are still read.
	silentNode = 10 * time.Minute
)

// RunRole runs a process with the single role cfg.Role, without rights, until ctx ends.
// Sandboxes keep running after it returns.
func RunRole(ctx context.Context, cfg config.Config, in launch.Inherited, log *slog.Logger) error {
	defer in.Close()
	j, err := begin(ctx, cfg, in, log)
	if err != nil {
		return err
	}
	defer j.close()
	secrets := j.cfg // with the secrets from files
	secrets.Data = j.layout.Server()
	if err := secrets.KeepServiceSecret(); err != nil {
		return err
	}
	keys, err := rpc.NewKeys(secrets.ServiceSecret)
	if err != nil {
		return err
	}
	r := &role{joined: j, self: rpc.Self{Role: rpc.Role(cfg.Role), Keys: keys}}
	start := map[string]func(context.Context, *run.Parts) error{
		config.RoleGateway:        r.gateway,
		config.RoleSessionManager: r.sessionManager,
		config.RoleScheduler:      r.scheduler,
		config.RoleNode: func(ctx context.Context, parts *run.Parts) error {
			return r.node(ctx, in, secrets.ServiceSecret, parts)
		},
	}[cfg.Role]
	if start == nil {
		return fmt.Errorf("no role %q", cfg.Role)
	}
	parts := new(run.Parts)
	if err := r.openIdentity(parts); err != nil {
		return err
	}
	if j.hooks != nil {
		parts.Start("events", ended(j.hooks.Run))
	}
	parts.Start("memory", ended(returnMemory))
	if err := start(ctx, parts); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // asked to end while it waited for another role
		}
		return err
	}
	in.Ready(log)
	log.Info("this role is ready", "addr", cfg.Addr, "data", cfg.Data)
	return parts.Wait(ctx)
}

// role joins one role with clients of the others.
type role struct {
	*joined
	self rpc.Self
}

// at is the address of a role: the configured one, or its socket.
func (r *role) at(role, url string) string {
	if url != "" {
		return url
	}
	return rpc.UnixAddress(r.layout.Socket(role))
}

// useHome takes the Templates, and the uploads for their builds, from the Node that keeps
// them, if that is another one. A process with a database that others share remembers that
// Node's answers there.
// close frees its connections.
func (r *role) useHome(parts *run.Parts) (close func()) {
	if r.cfg.KeepsTemplates() {
		return func() {}
	}
	home := rpc.NewTemplates(r.cfg.TemplatesNode, r.cfg.TemplatesURL, r.self)
	r.images, r.templates, r.uploads = home, home, uploads.AtHome(home, r.stored)
	r.catalog, r.builds, r.starts = home, home, home
	if r.shared != nil {
		names := recall.New(home, r.shared.SharedNames(), r.log)
		changes := recall.Forgetting{TemplateCatalog: home, TemplateBuilds: home, Names: names}
		r.images, r.catalog, r.builds, r.starts = names, changes, changes, names
		parts.Start("names of templates", ended(names.Run))
	}
	return home.Close
}

func (r *role) gateway(ctx context.Context, parts *run.Parts) error {
	closeHome := r.useHome(parts)
	nodes := rpc.NewNodes(r.store.Nodes, r.self)
	r.openLimiter(ctx)
	door, err := r.door(lifeOf(r.sandboxes(), r.store), nodes, r.nodeNames)
	if err != nil {
		return err
	}
	r.followBuilds(parts, door)
	parts.Start("uploads", ended(r.stored.Run))
	r.startACME(parts)
	r.startLimiter(parts)
	parts.Start("gateway", ended(func(ctx context.Context) error {
		defer closeHome()
		defer nodes.Close()
		return door.Run(ctx, r.listeners...)
	}))
	return nil
}

// life is a gateway's session manager: changes go to the manager's process, and reads go
// to the Store, so that running Sandboxes are reachable while that process is away.
type life struct {
	sandbox.Sandboxes
	records session.Records
}

func lifeOf(manager sandbox.Sandboxes, store sandbox.Store) life {
	return life{manager, session.Records{Store: store}}
}

func (l life) Get(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	return l.records.Get(ctx, tenant, idOrName)
}

func (l life) List(ctx context.Context, tenant sandbox.TenantID, query sandbox.ListQuery) (sandbox.Page, error) {
	return l.records.List(ctx, tenant, query)
}

func (l life) Counts(ctx context.Context, tenant sandbox.TenantID) (map[sandbox.State]int, error) {
	return l.records.Counts(ctx, tenant)
}

func (l life) GetVolume(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Volume, error) {
	return l.records.GetVolume(ctx, tenant, idOrName)
}

func (l life) ListVolumes(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Volume, error) {
	return l.records.ListVolumes(ctx, tenant)
}

// nodeNames lists the Nodes that exist, or existed until recently.
func (r *role) nodeNames(ctx context.Context) ([]string, error) {
	records, err := r.store.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range records {
		if n.LeaseLeft > -silentNode {
			names = append(names, n.Name)
		}
	}
	return names, nil
}

func (r *role) sessionManager(ctx context.Context, parts *run.Parts) error {
	closeHome := r.useHome(parts)
	placement := rpc.NewPlacement(r.at(config.RoleScheduler, r.cfg.SchedulerURL), r.self)
	ready := func(ctx context.Context) []string {
		return whyNot(placement.Alive(ctx), r.storeAnswers(ctx))
	}
	collect, err := r.openCollecting(ctx)
	if err != nil {
		return err
	}
	l := &leadership{role: r, placement: placement, collect: collect}
	claim, err := r.claim(ctx, r.cfg.Role, r.at(config.RoleSessionManager, r.cfg.SessionManagerURL))
	if err != nil {
		return err
	}
	if err := r.serve(parts, ready, l.leads, rpc.LeaderService(l.join), rpc.NodeRecordsService(r.records)); err != nil {
		return err
	}
	l.lives = newLives(r.registry, r.store, l.leads)
	registerLeader(r.registry, l.leads)
	registerVersions(r.registry, r.store.Nodes, l.leads)
	parts.Start("session-manager", ended(func(ctx context.Context) error {
		defer closeHome()
		defer placement.Close()
		return lead.Run(ctx, lead.Config{Store: r.store, Claim: claim, Serve: l.serve, Log: r.log})
	}))
	return nil
}

func (r *role) scheduler(_ context.Context, parts *run.Parts) error {
	nodes := rpc.NewNodes(r.store.Nodes, r.self)
	placement := scheduler.New(r.store, nodes, r.log)
	ready := func(ctx context.Context) []string {
		return whyNot(placement.Ready(ctx))
	}
	if err := r.serve(parts, ready, nil, rpc.SchedulerService(placement)); err != nil {
		return err
	}
	parts.Start("scheduler", ended(func(ctx context.Context) error {
		defer nodes.Close()
		return placement.Run(ctx)
	}))
	return nil
}

func (r *role) node(ctx context.Context, in launch.Inherited, secret []byte, parts *run.Parts) error {
	name := r.nodeName()
	r.self.Name = name
	records, err := r.openRecords(ctx, secret)
	if err != nil {
		return err
	}
	r.records = records
	if err := r.openEngine(ctx, in); err != nil {
		records.Close()
		return err
	}
	if home := strings.HasPrefix(r.cfg.TemplatesURL, "https:"); home && (r.cfg.TemplatesNode == name) != r.cfg.KeepsTemplates() {
		return fmt.Errorf("CLOUD_SANDBOX_TEMPLATES_NODE is %s and this node is %s, which its two addresses contradict: on the node that keeps the templates, and only there, CLOUD_SANDBOX_TEMPLATES_URL equals CLOUD_SANDBOX_NODE_URL", r.cfg.TemplatesNode, name)
	}
	ends := rpc.NewLeader(leaderAt(r.managers()[0], records.LeaderOf), r.self)
	closeHome := r.useHome(parts)
	carrier, services, err := r.imagesOf(parts)
	if err != nil {
		return errors.Join(err, r.engine.Close())
	}
	homes := volumeHomes{records, rpc.NewVolumeHomes(r.self)}
	n, err := r.joined.node(ctx, r.at(config.RoleNode, r.cfg.NodeURL), elsewhere{carrier, homes}, ends.BootEnded)
	if err != nil {
		return errors.Join(err, r.engine.Close())
	}
	r.startOffload(parts)
	ready := func(ctx context.Context) []string {
		stats, err := n.Stats(ctx, name)
		return append(whyNot(err), stats.NotReady...)
	}
	parts.Start("node", ended(func(ctx context.Context) error {
		defer r.engine.Close()
		defer closeHome()
		defer ends.Close()
		defer homes.peers.Close()
		defer records.Close()
		return n.Run(ctx)
	}))
	return r.serve(parts, ready, nil, append(services, rpc.NodeService(n, n))...)
}

// volumeHomes are the Nodes that store Volumes, as a Node finds and reaches them.
type volumeHomes struct {
	sandbox.NodeRecords
	peers *rpc.VolumeHomes
}

// DialVolumes implements node.Homes.
func (h volumeHomes) DialVolumes(ctx context.Context, at sandbox.VolumeHome, to sandbox.BootPlace) (net.Conn, error) {
	return h.peers.DialVolumes(ctx, at, to)
}

// elsewhere reaches the other Nodes; zero: this is the only Node.
type elsewhere struct {
	images  node.Carrier
	volumes node.Homes
}

// imagesOf returns the service of the Templates if this Node keeps them, and otherwise
// the Carrier that brings their images to this Node. The other result is nil.
func (r *role) imagesOf(parts *run.Parts) (node.Carrier, []rpc.Service, error) {
	var copied *copies.Copies
	if r.blobs != nil && r.cfg.NodeURL != "" { // nodes on other machines may share them
		var err error
		if copied, err = copies.Open(r.blobs, r.cfg.Blobs.Keys); err != nil {
			return nil, nil, fmt.Errorf("copies of images: %w", err)
		}
	}
	if r.cfg.KeepsTemplates() {
		parts.Start("uploads", ended(r.stored.Run))
		if err := r.copyImages(parts, copied); err != nil {
			return nil, nil, err
		}
		return nil, []rpc.Service{rpc.TemplateService(r.kept, r.stored)}, nil
	}
	cfg := fetch.Config{Home: r.templates, Here: r.kept, Log: r.log}
	if copied != nil {
		cfg.Copies = copied
	}
	images := fetch.New(cfg)
	parts.Start("images of templates", ended(images.Run))
	return images, nil, nil
}

// copyImages starts copying the images of the Templates; nil: no copies are kept.
func (r *role) copyImages(parts *run.Parts, to *copies.Copies) error {
	if to == nil {
		return nil
	}
	keeper, err := copies.NewKeeper(copies.KeeperConfig{
		Copies: to, Images: r.kept, Dir: filepath.Join(r.layout.Server(), "images"), Log: r.log,
		Needed: func(ctx context.Context, version string) (bool, error) {
			_, err := r.records.NeedsImage(ctx, r.nodeName(), version)
			if errors.Is(err, sandbox.NotFound) {
				return false, nil
			}
			return err == nil, err
		},
	})
	if err != nil {
		return err
	}
	r.registry.MustRegister(&imageCopiesCollector{keeper, r.nodeName()})
	parts.Start("copies of images", ended(keeper.Run))
	return nil
}

// serve serves a role's services on its socket and its port. leads is nil for a role
// without a leader.
func (r *role) serve(parts *run.Parts, ready func(context.Context) []string, leads func() bool, services ...rpc.Service) error {
	local, err := r.listenLocal()
	if err != nil {
		return err
	}
	monitors, err := r.monitors()
	if err != nil {
		return err
	}
	server := &rpc.Server{
		Role: r.self.Role, Keys: r.self.Keys, Identity: r.self.Identity, Services: services, Monitors: monitors,
		Ready: ready, Leads: leads, Registry: r.registry, Log: r.log,
	}
	parts.Start(r.cfg.Role+"'s door", ended(func(ctx context.Context) error {
		return server.Run(ctx, append(r.forRoles(r.listeners), local)...)
	}))
	return nil
}

// listenLocal opens the role's socket. An existing file is stale: this process holds the
// role's lock.
func (r *role) listenLocal() (net.Listener, error) {
	path := r.layout.Socket(r.cfg.Role)
	if len(path) >= len(unix.RawSockaddrUnix{}.Path) {
		return nil, fmt.Errorf("the path of the data folder is too long for a socket: %s", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for the other roles: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the other roles: %w", err)
	}
	return rpc.OwnUser(ln, r.log), nil
}

// storeAnswers returns an error if the database cannot be read or written.
func (r *role) storeAnswers(ctx context.Context) error {
	if _, err := r.store.Nodes(ctx); err != nil {
		return err
	}
	return r.store.CheckWrite(ctx)
}

// whyNot turns each error into one public sentence.
func whyNot(errs ...error) []string {
	var all []string
	for _, err := range errs {
		var told *sandbox.Error
		switch {
		case err == nil:
		case errors.As(err, &told):
			all = append(all, told.Detail)
		default:
			all = append(all, "a dependency does not answer")
		}
	}
	return all
}
