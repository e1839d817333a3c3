package sandbox_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// maxMethods is how many methods of its own an interface has at most. What an
// interface embeds is not counted.
const maxMethods = 8

var (
	// sums join all ports of one thing, by folder and name. Only code that joins takes
	// one; all other code takes the ports whose methods it calls, or an interface of its
	// own with these.
	sums = []string{"./Store", "./Sandboxes", "./Nodes", "./Templates", "internal/execution/Guest"}
	// joiners are the trees that join.
	joiners = []string{"cmd", "tests", "internal/serve", "internal/rpc"}
	// holders are structs elsewhere that keep a sum to hand it out.
	holders = []string{"internal/execution/openGuest"}
)

// source is a file of the module that is neither generated nor a test.
type source struct {
	folder  string // of its package
	imports map[string]string
	file    *ast.File
}

// parse returns the sources of the module.
func parse(t *testing.T) (all []source, files *token.FileSet) {
	t.Helper()
	files = token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || within(name, "api/gen", "tools", "sdk", "bin")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s := source{filepath.ToSlash(filepath.Dir(name)), map[string]string{}, file}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			folder := below(imported)
			local := path.Base(imported)
			if folder == "." {
				local = "sandbox"
			}
			if spec.Name != nil {
				local = spec.Name.Name
			}
			s.imports[local] = folder
		}
		all = append(all, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, files
}

// named returns the folder and name that a type expression means; empty for one that is
// no name.
func (s source) named(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return s.folder + "/" + e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			return cmp.Or(s.imports[x.Name], "?") + "/" + e.Sel.Name
		}
	}
	return ""
}

// sum returns the sum that a type mentions, other than as the result of a function;
// empty: none.
func (s source) sum(e ast.Expr) (found string) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncType, *ast.StructType, *ast.InterfaceType:
			return false // checked by themselves
		case ast.Expr:
			if name := s.named(n); slices.Contains(sums, name) {
				found = name
			}
		}
		return true
	})
	return found
}

func TestInterfacesAreSmall(t *testing.T) {
	all, files := parse(t)
	known := map[string]bool{}
	for _, s := range all {
		for n := range ast.Preorder(s.file) {
			if spec, ok := n.(*ast.TypeSpec); ok {
				known[s.folder+"/"+spec.Name.Name] = true
			}
			it, ok := n.(*ast.InterfaceType)
			if !ok {
				continue
			}
			own := 0
			for _, m := range it.Methods.List {
				own += len(m.Names)
			}
			if own > maxMethods {
				t.Errorf("%s: the interface has %d methods of its own, more than %d: group them by meaning", files.Position(it.Pos()), own, maxMethods)
			}
		}
	}
	for _, name := range slices.Concat(sums, holders) {
		if !known[name] {
			t.Errorf("%s is not there any more: take it out of this test", name)
		}
	}
}

func TestNobodyTakesASum(t *testing.T) {
	all, files := parse(t)
	for _, s := range all {
		if within(s.folder, joiners...) || strings.HasSuffix(s.folder, "test") {
			continue
		}
		refuse := func(fields *ast.FieldList, what string) {
			if fields == nil {
				return
			}
			for _, f := range fields.List {
				if sum := s.sum(f.Type); sum != "" {
					t.Errorf("%s: a %s is %s: take the ports whose methods are called", files.Position(f.Pos()), what, strings.TrimPrefix(sum, "./"))
				}
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				return !slices.Contains(holders, s.folder+"/"+n.Name.Name)
			case *ast.FuncType:
				refuse(n.Params, "parameter")
			case *ast.StructType:
				refuse(n.Fields, "field")
			case *ast.InterfaceType:
				for _, m := range n.Methods.List {
					if len(m.Names) == 0 && s.sum(m.Type) != "" {
						t.Errorf("%s: an interface embeds the sum %s", files.Position(m.Pos()), s.sum(m.Type))
					}
				}
			}
			return true
		})
	}
}
