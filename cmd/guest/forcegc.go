//go:build linux && !linkname

package main

// neverForceCollections does nothing in a build whose linker lets nobody name variables
// of the runtime, as `go build ./...` makes it. `make` builds the Guest with the tag
// linkname.
func neverForceCollections() {}
