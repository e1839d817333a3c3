package cli

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A build of hundreds of lines shows some ten, and all that may say why when it
// fails; verbose, it shows all.
func TestStages(t *testing.T) {
	for _, verbose := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			s := &stages{out: &out, began: time.Now(), verbose: verbose}
			const lines = 450
			for i := range lines {
				s.print("", fmt.Sprintf("line %d", i))
				time.Sleep(400 * time.Millisecond)
			}
			shown := strings.Count(out.String(), "\n")
			if least, most := 5, 15; !verbose && (shown < least || shown > most) || verbose && shown != lines {
				t.Errorf("verbose %v: %d lines are shown:\n%s", verbose, shown, out.String())
			}
			out.Reset()
			s.fail()
			if got := out.String(); verbose != (got == "") || !verbose && (!strings.Contains(got, "line 449\n") || strings.Contains(got, "line 400\n")) {
				t.Errorf("verbose %v: a failure shows:\n%s", verbose, got)
			}
		})
	}
}

// The progress of one stage takes one line of a failure.
func TestStagesCount(t *testing.T) {
	var out strings.Builder
	s := &stages{out: &out, began: time.Now()}
	s.print("source", "from")
	for i := range 100 {
		s.print("unpack", fmt.Sprintf("files %d", i))
	}
	s.print("erofs", "writing")
	out.Reset()
	s.fail()
	if got := out.String(); strings.Count(got, "\n") != 4 || !strings.Contains(got, "files 99\n") || !strings.Contains(got, "writing\n") {
		t.Errorf("shown:\n%s", got)
	}
}
