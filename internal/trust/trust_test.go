package trust

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope/agents"
)

// proposes returns a project whose directory has a file with a text.
func proposes(t *testing.T, text string) (config.Paths, config.Project) {
	home, dir := t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", home)
	base := filepath.Join(home, "scopefs", "own-1234")
	require.NoError(t, os.MkdirAll(filepath.Join(base, "agents.d"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(base, "agents.d", "own-1234.md"), fmt.Appendf(nil, "---\nname: own-1234\ndir: %q\n---\n", dir), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, agents.RepositoryFile), []byte(text), 0o600))
	p := config.Paths{Base: base}
	project, ok := config.ProjectOfBase(p)
	require.True(t, ok)
	return p, project
}

// TestDecide: each decision is recorded with the text that it is about, before it holds.
func TestDecide(t *testing.T) {
	p, project := proposes(t, "tools: [read_file]\n")
	shown, err := Of(p, project)
	require.NoError(t, err)
	require.Empty(t, shown.Error)
	var was []string
	var force []bool
	record := func(made api.Proposal) error {
		was, force = append(was, made.Last), append(force, project.InForce())
		return nil
	}
	_, err = Decide(p, project, api.ProposalRequest{Do: api.AcceptProposal, Hash: &shown.Hash, Shown: shown.Shown}, record)
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(project.Dir, agents.RepositoryFile)))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(project.Dir, agents.RepositoryFile))) // as an agent can
	_, err = Decide(p, project, api.ProposalRequest{Do: api.RevokeProposal}, record)
	require.NoError(t, err)
	assert.Equal(t, []string{"", shown.Hash}, was)
	assert.Equal(t, []bool{false, true}, force)
	assert.False(t, project.InForce())
}

// TestSize: what an agent writes in a repository's file, the daemon can send.
func TestSize(t *testing.T) {
	var members []string
	for i := range 1600 {
		members = append(members, fmt.Sprintf(`m%d: {members: ["*"]}`, i))
	}
	for _, text := range []string{
		`members: ["*"]` + "\nagents: {" + strings.Join(members, ", ") + "}\n",
		`members: ["*"]` + "\nagents: {" + strings.Join(members[:32], ", ") + "}\n",
		strings.Repeat("\x01", 1<<20),
		strings.Repeat("a:\n", 20_000),
	} {
		p, project := proposes(t, text)
		made, err := Of(p, project)
		require.NoError(t, err)
		sent, err := json.Marshal(made)
		require.NoError(t, err)
		assert.Less(t, len(sent), 16<<20)
	}
}
