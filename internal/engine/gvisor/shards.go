package gvisor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// recoverTimeout bounds the replacement of a shard.
const recoverTimeout = 30 * time.Second

// shardClient returns a working connection to a shard. A shard that ended is restarted
// and given its links back first; concurrent callers wait.
func (e *Engine) shardClient(ctx context.Context, s *shard) (*link.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil && !broken(s.client) {
		return s.client, nil
	}
	host, err := s.host.connected(ctx)
	if err != nil {
		return nil, err
	}
	c, err := e.replaced(ctx, host, s)
	if err != nil {
		return nil, err
	}
	if s.client != nil {
		s.client.Close()
	}
	s.client = c
	return c, nil
}

// replaced connects to a shard and gives it its missing links. It retries, as a shard
// that is about to end may still accept a connection. The caller holds s.mu.
func (e *Engine) replaced(ctx context.Context, host *sentryhost.Client, s *shard) (*link.Client, error) {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		c, err := e.dialShard(ctx, host, s.number)
		if err != nil {
			return nil, err
		}
		if err = cmp.Or(e.fence(ctx, c), e.replug(ctx, s, c)); err == nil {
			return c, nil
		}
		ended := broken(c)
		c.Close()
		if !ended || attempt == attempts || ctx.Err() != nil {
			return nil, err
		}
	}
}

// dialShard starts a shard, unless it runs, and connects. For a moment the sentry host
// still lists a shard that was just killed.
func (e *Engine) dialShard(ctx context.Context, host *sentryhost.Client, number int) (*link.Client, error) {
	const patience, pause = 3 * time.Second, 20 * time.Millisecond
	deadline := time.Now().Add(patience)
	for {
		reply, err := host.Shard(ctx, number)
		if err != nil {
			return nil, fmt.Errorf("start link shard %d: %w", number, err)
		}
		c, err := link.Dial(ctx, reply.Socket, e.cfg.Network)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, fmt.Errorf("reach link shard %d: %w", number, err)
		}
		time.Sleep(pause)
	}
}

// replug gives a shard its missing links. The caller holds s.mu.
func (e *Engine) replug(ctx context.Context, s *shard, c *link.Client) error {
	present, err := c.List(ctx)
	if err != nil {
		return fmt.Errorf("list the links of shard %d: %w", s.number, err)
	}
	has := map[string]bool{}
	for _, l := range present {
		has[l.BootID] = true
	}
	type missing struct {
		boot      *boot
		id        string
		file      *os.File
		policy    sandbox.NetworkPolicy
		bandwidth int64
		secrets   sandbox.SecretBinding
	}
	var add []missing
	lost := 0 // links of started Boots: an earlier shard had them
	e.mu.Lock()
	for id, b := range e.boots {
		if b.shard == s && b.linked && !has[id] {
			if b.started {
				lost++
			}
			add = append(add, missing{b, id, b.hostEnd, b.network, b.limits.Bandwidth, b.secrets})
		}
	}
	e.mu.Unlock()
	for _, m := range add {
		err := c.Add(ctx, m.id, m.file, m.policy)
		switch {
		case sandbox.CodeOf(err) == sandbox.Conflict:
			continue // the Boot's start was faster
		case err != nil && !e.isLinked(m.boot):
			continue // it has ended meanwhile
		case err != nil:
			return fmt.Errorf("plug a link in again: %w", err)
		}
		if m.bandwidth != 0 {
			if err := c.SetBandwidth(ctx, m.id, m.bandwidth); err != nil {
				return fmt.Errorf("bound a link again: %w", err)
			}
		}
		if len(m.secrets.Headers) == 0 {
			continue
		}
		if err := c.SetSecrets(ctx, m.id, m.secrets); err != nil {
			return fmt.Errorf("tell a link its secrets again: %w", err)
		}
	}
	if lost > 0 {
		e.cfg.Log.Warn("a link shard was replaced", "shard", s.number, "links", lost)
	}
	return nil
}

func (e *Engine) isLinked(b *boot) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return b.linked
}

// shardEnded replaces a shard that ended, if it has links.
func (e *Engine) shardEnded(h *host, number int) {
	e.mu.Lock()
	s := e.shards[cable{h, number}]
	needed := s != nil && s.links > 0 && !e.closed
	e.mu.Unlock()
	if !needed {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), recoverTimeout)
		defer cancel()
		if _, err := e.shardClient(ctx, s); err != nil {
			e.cfg.Log.Error("replacing a link shard failed", "shard", number, telemetry.KeyError, err)
		}
	}()
}

