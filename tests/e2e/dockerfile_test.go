package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	imagefolder "github.com/cloud-sandbox/cloud-sandbox/internal/template/images"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

const aDockerfile = `# What a Dockerfile of an application has.
ARG FROM=base
FROM ${FROM}
ARG GREETING=hello
ENV APP=/srv/app PATH=/srv/app/bin:$PATH
LABEL ignored=yes
WORKDIR $APP
RUN groupadd -r app && useradd -r -g app -d $APP app && echo "built by $(whoami) in $(pwd)" > log
COPY --chown=app:app src *.txt ./
COPY --chmod=0755 <<END bin/say
#!/bin/sh
echo from "\$0"
END
RUN say >> log && echo $GREETING >> log
USER app
EXPOSE 8000
CMD ["sh", "-c", "echo started as $(whoami) > /tmp/started; exec sleep 600"]
`

// The command line builds a template from a Dockerfile. An unchanged build is cached.
// After a file changes, only the steps from its COPY on run again.
func TestCommandTemplateOfDockerfile(t *testing.T) {
	t.Parallel()
	keepsTemplates(t)
	sh := newShell(t, "command-dockerfile")
	if err := os.MkdirAll(filepath.Join(sh.folder, "app/src/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"Dockerfile": aDockerfile, ".dockerignore": "*.txt\n!kept.txt\n**/secret\n", "src/main.sh": "echo main\n", "src/sub/deep": "deep\n",
		"kept.txt": "kept\n", "left-out.txt": "left out\n", "src/secret": "k\n",
	} {
		sh.write(t, filepath.Join("app", name), text, 0o644)
	}
	if err := os.Symlink("main.sh", filepath.Join(sh.folder, "app/src/link")); err != nil {
		t.Fatal(err)
	}
	build := []string{"template", "build", "app:1", "--dockerfile", "app/Dockerfile", "--build-arg", "GREETING=hi there", "--ready", "test -s /tmp/started", "--json"}
	var built struct {
		Template, Version, Source string
		Cached                    bool
		SizeBytes                 int64 `json:"size_bytes"`
	}
	first := sh.try(t, "", build...)
	if first.code != 0 {
		t.Fatalf("%+v", first)
	}
	decodeInto(t, []byte(first.out), &built)
	if built.Template != "app:1" || len(built.Version) != 64 || built.Source != "base" || built.Cached || built.SizeBytes == 0 {
		t.Errorf("built: %+v", built)
	}
	if lines := strings.Count(first.err, "\n"); lines > 20 {
		t.Errorf("%d lines tell of the build:\n%s", lines, first.err)
	}
	got := sh.must(t, "run", "--template", "app:1", "--", "sh", "-c", `cat log /tmp/started; say; ls -A . sub; stat -c '%U %a %N' main.sh bin/say link; env | grep -c GREETING; pwd; whoami`)
	want := "built by root in /srv/app\nfrom /srv/app/bin/say\nhi there\nstarted as app\nfrom /srv/app/bin/say\n" +
		".:\nbin\nkept.txt\nlink\nlog\nmain.sh\nsub\n\nsub:\ndeep\napp 644 'main.sh'\nroot 755 'bin/say'\napp 777 'link' -> 'main.sh'\n0\n/srv/app\napp\n"
	if got != want {
		t.Errorf("inside: %s\nwant %s", got, want)
	}

	// An unchanged build is cached; a changed file reruns only the later steps.
	again := sh.must(t, build...)
	decodeInto(t, []byte(again), &built)
	if !built.Cached {
		t.Errorf("again: %s", again)
	}
	sh.write(t, "app/kept.txt", "changed\n", 0o644)
	changed := sh.try(t, "", append(build, "--verbose")...)
	if changed.code != 0 || strings.Count(changed.err, "CACHED [builder") < 3 || !strings.Contains(changed.err, "] COPY --chown=app:app src *.txt ./") {
		t.Errorf("with another file: %+v", changed)
	}
	if got := sh.must(t, "run", "--template", "app:1", "--", "cat", "kept.txt"); got != "changed\n" {
		t.Errorf("with another file: %q", got)
	}
	sh.must(t, "template", "rm", "app")

	sh.write(t, "stages", "FROM base AS one\nRUN true\nFROM base\n", 0o644)
	sh.write(t, "fails", "FROM base\nENV A=1\nRUN echo why; \\\n  exit 3\n", 0o644)
	sh.write(t, "lacks", "FROM base\nCOPY none /\n", 0o644)
	sh.write(t, "plain", "FROM base\nRUN true\n", 0o644)
	sh.write(t, "image", "FROM 127.0.0.1:1/a/b:1\n", 0o644)
	for _, tt := range []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"--dockerfile", "stages"}, 1, "Dockerfile line 3: a second FROM"},
		{[]string{"--dockerfile", "fails"}, 1, "Dockerfile line 3: RUN echo why; exit 3: the command ended with exit code 3: why"},
		{[]string{"--dockerfile", "lacks"}, 1, `Dockerfile line 2: COPY "none": it is not in the build context`},
		{[]string{"--dockerfile", "image"}, 1, "127.0.0.1:1"},
		{[]string{"--dockerfile", "nowhere"}, 1, "no such file"},
		{[]string{"--dockerfile", "lacks", "--context", "nowhere"}, 1, "no such file"},
		{[]string{"--dockerfile", "lacks", "--context", "plain"}, 2, "not a folder"},
		{[]string{"--dockerfile", "plain", "--build-arg", "A=1"}, 1, `"A" is not declared`},
		{[]string{"--dockerfile", "plain", "--ready", "true"}, 1, "needs a start command"},
		{[]string{"--dockerfile", "plain", "--source", "debian:bookworm"}, 2, "FROM names"},
		{[]string{"--dockerfile", "plain", "--package", "ffmpeg"}, 2, "RUN apt-get"},
		{[]string{"--source", "debian:bookworm", "--context", "."}, 2, "--dockerfile"},
		{[]string{"--source", "debian:bookworm", "--build-arg", "A=1"}, 2, "--dockerfile"},
	} {
		if r := sh.try(t, "", append([]string{"template", "build", "x"}, tt.args...)...); r.code != tt.code || !strings.Contains(r.err, tt.err) || r.out != "" {
			t.Errorf("%q: %+v, want %d and %q", tt.args, r, tt.code, tt.err)
		}
	}
	local := sh.command("template", "build", "x", "--dockerfile", "plain", "--data", t.TempDir())
	local.Env = append(os.Environ(), "CLOUD_SANDBOX_URL=", "CLOUD_SANDBOX_API_KEY=")
	if out, err := local.CombinedOutput(); err == nil || !strings.Contains(string(out), "build through it with --url") {
		t.Errorf("in a data folder: %v, %s", err, out)
	}
}

