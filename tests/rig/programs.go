package rig

import (
	"os"
	"path/filepath"
	"testing"
)

// programsVariable names the folder that scripts/programs.sh prints, with programs
// that some machines lack. Without it the tests that need them are skipped.
const programsVariable = "CLOUD_SANDBOX_PROGRAMS"

// Files of that folder.
const (
	NumpyWheel = "numpy.whl"
	JVMArchive = "jvm.tar.gz"
	RArchive   = "r.tar.gz"
)

// Program is the path of a file of that folder; empty when it is missing.
func Program(name string) string {
	path := filepath.Join(os.Getenv(programsVariable), name)
	if _, err := os.Stat(path); os.Getenv(programsVariable) == "" || err != nil {
		return ""
	}
	return path
}

// NeedProgram skips a test when a file of that folder is missing.
func NeedProgram(t testing.TB, name string) {
	t.Helper()
	if Program(name) == "" {
		t.Skipf("there is no %s: %s is not set to what scripts/programs.sh prints", name, programsVariable)
	}
}

// Put uploads a file of this machine.
func (c *Client) Put(t testing.TB, id, from, to string) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c.Must(t, "PUT", Files("", id, to), f, nil)
}

// Unpack unpacks an archive of that folder to its place in a Sandbox.
func (c *Client) Unpack(t testing.TB, id, archive string) {
	t.Helper()
	c.Put(t, id, Program(archive), "/tmp/"+archive)
	c.Sh(t, id, "sudo tar -C / -xzf /tmp/"+archive+" && rm /tmp/"+archive)
}

// AddRAndJava installs R and Java in a Sandbox that has neither. NeedProgram must
// have found both archives.
func (c *Client) AddRAndJava(t testing.TB, id string) {
	t.Helper()
	c.Unpack(t, id, RArchive)
	c.Unpack(t, id, JVMArchive)
	c.Sh(t, id, "sudo ln -s /usr/lib/jvm/java-17-openjdk-*/bin/java /usr/local/bin/")
}
