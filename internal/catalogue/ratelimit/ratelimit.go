// Package ratelimit limits the request rate of each caller and class of requests, by
// token buckets in memory.
package ratelimit

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Class is a kind of request with a limit of its own.
type Class string

const (
	Create  Class = "create"  // makes a Sandbox
	Execute Class = "execute" // runs code in a Sandbox
	Files   Class = "files"   // reads or writes files
	Read    Class = "read"    // reads records
	Write   Class = "write"   // changes records
	Token   Class = "token"   // asks for a token
)

// Rule is the limit of one Class and caller.
type Rule struct {
	PerSecond float64 // how fast the bucket fills
	Burst     int     // size of the bucket: requests at once
}

// Rules are the limits by Class. A Class without a Rule is not limited; nil limits no
// Class.
type Rules map[Class]Rule

// Defaults allow one busy client the capacity of a small host, and stop a runaway
// loop from taking the host from others.
func Defaults() Rules {
	return Rules{
		Create:  {PerSecond: 50, Burst: 1000},
		Execute: {PerSecond: 500, Burst: 2000},
		Files:   {PerSecond: 500, Burst: 2000},
		Read:    {PerSecond: 500, Burst: 2000},
		Write:   {PerSecond: 500, Burst: 2000},
		Token:   {PerSecond: 20, Burst: 200},
	}
}

// Parse changes the Defaults by a text like "create=5:50,execute=10:40": requests a
// second, and burst. "off" means no limits at all; "class=off" none for one.
func Parse(text string) (Rules, error) {
	rules := Defaults()
	if text == "off" {
		return nil, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(item), "=")
		class := Class(name)
		if _, known := Defaults()[class]; !ok || !known {
			return nil, fmt.Errorf(`%q is not a limit: write class=PER_SECOND:BURST or class=off, with a class of %s; or "off" alone`, item, classes())
		}
		if value == "off" {
			delete(rules, class)
			continue
		}
		rule, err := parseRule(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		rules[class] = rule
	}
	return rules, nil
}

func classes() string {
	var names []string
	for _, c := range slices.Sorted(maps.Keys(Defaults())) {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
}

func parseRule(value string) (Rule, error) {
	perSecond, burst, ok := strings.Cut(value, ":")
	r, err1 := strconv.ParseFloat(perSecond, 64)
	b, err2 := strconv.Atoi(burst)
	const least, most = 0.001, 1e6
	if !ok || err1 != nil || err2 != nil || !(r >= least && r <= most) || b < 1 || b > most {
		return Rule{}, fmt.Errorf("%q is not PER_SECOND:BURST, like 5:50, with at least %g a second, one at once, and at most %d of either", value, least, int(most))
	}
	return Rule{PerSecond: r, Burst: b}, nil
}

// maxBuckets bounds memory. Beyond it, each new bucket evicts one of a sample. All
// full buckets in the sample, which carry no information, are evicted too.
const (
	maxBuckets  = 100_000
	evictSample = 64
)

// Limiter holds the buckets. Its methods are safe for concurrent use.
type Limiter struct {
	rules Rules

	mu      sync.Mutex
	buckets map[bucketKey]*rate.Limiter
}

type bucketKey struct {
	caller string
	class  Class
}

// New returns a Limiter with full buckets.
func New(rules Rules) *Limiter {
	return &Limiter{rules: rules, buckets: map[bucketKey]*rate.Limiter{}}
}

// Decision is the outcome of a check, for the caller.
type Decision struct {
	Limited   bool // whether the Class has a limit; if not, the other fields are zero
	OK        bool
	Rule      Rule
	Remaining int           // requests that could follow at once
	Reset     time.Duration // until the bucket is full again
	Wait      time.Duration // when not OK: until the next request passes
}

// Take takes one request out of a caller's bucket.
func (l *Limiter) Take(caller string, class Class, now time.Time) Decision {
	rule, ok := l.rules[class]
	if !ok {
		return Decision{OK: true}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[bucketKey{caller, class}]
	if b == nil {
		l.makeRoom(now)
		b = rate.NewLimiter(rate.Limit(rule.PerSecond), rule.Burst)
		l.buckets[bucketKey{caller, class}] = b
	}
	d := Decision{Limited: true, Rule: rule, OK: b.AllowN(now, 1)}
	tokens := b.TokensAt(now)
	d.Remaining = int(math.Max(0, math.Floor(tokens)))
	d.Reset = seconds((float64(rule.Burst) - tokens) / rule.PerSecond)
	if !d.OK {
		d.Wait = seconds((1 - tokens) / rule.PerSecond)
	}
	return d
}

func seconds(s float64) time.Duration { return time.Duration(math.Max(0, s) * float64(time.Second)) }

func (l *Limiter) makeRoom(now time.Time) {
	if len(l.buckets) < maxBuckets {
		return
	}
	looked := 0
	for key, b := range l.buckets { // iteration of a map starts at random: this is a sample
		if looked++; looked > evictSample {
			return
		}
		if looked == 1 || b.TokensAt(now) >= float64(b.Burst()) {
			delete(l.buckets, key)
		}
	}
}
