package template

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/standin"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// builderVersion must be incremented when the steps change, so that Templates are
// rebuilt.
const builderVersion = 3

// Builder makes Templates. Only Store is required. Builds need root, because
// files in a root filesystem have owners.
type Builder struct {
	Store *Store
	Log   *slog.Logger // nil: nothing is logged

	Cache       string // folder of downloads; empty: one in the Store
	NPMRegistry string // address; empty: the registry of the host's npm, else the public one
	Force       bool   // rebuild existing images

	// Output receives the output of the build's programs; nil: only the build's own log.
	Output io.Writer
	// Quota bounds the images of the requesting Tenant, as in Store.Admit.
	Quota sandbox.Quota
	// Guard restricts builds of Tenants; nil: the operator builds.
	Guard *Guard
	// Inexact allows packages of another distribution or version in place of the image of
	// a Base whose registry does not answer.
	Inexact bool
}

// Guard keeps a Tenant's build from reaching or running as root anything that is reserved
// for the operator.
type Guard struct {
	Registries   []string // HOST or HOST:PORT of registries that may have private addresses
	MaxTreeBytes int64    // of the root filesystem; zero: 8 GiB
	// Proxy reaches the public addresses; nil: they are dialled directly.
	Proxy *upstream.Proxy
}

// Progress is the progress of a build.
type Progress struct {
	Stage  string // one word, for example "debootstrap"
	Detail string // the current action
	Done   int    // zero: not counted
	Total  int    // zero: not known
}

// String returns one line without a newline, for example "debootstrap: unpacking 87/131".
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

// Build makes the Template name of source and nothing else; see Make.
func (b *Builder) Build(ctx context.Context, name string, source Source, progress func(Progress)) (Image, error) {
	ref, err := ParseRef("", name)
	if err != nil {
		return Image{}, err
	}
	return b.Make(ctx, ref, Recipe{Source: source}, nil, progress)
}

// Make builds the version of a Template that a Recipe describes and tags it as ref,
// unless ref already names a version of the same inputs (see Image.Cached). content, if
// not nil, is the archive of a tar Source. progress, which may be nil, is called often,
// serially, and not after Make returns.
//
// Concurrent builders of one name, also in other processes, wait and take the image that
// the first one made. A build that dies leaves no mount and no process, and the next
// build removes its files.
//
// Make returns Invalid for a bad name or Recipe, Unsupported when the host lacks rights
// or a tool, naming its package, Exhausted when the disk is too full or the image exceeds
// the rest of the Quota, and Unavailable when a download fails.
func (b *Builder) Make(ctx context.Context, ref Ref, recipe Recipe, content io.Reader, progress func(Progress)) (Image, error) {
	if err := recipe.Check(); err != nil {
		return Image{}, err
	}
	if ref.Digest != "" {
		return Image{}, sandbox.Errorf(sandbox.Invalid, "a build makes a new version: name a tag, not %s", ref)
	}
	if err := b.Guard.Check(recipe, content != nil); err != nil {
		return Image{}, err
	}
	plan, err := b.plan(ctx, recipe, content)
	if err != nil {
		return Image{}, err
	}
	if image, ok := b.cached(ref, plan); ok && !b.Force {
		return image, nil
	}
	if err := b.ready(); err != nil {
		return Image{}, err
	}
	key := b.Store.key(ref.Owner, ref.Name)
	run := &build{Builder: b, ref: ref, name: key, plan: plan, progress: progress, dir: b.Store.path("build", key)}
	return run.locked(ctx)
}

// A plan holds the resolved inputs of a build.
type plan struct {
	asked    Source
	recipe   Recipe
	content  io.Reader    // archive to unpack; nil: see asked
	image    *name.Digest // nil: not from an image, or not resolved yet
	distro   distribution
	inputs   string                              // hash; empty: not known beforehand
	contents string                              // hash of the inputs of the image file alone
	fill     func(*build, context.Context) error // adds everything but finishTree's part
}

