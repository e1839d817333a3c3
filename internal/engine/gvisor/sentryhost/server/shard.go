package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/cgroup"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// maxShards bounds the shards; times 256 links, it is more than one host runs.
const maxShards = 64

// shardMemory limits a shard with all its links, in bytes: 256 links of up to 64 MiB of
// buffers would be more, so this limit contains a flood.
const shardMemory = 4 << 30

// shard is one running link shard.
type shard struct {
	Number     int    `json:"number"`
	Pid        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"`

	pidfd *os.File
	gone  chan struct{}
}

func (h *Host) shardPath(n int, ext string) string {
	return filepath.Join(h.cfg.Dir, "shards", strconv.Itoa(n)+ext)
}

// shard starts link shard n, unless it runs.
func (h *Host) shard(n int) (sentryhost.ShardReply, error) {
	if n < 0 || n >= maxShards {
		return sentryhost.ShardReply{}, sandbox.Errorf(sandbox.Exhausted, "link shards are numbered 0 to %d", maxShards-1)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.shards[n]
	if s == nil {
		var err error
		if s, err = h.startShard(n); err != nil {
			return sentryhost.ShardReply{}, err
		}
		h.shards[n] = s
	}
	return h.shardReply(s), nil
}

func (h *Host) shardReply(s *shard) sentryhost.ShardReply {
	return sentryhost.ShardReply{Number: s.Number, Socket: h.shardPath(s.Number, ".sock"), Pid: s.Pid}
}

func (h *Host) listShards() []sentryhost.ShardReply {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]sentryhost.ShardReply, 0, len(h.shards))
	for _, s := range h.shards {
		out = append(out, h.shardReply(s))
	}
	return out
}

// startShard runs the link binary as its own user, without capabilities, in a
// session and a cgroup of its own. The caller holds h.mu.
func (h *Host) startShard(n int) (*shard, error) {
	listener, err := h.shardListener(n)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	log, err := os.OpenFile(h.shardPath(n, ".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(h.cfg.LinkBinary, "--listen-fd", "3", "--allow-uid", strconv.Itoa(h.cfg.ServerUID))
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{listener}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Credential: &syscall.Credential{Uid: uint32(h.cfg.LinkUID), Gid: uint32(h.cfg.LinkUID)},
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a link shard: %w", err)
	}
	s := &shard{Number: n, Pid: cmd.Process.Pid, gone: make(chan struct{})}
	if err := h.placeShard(s); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, errors.Join(err, h.removeShard(n))
	}
	_ = cmd.Process.Release() // watchShard reaps it by pid
	return s, nil
}

func (h *Host) shardListener(n int) (*os.File, error) {
	path := h.shardPath(n, ".sock")
	l, err := fdrpc.Listen(path, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the link shard's socket: %w", err)
	}
	defer l.Close()
	if err := os.Chown(path, h.cfg.ServerUID, -1); err != nil {
		return nil, err
	}
	return l.File()
}

func (h *Host) placeShard(s *shard) error {
	group, err := h.groups.Create("link-"+strconv.Itoa(s.Number), cgroup.Limits{MemoryBytes: shardMemory})
	if err != nil {
		return err
	}
	if err := group.Add(s.Pid); err != nil {
		return err
	}
	if s.StartTicks, err = startTicks(s.Pid); err != nil {
		return err
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.shardPath(s.Number, ".json"), raw, 0o600); err != nil {
		return err
	}
	return h.watchShard(s)
}

func (h *Host) watchShard(s *shard) error {
	fd, err := unix.PidfdOpen(s.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch a link shard: %w", err)
	}
	s.pidfd = os.NewFile(uintptr(fd), "pidfd")
	h.wg.Go(func() {
		waitPidfd(s.pidfd)
		s.pidfd.Close()
		_, _ = unix.Wait4(s.Pid, nil, unix.WNOHANG, nil)
		h.mu.Lock()
		if h.shards[s.Number] == s {
			delete(h.shards, s.Number)
		}
		h.mu.Unlock()
		close(s.gone)
		h.log.Warn("a link shard ended", "shard", s.Number)
		h.tell(sentryhost.EventShardEnd, sentryhost.ShardRequest{Number: s.Number})
	})
	return nil
}

// adoptShards adopts link shards that run already.
func (h *Host) adoptShards() {
	records, _ := filepath.Glob(filepath.Join(h.cfg.Dir, "shards", "*.json"))
	for _, path := range records {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		s := &shard{gone: make(chan struct{})}
		if json.Unmarshal(raw, s) != nil || s.Number < 0 || s.Number >= maxShards {
			continue
		}
		ticks, err := startTicks(s.Pid)
		if err != nil || ticks != s.StartTicks {
			os.Remove(path)
			continue
		}
		h.mu.Lock() // a shard that ends at once is removed after it is listed
		if err = h.watchShard(s); err == nil {
			h.shards[s.Number] = s
		}
		h.mu.Unlock()
		if err != nil {
			continue
		}
		h.log.Info("adopted a link shard", "shard", s.Number, "pid", s.Pid)
	}
}

// endShards kills every shard and removes its socket, record and group.
func (h *Host) endShards() {
	h.mu.Lock()
	shards := make([]*shard, 0, len(h.shards))
	for _, s := range h.shards {
		shards = append(shards, s)
	}
	h.mu.Unlock()
	for _, s := range shards {
		_ = unix.Kill(s.Pid, unix.SIGKILL)
		<-s.gone
		if err := h.removeShard(s.Number); err != nil {
			h.log.Error("removing the cgroup of a link shard failed", "shard", s.Number, telemetry.KeyError, err)
		}
	}
}

// removeShard removes the remains of shard n, which has ended: socket, record and
// group.
func (h *Host) removeShard(n int) error {
	for _, ext := range []string{".sock", ".json"} {
		os.Remove(h.shardPath(n, ext))
	}
	return h.groups.Open("link-" + strconv.Itoa(n)).Remove(removeWait)
}
