package house

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs"
)

// pkg is what go list says of a package.
type pkg struct {
	ImportPath, Dir, Export string
	Imports, GoFiles        []string
	TestGoFiles             []string
	XTestGoFiles            []string
	TestImports             []string
	XTestImports            []string
}

func (p *pkg) name() string { return strings.TrimPrefix(p.ImportPath, module) }

// lists are the results of goList by its arguments: nothing changes the tree meanwhile.
var lists = map[string][]*pkg{}

func goList(t *testing.T, args ...string) []*pkg {
	t.Helper()
	key := strings.Join(args, " ")
	if list, ok := lists[key]; ok {
		return list
	}
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Export,Imports,GoFiles,TestGoFiles,XTestGoFiles,TestImports,XTestImports"}, args...)...)
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	var list []*pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			lists[key] = list
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, &p)
	}
}

// forTests reports whether a package is for tests only.
func forTests(name string) bool {
	return matches("integration/*", name) || matches("internal/*test", name) && name != "internal/selftest"
}

func matches(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok || pattern == "**"
}

// TestRulesGuardWhatIsThere holds that what the rules name is there: a rule for an absent
// package guards nothing.
func TestRulesGuardWhatIsThere(t *testing.T) {
	packages := map[string]bool{}
	for _, p := range goList(t, modules...) {
		packages[p.name()] = true
	}
	for _, name := range callers {
		assert.True(t, packages[name], "callers names %s, which is no package: remove the rule", name)
	}
	for file := range exits {
		assert.FileExists(t, filepath.Join("../..", file), "a rule names it: remove the rule")
	}
}

// ownerOf returns the longest key of owners that an import is at or below.
func ownerOf(imp string) (key string) {
	for dep := range owners {
		if (imp == dep || strings.HasPrefix(imp, dep+"/")) && len(dep) > len(key) {
			key = dep
		}
	}
	return key
}

// TestImportsHaveOwners holds which packages may import a dependency: every import is
// listed, and every listed import and importer is there.
func TestImportsHaveOwners(t *testing.T) {
	used := map[string][]string{} // key → packages outside tests
	tested := map[string]bool{}   // key → a test imports it
	for _, p := range goList(t, modules...) {
		check := func(imports []string, test bool) {
			for _, imp := range imports {
				first, _, _ := strings.Cut(imp, "/")
				if !strings.Contains(first, ".") || strings.HasPrefix(imp+"/", module) { // the standard library's, or ours
					continue
				}
				key := ownerOf(imp)
				if !assert.NotEmpty(t, key, "%s imports %s, which owners does not list: say in layers_rules_test.go which packages may, and why", p.name(), imp) {
					continue
				}
				rule := owners[key]
				if test {
					tested[key] = true
					continue
				}
				used[key] = append(used[key], p.name())
				fits := slices.ContainsFunc(rule.packages, func(f string) bool { return matches(f, p.name()) })
				assert.True(t, fits, "%s imports %s: %s", p.name(), imp, rule.why)
			}
		}
		check(p.Imports, forTests(p.name()))
		check(slices.Concat(p.TestImports, p.XTestImports), true)
	}
	for key, rule := range owners {
		assert.NotEmpty(t, rule.why, key)
		if len(rule.packages) == 0 {
			assert.True(t, tested[key], "owners lists %s, which no test imports: remove it", key)
		}
		for _, owner := range rule.packages {
			there := slices.ContainsFunc(used[key], func(name string) bool { return matches(owner, name) })
			assert.True(t, there, "owners lists %s for %s, which does not import it: remove it", owner, key)
		}
	}
}

