package rest

import (
	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// listedViewOf is viewOf without its long fields.
func listedViewOf(who sandbox.Identity, s sandbox.Sandbox) v1.Sandbox {
	v := viewOf(who, s)
	if v.Ended != nil {
		v.Ended.OutputTail = nil
	}
	return v
}

// viewOf is the part of s that the Identity who may see.
func viewOf(who sandbox.Identity, s sandbox.Sandbox) v1.Sandbox { return v1.SandboxOf(who.Sees(s)) }
