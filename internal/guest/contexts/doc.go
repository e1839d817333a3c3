// Package contexts keeps interpreters whose state lasts between executions. Each
// context has a worker: a small program of ours that the Template's own interpreter
// runs. The Guest communicates with it over pipes.
//
// Everything here runs inside the Sandbox and belongs to its user. Data from a
// worker is not trusted; its size is bounded, so that it cannot exhaust the Guest's
// memory.
package contexts