// plan resolves a Recipe. For a Base it asks no registry before a build is known to be
// needed: a cached image is good enough.
func (b *Builder) plan(ctx context.Context, recipe Recipe, content io.Reader) (plan, error) {
	source := recipe.Source
	p := plan{asked: source, recipe: recipe, content: content, fill: (*build).fill}
	switch source.kind {
	case kindOCI:
		digest, err := b.findImage(ctx, source.ref)
		if err != nil {
			return plan{}, err
		}
		p.image = &digest
		if recipe.Bare {
			p.fill = (*build).fillBare
		}
	case kindDebian:
		p.distro = chooseDistribution(os.DirFS("/"), source.ref)
	case kindBase:
		p.distro = chooseDistribution(os.DirFS("/"), "")
	case kindTar:
		p.fill = (*build).fillTar
		switch {
		case recipe.Base != "":
			p.fill = func(b *build, ctx context.Context) error { return b.fillChanges(ctx, content) }
		case content != nil:
			p.fill = func(b *build, ctx context.Context) error {
				b.source = "tar"
				return b.fillFrom(ctx, content)
			}
		}
		return p, nil
	case kindDir:
		p.fill = (*build).fillFolder
		return p, nil
	}
	var err error
	if p.inputs, err = p.hash(); err != nil {
		return p, err
	}
	file := p
	file.recipe.Defaults = sandbox.TemplateDefaults{} // not part of the file
	p.contents, err = file.hash()
	return p, err
}

// hash returns a hash of all known inputs of the version.
func (p plan) hash() (string, error) {
	image := ""
	if p.image != nil {
		image = p.image.DigestStr()
	}
	parts := []any{
		builderVersion, p.asked.String(), image, p.distro, packages, pythonPackages,
		nodePackages[runtime.GOARCH], npmPackage, runtime.GOARCH,
	}
	extra, err := p.recipe.hash()
	if err != nil {
		return "", err
	}
	if extra != "" {
		parts = append(parts, extra)
	}
	body, err := json.Marshal(parts)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:]), nil
}

func (b *Builder) cached(ref Ref, p plan) (Image, bool) {
	image, err := b.Store.readRef(ref)
	if err != nil || p.inputs == "" || image.Inputs != p.inputs || image.Private != p.recipe.Private {
		return Image{}, false
	}
	image.Cached = true
	return image, true
}

// reused tags an existing image of the same owner and the same inputs as a version of
// this Template.
func (b *build) reused() (image Image, found bool, err error) {
	if b.Force || b.plan.contents == "" {
		return Image{}, false, nil
	}
	release, err := b.Store.lockImages() // keeps the image from being removed meanwhile
	if err != nil {
		return Image{}, false, err
	}
	defer release()
	all, err := b.Store.refs(b.ref.Owner)
	if err != nil {
		return Image{}, false, err
	}
	recipe := b.plan.recipe
	i := slices.IndexFunc(all, func(l Listed) bool { return l.Contents == b.plan.contents && l.Private == recipe.Private })
	if i < 0 {
		return Image{}, false, nil
	}
	image = all[i].Image
	if image.MadeAt.IsZero() {
		image.MadeAt = image.CreatedAt
	}
	image.CreatedAt, image.Inputs = time.Now().UTC(), b.plan.inputs
	image.Defaults, image.Build, image.Layer = recipe.Defaults, recipe.Build, recipe.Layer
	image.Cached = true
	return image, true, b.Store.publish(b.ref, image)
}

// minFree is the peak disk use of a build, in bytes.
const minFree = 2 << 30

