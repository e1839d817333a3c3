package cli

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// representations are the forms of a rich result that a terminal cannot show, best
// first, with the end of the name of the file that each becomes.
var representations = []struct {
	kind, ext string
	base64    bool
	of        func(v *v1.Value) string // empty: v lacks this form
}{
	{"png", ".png", true, func(v *v1.Value) string { return v.PNG }},
	{"jpeg", ".jpeg", true, func(v *v1.Value) string { return v.JPEG }},
	{"svg", ".svg", false, func(v *v1.Value) string { return v.SVG }},
	{"pdf", ".pdf", true, func(v *v1.Value) string { return v.PDF }},
	{"html", ".html", false, func(v *v1.Value) string { return v.HTML }},
	{"markdown", ".md", false, func(v *v1.Value) string { return v.Markdown }},
	{"latex", ".tex", false, func(v *v1.Value) string { return v.Latex }},
	{"javascript", ".js", false, func(v *v1.Value) string { return v.JavaScript }},
	{"json", ".json", false, func(v *v1.Value) string { return string(v.JSON) }},
	{"chart", ".chart.json", false, func(v *v1.Value) string { return string(v.Chart) }},
}

// results handles rich results: pictures, tables, documents.
type results struct {
	folder string // to write them to; empty: they are only listed
}

// show prints a rich result's text and saves, or lists, its other forms.
func (s *results) show(cmd *cobra.Command, number int, v v1.Value) error {
	if v.Text != "" {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSuffix(v.Text, "\n")); err != nil {
			return err
		}
	}
	if err := s.save(cmd, number, v); err != nil {
		return err
	}
	if s.folder == "" {
		for _, r := range representations {
			if r.of(&v) != "" && r.kind != "markdown" {
				fmt.Fprintf(cmd.ErrOrStderr(), "result %d has a form %s: --save-results FOLDER writes it to a file\n", number, r.kind)
				break
			}
		}
	}
	return nil
}

// save writes the forms of a result to files, and prints the files' names.
func (s *results) save(cmd *cobra.Command, number int, v v1.Value) error {
	files, err := s.write(number, v)
	for _, file := range files {
		fmt.Fprintln(cmd.ErrOrStderr(), "saved", file)
	}
	return err
}

// write writes the forms of a result to files and returns their names.
func (s *results) write(number int, v v1.Value) ([]string, error) {
	if s.folder == "" {
		return nil, nil
	}
	if err := os.MkdirAll(s.folder, 0o777); err != nil {
		return nil, err
	}
	var files []string
	for _, r := range representations {
		text := r.of(&v)
		if text == "" {
			continue
		}
		content := []byte(text)
		if r.base64 {
			var err error
			if content, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), "")); err != nil {
				return nil, fmt.Errorf("result %d: its %s is not base64", number, r.kind)
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
