package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestKeepPath(t *testing.T) {
	const debian = `# /etc/profile
if [ "${EUID:-$(id -u)}" -eq 0 ]; then
  PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
else
  PATH="/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
fi
export PATH
`
	for name, tt := range map[string]struct{ text, path, want string }{
		"Debian":              {debian, "/opt/x/bin:/bin", "/opt/x/bin:/bin"},
		"Debian without PATH": {"unset PATH\n" + debian, "/opt/x/bin:/bin", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		"Alpine":              {`export PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"` + "\n", "/opt/x/bin:/bin", "/opt/x/bin:/bin"},
		"without quotes":      {"export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n", "/opt/x/bin:/bin", "/opt/x/bin:/bin"},
		"somebody's":          {`PATH="/mine:/usr/bin:/bin"` + "\n", "/opt/x/bin:/bin", "/mine:/usr/bin:/bin"},
		"what adds to it":     {`PATH="$PATH:/mine"` + "\n", "/opt/x/bin:/bin", "/opt/x/bin:/bin:/mine"},
	} {
		file := filepath.Join(t.TempDir(), "profile")
		if err := os.WriteFile(file, []byte(tt.text), 0o644); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a later Boot finds it done
			keepPath(file)
		}
		cmd := exec.Command("/bin/bash", "-c", `. "$1"; echo -n "$PATH"`, "bash", file)
		cmd.Env = []string{"PATH=" + tt.path}
		out, err := cmd.CombinedOutput()
		want := tt.want
		if os.Geteuid() != 0 && name == "Debian without PATH" {
			want = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
		}
		if err != nil || string(out) != want {
			t.Errorf("%s: PATH is %q, %v; want %q", name, out, err, want)
		}
	}
	keepPath("/nowhere/profile")
}
