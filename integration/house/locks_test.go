package house

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// effects are the functions that may wait for the log's disk, an agent's part of the log, a program or the network. None is
// reached while a mutex is held that another agent or client may need: see locksOfEffects for those that nobody else needs.
var effects = []string{
	"(*" + module + "audit.Log).Append", "(*" + module + "audit.Log).AppendAll", "(*" + module + "audit.Log).Record",
	"(*" + module + "audit.Channel).Append",
	"(" + module + "fs.Recorder).Record", module + "audit.Read",
	"(*" + module + "tools/limit.Pace).Wait",
	"(" + module + "internal/credential.Source).Read",
	"(*os/exec.Cmd).Run", "(*os/exec.Cmd).Output", "(*os/exec.Cmd).CombinedOutput", "(*os/exec.Cmd).Wait",
	"net.Dial", "net.DialTimeout", "(*net.Dialer).Dial", "(*net.Dialer).DialContext",
	"(*net/http.Client).Do", "(net/http.RoundTripper).RoundTrip",
}

// TestNoEffectUnderLock: no record, command, network or disk of the log is waited for under a lock that others need
// (convention 30).
func TestNoEffectUnderLock(t *testing.T) {
	need.Long(t, "it reads the whole program: eight seconds of a processor")
	c := newLockCheck(effects)
	export := map[string]string{}
	ours := map[string]*types.Package{}
	gc := importer.ForCompiler(c.fset, "gc", func(name string) (io.ReadCloser, error) { return os.Open(export[name]) })
	imp := importerFunc(func(name string) (*types.Package, error) {
		if p := ours[name]; p != nil {
			return p, nil
		}
		return gc.Import(name)
	})
	for _, p := range goList(t, "-export", "-deps", "./cmd/...") { // a package comes after those that it imports
		if !strings.HasPrefix(p.ImportPath, module) {
			export[p.ImportPath] = p.Export
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(c.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, file)
		}
		checked, err := c.add(p.ImportPath, files, imp)
		require.NoError(t, err)
		ours[p.ImportPath] = checked
	}
	used := map[string]bool{}
	for _, f := range c.findings() {
		if _, ok := locksOfEffects[f.lock]; ok {
			used[f.lock] = true
			continue
		}
		t.Errorf("%s", f)
	}
	for lock := range locksOfEffects {
		assert.True(t, used[lock], "locksOfEffects has %s, under which nothing waits: remove it", lock)
	}
}

// TestNoEffectUnderLockSees: the check finds an effect however it is reached.
func TestNoEffectUnderLockSees(t *testing.T) {
	const around = `package p
import "sync"
type T struct { mu sync.RWMutex; hook func(); r recorder; done sync.WaitGroup }
type recorder interface { write() }
type file struct{}
func (file) write() { record() }
func record() {}
func deep() { func() { record() }() }
func (t *T) alone() (func(), error) { t.mu.Lock(); return func() { t.mu.Unlock() }, nil }
func (t *T) under(f func()) { t.mu.Lock(); defer t.mu.Unlock(); f() }
func with() *T { return &T{hook: record} }
`
	for body, want := range map[string]int{
		`t.mu.Lock(); record(); t.mu.Unlock()`:                                 1,
		`t.mu.RLock(); defer t.mu.RUnlock(); if x { deep() }`:                  1,
		`t.mu.Lock(); defer t.mu.Unlock(); t.r.write()`:                        1,
		`t.mu.Lock(); defer t.mu.Unlock(); t.hook()`:                           1,
		`t.mu.Lock(); defer t.mu.Unlock(); f := func() { record() }; f()`:      1,
		`t.mu.Lock(); defer t.mu.Unlock(); defer record()`:                     1,
		`t.mu.Lock(); if x { t.mu.Unlock(); return }; record(); t.mu.Unlock()`: 1,
		`done, _ := t.alone(); defer done(); record()`:                         1,
		`done, _ := t.alone(); record(); done()`:                               1,
		`t.under(record)`:                                                      1,
		`t.under(func() { deep() })`:                                           1,
		`switch { case x: t.mu.Lock(); record(); t.mu.Unlock() }`:              1,
		`t.mu.Lock(); t.mu.Unlock(); record()`:                                 0,
		`t.mu.Lock(); if x { t.mu.Unlock(); record(); return }; t.mu.Unlock()`: 0,
		`t.mu.Lock(); defer t.mu.Unlock(); go record()`:                        0,
		`t.mu.Lock(); defer t.mu.Unlock(); t.done.Go(func() { record() })`:     0,
		`done, _ := t.alone(); done(); record()`:                               0,
		`t.under(func() {}); record()`:                                         0,
		`func() { t.mu.Lock(); defer t.mu.Unlock() }(); record()`:              0,
	} {
		c := newLockCheck([]string{"p.record"})
		file, err := parser.ParseFile(c.fset, "p.go", around+"func f(t *T, x bool) { "+body+" }", parser.SkipObjectResolution)
		require.NoError(t, err, body)
		export := map[string]string{}
		for _, p := range goList(t, "-export", "-deps", "sync") {
			export[p.ImportPath] = p.Export
		}
		_, err = c.add("p", []*ast.File{file}, importer.ForCompiler(c.fset, "gc", func(name string) (io.ReadCloser, error) { return os.Open(export[name]) }))
		require.NoError(t, err, body)
		assert.Len(t, c.findings(), want, body)
	}
}

