package template

import (
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func hostTree(files map[string]string) fstest.MapFS {
	tree := fstest.MapFS{}
	for name, body := range files {
		tree[name] = &fstest.MapFile{Data: []byte(body)}
	}
	return tree
}

func TestChooseDistribution(t *testing.T) {
	const (
		debian12 = "ID=debian\nVERSION_CODENAME=bookworm\n"
		ubuntu24 = "NAME=\"Ubuntu\"\nID=ubuntu\nVERSION_CODENAME=noble\n"
		fedora   = "ID=fedora\n"
		keyring  = "usr/share/keyrings/debian-archive-keyring.gpg"
	)
	for name, tt := range map[string]struct {
		suite string
		host  map[string]string
		want  string // distribution, suite and mirror
	}{
		"one-line": {"", map[string]string{
			"etc/os-release":       debian12,
			"etc/apt/sources.list": "# deb http://no.example/debian bookworm main\ndeb-src http://src.example/debian bookworm main\ndeb [ arch=amd64 signed-by=/k ] http://m.example/debian/ bookworm main contrib # here\n",
		}, "debian bookworm http://m.example/debian"},
		"deb822": {"", map[string]string{
			"etc/os-release": debian12,
			"etc/apt/sources.list.d/debian.sources": "Types: deb deb-src\n# a comment\nURIs: http://security.example/debian-security\nSuites: bookworm-security\nComponents: main\n\n" +
				"Types: deb\nURIs: https://m.example/pub/debian\nSuites: bookworm\n bookworm-updates\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n",
		}, "debian bookworm https://m.example/pub/debian"},
		"disabled": {"", map[string]string{
			"etc/os-release":                   debian12,
			"etc/apt/sources.list.d/a.sources": "Enabled: no\nTypes: deb\nURIs: http://no.example/debian\nSuites: bookworm\nComponents: main\n",
		}, "debian bookworm http://deb.debian.org/debian"},
		"a vendor's": {"", map[string]string{
			"etc/os-release":                debian12,
			"etc/apt/sources.list.d/d.list": "deb https://vendor.example/linux/tool bookworm main\n",
		}, "debian bookworm http://deb.debian.org/debian"},
		"password in it": {"", map[string]string{
			"etc/os-release":       debian12,
			"etc/apt/sources.list": "deb https://me:secret@m.example/debian bookworm main\n",
		}, "debian bookworm http://deb.debian.org/debian"},
		"another suite": {"trixie", map[string]string{
			"etc/os-release":       debian12,
			"etc/apt/sources.list": "deb http://m.example/debian bookworm main\n",
		}, "debian trixie http://deb.debian.org/debian"},
		"ubuntu": {"", map[string]string{
			"etc/os-release":       ubuntu24,
			"etc/apt/sources.list": "deb http://de.example/ubuntu noble main universe\n",
		}, "ubuntu noble http://de.example/ubuntu"},
		"ubuntu with Debian's keys": {"", map[string]string{
			"etc/os-release": ubuntu24, keyring: "keys",
		}, "debian bookworm http://deb.debian.org/debian"},
		"a mirror in capitals": {"", map[string]string{
			"etc/os-release":       debian12,
			"etc/apt/sources.list": "deb HTTP://m.example/debian/ bookworm main\n",
		}, "debian bookworm http://m.example/debian"},
		"something else": {"", map[string]string{"etc/os-release": fedora}, "debian bookworm http://deb.debian.org/debian"},
		"nothing known":  {"", nil, "debian bookworm http://deb.debian.org/debian"},
		"broken lines": {"", map[string]string{
			"etc/os-release":       debian12,
			"etc/apt/sources.list": "deb\ndeb [arch=amd64\ndeb http://m.example/debian\ndeb [] x\n",
		}, "debian bookworm http://deb.debian.org/debian"},
	} {
		d := chooseDistribution(hostTree(tt.host), tt.suite)
		if got := strings.Join([]string{d.Name, d.Suite, d.Mirror}, " "); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func FuzzHostSources(f *testing.F) {
	f.Add("deb [a=b] http://m/debian bookworm main\n", "Types: deb\nURIs: http://m/debian\n more\n")
	f.Fuzz(func(t *testing.T, list, sources string) {
		d := chooseDistribution(hostTree(map[string]string{
			"etc/apt/sources.list": list, "etc/apt/sources.list.d/a.sources": sources,
		}), "bookworm")
		if !strings.HasPrefix(d.Mirror, "http://") && !strings.HasPrefix(d.Mirror, "https://") {
			t.Errorf("the mirror is %q", d.Mirror)
		}
	})
}

func TestReleaseDate(t *testing.T) {
	want := time.Date(2026, 7, 11, 10, 16, 0, 0, time.UTC)
	tree := hostTree(map[string]string{"var/lib/apt/lists/m_InRelease": "Origin: Debian\nDate: Sat, 11 Jul 2026 10:16:00 UTC\n"})
	if got := releaseDate(tree); !got.Equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := releaseDate(hostTree(nil)); !got.Equal(fallbackDate) {
		t.Errorf("without a Release: %v", got)
	}
}

func TestOutputLines(t *testing.T) {
	for line, want := range map[string][2]string{
		"I: Retrieving bash 5.2.15-2":       {"Retrieving", "bash"},
		"I: Unpacking libc6:amd64...":       {"Unpacking", "libc6"},
		"I: Configuring python3.11...":      {"Configuring", "python3.11"},
		"W: Failure trying to run: chroot ": {"", ""},
		"":                                  {"", ""},
	} {
		if verb, name := debootstrapLine(line); verb != want[0] || name != want[1] {
			t.Errorf("debootstrapLine(%q) = %q, %q", line, verb, name)
		}
	}
	for line, want := range map[string][2]string{
		"Unpacking bash (5.2.15-2) ...":     {"bash", "Unpacking"},
		"Setting up libc6:amd64 (2.36) ...": {"libc6", "Setting up"},
		"Setting up swap":                   {"", ""},
		"Get:1 http://m bookworm InRelease": {"", ""},
	} {
		if name, verb := dpkgLine(line); name != want[0] || verb != want[1] {
			t.Errorf("dpkgLine(%q) = %q, %q", line, name, verb)
		}
	}
}
