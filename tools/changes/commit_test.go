package changes

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/file/message"
)

// layer holds changes of a directory: the hash of them; "": it has none.
type layer struct {
	hash  string
	taken []string
}

func (l *layer) answer(_ context.Context, _ tools.Env, r query.Request) (*query.Reply, error) {
	total := len(l.hash[:min(1, len(l.hash))])
	if r.Diff != nil {
		return &query.Reply{Hash: cmp.Or(l.hash, "nothing"), Total: total, Shown: &query.Shown{}}, nil
	}
	if r.Commit.Hash != "" && r.Commit.Hash != l.hash {
		return &query.Reply{Stale: true}, nil
	}
	if total > 0 {
		l.taken = append(l.taken, l.hash)
	}
	l.hash = ""
	return &query.Reply{Result: &history.Result{Done: total}}, nil
}

// asking is a gate of an agent whose commits must be approved.
func asking(t *testing.T) tools.Gate {
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o755))
	text := "---\nname: a\ndescription: test\nview: {changes: held}\npolicy: {tools: {ask: [commit]}}\n---\n"
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", "a.md"), []byte(text), 0o644))
	all, errs := agents.Load(base, agents.Host{Tools: catalog.Tools{{Name: "commit", Writes: true}}})
	require.Empty(t, errs)
	return tools.Gate{Agent: "a", Session: "s", Rates: &tools.Rates{}, Approvals: approvals.NewSet(nil),
		Rules:  func() tools.Rules { return all.Agents["a"].Grants },
		Record: func(context.Context, audit.Event) error { return nil }}
}

// TestCommitOfAnotherRoot: a commit that was approved for the changes of some directories takes none that have the same paths and content
// in another one.
func TestCommitOfAnotherRoot(t *testing.T) {
	type hashes = map[string]string
	for name, c := range map[string]struct {
		paths       string
		shown, then hashes
		taken       []string
	}{
		"unchanged, own":     {"", hashes{"own": "x"}, hashes{"own": "x"}, []string{"own"}},
		"unchanged, a root":  {"", hashes{"/a": "x"}, hashes{"/a": "x"}, []string{"/a"}},
		"unchanged, by path": {`"/a"`, hashes{"/a": "x"}, hashes{"/a": "x"}, []string{"/a"}},
		"unchanged, two":     {"", hashes{"own": "x", "/b": "y"}, hashes{"own": "x", "/b": "y"}, []string{"own", "/b"}},
		"changed":            {"", hashes{"/a": "x"}, hashes{"/a": "y"}, nil},
		"another root":       {"", hashes{"/a": "x"}, hashes{"/b": "x"}, nil},
		"own for a root":     {"", hashes{"/a": "x"}, hashes{"own": "x"}, nil},
		"a root for own":     {"", hashes{"own": "x"}, hashes{"/a": "x"}, nil},
		"exchanged":          {"", hashes{"own": "x", "/b": "y"}, hashes{"own": "y", "/b": "x"}, nil},
		"by path, one more":  {`"/a", "x"`, hashes{"/a": "x"}, hashes{"own": "x"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			layers := map[string]*layer{"own": {}, "/a": {}, "/b": {}}
			hold := func(h hashes) {
				for at, l := range layers {
					l.hash = h[at]
				}
			}
			histories := Histories{Own: layers["own"].answer,
				Dirs: func() message.Dirs { return message.Dirs{Own: "/workspace", Roots: []string{"/a", "/b"}} },
				Roots: func(context.Context) []Root {
					return []Root{{"/a", layers["/a"].answer}, {"/b", layers["/b"].answer}}
				}}
			all, err := Held(histories, Tasks{}, NewTurns())
			require.NoError(t, err)
			g := asking(t)
			set, err := tools.NewSet(g, all...)
			require.NoError(t, err)
			call := func() error {
				_, err := set.Call(context.Background(), tools.Call{Tool: "commit", Args: json.RawMessage(`{"paths":[` + c.paths + `]}`)})
				return err
			}
			hold(c.shown)
			var asked *tools.Error
			require.ErrorAs(t, call(), &asked)
			require.Equal(t, tools.ApprovalRequired, asked.Code, "%v", asked)
			_, err = g.Approvals.Decide(asked.ApprovalID, true, approvals.Answer{}, func(approvals.Approval) error { return nil })
			require.NoError(t, err)
			hold(c.then)
			err = call()
			var taken []string
			for _, at := range []string{"own", "/a", "/b"} {
				if layers[at].taken != nil {
					taken = append(taken, at)
				}
			}
			assert.Equal(t, c.taken, taken)
			assert.Equal(t, c.taken == nil, err != nil, "%v", err)
		})
	}
}