type importerFunc func(string) (*types.Package, error)

func (f importerFunc) Import(name string) (*types.Package, error) { return f(name) }

// lockCheck finds calls that may reach an effect while a mutex is held. It walks each function once and knows calls of
// functions and methods, of interfaces' methods by the types that implement them, of function values that are assigned to a
// field or a variable, and of function values that are passed: these count as called where they are passed. It does not know
// function values that are kept in maps or sent, nor locks other than those of package sync.
type lockCheck struct {
	fset    *token.FileSet
	effects []string
	infos   []*types.Info
	named   []*types.Named
	bodies  map[any]*body           // by *types.Func or *ast.FuncLit
	values  map[types.Object][]any  // the functions that a field or a variable may hold
	under   map[types.Object]heldBy // the locks under which a function calls its parameter
}

// heldBy are names of locks.
type heldBy map[string]bool

// body is a function.
type body struct {
	name  string
	calls []call
	keeps heldBy // held when it returns: it returns what unlocks them
}

type call struct {
	callee any // a *types.Func, a *ast.FuncLit, or the types.Object of a field or a variable
	held   heldBy
	at     token.Pos
}

type finding struct {
	lock, at string
	path     []string
}

func (f finding) String() string {
	return fmt.Sprintf("%s: under %s: %s: release the lock before (convention 30)", f.at, f.lock, strings.Join(f.path, " -> "))
}

func newLockCheck(effects []string) *lockCheck {
	return &lockCheck{fset: token.NewFileSet(), effects: effects, bodies: map[any]*body{}, values: map[types.Object][]any{}, under: map[types.Object]heldBy{}}
}

// add walks the functions of a package.
func (c *lockCheck) add(name string, files []*ast.File, imp types.Importer) (*types.Package, error) {
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}, Instances: map[*ast.Ident]types.Instance{}}
	pkg, err := (&types.Config{Importer: imp}).Check(name, c.fset, files, info)
	if err != nil {
		return nil, err
	}
	c.infos = append(c.infos, info)
	for _, name := range pkg.Scope().Names() {
		if t, ok := pkg.Scope().Lookup(name).Type().(*types.Named); ok && t.TypeParams().Len() == 0 {
			c.named = append(c.named, t)
		}
	}
	for range 2 { // the second time, what each function keeps is known
		for _, file := range files {
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Body != nil {
						c.walk(info, info.Defs[d.Name], d.Name.Name, d.Body)
					}
				case *ast.GenDecl:
					(&walker{lockCheck: c, info: info, body: &body{}}).eval(d, heldBy{})
				}
			}
		}
	}
	return pkg, nil
}

func (c *lockCheck) walk(info *types.Info, key any, name string, block *ast.BlockStmt) {
	b := &body{name: name, keeps: heldBy{}}
	c.bodies[key] = b
	w := &walker{lockCheck: c, info: info, body: b, deferred: heldBy{}, unlocks: map[types.Object]heldBy{}}
	w.block(block.List, heldBy{})
}

// walker walks one function.
type walker struct {
	*lockCheck
	info     *types.Info
	body     *body
	deferred heldBy                  // unlocked when the function returns
	unlocks  map[types.Object]heldBy // variables with functions that unlock
}

