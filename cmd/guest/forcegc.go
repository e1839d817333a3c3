//go:build linux && !linkname

package main

// neverForceCollections does nothing in a build without the tag linkname, such as
// `go build ./...`: its linker does not permit access to variables of the runtime.
// `make` builds the Guest with the tag.
func neverForceCollections() {}
