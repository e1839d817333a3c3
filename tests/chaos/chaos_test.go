package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

const (
	slots          = 4
	clientsOfASlot = 2
)

// run is one run of chaos.
type run struct {
	*site
	t     *testing.T
	h     *History
	c     *rig.Client
	slots []*slot
	r     Report

	last time.Time // when no wait goes on any more, so that the run ends

	mu    sync.Mutex
	ended []string // Sandboxes that were deleted, or have ended
}

// What a seed chooses fails, one after the other, while clients use Sandboxes.
func TestChaos(t *testing.T) {
	s := newSite(t, "9")
	duration, err := time.ParseDuration(os.Getenv(durationVariable))
	if err != nil {
		t.Fatalf("%s: %v", durationVariable, err)
	}
	r := &run{site: s, t: t, h: NewHistory(), c: s.hasty(s.Gateways().Client(t, "chaos"))}
	r.r = Report{Seed: seed(t), Duration: duration}
	r.last = time.Now().Add(duration + settleLimit)
	t.Logf("seed %d, %v", r.r.Seed, duration)
	before := r.holdings()
	s.beats.reset(r.h)
	s.live = r.present
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan struct{})
	var clients sync.WaitGroup
	for i := range slots {
		one := r.slot(i)
		clients.Go(func() { one.use(ctx, over) })
	}
	defer clients.Wait()
	defer cancel()
	defer r.report()
	r.settle(Fault{Name: "the start"}, 0)
	for _, f := range Plan(r.r.Seed, 1+int(duration/(5*time.Second))) {
		if r.h.Now()+f.Wait+f.Lasts > duration {
			break
		}
		r.fault(f)
	}
	close(over)
	finished := make(chan struct{})
	go func() { clients.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(time.Until(r.patience())):
		r.fail("clients still wait long after the last fault")
		cancel()
		<-finished
	}
	r.judgeTheEnd(before)
}

// patience returns when a wait that begins now ends.
func (r *run) patience() time.Time {
	if end := time.Now().Add(settleLimit); end.Before(r.last) {
		return end
	}
	return r.last
}

// slot prepares a slot.
func (r *run) slot(i int) *slot {
	one := &slot{beats: r.site.beats, ended: r.end}
	for j := range clientsOfASlot {
		number := 1 + i*clientsOfASlot + j
		one.clients = append(one.clients, &client{c: r.c, h: r.h, number: number})
		one.random = append(one.random, source(r.r.Seed, uint64(number)))
	}
	r.slots = append(r.slots, one)
	return one
}

// present are the Sandboxes of all slots.
func (r *run) present() (ids []string) {
	for _, one := range r.slots {
		if id := one.present(); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

func (r *run) end(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, id)
}

func (r *run) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.t.Error(text)
	r.r.Failures = append(r.r.Failures, text)
}

// fault makes a fault, and waits until all Sandboxes answer after it.
func (r *run) fault(f Fault) {
	time.Sleep(f.Wait)
	before := r.takeovers()
	span := Span{Fault: f, Began: r.h.Now()}
	end, err := r.begin(r.t, f)
	if err != nil {
		span.Skipped = err.Error()
		r.t.Logf("%7.1f s: SKIPPED: %s: %v", span.Began.Seconds(), f, err)
		r.r.Spans = append(r.r.Spans, span)
		return
	}
	r.t.Logf("%7.1f s: %s, for %v", span.Began.Seconds(), f, f.Lasts)
	time.Sleep(f.Lasts)
	end()
	span.Ended = r.h.Now()
	r.settle(f, span.Ended)
	span.Settled = r.h.Now()
	span.Lost = r.takeovers() - before
	r.r.Spans = append(r.r.Spans, span)
	if f.loses(span.Lost > 0) {
		for _, id := range Sandboxes(r.h.Operations()) {
			r.h.Add(Operation{In: Input{Sandbox: id, Kind: Loss}, Call: span.Began, Return: span.Settled})
		}
	}
}