// block returns what is held after statements; ends is whether they return or jump.
func (w *walker) block(list []ast.Stmt, held heldBy) (after heldBy, ends bool) {
	held = maps.Clone(held)
	for _, s := range list {
		if held, ends = w.stmt(s, held); ends {
			return held, true
		}
	}
	return held, false
}

func (w *walker) stmt(s ast.Stmt, held heldBy) (after heldBy, ends bool) {
	// branches returns what is held after one of several blocks.
	branches := func(all bool, blocks ...[]ast.Stmt) (heldBy, bool) {
		merged, open := heldBy{}, !all
		if !all {
			maps.Copy(merged, held)
		}
		for _, b := range blocks {
			if after, ends := w.block(b, held); !ends {
				maps.Copy(merged, after)
				open = true
			}
		}
		return merged, !open
	}
	switch s := s.(type) {
	case *ast.BlockStmt:
		return w.block(s.List, held)
	case *ast.LabeledStmt:
		return w.stmt(s.Stmt, held)
	case *ast.IfStmt:
		if s.Init != nil {
			held, _ = w.stmt(s.Init, held)
		}
		w.eval(s.Cond, held)
		if s.Else == nil {
			return branches(false, s.Body.List)
		}
		return branches(true, s.Body.List, []ast.Stmt{s.Else})
	case *ast.ForStmt:
		for _, part := range []ast.Stmt{s.Init, s.Post} {
			if part != nil {
				held, _ = w.stmt(part, held)
			}
		}
		if s.Cond != nil {
			w.eval(s.Cond, held)
		}
		after, _ = branches(false, s.Body.List)
		return after, false
	case *ast.RangeStmt:
		w.eval(s.X, held)
		after, _ = branches(false, s.Body.List)
		return after, false
	case *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
		var clauses [][]ast.Stmt
		all := false
		ast.Inspect(s, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CaseClause:
				for _, e := range n.List {
					w.eval(e, held)
				}
				clauses, all = append(clauses, n.Body), all || n.List == nil
				return false
			case *ast.CommClause:
				list := n.Body
				if n.Comm != nil {
					list = append([]ast.Stmt{n.Comm}, list...)
				}
				clauses, all = append(clauses, list), true
				return false
			case *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt, *ast.BlockStmt:
				return true
			case ast.Stmt:
				held, _ = w.stmt(n, held)
				return false
			case ast.Expr:
				w.eval(n, held)
				return false
			}
			return true
		})
		return branches(all, clauses...)
	case *ast.ReturnStmt:
		for _, e := range s.Results {
			w.eval(e, held)
		}
		for lock := range held {
			if !w.deferred[lock] && len(s.Results) > 0 {
				w.body.keeps[lock] = true
			}
		}
		return held, true
	case *ast.BranchStmt:
		return held, s.Tok != token.FALLTHROUGH
	case *ast.GoStmt:
		for _, arg := range s.Call.Args {
			w.eval(arg, held)
		}
		w.literal(s.Call.Fun)
	case *ast.DeferStmt:
		if lock, how := w.lock(s.Call); how == "Unlock" || how == "RUnlock" {
			w.deferred[lock] = true
		} else if id, ok := s.Call.Fun.(*ast.Ident); ok && w.unlocks[w.info.Uses[id]] != nil {
			maps.Copy(w.deferred, w.unlocks[w.info.Uses[id]])
		} else {
			w.eval(s.Call, held)
		}
	case *ast.AssignStmt:
		for i, e := range s.Rhs {
			w.eval(e, held)
			if call, ok := e.(*ast.CallExpr); ok && len(s.Rhs) == 1 {
				w.keep(s.Lhs[0], call, held)
			}
			if len(s.Lhs) == len(s.Rhs) {
				w.assign(w.object(s.Lhs[i]), e)
			}
		}
		for _, e := range s.Lhs {
			w.eval(e, held)
		}
	case *ast.ExprStmt:
		if call, ok := s.X.(*ast.CallExpr); ok {
			if lock, how := w.lock(call); how == "Lock" || how == "RLock" {
				held[lock] = true
				return held, false
			} else if how != "" {
				delete(held, lock)
				return held, false
			}
			if id, ok := call.Fun.(*ast.Ident); ok && w.unlocks[w.info.Uses[id]] != nil {
				for lock := range w.unlocks[w.info.Uses[id]] {
					delete(held, lock)
				}
				return held, false
			}
		}
		w.eval(s.X, held)
	case nil:
	default:
		w.eval(s, held)
	}
	return held, false
}

