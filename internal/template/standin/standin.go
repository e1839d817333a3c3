// Package standin compares a root filesystem, which is to replace an image, with the
// image's name: the distribution, its version, and the versions of Python and Node.js.
package standin

import (
	"fmt"
	"slices"
	"strings"
)

// System describes a root filesystem. An empty field is unknown.
type System struct {
	Distribution string // ID of /etc/os-release: "debian"
	Version      string // VERSION_ID: "12"
	Codename     string // VERSION_CODENAME: "bookworm"
	Python       string // "3.11.2", or None
	Node         string // "22.20.0", or None
}

// None is the version of a missing language.
const None = "none"

// distributions maps the names of distribution images to their distribution IDs.
var distributions = map[string]string{
	"debian": "debian", "ubuntu": "ubuntu", "alpine": "alpine", "fedora": "fedora", "archlinux": "arch", "centos": "centos",
	"rockylinux": "rocky", "almalinux": "almalinux", "amazonlinux": "amzn", "opensuse": "opensuse-leap", "leap": "opensuse-leap",
}

// codenames maps release codenames in tags to their distribution.
var codenames = map[string]string{
	"buster": "debian", "bullseye": "debian", "bookworm": "debian", "trixie": "debian", "forky": "debian", "sid": "debian", "unstable": "debian",
	"bionic": "ubuntu", "focal": "ubuntu", "jammy": "ubuntu", "noble": "ubuntu", "oracular": "ubuntu", "plucky": "ubuntu", "questing": "ubuntu", "resolute": "ubuntu",
}

// Difference describes how a System differs from an image's name, or returns "". It
// ignores properties that the name does not mention, and version numbers after the
// second.
func Difference(image string, s System) string {
	name, _, _ := strings.Cut(image, "@")
	name = name[strings.LastIndex(name, "/")+1:]
	name, tag, _ := strings.Cut(name, ":")
	words := strings.Split(tag, "-")
	first := words[0]
	var differences []string
	differ := func(wanted, found string) {
		differences = append(differences, fmt.Sprintf("%s, not %s", found, wanted))
	}
	switch {
	case name == "python" && s.Python != "" && !sameVersion(first, s.Python):
		differ("Python "+first, "Python "+s.Python)
	case name == "node" && s.Node != "" && !sameVersion(first, s.Node):
		differ("Node.js "+first, "Node.js "+s.Node)
	}
	if s.Distribution == "" {
		return strings.Join(differences, "; ")
	}
	found := strings.TrimSpace(s.Distribution + " " + s.Version)
	wanted, release := distributions[name], ""
	if wanted != "" && !isName(first) {
		release = first
	}
	codename := ""
	for _, word := range words {
		switch {
		case codenames[word] != "":
			wanted, codename = codenames[word], word
		case strings.HasPrefix(word, "alpine"):
			wanted, release = "alpine", strings.TrimPrefix(word, "alpine")
		}
	}
	switch {
	case wanted == "":
	case wanted != s.Distribution, !sameVersion(release, s.Version), codename != "" && s.Codename != "" && codename != s.Codename:
		differ(strings.TrimSpace(wanted+" "+release+codename), found)
	}
	return strings.Join(differences, "; ")
}

// isName reports whether a tag's word does not begin with a digit: "slim", "latest".
func isName(word string) bool { return word == "" || word[0] < '0' || word[0] > '9' }

// sameVersion compares the numbers that both versions have, up to the second. A wanted
// version without a number matches any.
func sameVersion(wanted, found string) bool {
	if isName(wanted) || found == "" {
		return true
	}
	const minor = 2
	a, b := strings.Split(wanted, "."), strings.Split(found, ".")
	n := min(len(a), len(b), minor)
	return slices.Equal(a[:n], b[:n])
}

// Script prints a report for ParseReport when run in a root filesystem.
const Script = `cat /etc/os-release 2>/dev/null
python3 --version 2>/dev/null || echo Python none
echo Node.js "$(node --version 2>/dev/null || echo none)"`

// ParseReport parses the output of Script, or an os-release file.
func ParseReport(text string) (s System) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			s.Distribution = value
		case "VERSION_ID":
			s.Version = value
		case "VERSION_CODENAME":
			s.Codename = value
		}
		if version, ok := strings.CutPrefix(line, "Python "); ok {
			s.Python = version
		}
		if version, ok := strings.CutPrefix(line, "Node.js "); ok {
			s.Node = strings.TrimPrefix(version, "v")
		}
	}
	return s
}
