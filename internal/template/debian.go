package template

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// packages lists a Template's packages besides Python and Node.js, by their names in
// Debian and Ubuntu.
var packages = []string{
	"bash", "bubblewrap", "ca-certificates", "curl", "file", "git", "iproute2", "jq",
	"less", "libatomic1", "make", "nano", "netbase", "openssh-client", "patch",
	"procps", "ripgrep", "socat", "sudo", "tree", "unzip", "xz-utils", "zip",
}

// pythonPackages are skipped when an image has its own Python.
var pythonPackages = []string{"python-is-python3", "python3", "python3-pil", "python3-pip", "python3-venv"}

// dpkgConfig excludes documentation and skips fsync: the results of a build that dies are
// discarded, and so is a Sandbox.
const dpkgConfig = `force-unsafe-io
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/lintian/*
`

// debianTree fills b.root with the packages of d.
func (b *build) debianTree(ctx context.Context, d distribution) error {
	if err := needTools("debootstrap"); err != nil {
		return err
	}
	if _, err := os.Stat(d.Keyring); err != nil {
		return sandbox.Errorf(sandbox.Unsupported, "the keys of %s are missing: apt-get install %s-archive-keyring", d.Name, d.Name)
	}
	unlock, err := b.lockCache(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.debootstrap(ctx, d); err != nil {
		return err
	}
	if err := b.tree.write("etc/dpkg/dpkg.cfg.d/cloud-sandbox", 0o644, dpkgConfig); err != nil {
		return err
	}
	b.newest = releaseDate(os.DirFS(b.root))
	if err := b.secondStage(ctx); err != nil {
		return err
	}
	return b.tree.write("etc/apt/sources.list", 0o644, aptSources(d))
}

// lockCache prevents concurrent writes to one download by two builds.
func (b *build) lockCache(ctx context.Context) (func(), error) {
	return b.Store.lock(ctx, ".debs", func() { b.say("debootstrap", "waiting for another build's downloads", 0, 0) })
}

// debootstrap downloads and verifies packages and unpacks the first ones.
func (b *build) debootstrap(ctx context.Context, d distribution) error {
	debs := filepath.Join(b.cache(), "debs")
	if err := os.MkdirAll(debs, 0o755); err != nil {
		return fmt.Errorf("make package cache: %w", err)
	}
	b.say("debootstrap", "reading the package lists of "+d.Mirror, 0, 0)
	downloaded, unpacked := map[string]bool{}, 0
	run := confinedRun{Log: b.log, Line: func(line string) {
		switch verb, name := debootstrapLine(line); verb {
		case "Retrieving", "Validating": // only Validating if the cache has it
			downloaded[name] = true
			b.say("debootstrap", "downloading", len(downloaded), 0)
		case "Extracting":
			unpacked++
			b.say("debootstrap", "extracting", unpacked, 0)
		}
	}}
	return run.run(ctx, "debootstrap", "--foreign", "--variant=minbase", "--force-check-gpg",
		"--keyring="+d.Keyring, "--arch="+debianArch(), "--cache-dir="+debs,
		"--components="+strings.Join(d.Components, ","),
		"--include="+strings.Join(slices.Concat(packages, pythonPackages, b.plan.recipe.Packages), ","),
		d.Suite, b.root, d.Mirror)
}

// secondStage unpacks and configures everything inside the tree.
func (b *build) secondStage(ctx context.Context) error {
	total := 0
	if paths, err := os.ReadFile(filepath.Join(b.root, "debootstrap", "debpaths")); err == nil {
		total = strings.Count(string(paths), "\n")
	}
	unpacked, configured := map[string]bool{}, map[string]bool{}
	run := confinedRun{Root: b.root, Log: b.log, Line: func(line string) {
		switch verb, name := debootstrapLine(line); verb {
		case "Unpacking":
			unpacked[name] = true
			b.say("debootstrap", "unpacking", len(unpacked), max(total, len(unpacked)))
		case "Configuring":
			configured[name] = true
			b.say("debootstrap", "configuring", len(configured), max(total, len(configured)))
		}
	}}
	err := run.run(ctx, "/debootstrap/debootstrap", "--second-stage")
	if err != nil && ctx.Err() == nil {
		if said, _ := b.tree.text("debootstrap/debootstrap.log"); said != "" {
			err = fmt.Errorf("%w\n%s", err, lastLines(said, 15))
		}
	}
	return err
}

// debootstrapLine splits a line such as "I: Retrieving bash 5.2.15-2".
func debootstrapLine(line string) (verb, name string) {
	rest, ok := strings.CutPrefix(line, "I: ")
	if !ok {
		return "", ""
	}
	verb, name, _ = strings.Cut(rest, " ")
	name, _, _ = strings.Cut(name, " ") // a version, or the rest of a heading
	name, _, _ = strings.Cut(strings.TrimSuffix(name, "..."), ":")
	return verb, name
}

// dpkgLine reads lines such as "Unpacking bash (5.2.15-2) ...".
func dpkgLine(line string) (name, verb string) {
	for _, verb := range []string{"Unpacking", "Setting up"} {
		rest, ok := strings.CutPrefix(line, verb+" ")
		if name, _, found := strings.Cut(rest, " ("); ok && found {
			name, _, _ = strings.Cut(name, ":") // of the architecture
			return name, verb
		}
	}
	return "", ""
}

func debianArch() string {
	if runtime.GOARCH == "arm" {
		return "armhf"
	}
	return runtime.GOARCH // the same word for amd64, arm64 and riscv64
}

// fallbackDate is for a tree without release dates.
var fallbackDate = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// releaseDate returns when the packages of a tree were published; the build's own files
// get this time.
func releaseDate(tree fs.FS) time.Time {
	files, _ := fs.Glob(tree, "var/lib/apt/lists/*Release") // the pattern is valid
	for _, file := range files {
		f, err := tree.Open(file)
		if err != nil {
			continue
		}
		head, _ := io.ReadAll(io.LimitReader(f, 4<<10))
		f.Close()
		for line := range strings.Lines(string(head)) {
			text, ok := strings.CutPrefix(line, "Date: ")
			if t, err := time.Parse(time.RFC1123, strings.TrimSpace(text)); ok && err == nil {
				return t.UTC()
			}
		}
	}
	return fallbackDate
}

// aptSources returns apt sources for users of a Sandbox. They name public mirrors,
// because a Sandbox cannot reach private mirrors of the host's network.
func aptSources(d distribution) string {
	mirror, security, name := "http://deb.debian.org/debian", "http://deb.debian.org/debian-security", d.Suite+"-security"
	if d.Name == "ubuntu" {
		mirror, security = "http://archive.ubuntu.com/ubuntu", "http://security.ubuntu.com/ubuntu"
		if runtime.GOARCH != "amd64" {
			mirror = "http://ports.ubuntu.com/ubuntu-ports"
			security = mirror
		}
	}
	components := strings.Join(d.Components, " ")
	text := fmt.Sprintf("deb %s %s %s\n", mirror, d.Suite, components)
	if d.Suite != "sid" && d.Suite != "unstable" {
		text += fmt.Sprintf("deb %s %s-updates %s\ndeb %s %s %s\n", mirror, d.Suite, components, security, name, components)
	}
	return text
}
