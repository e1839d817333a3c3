package template

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// registryWait bounds a registry's answer to a digest request.
const registryWait = 10 * time.Second

// findImage asks ref's registry for the digest of the image for this machine's
// architecture. It does not pull. Invalid when the registry does not have the image,
// Denied when the Guard forbids it, Unavailable when the registry does not answer.
func (b *Builder) findImage(ctx context.Context, ref string) (name.Digest, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return name.Digest{}, sandbox.Errorf(sandbox.Invalid, "%q is not a reference to an image", ref).WithCause(err)
	}
	short, cancel := context.WithTimeout(ctx, registryWait)
	defer cancel()
	image, err := remote.Image(parsed, b.remoteOptions(short, parsed.Context())...)
	if err != nil {
		if short.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %v", registryWait)
		}
		return name.Digest{}, registryError(parsed, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return name.Digest{}, fmt.Errorf("find image: %w", err)
	}
	return parsed.Context().Digest(digest.String()), nil
}

// registryError returns an error with a remedy for a failed image request.
func registryError(ref name.Reference, err error) error {
	registry := ref.Context().RegistryStr()
	var answer *transport.Error
	var proxy *upstream.Error
	switch {
	case errors.As(err, &proxy):
		return sandbox.Errorf(sandbox.Unavailable, "the registry %s cannot be reached: %v; have it permitted there, or build from debian:SUITE or from an archive", registry, proxy).WithCause(err)
	case errors.Is(err, errPrivateAddress):
		return sandbox.Errorf(sandbox.Denied, "the registry %s has a private address: ask the operator to build the template, or to list the registry in CLOUD_SANDBOX_REGISTRIES", registry).WithCause(err)
	case errors.As(err, &answer) && answer.StatusCode < http.StatusInternalServerError && answer.StatusCode != http.StatusTooManyRequests:
		return sandbox.Errorf(sandbox.Invalid, "the registry %s gives no image %s (it answers %d): check its name and tag, and whether it may be read", registry, ref.Name(), answer.StatusCode).WithCause(err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "the registry %s cannot be reached: check its name and this server's way to it, or build from debian:SUITE or from an archive", registry).WithCause(err)
}

// remoteOptions returns the options of registry requests. Tenants' images are pulled
// without the operator's credentials.
func (b *Builder) remoteOptions(ctx context.Context, repository name.Repository) []remote.Option {
	var keys authn.Keychain = authn.DefaultKeychain
	if b.Guard != nil {
		keys = authn.NewMultiKeychain() // none
	}
	return []remote.Option{
		remote.WithContext(ctx),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithAuthFromKeychain(keys),
		remote.WithTransport(b.Guard.transport(repository.RegistryStr())),
	}
}

// ociTree fills b.root with the image and adds packages with its own apt. The scripts of
// the image's packages run as root in their own namespaces: an image is trusted as much
// as a Debian mirror.
func (b *build) ociTree(ctx context.Context, digest name.Digest) error {
	image, err := remote.Image(digest, b.remoteOptions(ctx, digest.Repository)...)
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the registry %s stopped answering", digest.RegistryStr()).WithCause(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return fmt.Errorf("read image config: %w", err)
	}
	b.newest = config.Created.UTC()
	if b.newest.Year() < 2000 { // some builders omit the time
		b.newest = fallbackDate
	}
	b.env = keptEnv(config.Config.Env)
	if err := b.unpack(ctx, image); err != nil {
		return err
	}
	if b.plan.recipe.Bare {
		return nil
	}
	return b.addPackages(ctx)
}

