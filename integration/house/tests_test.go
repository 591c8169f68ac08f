package house

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testFunc is a test of the tree.
type testFunc struct {
	name, dir string
	target    string // of the Makefile, which runs it in place of make test; "": make test
}

// run returns the command that runs the test.
func (f testFunc) run() string {
	if f.target == "" {
		return "make test"
	}
	return "make " + f.target
}

// funcID names the functions and methods of one name in a directory.
type funcID struct{ dir, name string }

// skipTarget finds the target in the message of a test that skips itself.
var skipTarget = regexp.MustCompile(`^"make ([\w-]+) sets `)

// targetOf returns the target of the Makefile for which a call leaves the caller to it, or "".
func targetOf(call *ast.CallExpr, pkg, name string) string {
	literal := func(of ast.Expr) string {
		if sum, ok := of.(*ast.BinaryExpr); ok {
			of = sum.X
		}
		if text, ok := of.(*ast.BasicLit); ok {
			return text.Value
		}
		return ""
	}
	switch {
	case pkg == "need" && name == "All":
		return "test-all"
	case pkg == "need" && name == "Target":
		return strings.Trim(literal(call.Args[1]), `"`)
	case name == "Skip" && len(call.Args) > 0:
		if found := skipTarget.FindStringSubmatch(literal(call.Args[0])); found != nil {
			return found[1]
		}
	}
	return ""
}

// treeTests returns the tests of the tree. A test leaves make test if it calls need.All or need.Target, directly or by helpers.
func treeTests(t *testing.T) []testFunc {
	t.Helper()
	type call struct {
		by        funcID
		pkg, name string // pkg may be a value
	}
	var calls []call
	tests, seeds := map[funcID]bool{}, map[string][]funcID{}
	dirs := map[string]string{} // of packages with helpers, by name
	require.NoError(t, filepath.WalkDir("../..", func(name string, _ fs.DirEntry, err error) error {
		if slices.Contains(made, name) { // has roots of other systems
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(name, ".go") {
			return err
		}
		text, err := os.ReadFile(name)
		dir := path.Dir(strings.TrimPrefix(name, "../../"))
		isTest := strings.HasSuffix(name, "_test.go")
		if err != nil || !isTest && !strings.Contains(string(text), `internal/need"`) {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !isTest {
			dirs[path.Base(dir)] = dir
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			id := funcID{dir, f.Name.Name}
			tests[id] = tests[id] || isTest && f.Recv == nil && strings.HasPrefix(id.name, "Test") && id.name != "TestMain"
			ast.Inspect(f.Body, func(n ast.Node) bool {
				one, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				c := call{by: id}
				switch to := one.Fun.(type) {
				case *ast.Ident:
					c.name = to.Name
				case *ast.SelectorExpr:
					c.name = to.Sel.Name
					if of, ok := to.X.(*ast.Ident); ok {
						c.pkg = of.Name
					}
				}
				calls = append(calls, c)
				if target := targetOf(one, c.pkg, c.name); target != "" {
					seeds[target] = append(seeds[target], id)
				}
				return true
			})
		}
		return nil
	}))
	callers := map[funcID][]funcID{}
	for _, c := range calls {
		to := funcID{cmp.Or(dirs[c.pkg], c.by.dir), c.name}
		callers[to] = append(callers[to], c.by)
	}
	targets := map[funcID]string{}
	for _, target := range slices.Backward(slices.Sorted(maps.Keys(seeds))) { // test-all comes last
		for todo := seeds[target]; len(todo) > 0; todo = todo[1:] {
			id := todo[0]
			if targets[id] != "" {
				continue
			}
			targets[id] = target
			if !tests[id] {
				todo = append(todo, callers[id]...)
			}
		}
	}
	var all []testFunc
	for id, is := range tests {
		if is {
			all = append(all, testFunc{name: id.name, dir: id.dir, target: targets[id]})
		}
	}
	return all
}

// testNamed returns the test with a name, which may begin with its directory and a dot. Of several it is the one below
// integration.
func testNamed(t *testing.T, tests []testFunc, name string) (testFunc, bool) {
	t.Helper()
	dir, short := "", name
	if at := strings.LastIndexByte(name, '.'); at >= 0 {
		dir, short = name[:at], name[at+1:]
	}
	var found, below []testFunc
	for _, one := range tests {
		if one.name == short && (dir == "" || one.dir == dir) {
			found = append(found, one)
			if strings.HasPrefix(one.dir, "integration/") {
				below = append(below, one)
			}
		}
	}
	if len(found) > 1 {
		found = below
	}
	if len(found) != 1 {
		t.Errorf("%d tests are named %s: write it as the tree has it, with its directory if there are several", len(found), name)
		return testFunc{}, false
	}
	return found[0], true
}
