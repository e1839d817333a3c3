package relay_test

import (
	"errors"
	"io"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/relay"
)

func TestRun(t *testing.T) {
	exportBroke, importBroke := errors.New("the export broke"), errors.New("the import broke")
	writes := func(end error) func(io.Writer) error {
		return func(w io.Writer) error {
			for range 100 {
				if _, err := io.WriteString(w, "content"); err != nil {
					return err
				}
			}
			return end
		}
	}
	reads := func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
	refuses := func(io.Reader) error { return importBroke }
	for name, tt := range map[string]struct {
		exports func(io.Writer) error
		imports func(io.Reader) error
		want    error
	}{
		"both succeed":                  {writes(nil), reads, nil},
		"the export fails":              {writes(exportBroke), reads, exportBroke},
		"the import refuses":            {writes(nil), refuses, importBroke},
		"the import reads half of it":   {writes(nil), func(r io.Reader) error { _, err := r.Read(make([]byte, 10)); return errors.Join(importBroke, err) }, importBroke},
		"the import reads only a start": {writes(nil), func(r io.Reader) error { _, err := r.Read(make([]byte, 10)); return err }, nil},
		"both fail":                     {func(io.Writer) error { return exportBroke }, refuses, exportBroke},
	} {
		if err := relay.Run(tt.exports, tt.imports); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}
