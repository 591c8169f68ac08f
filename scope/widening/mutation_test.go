package widening_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// The mutations that no test notices.
const (
	costs    = "more is looked at, with the same result"
	loads    = "what does not compile does not load"
	noMCP    = "the tests have no tool mcp; the mutation tells a line more"
	anyName  = "another name stands for those that no rule has"
	sameHost = "a server that only one of the two sees is seen by both while its tools are compared"
)

// unnoticed are these mutations, each with the reason.
var unnoticed = map[string]string{
	"Of: best > most true":                         costs,
	"Of: len(c.among) > 1 true":                    costs,
	"candidates: o.access < r.access true":         costs,
	"candidates: !o.folded true":                   costs,
	"candidates: !own[r.key] true":                 costs,
	"candidates: !before[r.key] true":              costs,
	"candidates: !r.folded true":                   costs,
	"rulesOf: spec.Git != nil true":                costs,
	"excessAt: !now.Wider(scope.Decision{}) false": costs,
	"names: r.pattern.host != \"\" true":           costs,
	"names: len(end) > maxHost inverted":           anyName,
	"names: r.pattern.wild && strings.HasSuffix(end, r.pattern.host) && r.pattern.host != \"\" false":     anyName,
	"candidates: o.folded && o.access < r.access && !o.git false":                                         costs,
	"excessAt: !now.Wider(scope.Decision{}) || !now.Wider(old) && reflect.DeepEqual(rules, before) false": costs,
	"excessAt: !now.Wider(old) && reflect.DeepEqual(rules, before) false":                                 costs,
	"requestGrammar: r < ' ' || r == '\\\\' false":                                                        costs,
	"requestGrammar: r < ' ' false":                                                                       costs,
	"requestGrammar: r == '\\\\' false":                                                                   costs,
	"requestGrammar: r == '/' && (state == 2 || state == 3) false":                                        costs,
	"requestGrammar: r == '/' inverted":                                                                   costs,
	"requestGrammar: r == '/' true":                                                                       costs,
	"requestGrammar: state == 2 || state == 3 false":                                                      costs,
	"requestGrammar: state == 2 false":                                                                    costs,
	"requestGrammar: state == 3 false":                                                                    costs,
	"requestGrammar: r == '.' && state < 3 false":                                                         costs,
	"requestGrammar: state < 3 inverted":                                                                  costs,
	"requestGrammar: state < 3 true":                                                                      costs,
	"names: name == \"mcp\" false":                                                                        noMCP,
	"serverTools: !had && c.now.Sees(server) false":                                                       sameHost,
	"files: err != nil || wrong != nil false":                                                             loads,
	"files: err != nil false":                                                                             loads,
	"files: wrong != nil false":                                                                           loads,
	"files: c.undecided() false":                                                                          loads,
}

