// Package ratelimit limits the request rate of each caller and class of requests, by
// token buckets in memory. Its package redis has the buckets of several gateways.
package ratelimit

import (
	"errors"
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

// Parse reads a list of items separated by commas. An item like "create=5:50" changes
// the Defaults: requests a second, and burst; "create=off" means no limit for that
// Class. One item may be the address of a Redis server, as ParseAddress takes it; a
// list without an address gives nil. "off" alone means no limits at all. Errors never
// quote a password.
func Parse(text string) (Rules, *Address, error) {
	if text == "off" {
		return nil, nil, nil
	}
	rules := Defaults()
	var address *Address
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if isAddress(item) {
			if address != nil {
				return nil, nil, errors.New("the address of Redis is listed twice: gateways share one server")
			}
			a, err := ParseAddress(item)
			if err != nil {
				return nil, nil, err
			}
			address = &a
			continue
		}
		if err := rules.change(item, quotable(text)); err != nil {
			return nil, nil, err
		}
	}
	return rules, address, nil
}

// change applies one item to rules. An error quotes the item only if quote is set.
func (rules Rules) change(item string, quote bool) error {
	name, value, ok := strings.Cut(item, "=")
	class := Class(name)
	if _, known := Defaults()[class]; !ok || !known {
		which := "one of its items"
		if quote {
			which = strconv.Quote(item)
		}
		return fmt.Errorf(`%s is not a limit: write class=PER_SECOND:BURST or class=off, with a class of %s; redis://HOST:PORT beside them, with special characters of its password percent-encoded; or "off" alone`, which, classes())
	}
	if value == "off" {
		delete(rules, class)
		return nil
	}
	rule, err := parseRule(value)
	if err != nil && !quote {
		return fmt.Errorf("%s: its value is not PER_SECOND:BURST, like 5:50", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	rules[class] = rule
	return nil
}

// quotable reports whether errors may quote items of text. A part of an address that was
// cut at a comma may be a part of its password.
func quotable(text string) bool { return !strings.ContainsAny(text, "@/") }

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

// Decide returns the Decision for a request that a bucket of this Rule admitted or not, and
// that left tokens in it.
func (r Rule) Decide(ok bool, tokens float64) Decision {
	d := Decision{Limited: true, Rule: r, OK: ok}
	d.Remaining = int(math.Max(0, math.Floor(tokens)))
	d.Reset = seconds((float64(r.Burst) - tokens) / r.PerSecond)
	if !ok {
		d.Wait = seconds((1 - tokens) / r.PerSecond)
	}
	return d
}

// Take takes one request out of a caller's bucket.
func (l *Limiter) Take(caller string, class Class, now time.Time) Decision {
	rule, ok := l.rules[class]
	if !ok {
		return Decision{OK: true}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(bucketKey{caller, class}, rule, now)
	admitted := b.AllowN(now, 1)
	return rule.Decide(admitted, b.TokensAt(now))
}

// bucket returns the bucket of a caller and Class. The caller holds l.mu.
func (l *Limiter) bucket(key bucketKey, rule Rule, now time.Time) *rate.Limiter {
	b := l.buckets[key]
	if b == nil {
		l.makeRoom(now)
		b = rate.NewLimiter(rate.Limit(rule.PerSecond), rule.Burst)
		l.buckets[key] = b
	}
	return b
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