// keep notes that a variable holds what unlocks the locks which a call has kept.
func (w *walker) keep(to ast.Expr, call *ast.CallExpr, held heldBy) {
	f, ok := w.callee(call.Fun).(*types.Func)
	obj := w.object(to)
	if !ok || obj == nil || w.bodies[f] == nil || len(w.bodies[f].keeps) == 0 {
		return
	}
	if _, is := obj.Type().Underlying().(*types.Signature); is {
		w.unlocks[obj] = w.bodies[f].keeps
		maps.Copy(held, w.bodies[f].keeps)
	}
}

// lock returns the name of the mutex on which a call is, and the method; "" is another call.
func (w *walker) lock(call *ast.CallExpr) (name, how string) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	f, ok := w.info.Uses[sel.Sel].(*types.Func)
	if !ok || f.Pkg() == nil || f.Pkg().Path() != "sync" || !slices.Contains([]string{"Lock", "RLock", "Unlock", "RUnlock"}, f.Name()) {
		return "", ""
	}
	switch x := sel.X.(type) {
	case *ast.SelectorExpr:
		if s := w.info.Selections[x]; s != nil {
			return strings.TrimPrefix(types.TypeString(deref(s.Recv()), nil), module) + "." + x.Sel.Name, f.Name()
		}
	case *ast.Ident:
		if obj := w.info.Uses[x]; obj != nil {
			return strings.TrimPrefix(obj.Pkg().Path(), module) + "." + obj.Name(), f.Name()
		}
	}
	return w.fset.Position(call.Pos()).String(), f.Name()
}

func deref(t types.Type) types.Type {
	if p, ok := t.(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}

// keepers are functions that call their argument later, or in another goroutine.
var keepers = []string{
	"(*sync.WaitGroup).Go", "time.AfterFunc", "context.AfterFunc", "sync.OnceFunc", "sync.OnceValue", "sync.OnceValues", "(*net/http.ServeMux).HandleFunc",
	"(*github.com/modelcontextprotocol/go-sdk/mcp.Server).AddTool",
	"(*" + module + "tools/egress.Proxy).begin", module + "tools.New", module + "tools.NewScoped", module + "tools.Declared",
}

// eval notes the calls in an expression or statement.
func (w *walker) eval(n ast.Node, held heldBy) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			w.literal(n)
			return false
		case *ast.CallExpr:
			if w.info.Types[n.Fun].IsType() { // a conversion
				break
			}
			callee := w.callee(n.Fun)
			if lit, ok := n.Fun.(*ast.FuncLit); ok {
				w.literal(lit)
				callee = lit
			}
			w.note(callee, held, n.Pos())
			f, _ := callee.(*types.Func)
			if f != nil && slices.Contains(keepers, f.FullName()) {
				break
			}
			for i, arg := range n.Args {
				if value := w.function(arg); value != nil {
					passed := maps.Clone(held)
					if f != nil {
						if params := f.Signature().Params(); i < params.Len() {
							maps.Copy(passed, w.under[params.At(i)])
						}
					}
					w.note(value, passed, arg.Pos())
				}
			}
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok {
				w.assign(w.info.Uses[id], n.Value)
			}
		case *ast.ValueSpec:
			for i, value := range n.Values {
				w.assign(w.info.Defs[n.Names[min(i, len(n.Names)-1)]], value)
			}
		}
		return true
	})
}

// note notes a call, and the locks under which a parameter is called.
func (w *walker) note(callee any, held heldBy, at token.Pos) {
	if callee == nil {
		return
	}
	w.body.calls = append(w.body.calls, call{callee, maps.Clone(held), at})
	if obj, ok := callee.(*types.Var); ok && !obj.IsField() {
		if w.under[obj] == nil {
			w.under[obj] = heldBy{}
		}
		maps.Copy(w.under[obj], held)
	}
}

// literal walks a function literal as a function of its own.
func (w *walker) literal(e ast.Expr) {
	if lit, ok := e.(*ast.FuncLit); ok {
		w.walk(w.info, lit, "func in "+w.body.name, lit.Body)
	}
}

// assign notes that a field or a variable may hold a function.
func (w *walker) assign(to types.Object, e ast.Expr) {
	if value := w.function(e); to != nil && value != nil && !slices.Contains(w.values[to], value) {
		w.values[to] = append(w.values[to], value)
	}
}

