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

// builderVersion grows when the steps change, so that Templates are built
// anew.
const builderVersion = 3

// Builder makes Templates. Only Store is required. Builds need root, because
// files in a root filesystem have owners.
type Builder struct {
	Store *Store
	Log   *slog.Logger // nil: nothing is logged

	Cache       string // folder of downloads; empty: one in the Store
	NPMRegistry string // address; empty: what the host's npm uses, else the public one
	Force       bool   // build also what is there

	// Output gets what programs of the build print; nil: only the build's own log.
	Output io.Writer
	// Quota bounds the images of the Tenant that asks, as Store.Admit says.
	Quota sandbox.Quota
	// Guard is for builds that Tenants ask for; nil: the operator asks.
	Guard *Guard
	// Inexact lets packages of another distribution or version stand in for the image
	// of a Base whose registry does not answer.
	Inexact bool
}

// Guard keeps a build that a Tenant asks for from what only the operator may
// reach or run as root.
type Guard struct {
	Registries   []string // HOST or HOST:PORT of registries that may have private addresses
	MaxTreeBytes int64    // of the root filesystem; zero: 8 GiB
	// Proxy leads to the public addresses; nil: they are dialled directly.
	Proxy *upstream.Proxy
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

// Build makes the Template name of source and nothing else; see Make.
func (b *Builder) Build(ctx context.Context, name string, source Source, progress func(Progress)) (Image, error) {
	ref, err := ParseRef("", name)
	if err != nil {
		return Image{}, err
	}
	return b.Make(ctx, ref, Recipe{Source: source}, nil, progress)
}

// Make makes the version of a Template that a Recipe describes and lets ref mean
// it, unless ref means one that was made of the same (see Image.Cached). content,
// when not nil, is the archive that a tar Source would name. progress, which may
// be nil, is called often, one call at a time, and not after Make returns.
//
// Of two builders of one name, also in two processes, the second waits and
// takes what the first made. A build that dies, however, leaves nothing in use:
// no mount, no process, and files that the next build removes.
//
// It returns Invalid for a bad name or Recipe, Unsupported when the host lacks
// rights or a tool, naming its package, Exhausted when the disk is too full or the
// image takes more than the Quota has left, and Unavailable when what it needs from the network does not come.
func (b *Builder) Make(ctx context.Context, ref Ref, recipe Recipe, content io.Reader, progress func(Progress)) (Image, error) {
	if err := recipe.Check(); err != nil {
		return Image{}, err
	}
	if ref.Digest != "" {
		return Image{}, sandbox.Errorf(sandbox.Invalid, "a build makes a version: name a tag, not %s", ref)
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

// A plan is what a build works from.
type plan struct {
	asked    Source
	recipe   Recipe
	content  io.Reader    // archive to unpack; nil: as asked says
	image    *name.Digest // nil: not of an image, or not known yet
	distro   distribution
	inputs   string                              // empty: not known beforehand
	contents string                              // the same for the image file alone
	fill     func(*build, context.Context) error // brings in all but what finishTree adds
}

// plan finds out what a Recipe means today. A Base asks no registry before it is
// known that a build is needed: what it was made of once is good enough.
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
	file.recipe.Defaults = sandbox.TemplateDefaults{} // they are not in the file
	p.contents, err = file.hash()
	return p, err
}

// hash names all that goes into the version, as far as it is known.
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

// reused makes an image that another name of the same owner has, and that was made
// of the same, a version of this Template.
func (b *build) reused() (image Image, found bool, err error) {
	if b.Force || b.plan.contents == "" {
		return Image{}, false, nil
	}
	release, err := b.Store.lockImages() // so that the image does not go meanwhile
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

// minFree is what a build needs on disk at its height, in bytes.
const minFree = 2 << 30

// ready checks what would otherwise fail late.
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
	ref  Ref
	name string // of the build in the Store's folders
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
		return Image{}, fmt.Errorf("remove what an earlier build left: %w", err)
	}
	image, err := b.make(ctx)
	if cleanup := removeTree(b.dir); err == nil && cleanup != nil {
		b.logger().Warn("removing the temporary files of a finished build failed", telemetry.KeyError, cleanup)
	}
	return image, err
}

// leaveNothing removes the log, which Output has too, and the lock.
func (b *build) leaveNothing() {
	err := os.Remove(b.Store.path("build", b.name+".log"))
	if errors.Is(err, fs.ErrNotExist) { // it was done already
		err = nil
	}
	if err := errors.Join(err, b.Store.forgetLock(b.name)); err != nil {
		b.logger().Warn("removing the temporary files of a build failed", telemetry.KeyError, err)
	}
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
	b.root = filepath.Join(b.dir, "root-"+rand.Text())
	// What is in it may be setuid, and other users of this machine must not
	// reach it.
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

// spread has ext4 put each folder that is made in dir into another part of the disk, by
// the hash of its name. Ext4 gives no inode out again that was freed within the last
// minutes, and looks at each of them before it finds another one: without it, a tree
// that is unpacked where one was removed takes nine times as long. Other file systems
// know no such flag, or need it not.
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
	if err := b.installNode(node, npm); err != nil {
		return err
	}
	return b.installNPM(ctx)
}

// fillBare brings in an image and nothing else.
func (b *build) fillBare(ctx context.Context) error {
	b.source = kindOCI + ":" + b.plan.image.String()
	return b.ociTree(ctx, *b.plan.image)
}

// fillTree makes the tree of the plan's source; for a Base it decides here.
func (b *build) fillTree(ctx context.Context) error {
	image := b.plan.image
	var missing error // why the image of a Base is not had
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

// checkStandIn refuses packages in place of the image of a Base, which is missing
// for a reason, where a System of them is not what the image's name says.
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

// system tells what a tree of packages holds. Node.js is added to it later.
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

// store makes the image file and lets the name mean it.
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