func (b *build) unpack(ctx context.Context, image v1.Image) error {
	b.say("image", "pulling and unpacking", 0, 0)
	tar := mutate.Extract(image)
	stop := context.AfterFunc(ctx, func() { tar.Close() })
	defer stop()
	err := untar(b.tree, tar, b.Guard.treeBytes(), func(n int) {
		if n%500 == 0 {
			b.say("image", "unpacking files", n, 0)
		}
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, tar.Close())
}

// keptEnv converts an image's environment for Processes.
func keptEnv(pairs []string) map[string]string {
	env := map[string]string{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		if sandbox.CheckEnv(map[string]string{key: value}) == nil {
			env[key] = value
		}
	}
	return env
}

// addPackages installs the packages that a Template needs beyond the image.
func (b *build) addPackages(ctx context.Context) error {
	if !b.tree.has("usr/bin/apt-get") || !b.tree.has("etc/debian_version") {
		return sandbox.Errorf(sandbox.Unsupported, "the image is not of a Debian-like system, so its missing tools cannot be installed; choose one with apt, for example python:3.11-slim")
	}
	for _, dir := range []string{"dev", "proc", "tmp"} { // mount points and scratch
		if err := b.tree.makeFolder(dir, 0o755, 0); err != nil {
			return err
		}
		if info, err := b.tree.Lstat(dir); err != nil || !info.IsDir() {
			return sandbox.Errorf(sandbox.Invalid, "/%s of the image is not a folder", dir)
		}
	}
	resolv, err := hostResolvConf()
	if err != nil {
		return err
	}
	if err := b.tree.write("etc/resolv.conf", 0o644, resolv); err != nil {
		return err
	}
	if err := b.tree.write("etc/dpkg/dpkg.cfg.d/cloud-sandbox", 0o644, dpkgConfig); err != nil {
		return err
	}
	if err := b.tree.write("usr/sbin/policy-rc.d", 0o755, "#!/bin/sh\nexit 101\n"); err != nil {
		return err
	}
	b.say("packages", "reading the package lists", 0, 0)
	apt := confinedRun{Root: b.root, Log: b.log, Env: b.chrootEnv()}
	if err := apt.run(ctx, "apt-get", "-q", "update"); err != nil {
		return err
	}
	b.countPackages(&apt)
	install := append([]string{"apt-get", "-q", "install", "-y", "--no-install-recommends"}, b.wantedPackages()...)
	if err := apt.run(ctx, install...); err != nil {
		return err
	}
	if err := b.tree.RemoveAll("usr/sbin/policy-rc.d"); err != nil {
		return fmt.Errorf("remove policy-rc.d: %w", err)
	}
	if err := b.addPillow(ctx); err != nil {
		return err
	}
	return b.compilePython(ctx)
}

// addPillow installs Pillow for an image's own Python; pythonPackages has it for the
// distribution's. If PyPI is unreachable, the image is built without it.
func (b *build) addPillow(ctx context.Context) error {
	for _, python := range pythons {
		if !b.tree.has(python) {
			continue
		}
		b.say("python", "installing Pillow", 0, 0)
		trusted, err := b.trustAsHost()
		if err != nil {
			return err
		}
		env := append(b.chrootEnv(), "PIP_BREAK_SYSTEM_PACKAGES=1")
		if trusted != "" {
			env = append(env, "PIP_CERT="+trusted)
		}
		run := confinedRun{Root: b.root, Log: b.log, Env: env}
		err = run.run(ctx, path.Join("/", python), "-m", "pip", "install", "-q", "--no-cache-dir", "--disable-pip-version-check", "--root-user-action=ignore", "--retries=1", "pillow")
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.logger().Warn("installing Pillow for the Python of an image failed", telemetry.KeyTemplate, b.name, telemetry.KeyError, err)
			b.say("python", "continuing without Pillow: PyPI did not deliver it", 0, 0)
		}
		if err := b.forget(trusted); err != nil {
			return err
		}
	}
	return nil
}

// trustAsHost copies the host's certificate authorities into the tree, for programs in it
// that use the host's network, and returns the path; empty: the host has none. The caller
// removes the file with forget.
func (b *build) trustAsHost() (string, error) {
	for _, file := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"} {
		if body, err := os.ReadFile(file); err == nil {
			const name = "tmp/authorities.pem"
			return "/" + name, b.tree.write(name, 0o644, string(body))
		}
	}
	return "", nil
}

// forget removes files that were only needed during the build; "" is skipped.
func (b *build) forget(files ...string) error {
	for _, file := range files {
		if file == "" {
			continue
		}
		if err := b.tree.RemoveAll(strings.TrimPrefix(file, "/")); err != nil {
			return fmt.Errorf("remove %s of the build: %w", file, err)
		}
	}
	return nil
}

func (b *build) countPackages(run *confinedRun) {
	unpacked, configured := map[string]bool{}, map[string]bool{}
	run.Line = func(line string) {
		switch name, verb := dpkgLine(line); verb {
		case "Unpacking":
			unpacked[name] = true
			b.say("packages", "unpacking", len(unpacked), 0)
		case "Setting up":
			configured[name] = true
			b.say("packages", "configuring", len(configured), max(len(unpacked), len(configured)))
		}
	}
}

// chrootEnv returns the image's PATH, which may contain its own Python.
func (b *build) chrootEnv() []string {
	if p := b.env["PATH"]; p != "" {
		return []string{"PATH=" + p}
	}
	return nil
}

// pythons lists the possible paths of an image's own Python.
var pythons = []string{"usr/local/bin/python3", "opt/conda/bin/python3"}

func (b *build) wantedPackages() []string {
	if b.tree.has(pythons...) {
		return slices.Concat(packages, b.plan.recipe.Packages)
	}
	return slices.Concat(packages, pythonPackages, b.plan.recipe.Packages)
}

// compilePython compiles the library of an image's own Python. Official images ship it
// uncompiled; compiled, interpreters start several times faster.
func (b *build) compilePython(ctx context.Context) error {
	for _, python := range pythons {
		if !b.tree.has(python) {
			continue
		}
		b.say("python", "compiling the standard library", 0, 0)
		run := confinedRun{Root: b.root, Log: b.log, Env: b.chrootEnv()}
		const script = `import compileall, re, sysconfig
compileall.compile_dir(sysconfig.get_path("stdlib"), quiet=2, workers=0, rx=re.compile(r"/(test|tests|idlelib|lib2to3)/"))`
		if err := run.run(ctx, path.Join("/", python), "-c", script); err != nil {
			return fmt.Errorf("compile the image's Python library: %w", err)
		}
	}
	return nil
}
