package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestUsersProgram: run --for shows a program of the operator's choice, as far as the
// agent's user reaches it. The user of an agent cannot have the daemon show anything.
func TestUsersProgram(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	own(t, h, "a", alice)
	h.Put("programs.d/prog.yaml", "description: x")
	h.Put("opt/bin/prog", "#!/bin/sh\necho runs")
	h.Put("closed/bin/prog", "#!/bin/sh\necho runs")
	for _, name := range []string{"opt/bin/prog", "closed/bin/prog"} {
		require.NoError(t, os.Chmod(filepath.Join(h.Base, name), 0o755))
	}
	h.Start()
	run := func(uid uint32, dir string) harness.Outcome {
		cmd := exec.Command(harness.Program, "--base", h.Base, "run", "--for", "prog", "a")
		if uid != 0 {
			as(cmd, uid)
		}
		cmd.Env = append(cmd.Environ(), "PATH="+filepath.Join(h.Base, dir, "bin")+":/usr/bin:/bin")
		return harness.Finish(t, cmd)
	}
	assert.Equal(t, "runs\n", run(0, "opt").Stdout)
	o := run(alice, "opt")
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, "prog: only the operator shows more of the host than a sandbox has")
	require.NoError(t, os.Chmod(filepath.Join(h.Base, "closed"), 0o700))
	o = run(0, "closed")
	assert.Equal(t, 125, o.Code)
	assert.Regexp(t, `^scopefs: ".*/closed" is closed to the agent's user \d+, who cannot reach .*/closed/bin/prog: install the program below /usr or /opt\n$`, o.Stderr)

	// What all sandboxes show needs no permission.
	h.Stop()
	h.Put("scopefs.yaml", "sandbox: {expose: ["+h.Base+"/opt]}")
	h.Start()
	assert.Equal(t, "runs\n", run(alice, "opt").Stdout)
}

// TestUsersKey: the key of a host that the daemon lacks comes from the operator's client alone. The user of an agent gives none.
func TestUsersKey(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "network: {presets: [late]}"})
	own(t, h, "a", alice)
	h.Put("presets.d/late.yaml", "description: x\nallow: [{host: api.test, credential: {from: {env: SCOPEFS_TEST_LATE_KEY}}}]")
	h.Put("programs.d/keyed.yaml", "command: \"true\"\nnetwork: [late]")
	h.Start()
	run := func(uid uint32) harness.Outcome {
		cmd := exec.Command(harness.Program, "--base", h.Base, "run", "--for", "keyed", "a")
		if uid != 0 {
			as(cmd, uid)
		}
		cmd.Env = append(cmd.Environ(), "SCOPEFS_TEST_LATE_KEY=sesame")
		return harness.Finish(t, cmd)
	}
	o := run(0)
	assert.Zero(t, o.Code, o.Stderr)
	o = run(alice)
	assert.Equal(t, 125, o.Code)
	assert.Equal(t, "scopefs: the agent does not start: the operator's log says why\n", o.Stderr)
}
