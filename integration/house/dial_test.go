package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dialling says who may connect, and why. All others get connections of these.
var dialling = map[string]string{
	"tools/sandbox/ports": "listeners of its own sandbox",
	"tools/egress":        "what an agent, or a program for it, names",
	"internal/dial":       "servers that the operator has named",
	"internal/client":     "the daemon's control socket",
	"internal/desktop":    "the session bus of the operator's desktop",
	"internal/holder":     "the holder's socket",
	"internal/servertest": "servers of tests",
	"tools/sshkeys":       "the user's SSH agent",
	"cmd/scopefs-ssh":     "in a sandbox: the agent's network, and the socket of its keys",
}

// dials are names of packages that connect, or resolve a name. Of net/http they are those that connect by net.Dialer.
var dials = map[string][]string{
	"net": {"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialIP", "DialUnix", "Dialer", "DefaultResolver", "Resolver", "LookupHost", "LookupIP",
		"LookupAddr", "LookupCNAME", "LookupMX", "LookupNS", "LookupPort", "LookupSRV", "LookupTXT"},
	"crypto/tls":            {"Dial", "DialWithDialer", "Dialer"},
	"net/http":              {"Get", "Post", "PostForm", "Head", "DefaultClient", "DefaultTransport", "Client", "Transport"},
	"net/rpc":               {"Dial", "DialHTTP", "DialHTTPPath"},
	"net/smtp":              {"Dial", "SendMail"},
	"syscall":               {"Connect"},
	"golang.org/x/sys/unix": {"Connect"},
}

// dialsIn returns the names of a package's files that connect. A literal of http.Client or http.Transport connects unless it says how.
func dialsIn(t *testing.T, p *pkg) (found []string) {
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		imported := map[string]string{}
		for _, i := range file.Imports {
			at, _ := strconv.Unquote(i.Path.Value) // it was parsed
			as := at[strings.LastIndex(at, "/")+1:]
			if i.Name != nil {
				as = i.Name.Name
			}
			imported[as] = at
		}
		named := func(e ast.Expr) string {
			s, ok := e.(*ast.SelectorExpr)
			if !ok {
				return ""
			}
			x, ok := s.X.(*ast.Ident)
			if !ok || !slices.Contains(dials[imported[x.Name]], s.Sel.Name) {
				return ""
			}
			return imported[x.Name] + "." + s.Sel.Name
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if what := named(n); what != "" && what != "net/http.Client" && what != "net/http.Transport" {
					found = append(found, what)
				}
			case *ast.CompositeLit:
				how := map[string]string{"net/http.Client": "Transport", "net/http.Transport": "DialContext"}[named(n.Type)]
				if how != "" && !slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
					kv, ok := e.(*ast.KeyValueExpr)
					return ok && kv.Key.(*ast.Ident).Name == how
				}) {
					found = append(found, named(n.Type)+" without "+how)
				}
			}
			return true
		})
	}
	return found
}

// TestWhoDials: a connection is made by the doors alone.
func TestWhoDials(t *testing.T) {
	used := map[string]bool{}
	for _, p := range goList(t, append([]string{"-deps"}, modules...)...) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours || strings.HasPrefix(name, "integration/") {
			continue
		}
		found := dialsIn(t, p)
		if dialling[name] == "" {
			assert.Empty(t, found, "%s connects: get the connection of internal/dial, or of an egress.Dialer", name)
			continue
		}
		used[name] = len(found) > 0
	}
	for name := range dialling {
		assert.True(t, used[name], "%s connects to nothing: remove the row", name)
	}
}
