package template

import (
	"bufio"
	"io/fs"
	"net/url"
	"path"
	"runtime"
	"slices"
	"strings"
)

// A distribution is a source of packages.
type distribution struct {
	Name       string // "debian" or "ubuntu"
	Suite      string
	Mirror     string
	Components []string
	Keyring    string // path on the host
}

const (
	debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	ubuntuKeyring = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
	defaultSuite  = "bookworm"
)

// chooseDistribution returns the distribution of a suite, or of the host's own suite when
// suite is empty, with the mirror that the host uses for it. host is the host's file
// tree.
func chooseDistribution(host fs.FS, suite string) distribution {
	id, codename := osRelease(host)
	if id == "ubuntu" && (suite == "" || suite == codename) && (!exists(host, debianKeyring) || suite != "") {
		d := distribution{"ubuntu", codename, "http://archive.ubuntu.com/ubuntu", []string{"main", "universe"}, ubuntuKeyring}
		if runtime.GOARCH != "amd64" {
			d.Mirror = "http://ports.ubuntu.com/ubuntu-ports"
		}
		d.Mirror = hostMirror(host, d)
		return d
	}
	d := distribution{"debian", suite, "http://deb.debian.org/debian", []string{"main"}, debianKeyring}
	if d.Suite == "" {
		d.Suite = defaultSuite
		if id == "debian" && codename != "" {
			d.Suite = codename
		}
	}
	d.Mirror = hostMirror(host, d)
	return d
}

func exists(host fs.FS, file string) bool {
	_, err := fs.Stat(host, strings.TrimPrefix(file, "/"))
	return err == nil
}

func osRelease(host fs.FS) (id, codename string) {
	body, _ := fs.ReadFile(host, "etc/os-release")
	for line := range strings.Lines(string(body)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			id = value
		case "VERSION_CODENAME":
			codename = value
		}
	}
	return id, codename
}

// hostMirror returns the first mirror with d's suite in the host's package sources, or
// d.Mirror.
func hostMirror(host fs.FS, d distribution) string {
	for _, s := range hostSources(host) {
		if !slices.Contains(s.suites, d.Suite) || !slices.Contains(s.components, "main") {
			continue
		}
		if mirror, ok := mirrorOf(d.Name, s.uri); ok {
			return mirror
		}
	}
	return d.Mirror
}

// mirrorOf returns uri in its canonical form. It reports whether uri can be a full mirror
// of a distribution, and not a vendor's repository with the same suite names.
func mirrorOf(name, uri string) (mirror string, ok bool) {
	u, err := url.Parse(uri)
	if err != nil || u.Host == "" || u.User != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return "", false
	}
	base := path.Base(u.Path)
	return strings.TrimSuffix(u.String(), "/"), base == name || (name == "ubuntu" && base == "ubuntu-ports")
}

// A packageSource is one entry of the host's apt sources.
type packageSource struct {
	uri        string
	suites     []string
	components []string
}

func hostSources(host fs.FS) []packageSource {
	var all []packageSource
	parts, _ := fs.Glob(host, "etc/apt/sources.list.d/*") // sorted; the pattern is valid
	for _, file := range append([]string{"etc/apt/sources.list"}, parts...) {
		body, err := fs.ReadFile(host, file)
		if err != nil {
			continue
		}
		switch path.Ext(file) {
		case ".list":
			all = append(all, parseOneLine(string(body))...)
		case ".sources":
			all = append(all, parseDeb822(string(body))...)
		}
	}
	return all
}

// parseOneLine parses lines such as
// "deb [arch=amd64 signed-by=/k] http://deb.debian.org/debian bookworm main".
func parseOneLine(text string) (all []packageSource) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "deb" {
			continue
		}
		fields = fields[1:]
		if len(fields) > 0 && strings.HasPrefix(fields[0], "[") {
			end := slices.IndexFunc(fields, func(f string) bool { return strings.HasSuffix(f, "]") })
			if end < 0 {
				continue
			}
			fields = fields[end+1:]
		}
		if len(fields) >= 3 {
			all = append(all, packageSource{fields[0], fields[1:2], fields[2:]})
		}
	}
	return all
}

// parseDeb822 parses stanzas of "Types:", "URIs:", "Suites:", "Components:".
func parseDeb822(text string) (all []packageSource) {
	stanza, field := map[string][]string{}, ""
	end := func() {
		disabled := slices.Contains(stanza["enabled"], "no")
		if slices.Contains(stanza["types"], "deb") && !disabled {
			for _, uri := range stanza["uris"] {
				all = append(all, packageSource{uri, stanza["suites"], stanza["components"]})
			}
		}
		stanza, field = map[string][]string{}, ""
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.TrimSpace(line) == "":
			end()
		case strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			stanza[field] = append(stanza[field], strings.Fields(line)...)
		default:
			key, value, _ := strings.Cut(line, ":")
			field = strings.ToLower(key)
			stanza[field] = strings.Fields(value)
		}
	}
	end()
	return all
}
