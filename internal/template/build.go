package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// builderVersion grows when the steps change, so that Templates are built
// anew.
const builderVersion = 1

// Builder makes Templates. Only Store is required. Builds need root, because
// files in a root filesystem have owners.
type Builder struct {
	Store *Store
	Log   *slog.Logger // nil: nothing is logged

	Cache       string // folder of downloads; empty: one in the Store
	NPMRegistry string // address; empty: what the host's npm uses, else the public one
	Force       bool   // build also what is there
}

// Progress is where a build is.
type Progress struct {
	Stage  string // one word, for example "debootstrap"
	Detail string // what it does now
	Done   int    // zero: not counted
	Total  int    // zero: not known
}

// String is a line without its end, for example
// "debootstrap: unpacking 87/131".
func (p Progress) String() string {
	text := p.Stage + ": " + p.Detail
	switch {
	case p.Total > 0:
		text += " " + strconv.Itoa(p.Done) + "/" + strconv.Itoa(p.Total)
	case p.Done > 0:
		text += " " + strconv.Itoa(p.Done)
	}
	return text
}

// Build makes the Template name of source, unless its present version was made
// of the same (see Image.Cached). progress, which may be nil, is called often,
// one call at a time, and not after Build returns.
//
// Of two builders of one name, also in two processes, the second waits and
// takes what the first made. A build that dies, however, leaves nothing in use:
// no mount, no process, and files that the next build removes.
//
// It returns Invalid for a bad name or source, Unsupported when the host lacks
// rights or a tool, naming its package, Exhausted when the disk is too full,
// and Unavailable when what it needs from the network does not come.
func (b *Builder) Build(ctx context.Context, name string, source Source, progress func(Progress)) (Image, error) {
	if err := checkName(name); err != nil {
		return Image{}, err
	}
	if err := source.check(); err != nil {
		return Image{}, err
	}
	plan, err := b.plan(ctx, source)
	if err != nil {
		return Image{}, err
	}
	if image, ok := b.cached(name, plan.inputs); ok && !b.Force {
		return image, nil
	}
	if err := b.ready(); err != nil {
		return Image{}, err
	}
	run := &build{Builder: b, name: name, plan: plan, progress: progress, dir: b.Store.path("build", name)}
	return run.locked(ctx)
}

// A plan is what a build works from.
type plan struct {
	asked  Source
	image  *name.Digest // nil: not of an image, or not known yet
	distro distribution
	inputs string
	fill   func(*build, context.Context) error // brings in all but what finishTree adds
}

// plan finds out what source means today. A Base asks no registry before it is
// known that a build is needed: what it was made of once is good enough.
func (b *Builder) plan(ctx context.Context, source Source) (plan, error) {
	p := plan{asked: source, fill: (*build).fill}
	switch source.kind {
	case kindOCI:
		digest, err := findImage(ctx, source.ref)
		if err != nil {
			return plan{}, err
		}
		p.image = &digest
	case kindDebian:
		p.distro = chooseDistribution(os.DirFS("/"), source.ref)
	case kindBase:
		p.distro = chooseDistribution(os.DirFS("/"), "")
	}
	p.inputs = p.hash()
	return p, nil
}

