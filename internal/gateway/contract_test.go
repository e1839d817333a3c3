package gateway_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cloud-sandbox/cloud-sandbox/api"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
)

// The JSON of each operation is, in the contract and in the catalogue, of the same
// fields and types.
func TestContractHasTheTypesOfTheCatalogue(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]*catalogue.Operation{}
	for _, o := range catalogue.All() {
		rows[o.Name] = o
	}
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			row := rows[op.OperationID]
			if row == nil {
				t.Errorf("%s is not in the catalogue", op.OperationID)
				continue
			}
			c := comparison{t: t, requires: true, seen: map[reflect.Type]bool{}}
			for code, response := range op.Responses.Map() {
				if code[0] == '2' {
					c.body(op.OperationID+" gives", response.Value.Content, row.Gives)
				}
			}
			c = comparison{t: t, seen: map[reflect.Type]bool{}}
			if op.RequestBody != nil {
				c.body(op.OperationID+" takes", op.RequestBody.Value.Content, row.Takes)
			} else if row.Takes != nil {
				t.Errorf("%s takes %T in the catalogue, and nothing in the contract", op.OperationID, row.Takes)
			}
		}
	}
}

// comparison compares schemas with Go types.
type comparison struct {
	t        *testing.T
	requires bool // fields that are always there are required; what a request must have, its handler says
	seen     map[reflect.Type]bool
}

func (c comparison) body(where string, content openapi3.Content, of any) {
	kind := content.Get("application/json")
	switch {
	case kind == nil && of != nil && len(content) > 0:
		c.t.Errorf("%s %T in the catalogue, and no JSON in the contract", where, of)
	case kind != nil && of != nil:
		c.same(where, kind.Schema, reflect.TypeOf(of))
	case kind != nil && len(kind.Schema.Value.Properties) > 0:
		c.t.Errorf("%s JSON in the contract, and nothing in the catalogue", where)
	}
}

var marshaler = reflect.TypeFor[json.Marshaler]()

func (c comparison) same(where string, ref *openapi3.SchemaRef, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	schema := ref.Value
	want := ""
	switch {
	case t == reflect.TypeFor[time.Time](), t == reflect.TypeFor[[]byte](), t.Kind() == reflect.String && !t.Implements(marshaler):
		want = "string"
	case t == reflect.TypeFor[json.RawMessage](), t.Implements(marshaler), len(schema.OneOf) > 0:
		return // the type says it in code, or the schema has several
	case t.Kind() == reflect.Bool:
		want = "boolean"
	case t.Kind() == reflect.Float64:
		want = "number"
	case t.Kind() == reflect.Int64, t.Kind() == reflect.Int, t.Kind() == reflect.Uint16:
		want = "integer"
	case t.Kind() == reflect.Slice:
		want = "array"
	default:
		want = "object"
	}
	if schema.Type != nil && !schema.Type.Includes(want) {
		c.t.Errorf("%s is of the type %v in the contract, and in Go %s", where, schema.Type, t)
		return
	}
	switch t.Kind() {
	case reflect.Slice:
		if want == "array" && schema.Items != nil {
			c.same(where+"[]", schema.Items, t.Elem())
		}
	case reflect.Struct:
		if want == "object" && !c.seen[t] {
			c.seen[t] = true
			c.fields(where, schema, t)
		}
	}
}

func (c comparison) fields(where string, schema *openapi3.Schema, t reflect.Type) {
	fields := map[string]field{}
	c.fieldsOf(t, true, fields)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		property := schema.Properties[name]
		if property == nil {
			c.t.Errorf("%s has no field %s in the contract, and %s has", where, name, t)
			continue
		}
		if required := slices.Contains(schema.Required, name); c.requires && required != fields[name].always {
			c.t.Errorf("%s: %s is required: %v; it is always there: %v", where, name, required, fields[name].always)
		}
		c.same(where+"."+name, property, fields[name].of)
	}
	for name := range schema.Properties {
		if _, ok := fields[name]; !ok {
			c.t.Errorf("%s has a field %s in the contract, and %s has none", where, name, t)
		}
	}
}

// field is a field of JSON.
type field struct {
	of     reflect.Type
	always bool // it is never left out
}

// fieldsOf adds the fields of the JSON of t, by name. always is false for a part of an
// object that may be left out as a whole.
func (c comparison) fieldsOf(t reflect.Type, always bool, all map[string]field) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && f.Type.Kind() == reflect.Pointer:
			c.fieldsOf(f.Type.Elem(), false, all)
		case f.Anonymous:
			c.fieldsOf(f.Type, always, all)
		case name != "-":
			if _, twice := all[name]; twice {
				c.t.Errorf("%s has two fields %s in JSON, which encoding/json drops", t, name)
			}
			all[name] = field{f.Type, always && options == ""}
		}
	}
}
