package template

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// newRegistry starts a real registry in memory and returns its host and port.
func newRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// push makes an image of layers and pushes it for this machine's platform.
func push(t *testing.T, ref string, env []string, layers ...tarball.Opener) v1.Image {
	t.Helper()
	image := empty.Image
	for _, open := range layers {
		layer, err := tarball.LayerFromOpener(open)
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatal(err)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Created = v1.Time{Time: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
	config.Config.Env = env
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, image); err != nil {
		t.Fatal(err)
	}
	return image
}

func layer(body *bytes.Buffer) tarball.Opener {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body.Bytes())), nil }
}

func TestPullUnpackAndImage(t *testing.T) {
	needHost(t)
	ref := newRegistry(t) + "/team/tool:1"
	pushed := push(t, ref, []string{"PATH=/opt/bin:/bin", "BAD-NAME=x", "LANG=de_DE.UTF-8"},
		layer(archive(t, file("etc/os-release", "ID=tiny\n", 0o644), file("gone", "x", 0o644), file("opt/bin/tool", "old", 0o755))),
		layer(archive(t, file(".wh.gone", "", 0o644), file("opt/bin/tool", "new", 0o755))),
	)
	digest, err := (&Builder{}).findImage(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := pushed.Digest(); err != nil || digest.DigestStr() != want.String() {
		t.Fatalf("digest %s, want %s, %v", digest.DigestStr(), want, err)
	}

	b := newBuild(t)
	var dir string
	b.tree, dir = newTree(t)
	b.root, b.log = filepath.Join(dir, "root"), io.Discard
	if err := b.ociTree(t.Context(), digest); !errors.Is(err, sandbox.Unsupported) {
		t.Errorf("an image without apt: %v, want Unsupported", err)
	}
	if text, err := b.tree.text("opt/bin/tool"); err != nil || text != "new" {
		t.Errorf("the tool is %q, %v, want that of the upper layer", text, err)
	}
	if b.tree.has("gone", ".wh.gone") {
		t.Error("the whiteout was not applied")
	}
	if len(b.env) != 2 || b.env["PATH"] != "/opt/bin:/bin" || b.env["LANG"] != "de_DE.UTF-8" {
		t.Errorf("env is %v", b.env)
	}
	if b.newest.Month() != time.March {
		t.Errorf("dated %v, want when the image was made", b.newest)
	}
	image := filepath.Join(dir, "image.erofs")
	if err := makeErofs(t.Context(), b.root, image, b.newest); err != nil {
		t.Fatal(err)
	}
	if got, size, err := b.Store.adopt(image); err != nil || !ValidDigest(got) || size == 0 {
		t.Errorf("adopt = %q, %d, %v", got, size, err)
	}
}

func TestImageThatIsNotThere(t *testing.T) {
	host := newRegistry(t)
	pushed := host + "/team/tool:1"
	push(t, pushed, nil, layer(archive(t, file("bin/sh", "#!", 0o755))))
	for _, tt := range []struct {
		ref   string
		guard *Guard
		want  error
	}{
		{host + "/absent:1", nil, sandbox.Invalid},
		{"127.0.0.1:1/no/registry:1", nil, sandbox.Unavailable},
		{pushed, nil, nil},
		{pushed, &Guard{}, sandbox.Denied},
		{"localhost" + host[strings.Index(host, ":"):] + "/team/tool:1", &Guard{}, sandbox.Denied},
		{pushed, &Guard{Registries: []string{host}}, nil},
	} {
		began := time.Now()
		_, err := (&Builder{Guard: tt.guard}).findImage(t.Context(), tt.ref)
		if took := time.Since(began); !errors.Is(err, tt.want) || (tt.want == nil) != (err == nil) || took > registryWait+20*time.Second {
			t.Errorf("%s, %+v: %v after %v, want %v", tt.ref, tt.guard, err, took, tt.want)
		}
	}
	b := &Builder{Store: newStore(t)}
	if _, err := b.Build(t.Context(), "x", OCI(host+"/absent:1"), nil); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("Build: %v, want Invalid", err)
	}
}

// A Tenant's build runs no foreign program as root, and reads no file of this machine.
func TestGuard(t *testing.T) {
	for name, tt := range map[string]struct {
		recipe  Recipe
		content bool
		want    error
	}{
		"packages":           {Recipe{Source: Debian("bookworm"), Packages: []string{"git"}}, false, nil},
		"an image as it is":  {Recipe{Source: OCI("a:1"), Bare: true}, false, nil},
		"an archive sent":    {Recipe{Source: Tar("/archive")}, true, nil},
		"an image and apt":   {Recipe{Source: OCI("a:1")}, false, sandbox.Denied},
		"an archive of here": {Recipe{Source: Tar("/etc/shadow")}, false, sandbox.Denied},
		"a folder of here":   {Recipe{Source: Dir("/etc")}, false, sandbox.Denied},
		"the operator's":     {Recipe{Source: Base("a:1")}, false, sandbox.Denied},
		"npm":                {Recipe{Source: Debian("bookworm"), NPM: []string{"a"}}, false, sandbox.Denied},
	} {
		if err := (&Guard{}).Check(tt.recipe, tt.content); !errors.Is(err, tt.want) || (tt.want == nil) != (err == nil) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if err := (*Guard)(nil).Check(tt.recipe, tt.content); err != nil {
			t.Errorf("%s, unguarded: %v", name, err)
		}
	}
	for address, public := range map[string]bool{
		"1.1.1.1:443": true, "[2606:4700::1111]:443": true, "127.0.0.1:80": false, "10.0.0.1:80": false, "169.254.169.254:80": false,
		"[::1]:80": false, "[::ffff:10.0.0.1]:80": false, "[fe80::1%eth0]:80": false, "[fd00::1]:80": false, "": false,
	} {
		if err := onlyPublic("tcp", address, nil); (err == nil) != public {
			t.Errorf("%s: %v", address, err)
		}
	}
}
