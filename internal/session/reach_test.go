package session

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope/hosts"
)

// TestReachOnHostNetwork: a program on the host's network is told what it lacks there, unless it has a key of its own.
func TestReachOnHostNetwork(t *testing.T) {
	a := reach{ID: "a", Hosts: hosts.Compile(hosts.Network{Kind: hosts.HostNetwork}, nil)}
	p := &api.RunProgram{Name: "claude", Networks: []string{"anthropic"}}
	note, err := a.model(t.Context(), p, nil, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, "claude: agent a has network: host, where no proxy puts in a key or a login, decides or records: "+
		"give it a key (-e ANTHROPIC_API_KEY), or write network: {presets: [anthropic]}", note)
	note, err = a.model(t.Context(), p, nil, map[string]string{"ANTHROPIC_API_KEY": "x"}, nil)
	require.NoError(t, err)
	assert.Empty(t, note)
	a.Env = map[string]string{"ANTHROPIC_API_KEY": "x"}
	note, err = a.model(t.Context(), p, nil, nil, nil)
	require.NoError(t, err)
	assert.Empty(t, note)
}
