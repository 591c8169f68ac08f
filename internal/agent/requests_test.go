package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// registry has agents of definitions.
type registry struct {
	Registry
	shared *Shared
	all    map[scope.ID]*agents.Agent
}

func (r registry) Definition(id scope.ID) (*agents.Agent, error) {
	if def := r.all[id]; def != nil {
		return def, nil
	}
	return nil, api.ErrUnknown
}

func (r registry) Agent(id scope.ID) (*Agent, error) { return New(r.shared, id), nil }

// TestRequestsOfOthers: an agent reaches its members, its roots and the agent that it is a root of, and by no request another one.
func TestRequestsOfOthers(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "agents.d"), 0o700))
	for id, text := range map[string]string{"a": "members: [member]", "b": "", "member": ""} {
		require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", id+".md"), []byte("---\nname: "+id+"\n"+text+"\n---\n"), 0o600))
	}
	loaded, errs := agents.Load(base, agents.Host{})
	require.Empty(t, errs)
	all := loaded.Agents
	for root, of := range map[scope.ID]scope.ID{"root": "a", "foreign": "b"} {
		all[root] = &agents.Agent{Definition: &agents.Definition{Name: root, RootOf: of}}
	}
	shared := shared()
	shared.Registry = registry{shared: shared, all: all}
	for by, reached := range map[scope.ID][]scope.ID{
		"a":       {"root", "member"},
		"root":    {"a"},
		"foreign": {"b"},
		"b":       {"foreign"},
	} {
		r := requests{New(shared, by)}
		for id := range all {
			t.Run(string(by+" "+id), func(t *testing.T) {
				_, err := r.Member(id)
				_, errRoot := r.RootDefinition(id)
				root := all[id].RootOf == by
				assert.Equal(t, root, errRoot == nil)
				for _, want := range reached {
					if want == id {
						require.NoError(t, err)
						return
					}
				}
				require.ErrorIs(t, err, api.ErrUnknown)
			})
		}
	}
}
