package client

import (
	"testing"

	"google.golang.org/protobuf/proto"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
)

// Whatever a Guest says of an execution in a context, what is passed on is
// within its bounds.
func FuzzExecuteResponse(f *testing.F) {
	for _, m := range []*guestv1.ExecuteResponse{
		{Event: &guestv1.ExecuteResponse_Started{Started: &guestv1.ExecuteStarted{ContextId: "python", ExecutionCount: 1}}},
		{Event: &guestv1.ExecuteResponse_Started{Started: &guestv1.ExecuteStarted{ContextId: "a b", ExecutionCount: -1}}},
		{Event: &guestv1.ExecuteResponse_Result{Result: &guestv1.ContextResult{Main: true, Data: map[string]string{"text/plain": "42", "": "", "a b": ""}}}},
		{Event: &guestv1.ExecuteResponse_Error{Error: &guestv1.ContextError{Name: "E", Value: "v", Traceback: "t"}}},
		{Event: &guestv1.ExecuteResponse_Ended{Ended: &guestv1.ExecuteEnded{End: &guestv1.RunEnded{Status: 1, ExitCode: 3}, ResultsDropped: -1}}},
		{Event: &guestv1.ExecuteResponse_Ended{Ended: &guestv1.ExecuteEnded{}}},
	} {
		if raw, err := proto.Marshal(m); err == nil {
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m guestv1.ExecuteResponse
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		if ended := m.GetEnded(); ended != nil {
			if end, err := cellEnd(ended); err == nil && (end.Status == "" || end.ResultsDropped < 0 || end.StdoutDropped < 0) {
				t.Fatalf("%+v is passed on", end)
			}
			return
		}
		e, err := cellEvent(&m)
		switch {
		case err != nil:
		case e.Cell != nil && (!word(e.Cell.ContextID) || e.Cell.Count < 0):
			t.Fatalf("%+v is passed on", e.Cell)
		case e.Failure != nil && (len(e.Failure.Name) > 3*maxName || len(e.Failure.Message) > maxFailure || len(e.Failure.Traceback) > maxFailure):
			t.Fatalf("a failure of %d and %d bytes is passed on", len(e.Failure.Message), len(e.Failure.Traceback))
		case e.Value != nil:
			for mime := range e.Value.Data {
				if !word(mime) {
					t.Fatalf("the type %q is passed on", mime)
				}
			}
		}
	})
}
