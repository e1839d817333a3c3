// Package contexts keeps interpreters that remember: what one execution leaves,
// the next one finds. Each context has a worker, a small program of ours that
// the Template's own interpreter runs, and speaks with it over pipes of its own.
//
// Everything here is inside the Sandbox and its user's: what a worker says is
// bounded, so that it cannot use up the Guest, and trusted with nothing else.
package contexts