// hash names all that goes into the image, as far as it is known.
func (p plan) hash() string {
	image := ""
	if p.image != nil {
		image = p.image.DigestStr()
	}
	body, err := json.Marshal([]any{
		builderVersion, p.asked.String(), image, p.distro, packages, pythonPackages,
		nodePackages[runtime.GOARCH], npmPackage, runtime.GOARCH,
	})
	if err != nil {
		panic(err) // strings always encode
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func (b *Builder) cached(name, inputs string) (Image, bool) {
	image, err := b.Store.readRef(name)
	if err != nil || image.Inputs != inputs {
		return Image{}, false
	}
	image.Cached = true
	return image, true
}

// minFree is what a build needs on disk at its height, in bytes.
const minFree = 2 << 30

// ready checks what would otherwise fail late.
func (b *Builder) ready() error {
	if os.Geteuid() != 0 {
		return sandbox.Errorf(sandbox.Unsupported, "building a template needs root, because the files in it have owners")
	}
	if err := needTools("mkfs.erofs", "mount"); err != nil {
		return err
	}
	if err := b.Store.makeFolders(); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(b.Store.dir, &st); err != nil {
		return fmt.Errorf("look at the template store's disk: %w", err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < minFree {
		return sandbox.Errorf(sandbox.Exhausted, "building a template needs %d MiB of free disk and there are %d", minFree>>20, free>>20)
	}
	return nil
}

func (b *Builder) cache() string {
	if b.Cache != "" {
		return b.Cache
	}
	return b.Store.path("cache")
}

func (b *Builder) logger() *slog.Logger {
	if b.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return b.Log
}

// A build is one run of Builder.Build that holds the lock of its name.
type build struct {
	*Builder
	name string
	plan plan
	dir  string // scratch, removed at the end
	root string // the tree, in dir
	tree tree
	log  io.Writer // what programs print

	newest time.Time // files of the build are dated so
	env    map[string]string
	source string // what the tree is really made of

	mu       sync.Mutex // guards progress
	progress func(Progress)
}

// say reports progress.
func (b *build) say(stage, detail string, done, total int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.progress != nil {
		b.progress(Progress{stage, detail, done, total})
	}
}

// locked builds unless another builder just did.
func (b *build) locked(ctx context.Context) (Image, error) {
	began, waited := time.Now(), false
	release, err := b.Store.lock(ctx, b.name, func() {
		waited = true
		b.say("wait", "another process is building "+b.name, 0, 0)
	})
	if err != nil {
		return Image{}, err
	}
	defer release()
	if image, ok := b.cached(b.name, b.plan.inputs); ok && (!b.Force || (waited && image.CreatedAt.After(began))) {
		return image, nil
	}
	if err := removeTree(b.dir); err != nil {
		return Image{}, fmt.Errorf("remove what an earlier build left: %w", err)
	}
	image, err := b.make(ctx)
	if cleanup := removeTree(b.dir); err == nil && cleanup != nil {
		b.logger().Warn("a finished build left files", "error", cleanup)
	}
	return image, err
}

// removeTries is how often removeTree tries: children of a killed builder die
// with it, but perhaps a moment after its lock.
const removeTries = 20

func removeTree(dir string) (err error) {
	for range removeTries {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// make runs the whole build.
func (b *build) make(ctx context.Context) (Image, error) {
	b.root = filepath.Join(b.dir, "root")
	if err := os.MkdirAll(b.root, 0o755); err != nil {
		return Image{}, fmt.Errorf("make the tree: %w", err)
	}
	if err := os.Chmod(b.root, 0o755); err != nil { // "/" of every Sandbox
		return Image{}, fmt.Errorf("make the tree: %w", err)
	}
	root, err := os.OpenRoot(b.root)
	if err != nil {
		return Image{}, fmt.Errorf("make the tree: %w", err)
	}
	defer root.Close()
	b.tree = tree{root}
	log, err := os.Create(b.Store.path("build", b.name+".log"))
	if err != nil {
		return Image{}, fmt.Errorf("make the build's log: %w", err)
	}
	defer log.Close()
	b.log = log

	if err := b.plan.fill(b, ctx); err != nil {
		return Image{}, err
	}
	if err := b.finishTree(ctx); err != nil {
		return Image{}, err
	}
	return b.store(ctx)
}

// fill brings in packages and, at the same time, Node.js.
func (b *build) fill(ctx context.Context) error {
	var node, npm string
	parts, partsCtx := errgroup.WithContext(ctx)
	parts.Go(func() (err error) {
		node, npm, err = b.fetchNode(partsCtx)
		return err
	})
	parts.Go(func() error { return b.fillTree(partsCtx) })
	if err := parts.Wait(); err != nil {
		return err
	}
	return b.installNode(node, npm)
}

// fillTree makes the tree of the plan's source; for a Base it decides here.
func (b *build) fillTree(ctx context.Context) error {
	image := b.plan.image
	if b.plan.asked.kind == kindBase {
		ref := b.plan.asked.ref
		b.say("image", "asking for "+ref, 0, 0)
		digest, err := findImage(ctx, ref)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			b.logger().Info("the template is made of an image", "template", b.name, "image", digest.String())
			b.say("source", "the image "+digest.String(), 0, 0)
			image = &digest
		} else {
			b.logger().Warn("the template is made of packages, because no registry gives the image",
				"template", b.name, "image", ref, "distribution", b.plan.distro.Name, "suite", b.plan.distro.Suite, "mirror", b.plan.distro.Mirror, "error", err)
			b.say("source", fmt.Sprintf("%s %s packages, because no registry gives %s (%v)", b.plan.distro.Name, b.plan.distro.Suite, ref, err), 0, 0)
		}
	}
	if image != nil {
		b.source = kindOCI + ":" + image.String()
		return b.ociTree(ctx, *image)
	}
	b.source = kindDebian + ":" + b.plan.distro.Suite
	return b.debianTree(ctx, b.plan.distro)
}

// store makes the image file and lets the name mean it.
func (b *build) store(ctx context.Context) (Image, error) {
	b.say("erofs", "writing the image", 0, 0)
	file := filepath.Join(b.dir, "image.erofs")
	if err := makeErofs(ctx, b.root, file, b.newest); err != nil {
		return Image{}, err
	}
	digest, size, err := b.Store.adopt(file)
	if err != nil {
		return Image{}, err
	}
	image := Image{
		Digest: digest, Size: size, CreatedAt: time.Now().UTC(),
		Source: b.source, Env: b.env, Inputs: b.plan.inputs,
	}
	return image, b.Store.writeRef(b.name, image)
}

// hostResolvConf is how names resolve while packages are installed: a build
// uses the host's network.
func hostResolvConf() (string, error) {
	body, err := fs.ReadFile(os.DirFS("/etc"), "resolv.conf")
	if err != nil {
		body, err = os.ReadFile("/etc/resolv.conf") // a link that leads out of /etc
	}
	if err != nil {
		return "", fmt.Errorf("read the host's resolv.conf: %w", err)
	}
	return string(body), nil
}
