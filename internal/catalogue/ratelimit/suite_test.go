package ratelimit_test

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/ratelimittest"
)

func TestLimiter(t *testing.T) {
	ratelimittest.Run(t, func(_ *testing.T, rules ratelimit.Rules) ratelimittest.Limiter { return ratelimit.New(rules) })
}
