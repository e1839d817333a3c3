package guest

import (
	"testing"
	"time"
)

func TestRestoredHostname(t *testing.T) {
	now := time.Now()
	if at, ok := SavedAt(RestoredHostname(now)); !ok || !at.Equal(now) {
		t.Errorf("%v arrives as %v, %t", now, at, ok)
	}
	if at, ok := SavedAt(RestoredLater); !ok || !at.IsZero() {
		t.Errorf("one that is told later says %v, %t", at, ok)
	}
	for _, name := range []string{"", Hostname, "restored", "restored-", "restored-x", "restored-99999999999999999999"} {
		if at, ok := SavedAt(name); ok {
			t.Errorf("%q says %v", name, at)
		}
	}
}
