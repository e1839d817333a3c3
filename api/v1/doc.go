// Package v1 has the JSON types of the REST API below /api/v1, as api/openapi.yaml
// describes them. The server answers with these types, and the command line, the
// tests and the benchmarks decode them, so each of them is declared once.
//
// Times are RFC 3339 in UTC, to the microsecond. Sizes are in bytes where the name
// ends in _bytes, and in MiB where it ends in _mb. A field with omitempty or omitzero
// is absent from the JSON when it has no value.
package v1

import "time"

// Time returns t in the API's form: in UTC, to the microsecond. The zero time stays
// zero.
func Time(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Microsecond)
}