// TestMutations: each comparison of the procedure that is inverted, or dropped from those around it, and each step of it that is
// dropped, makes a test fail.
func TestMutations(t *testing.T) {
	need.All(t, "it compiles the procedure, and runs its tests for each comparison of it")
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	var sites []mutation
	replace := map[string]string{}
	for pkg, files := range map[string][]string{"scope/excess": {"excess.go"}, "scope/network": {"excess.go"}, "scope/widening": {"widening.go"}} {
		for _, file := range append(files, "mutant.go") {
			name, text := filepath.Join(root, pkg, file), ""
			if file == "mutant.go" {
				text = "package " + filepath.Base(pkg) + mutant
			} else {
				text = mutable(t, name, &sites)
			}
			at := filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-")+"-"+file)
			require.NoError(t, os.WriteFile(at, []byte(text), 0o600))
			replace[name] = at
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay"), overlay, 0o600))
	binaries := map[string]string{}
	for _, pkg := range []string{"scope/excess", "scope/network", "scope/widening"} {
		binary := filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-")+".test")
		cmd := exec.Command("go", "test", "-c", "-overlay", filepath.Join(dir, "overlay"), "-o", binary, "./"+pkg)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		binaries[pkg] = binary
	}
	fails := func(mutation string) bool {
		for _, tests := range [][2]string{ // the fast ones first
			{"scope/excess", "TestPolicyExcessOne"}, {"scope/network", "TestExcessRoute"}, {"scope/widening", "TestOf|TestLines|TestAll|TestPresets"},
			{"scope/excess", "TestPolicyExcess|TestAskExcess"}, {"scope/network", "TestExcess"}, {"scope/widening", "TestNothingUntold"},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			cmd := exec.CommandContext(ctx, binaries[tests[0]], "-test.failfast", "-test.run", "^("+tests[1]+")$")
			cmd.Dir, cmd.Env = filepath.Join(root, tests[0]), append(os.Environ(), "SCOPEFS_TEST_MUTATION="+mutation, "SCOPEFS_TEST_DEFINITIONS=300")
			err := cmd.Run()
			cancel()
			if err != nil {
				return true
			}
		}
		return false
	}
	require.False(t, fails(""), "the tests pass without a mutation")
	t.Logf("%d places", len(sites))
	made := map[string]bool{}
	for i, site := range sites {
		for _, how := range site.how {
			name := site.of + " " + how
			made[name] = true
			if fails(fmt.Sprintf("%d %s", i, how)) {
				continue
			}
			assert.Contains(t, unnoticed, name, "no test notices it")
		}
	}
	for name := range unnoticed {
		assert.True(t, made[name], "%s is no more", name)
	}
}

// mutation is a place of the procedure, and what is made of it.
type mutation struct {
	of  string
	how []string // inverted, true, false
}

// mutant is a function that the mutable text calls.
const mutant = `

import "os"

func mutant(i string, is bool) bool {
	switch os.Getenv("SCOPEFS_TEST_MUTATION") {
	case i + " inverted":
		return !is
	case i + " true":
		return true
	case i + " false":
		return false
	}
	return is
}
`

// mutable returns the text of a file in which each comparison and step is a site. Conditions of loops are none.
func mutable(t *testing.T, name string, sites *[]mutation) string {
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, 0)
	require.NoError(t, err)
	type insertion struct {
		at   int
		end  bool // before what begins at the same place
		in   int  // the place of the other one: the inner of two comes first at an end, and last at a beginning
		text string
	}
	var all []insertion
	in, loops, drops := "", map[ast.Expr]bool{}, map[ast.Expr]string{} // drops: what a part of a condition is without effect
	offset := func(p token.Pos) int { return set.Position(p).Offset }
	site := func(n ast.Node, before, after, label string, how ...string) {
		from, to := offset(n.Pos()), offset(n.End())
		all = append(all, insertion{from, false, to, fmt.Sprintf(before, fmt.Sprint(len(*sites)))}, insertion{to, true, from, after})
		*sites = append(*sites, mutation{in + ": " + label, how})
	}
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			loops[n.Cond] = true
		case *ast.ExprStmt:
			if call, ok := n.X.(*ast.CallExpr); ok {
				site(n, "if mutant(%q, true) { ", " }", string(text[offset(call.Fun.Pos()):offset(call.Fun.End())])+"()", "false")
			}
		case *ast.BinaryExpr:
			switch n.Op {
			case token.LAND:
				drops[n.X], drops[n.Y] = "true", "true"
			case token.LOR:
				drops[n.X], drops[n.Y] = "false", "false"
			}
			if logic := slices.Contains([]token.Token{token.EQL, token.NEQ, token.LSS, token.GTR, token.LEQ, token.GEQ, token.LAND, token.LOR}, n.Op); logic && !loops[n] {
				site(n, "mutant(%q, ", ")", string(bytes.Join(bytes.Fields(text[offset(n.Pos()):offset(n.End())]), []byte(" "))), "inverted", cmp.Or(drops[n], "false"))
			}
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				site(n, "mutant(%q, ", ")", string(text[offset(n.Pos()):offset(n.End())]), "inverted", cmp.Or(drops[n], "false"))
			}
		}
		return true
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			in = d.Name.Name
		case *ast.GenDecl:
			if v, ok := d.Specs[0].(*ast.ValueSpec); ok {
				in = v.Names[0].Name
			}
		}
		ast.Inspect(decl, visit)
	}
	slices.SortStableFunc(all, func(a, b insertion) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.end != b.end && a.end:
			return -1
		case a.end != b.end:
			return 1
		}
		return b.in - a.in
	})
	var out strings.Builder
	last := 0
	for _, one := range all {
		out.Write(text[last:one.at])
		out.WriteString(one.text)
		last = one.at
	}
	out.Write(text[last:])
	return out.String()
}
