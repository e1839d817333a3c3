// Package codetest checks the errors of calls by their Code, for suites and tests.
package codetest

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Want fails the test unless err has the Code.
func Want(t testing.TB, call string, err error, code sandbox.Code) {
	t.Helper()
	if err == nil || sandbox.CodeOf(err) != code {
		t.Errorf("%s = %v, want %s", call, err, code)
	}
}

// OK ends the test if err is not nil.
func OK(t testing.TB, call string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", call, err)
	}
}

// ErrOf returns the error of a call with a result.
func ErrOf[T any](_ T, err error) error { return err }
