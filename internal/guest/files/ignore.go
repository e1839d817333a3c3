package files

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

const (
	// maxIgnoreFile bounds a .gitignore, in bytes.
	maxIgnoreFile = 256 << 10
	// maxIgnoreRules bounds the lines of one.
	maxIgnoreRules = 4096
)

// ignoreNames are the files with ignore rules; later ones win.
var ignoreNames = []string{".git/info/exclude", ".gitignore", ".ignore"}

// rule is one line of a .gitignore.
type rule struct {
	pattern  string // for doublestar, relative to the folder of the file
	anchored bool   // to the folder; otherwise any name below it
	dirs     bool   // matches folders only
	negative bool   // overrides earlier rules
}

// parseRule reads a line as gitignore(5) has it; false for one without a
// pattern.
func parseRule(line string) (rule, bool) {
	line = strings.TrimSuffix(line, "\r")
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	if line == "" || line[0] == '#' {
		return rule{}, false
	}
	var r rule
	if rest, ok := strings.CutPrefix(line, "!"); ok {
		r.negative, line = true, rest
	}
	if rest, ok := strings.CutSuffix(line, "/"); ok {
		r.dirs, line = true, rest
	}
	r.anchored = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	// Braces mean nothing to git and alternatives to doublestar.
	r.pattern = strings.NewReplacer("{", `\{`, "}", `\}`).Replace(line)
	return r, line != "" && doublestar.ValidatePattern(r.pattern)
}

// matches reports whether the rule matches rel, a path below its folder.
func (r rule) matches(rel string, dir bool) bool {
	if r.dirs && !dir {
		return false
	}
	if !r.anchored {
		rel = rel[strings.LastIndexByte(rel, '/')+1:]
	}
	ok, _ := doublestar.Match(r.pattern, rel)
	return ok
}

// ignores holds the rules of one folder, which override the rules of the folders
// above.
type ignores struct {
	above *ignores
	dir   string
	rules []rule
}

// parseRules reads the rules of one file; rules beyond the limit are ignored.
func parseRules(data []byte) []rule {
	var rules []rule
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() && len(rules) < maxIgnoreRules {
		if r, ok := parseRule(lines.Text()); ok {
			rules = append(rules, r)
		}
	}
	return rules
}

// enter returns the rules within dir. A rule file that cannot be read is skipped.
func (i *ignores) enter(dir string) *ignores {
	var rules []rule
	for _, name := range ignoreNames {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			data, _ := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
			rules = append(rules, parseRules(data)...)
		}
		f.Close()
	}
	if len(rules) == 0 {
		return i
	}
	return &ignores{above: i, dir: dir, rules: rules}
}

// ignoresAbove returns the rules for dir that come from the folders above it, up to
// the root of its repository. Outside of a repository it returns none.
func ignoresAbove(dir string) *ignores {
	var folders []string
	for at := dir; ; at = filepath.Dir(at) {
		if at != dir {
			folders = append(folders, at)
		}
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			break
		}
		if at == "/" {
			return nil
		}
	}
	var rules *ignores
	for i := len(folders) - 1; i >= 0; i-- {
		rules = rules.enter(folders[i])
	}
	return rules
}

// ignored reports whether path is excluded: the last matching rule of the nearest
// folder decides.
func (i *ignores) ignored(path string, dir bool) bool {
	for ; i != nil; i = i.above {
		rel := strings.TrimPrefix(path[len(i.dir):], "/")
		for n := len(i.rules) - 1; n >= 0; n-- {
			if r := i.rules[n]; r.matches(rel, dir) {
				return !r.negative
			}
		}
	}
	return false
}