// REST builds Dockerfiles with the context in the form. Other tenants cannot see the
// builds.
func TestDockerfileBuilds(t *testing.T) {
	t.Parallel()
	keepsTemplates(t)
	s := shared.Server(t)
	c, other := s.Client(t, "dockerfile-builds-"+rand.Text()), s.Client(t, "dockerfile-others")
	var context bytes.Buffer
	w := tar.NewWriter(&context)
	for _, h := range []tar.Header{
		{Name: "./file", Typeflag: tar.TypeReg, Mode: 0o600, Size: 3, Uid: 4711},
		{Name: "./out", Typeflag: tar.TypeSymlink, Linkname: "../../../etc/shadow"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte("abc")[:h.Size])
	}
	_ = w.Close()
	describe := func(dockerfile string) string {
		text, err := json.Marshal(rig.Body{"template": "rest", "dockerfile": dockerfile})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	b := upload(t, c, describe("FROM base\nCOPY file /srv/\nRUN stat -c '%U %a' /srv/file > /srv/of\n"), context.Bytes())
	log, done := follow(t, c, b.ID)
	if done.State != "ready" || len(done.Version) != 64 || !strings.Contains(log, "[builder 2/2] RUN stat") {
		t.Fatalf("%+v with %s", done, log)
	}
	box := create(t, c, rig.Body{"template": "rest"})
	if got := output(t, c, box.ID, "bash", "sudo cat /srv/file; cat /srv/of; whoami; ls -A /var/tmp"); got != "abcroot 600\nuser\n" {
		t.Errorf("inside: %q", got)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+box.ID, nil, nil)
	var list struct{ Builds []templateBuild }
	c.Must(t, "GET", "/api/v1/builds", nil, &list)
	if len(list.Builds) != 1 || list.Builds[0].ID != b.ID {
		t.Errorf("builds: %+v", list.Builds)
	}
	b = upload(t, c, describe("FROM base\nCOPY out /srv/\n"), context.Bytes())
	if log, done = follow(t, c, b.ID); done.State != "failed" || done.Error == nil || !strings.Contains(done.Error.Message, "leads out of the build context") {
		t.Errorf("a link that leads out: %+v with %s", done, log)
	}
	c.Must(t, "POST", "/api/v1/templates", rig.Body{"template": "slow", "dockerfile": "FROM base\nRUN sleep 600\n"}, &b)
	for _, path := range []string{"/api/v1/builds/" + b.ID, "/api/v1/builds/" + b.ID + "/log"} {
		if status, raw, err := other.Do("GET", path, nil); err != nil || status != 404 {
			t.Errorf("another tenant: %s is %d %s, %v", path, status, raw, err)
		}
	}
	c.Must(t, "DELETE", "/api/v1/builds/"+b.ID, nil, &b)
	if b.State != "cancelled" {
		t.Errorf("cancelled: %+v", b)
	}
	for _, body := range []rig.Body{
		{"template": "x"},
		{"template": "x", "dockerfile": "RUN true"},
		{"template": "x", "dockerfile": "FROM base", "source": "debian:bookworm"},
		{"template": "x", "dockerfile": "FROM base", "packages": []string{"jq"}},
		{"template": "x", "dockerfile": "FROM base", "env": rig.Body{"A": "b"}},
		{"template": "x", "source": "debian:bookworm", "build_args": rig.Body{"A": "b"}},
		{"template": "x@y", "dockerfile": "FROM base"},
	} {
		if status, raw, err := c.Do("POST", "/api/v1/templates", body); err != nil || status != 400 {
			t.Errorf("%v: %d %s, %v", body, status, raw, err)
		}
	}
	c.Must(t, "DELETE", "/api/v1/templates/rest", nil, nil)
}

// repository builds a local apt repository with one package, because sandboxes cannot
// reach a public one here.
const repository = `FROM base
WORKDIR /srv/repo
RUN mkdir -p greeting/DEBIAN greeting/usr/bin \
  && printf 'Package: greeting\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.com>\nDescription: greets\n' > greeting/DEBIAN/control \
  && printf '#!/bin/sh\necho "greetings, $WHOM"\n' > greeting/usr/bin/greeting && chmod 755 greeting/usr/bin/greeting \
  && dpkg-deb --root-owner-group -b greeting greeting.deb \
  && (cat greeting/DEBIAN/control; echo "Filename: ./greeting.deb"; echo "Size: $(stat -c %s greeting.deb)"; echo "SHA256: $(sha256sum greeting.deb | cut -d' ' -f1)") > Packages \
  && rm -rf greeting /etc/apt/sources.list /etc/apt/sources.list.d/* && echo 'deb [trusted=yes] file:/srv/repo ./' > /etc/apt/sources.list
`

// A server adds packages to an image by running the image's package manager in a sandbox
// of the tenant.
func TestPackagesForImages(t *testing.T) {
	t.Parallel()
	const nobody = "127.0.0.1:1" // no registry listens there
	s := rig.Own(t, rig.Options{Env: []string{"CLOUD_SANDBOX_REGISTRIES=" + nobody, "CLOUD_SANDBOX_E2B_TEMPLATES=" + nobody + "/debian:*=repo"}})
	c := s.Client(t, "packages")
	var b templateBuild
	c.Must(t, "POST", "/api/v1/templates", rig.Body{"template": "repo", "dockerfile": repository}, &b)
	if log, done := follow(t, c, b.ID); done.State != "ready" {
		t.Fatalf("%+v with %s", done, log)
	}
	want := rig.Body{
		"template": "packaged", "source": "oci:" + nobody + "/debian:12", "packages": []string{"greeting"}, "env": rig.Body{"WHOM": "$USER"},
		"files": []rig.Body{{"path": "/srv/a", "content": "put in", "mode": "0600", "owner": "user"}}, "start": "greeting > /tmp/greeted", "ready": "test -s /tmp/greeted",
	}
	c.Must(t, "POST", "/api/v1/templates", want, &b)
	log, done := follow(t, c, b.ID)
	if done.State != "ready" || done.Cached || !strings.Contains(log, "the template repo replaces it") || !strings.Contains(log, "install greeting") {
		t.Fatalf("%+v with %s", done, log)
	}
	box := create(t, c, rig.Body{"template": "packaged"})
	if got := output(t, c, box.ID, "bash", "greeting; cat /tmp/greeted /srv/a; stat -c ' %U %a' /srv/a; id -un"); got != "greetings, $USER\ngreetings, $USER\nput in user 600\nuser\n" {
		t.Errorf("inside: %q", got)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+box.ID, nil, nil)
	c.Must(t, "POST", "/api/v1/templates", want, &b)
	if log, done = follow(t, c, b.ID); done.State != "ready" || !done.Cached {
		t.Errorf("the same again: %+v with %s", done, log)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("by the command line"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := rig.Command(s.Bin, "template", "build", "packaged:2", "--source", "oci:"+nobody+"/debian:12", "--package", "greeting", "--file", file+":/srv/b", "--env", "WHOM=you", "--verbose")
	cmd.Env = append(os.Environ(), "CLOUD_SANDBOX_URL="+s.URL, "CLOUD_SANDBOX_USER_ID=packages", "CLOUD_SANDBOX_API_KEY=")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "CACHED [builder 1/2] install greeting") {
		t.Fatalf("%v: %s", err, out)
	}
	box = create(t, c, rig.Body{"template": "packaged:2"})
	if got := output(t, c, box.ID, "bash", "greeting; cat /srv/b; ls /srv"); got != "greetings, you\nby the command lineb\nrepo\n" {
		t.Errorf("inside: %q", got)
	}
	want["packages"] = []string{"none-of-that-name"}
	c.Must(t, "POST", "/api/v1/templates", want, &b)
	if log, done = follow(t, c, b.ID); done.Error == nil || !strings.HasPrefix(done.Error.Message, "install none-of-that-name: ") || !strings.Contains(done.Error.Message, "Unable to locate package") {
		t.Errorf("a package that there is not: %+v with %s", done, log)
	}
	for _, wrong := range []rig.Body{{"packages": []string{"--bad"}}, {"packages": []string{"jq"}, "bare": true}, {"packages": []string{"jq"}, "ready": "true"}} {
		wrong["template"], wrong["source"] = "x", "oci:"+nobody+"/debian:12"
		if status, raw, err := c.Do("POST", "/api/v1/templates", wrong); err != nil || status/100 == 2 {
			t.Errorf("%v: %d %s, %v", wrong, status, raw, err)
		}
	}
}

// Large files are added to a template, by REST beside an archive and by the command
// line.
func TestTemplateFiles(t *testing.T) {
	t.Parallel()
	keepsTemplates(t)
	sh := newShell(t, "template-files")
	c := sh.server.Client(t, "template-files")
	root := rootOf(t, "stat", "head")
	form := func(files []tar.Header, parts ...string) (int, templateBuild, string) {
		t.Helper()
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		for _, name := range parts {
			part, err := w.CreateFormFile(name, name)
			if err != nil {
				t.Fatal(err)
			}
			switch name {
			case "template":
				_, _ = io.WriteString(part, `{"template": "files:1", "source": "tar:"}`)
			case "archive":
				_, _ = part.Write(tarOf(t, root))
			case "files":
				archive := tar.NewWriter(part)
				for _, h := range files {
					if err := archive.WriteHeader(&h); err != nil {
						t.Fatal(err)
					}
					_, _ = archive.Write(bytes.Repeat([]byte("x"), int(h.Size)))
				}
				_ = archive.Close()
			}
		}
		_ = w.Close()
		req, err := http.NewRequest("POST", c.URL+"/api/v1/templates", &body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", w.FormDataContentType())
		req.Header.Set("Authorization", "Bearer "+c.Token)
		resp, err := c.HTTP.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		var b templateBuild
		_ = json.Unmarshal(text, &b)
		return resp.StatusCode, b, string(text)
	}
	const large = 20 << 20
	files := []tar.Header{
		{Name: "srv/large", Typeflag: tar.TypeReg, Mode: 0o640, Size: large, Uid: 1000, Gid: 1000},
		{Name: "./srv/link", Typeflag: tar.TypeSymlink, Linkname: "large"},
	}
	status, b, text := form(files, "template", "files", "archive")
	if status != 202 {
		t.Fatalf("%d %s", status, text)
	}
	if log, done := follow(t, c, b.ID); done.State != "ready" || !strings.Contains(log, "files that were sent") {
		t.Fatalf("%+v with %s", done, log)
	}
	if got := sh.must(t, "run", "--template", "files:1", "--", "sh", "-c", "head -c 3 /srv/link; stat -c ' %s %u %a' /srv/large"); got != "xxx 20971520 1000 640\n" {
		t.Errorf("inside: %q", got)
	}
	for name, tt := range map[string]struct {
		files []tar.Header
		parts []string
		says  string
	}{
		"leads out":      {[]tar.Header{{Name: "../etc/x", Typeflag: tar.TypeReg}}, []string{"template", "files", "archive"}, "not the path of a file"},
		"a mounted path": {[]tar.Header{{Name: "proc/x", Typeflag: tar.TypeReg}}, []string{"template", "files", "archive"}, "/proc"},
		"a device":       {[]tar.Header{{Name: "srv/null", Typeflag: tar.TypeChar}}, []string{"template", "files", "archive"}, "neither a file"},
		"no archive":     {files[1:], []string{"template", "files"}, "must have the part template"},
		"another order":  {files[1:], []string{"files", "template", "archive"}, "must have the part template"},
		"another part":   {nil, []string{"template", "else"}, "must have the part template"},
	} {
		if status, _, text := form(tt.files, tt.parts...); status != 400 || !strings.Contains(text, tt.says) {
			t.Errorf("%s: %d %s, want %s", name, status, text, tt.says)
		}
	}

	if err := os.WriteFile(filepath.Join(sh.folder, "large"), bytes.Repeat([]byte("y"), large), 0o600); err != nil {
		t.Fatal(err)
	}
	again := sh.must(t, "template", "build", "files:2", "--source", "dir:"+root, "--file", "large:/srv/large:0644", "--file", "large:/srv/two", "--json")
	if !strings.Contains(again, `"files:2"`) {
		t.Error(again)
	}
	if got := sh.must(t, "run", "--template", "files:2", "--", "sh", "-c", "head -c 3 /srv/large; stat -c ' %s %u %a' /srv/large /srv/two"); got != "yyy 20971520 0 644\n 20971520 0 600\n" {
		t.Errorf("inside: %q", got)
	}
	sh.must(t, "template", "rm", "files")
}

// A template that adds one line to another is stored as a delta. A start from it
// rebuilds the whole image, and removing the template deletes the image.
func TestTemplatesCostWhatTheyAdd(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	sh := &shell{server: s, user: "deltas", folder: t.TempDir()}
	sh.write(t, "Dockerfile", "FROM base\nRUN echo a line > /srv/line\n", 0o644)
	var built struct{ Version string }
	decodeInto(t, []byte(sh.must(t, "template", "build", "line", "--dockerfile", "Dockerfile", "--json")), &built)
	all := imagefolder.Folder(filepath.Join(s.Data, "templates", "images"))
	rig.Within(t, 3*time.Minute, "the image is a delta", func() bool { // the server looks every minute
		bases, err := all.Bases()
		return err == nil && bases[built.Version] != ""
	})
	const most = 5_000_000
	if n, err := all.Stored(built.Version); err != nil || n > most {
		t.Errorf("the template takes %d bytes, more than %d, %v", n, most, err)
	}
	rig.Within(t, rig.Patience, "the whole file is evicted", func() bool { // the build's trial Sandbox may still use it
		_, err := all.Evict(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = os.Stat(all.Path(built.Version))
		return errors.Is(err, fs.ErrNotExist)
	})
	if got := sh.must(t, "run", "--template", "line", "--", "cat", "/srv/line", "/etc/hostname"); !strings.HasPrefix(got, "a line\n") {
		t.Errorf("inside is %q", got)
	}
	box := strings.TrimSpace(sh.must(t, "create", "--template", "line"))
	if freed, err := all.Evict(t.Context(), 0); err != nil || freed != 0 {
		t.Errorf("%d bytes of an image were evicted that a sandbox runs from, %v", freed, err)
	}
	if r := sh.try(t, "", "template", "rm", "line"); r.code == 0 || !strings.Contains(r.err, "sandboxes run from") {
		t.Errorf("removed under a sandbox: %+v", r)
	}
	sh.must(t, "pause", box)
	rig.Within(t, rig.Patience, "the whole file is evicted below a paused sandbox", func() bool {
		freed, err := all.Evict(t.Context(), 0)
		return err == nil && freed > 0
	})
	if got := sh.must(t, "exec", box, "cat", "/srv/line"); got != "a line\n" { // resumes the sandbox
		t.Errorf("after a pause inside is %q", got)
	}
	sh.must(t, "rm", box)
	rig.Within(t, rig.Patience, "the template goes", func() bool { return sh.try(t, "", "template", "rm", "line").code == 0 })
	if all.Has(built.Version) {
		t.Error("the image is still there")
	}
}