// ready checks early for failures that would otherwise come late.
func (b *Builder) ready() error {
	if os.Geteuid() != 0 {
		return sandbox.Errorf(sandbox.Unsupported, "building a template needs root, because the files in it have owners")
	}
	if err := needTools("mkfs.erofs", "fsck.erofs", "mount"); err != nil {
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
		return sandbox.Errorf(sandbox.Exhausted, "building a template needs %d MiB of free disk, and %d MiB are free", minFree>>20, free>>20)
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

// A build is one run of Builder.Make that holds the lock of its name.
type build struct {
	*Builder
	ref  Ref
	name string // of the build in the Store's folders
	plan plan
	dir  string // scratch, removed at the end
	root string // the tree, in dir
	tree tree
	log  io.Writer // output of programs

	newest time.Time // time of the build's own files; later times are clamped to it
	env    map[string]string
	source string // actual source of the tree

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

// locked builds, unless another builder just built the same.
func (b *build) locked(ctx context.Context) (Image, error) {
	began, waited := time.Now(), false
	release, err := b.Store.lock(ctx, b.name, func() {
		waited = true
		b.say("wait", "another process is building "+b.ref.String(), 0, 0)
	})
	if err != nil {
		return Image{}, err
	}
	defer release()
	if b.Guard != nil {
		defer b.leaveNothing()
	}
	if image, ok := b.cached(b.ref, b.plan); ok && (!b.Force || (waited && image.CreatedAt.After(began))) {
		return image, nil
	}
	if image, found, err := b.reused(); found || err != nil {
		return image, err
	}
	if err := removeTree(b.dir); err != nil {
		return Image{}, fmt.Errorf("remove the remains of an earlier build: %w", err)
	}
	image, err := b.make(ctx)
	if cleanup := removeTree(b.dir); err == nil && cleanup != nil {
		b.logger().Warn("removing the temporary files of a finished build failed", telemetry.KeyError, cleanup)
	}
	return image, err
}

// leaveNothing removes the lock and the log, which Output has too.
func (b *build) leaveNothing() {
	err := os.Remove(b.Store.path("build", b.name+".log"))
	if errors.Is(err, fs.ErrNotExist) { // already removed
		err = nil
	}
	if err := errors.Join(err, b.Store.forgetLock(b.name)); err != nil {
		b.logger().Warn("removing the temporary files of a build failed", telemetry.KeyError, err)
	}
}

// removeTries is the number of attempts of removeTree: children of a killed builder may
// end shortly after its lock.
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
	b.root = filepath.Join(b.dir, "root-"+rand.Text())
	// The tree may hold setuid files, which other users of this machine must not reach.
	if err := errors.Join(os.MkdirAll(b.dir, 0o700), os.Chmod(b.dir, 0o700), spread(b.dir), os.MkdirAll(b.root, 0o755)); err != nil {
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
	if b.Output != nil {
		b.log = io.MultiWriter(log, b.Output)
	}

	if err := b.plan.fill(b, ctx); err != nil {
		return Image{}, err
	}
	if err := b.addFiles(b.plan.recipe); err != nil {
		return Image{}, err
	}
	if err := b.unpackUpload(ctx); err != nil {
		return Image{}, err
	}
	if err := b.finishTree(ctx); err != nil {
		return Image{}, err
	}
	return b.store(ctx)
}

// spread makes ext4 place each folder made in dir in another part of the disk, by the
// hash of its name. Ext4 does not reuse inodes that were freed within the last minutes,
// and skips them one by one: without spread, unpacking a tree where one was removed takes
// nine times as long. Other file systems do not have or need the flag.
func spread(dir string) error {
	const topDir = 0x20000 // FS_TOPDIR_FL of linux/fs.h
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS); err == nil {
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags|topDir))
	}
	return nil
}

// fill installs packages and, at the same time, Node.js.
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
	if err := b.installNode(node, npm); err != nil {
		return err
	}
	return b.installNPM(ctx)
}

// fillBare unpacks an image and nothing else.
func (b *build) fillBare(ctx context.Context) error {
	b.source = kindOCI + ":" + b.plan.image.String()
	return b.ociTree(ctx, *b.plan.image)
}

