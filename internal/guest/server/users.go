package server

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// User is an account inside the Sandbox.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	Home   string
	Shell  string
}

// Accounts reads users and groups from a root folder's etc; cgo's lookups do not
// exist in a static program.
type Accounts struct {
	Etc   fs.FS
	cache *accountCache // nil: Etc is read each time
}

// NewAccounts reads /etc, and again only when its files have changed.
func NewAccounts() Accounts {
	return Accounts{Etc: os.DirFS("/etc"), cache: &accountCache{files: map[string]accountFile{}}}
}

// accountCache holds the last content of /etc/passwd and /etc/group.
type accountCache struct {
	mu    sync.Mutex
	files map[string]accountFile
}

type accountFile struct {
	state unix.Stat_t
	text  []byte
}

func (c *accountCache) read(file string) ([]byte, error) {
	path := "/etc/" + file
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, err
	}
	st.Atim = unix.Timespec{}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.files[file]; ok && f.state == st {
		return f.text, nil
	}
	text, err := readSmall(path)
	if err != nil {
		return nil, err
	}
	c.files[file] = accountFile{state: st, text: text}
	return text, nil
}

func (a Accounts) read(file string) ([]byte, error) {
	if a.cache != nil {
		return a.cache.read(file)
	}
	return fs.ReadFile(a.Etc, file)
}

// fields calls f for each line's colon-separated fields, until it returns
// false.
func (a Accounts) fields(file string, least int, f func([]string) bool) {
	text, err := a.read(file)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		if p := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(p) >= least && !f(p) {
			return
		}
	}
}

// User finds an account by name, or by number if the name is one.
func (a Accounts) User(name string) (User, error) {
	var u User
	found := false
	a.fields("passwd", 7, func(p []string) bool {
		if p[0] != name && p[2] != name {
			return true
		}
		uid, err1 := strconv.ParseUint(p[2], 10, 32)
		gid, err2 := strconv.ParseUint(p[3], 10, 32)
		if err1 != nil || err2 != nil {
			return true
		}
		u = User{Name: p[0], UID: uint32(uid), GID: uint32(gid), Home: p[5], Shell: p[6]}
		found = true
		return p[0] != name // a name beats a number
	})
	if !found {
		return User{}, fmt.Errorf("no user %q", name)
	}
	u.Groups = a.groupsOf(u)
	return u, nil
}

func (a Accounts) groupsOf(u User) []uint32 {
	groups := []uint32{u.GID}
	a.fields("group", 4, func(p []string) bool {
		for member := range strings.SplitSeq(p[3], ",") {
			if gid, err := strconv.ParseUint(p[2], 10, 32); err == nil && member == u.Name && uint32(gid) != u.GID {
				groups = append(groups, uint32(gid))
			}
		}
		return true
	})
	return groups
}

// UserName is the name of a number, or the number.
func (a Accounts) UserName(uid uint32) string { return a.nameOf("passwd", uid) }

// GroupName is the name of a number, or the number.
func (a Accounts) GroupName(gid uint32) string { return a.nameOf("group", gid) }

func (a Accounts) nameOf(file string, id uint32) string {
	text := strconv.FormatUint(uint64(id), 10)
	name := text
	a.fields(file, 3, func(p []string) bool {
		if p[2] == text {
			name = p[0]
			return false
		}
		return true
	})
	return name
}
