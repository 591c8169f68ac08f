package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/internal/need"
)

// TestAfterRunLong: names of files that are long in JSON do not keep the operator from what a command has changed.
func TestAfterRunLong(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	p := newProjects(t, "one")
	o := p.run("one", "python3", "-c", `
import os
for i in range(70): open('\x01' * 240 + str(i), 'w')
for i in range(30): os.mkdir('\x01' * 250); os.chdir('\x01' * 250)
os.makedirs('.git/hooks')
for i in range(9):
    try: open('.git/hooks/%d' % i, 'w')
    except OSError as e: print(e.errno)
`)
	assert.Contains(t, o.Stdout, "13")
	assert.Regexp(t, `more refused\n(.*\n)*.* created in `, o.Stderr)
}
