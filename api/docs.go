package api

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
)

// ExampleOrigin is the server that the examples of DocsHTML name.
const ExampleOrigin = "http://localhost:8080"

//go:embed docs.tmpl
var docsSource string

var docsTemplate = template.Must(template.New("docs").Funcs(template.FuncMap{"prose": prose, "lower": strings.ToLower}).Parse(docsSource))

// DocsHTML renders OpenAPI as one page for people, without scripts. The page is
// rendered at the first call and shared by all: callers must not change it.
var DocsHTML = sync.OnceValues(func() ([]byte, error) {
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI)
	if err != nil {
		return nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	var page bytes.Buffer
	if err := docsTemplate.Execute(&page, docsOf(doc)); err != nil {
		return nil, fmt.Errorf("render the OpenAPI document: %w", err)
	}
	return page.Bytes(), nil
})

type (
	docsPage struct {
		Title, Description string
		Token, Run, Keep   string // the first steps, as shell commands
		Groups             []docsGroup
		Schemas            []docsSchema
	}
	docsGroup struct {
		Name, Description string
		Operations        []docsOperation
	}
	docsOperation struct {
		ID, Method, Path, Summary, Description string
		Scope                                  string // that the caller needs
		Open                                   bool
		Fields                                 []docsField
		BodyRef, BodyType                      string
		Responses                              []docsResponse
		Curl                                   string
	}
	docsField struct {
		Name, In, Type, Ref, Description string
		Required                         bool
	}
	docsResponse struct{ Status, Type, Ref, Description, Example string }
	docsSchema   struct {
		Name, Type, Description string
		Fields                  []docsField
	}
)

func docsOf(doc *openapi3.T) docsPage {
	page := docsPage{
		Title: doc.Info.Title, Description: doc.Info.Description,
		Token: "TOKEN=$(" + request("/api/v1/auth/token", `{"user_id": "test"}`) + " | jq -r .access_token)",
		Run:   request("/api/v1/execute", `{"language": "python", "code": "print(6 * 7)"}`),
		Keep: "SANDBOX=$(" + request("/api/v1/sessions", `{}`) + " | jq -r .sandbox_id)\n" +
			request("/api/v1/execute", `{"sandbox_id": "'$SANDBOX'", "language": "bash", "code": "echo hello > note; ls"}`) + "\n" +
			`curl -s -X DELETE "` + ExampleOrigin + `/api/v1/sessions/$SANDBOX" -H "Authorization: Bearer $TOKEN"`,
	}
	for _, tag := range doc.Tags {
		g := docsGroup{Name: tag.Name, Description: tag.Description}
		for _, path := range doc.Paths.InMatchingOrder() {
			item := doc.Paths.Value(path)
			for method, op := range item.Operations() {
				if slices.Contains(op.Tags, tag.Name) {
					g.Operations = append(g.Operations, docsOperationOf(method, path, item, op))
				}
			}
		}
		slices.SortFunc(g.Operations, func(a, b docsOperation) int {
			return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(order(a.Method), order(b.Method)))
		})
		page.Groups = append(page.Groups, g)
	}
	for name, ref := range doc.Components.Schemas {
		page.Schemas = append(page.Schemas, docsSchema{
			Name: name, Type: typeOf(ref.Value), Description: ref.Value.Description, Fields: fieldsOf(ref.Value),
		})
	}
	slices.SortFunc(page.Schemas, func(a, b docsSchema) int { return cmp.Compare(a.Name, b.Name) })
	return page
}

// request is the shell command of a POST among the first steps.
func request(path, body string) string {
	command := `curl -s "` + ExampleOrigin + path + `"`
	if path != "/api/v1/auth/token" {
		command += ` -H "Authorization: Bearer $TOKEN"`
	}
	return command + ` -H "Content-Type: application/json" -d '` + body + `'`
}

func order(method string) int {
	return slices.Index([]string{"GET", "POST", "PUT", "PATCH", "DELETE"}, method)
}

func docsOperationOf(method, path string, item *openapi3.PathItem, op *openapi3.Operation) docsOperation {
	o := docsOperation{
		ID: op.OperationID, Method: method, Path: path, Summary: op.Summary, Description: op.Description,
		Open: op.Security != nil && len(*op.Security) == 0,
	}
	o.Scope, _ = op.Extensions["x-scope"].(string)
	params := slices.Concat(item.Parameters, op.Parameters)
	for _, p := range params {
		o.Fields = append(o.Fields, docsField{
			Name: p.Value.Name, In: p.Value.In, Type: typeOf(p.Value.Schema.Value),
			Description: p.Value.Description, Required: p.Value.Required,
		})
	}
	var body *openapi3.MediaType
	if op.RequestBody != nil {
		content := op.RequestBody.Value.Content
		o.BodyType = slices.Min(slices.Collect(maps.Keys(content))) // JSON where there is a choice
		body = content[o.BodyType]
		o.BodyRef = refName(body.Schema)
	}
	for status, response := range op.Responses.Map() {
		o.Responses = append(o.Responses, docsResponsesOf(status, response.Value)...)
	}
	slices.SortFunc(o.Responses, func(a, b docsResponse) int {
		return cmp.Or(cmp.Compare(a.Status, b.Status), cmp.Compare(a.Type, b.Type))
	})
	o.Curl = curl(o, params, body)
	return o
}

