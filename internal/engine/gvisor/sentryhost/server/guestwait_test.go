package server

import (
	"strings"
	"testing"
)

// Only a complete successful answer counts as an exit of the Guest.
func TestReadWord(t *testing.T) {
	for _, tt := range []struct{ answer, how string }{
		{`{"success":true,"err":"","result":9}`, "signal SIGKILL"},
		{`{"success":true,"err":"","result":0}`, "exit status 0"},
		{`{"success":true,"err":"","result":512}`, "exit status 2"},
		{`{"success":false,"err":"container \"b\" not started","result":null}`, ""},
		{`{"success":true,"err":""}`, ""},
		{`{"success":true,"err":"","result":-1}`, ""},
		{`{"success":true,"err":"","resu`, ""},
		{``, ""},
		{strings.Repeat(" ", maxWaitAnswer) + `{"success":true,"err":"","result":9}`, ""},
	} {
		how := ""
		if status, err := readGuestEnd(strings.NewReader(tt.answer)); err == nil {
			how = howEnded(status, true)
		}
		if how != tt.how {
			t.Errorf("%.60q is %q, want %q", tt.answer, how, tt.how)
		}
	}
}
