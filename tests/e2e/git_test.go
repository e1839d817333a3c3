package e2e

import (
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// gitServer serves /srv/app.git inside the Sandbox to the user ada. At each request it
// records the arguments and environments of all processes.
const gitServer = `
import base64, glob, http.server, os, subprocess
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do(self):
        want = "Basic " + base64.b64encode(b"ada:the-t0ken").decode()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != want:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with open("/tmp/seen", "ab") as seen:
            for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
                try:
                    seen.write(open(path, "rb").read())
                except OSError:
                    pass
        path, _, query = self.path.partition("?")
        env = dict(os.environ, GIT_PROJECT_ROOT="/srv", GIT_HTTP_EXPORT_ALL="1", REMOTE_USER="ada", PATH_INFO=path, QUERY_STRING=query,
            REQUEST_METHOD=self.command, CONTENT_TYPE=self.headers.get("Content-Type", ""), CONTENT_LENGTH=str(len(body)),
            HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""), GIT_PROTOCOL=self.headers.get("Git-Protocol", ""))
        out = subprocess.run(["git", "http-backend"], input=body, env=env, stdout=subprocess.PIPE).stdout
        head, _, content = out.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        self.send_response(next((int(v.split()[0]) for k, v in fields if k == "Status"), 200))
        for k, v in fields:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    do_GET = do_POST = do
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
`

func TestGit(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "git")
	id := c.Acquire(t)
	c.Must(t, "PUT", rig.Files("", id, "/tmp/server.py"), []byte(gitServer), nil)
	c.Sh(t, id, `set -e
		git config --global init.defaultBranch main; git config --global credential.helper store
		git init -q /tmp/seed; cd /tmp/seed; echo one >a.txt; git add .; git -c user.name=S -c user.email=s@example.com commit -qm first
		sudo git clone -q --bare /tmp/seed /srv/app.git; sudo git -C /srv/app.git config http.receivepack true; sudo chown -R user /srv/app.git
		setsid python3 /tmp/server.py >/tmp/server.log 2>&1 </dev/null &
		until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.1; done`)
	const url = "http://127.0.0.1:8000/app.git"
	ada := rig.Body{"username": "ada", "password": "the-t0ken"}
	type head struct {
		Path, Branch, Commit string
		Updated, Clean       bool
		Upstream             string
		Ahead                int
		Files                []struct{ Path, Index, Worktree string }
		Current              string
		Branches             []struct{ Name string }
	}
	git := func(name string, body rig.Body) (h head) {
		t.Helper()
		body["sandbox_id"] = id
		c.Must(t, "POST", "/api/v1/git/"+name, body, &h)
		return h
	}
	refused := func(name string, body rig.Body, want int) {
		t.Helper()
		body["sandbox_id"] = id
		code, raw, err := c.Do("POST", "/api/v1/git/"+name, body)
		if err != nil || code != want || strings.Contains(string(raw), "t0ken") {
			t.Errorf("%s %v answers %d %s %v, want %d", name, body, code, raw, err, want)
		}
	}
	refused("clone", rig.Body{"url": url}, 403)
	refused("clone", rig.Body{"url": url, "credentials": rig.Body{"username": "ada", "password": "wrong"}}, 403)
	refused("clone", rig.Body{"url": url, "credentials": rig.Body{"username": "ada", "password": "the-t0ken", "host": "git.example"}}, 403)
	refused("status", rig.Body{"path": "/tmp"}, 404)
	refused("status", rig.Body{"path": "/none"}, 404)
	first := git("clone", rig.Body{"url": url, "credentials": ada})
	if first.Path != "/workspace/app" || first.Branch != "main" || len(first.Commit) != 40 {
		t.Fatalf("cloned %+v", first)
	}
	refused("clone", rig.Body{"url": url, "credentials": ada}, 409)
	git("checkout", rig.Body{"path": "app", "ref": "feature", "create": true})
	c.Must(t, "PUT", rig.Files("", id, "app/b.txt"), []byte("two"), nil)
	if s := git("status", rig.Body{"path": "app"}); s.Clean || len(s.Files) != 1 || s.Files[0].Worktree != "untracked" || s.Branch != "feature" {
		t.Errorf("status %+v", s)
	}
	author := rig.Body{"name": "Ada", "email": "ada@example.com"}
	refused("commit", rig.Body{"path": "app", "message": "Nothing", "author": author}, 409)
	if s := git("add", rig.Body{"path": "app", "files": []string{"b.txt"}}); s.Files[0].Index != "added" {
		t.Errorf("added %+v", s)
	}
	second := git("commit", rig.Body{"path": "app", "message": "Add b", "author": author})
	if second.Commit == first.Commit || second.Branch != "feature" {
		t.Errorf("committed %+v", second)
	}
	refused("push", rig.Body{"path": "app"}, 403)
	if p := git("push", rig.Body{"path": "app", "set_upstream": true, "credentials": ada}); p.Commit != second.Commit {
		t.Errorf("pushed %+v", p)
	}
	if b := git("branches", rig.Body{"path": "app"}); b.Current != "feature" || len(b.Branches) != 4 {
		t.Errorf("branches %+v", b)
	}
	c.Sh(t, id, "set -e; cd /tmp/seed; echo more >>a.txt; git -c user.name=S -c user.email=s@example.com commit -qam more; git push -q /srv/app.git main")
	git("checkout", rig.Body{"path": "app", "ref": "main"})
	if p := git("pull", rig.Body{"path": "app", "credentials": ada}); !p.Updated || p.Commit == first.Commit {
		t.Errorf("pulled %+v", p)
	}
	if s := git("status", rig.Body{"path": "app"}); !s.Clean || s.Upstream != "origin/main" || s.Ahead != 0 {
		t.Errorf("status %+v", s)
	}
	// The token is in no file, and was in no process's arguments or environment.
	found := c.Sh(t, id, `[ -s /tmp/seen ] || echo nothing was seen
		sudo grep -rl t0ken /workspace /home /root /tmp/seed /tmp/seen /tmp/server.log /etc /var 2>/dev/null
		for p in /proc/[0-9]*; do [ "$p" = "/proc/$$" ] || sudo cat $p/cmdline $p/environ 2>/dev/null; done | tr '\0' '\n' | grep -c 'the-[t]0ken'; true`)
	if strings.TrimSpace(found) != "0" {
		t.Errorf("the token was found: %s", found)
	}
}