func docsResponsesOf(status string, r *openapi3.Response) []docsResponse {
	if len(r.Content) == 0 {
		return []docsResponse{{Status: status, Description: *r.Description}}
	}
	var all []docsResponse
	for kind, media := range r.Content {
		d := docsResponse{Status: status, Type: kind, Ref: refName(media.Schema), Description: *r.Description}
		if status != "default" {
			d.Example = example(media.Example)
		}
		all = append(all, d)
	}
	return all
}

func example(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	text, _ := json.MarshalIndent(v, "", "  ")
	return string(text)
}

// idOf is the variable that stands for {id} in a path.
func idOf(path string) string {
	if strings.HasPrefix(path, "/api/v1/processes/") {
		return "$PROCESS"
	}
	return "$SANDBOX"
}

func curl(o docsOperation, params openapi3.Parameters, body *openapi3.MediaType) string {
	url := ExampleOrigin + strings.ReplaceAll(o.Path, "{id}", idOf(o.Path))
	query := ""
	for _, p := range params {
		switch {
		case p.Value.Name == "sandbox_id":
			query += "&sandbox_id=$SANDBOX"
		case p.Value.Required && p.Value.In == "query":
			query += "&" + p.Value.Name + "=test.py"
		}
	}
	if query != "" {
		url += "?" + query[1:]
	}
	line := "curl -s"
	if o.Method != "GET" {
		line += " -X " + o.Method
	}
	line += ` "` + url + `"`
	if !o.Open {
		line += " \\\n  -H \"Authorization: Bearer $TOKEN\""
	}
	switch {
	case body == nil:
	case o.BodyType == "application/json":
		data, _ := json.Marshal(body.Example)
		quoted := strings.ReplaceAll(string(data), `'`, `'\''`)
		line += " \\\n  -H \"Content-Type: application/json\" \\\n  -d '" + quoted + "'"
	default:
		line += " \\\n  --data-binary @test.py"
	}
	return line
}

func refName(ref *openapi3.SchemaRef) string {
	if ref == nil {
		return ""
	}
	return strings.TrimPrefix(ref.Ref, "#/components/schemas/")
}

func fieldsOf(s *openapi3.Schema) []docsField {
	var fields []docsField
	for name, ref := range s.Properties {
		f := docsField{
			Name: name, Type: typeOf(ref.Value), Description: ref.Value.Description,
			Required: slices.Contains(s.Required, name),
		}
		f.Ref = refName(ref)
		if items := ref.Value.Items; items != nil {
			f.Ref = refName(items)
		}
		fields = append(fields, f)
		if f.Ref == "" {
			for _, below := range fieldsOf(ref.Value) {
				below.Name = name + "." + below.Name
				fields = append(fields, below)
			}
		}
	}
	slices.SortFunc(fields, func(a, b docsField) int { return cmp.Compare(a.Name, b.Name) })
	return fields
}

func typeOf(s *openapi3.Schema) string {
	text := strings.Join(s.Type.Slice(), " or ")
	if s.Format != "" {
		text += ", " + s.Format
	}
	if len(s.Enum) > 0 {
		names := make([]string, len(s.Enum))
		for i, v := range s.Enum {
			names[i] = fmt.Sprint(v)
		}
		text += ": " + strings.Join(names, ", ")
	}
	if s.Min != nil {
		text += fmt.Sprintf(", from %g", *s.Min)
	}
	if s.Max != nil {
		text += fmt.Sprintf(", to %.0f", *s.Max)
	}
	if s.Default != nil {
		text += fmt.Sprintf(", default %v", s.Default)
	}
	return text
}

// prose is the little of Markdown that the contract uses: paragraphs, `code`
// and **strong**.
func prose(s string) template.HTML {
	var out strings.Builder
	for para := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		text := template.HTMLEscapeString(para)
		text = pairs(text, "`", "<code>", "</code>")
		text = pairs(text, "**", "<strong>", "</strong>")
		out.WriteString("<p>" + text + "</p>\n")
	}
	return template.HTML(out.String())
}

func pairs(s, mark, open, end string) string {
	parts := strings.Split(s, mark)
	for i := 1; i+1 < len(parts); i += 2 {
		parts[i] = open + parts[i] + end
	}
	return strings.Join(parts, "")
}
