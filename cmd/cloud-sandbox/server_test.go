//go:build linux && !client

package main

import (
	"slices"
	"testing"
)

// onServer, of which the command line alone says where they work, is complete.
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
