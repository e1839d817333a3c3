package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// goalNeighbour is the goal for a neighbour's program that has one of two processor
// cores for itself: as without an attack, except for the tail.
const goalNeighbour = "15 (250)"

// attackTime bounds each attack.
const attackTime = 4 * time.Second

// attacks are a hostile tenant's programs beside a neighbour: one for each shared
// resource.
var attacks = []struct{ name, language, code string }{
	{"infinite loops on every core", "bash", "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait"},
	{"fork bomb", "bash", ":(){ :|:& };:; sleep 30"},
	{"memory bomb", "python", "kept = []\nwhile True: kept.append(bytearray(1 << 20))"},
	{"endless output", "bash", "yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa & yes bbbbbbbbbbbbbbbbbbb >&2"},
	{"disk filler", "bash", "while :; do dd if=/dev/zero of=/workspace/fill bs=1M count=8192; rm -f /workspace/fill; done"},
	{"a million files", "python", "import os\nos.makedirs('/workspace/many', exist_ok=True)\nfor i in range(1000000): open(f'/workspace/many/{i}', 'w').write('x')"},
}

// Neighbours measures `true` in a Sandbox, at first alone and then while attacker,
// another tenant, runs each kind of attack in a Sandbox of its own.
func (m *Meter) Neighbours(ctx context.Context, attacker *client.Client, n int) error {
	return m.within(ctx, func(id string) error {
		alone := &Series{Operation: "neighbour: spawn `true` while no other sandbox is busy", Who: Ours}
		spawn := func(ctx context.Context) (time.Duration, error) {
			return timed(func() error { return m.spawn(ctx, id, []string{"true"}) })
		}
		m.Report.Begin()
		if err := Repeat(ctx, alone, n, spawn); err != nil {
			return err
		}
		m.Report.Add(alone)
		var failed error
		for _, a := range attacks {
			if err := m.settle(ctx); err != nil {
				return err
			}
			beside := &Series{Operation: "neighbour: spawn `true` during " + a.name, Who: Ours, Goal: goalNeighbour, Rival: alone}
			m.Report.Begin()
			err := underAttack(ctx, attacker, client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: a.language, Code: a.code, TimeoutSeconds: new(v1.SecondsOrNone(attackTime))}}, func(ctx context.Context) error {
				return repeatWhile(ctx, beside, n, spawn)
			})
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			m.Report.Add(beside)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", beside.Operation, err))
			}
		}
		return failed
	})
}

// underAttack runs r as attacker in a Sandbox of its own, and calls measure with a
// context that ends when the attack does.
func underAttack(ctx context.Context, attacker *client.Client, r client.ExecuteRequest, measure func(context.Context) error) error {
	sb, err := attacker.Acquire(ctx)
	if err != nil {
		return err
	}
	r.SandboxID = sb.ID
	during, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		defer end()
		_, err := attacker.Execute(ctx, r) // tests/hostile checks its result
		ended <- err
	}()
	err = errors.Join(measure(during), <-ended)
	_, endErr := attacker.End(context.WithoutCancel(ctx), sb.ID)
	return errors.Join(err, endErr)
}

// repeatWhile fills s with up to n rounds of op, as many as finish before ctx ends;
// at least one must.
func repeatWhile(ctx context.Context, s *Series, n int, op func(context.Context) (time.Duration, error)) error {
	for range n {
		took, err := op(ctx)
		if ctx.Err() != nil {
			break
		}
		s.add(took, err)
	}
	if len(s.Samples) == 0 {
		return errors.New("the attack ended before anything was measured")
	}
	return nil
}
