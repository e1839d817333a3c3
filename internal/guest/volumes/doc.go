// Package volumes is the volume server inside a Boot: it answers the kernel about
// the Volumes that are mounted there, by asking the Node, which connects to it.
//
// It is a process of its own. The Guest, PID 1, runs Go code on one thread and
// keeps that while a child of its begins; a child that begins in a Volume would wait
// for a server that cannot run.
//
// What gVisor's FUSE lacks is lacking in Volumes: files in them cannot be mapped
// into memory, so no program is started from one, and fsync returns before the disk
// has anything. A call that a signal interrupts ends with EINTR though it may have
// been carried out. A folder that another Sandbox removed still counts as there when
// its name is used for a new one, until somebody looks.
package volumes
