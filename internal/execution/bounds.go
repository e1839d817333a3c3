package execution

import (
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// YieldOf converts a request's yield_ms to StartRequest.Yield; Invalid when it is out of
// bounds.
func YieldOf(ms int64) (time.Duration, error) {
	if ms < 1 || ms > MaxYield.Milliseconds() {
		return 0, sandbox.Errorf(sandbox.Invalid, "yield_ms must be between 1 and %d; background answers at once", MaxYield.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// OutputBound checks a request's max_output_bytes, which is at least 1 and at most most;
// Invalid when it is out of bounds.
func OutputBound(n, most int) (int, error) {
	if n < 1 || n > most {
		return 0, sandbox.Errorf(sandbox.Invalid, "max_output_bytes must be between 1 and %d", most)
	}
	return n, nil
}
