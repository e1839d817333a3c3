package sandbox

import (
	"fmt"
	"testing"
	"time"
)

func TestParseEventKinds(t *testing.T) {
	for text, want := range map[string]string{
		"sandbox.ended":                        "[sandbox.ended]",
		" snapshot.* , auth.failed,snapshot.*": "[auth.failed snapshot.created snapshot.deleted]",
		"*":                                    fmt.Sprint(EventKinds()),
		"":                                     "",
		"sandbox":                              "",
		"sand*":                                "",
		"sandbox.*,":                           "",
		"nothing.*":                            "",
	} {
		kinds, err := ParseEventKinds(text)
		if got := fmt.Sprint(kinds); (want == "") != (err != nil) || err == nil && got != want {
			t.Errorf("%q is %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestLifeEvent(t *testing.T) {
	for _, tt := range []struct {
		from, to State
		ran      bool
		want     EventKind
	}{
		{Starting, Running, true, EventSandboxCreated},
		{Starting, Ended, false, ""},
		{Starting, Stopping, false, ""},
		{Running, Running, true, ""},
		{Running, Pausing, true, ""},
		{Pausing, Running, true, ""}, // the pause failed
		{Pausing, Paused, true, EventSandboxPaused},
		{Running, Paused, true, EventSandboxPaused},   // its Boot was lost
		{Pausing, Resuming, true, EventSandboxPaused}, // it moves to another Node
		{Paused, Paused, true, ""},
		{Paused, Resuming, true, ""},
		{Resuming, Paused, true, ""}, // the resume failed
		{Resuming, Running, true, EventSandboxResumed},
		{Running, Stopping, true, ""},
		{Stopping, Ended, true, EventSandboxEnded},
		{Stopping, Ended, false, ""},
		{Ended, Ended, true, ""},
	} {
		s := Sandbox{State: tt.to}
		if tt.ran {
			s.StartedAt = time.Unix(1, 0)
		}
		if got := s.LifeEvent(tt.from); got != tt.want {
			t.Errorf("from %s to %s tells %q, want %q", tt.from, tt.to, got, tt.want)
		}
	}
}

func TestTemplateBuildEvent(t *testing.T) {
	for _, tt := range []struct {
		state   BuildState
		failure *Failure
		want    string
	}{
		{BuildQueued, nil, ""},
		{BuildRunning, nil, ""},
		{BuildReady, nil, "template.built "},
		{BuildCancelled, nil, "template.failed cancelled"},
		{BuildFailed, &Failure{Code: Timeout}, "template.failed timeout"},
		{BuildFailed, nil, "template.failed "},
	} {
		b := TemplateBuild{ID: "t1", State: tt.state, Failure: tt.failure}
		e, over := b.Event()
		got := ""
		if over {
			got = fmt.Sprintf("%s %s", e.Kind, e.Reason)
		}
		if got != tt.want || over && e.ID != "e-t1" {
			t.Errorf("%s tells %q by %q, want %q", tt.state, got, e.ID, tt.want)
		}
	}
}
