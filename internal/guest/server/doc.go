// Package server is the Guest: PID 1 inside every Sandbox. It runs Processes
// and reaps orphans, and it blocks when it is idle: a thousand of them
// run on one host.
//
// The Guest is the Tenant's, not ours: user code has sudo and can replace it.
// So code here protects only the Sandbox's own user.
package server
