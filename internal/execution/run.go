package execution

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// abandonTime is how long an execution with a Key continues without its client. A
	// client whose connection broke reconnects within it.
	abandonTime = 15 * time.Second
	// firstLook and lastLook bound the pause between attempts to reconnect to an
	// execution. They also apply when attempts succeed and the connection breaks again.
	firstLook, lastLook = 5 * time.Millisecond, 250 * time.Millisecond
)

var errGuard = errors.New("the guest did not end the execution in time")

// followed is the part of a Guest that starts and ends executions.
type followed interface {
	launcher
	EndProcess(ctx context.Context, id string) (ProcessInfo, error)
	AbandonProcess(ctx context.Context, id string, after time.Duration) error
}

// following is one request's wait for an execution. After a broken connection it
// reconnects to the execution's Process.
type following struct {
	service *Service
	sb      sandbox.Sandbox
	guest   followed
	lang    language
	req     Request
	as      RunAs
	out     *output
	guard   *time.Timer  // nil: no time limit
	process *ProcessInfo // nil: not yet known, or the Guest supports none
	// repeated reports whether an earlier request started it.
	repeated bool
	began    time.Time // when this request began to wait
	// timed is the number of the Boot in which the guard was last started. The guard
	// starts once per Boot, even if the connection breaks.
	timed int64
	pause time.Duration // before the next attempt to reach this Boot's Guest
}

func (s *Service) run(ctx context.Context, tenant sandbox.TenantID, lang language, req Request, emit func(Event) error) (Result, error) {
	sb, guest, err := s.Guests.Open(ctx, tenant, req.Sandbox)
	if err != nil {
		return Result{}, err
	}
	f := &following{
		service: s, sb: sb, guest: guest, lang: lang, req: req, began: time.Now(),
		as: RunAs{ID: newProcessID(), Key: req.Key, Again: req.Again}, out: newOutput(req.MaxOutput, emit),
	}
	if req.Key != "" {
		f.as.Fingerprint = req.fingerprint()
	}
	f.out.keepIn(s.Spools, tenant)
	f.out.resume, f.out.limited = req.Resume, f.wanted() > 0
	f.out.wrote = func(b []byte) { s.Guests.Wrote(sb.ID, b) }
	runCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if req.Timeout > 0 {
		f.guard = time.AfterFunc(req.Timeout+guardTime, func() { cancel(errGuard) })
		defer f.guard.Stop()
	}
	end, err := f.toTheEnd(ctx, runCtx)
	if err = errors.Join(err, f.out.finish()); err != nil {
		if ctx.Err() != nil || f.out.failed != nil {
			f.leave(ctx)
		}
		f.out.drop()
		return Result{}, begun(err)
	}
	res := result(sb.ID, req, end, f.out)
	res.Duration = time.Since(f.began)
	if f.repeated {
		res.Duration = min(max(end.Took, 0), f.longest())
	}
	if f.process != nil {
		res.ProcessID = publicID(f.sb.Timeline, f.process.ID)
	}
	s.Observe(cmp.Or(lang.name, "context"), res.Status, res.Duration)
	if limits(res.Status) {
		s.Event(sandbox.Event{Kind: sandbox.EventLimitKill, Tenant: sb.Tenant, Sandbox: sb.ID, Operation: "execute", Reason: string(res.Status)})
	}
	return res, nil
}

// longest bounds the execution's duration, regardless of its Guest's claim.
func (f *following) longest() time.Duration {
	if f.req.Timeout > 0 {
		return MaxTimeout + guardTime
	}
	return time.Since(f.sb.CreatedAt)
}

// fingerprint is equal for Requests for the same execution. It ignores how much output
// the clients want or already have.
func (r *Request) fingerprint() []byte {
	c := *r
	c.Sandbox, c.MaxOutput, c.Resume, c.Again = "", 0, Cursor{}, false
	return sumOf(c)
}

// toTheEnd starts the execution and follows it to its end, across broken connections.
func (f *following) toTheEnd(ctx, runCtx context.Context) (RunEnd, error) {
	for {
		end, err := launch(runCtx, f.guest, f.lang, f.req, f.as, f.wanted(), f.handle)
		if err == nil {
			return end, nil
		}
		over, end, err := f.explain(ctx, runCtx, err)
		if over {
			return end, err
		}
	}
}

// wanted is how much of each stream must leave the Sandbox: everything for a listener;
// for a Result, its MaxOutput and the end of the last character. Zero: everything.
func (f *following) wanted() int64 {
	if f.out.emit != nil || f.as.Attach {
		return 0
	}
	return int64(f.req.MaxOutput) + utf8.UTFMax
}

// handle processes an event of the Guest.
func (f *following) handle(e RunEvent) error {
	if e.Started && f.guard != nil && f.timed != f.sb.Boot.Number { // its time starts now, maybe after a wait
		f.timed = f.sb.Boot.Number
		f.guard.Reset(f.req.Timeout + guardTime)
	}
	if e.Process != nil {
		if f.process == nil {
			f.repeated = e.Repeated
		}
		f.process, f.as.ID = e.Process, e.Process.ID
	}
	if e.Process != nil || e.Started {
		start := Event{Kind: EventStart, SandboxID: f.sb.ID, Next: f.req.Resume}
		if f.process != nil {
			start.ProcessID = publicID(f.sb.Timeline, f.process.ID)
		}
		if err := f.out.start(start); err != nil {
			return err
		}
	}
	return f.out.handle(e)
}

