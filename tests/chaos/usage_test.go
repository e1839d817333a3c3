package chaos

import (
	"testing"
	"time"
)

func TestUsageBounds(t *testing.T) {
	for _, tt := range []struct {
		name        string
		s           *script
		least, most time.Duration
	}{
		// Each operation is called 1 after the tens, and answered 9 after them.
		{"it ran all the time", new(script).create().memory(1, " 1").done(Delete), 12, 28},
		{"paused and resumed", new(script).create().done(Pause).done(Resume).done(Delete), 2 + 2, 38 - 2},
		{"paused until its end", new(script).create().done(Pause).get(paused, 0, 1).done(Delete), 2, 38 - 12},
		{"paused twice", new(script).create().done(Pause).done(Pause).done(Resume).done(Delete), 2 + 2, 48 - 2 - 2},
		{"something may have resumed it at once", new(script).create().done(Pause).during(1).memory(1, " 1").done(Delete), 2, 38},
		{"a fault may have ended its boot", new(script).create().done(Loss).memory(1, " 1").done(Delete), 2 + 2 - 1, 38},
		{"a fault during a pause", new(script).create().done(Pause).during(1).done(Loss).memory(1, " 1").done(Delete), 2 + 2, 48 - 2},
		{"a rollback", new(script).create().take("s").back("s").memory(1, " 1").done(Delete), 12 + 2, 48},
		{"a pause without an answer", new(script).create().unknown(Pause, 0).memory(1, " 1").done(Delete), 2, 38},
		{"it was not deleted", new(script).create().memory(1, " 1"), 0, 0},
	} {
		least, most := UsageBounds(box, tt.s.all, 1)
		if least != tt.least || most != tt.most {
			t.Errorf("%s: from %d to %d, want from %d to %d", tt.name, least, most, tt.least, tt.most)
		}
	}
}
