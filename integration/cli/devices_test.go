package cli

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestRunDevices: a run says which device of its definition this host lacks. One that leads to the host's memory or mounts is refused, and
// nothing runs.
func TestRunDevices(t *testing.T) {
	t.Parallel()
	h := harness.LayOut(t, nil)
	h.Define("lacks", "sandbox: {devices: [/dev/scopefs-none]}")
	h.Define("refused", "sandbox: {devices: [/dev/fuse]}")
	h.Define("bare", "")
	for _, id := range []string{"lacks", "refused", "bare"} {
		require.NoError(t, os.MkdirAll(h.Scope(id), 0o755))
	}
	h.Start()
	_, errs, code := h.Try("run", "lacks", "-q", "--", "true")
	assert.Zero(t, code)
	assert.Contains(t, errs, "scopefs: this host has no /dev/scopefs-none for sandbox: {devices}: scopefs doctor says what is there\n")
	_, errs, code = h.Try("run", "refused", "-q", "--", "touch", "ran")
	assert.Equal(t, 125, code)
	assert.Contains(t, errs, `devices: /dev/fuse is a device of the driver "fuse", which leads to mounts of the host: remove it`)
	assert.NoFileExists(t, h.Scope("refused", "ran"))

	// set refuses the same device before it writes the definition.
	_, errs, code = h.Try("set", "sandbox.devices", "[/dev/fuse]", "--agent", "bare", "--yes")
	assert.NotZero(t, code)
	assert.Contains(t, errs, `devices: /dev/fuse is a device of the driver "fuse", which leads to mounts of the host: remove it`)
	_, errs, code = h.Try("set", "limits.pids", "100", "--agent", "refused", "--yes")
	assert.Zero(t, code, errs)
	_, errs, code = h.Try("set", "sandbox.devices", "[/dev/scopefs-none]", "--agent", "bare", "--yes")
	assert.Zero(t, code, errs)

	h.Define("refused", "sandbox: {devices: [memory]}")
	out, errs, code := h.Try("agents", "check")
	assert.NotZero(t, code)
	assert.Contains(t, out+errs, `"memory" is no device: write gpu, nvidia, dri, kvm, or a path below /dev`)
}