// TestImportsAreDocumented holds that docs/dependencies.md has each module of
// each go.mod, also what only other modules import, with a reason, and no other.
func TestImportsAreDocumented(t *testing.T) {
	seen := map[string]bool{}
	for _, dir := range moduleDirs {
		cmd := exec.Command("go", "mod", "edit", "-json")
		cmd.Dir = filepath.Join("../..", dir)
		out, err := cmd.Output()
		require.NoError(t, err)
		var mod struct{ Require []struct{ Path string } }
		require.NoError(t, json.Unmarshal(out, &mod))
		for _, m := range mod.Require {
			seen[m.Path] = seen[m.Path] || m.Path+"/" != module
		}
	}
	text, err := os.ReadFile("../../docs/dependencies.md")
	require.NoError(t, err)
	var required, listed []string
	for name, other := range seen {
		if other {
			required = append(required, strings.TrimPrefix(name, "github.com/"))
		}
	}
	for line := range strings.Lines(string(text)) {
		row := strings.Split(line, "|") // "", modules, why, ""
		if len(row) != 4 || !strings.Contains(row[1], "/") {
			continue
		}
		assert.NotEmpty(t, strings.TrimSpace(row[2]), "%s has no reason", row[1])
		for name := range strings.SplitSeq(row[1], ",") {
			listed = append(listed, strings.Fields(name)[0])
		}
	}
	assert.ElementsMatch(t, required, listed, "go.mod and docs/dependencies.md differ")
}

// source is a parsed file; name is its path from the top.
type source struct {
	name string
	in   string // the package
	test bool
	ast  *ast.File
	fset *token.FileSet
}

// parsed are all sources. No test changes them.
var parsed []source

func sources(t *testing.T) (all []source) {
	t.Helper()
	if parsed != nil {
		return parsed
	}
	for _, p := range goList(t, modules...) {
		for _, file := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			fset := token.NewFileSet()
			tree, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, parser.ParseComments)
			require.NoError(t, err)
			if !ast.IsGenerated(tree) {
				all = append(all, source{path.Join(p.name(), file), p.name(), strings.HasSuffix(file, "_test.go") || forTests(p.name()), tree, fset})
			}
		}
	}
	parsed = all
	return all
}

// each calls f with every use of an imported package's name, such as unix.Open.
func (s *source) each(f func(pkg, name string, at token.Position)) {
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok {
				f(x.Name, sel.Sel.Name, s.fset.Position(sel.Pos()))
			}
		}
		return true
	})
}

// TestSystemCalls holds convention 8: elsewhere unix and syscall are for
// constants and types.
func TestSystemCalls(t *testing.T) {
	export := map[string]string{}
	for _, p := range goList(t, "-export", "-deps", "golang.org/x/sys/unix") {
		export[p.ImportPath] = p.Export
	}
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(name string) (io.ReadCloser, error) { return os.Open(export[name]) })
	called := func(pkg, name string) bool {
		p, err := imp.Import(map[string]string{"unix": "golang.org/x/sys/unix", "syscall": "syscall"}[pkg])
		require.NoError(t, err)
		_, isFunc := p.Scope().Lookup(name).(*types.Func)
		return isFunc && !slices.Contains(pure, name)
	}
	for _, s := range sources(t) {
		if s.test || slices.Contains(callers, s.in) {
			continue
		}
		s.each(func(pkg, name string, at token.Position) {
			if pkg == "unix" || pkg == "syscall" {
				assert.False(t, called(pkg, name), "%s:%d calls %s.%s: reach files through scope (convention 8)", s.name, at.Line, pkg, name)
			}
		})
	}
}

// TestResolvesInOnePlace: only scope/beneath resolves paths by openat2(2); who asks the kernel whether it has the call
// resolves nothing, nor does a filter of system calls.
func TestResolvesInOnePlace(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.in == "scope/beneath" || strings.Contains(s.name, "/testdata/") {
			continue
		}
		s.each(func(_, name string, at token.Position) {
			asks := name == "SYS_OPENAT2" && (s.name == "internal/mount/check.go" || path.Base(s.name) == "confine.go")
			assert.False(t, !asks && strings.EqualFold(strings.TrimPrefix(name, "SYS_"), "openat2"), "%s:%d calls openat2: use scope/beneath", s.name, at.Line)
		})
	}
}

