package imports

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// TestImportNarrows: nothing that a source denies is allowed by its definition,
// on a host that has servers of the same names. SCOPEFS_IMPORT_CASES sets how many
// sources are made.
func TestImportNarrows(t *testing.T) {
	cases := need.Rounds("SCOPEFS_IMPORT_CASES", 800, 4000)
	host := agents.Host{Tools: ours(t), Memory: true, Servers: agents.Servers{"own": {Command: "theirs"}, "host": {Command: "h"}}}
	const batch = 400
	loaded, denials, far := 0, 0, 0
	for start := 0; start < cases; start += batch {
		base := t.TempDir()
		write := func(name, text string) {
			path := filepath.Join(base, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
		write("agents.d/b.md", "---\nname: b\n---\n")
		write("agents.d/c.md", "---\nname: c\n---\n")
		write("skills/s1/SKILL.md", "")
		write("skills/s2/SKILL.md", "")
		made := map[scope.ID]narrowCase{}
		text := map[scope.ID]string{}
		for i := start; i < min(cases, start+batch); i++ {
			p := picker{rand.New(rand.NewPCG(20261121, uint64(i)))}
			c := []func() narrowCase{
				func() narrowCase { return agentCase(p, Gemini) }, func() narrowCase { return agentCase(p, Claude) },
				func() narrowCase { return manifestCase(p) }, func() narrowCase { return scopesCase(p) },
			}[i%4]()
			id := scope.ID("x" + strconv.Itoa(i))
			results, err := Convert(Source{Tools: ours(t), File: "a.md", Text: []byte(c.text), Format: c.format, Name: id})
			require.NoError(t, err, "case %d:\n%s", i, c.text)
			write("agents.d/"+string(id)+".md", string(results[0].Text))
			made[id], text[id] = c, string(results[0].Text)
		}
		all, _ := agents.Load(base, host)
		for id, c := range made {
			agent := all.Agents[id]
			if agent == nil {
				continue // it grants nothing
			}
			loaded++
			if s := agent.Grants.Servers()["own"]; s.Own {
				far += min(1, len(s.URL))
				require.Equal(t, c.server, agents.Server{Command: s.Command, URL: s.URL, Headers: s.Headers}, "%s is another server than in\n%s", id, c.text)
			}
			for _, denied := range c.denied {
				denials++
				g := agent.Grants
				allowed := g.Tool(denied).Allow
				if name, ok := strings.CutPrefix(denied, "skill:"); ok {
					allowed = g.Skill(name).Allow
				} else if name, ok := strings.CutPrefix(denied, "member:"); ok {
					allowed = g.Member(name).Allow
				}
				require.False(t, allowed, "%s %s is denied by this %s source:\n%s\nand allowed by\n%s", id, denied, c.format, c.text, text[id])
			}
		}
	}
	t.Logf("%d sources, %d definitions that load, %d denials, %d servers with an address", cases, loaded, denials, far)
	require.Greater(t, far, cases/50)
	require.Greater(t, loaded, cases*8/10, "what does not load proves nothing")
}
