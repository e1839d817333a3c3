package git

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	maxFiles    = 10_000 // of a status
	maxBranches = 10_000
)

var errWrongAnswer = sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer")

var commitPattern = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// name converts a name to valid UTF-8 and cuts it to maxName bytes.
func name(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxName)], "\ufffd")
}

// parseStatus parses the output of `git status --porcelain=v2 --branch -z`. cut means
// that the output is incomplete.
func parseStatus(data []byte, cut bool) (Status, error) {
	s := Status{Truncated: cut}
	for len(data) > 0 {
		entry, rest, whole := bytes.Cut(data, []byte{0})
		if !whole && cut {
			break // an incomplete entry
		}
		data = rest
		if header, ok := strings.CutPrefix(string(entry), "# "); ok {
			if err := s.header(header); err != nil {
				return s, err
			}
			continue
		}
		if len(s.Files) == maxFiles {
			s.Truncated = true
			break
		}
		f, renamed, err := parseFile(string(entry))
		if err != nil {
			return s, err
		}
		if renamed {
			original, rest, whole := bytes.Cut(data, []byte{0})
			if !whole && cut {
				break
			}
			f.Original, data = name(string(original)), rest
		}
		s.Files = append(s.Files, f)
	}
	return s, nil
}

func (s *Status) header(line string) error {
	key, value, _ := strings.Cut(line, " ")
	switch key {
	case "branch.oid":
		if value == "(initial)" {
			return nil
		}
		if s.Commit = value; !commitPattern.MatchString(value) {
			return errWrongAnswer
		}
	case "branch.head":
		if value != "(detached)" {
			s.Branch = name(value)
		}
	case "branch.upstream":
		s.Upstream = name(value)
	case "branch.ab":
		ahead, behind, _ := strings.Cut(value, " ")
		var wrong [2]error
		s.Ahead, wrong[0] = strconv.ParseInt(strings.TrimPrefix(ahead, "+"), 10, 64)
		s.Behind, wrong[1] = strconv.ParseInt(strings.TrimPrefix(behind, "-"), 10, 64)
		if wrong[0] != nil || wrong[1] != nil || s.Ahead < 0 || s.Behind < 0 {
			return errWrongAnswer
		}
	}
	return nil
}

var changes = map[byte]Change{
	'.': Unmodified, 'M': Modified, 'T': TypeChanged, 'A': Added, 'D': Deleted, 'R': Renamed, 'C': Copied, 'U': Unmerged,
}

// fields is the number of words before the path of an entry, by its kind.
var fields = map[byte]int{'1': 8, '2': 9, 'u': 10, '?': 1, '!': 1}

// parseFile parses one entry of a status. The original path follows a renamed entry.
func parseFile(entry string) (f File, renamed bool, err error) {
	if entry == "" {
		return f, false, errWrongAnswer
	}
	n, known := fields[entry[0]]
	parts := strings.SplitN(entry, " ", n+1)
	if !known || len(parts) != n+1 || parts[n] == "" || len(parts[0]) != 1 {
		return f, false, errWrongAnswer
	}
	f = File{Path: name(parts[n]), Index: Untracked, Worktree: Untracked}
	if n == 1 {
		return f, false, nil
	}
	if len(parts[1]) != 2 {
		return f, false, errWrongAnswer
	}
	f.Index, f.Worktree = changes[parts[1][0]], changes[parts[1][1]]
	if entry[0] == 'u' {
		f.Index, f.Worktree = Unmerged, Unmerged
	}
	if f.Index == "" || f.Worktree == "" {
		return f, false, errWrongAnswer
	}
	return f, entry[0] == '2', nil
}

// parseBranches parses lines of a reference, its commit, its upstream, and its target if
// it is a symbolic reference.
func parseBranches(data []byte, cut bool) (Branches, error) {
	b := Branches{Truncated: cut}
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte{'\n'})
		if !whole && cut {
			break
		}
		data = rest
		parts := strings.Split(string(line), "\t")
		if len(parts) != 4 || !commitPattern.MatchString(parts[1]) {
			return b, errWrongAnswer
		}
		if parts[3] != "" {
			continue // a symbolic reference, such as origin/HEAD
		}
		branch := Branch{Commit: parts[1], Upstream: name(parts[2])}
		own, isOwn := strings.CutPrefix(parts[0], "refs/heads/")
		remote, isRemote := strings.CutPrefix(parts[0], "refs/remotes/")
		switch {
		case isOwn:
			branch.Name = name(own)
		case isRemote:
			branch.Name, branch.Remote = name(remote), true
		default:
			return b, errWrongAnswer
		}
		if len(b.Branches) == maxBranches {
			b.Truncated = true
			break
		}
		b.Branches = append(b.Branches, branch)
	}
	return b, nil
}
