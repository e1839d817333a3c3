package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"log"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// images is a real registry whose blobs can be held back.
type images struct {
	host  string
	mu    sync.Mutex
	held  bool          // GETs of blobs block until the client disconnects
	waits chan struct{} // receives once per blocked GET
}

func newImages(t *testing.T) *images {
	t.Helper()
	i := &images{waits: make(chan struct{}, 16)}
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		held := i.held && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/")
		i.mu.Unlock()
		if held {
			i.waits <- struct{}{}
			<-r.Context().Done()
			return
		}
		real.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	i.host = strings.TrimPrefix(server.URL, "http://")
	return i
}

func (i *images) hold(held bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held = held
}

// push pushes an image of a root filesystem.
func (i *images) push(t *testing.T, ref, root string) {
	t.Helper()
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, imageOf(t, root)); err != nil {
		t.Fatal(err)
	}
}

// imageOf is an image of a root filesystem, with an environment of its own.
func imageOf(t *testing.T, root string) v1.Image {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(tarOf(t, root))), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config.Env = "linux", runtime.GOARCH, []string{"PATH=/bin", "FROM_IMAGE=yes"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}

func tarOf(t *testing.T, root string) []byte {
	t.Helper()
	out, err := rig.Command("tar", "-C", root, "-cz", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

type templateBuild struct {
	ID      string `json:"build_id"`
	State   string
	Version string
	Cached  bool
	Error   *struct{ Code, Message string }
}

// upload builds a template of an archive.
func upload(t *testing.T, c *rig.Client, description string, archive []byte) templateBuild {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if err := form.WriteField("template", description); err != nil {
		t.Fatal(err)
	}
	w, err := form.CreateFormFile("archive", "root.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(archive)
	_ = form.Close()
	req, err := http.NewRequest("POST", c.URL+"/api/v1/templates", &body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	var b templateBuild
	raw := answerOf(t, c, req)
	decodeInto(t, raw, &b)
	return b
}

// answerOf sends a request and returns an answer below 300.
func answerOf(t *testing.T, c *rig.Client, req *http.Request) []byte {
	t.Helper()
	req.Header.Set("Authorization", "Bearer "+c.Token)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s %s answers %s: %s, %v", req.Method, req.URL.Path, resp.Status, raw, err)
	}
	return raw
}

func decodeInto(t *testing.T, raw []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
}

// follow reads a build's log as events to its end. It returns the lines and the final
// build.
func follow(t *testing.T, c *rig.Client, id string) (lines string, b templateBuild) {
	t.Helper()
	req, err := http.NewRequest("GET", c.URL+"/api/v1/builds/"+id+"/log?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	event := ""
	for in := bufio.NewScanner(bytes.NewReader(answerOf(t, c, req))); in.Scan(); {
		if kind, ok := strings.CutPrefix(in.Text(), "event: "); ok {
			event = kind
		}
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok {
			continue
		}
		switch event {
		case "line":
			var line struct{ Text string }
			decodeInto(t, []byte(data), &line)
			lines += line.Text + "\n"
		case "end":
			decodeInto(t, []byte(data), &b)
		}
	}
	return lines, b
}

// Templates are built over the API from an archive and from an image.
func TestTemplateBuilds(t *testing.T) {
	t.Parallel()
	images := newImages(t)
	s := rig.Own(t, rig.Options{Env: []string{"CLOUD_SANDBOX_REGISTRIES=" + images.host}})
	c, other := s.Client(t, "builds"), s.Client(t, "other")
	root := tinyRoot(t)
	b := upload(t, c, `{"template":"mine:1","source":"tar:","env":{"HI":"there"},"files":[{"path":"/srv/a","content":"put in\n","mode":"0600","owner":"user"}]}`, tarOf(t, root))
	log, done := follow(t, c, b.ID)
	if done.State != "ready" || len(done.Version) != 64 || !strings.Contains(log, "unpack") || !strings.HasSuffix(log, "ready: version "+done.Version+"\n") {
		t.Fatalf("built as %+v with %s", done, log)
	}
	box := create(t, c, rig.Body{"template": "mine:1"})
	if got := output(t, c, box.ID, "bash", "cat /srv/a; echo $HI"); got != "put in\nthere\n" {
		t.Errorf("inside: %q", got)
	}

	// Only its owner can use it, and it cannot be removed while a sandbox uses it.
	for _, path := range []string{"/api/v1/templates/mine:1", "/api/v1/builds/" + b.ID, "/api/v1/builds/" + b.ID + "/log"} {
		if status, raw, err := other.Do("GET", path, nil); err != nil || status != 404 {
			t.Errorf("another tenant: %s is %d %s, %v", path, status, raw, err)
		}
	}
	if status, raw, err := other.Do("POST", "/api/v1/sessions", rig.Body{"template": "mine:1"}); err != nil || status != 404 {
		t.Errorf("another tenant starts from it: %d %s, %v", status, raw, err)
	}
	if status, raw, err := c.Do("DELETE", "/api/v1/templates/mine", nil); err != nil || status != 409 {
		t.Errorf("removed while it is in use: %d %s, %v", status, raw, err)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+box.ID, nil, nil)
	c.Must(t, "DELETE", "/api/v1/templates/mine", nil, nil)
	if status, _, err := c.Do("GET", "/api/v1/templates/mine:1", nil); err != nil || status != 404 {
		t.Errorf("after it was removed: %d, %v", status, err)
	}

	// A bare image keeps its own environment.
	ref := images.host + "/team/tiny:1"
	images.push(t, ref, root)
	c.Must(t, "POST", "/api/v1/templates", rig.Body{"template": "image", "source": "oci:" + ref, "bare": true}, &b)
	if log, done = follow(t, c, b.ID); done.State != "ready" || done.Cached {
		t.Fatalf("built as %+v with %s", done, log)
	}
	box = create(t, c, rig.Body{"template": "image@" + done.Version})
	if got := output(t, c, box.ID, "bash", "echo $FROM_IMAGE"); got != "yes\n" {
		t.Errorf("inside: %q", got)
	}
	c.Must(t, "POST", "/api/v1/templates", rig.Body{"template": "image", "source": "oci:" + ref}, &b) // without packages it is bare too
	if _, done = follow(t, c, b.ID); done.State != "ready" || !done.Cached {
		t.Errorf("the same again: %+v", done)
	}
	for source, code := range map[string]string{images.host + "/team/none:1": "invalid", "127.0.0.1:1/a/b:1": "denied"} {
		c.Must(t, "POST", "/api/v1/templates", rig.Body{"template": "x", "source": "oci:" + source, "bare": true}, &b)
		if log, done = follow(t, c, b.ID); done.State != "failed" || done.Error == nil || done.Error.Code != code {
			t.Errorf("%s: %+v with %s", source, done, log)
		}
	}
	for _, body := range []rig.Body{
		{"template": "x", "source": "dir:/etc"},
		{"template": "x", "source": "tar:/etc/passwd"},
		{"template": "base", "source": "debian:bookworm"},
	} {
		if status, raw, err := c.Do("POST", "/api/v1/templates", body); err != nil || status != 403 {
			t.Errorf("%v: %d %s, %v", body, status, raw, err)
		}
	}
}

// buildSteps builds a template as E2B's SDKs do, and returns the final status. begin is
// the JSON field that names the base.
func buildSteps(t *testing.T, s *rig.Server, c *rig.Client, name, begin, steps string) (log string) {
	t.Helper()
	var made struct{ Key string }
	c.Must(t, "POST", "/api/v1/keys", rig.Body{"name": "e2b"}, &made)
	plain := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	defer plain.CloseIdleConnections()
	ask := func(method, path, body string) string {
		t.Helper()
		req, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", made.Key)
		resp, err := plain.Do(req) // not in our API's contract
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode >= 300 {
			t.Fatalf("%s %s answers %s: %s, %v", method, path, resp.Status, text, err)
		}
		return string(text)
	}
	var draft struct{ TemplateID, BuildID string }
	decodeInto(t, []byte(ask("POST", "/v3/templates", `{"name":"`+name+`"}`)), &draft)
	ask("POST", "/v2/templates/"+name+"/builds/"+draft.BuildID, `{`+begin+`,"steps":[`+steps+`]}`)
	rig.Within(t, 3*time.Minute, "the build ended", func() bool {
		log = ask("GET", "/templates/"+name+"/builds/"+draft.BuildID+"/status", "")
		return strings.Contains(log, `"status":"error"`) || strings.Contains(log, `"status":"ready"`)
	})
	return log
}

// E2B's builder starts from the named image or refuses it. When no registry answers, a
// stand-in Template that does not match the image is refused.
func TestE2BBuildsFromImages(t *testing.T) {
	t.Parallel()
	const nobody = "127.0.0.1:1" // no registry listens there
	images := newImages(t)
	s := rig.Own(t, rig.Options{Env: []string{
		"CLOUD_SANDBOX_REGISTRIES=" + images.host + "," + nobody,
		"CLOUD_SANDBOX_E2B_TEMPLATES=" + nobody + "/python:*=base," + nobody + "/ubuntu:*=base",
	}})
	c := s.Client(t, "images")
	build := func(image, steps string) (log string) {
		t.Helper()
		return buildSteps(t, s, c, "pulled", `"fromImage":"`+image+`"`, steps)
	}
	root := rootOf(t, "find", "stat", "rm", "grep")
	if err := os.WriteFile(filepath.Join(root, "etc/os-release"), []byte("ID=ubuntu\nVERSION_ID=24.04\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ubuntu := images.host + "/library/ubuntu:24.04"
	images.push(t, ubuntu, root)
	steps := `{"type":"USER","args":["root"]},{"type":"RUN","args":["echo made >> /etc/os-release"]}`
	if log := build(ubuntu, `{"type":"RUN","args":["exit 3"]}`); !strings.Contains(log, "exit code 3") {
		t.Errorf("a step that fails: %s", log)
	}
	if status, raw, err := c.Do("GET", "/api/v1/templates/pulled", nil); err != nil || status != 404 {
		t.Errorf("after a build that failed: %d %s, %v", status, raw, err)
	}
	if log := build(ubuntu, steps); !strings.Contains(log, `"status":"ready"`) {
		t.Fatal(log)
	}
	box := create(t, c, rig.Body{"template": "pulled"})
	if got := output(t, c, box.ID, "bash", "cat /etc/os-release; echo $FROM_IMAGE"); got != "ID=ubuntu\nVERSION_ID=24.04\nmade\nyes\n" {
		t.Errorf("inside: %q", got)
	}
	if log := build(ubuntu, steps); !strings.Contains(log, "CACHED") || strings.Contains(log, "pulling") {
		t.Errorf("the same again: %s", log)
	}
	var listed struct{ Templates []struct{ Template string } }
	if c.Must(t, "GET", "/api/v1/templates", nil, &listed); slices.ContainsFunc(listed.Templates, func(l struct{ Template string }) bool { return strings.Contains(l.Template, "pulled-") }) {
		t.Errorf("tags of builds are left: %+v", listed)
	}
	bare := images.host + "/library/bare:1"
	images.push(t, bare, tinyRoot(t))
	for image, why := range map[string]string{
		bare:                               "has no find, which steps need",
		images.host + "/library/none:1":    "gives no image",
		"127.0.0.1:2/library/ubuntu:24.04": "private address",
		nobody + "/ubuntu:24.04":           "not ubuntu 24.04",
		nobody + "/python:3.99-slim":       "not Python 3.99",
		nobody + "/python:3":               "exit code 4", // its stand-in has Python 3
		nobody + "/else:1":                 "no template of this server stands for the image",
	} {
		if log := build(image, `{"type":"RUN","args":["exit 4"]}`); !strings.Contains(log, `"status":"error"`) || !strings.Contains(log, why) {
			t.Errorf("%s: %s, want %s", image, log, why)
		}
	}
}

// A canceled build, or one whose builder is killed, leaves no build tree, and the same
// build succeeds afterwards.
func TestTemplateBuildsThatEndEarly(t *testing.T) {
	t.Parallel()
	images := newImages(t)
	s := rig.Own(t, rig.Options{Env: []string{"CLOUD_SANDBOX_REGISTRIES=" + images.host}})
	c := s.Client(t, "early")
	ref := images.host + "/team/tiny:1"
	images.push(t, ref, tinyRoot(t))
	request := rig.Body{"template": "early", "source": "oci:" + ref, "bare": true}

	images.hold(true)
	var b templateBuild
	c.Must(t, "POST", "/api/v1/templates", request, &b)
	<-images.waits
	c.Must(t, "DELETE", "/api/v1/builds/"+b.ID, nil, &b)
	if b.State != "cancelled" {
		t.Errorf("cancelled: %+v", b)
	}
	nothingOfBuilds(t, s)
	for len(images.waits) > 0 { // drain those of the first build
		<-images.waits
	}

	c.Must(t, "POST", "/api/v1/templates", request, &b)
	<-images.waits
	builder := builderOf(t, s)
	if err := syscall.Kill(builder, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); c.Try("GET", "/api/v1/builds/"+b.ID, nil, &b) != nil || b.State != "failed"; {
		if time.Now().After(deadline) {
			t.Fatalf("the builder does not return, the build is %+v", b)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if b.Error == nil || !strings.Contains(b.Error.Message, "again") {
		t.Errorf("killed: %+v", b)
	}
	images.hold(false)
	c.Must(t, "POST", "/api/v1/templates", request, &b)
	if log, done := follow(t, c, b.ID); done.State != "ready" {
		t.Errorf("again: %+v with %s", done, log)
	}
	nothingOfBuilds(t, s)
}

// With the roles as separate processes, the gateway has the Node's launcher build
// Templates.
func TestTemplateBuildsWithRoles(t *testing.T) {
	t.Parallel()
	r := rig.OwnRoles(t, rig.Options{})
	c := r.Client(t, "roles")
	b := upload(t, c, `{"template":"mine","source":"tar:"}`, tarOf(t, tinyRoot(t)))
	if log, done := follow(t, c, b.ID); done.State != "ready" {
		t.Fatalf("built as %+v with %s", done, log)
	}
	box := create(t, c, rig.Body{"template": "mine"})
	if got := output(t, c, box.ID, "bash", "echo inside"); got != "inside\n" {
		t.Errorf("inside: %q", got)
	}
	context := tarOf(t, filepath.Join(tinyRoot(t), "bin"))
	b = upload(t, c, `{"template":"of-file","dockerfile":"FROM base\nCOPY sh /opt/sh\nRUN /opt/sh -c 'echo ran' > /opt/said"}`, context)
	if log, done := follow(t, c, b.ID); done.State != "ready" {
		t.Fatalf("of a Dockerfile: %+v with %s", done, log)
	}
	box = create(t, c, rig.Body{"template": "of-file"})
	if got := output(t, c, box.ID, "bash", "cat /opt/said"); got != "ran\n" {
		t.Errorf("of a Dockerfile: %q", got)
	}
}

// A `docker save` archive, compressed or not, becomes a template by REST and by the
// command line. A Dockerfile can start FROM that template.
func TestSavedImages(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "saved-images")
	c := sh.server.Client(t, "saved-images")
	ref, err := name.NewTag("example.com/team/saved:1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(sh.folder, "image.tar")
	if err := tarball.WriteToFile(path, ref, imageOf(t, rootOf(t, "find", "stat", "rm", "grep"))); err != nil {
		t.Fatal(err)
	}
	saved, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b := upload(t, c, `{"template":"saved:rest","source":"tar:","env":{"MORE":"too"}}`, saved)
	if log, done := follow(t, c, b.ID); done.State != "ready" {
		t.Fatalf("%+v with %s", done, log)
	}
	box := create(t, c, rig.Body{"template": "saved:rest"})
	if got := output(t, c, box.ID, "bash", "echo $FROM_IMAGE $MORE"); got != "yes too\n" {
		t.Errorf("inside: %q", got)
	}
	if out, err := rig.Command("gzip", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sh.must(t, "template", "build", "saved:cli", "--source", "tar:image.tar.gz")
	if got := sh.must(t, "run", "--template", "saved:cli", "--", "sh", "-c", "echo $FROM_IMAGE"); got != "yes\n" {
		t.Errorf("by the command line: %q", got)
	}
	sh.write(t, "Dockerfile", "FROM saved:cli\nENV MORE=${FROM_IMAGE}_more\nRUN echo $MORE > /more\n", 0o644)
	sh.must(t, "template", "build", "saved:more", "--dockerfile", "Dockerfile")
	if got := sh.must(t, "run", "--template", "saved:more", "--", "sh", "-c", "cat /more; echo $FROM_IMAGE $MORE"); got != "yes_more\nyes yes_more\n" {
		t.Errorf("from it: %q", got)
	}
	if r := sh.try(t, "", "template", "build", "saved:x", "--source", "tar:image.tar.gz", "--package", "jq"); r.code == 0 || !strings.Contains(r.err, "RUN in a Dockerfile") {
		t.Errorf("with packages: %+v", r)
	}
}

// nothingOfBuilds checks that no tree of a build is left.
func nothingOfBuilds(t *testing.T, s *rig.Server) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(s.Data, "templates/build/*/root"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// builderOf finds the server's builder.
func builderOf(t *testing.T, s *rig.Server) int {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		body, _ := os.ReadFile(p) // it may have ended
		args := strings.Split(strings.TrimRight(string(body), "\x00"), "\x00")
		if len(args) == 4 && args[1] == "builder" && args[3] == s.Data {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("there is no builder")
	return 0
}
