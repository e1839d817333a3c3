package template

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// userID is the uid and gid of "user", who runs Processes.
const userID = 1000

// finishTree prepares any Debian-like tree for Sandboxes.
func (b *build) finishTree(ctx context.Context) error {
	b.say("finish", "users and folders", 0, 0)
	for _, step := range []func() error{
		b.addUser, b.quickenLogin, b.makeFolders, b.writeNetworkFiles, b.writeEnvironment, b.allowPip,
		b.openUsrLocal, b.tidy, b.writeRecipe, b.checkTree,
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// addUser gives uid 1000 to "user", replacing an image's account. The files are written
// directly, because useradd writes the date into them.
func (b *build) addUser() error {
	for _, f := range []struct {
		name, line string
		mode       fs.FileMode
		optional   bool
	}{
		{"etc/passwd", "user:x:1000:1000::/home/user:" + b.shellOf(), 0o644, false},
		{"etc/group", "user:x:1000:", 0o644, false},
		{"etc/shadow", "user:*:20000:0:99999:7:::", 0o640, false},
		{"etc/gshadow", "user:!::", 0o640, true},
	} {
		old, err := b.tree.text(f.name)
		if err != nil {
			return err
		}
		if old == "" && f.optional {
			continue
		}
		lines := withAccount(path.Base(f.name), old, f.line)
		if err := b.tree.write(f.name, f.mode, lines); err != nil {
			return err
		}
		if f.mode == 0o640 {
			if err := b.tree.Chown(f.name, 0, shadowGroup(b.tree)); err != nil {
				return fmt.Errorf("give /%s to the group shadow: %w", f.name, err)
			}
		}
	}
	if err := b.makeHome(); err != nil {
		return err
	}
	return b.tree.write("etc/sudoers.d/90-cloud-sandbox", 0o440, "user ALL=(ALL:ALL) NOPASSWD:ALL\n")
}

// withAccount returns the account file old with line added, and lines of the same name or
// ID removed. In shadow the day of the last change is constant.
func withAccount(file, old, line string) string {
	const day = "20000"
	var kept []string
	if old == "" { // a tree without accounts still needs root
		kept = map[string][]string{
			"passwd": {"root:x:0:0:root:/root:/bin/sh"}, "group": {"root:x:0:"}, "shadow": {"root:*:" + day + ":0:99999:7:::"},
		}[file]
	}
	for l := range strings.Lines(old) {
		l = strings.TrimSuffix(l, "\n")
		fields := strings.Split(l, ":")
		byID := file == "passwd" || file == "group"
		if fields[0] == "" || fields[0] == "user" || (byID && len(fields) > 2 && fields[2] == fmt.Sprint(userID)) {
			continue
		}
		if file == "shadow" && len(fields) > 2 {
			fields[2] = day
		}
		kept = append(kept, strings.Join(fields, ":"))
	}
	return strings.Join(append(kept, line), "\n") + "\n"
}

// shadowGroup returns the gid of the group shadow: the tree's, or else Debian's.
func shadowGroup(t tree) int {
	groups, err := t.text("etc/group")
	for line := range strings.Lines(groups) {
		fields := strings.Split(line, ":")
		var id int
		if err == nil && len(fields) > 2 && fields[0] == "shadow" {
			if _, err := fmt.Sscan(fields[2], &id); err == nil && id >= 0 {
				return id
			}
		}
	}
	return 42
}

// makeHome makes /home/user with the usual dot files.
func (b *build) makeHome() error {
	if err := b.tree.makeFolder("home", 0o755, 0); err != nil {
		return err
	}
	if err := b.tree.makeFolder("home/user", 0o755, userID); err != nil {
		return err
	}
	for _, name := range []string{".bashrc", ".profile", ".bash_logout"} {
		text, err := b.tree.text("etc/skel/" + name)
		if err != nil {
			return err
		}
		if text == "" {
			continue
		}
		to := "home/user/" + name
		if b.tree.has(to) {
			continue // keep an existing file
		}
		if err := b.tree.write(to, 0o644, text); err != nil {
			return err
		}
		if err := b.tree.own(to, 0o644, userID); err != nil {
			return err
		}
	}
	return nil
}

// quickenLogin replaces "$(id -u)" in Debian's profile by bash's EUID. Otherwise each
// login shell, and so each command of E2B's SDKs, would start another program and wait
// for it.
func (b *build) quickenLogin() error {
	const asked, known = `"$(id -u)"`, `"${EUID:-$(id -u)}"`
	text, err := b.tree.text("etc/profile")
	if err != nil || !strings.Contains(text, asked) {
		return err
	}
	return b.tree.write("etc/profile", 0o644, strings.ReplaceAll(text, asked, known))
}

func (b *build) makeFolders() error {
	for _, f := range []struct {
		name string
		mode fs.FileMode
		id   int
	}{
		{"workspace", 0o755, userID},
		{"code", 0o777, userID},
		{".cloud-sandbox", 0o755, 0}, // mount point of the guest's image
		{"tmp", 0o777 | fs.ModeSticky, 0},
		{"var/tmp", 0o777 | fs.ModeSticky, 0},
		{"var/log", 0o755, 0},
		{"proc", 0o555, 0},
		{"sys", 0o555, 0},
		{"dev", 0o755, 0},
		{"run", 0o755, 0},
	} {
		if err := b.tree.makeFolder(f.name, f.mode, f.id); err != nil {
			return err
		}
		if err := b.tree.own(f.name, f.mode, f.id); err != nil {
			return err
		}
	}
	return nil
}

// writeNetworkFiles writes the host name and name resolution files. A Sandbox is 10.0.0.2
// behind 10.0.0.1, on every host.
func (b *build) writeNetworkFiles() error {
	for name, body := range map[string]string{
		"etc/hostname": "sandbox\n",
		"etc/hosts": "127.0.0.1\tlocalhost\n127.0.1.1\tsandbox\n" +
			"::1\tlocalhost ip6-localhost ip6-loopback\n",
		"etc/resolv.conf": "nameserver 10.0.0.1\noptions timeout:5 attempts:2\n",
	} {
		if err := b.tree.write(name, 0o644, body); err != nil {
			return err
		}
	}
	return nil
}

// writeEnvironment completes b.env and writes it to /etc/environment too.
func (b *build) writeEnvironment() error {
	if b.env == nil {
		b.env = map[string]string{}
	}
	if b.env["PATH"] == "" {
		b.env["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	if b.env["LANG"] == "" {
		b.env["LANG"] = "C.UTF-8"
	}
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(b.env)) {
		if !strings.ContainsAny(b.env[key], "\"\n\\") { // the file format has no escapes
			fmt.Fprintf(&text, "%s=\"%s\"\n", key, b.env[key])
		}
	}
	if err := b.tree.write("etc/environment", 0o644, text.String()); err != nil {
		return err
	}
	return b.tree.write("etc/default/locale", 0o644, "LANG=C.UTF-8\n")
}

// allowPip lets pip install system-wide, which distributions discourage: a Sandbox is
// disposable.
func (b *build) allowPip() error {
	if b.tree.has("etc/pip.conf") {
		return nil // the image's own file names its package index
	}
	return b.tree.write("etc/pip.conf", 0o644, "[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\nroot-user-action = ignore\n")
}

// openUsrLocal lets users install programs without sudo, as agents expect.
func (b *build) openUsrLocal() error {
	if b.plan.recipe.Whole {
		return nil // the source opened it before; later changes are kept
	}
	for _, dir := range []string{"usr/local/bin", "usr/local/lib", "usr/local/share"} {
		if err := b.tree.makeFolder(dir, 0o755, 0); err != nil {
			return err
		}
	}
	return fs.WalkDir(b.tree.FS(), "usr/local", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("open /usr/local to all: %w", err)
		}
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("open /usr/local to all: %w", err)
		}
		mode := info.Mode()
		switch {
		case e.IsDir():
			mode |= 0o777
		case mode.IsRegular() && mode&(fs.ModeSetuid|fs.ModeSetgid) == 0:
			mode |= 0o666
			if mode&0o100 != 0 {
				mode |= 0o111
			}
		default:
			return nil
		}
		if mode == info.Mode() {
			return nil
		}
		return b.tree.Chmod(name, mode)
	})
}

