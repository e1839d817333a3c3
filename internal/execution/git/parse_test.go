package git

import (
	"errors"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const oid = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"

func TestParseStatus(t *testing.T) {
	entry := "1 .M N... 100644 100644 100644 " + oid + " " + oid + " a b\x00"
	rename := "2 R. N... 100644 100644 100644 " + oid + " " + oid + " R100 new\x00old\x00"
	for _, tt := range []struct {
		data  string
		cut   bool
		files int
		bad   bool
	}{
		{"# branch.oid (initial)\x00# branch.head main\x00", false, 0, false},
		{"# branch.oid " + oid + "\x00# branch.head (detached)\x00" + entry + rename + "? x\x00! y\x00", false, 4, false},
		{entry + "1 .M N... 1006", true, 1, false},
		{entry + "2 R. N... 100644 100644 100644 " + oid + " " + oid + " R100 new\x00ol", true, 1, false},
		{strings.Repeat("? x\x00", maxFiles+5), false, maxFiles, false},
		{"# branch.oid nonsense\x00", false, 0, true},
		{"# branch.ab +x -1\x00", false, 0, true},
		{"# branch.ab +1 --1\x00", false, 0, true},
		{"\x00", false, 0, true},
		{"1 .M\x00", false, 0, true},
		{"9 x\x00", false, 0, true},
		{"?? x\x00", false, 0, true},
		{"? \x00", false, 0, true},
		{strings.Replace(entry, ".M", "ZM", 1), false, 0, true},
		{strings.Replace(entry, ".M", ".", 1), false, 0, true},
	} {
		s, err := parseStatus([]byte(tt.data), tt.cut)
		if (err != nil) != tt.bad || len(s.Files) != tt.files && !tt.bad {
			t.Errorf("%.80q: %d files, %v", tt.data, len(s.Files), err)
		}
		if tt.files == maxFiles && !s.Truncated || tt.cut && !s.Truncated {
			t.Errorf("%.80q is not truncated", tt.data)
		}
	}
}

func TestParseBranches(t *testing.T) {
	b, err := parseBranches([]byte("refs/heads/a\t"+oid+"\torigin/a\t\nrefs/remotes/origin/HEAD\t"+oid+"\t\trefs/remotes/origin/a\nrefs/remotes/origin/a\t"+oid+"\t\t\n"), false)
	if err != nil || len(b.Branches) != 2 || b.Branches[0].Upstream != "origin/a" || b.Branches[1].Name != "origin/a" {
		t.Errorf("%+v, %v", b, err)
	}
	for _, bad := range []string{"x\n", "refs/heads/a\tnonsense\t\t\n", "refs/tags/a\t" + oid + "\t\t\n", "refs/heads/a\t" + oid + "\t\n"} {
		if b, err := parseBranches([]byte(bad), false); err == nil {
			t.Errorf("%q: %+v", bad, b)
		}
	}
}

func TestCheckURL(t *testing.T) {
	for _, good := range []string{
		"https://git.example/a/b.git", "http://localhost:8080/x", "git://git.example/a", "ssh://git@git.example:22/a", "file:///srv/a.git",
		"git@git.example:team/app.git", "git.example:app", "/workspace/a b", "https://[::1]:8080/a",
	} {
		if err := checkURL(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"ext::sh -c id", "ext::sh", "-u", "--upload-pack=id", "https://u:p@git.example/a", "https://u@git.example/a", "ftp://git.example/a",
		"javascript:alert(1)//", "https://", "https:///a", "a b", "/a\x00", "/a\nb", "relative/path", "https://git.example/a b", "ssh://u:p@git.example/a",
		"https://git.example:x/a", "fd::17", "git.example::a",
	} {
		if bad == "javascript:alert(1)//" {
			continue // a host named javascript, for all that git knows
		}
		if err := checkURL(bad); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestNameOf(t *testing.T) {
	for url, want := range map[string]string{
		"https://git.example/team/app.git": "app", "https://git.example/team/app/": "app", "git@git.example:app.git": "app", "/srv/a.git/": "a",
		"/srv/a/.git": "a", "https://git.example/..": "", "/": "", "host:": "",
	} {
		if got := NameOf(url); got != want {
			t.Errorf("%q: %q, want %q", url, got, want)
		}
	}
}

func TestCredentialsCheck(t *testing.T) {
	for _, bad := range []Credentials{
		{},
		{Password: "a\nhost=evil"},
		{Password: "a", Username: "b\x00"},
		{Password: "a\r"},
		{Password: strings.Repeat("x", 4097)},
		{Password: "a", Username: strings.Repeat("x", 257)},
		{Password: "a", Host: "a b"},
		{Password: "a", Host: "x'y"},
		{Password: "a", Host: "https://x"},
	} {
		if err := bad.Check(); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	c := &Credentials{Password: "p", Host: "Git.example:8443"}
	lent, err := c.forURL("https://git.example:8443/a")
	if err != nil || lent.Username != "git" || lent.protocol != "https" {
		t.Errorf("%+v, %v", lent, err)
	}
	for _, url := range []string{"https://git.example/a", "ssh://git.example:8443/a", "/a", "git.example:8443", "https://$(id)/a", "https://a'b/"} {
		if lent, err := c.forURL(url); err == nil {
			t.Errorf("%s: %+v", url, lent)
		}
	}
	if got := c.hide("no p here"); got != "no *** here" {
		t.Errorf("hidden: %q", got)
	}
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte("# branch.oid "+oid+"\x00# branch.ab +1 -2\x001 .M N... 100644 100644 100644 "+oid+" "+oid+" a\x00? b\x00"), false)
	f.Add([]byte("2 R. N... 100644 100644 100644 "+oid+" "+oid+" R100 new\x00old\x00"), true)
	f.Fuzz(func(t *testing.T, data []byte, cut bool) {
		s, err := parseStatus(data, cut)
		if err != nil {
			return
		}
		for _, file := range s.Files {
			if file.Path == "" || file.Index == "" || file.Worktree == "" || len(file.Path) > 3*maxName {
				t.Fatalf("%q gives %+v", data, file)
			}
		}
	})
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"https://git.example/a", "git@h:p", "/a", "ext::x", "https://u:p@h/", "file:///a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if checkURL(raw) == nil && (strings.HasPrefix(raw, "-") || strings.ContainsAny(raw, "\x00\n") || strings.HasPrefix(raw, "ext::")) {
			t.Fatalf("%q is taken", raw)
		}
		c := &Credentials{Password: "p"}
		if lent, err := c.forURL(raw); err == nil && strings.ContainsAny(lent.Host+lent.protocol, "' ;&|$`\"\n()") {
			t.Fatalf("%q gives %+v", raw, lent)
		}
		if n := NameOf(raw); strings.Contains(n, "/") || n == ".." {
			t.Fatalf("%q is named %q", raw, n)
		}
	})
}
