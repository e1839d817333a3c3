package sandbox

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled at its first use. Every sentry
// and every Guest links this package and uses next to none of them.
type pattern struct{ compiled func() *regexp.Regexp }

// lazily returns the pattern of expr; its first use panics when expr is not one.
func lazily(expr string) pattern {
	return pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

func (p pattern) MatchString(s string) bool { return p.compiled().MatchString(s) }