// tidy removes build leftovers, or empties run-time folders if the tree is Whole.
func (b *build) tidy() error {
	if !b.plan.recipe.Whole {
		return b.dropLeftovers()
	}
	for _, folder := range []string{"dev", "proc", "sys", "run"} {
		if err := b.tree.empty(folder); err != nil {
			return err
		}
	}
	return b.keepTmp()
}

// dropLeftovers removes build leftovers, machine identities that all Sandboxes would
// share, and files that only take space.
func (b *build) dropLeftovers() error {
	for _, name := range []string{
		"etc/machine-id", "var/lib/dbus/machine-id", "var/cache/ldconfig", "debootstrap", "root/.cache",
		"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/.pwd.lock", "etc/apt/apt.conf.d/01autoremove-kernels",
		"var/lib/dpkg/status-old", "var/lib/dpkg/diversions-old", "var/lib/dpkg/statoverride-old", "var/lib/dpkg/available",
		".dockerenv", "var/lib/systemd/random-seed", "etc/ssh/ssh_host_rsa_key", "var/cache/debconf/config.dat-old",
		"var/cache/debconf/templates.dat-old", "etc/mtab~",
	} {
		if err := b.tree.RemoveAll(name); err != nil {
			return fmt.Errorf("remove /%s from the tree: %w", name, err)
		}
	}
	for _, folder := range []string{
		"dev", "proc", "sys", "run", "tmp", "var/tmp", "var/log", "var/lib/apt/lists", "var/cache/apt",
		"usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian",
	} {
		if err := b.tree.empty(folder); err != nil {
			return err
		}
	}
	if err := b.dropDocs(); err != nil {
		return err
	}
	return b.keepTmp()
}

func (b *build) keepTmp() error {
	if err := b.tree.makeFolder("run/lock", 0o777|fs.ModeSticky, 0); err != nil {
		return err
	}
	// gVisor mounts a tmpfs, half as large as the host's memory, over an empty /tmp. This
	// file keeps /tmp on the Sandbox's disk.
	return b.tree.write("tmp/.keep", 0o644, "")
}

// dropDocs removes documentation but keeps licences.
func (b *build) dropDocs() error {
	err := fs.WalkDir(b.tree.FS(), "usr/share/doc", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "copyright" {
			return err
		}
		return b.tree.Remove(name)
	})
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove documentation from the tree: %w", err)
	}
	return nil
}

// mustHave lists the files that a Template must have unless it is bare: one path of
// each row.
var mustHave = [][]string{
	{"bin/bash", "usr/bin/bash"},
	append([]string{"usr/bin/python3"}, pythons...),
	{"usr/local/bin/node"},
	{"usr/bin/git"},
	{"usr/bin/curl"},
	{"usr/bin/sudo"},
	{"etc/ssl/certs/ca-certificates.crt"},
}

func (b *build) checkTree() error {
	if !b.plan.recipe.installs() {
		return b.checkBare()
	}
	for _, names := range mustHave {
		if !b.tree.has(names...) {
			return sandbox.Errorf(sandbox.Internal, "the template has no /%s after its packages were installed", names[0])
		}
	}
	return nil
}
