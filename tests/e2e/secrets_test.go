package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A secret's value is in no answer, no file and no log of the server.
func TestSecretsAreSealed(t *testing.T) {
	t.Parallel()
	s := shared.Machine(t)
	c := s.Client(t, "sealed")
	const first, second = "value-that-nobody-reads", "another-that-nobody-reads"
	status, made, err := c.Do("POST", "/api/v1/secrets", rig.Body{"name": "SEALED", "value": first})
	if err != nil || status != 201 {
		t.Fatalf("%d %s %v", status, made, err)
	}
	_, replaced, _ := c.Do("PUT", "/api/v1/secrets/SEALED", rig.Body{"value": second})
	_, listed, _ := c.Do("GET", "/api/v1/secrets", nil)
	if !strings.Contains(string(listed), `"SEALED"`) {
		t.Errorf("listed %s", listed)
	}
	if _, theirs, _ := s.Client(t, "stranger").Do("GET", "/api/v1/secrets", nil); strings.Contains(string(theirs), "SEALED") {
		t.Errorf("a stranger sees %s", theirs)
	}
	for _, answer := range [][]byte{made, replaced, listed} {
		if bytes.Contains(answer, []byte("nobody-reads")) {
			t.Errorf("an answer has the value: %s", answer)
		}
	}
	if at := filesWith(t, filepath.Join(s.Data, "server"), "nobody-reads"); len(at) > 0 {
		t.Errorf("the value is in %v", at)
	}
	if strings.Contains(s.Log(), "nobody-reads") {
		t.Error("the log has the value")
	}
	c.Must(t, "DELETE", "/api/v1/secrets/SEALED", nil, nil)
}

// filesWith returns the files below dir that hold a text.
func filesWith(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	looked := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // it may be gone by now
		}
		looked++
		if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(text)) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil || looked == 0 {
		t.Fatalf("%d files were looked at below %s: %v", looked, dir, err)
	}
	return found
}
