package gatewaytest

import (
	realguest "github.com/cloud-sandbox/cloud-sandbox/tests/guest"
)

// WithProcesses gives the fixture the Processes of a Guest on this machine, and returns
// a Sandbox that has them.
func (f *Fixture) WithProcesses() (sandboxID string) {
	f.T.Helper()
	c, _ := realguest.Open(f.T)
	f.Guest.Processes, f.Guest.ProcessStreams = c, c
	return f.Acquire()
}

// ProcessView is a Process in an answer.
type ProcessView struct {
	ID        string `json:"process_id"`
	State     string
	Status    string
	ExitCode  *int `json:"exit_code"`
	Stdout    string
	Stderr    string
	Offset    int64
	OutputEnd int64 `json:"output_end"`
	PTY       *struct{ Cols, Rows int }
	Error     *struct{ Name, Message string }
}

// StartProcess starts a Process with these fields in a Sandbox.
func (f *Fixture) StartProcess(id, fields string) (p ProcessView) {
	f.T.Helper()
	f.Do("POST", "/api/v1/processes", `{"sandbox_id":"`+id+`",`+fields+`}`).Into(f.T, 201, &p)
	return p
}