// fillTree builds the tree from the plan's source; for a Base it resolves it here.
func (b *build) fillTree(ctx context.Context) error {
	image := b.plan.image
	var missing error // why the image of a Base cannot be used
	if b.plan.asked.kind == kindBase {
		ref := b.plan.asked.ref
		b.say("image", "asking for "+ref, 0, 0)
		digest, err := b.findImage(ctx, ref)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			b.logger().Info("making the template from an image", telemetry.KeyTemplate, b.name, "image", digest.String())
			b.say("source", "the image "+digest.String(), 0, 0)
			image = &digest
		} else {
			missing = err
			if err := b.checkStandIn(missing, standin.System{Distribution: b.plan.distro.Name, Codename: b.plan.distro.Suite}); err != nil {
				return err
			}
			b.logger().Warn("making the template from packages: no registry has the image",
				telemetry.KeyTemplate, b.name, "image", ref, "distribution", b.plan.distro.Name, "suite", b.plan.distro.Suite, "mirror", b.plan.distro.Mirror, telemetry.KeyError, err)
			b.say("source", fmt.Sprintf("%s %s packages, because no registry gives %s (%v)", b.plan.distro.Name, b.plan.distro.Suite, ref, err), 0, 0)
		}
	}
	if image != nil {
		b.source = kindOCI + ":" + image.String()
		return b.ociTree(ctx, *image)
	}
	b.source = kindDebian + ":" + b.plan.distro.Suite
	if err := b.debianTree(ctx, b.plan.distro); err != nil || missing == nil {
		return err
	}
	system, err := b.tree.system()
	if err != nil {
		return err
	}
	return b.checkStandIn(missing, system)
}

// checkStandIn rejects packages in place of the missing image of a Base, if their System
// differs from the one in the image's name.
func (b *build) checkStandIn(missing error, system standin.System) error {
	ref := b.plan.asked.ref
	difference := standin.Difference(ref, system)
	if difference == "" || b.Inexact {
		return nil
	}
	return sandbox.Errorf(sandbox.Unavailable,
		"no registry gives %s, and the packages of this machine's distribution would be %s: let this machine reach the registry, name another image by SANDBOX_IMAGE, or allow the difference by CLOUD_SANDBOX_INEXACT_IMAGES=true",
		ref, difference).WithCause(missing)
}

// system returns the System of a tree of packages. Node.js is added to it later.
func (t tree) system() (standin.System, error) {
	text, err := t.text("etc/os-release")
	if err != nil {
		return standin.System{}, err
	}
	s := standin.ParseReport(text)
	s.Python = standin.None
	if program, err := t.Readlink("usr/bin/python3"); err == nil {
		s.Python = strings.TrimPrefix(path.Base(program), "python")
	}
	return s, nil
}

// store writes the image file and tags it.
func (b *build) store(ctx context.Context) (Image, error) {
	b.say("erofs", "writing the image", 0, 0)
	file := filepath.Join(b.dir, "image.erofs")
	if err := makeErofs(ctx, b.root, file, b.newest); err != nil {
		return Image{}, err
	}
	release, err := b.Store.lockImages()
	if err != nil {
		return Image{}, err
	}
	defer release()
	digest, size, err := b.Store.adopt(file)
	if err != nil {
		return Image{}, err
	}
	recipe := b.plan.recipe
	image := Image{
		Digest: digest, Size: size, CreatedAt: time.Now().UTC(),
		Source: b.source, Env: b.env, Inputs: b.plan.inputs, Contents: b.plan.contents,
		Packages: recipe.Packages, Start: recipe.Start, Ready: recipe.Ready, Private: recipe.Private,
		Defaults: recipe.Defaults, Build: recipe.Build, Layer: recipe.Layer, Base: recipe.Base,
	}
	if err := b.Store.Admit(b.Quota, b.ref.Owner, digest); err != nil {
		if left := b.Store.drop(digest); left != nil {
			b.logger().Warn("removing the image of a refused build failed", "image", digest, telemetry.KeyError, left)
		}
		return Image{}, err
	}
	if image.Stored, err = b.Store.stored(digest); err != nil {
		return Image{}, err
	}
	return image, b.Store.publish(b.ref, image)
}

// hostResolvConf returns the host's resolv.conf, because a build uses the host's network
// to install packages.
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
