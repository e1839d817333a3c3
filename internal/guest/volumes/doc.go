// Package volumes is the volume server inside a Boot: it answers the kernel's
// requests for the mounted Volumes by asking the Node, which connects to it.
//
// It is a process of its own. The Guest, PID 1, runs Go code on one thread, which
// is blocked while a child starts; a child that starts in a Volume would wait for a
// server that cannot run.
//
// The limits of gVisor's FUSE apply to Volumes. Files cannot be mapped into memory,
// so no program can be started from a Volume. fsync returns before the data is on
// disk. A call that a signal interrupts ends with EINTR though it may have been
// carried out. A folder that another Sandbox removed still seems to exist when its
// name is reused for a new one, until the next lookup.
package volumes