// takeovers counts how often a leader has declared a node lost.
func (r *run) takeovers() (n int) {
	for _, name := range []string{rig.FleetManager, rig.FleetManagerB} {
		log, err := os.ReadFile(r.Machine(name).LogFile())
		if err != nil {
			r.t.Fatal(err)
		}
		n += bytes.Count(log, []byte("a node has been silent for so long that it has cut its sandboxes off"))
	}
	return n
}

// settle waits until each slot had an answer to a call since a time, and no Sandbox runs on
// two nodes.
func (r *run) settle(f Fault, since time.Duration) {
	for end := r.patience(); ; time.Sleep(50 * time.Millisecond) {
		waits := ""
		for i, one := range r.slots {
			if time.Duration(one.reached.Load()) <= since {
				waits += fmt.Sprintf(" %d (%s)", i, one.present())
			}
		}
		if waits == "" {
			break
		}
		if time.Now().After(end) {
			r.fail("%v after the end of %s, no client of the slots%s was answered", r.h.Now()-since, f, waits)
			return
		}
	}
	for end := r.patience(); ; time.Sleep(50 * time.Millisecond) {
		twice := ""
		for _, id := range r.present() {
			if r.runsOn(id) > 1 {
				twice += " " + id
			}
		}
		if twice == "" {
			return
		}
		if time.Now().After(end) {
			r.fail("%v after %s, these sandboxes run on two nodes:%s", r.h.Now()-since, f, twice)
			return
		}
	}
}

// runsOn counts the nodes on which a Sandbox runs.
func (r *run) runsOn(id string) (n int) {
	for i := range nodeNames {
		if _, there := r.node(i).Runs(id); there {
			n++
		}
	}
	return n
}

// holdings are what nodes hold without Sandboxes.
func (r *run) holdings() []rig.Holdings {
	var all []rig.Holdings
	for i := range nodeNames {
		all = append(all, r.node(i).Holdings())
	}
	return all
}

