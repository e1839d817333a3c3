// Package server is the Guest: PID 1 inside every Sandbox. It runs Processes
// and reaps orphans, and it blocks when there is nothing to do: a thousand of
// it live on one host.
//
// The Guest is the Tenant's, not ours: user code has sudo and can replace it.
// So nothing here protects anybody but the Sandbox's own user.
package server
