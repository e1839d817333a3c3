// Package sentryhost is the protocol of the sentry host, the only privileged
// part of a Node, and its client. The server, which links runsc, is in
// sentryhost/server.
//
// The sentry host knows Boots by ID and nothing of owners. It runs only
// binaries that lie beside itself and opens only images of its own image
// folder: a request names digests and numbers, never paths or commands.
package sentryhost

import (
	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Version of the protocol. A server answers hello for its own version and the
// one before.
const Version = 1

// Methods of the protocol.
const (
	MethodHello   = "hello"  // Hello -> HelloReply
	MethodStart   = "start"  // StartRequest and two files: the guest's and the host's end of the link
	MethodStop    = "stop"   // BootRequest; returns when nothing is left
	MethodList    = "list"   // -> []Boot
	MethodLink    = "link"   // BootRequest -> a file: a copy of the link's host end
	MethodKeep    = "keep"   // BootRequest and a file: the link's host end, for a sentry host that has no copy
	MethodUsage   = "usage"  // BootRequest -> sandbox.Usage
	MethodLimit   = "limit"  // LimitRequest
	MethodShard   = "shard"  // ShardRequest -> ShardReply: starts the link shard if it does not run
	MethodShards  = "shards" // -> []ShardReply: the link shards that run
	MethodDown    = "down"   // ends every Boot and shard, then the sentry host itself
	MethodWatch   = "watch"  // from now on events come
	EventBoot     = "boot"   // sandbox.BootEvent
	EventShardEnd = "shard"  // ShardRequest: this shard ended
)

// Hello opens a connection.
type Hello struct {
	Version int `json:"version"`
}

// HelloReply tells what the sentry host is.
type HelloReply struct {
	Version int    `json:"version"`
	Engine  string `json:"engine_version"` // gVisor's
	Build   string `json:"build"`          // hash of the sentry binary
	Cgroup  string `json:"cgroup"`         // "v1" or "v2"
	Pid     int    `json:"pid"`
}

// StartRequest starts a Boot.
type StartRequest struct {
	ID    string        `json:"id"`
	Image string        `json:"image"`
	Shape sandbox.Shape `json:"shape"`
}

// BootRequest names a Boot.
type BootRequest struct {
	ID string `json:"id"`
}

// LimitRequest changes the CPU share of a running Boot.
type LimitRequest struct {
	ID   string  `json:"id"`
	CPUs float64 `json:"cpus"`
}

// Boot is one running Boot.
type Boot struct {
	ID    string        `json:"id"`
	Image string        `json:"image"`
	Shape sandbox.Shape `json:"shape"`
	Pid   int           `json:"pid"` // of the sentry
}

// ShardRequest names a link shard by its number, from 0.
type ShardRequest struct {
	Number int `json:"number"`
}

// ShardReply tells where a link shard listens.
type ShardReply struct {
	Number int    `json:"number"`
	Socket string `json:"socket"`
	Pid    int    `json:"pid"`
}
