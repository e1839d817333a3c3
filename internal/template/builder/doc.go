// Package builder builds Templates for Tenants. Builds need root, because files
// in a root filesystem have owners, and the server has no rights: so a small
// process as root beside it takes them, one request at a time, over a socket
// that only the server's user may use. [Service] is that process; [Client] is
// the port sandbox.Templates for the server.
//
// A build is a record and a log in the data folder. It ends with the process;
// the next one says so in the record.
package builder
