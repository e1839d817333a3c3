package contexts

import (
	"os"
	"testing"
	"time"
)

// An interpreter of a copy takes the copy's own variables, with the first cell and for
// good, and those of a cell still go with it.
func TestInterpretersOfACopy(t *testing.T) {
	for _, tt := range []struct{ program, language, code string }{
		{"python3", "python", `import os; print(os.environ["E2B_SANDBOX_ID"], os.environ["ROLE"], os.environ.get("CELL", ""))`},
		{"node", "javascript", `console.log(process.env.E2B_SANDBOX_ID, process.env.ROLE, process.env.CELL ?? "")`},
		{"bash", "bash", `echo "$E2B_SANDBOX_ID $ROLE $CELL"`},
		{"R", "r", `cat(Sys.getenv("E2B_SANDBOX_ID"), Sys.getenv("ROLE"), paste0(Sys.getenv("CELL"), "\n"))`},
		{"java", "java", `System.out.println(System.getenv("E2B_SANDBOX_ID") + " " + System.getenv("ROLE") + " " + System.getProperty("CELL", ""))`},
	} {
		t.Run(tt.language, func(t *testing.T) {
			s := newContexts(t, tt.program)
			owner, _ := s.guest.Owner()
			owner.Env["ROLE"] = "parent"
			if err := s.guest.Bind(owner, 0, nil); err != nil {
				t.Fatal(err)
			}
			says := func(want string, env map[string]string) {
				t.Helper()
				if _, r := execute(t, s, tt.language, Request{Code: tt.code, Timeout: time.Minute, Env: env}); r.out[0] != want {
					t.Errorf("it says %q, %v, want %q", r.out[0], r.errs, want)
				}
			}
			says("i parent \n", nil)
			copied := owner
			copied.SandboxID, copied.Restored = "icopy", true
			copied.Env = map[string]string{"PATH": os.Getenv("PATH"), "ROLE": "child"}
			if err := s.guest.Bind(copied, 0, nil); err != nil {
				t.Fatal(err)
			}
			says("icopy child 1\n", map[string]string{"CELL": "1"})
			says("icopy child \n", nil)
		})
	}
}