// adopt adopts the running Boots and links. A link that no shard has is plugged in again
// from the sentry host's copy; a Boot without any copy of its link cannot be reached and
// is ended.
func (e *Engine) adopt(ctx context.Context, hosts []*host) error {
	waiting := map[string]orphan{}
	for _, h := range hosts {
		c, err := h.connected(ctx)
		if err != nil {
			return err
		}
		running, err := c.List(ctx)
		if err != nil {
			return err
		}
		for _, b := range running {
			waiting[b.ID] = orphan{b, h}
		}
	}
	for _, h := range hosts { // the link of a Boot may be in a shard of another build
		if err := e.adoptShards(ctx, h, waiting); err != nil {
			return err
		}
	}
	for id, b := range waiting {
		if err := e.adoptOrphan(ctx, b); err != nil {
			e.cfg.Log.Warn("a boot lost its link and is ended", telemetry.KeyBoot, id, telemetry.KeyError, err)
			c, err := b.host.connected(ctx)
			if err != nil {
				return err
			}
			if err := c.Stop(ctx, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// orphan is a running Boot whose link is not found yet.
type orphan struct {
	sentryhost.Boot
	host *host
}

func (e *Engine) adoptShards(ctx context.Context, h *host, waiting map[string]orphan) error {
	c, err := h.connected(ctx)
	if err != nil {
		return err
	}
	shards, err := c.Shards(ctx)
	if err != nil {
		return err
	}
	for _, r := range shards {
		if err := e.adoptShard(ctx, h, r.Number, waiting); err != nil {
			return err
		}
	}
	return nil
}

// adoptShard adopts one shard's links of running Boots, and unplugs the others.
func (e *Engine) adoptShard(ctx context.Context, h *host, number int, waiting map[string]orphan) error {
	host, err := h.connected(ctx)
	if err != nil {
		return err
	}
	c, err := e.dialShard(ctx, host, number)
	if err != nil {
		return err
	}
	s := &shard{host: h, number: number, client: c}
	e.mu.Lock()
	e.shards[cable{h, number}] = s
	e.mu.Unlock()
	if err := e.fence(ctx, c); err != nil { // it may be a new one
		return fmt.Errorf("set the fence of link shard %d: %w", number, err)
	}
	links, err := c.List(ctx)
	if err != nil {
		return fmt.Errorf("list the links of shard %d: %w", number, err)
	}
	for _, l := range links {
		b, ok := waiting[l.BootID]
		if !ok {
			if _, err := c.Remove(ctx, l.BootID); err != nil {
				return err
			}
			continue
		}
		file, err := c.Fetch(ctx, l.BootID)
		if err != nil {
			return fmt.Errorf("fetch a link: %w", err)
		}
		if file, err = link.Kept(file); err != nil {
			return err
		}
		e.adoptBoot(b, s, file, l.Policy)
		delete(waiting, l.BootID)
	}
	return nil
}

// adoptBoot adopts a Boot. The Boot holds its sentry host and its shard's.
func (e *Engine) adoptBoot(b orphan, s *shard, file *os.File, policy sandbox.NetworkPolicy) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.links++
	s.host.users++
	b.host.users++
	e.boots[b.ID] = &boot{host: b.host, image: b.Image, shape: b.Shape, shard: s, from: b.From, hostEnd: file, network: policy, limits: b.Limits, frozen: b.Frozen, started: true, linked: true}
}

func (e *Engine) adoptOrphan(ctx context.Context, b orphan) error {
	host, err := b.host.connected(ctx)
	if err != nil {
		return err
	}
	file, err := host.Link(ctx, b.ID)
	if err != nil {
		return err
	}
	if file, err = link.Kept(file); err != nil {
		return err
	}
	e.mu.Lock()
	s := e.roomyShard()
	e.mu.Unlock()
	// The policy is lost: none until the node sets it.
	e.adoptBoot(b, s, file, sandbox.NetworkNone)
	c, err := e.shardClient(ctx, s)
	if err != nil {
		return err
	}
	err = c.Add(ctx, b.ID, file, sandbox.NetworkNone)
	if sandbox.CodeOf(err) == sandbox.Conflict {
		return nil // connecting plugged it in already
	}
	if err == nil && b.Limits.Bandwidth != 0 {
		err = c.SetBandwidth(ctx, b.ID, b.Limits.Bandwidth)
	}
	return err
}
