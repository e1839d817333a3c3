package serve

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
)

// The records of a data folder are in its own database if a session manager is there too or
// has been there, and elsewhere otherwise.
func TestAccessOfNodes(t *testing.T) {
	layout := launch.Layout{Root: t.TempDir()}
	if err := os.MkdirAll(layout.Server(), 0o700); err != nil {
		t.Fatal(err)
	}
	none, err := readAccess(layout)
	if err != nil || none.isElsewhere(layout) || hasAccess(layout) {
		t.Errorf("without a file: %+v, %v", none, err)
	}
	own := rpc.UnixAddress(layout.Socket("session-manager"))
	for _, tt := range []struct {
		managers  []string
		elsewhere bool
	}{
		{[]string{own}, false},
		{[]string{own, "unix:/other.sock"}, false},
		{[]string{"unix:/other.sock"}, true},
		{[]string{"https://a:9091", "https://b:9091"}, true},
	} {
		kept := nodeAccess{Node: "n", SessionManagers: tt.managers, Secret: []byte(strings.Repeat("s", 40))}
		if err := kept.keep(layout); err != nil {
			t.Fatal(err)
		}
		got, err := readAccess(layout)
		if err != nil || !reflect.DeepEqual(got, kept) || got.isElsewhere(layout) != tt.elsewhere {
			t.Errorf("%v: %+v, %v, elsewhere %t", tt.managers, got, err, got.isElsewhere(layout))
		}
		self, err := got.self()
		if err != nil || self.Role != rpc.Node || self.Name != "n" || self.Keys == nil {
			t.Errorf("the node is %+v, %v", self, err)
		}
		info, err := os.Stat(accessFile(layout))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file: %v, %v", info, err)
		}
	}
	far := nodeAccess{Node: "n", SessionManagers: []string{"http://127.0.0.1:9091"}}
	if !far.isElsewhere(layout) {
		t.Error("a session manager at a port counts as one of this data folder")
	}
	if err := os.MkdirAll(layout.Sockets(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(holderFile(layout, "session-manager"), []byte("h\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if far.isElsewhere(layout) {
		t.Error("a session manager that has run here counts as one elsewhere")
	}
	for _, text := range []string{"", "{}", `{"session_managers":[]}`} {
		if err := os.WriteFile(accessFile(layout), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readAccess(layout); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

// Where a Node has run and its records are not known, nothing counts as unneeded: an image
// or build that is removed is lost.
func TestSavedFailsClosed(t *testing.T) {
	layout := launch.Layout{Root: t.TempDir()}
	if _, err := savedOn(t.Context(), "/nonexistent", layout, savedBuild, "b"); err == nil || !strings.Contains(err.Error(), "nothing is saved") {
		t.Errorf("on an empty data folder: %v", err)
	}
	if err := os.MkdirAll(layout.Node(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(layout.Node(), "id"), []byte("i\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := savedOn(t.Context(), "/nonexistent", layout, savedBuild, "b"); err == nil || strings.Contains(err.Error(), "nothing is saved") {
		t.Errorf("after a node has run: %v", err)
	}
}