// TestOnlyMainExits holds convention 14.
func TestOnlyMainExits(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		count := 0
		s.each(func(pkg, name string, _ token.Position) {
			if pkg == "os" && name == "Exit" || pkg == "log" && strings.HasPrefix(name, "Fatal") || (pkg == "syscall" || pkg == "unix") && name == "Exit" {
				count++
			}
		})
		assert.LessOrEqual(t, count, exits[s.name], "%s ends the process: only main does (convention 14)", s.name)
	}
}

// TestNoGlob: directories have names that others chose, and in a pattern "[" finds nothing,
// without an error.
func TestNoGlob(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		s.each(func(pkg, name string, at token.Position) {
			assert.False(t, pkg == "filepath" && name == "Glob", "%s:%d calls filepath.Glob: read the directory", s.name, at.Line)
		})
	}
}

// TestNoInit holds convention 17: what a program does begins in main.
func TestNoInit(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				assert.NotEqual(t, "init", f.Name.Name, "%s has an init function", s.name)
			}
		}
	}
}

// TestLayersNoGlobalBounds holds convention 17 for what several agents share: a
// bound is a value of package limit, which its user gets.
func TestLayersNoGlobalBounds(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, d := range s.ast.Decls {
			vars, ok := d.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			ast.Inspect(vars, func(n ast.Node) bool {
				_, isChan := n.(*ast.ChanType)
				assert.False(t, isChan, "%s:%d is a global channel: pass a limit.Slots", s.name, s.fset.Position(vars.Pos()).Line)
				return !isChan
			})
		}
	}
}

// TestOnlySandboxKnowsBubblewrap keeps the means of confinement in one place.
func TestOnlySandboxKnowsBubblewrap(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.in == "tools/sandbox" {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text := strings.ToLower(lit.Value)
				assert.False(t, strings.Contains(text, "bwrap") || strings.Contains(text, "bubblewrap"), "%s names the sandbox's program: %s", s.name, lit.Value)
			}
			return true
		})
	}
}

// TestSkipsFailWhereRequired: a test that needs what a machine may lack uses
// package need, which fails it under REQUIRE_FUSE=1. Measurements are benchmarks.
func TestSkipsFailWhereRequired(t *testing.T) {
	for _, s := range sources(t) {
		if s.in == "internal/need" || s.in == "integration/kernels" { // the latter is not part of make test
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, call.Sel.Name) {
				x, ok := call.X.(*ast.Ident)
				assert.True(t, ok && x.Name == "need", "%s skips a test: use package need", s.name)
			}
			return true
		})
	}
}

// TestOnlyTheDoorEnforces: tools.Set.Call applies strategies, and no tool does
// so itself.
func TestOnlyTheDoorEnforces(t *testing.T) {
	found := false
	for _, s := range sources(t) {
		if s.test || s.in == "scope" {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok && call.Sel.Name == "Enforce" {
				found = true
				assert.Equal(t, "tools", s.in, "%s calls Enforce: declare a field of type tools.Resource", s.name)
			}
			return true
		})
	}
	assert.True(t, found, "nothing enforces")
}

// TestLayersDecideByKinds holds convention 7: no code looks into the text of a
// rule, a message or an error. It sees calls of package strings and comparisons
// that have such a text, or a variable that holds an error's, as an operand.
func TestLayersDecideByKinds(t *testing.T) {
	for _, s := range sources(t) {
		if _, ok := textReaders[s.name]; ok || s.test {
			continue
		}
		for _, at := range readsText(s.ast) {
			t.Errorf("%s:%d looks into the text of a rule, a message or an error: compare a kind, a code or errors.Is", s.name, s.fset.Position(at).Line)
		}
	}
}

// formatting are functions of strings that return a text for people.
var formatting = []string{"ReplaceAll", "Join", "ToLower", "ToValidUTF8", "Map", "Repeat"}

