package client_test

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/guesttest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/guest"
)

// The client passes the suite of its ports over a real Guest.
func TestSuite(t *testing.T) {
	guesttest.Run(t, func(t *testing.T) guesttest.World {
		c, dir := guest.Open(t)
		return guesttest.World{Guest: c, Dir: dir}
	})
}

// So it does over a Guest of an earlier version.
func TestSuiteOfAnEarlierGuest(t *testing.T) {
	guesttest.Run(t, func(t *testing.T) guesttest.World {
		c, dir := guest.OpenEarlier(t)
		return guesttest.World{Guest: c, Dir: dir}
	})
}
