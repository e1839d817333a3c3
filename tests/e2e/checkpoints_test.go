package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// survivor is a session's record with its checkpoint fields.
type survivor struct {
	rig.Sandbox
	Snapshot     string   `json:"snapshot_id"`
	Timeline     int      `json:"timeline"`
	RestoredFrom string   `json:"restored_from"`
	LostSeconds  *float64 `json:"lost_seconds"`
}

func look(t *testing.T, c *rig.Client, id string) survivor {
	t.Helper()
	var s survivor
	c.Must(t, "GET", "/api/v1/sessions/"+id, nil, &s)
	return s
}

// A session with checkpoints is restored from the last one when its sentry is killed:
// variables, files and programs have the state of the checkpoint.
func TestLostSentryGoesBackToACheckpoint(t *testing.T) {
	t.Parallel()
	srv := shared.Server(t)
	c := srv.Client(t, "checkpoints")
	s := create(t, c, rig.Body{"checkpoint_every_seconds": 3600})
	output(t, c, s.ID, "python", "x = 'saved'")
	c.Sh(t, s.ID, "echo saved > /workspace/file")
	var p process
	c.Must(t, "POST", "/api/v1/processes", rig.Body{
		"sandbox_id": s.ID, "background": true, "command": "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done",
	}, &p)
	patch(t, c, s.ID, rig.Body{"checkpoint_every_seconds": 10}) // checkpoints the state above
	rig.Within(t, rig.Patience, "a checkpoint", func() bool { return look(t, c, s.ID).Snapshot != "" })
	patch(t, c, s.ID, rig.Body{"checkpoint_every_seconds": 3600}) // no later checkpoint: the next changes are lost
	saved := look(t, c, s.ID).Snapshot
	output(t, c, s.ID, "python", "x = 'lost'")
	c.Sh(t, s.ID, "echo lost > /workspace/file")

	rig.Kill(t, srv.SentryOf(t, s.ID))
	rig.Within(t, noticed, "the way back", func() bool { return look(t, c, s.ID).State == "paused" })
	if got := output(t, c, s.ID, "python", "print(x)"); got != "saved\n" {
		t.Errorf("its variable is %q", got)
	}
	if got := c.Sh(t, s.ID, "cat /workspace/file"); got != "saved\n" {
		t.Errorf("its file holds %q", got)
	}
	r := look(t, c, s.ID)
	if r.State != "running" || r.Timeline != 2 || r.RestoredFrom != saved || r.LostSeconds == nil || *r.LostSeconds <= 0 || *r.LostSeconds > 600 {
		t.Errorf("its record is %+v, want it restored from %s", r, saved)
	}
	status, raw, err := c.Do("GET", station{id: s.ID}.path(p.ID, "output", "from", "0"), nil)
	if err != nil || status != http.StatusConflict || !strings.Contains(string(raw), "timeline") {
		t.Errorf("a process of the timeline before: %d %s, %v", status, raw, err)
	}
	var list struct {
		Processes []process `json:"processes"`
	}
	c.Must(t, "GET", "/api/v1/processes?sandbox_id="+s.ID, nil, &list)
	if len(list.Processes) != 1 {
		t.Fatalf("its processes: %+v", list)
	}
	before := counts(t, kept(t, c, s.ID, list.Processes[0].ID))
	rig.Within(t, rig.Patience, "further lines of the process", func() bool {
		return counts(t, kept(t, c, s.ID, list.Processes[0].ID)) > before+5
	})
}

// The restore also works when all processes are killed at once and the server notices at
// its next start. Without auto_resume the session stays paused; without checkpoints it
// ends.
func TestLostServiceGoesBackToACheckpoint(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{})
	c := srv.Client(t, "checkpoints")
	survives := create(t, c, rig.Body{"checkpoint_every_seconds": 3600, "auto_resume": false})
	ends := create(t, c, rig.Body{})
	for _, s := range []session{survives, ends} {
		output(t, c, s.ID, "python", "x = 'saved'")
		c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/snapshots", rig.Body{}, nil) // serves as a checkpoint
		output(t, c, s.ID, "python", "x = 'lost'")
	}
	srv.KillAll(t)
	if err := srv.Launch(); err != nil {
		t.Fatal(err)
	}
	rig.Within(t, rig.Patience, "the way back", func() bool { return look(t, c, survives.ID).State == "paused" })
	rig.Within(t, rig.Patience, "the end of the other", func() bool { return look(t, c, ends.ID).State == "ended" })
	if cause := look(t, c, ends.ID).Cause(); cause != "engine_lost" {
		t.Errorf("the other ended for %q", cause)
	}
	if _, err := c.TryRun(survives.ID, "python", "print(x)", nil); err == nil || !strings.Contains(err.Error(), "resume it") {
		t.Errorf("use of what is to stay paused: %v", err)
	}
	if got := act(t, c, survives.ID, "resume", rig.Body{}); got.State != "running" {
		t.Fatalf("resumed as %+v", got)
	}
	if got := output(t, c, survives.ID, "python", "print(x)"); got != "saved\n" {
		t.Errorf("its variable is %q", got)
	}
	if r := look(t, c, survives.ID); r.RestoredFrom == "" || r.LostSeconds == nil {
		t.Errorf("its record is %+v", r)
	}
}
