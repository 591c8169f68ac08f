package harness

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// AskWrite is a definition in which changes and commands need an approval.
const AskWrite = "policy: {tools: {ask: [write_file, edit_file, move, delete, bash]}}"

// scripted is a runner that runs the task as a shell script.
const scripted = `#!/bin/sh
exec sh -c "$(sed -n '/^<task from/,/^<\/task>/p' | sed '1d;$d')" 2>&1
`

// Delegating starts a host with the scripted runner. more is text for its scopefs.yaml.
func Delegating(t testing.TB, more string, agents map[string]string) *Host {
	h := LayOut(t, agents)
	h.Scripted(more)
	h.Start()
	return h
}

// Scripted writes a scopefs.yaml with the scripted runner, and with more.
func (h *Host) Scripted(more string) {
	h.T.Helper()
	h.Put("runner", scripted)
	require.NoError(h.T, os.Chmod(h.Base+"/runner", 0o755))
	h.Put("scopefs.yaml", "runner: ["+h.Base+"/runner]\nsandbox: {expose: ["+h.Base+"/runner]}\n"+more)
}
