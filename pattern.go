package sandbox

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled at its first use, because every sentry
// and Guest links this package but uses almost no patterns.
type pattern struct{ compiled func() *regexp.Regexp }

// lazily returns the pattern of expr; its first use panics when expr is invalid.
func lazily(expr string) pattern {
	return pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

func (p pattern) MatchString(s string) bool { return p.compiled().MatchString(s) }
