//go:build linux && !client

package main

import (
	"slices"
	"testing"
)

// onServer lists every command that the client alone does not have.
func TestOnServer(t *testing.T) {
	var visible []string
	for _, c := range serverCommands() {
		if !c.Hidden {
			visible = append(visible, c.Name())
		}
	}
	if !slices.Equal(visible, onServer) {
		t.Errorf("the server's commands are %q, and onServer %q", visible, onServer)
	}
}
