package e2e

import (
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // to change the server's database directly

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

type auditEntry struct {
	At, User, Operation, Target, Detail, Outcome, Hash string
	SandboxID                                          string `json:"sandbox_id"`
}

// admin returns a client of a Tenant's admin.
func admin(t *testing.T, s *rig.Server, user string) *rig.Client {
	t.Helper()
	c := s.Anyone(t)
	var reply struct {
		Token string `json:"access_token"`
	}
	c.Must(t, "POST", "/api/v1/auth/token", rig.Body{"user_id": user, "role": "admin"}, &reply)
	c.Token = reply.Token
	return c
}

func auditOf(t *testing.T, c *rig.Client, query string) []auditEntry {
	t.Helper()
	var page struct{ Entries []auditEntry }
	c.Must(t, "GET", "/api/v1/audit?"+query, nil, &page)
	return page.Entries
}

// command runs the program on the server's data folder.
func command(s *rig.Server, args ...string) (string, error) {
	out, err := rig.Command(s.Bin, append(args, "--data", s.Data)...).CombinedOutput()
	return string(out), err
}

// Each tenant sees only its own audit entries. The hash chain verifies, and changes made
// directly in the database are detected.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	ours, theirs := admin(t, s, "ours"), admin(t, s, "theirs")
	const secret = "xyzzy-4711"
	sb := ours.Create(t, rig.Body{"env": rig.Body{"PASSWORD": secret}, "timeout_seconds": 600})
	ours.Sh(t, sb.ID, "echo "+secret)
	treasure := theirs.Create(t, rig.Body{"name": "treasure"})
	if status, _, _ := ours.Do("DELETE", "/api/v1/sessions/"+treasure.ID, nil); status != http.StatusNotFound {
		t.Errorf("another tenant's session: %d", status)
	}
	short := ours.Create(t, rig.Body{"timeout_seconds": 1, "on_timeout": "end"})
	rig.Within(t, rig.Patience, "an entry of the end at the deadline", func() bool {
		all := auditOf(t, ours, "operation=sandboxEnded")
		return len(all) == 1 && all[0].Target == short.ID && all[0].Detail == "deadline" && all[0].User == "system"
	})
	ours.Must(t, "DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)

	var told []string
	for _, e := range auditOf(t, ours, "target="+sb.ID) {
		told = append([]string{e.Operation + " " + e.Outcome}, told...)
	}
	if got := strings.Join(told, ", "); got != "createSession ok, execute ok, deleteSession ok" {
		t.Errorf("of the session the log says %s", got)
	}
	for _, e := range auditOf(t, theirs, "") {
		if e.User != "theirs" {
			t.Errorf("another tenant sees %+v", e)
		}
	}
	if got := auditOf(t, theirs, "target="+sb.ID); len(got) > 0 {
		t.Errorf("another tenant sees %+v", got)
	}

	if out, err := command(s, "key", "create", "--tenant", "dev:ours"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := auditOf(t, ours, "actor=operator"); len(got) != 1 || got[0].Operation != "createKey" || got[0].Target == "" {
		t.Errorf("of the operator the log says %+v", got)
	}

	ls := rig.Command(s.Bin, "audit", "ls", "--target", sb.ID, "--operation", "createSession", "--since", "1h", "--url", ours.URL)
	ls.Env = append(os.Environ(), "CLOUD_SANDBOX_API_KEY="+ours.Token)
	if out, err := ls.CombinedOutput(); err != nil || strings.Count(string(out), "\n") != 2 || !strings.Contains(string(out), sb.ID) {
		t.Errorf("the command lists %s, %v", out, err)
	}

	last := verified(t, s)
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	export, err := rig.Command(s.Bin, "audit", "export", "--data", s.Data).Output()
	if err != nil || !strings.Contains(string(export), sb.ID) || strings.Contains(string(export), secret) {
		t.Fatalf("the export is %s, %v", export, err)
	}
	if err := os.WriteFile(file, export, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := command(s, "audit", "verify", file, "--expect-last", last); err != nil || !strings.Contains(out, last) {
		t.Errorf("the export: %v %s", err, out)
	}
	tampered(t, s, last, sb.ID)
}

// verified verifies the audit log of a data folder and returns its last entry as
// SEQ:HASH.
func verified(t *testing.T, s *rig.Server) (last string) {
	t.Helper()
	out, err := command(s, "audit", "verify")
	found := regexp.MustCompile(`last (\d+:[0-9a-f]{64})`).FindStringSubmatch(out)
	if err != nil || found == nil {
		t.Fatalf("verify: %v %s", err, out)
	}
	return found[1]
}

// database opens a server's database.
func database(t *testing.T, s *rig.Server) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.Data, "server", "cloud-sandbox.db")+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// tampered changes the database as an attacker with the host's disk would, and checks
// that `audit verify` detects it.
func tampered(t *testing.T, s *rig.Server, last, id string) {
	t.Helper()
	db := database(t, s)
	defer db.Close()
	change := func(statement string, args ...any) {
		t.Helper()
		if _, err := db.Exec(statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	fails := func(what, says string, args ...string) {
		t.Helper()
		if out, err := command(s, append([]string{"audit", "verify"}, args...)...); err == nil || !strings.Contains(out, says) {
			t.Errorf("%s: %v %s, want %q", what, err, out, says)
		}
	}
	var seq int64
	if err := db.QueryRow(`SELECT seq FROM audit WHERE operation = 'deleteSession' AND target = ?`, id).Scan(&seq); err != nil {
		t.Fatal(err)
	}
	change(`UPDATE audit SET user_id = 'theirs' WHERE seq = ?`, seq)
	fails("a changed row", fmt.Sprintf("entry %d ", seq))
	change(`UPDATE audit SET user_id = 'ours' WHERE seq = ?`, seq)
	verified(t, s)

	change(`CREATE TABLE kept AS SELECT * FROM audit WHERE seq >= ?`, seq)
	change(`DELETE FROM audit WHERE seq >= ?`, seq)
	verified(t, s)
	fails("a cut end", "cut off", "--expect-last", last)
	change(`INSERT INTO audit SELECT * FROM kept`)
	change(`DROP TABLE kept`)
	change(`DELETE FROM audit WHERE seq = 2`)
	fails("a row taken out", "entry 2 is missing")
}
