package cli

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// representations are those that a terminal cannot show, with the end of the
// name of the file that each becomes, best first.
var representations = []struct {
	kind, ext string
	binary    bool
}{
	{"png", ".png", true},
	{"jpeg", ".jpeg", true},
	{"svg", ".svg", false},
	{"pdf", ".pdf", true},
	{"html", ".html", false},
	{"markdown", ".md", false},
	{"latex", ".tex", false},
	{"javascript", ".js", false},
	{"json", ".json", false},
	{"chart", ".chart.json", false},
}

// results is what becomes of rich results: pictures, tables, documents.
type results struct {
	folder string // to write them to; empty: they are only named
}

// show prints a rich result's text and saves, or names, its other forms.
func (s *results) show(cmd *cobra.Command, number int, v client.Value) error {
	if text, ok := v.Text("text"); ok {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSuffix(text, "\n")); err != nil {
			return err
		}
	}
	if err := s.save(cmd, number, v); err != nil {
		return err
	}
	if s.folder == "" {
		for _, r := range representations {
			if _, ok := v[r.kind]; ok && r.ext != ".md" {
				fmt.Fprintf(cmd.ErrOrStderr(), "result %d has a form %s: --save-results FOLDER writes it to a file\n", number, r.kind)
				break
			}
		}
	}
	return nil
}

// save writes the forms of a result to files, and names them.
func (s *results) save(cmd *cobra.Command, number int, v client.Value) error {
	files, err := s.write(number, v)
	for _, file := range files {
		fmt.Fprintln(cmd.ErrOrStderr(), "saved", file)
	}
	return err
}

// write writes the forms of a result to files and returns their names.
func (s *results) write(number int, v client.Value) ([]string, error) {
	if s.folder == "" {
		return nil, nil
	}
	if err := os.MkdirAll(s.folder, 0o777); err != nil {
		return nil, err
	}
	var files []string
	for _, r := range representations {
		raw, ok := v[r.kind]
		if !ok {
			continue
		}
		content := []byte(raw)
		if text, ok := v.Text(r.kind); ok {
			content = []byte(text)
			if r.binary {
				var err error
				if content, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), "")); err != nil {
					return nil, fmt.Errorf("result %d: its %s is not base64", number, r.kind)
				}
			}
		}
		file := filepath.Join(s.folder, fmt.Sprintf("result-%d%s", number, r.ext))
		if err := os.WriteFile(file, content, 0o666); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}
