package chaos

import (
	"cmp"
	"slices"
	"time"
)

// lateUsage is how long after its call an operation without an answer may still pause or
// resume a Sandbox, for UsageBounds.
const lateUsage = 3 * time.Minute

// resumes reports whether an operation resumes a paused Sandbox.
func (k Kind) resumes() bool {
	return slices.Contains([]Kind{AddMemory, AddFile, ReadMemory, ReadFile, Resume, Rollback, wake}, k)
}

// proves reports whether an answer shows that the Sandbox ran during the operation.
func (o Operation) proves() bool {
	if o.Out.Unknown || o.Out.Gone {
		return false
	}
	return slices.Contains([]Kind{Create, AddMemory, AddFile, ReadMemory, ReadFile, Resume, Rollback, Beat}, o.In.Kind)
}

// UsageBounds returns how long a Sandbox can have run at least and at most, by what its
// clients saw from its create to its delete. Both are exact: a meter outside of them is
// wrong. Time in which a fault may have ended a Boot counts for the second one only, as does the
// time unseen before it: a Sandbox that is lost with its Node is charged until the Node last
// renewed its Lease.
func UsageBounds(sandbox string, all []Operation, unseen time.Duration) (least, most time.Duration) {
	var ops []Operation
	for _, o := range all {
		if o.In.Sandbox == sandbox {
			ops = append(ops, o)
		}
	}
	slices.SortStableFunc(ops, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	var from, fromCall, to, toReturn time.Duration
	var off []Operation // times in which it may not have run
	for _, o := range ops {
		switch o.In.Kind {
		case Create:
			fromCall, from = o.Call, o.Return
		case Delete:
			if to == 0 {
				to = o.Call
			}
			toReturn = o.Return
		case Pause, Rollback, Loss:
			if o.In.Kind == Loss {
				o.Call -= unseen
			}
			late := o.Call
			if o.Out.Unknown {
				late += lateUsage
			}
			o.Return = max(o.Return, late)
			off = append(off, Operation{Call: o.Call, Return: runsAgain(ops, o.Return)})
		}
	}
	if toReturn == 0 {
		return 0, 0
	}
	slices.SortFunc(off, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	least = to - from
	reached := from
	for _, o := range off {
		begin, end := max(o.Call, reached), min(o.Return, to)
		if end > begin {
			least -= end - begin
			reached = end
		}
	}
	most = toReturn - fromCall
	for _, o := range ops {
		if o.In.Kind == Pause && !o.Out.Unknown && !o.Out.Gone {
			most -= certainlyPaused(ops, o, toReturn)
		}
	}
	return max(least, 0), most
}

// runsAgain returns by when a Sandbox is seen to run, in an operation after a time.
func runsAgain(ops []Operation, after time.Duration) time.Duration {
	first := time.Duration(1<<62 - 1)
	for _, o := range ops {
		if o.Call >= after && o.proves() {
			first = min(first, o.Return)
		}
	}
	return first
}

// certainlyPaused returns how long a Sandbox stayed paused after a pause at least.
func certainlyPaused(ops []Operation, pause Operation, end time.Duration) time.Duration {
	next := end
	for _, o := range ops {
		switch {
		case o.In.Kind == Pause && o.Call > pause.Call && o.Call <= next: // its time is counted for itself
			next = o.Call
		case o.In.Kind == Delete:
			next = min(next, max(o.Call, pause.Return))
		case !o.In.Kind.resumes():
		case o.Call > pause.Return:
			next = min(next, o.Call)
		case o.Return >= pause.Call, o.Out.Unknown && o.Call+lateUsage >= pause.Call: // it may have resumed it
			return 0
		}
	}
	return max(next-pause.Return, 0)
}