// function returns the function that an expression is, or nil.
func (w *walker) function(e ast.Expr) any {
	switch e := e.(type) {
	case *ast.FuncLit:
		return e
	case *ast.Ident, *ast.SelectorExpr:
		switch obj := w.callee(e).(type) {
		case *types.Func:
			return obj
		case *types.Var:
			if _, ok := obj.Type().Underlying().(*types.Signature); ok {
				return obj
			}
		}
	}
	return nil
}

// callee returns the object of a function, a field or a variable.
func (w *walker) callee(e ast.Expr) any {
	switch e := ast.Unparen(e).(type) {
	case *ast.IndexExpr:
		return w.callee(e.X)
	case *ast.Ident, *ast.SelectorExpr:
		switch obj := w.object(e).(type) {
		case *types.Func:
			return obj.Origin()
		case *types.Var:
			return obj.Origin()
		}
	}
	return nil
}

func (w *walker) object(e ast.Expr) types.Object {
	switch e := e.(type) {
	case *ast.Ident:
		if obj := w.info.Defs[e]; obj != nil {
			return obj
		}
		return w.info.Uses[e]
	case *ast.SelectorExpr:
		return w.info.Uses[e.Sel]
	}
	return nil
}

// targets returns the bodies that a callee may be: of an interface's method those of our types.
func (c *lockCheck) targets(callee any) (all []any) {
	switch callee := callee.(type) {
	case *types.Var:
		return c.values[callee]
	case *types.Func:
		recv := callee.Signature().Recv()
		if recv == nil {
			return []any{callee}
		}
		face, ok := recv.Type().Underlying().(*types.Interface)
		if !ok {
			return []any{callee}
		}
		for _, t := range c.named {
			if p := types.NewPointer(t); types.Implements(p, face) {
				if m, _, _ := types.LookupFieldOrMethod(p, true, t.Obj().Pkg(), callee.Name()); m != nil {
					all = append(all, m)
				}
			}
		}
	default:
		all = []any{callee}
	}
	return all
}

// findings returns the calls under a lock that may reach an effect, one of each lock and place.
func (c *lockCheck) findings() (all []finding) {
	known := map[any][]string{} // the shortest way to an effect
	var reach func(callee any, seen map[any]bool) []string
	reach = func(callee any, seen map[any]bool) []string {
		if f, ok := callee.(*types.Func); ok && slices.Contains(c.effects, f.FullName()) {
			return []string{strings.ReplaceAll(f.FullName(), module, "")}
		}
		if way, ok := known[callee]; ok {
			return way
		}
		if seen[callee] {
			return nil
		}
		seen[callee] = true
		var best []string
		for _, target := range c.targets(callee) {
			if target != callee {
				if way := reach(target, seen); way != nil && (best == nil || len(way) < len(best)) {
					best = way
				}
				continue
			}
			b := c.bodies[target]
			if b == nil {
				continue
			}
			for _, call := range b.calls {
				if way := reach(call.callee, seen); way != nil && (best == nil || len(way)+1 < len(best)) {
					best = append([]string{b.name}, way...)
				}
			}
		}
		if best != nil {
			known[callee] = best
		}
		return best
	}
	at := map[string]bool{}
	for _, b := range c.bodies {
		for _, call := range b.calls {
			if len(call.held) == 0 {
				continue
			}
			way := reach(call.callee, map[any]bool{})
			if way == nil {
				continue
			}
			for lock := range call.held {
				f := finding{lock, c.fset.Position(call.at).String(), append([]string{b.name}, way...)}
				if !at[f.lock+f.at] {
					at[f.lock+f.at] = true
					all = append(all, f)
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b finding) int { return strings.Compare(a.lock+a.at, b.lock+b.at) })
	return all
}

// locksOfEffects are the locks under which an effect is waited for, and why no other agent or client waits for them.
var locksOfEffects = map[string]string{
	"internal/agentproc.Door.updating": "of one sandbox; who waits for an update of its own, a reload, waits a second",
	"internal/session.client.starting": "of one client: its calls need the sandbox that is being started",
	"internal/view.spool.mu":           "of one view: who waits needs the view's events in the log, too",
	"internal/daemon.Daemon.reloading": "reloads of the operator, one after another",
	"internal/daemon.Daemon.reloads":   "reloads of the operator, one after another",
}
