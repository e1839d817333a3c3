package sqlstore

import (
	"database/sql"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// No frequent query scans the whole table, which holds a week of termination records.
func TestQueriesUseIndices(t *testing.T) {
	s, err := OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var texts []string
	for _, p := range append(s.query.all(s.dialect), s.brief.all[0].briefQueries.all()...) {
		texts = append(texts, p.text)
	}
	for _, p := range s.writer.stmts.all(s.dialect) {
		if verb, _, _ := strings.Cut(p.text, " "); verb == "UPDATE" || verb == "DELETE" || verb == "SELECT" {
			texts = append(texts, p.text)
		}
	}
	for _, text := range texts {
		for _, step := range plan(t, s.reads, text) {
			if slices.ContainsFunc([]string{"sandboxes", "signing_keys", "copies", "packs", "copy_packs", "traffic_boots", "usage_days", "onces"}, func(table string) bool { return strings.HasPrefix(step, "SCAN "+table) }) && !strings.Contains(step, "USING") {
				t.Errorf("%s\nreads the whole table: %s", text, step)
			}
			if strings.Contains(step, "TEMP B-TREE FOR ORDER BY") {
				t.Errorf("%s\nsorts: %s", text, step)
			}
		}
	}
}

// The query that counts a Tenant's creates skips refused ones by its index. The query that
// deletes refused ones reads only them.
func TestRefusedCreatesHaveIndices(t *testing.T) {
	s, err := OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for text, index := range map[string]string{
		createsText:       "COVERING INDEX sandboxes_counted (tenant=? AND created_at>?)",
		deleteRefusedText: "INDEX sandboxes_refused (ended_at<?)",
	} {
		if steps := plan(t, s.reads, text); !slices.ContainsFunc(steps, func(step string) bool { return strings.Contains(step, index) }) {
			t.Errorf("%s\ndoes not use the %s: %q", text, index, steps)
		}
	}
}

func plan(t *testing.T, db *sql.DB, text string) []string {
	t.Helper()
	args := make([]any, 64)
	n := strings.Count(text, "?")
	if strings.Contains(text, "?1") {
		n = 0
		for i := range args {
			if strings.Contains(text, "?"+strconv.Itoa(i+1)) {
				n = i + 1
			}
		}
	}
	rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text, args[:n]...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	defer rows.Close()
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return steps
}
