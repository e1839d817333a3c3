// Package builder builds Templates for Tenants. Builds need root, because files in a root
// filesystem have owners, but the server is unprivileged. So a small separate process
// runs as root and takes one request at a time, over a socket that only the server's user
// may use. [Service] is that process; [Client] implements the port sandbox.Templates for
// the server.
//
// A build is a record and a log in the data folder. If the process ends, the build fails,
// and the next process records that.
package builder