// explain interprets an error: the execution is over, with an end or an error, or it must
// be reached again.
func (f *following) explain(ctx, runCtx context.Context, err error) (over bool, end RunEnd, _ error) {
	switch {
	case f.out.failed != nil:
		return true, end, f.out.failed
	case ctx.Err() != nil:
		return true, end, context.Cause(ctx)
	case errors.Is(context.Cause(runCtx), errGuard):
		end, err = f.overdue(err)
		return true, end, err
	}
	if code := sandbox.CodeOf(err); code != sandbox.Unavailable && code != sandbox.Internal {
		return true, end, err // the Guest answers and refuses
	}
	f.service.Guests.Forget(f.sb.ID)
	if f.process == nil {
		end, err = f.lost(ctx, err)
		return true, end, err
	}
	return f.again(ctx, runCtx, err)
}

// overdue returns the end of an execution that its Guest did not time out. It asks the
// Guest to end the execution, without waiting.
func (f *following) overdue(cause error) (RunEnd, error) {
	guest, id := f.guest, f.as.ID
	f.service.Guests.aside(func(ctx context.Context) { _, _ = guest.EndProcess(ctx, id) })
	if f.out.started {
		return RunEnd{Status: StatusTimeout}, nil
	}
	return RunEnd{}, sandbox.Errorf(sandbox.Unavailable, "the sandbox does not answer").WithCause(cause)
}

// lost waits until the record of a Sandbox with a broken connection says that it ended.
// If it does not, the Guest alone is at fault.
func (f *following) lost(ctx context.Context, cause error) (RunEnd, error) {
	now, ended, err := f.service.awaitEnd(ctx, f.sb)
	switch {
	case err != nil:
		return RunEnd{}, Absent(f.sb.ID, err)
	case !ended:
		return RunEnd{}, sandbox.Errorf(sandbox.Unavailable, "the connection to the sandbox broke").WithCause(cause)
	case !f.out.started && now.Ended == nil:
		return RunEnd{}, errPaused(cause)
	case !f.out.started:
		return RunEnd{}, errNotRunning(now)
	case now.Ended == nil:
		return RunEnd{Status: StatusKilled, Message: "the sandbox was paused while the program ran, and the sandbox's version ends programs on a pause"}, nil
	}
	return endOf(now), nil
}

// endOf returns the end of code in a Sandbox that has ended.
func endOf(sb sandbox.Sandbox) RunEnd {
	return RunEnd{Status: statusOf(sb.Ended.Cause), Message: fmt.Sprintf("the sandbox ended: %s", sb.Ended.Cause)}
}

// again tries to reconnect to the Process until the record of its Sandbox explains the
// loss, for at most lossTime. It returns with over false when the Guest answers.
func (f *following) again(ctx, runCtx context.Context, cause error) (over bool, end RunEnd, _ error) {
	late := time.NewTimer(lossTime)
	defer late.Stop()
	for ; ; f.pause = min(max(2*f.pause, firstLook), lastLook) {
		select {
		case <-ctx.Done():
			return true, end, context.Cause(ctx)
		case <-late.C:
			return true, end, sandbox.Errorf(sandbox.Unavailable, "the connection to the sandbox broke; the program continues as process %s",
				publicID(f.sb.Timeline, f.process.ID)).WithCause(cause)
		case <-time.After(f.pause):
		}
		now, err := f.service.Sandboxes.Get(ctx, f.sb.Tenant, f.sb.ID)
		switch {
		case err != nil:
			return true, end, Absent(f.sb.ID, err)
		case now.Ended != nil:
			return true, endOf(now), nil
		case now.VisibleTimeline() != f.sb.Timeline:
			return true, RunEnd{Status: StatusKilled, Message: "the sandbox went back to an earlier state while the program ran"}, nil
		case now.State == sandbox.Paused:
			return true, f.paused(), nil
		case now.State == sandbox.Running && now.Boot == f.sb.Boot && errors.Is(context.Cause(runCtx), errGuard):
			end, err = f.overdue(cause)
			return true, end, err
		case now.State == sandbox.Running && f.reach(runCtx, now):
			f.pause = min(max(2*f.pause, firstLook), lastLook)
			return false, end, nil
		case now.State == sandbox.Pausing || now.State == sandbox.Resuming:
			late.Reset(lossTime)
		}
	}
}

// paused returns the end of an execution that continues when its Sandbox resumes.
func (f *following) paused() RunEnd {
	return RunEnd{Status: StatusPaused, Message: fmt.Sprintf(
		"the sandbox was paused while the program ran: it continues when the sandbox resumes, as process %s; read its output from byte %d",
		publicID(f.sb.Timeline, f.process.ID), f.out.next)}
}

// reach selects the Guest of the Sandbox's current Boot for the next attempt, if it
// answers.
func (f *following) reach(ctx context.Context, now sandbox.Sandbox) bool {
	guest := f.service.Guests.Peek(now)
	if guest.Warm(ctx) != nil {
		f.service.Guests.Forget(now.ID)
		return false
	}
	if now.Boot != f.sb.Boot {
		f.pause = 0
	}
	f.sb, f.guest = now, guest
	f.as.Attach, f.as.From = true, f.out.next
	return true
}

// leave ends the execution of a client that has disconnected: at once, or after
// abandonTime if the client may reconnect. When this server shuts down, leave does
// nothing.
func (f *following) leave(ctx context.Context) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, sandbox.Unavailable):
	case f.as.Key != "" && (cause == nil || errors.Is(cause, context.Canceled)):
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardTime)
		defer cancel()
		_ = f.guest.AbandonProcess(ctx, f.as.ID, abandonTime) // an absent Process has ended
	default:
		f.end(ctx)
	}
}

// end ends the execution, even after ctx has ended. If the Guest does not answer, the
// execution's timeout ends it.
func (f *following) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardTime)
	defer cancel()
	_, _ = f.guest.EndProcess(ctx, f.as.ID)
}
