package server

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
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

// Accounts reads users and groups from a root folder's etc; cgo's lookups are
// not there in a static program.
type Accounts struct{ Etc fs.FS }

// NewAccounts reads /etc.
func NewAccounts() Accounts { return Accounts{os.DirFS("/etc")} }

// fields calls f for each line's colon-separated fields, until it returns
// false.
func (a Accounts) fields(file string, least int, f func([]string) bool) {
	r, err := a.Etc.Open(file)
	if err != nil {
		return
	}
	defer r.Close()
	for s := bufio.NewScanner(r); s.Scan(); {
		if p := strings.Split(s.Text(), ":"); len(p) >= least && !f(p) {
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
		return User{}, fmt.Errorf("there is no user %q", name)
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