// judgeTheEnd checks what must hold once no fault is left.
func (r *run) judgeTheEnd(before []rig.Holdings) {
	ctx, cancel := context.WithDeadline(r.t.Context(), r.patience())
	defer cancel()
	r.quotaIs(ctx, "before the deletes")
	var all sync.WaitGroup
	for _, one := range r.slots {
		id := one.present()
		if id == "" {
			continue
		}
		all.Go(func() {
			c := one.clients[0]
			for ctx.Err() == nil { // it may have ended, if it had no checkpoint
				if out := c.step(ctx, id, AddMemory, ""); !out.Unknown {
					break
				}
			}
			c.step(ctx, id, Get, "")
			if c.remove(ctx, id) {
				one.gone(id)
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		r.fail("not all sandboxes answered and were deleted in time")
	}
	r.quotaIs(ctx, "after the deletes")
	r.r.All = r.h.Operations()
	for _, text := range judge(r.t, "history", &r.r, checkLimit) {
		r.fail("%s", text)
	}
	for _, o := range r.r.All {
		if o.Out.Gone && o.In.Kind == Delete {
			r.r.Ended = append(r.r.Ended, o.In.Sandbox)
		}
	}
	r.usageIsExact()
	r.nothingIsLeft(before)
}

// quotaIs compares what the quota counts with the Sandboxes that live.
func (r *run) quotaIs(ctx context.Context, when string) {
	live := 0
	for _, one := range r.slots {
		if id := one.present(); id != "" {
			if s, err := one.clients[0].record(ctx, id); err != nil || s.State != ended {
				live++
			}
		}
	}
	var quota struct {
		Used struct{ Sandboxes, CPUs, Snapshots float64 }
	}
	var list struct{ Sessions []record }
	if err := errors.Join(r.c.Try("GET", "/api/v1/quota", nil, &quota), r.c.Try("GET", "/api/v1/sessions", nil, &list)); err != nil {
		r.fail("%s, %v", when, err)
		return
	}
	if u := quota.Used; int(u.Sandboxes) != live || len(list.Sessions) != live || u.CPUs != float64(live)/2 {
		r.fail("%s, the quota counts %+v and %d are listed, want %d", when, u, len(list.Sessions), live)
	}
	if live == 0 && quota.Used.Snapshots != 0 {
		r.fail("%s, the quota counts %v snapshots", when, quota.Used.Snapshots)
	}
}

// usageIsExact compares the meters of deleted Sandboxes with what their clients saw.
func (r *run) usageIsExact() {
	type row struct {
		SandboxID string `json:"sandbox_id"`
		Seconds   float64
	}
	var total, each struct{ Rows []row }
	if err := errors.Join(r.c.Try("GET", "/api/v1/usage", nil, &total), r.c.Try("GET", "/api/v1/usage?group_by=sandbox", nil, &each)); err != nil {
		r.fail("the usage: %v", err)
		return
	}
	sum, metered := 0.0, map[string]float64{}
	for _, u := range each.Rows {
		sum += u.Seconds
		metered[u.SandboxID] += u.Seconds
	}
	if len(total.Rows) != 1 || math.Abs(total.Rows[0].Seconds-sum) > 1e-3 {
		r.fail("the usage of all sandboxes is %v s, and in all %+v", sum, total.Rows)
	}
	for _, id := range r.ended {
		least, most := UsageBounds(id, r.r.All, unseen)
		off := r.jumps(id)
		least, most = least-off, most+off
		got := metered[id]
		delete(metered, id)
		r.t.Logf("%s ran for %.3f s by its meter, and from %.3f to %.3f s by its clients", id, got, least.Seconds(), most.Seconds())
		if got < least.Seconds()-usageSlack || got > most.Seconds()+usageSlack {
			r.fail("%s is charged for %.3f s, and ran from %.3f to %.3f s", id, got, least.Seconds(), most.Seconds())
		}
	}
	if len(metered) > 0 {
		r.fail("sandboxes of no client are charged: %v", metered)
	}
}

// jumps returns by how much the clocks of machines jumped while a Sandbox lived: its usage is
// counted by the wall clocks of session-managers and nodes.
func (r *run) jumps(id string) (sum time.Duration) {
	var from, to time.Duration
	for _, o := range r.r.All {
		switch {
		case o.In.Sandbox != id:
		case o.In.Kind == Create:
			from = o.Call
		case o.In.Kind == Delete:
			to = o.Return
		}
	}
	for _, s := range r.r.Spans {
		if s.Began <= to && s.Settled >= from {
			sum += s.Fault.Jump.Abs()
		}
	}
	return sum
}

// checkLimit bounds the check of one history.
const checkLimit = 30 * time.Second

// usageSlack is for clocks of one machine that are read one after the other, in seconds.
const usageSlack = 0.05

// unseen is longer than nodes here have their leases.
const unseen = 3 * time.Second

// nothingIsLeft compares what nodes hold without Sandboxes with what they held before.
func (r *run) nothingIsLeft(before []rig.Holdings) {
	var left []string
	for end := r.patience(); ; time.Sleep(time.Second) {
		left = nil
		for i, now := range r.holdings() {
			for _, name := range []string{"processes, sentry", "processes, spare", "processes, link shard", "processes, sentry host", "cgroups", "mounts in the sentry host", "files hosts/*/boots/*", "files upper/*", "files server/node/boots/*"} {
				if now[name] > before[i][name] {
					left = append(left, fmt.Sprintf("%s of %s: %d, before %d", name, nodeNames[i], now[name], before[i][name]))
				}
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			r.fail("long after the deletes there are %q", left)
			return
		}
	}
}

// report prints the report and writes it.
func (r *run) report() {
	if r.r.All == nil {
		r.r.All = r.h.Operations()
	}
	text := r.r.Text()
	r.t.Log("\n" + text)
	if err := os.WriteFile(filepath.Join(reportFolder(r.t), fmt.Sprintf("report-%d.md", r.r.Seed)), []byte(text), 0o644); err != nil {
		r.t.Error(err)
	}
}
