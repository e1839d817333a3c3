package e2e

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// noisy returns an archive of a root filesystem with 8 MiB of random data, so that no
// two share content.
func noisy(t *testing.T, programs ...string) []byte {
	t.Helper()
	root := rootOf(t, programs...)
	noise := make([]byte, 8<<20)
	_, _ = rand.Read(noise) // never fails
	if err := os.WriteFile(filepath.Join(root, "etc/noise"), noise, 0o644); err != nil {
		t.Fatal(err)
	}
	return tarOf(t, root)
}

// setQuota sets the quota of a tenant on the command line, and returns the output.
func setQuota(t *testing.T, s *rig.Server, tenant, quota string) string {
	t.Helper()
	out, err := rig.Command(s.Bin, "tenant", "quota", tenant, quota, "--data", s.Data).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// filesOfTemplates lists a server's files of templates, except records of builds.
func filesOfTemplates(t *testing.T, s *rig.Server) (all []string) {
	t.Helper()
	for _, pattern := range []string{"images/*", "images/.*", "refs/*", "tenants/*/*", "build/*"} {
		found, err := filepath.Glob(filepath.Join(s.Data, "templates", pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// Templates must fit in the quota. A build that would exceed it leaves no files, a build
// with a used-up quota is refused, and a removed template frees its space.
func TestTemplatesWithinTheirQuota(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	c := s.Client(t, "builder")
	quota := func(mib int64) {
		t.Helper()
		setQuota(t, s, "dev:builder", fmt.Sprintf("template_mb=%d", mib))
	}
	used := func() int64 {
		t.Helper()
		var told struct{ Used map[string]int64 }
		c.Must(t, "GET", "/api/v1/quota", nil, &told)
		return told.Used["template_mb"]
	}
	build := func(name string, archive []byte) templateBuild {
		t.Helper()
		b := upload(t, c, `{"template":"`+name+`","source":"tar:"}`, archive)
		_, done := follow(t, c, b.ID)
		return done
	}
	if n := used(); n != 0 {
		t.Errorf("before any build %d MiB are used", n)
	}
	if b := build("one", noisy(t, "find", "stat", "rm", "grep", "head", "ls", "chmod", "printf")); b.State != "ready" {
		t.Fatalf("the first: %+v", b)
	}
	var one struct {
		Stored int64 `json:"stored_bytes"`
	}
	c.Must(t, "GET", "/api/v1/templates/one", nil, &one)
	size := (one.Stored + 1<<20 - 1) >> 20 // MiB
	if size < 8 || used() != size {
		t.Fatalf("it takes %d bytes, and %d MiB are used", one.Stored, used())
	}

	if said := setQuota(t, s, "dev:builder", fmt.Sprintf("template_mb=%d", size*3/2)); !strings.Contains(said, fmt.Sprintf("template_mb=%d\n", size)) {
		t.Errorf("the command says %s", said)
	}
	before := filesOfTemplates(t, s)
	b := build("two", noisy(t))
	if b.State != "failed" || b.Error == nil || b.Error.Code != "exhausted" || !strings.Contains(b.Error.Message, fmt.Sprintf("the quota of %d MiB of templates has ", size*3/2)) ||
		!strings.Contains(b.Error.Message, "MiB left, and this one has ") || !strings.Contains(b.Error.Message, "delete templates or versions") {
		t.Errorf("the second: %+v, %+v", b, b.Error)
	}
	if after := filesOfTemplates(t, s); !slices.Equal(before, after) || used() != size {
		t.Errorf("it left %v where there were %v, and %d MiB are used", after, before, used())
	}
	if status, _, err := c.Do("GET", "/api/v1/templates/two", nil); err != nil || status != http.StatusNotFound {
		t.Errorf("it is there: %d, %v", status, err)
	}

	// Builds with steps, from E2B's clients or a Dockerfile, count the same.
	if log := buildSteps(t, s, c, "steps", `"fromTemplate":"one"`, `{"type":"RUN","args":["head -c 1000000 /dev/urandom > /tmp/more"]}`); !strings.Contains(log, `"status":"error"`) || !strings.Contains(log, "MiB left, and this one has ") {
		t.Errorf("steps: %s", log)
	}
	c.Must(t, "POST", "/api/v1/templates", rig.Body{"template": "docker", "dockerfile": "FROM one\nRUN head -c 1000000 /dev/urandom > /tmp/other\n"}, &b)
	if log, done := follow(t, c, b.ID); done.State != "failed" || done.Error == nil || done.Error.Code != "exhausted" || !strings.Contains(done.Error.Message, "MiB left, and this one has ") {
		t.Errorf("a Dockerfile: %+v: %s", done, log)
	}
	if after := filesOfTemplates(t, s); !slices.Equal(before, after) {
		t.Errorf("steps left %v where there were %v", after, before)
	}

	// Of concurrent builds only as many succeed as fit in the quota.
	quota(size * 5 / 2)
	archives := [][]byte{noisy(t), noisy(t), noisy(t)}
	states := make([]string, len(archives))
	var all sync.WaitGroup
	for i, archive := range archives {
		b := upload(t, c, fmt.Sprintf(`{"template":"many-%d","source":"tar:"}`, i), archive)
		all.Go(func() {
			_, done := follow(t, c, b.ID)
			states[i] = done.State
		})
	}
	all.Wait()
	if slices.Sort(states); !slices.Equal(states, []string{"failed", "failed", "ready"}) || used() > size*5/2 {
		t.Errorf("builds at the same time are %v, and %d MiB are used", states, used())
	}

	quota(size)
	status, raw, err := c.Do("POST", "/api/v1/templates", rig.Body{"template": "three", "source": "debian:bookworm"})
	if err != nil || status != http.StatusTooManyRequests || !strings.Contains(string(raw), "MiB of templates is used up") {
		t.Errorf("a build beyond the quota: %d %s, %v", status, raw, err)
	}
	if list := mustTemplate(t, s, "ls"); !strings.Contains(list, "STORED") {
		t.Errorf("ls: %s", list)
	}
	var gone struct {
		Removed []string
		Freed   int64 `json:"freed_bytes"`
	}
	c.Must(t, "POST", "/api/v1/sessions", rig.Body{"template": "one"}, nil)
	if status, raw, err := c.Do("DELETE", "/api/v1/templates/one", nil); err != nil || status != http.StatusConflict {
		t.Errorf("removed while it is used: %d %s, %v", status, raw, err)
	}
	var page struct{ Sessions []rig.Sandbox }
	c.Must(t, "GET", "/api/v1/sessions", nil, &page)
	for _, sb := range page.Sessions {
		_ = c.Try("DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)
	}
	rig.Within(t, rig.Patience, "the layers' end or the template's", func() bool {
		return c.Try("DELETE", "/api/v1/templates/one", nil, &gone) == nil
	})
	if len(gone.Removed) != 2 || gone.Freed != one.Stored {
		t.Errorf("removed %+v, want %d bytes freed", gone, one.Stored)
	}
	quota(size * 5 / 2)
	if b := build("two", noisy(t)); b.State != "ready" {
		t.Errorf("with room again: %+v, %+v", b, b.Error)
	}
}

// An image that is imported with a snapshot counts toward the quota. An import beyond
// the quota leaves no files.
func TestImportedTemplatesWithinTheirQuota(t *testing.T) {
	t.Parallel()
	here, there := rig.Own(t, rig.Options{Pool: 1}), rig.OwnRoles(t, rig.Options{})
	c, other := here.Client(t, "mover"), there.Client(t, "mover")
	b := upload(t, c, `{"template":"mine","source":"tar:"}`, noisy(t))
	if log, done := follow(t, c, b.ID); done.State != "ready" {
		t.Fatalf("%+v: %s", done, log)
	}
	sb := create(t, c, rig.Body{"template": "mine"})
	var snap saved
	c.Must(t, "POST", "/api/v1/sessions/"+sb.ID+"/snapshots", rig.Body{"memory": false}, &snap)
	status, file, err := c.Do("GET", "/api/v1/snapshots/"+snap.ID+"/export?with_template=true", nil)
	if err != nil || status != http.StatusOK {
		t.Fatalf("exported %d, %v", status, err)
	}
	trust(t, there.Server, "add", trust(t, here, "key"))
	setQuota(t, there.Server, "dev:mover", "template_mb=2")
	before := filesOfTemplates(t, there.Server)
	status, raw, err := other.Do("POST", "/api/v1/snapshots/import", file)
	if err != nil || status != http.StatusTooManyRequests || !strings.Contains(string(raw), "the quota of 2 MiB of templates has 2 MiB left, and this one has ") {
		t.Errorf("imported beyond the quota: %d %s, %v", status, raw, err)
	}
	var page struct{ Snapshots []saved }
	other.Must(t, "GET", "/api/v1/snapshots", nil, &page)
	if after := filesOfTemplates(t, there.Server); len(page.Snapshots) != 0 || len(states(t, there.Server)) != 0 || !slices.Equal(before, after) {
		t.Errorf("left: %+v, %v, %v where there were %v", page, states(t, there.Server), after, before)
	}
	setQuota(t, there.Server, "dev:mover", "template_mb=1000")
	other.Must(t, "POST", "/api/v1/snapshots/import", file, &snap)
	var told struct{ Used map[string]int64 }
	if other.Must(t, "GET", "/api/v1/quota", nil, &told); told.Used["template_mb"] < 8 {
		t.Errorf("used: %+v", told)
	}
	if got := other.Sh(t, create(t, other, rig.Body{"snapshot_id": snap.ID}).ID, "echo runs"); got != "runs\n" {
		t.Errorf("it says %q", got)
	}
}
