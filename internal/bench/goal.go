package bench

import (
	"fmt"
	"strconv"
	"strings"
)

// goal is the target of a measurement. Its text is one of
//
//	60         the median is at most 60
//	60 (150)   and the 99th percentile at most 150
//	(100)      the 99th percentile is at most 100
//	<= 12      the value is at most 12; < 12 is below 12
//	>= 200     the value is at least 200
type goal struct {
	value, tail       float64 // of the median or the only value, and of the 99th percentile
	hasValue, hasTail bool
	atLeast, strictly bool
}

// parseGoal reads the text of a goal.
func parseGoal(text string) (g goal, err error) {
	fail := func() (goal, error) {
		return goal{}, fmt.Errorf("goal %q: want \"60\", \"60 (150)\", \"(100)\", \"<= 12\", \"< 12\" or \">= 200\"", text)
	}
	rest := strings.TrimSpace(text)
	if before, tail, ok := strings.Cut(rest, "("); ok {
		tail, ok = strings.CutSuffix(tail, ")")
		if g.tail, err = strconv.ParseFloat(tail, 64); err != nil || !ok {
			return fail()
		}
		g.hasTail, rest = true, strings.TrimSpace(before)
		if rest == "" {
			return g, nil
		}
	}
	for _, sign := range []string{">=", "<=", "<"} {
		if after, ok := strings.CutPrefix(rest, sign); ok {
			g.atLeast, g.strictly, rest = sign == ">=", sign == "<", strings.TrimSpace(after)
			break
		}
	}
	if g.value, err = strconv.ParseFloat(rest, 64); err != nil {
		return fail()
	}
	g.hasValue = true
	return g, nil
}

// met reports whether a median and a 99th percentile, or a single value, reach g.
func (g goal) met(value, tail float64) bool {
	switch {
	case g.hasTail && tail > g.tail:
		return false
	case !g.hasValue:
		return true
	case g.atLeast:
		return value >= g.value
	case g.strictly:
		return value < g.value
	default:
		return value <= g.value
	}
}

// judge compares a measurement with the text of a goal: nil without a goal.
func judge(text string, value, tail float64) (*bool, error) {
	if text == "" {
		return nil, nil
	}
	g, err := parseGoal(text)
	if err != nil {
		return nil, err
	}
	return new(g.met(value, tail)), nil
}