// TestLayersDecideByKindsSees: the test above can fail.
func TestLayersDecideByKindsSees(t *testing.T) {
	for code, want := range map[string]int{
		`strings.HasPrefix(e.Rule, "view: ")`:                          1,
		`strings.Contains(strings.ToLower(err.Error()), "no such")`:    1,
		`text := err.Error(); _, _, _ = strings.Cut(text, ": ")`:       1,
		`if e.Message == directory && e.Code == 1 { return }`:          1,
		`if e.Message != "" { fmt.Println(e.Message, err.Error()) }`:   0,
		`fmt.Println(strings.HasPrefix(e.Path, "a"), d.Kind == other)`: 0,
	} {
		tree, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc f() { "+code+" }", 0)
		require.NoError(t, err)
		assert.Len(t, readsText(tree), want, code)
	}
}

// readsText returns where a file looks into texts that are for people.
func readsText(file *ast.File) (all []token.Pos) {
	holds := map[string]bool{} // variables
	isText := func(n ast.Node) (found bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				found = found || slices.Contains([]string{"Rule", "Message", "Remedy", "Hint"}, n.Sel.Name)
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				found = found || ok && sel.Sel.Name == "Error" && len(n.Args) == 0
			case *ast.Ident:
				found = found || holds[n.Name]
			}
			return !found
		})
		return found
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			clear(holds)
		case *ast.AssignStmt:
			for i, value := range n.Rhs {
				call, ok := value.(*ast.CallExpr)
				if name, is := n.Lhs[i].(*ast.Ident); ok && is && isText(call) && len(call.Args) == 0 {
					holds[name.Name] = true
				}
			}
		case *ast.BinaryExpr:
			_, left := n.X.(*ast.SelectorExpr)
			_, right := n.Y.(*ast.SelectorExpr)
			empty := func(e ast.Expr) bool { lit, ok := e.(*ast.BasicLit); return ok && lit.Value == `""` }
			if n.Op == token.EQL || n.Op == token.NEQ {
				if (left && isText(n.X) || right && isText(n.Y)) && !empty(n.X) && !empty(n.Y) {
					all = append(all, n.Pos())
				}
			}
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if x, is := selectorOf(sel, ok); is && x == "strings" && !slices.Contains(formatting, sel.Sel.Name) && slices.ContainsFunc(n.Args, func(arg ast.Expr) bool { return isText(arg) }) {
				all = append(all, n.Pos())
			}
		}
		return true
	})
	return all
}

// selectorOf returns the name before the dot.
func selectorOf(sel *ast.SelectorExpr, ok bool) (string, bool) {
	if !ok {
		return "", false
	}
	x, is := sel.X.(*ast.Ident)
	if !is {
		return "", false
	}
	return x.Name, true
}

// TestTopLevel keeps the top of the tree short.
func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir("../..")
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			assert.Contains(t, topLevel, e.Name(), "nothing else belongs at the top")
		}
	}
}

// TestViewImplementsAll sees that every FUSE operation is the view's own: one
// that an embedded default served would have gone through no door.
func TestViewImplementsAll(t *testing.T) {
	view, ops := reflect.TypeFor[*fs.View](), reflect.TypeFor[fuse.RawFileSystem]()
	missing := map[string]string{}
	for i := range ops.NumMethod() {
		name := ops.Method(i).Name
		m, ok := view.MethodByName(name)
		if !ok {
			missing[name] = "is not there"
			continue
		}
		// The compiler makes the code of a promoted method: it has no file.
		file, _ := runtime.FuncForPC(m.Func.Pointer()).FileLine(m.Func.Pointer())
		if path.Base(path.Dir(file)) != "fs" {
			missing[name] = fmt.Sprintf("is from %s", file)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("%s %s: write it, if only to refuse", name, missing[name])
	}
	for i := range view.Elem().NumField() {
		f := view.Elem().Field(i)
		assert.False(t, f.Anonymous, "View embeds %s: what it promotes goes through no door", f.Type)
	}
}
